//go:build !linux

package control

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
