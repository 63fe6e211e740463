//go:build !linux

package userspace

import (
	"context"
	"errors"
)

// Run returns an error: tunnels work on Linux only.
func Run(context.Context, Config) error { return errors.New("tunnels work on Linux only") }
