//go:build !linux

package tunnel

import (
	"context"
	"errors"
	"log/slog"
)

// ErrUnsupported says that the fabric works on Linux only.
var ErrUnsupported = errors.New("the fabric works on Linux only")

// Fabric cannot be made on this system.
type Fabric struct{ _ struct{} }

// New returns ErrUnsupported.
func New(Config) (*Fabric, error) { return nil, ErrUnsupported }

// Set does nothing.
func (*Fabric) Set(Desired) {}

// Status is empty.
func (*Fabric) Status() Status { return Status{} }

// Changed never holds a token.
func (*Fabric) Changed() <-chan struct{} { return nil }

// Run returns ErrUnsupported.
func (*Fabric) Run(context.Context) error { return ErrUnsupported }

// UserspaceConfig is what the tunnel process is told.
type UserspaceConfig struct {
	Device    string
	Userspace bool
	Log       *slog.Logger
}

// RunUserspace returns ErrUnsupported.
func RunUserspace(context.Context, UserspaceConfig) error { return ErrUnsupported }

// Clean returns ErrUnsupported.
func Clean(Config) error { return ErrUnsupported }
