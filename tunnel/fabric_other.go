//go:build !linux

package tunnel

import (
	"context"
	"errors"

	"github.com/entente-dev/entente/tunnel/plan"
)

// errUnsupported says that the fabric works on Linux only.
var errUnsupported = errors.New("the fabric works on Linux only")

// Fabric cannot be made on this system.
type Fabric struct{ _ struct{} }

// New returns errUnsupported.
func New(Config) (*Fabric, error) { return nil, errUnsupported }

// Set does nothing.
func (*Fabric) Set(plan.Desired) {}

// Status is empty.
func (*Fabric) Status() Status { return Status{} }

// Counters returns errUnsupported.
func (*Fabric) Counters() (Counters, error) { return Counters{}, errUnsupported }

// Changed never has a value.
func (*Fabric) Changed() <-chan struct{} { return nil }

// Leave does nothing.
func (*Fabric) Leave(context.Context) {}

// Run returns errUnsupported.
func (*Fabric) Run(context.Context) error { return errUnsupported }

// Clean returns errUnsupported.
func Clean(Config) error { return errUnsupported }
