//go:build unix && !linux

package lab

import (
	"context"
	"syscall"
)

// Hidden is for Linux alone.
func Hidden(context.Context, []string) (bool, error) { return false, nil }

// Down is for Linux alone.
func Down(context.Context, string) error { return errNotLinux }

func remove(context.Context, string) error { return errNotLinux }

func leftovers(string) ([]string, error) { return nil, errNotLinux }

func startDaemon(context.Context, string, Options) error { return errNotLinux }

func dieWithParent() *syscall.SysProcAttr { return nil }

func ownGroup() *syscall.SysProcAttr { return nil }
