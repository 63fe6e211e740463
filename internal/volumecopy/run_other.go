//go:build !linux

package volumecopy

import (
	"context"
	"errors"
)

// Config is one side of a copy.
type Config struct {
	Volume, State string
	Secret        []byte
	ID, Address   string
	Log           func(message string, args ...any)
}

var errLinux = errors.New("volumes are copied on Linux only")

// Receive receives what a sender sends.
func Receive(context.Context, Config) error { return errLinux }

// Send sends a volume to a receiver.
func Send(context.Context, Config) error { return errLinux }
