package turns

import (
	"context"
	"sync"
)

// Locks is a lock for each of many names.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*lock
}

type lock struct {
	turn  chan struct{}
	users int
}

// Taken reports whether a caller has the lock of a name, or waits for it.
func (k *Locks) Taken(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.locks[name] != nil
}

// Lock waits for the lock of a name, first come first served, and returns the function that releases it.
func (k *Locks) Lock(ctx context.Context, name string) (release func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = make(map[string]*lock)
	}
	l, ok := k.locks[name]
	if !ok {
		l = &lock{turn: make(chan struct{}, 1)}
		k.locks[name] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, name)
		}
	}
	select {
	case l.turn <- struct{}{}:
		return func() { <-l.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
