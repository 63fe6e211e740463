//go:build !linux

package fencing

import (
	"time"
)

// Clock returns a clock that only goes forward.
func Clock() func() Ticks {
	began := time.Now()
	return func() Ticks { return time.Since(began) }
}
