package fencing

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// keepEvery is how often fences are checked.
	keepEvery = time.Second
	// noteParts is into how many parts the notes of when its consumer was there divide a fence.
	noteParts = 6
	// clockSkew is by how much the clocks of this cluster's nodes may differ: an agent that takes over on another
	// node reads when the one before it was last answered.
	clockSkew = 10 * time.Second
	// keepAtOnce is how many namespaces are handled at once, and keepTimeout how long each may take: a slow one
	// does not delay others for long.
	keepAtOnce  = 16
	keepTimeout = 10 * time.Second
)

// Fence is a namespace here whose pods, by one contract, run under a fence.
type Fence struct {
	Namespace, Contract string
	// Length is how long the consumer may be silent.
	Length time.Duration
	// LastSeen is the noted time at which the consumer was there, by the clock of the node on which the agent ran.
	LastSeen time.Time
}

// key is the fence without the part that changes.
func (f Fence) key() Fence {
	f.LastSeen = time.Time{}
	return f
}

// Stock is the pods that run here under fences.
type Stock interface {
	// Fences returns all fences, and false while they are not known.
	Fences() ([]Fence, bool)
	// Stop ends the pods under a fence, and returns how many were not ending already.
	Stop(ctx context.Context, f Fence) (int, error)
	// Note stores LastSeen of a fence.
	Note(ctx context.Context, f Fence) error
}

// Keeper keeps to the fences that this cluster agreed to: it asks consumers whether they are there, and stops what
// it runs for silent ones.
type Keeper struct {
	// Stock is the pods that run here. Required.
	Stock Stock
	// Clock is a clock that only goes forward, also while this machine sleeps; Wall is the wall clock. Required.
	Clock func() Ticks
	Wall  func() time.Time
	Log   *slog.Logger
	// Stopped, if set, is called with the number of pods that were stopped under a fence.
	Stopped func(f Fence, pods int)

	mu sync.Mutex
	// asks is by contract. Entries are never removed, so that no ping number is used twice.
	asks map[string]*Ask
	// read is the fences whose notes were read; noted is when each was noted. The keys have no LastSeen.
	read  map[Fence]bool
	noted map[Fence]written
}

// written is when the consumer of a fence was there, by both clocks, as it was noted last.
type written struct {
	alive Ticks
	seen  time.Time
}

// Ask returns the number of a ping for the consumer of a contract; false if it has no fence.
func (k *Keeper) Ask(contract string) (uint64, bool) {
	fences, known := k.Stock.Fences()
	if !known {
		return 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fenced := false
	for _, f := range fences {
		if f.Contract == contract {
			k.of(f)
			fenced = true
		}
	}
	if !fenced {
		return 0, false
	}
	return k.asks[contract].Ask(k.Clock()), true
}

// Answered records an answer of the consumer of a contract.
func (k *Keeper) Answered(contract string, number uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a := k.asks[contract]; a != nil {
		a.Answered(number)
	}
}

// Stops reports whether no pod may start under a fence.
func (k *Keeper) Stops(f Fence) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of(f).Stops(k.Clock(), f.Length)
}

// of returns what is known of the consumer of a fence. The note of an earlier agent counts if this one knows
// nothing; a missing note, or one from the future, does not. A note is by a clock that may be set, so it is read
// once, when the fence is first seen. The caller holds k.mu.
func (k *Keeper) of(f Fence) *Ask {
	if k.asks == nil {
		k.asks, k.read, k.noted = map[string]*Ask{}, map[Fence]bool{}, map[Fence]written{}
	}
	a := k.asks[f.Contract]
	if a == nil {
		a = &Ask{}
		k.asks[f.Contract] = a
	}
	if key := f.key(); !k.read[key] {
		k.read[key] = true
		if age := k.Wall().Sub(f.LastSeen); !f.LastSeen.IsZero() && age > -clockSkew {
			a.Was(k.Clock() - max(age, 0) - clockSkew)
		}
	}
	return a
}

// forget forgets the fences that no longer exist: one that comes again has a note of its own.
func (k *Keeper) forget(now []Fence) {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := make(map[Fence]bool, len(now))
	for _, f := range now {
		keys[f.key()] = true
	}
	gone := func(f Fence) bool { return !keys[f] }
	maps.DeleteFunc(k.read, func(f Fence, _ bool) bool { return gone(f) })
	maps.DeleteFunc(k.noted, func(f Fence, _ written) bool { return gone(f) })
}

// Run keeps to the fences until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			k.keep(ctx)
		}
	}
}

// keep stops what has to stop, and notes which consumers are there.
func (k *Keeper) keep(ctx context.Context) {
	fences, known := k.Stock.Fences()
	if !known {
		return
	}
	k.forget(fences)
	var tasks errgroup.Group
	tasks.SetLimit(keepAtOnce)
	for _, f := range fences {
		stop, note := k.decide(&f)
		if !stop && !note {
			continue
		}
		tasks.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, keepTimeout)
			defer cancel()
			if err := k.act(ctx, f, stop); err != nil && !errors.Is(err, context.Canceled) {
				k.Log.Warn("keep to a fence", "namespace", f.Namespace, "contract", f.Contract, "stop", stop, "err", err)
			}
			return nil
		})
	}
	_ = tasks.Wait() // none returns an error
}

// act stops what runs under a fence, or notes when its consumer was there.
func (k *Keeper) act(ctx context.Context, f Fence, stop bool) error {
	if !stop {
		return k.Stock.Note(ctx, f)
	}
	n, err := k.Stock.Stop(ctx, f)
	if n > 0 {
		k.Log.Warn("stopped pods of a consumer that is silent for as long as its fence allows",
			"namespace", f.Namespace, "contract", f.Contract, "fence", f.Length, "pods", n)
		if k.Stopped != nil {
			k.Stopped(f, n)
		}
	}
	return err
}

// decide returns whether to stop what runs under a fence, or to note when its consumer was there, which it sets in
// the fence.
func (k *Keeper) decide(f *Fence) (stop, note bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, now := k.of(*f), k.Clock()
	if a.Stops(now, f.Length) {
		return true, false
	}
	alive, _ := a.Alive()
	key, seen := f.key(), k.Wall().Add(alive-now)
	if last, ok := k.noted[key]; ok && alive-last.alive < f.Length/noteParts {
		// If the time was set, the next agent would misread the former note.
		if moved := seen.Sub(last.seen) - (alive - last.alive); moved.Abs() < clockSkew {
			return false, false
		}
	}
	k.noted[key], f.LastSeen = written{alive, seen}, seen
	return false, true
}
