// Package eventually waits for what others bring about.
package eventually

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What is waited for is looked at after first, and then less and less often: looking
// takes time of those who bring it about.
const (
	first = 20 * time.Millisecond
	last  = 300 * time.Millisecond
)

// Is polls look until it returns nil, at most for limit. The error says what was waited for and
// what was missing last.
func Is(ctx context.Context, limit time.Duration, what string, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	var missing error
	for pause := first; ; pause = min(pause*3/2, last) {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if p, ok := errors.AsType[permanent](err); ok {
			return fmt.Errorf("%s: %w", what, p.error)
		}
		// What is said once the time is up may be of the time alone.
		if ctx.Err() == nil || missing == nil {
			missing = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %.1fs for %s: %w", time.Since(begin).Seconds(), what, missing)
		case <-time.After(pause):
		}
	}
}

// Permanent makes an error that ends a wait at once; nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Poll calls ok every interval until it returns true or ctx ends.
func Poll(ctx context.Context, every time.Duration, ok func() bool) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	return nil
}
