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
	// noteParts is into how many parts a fence is divided by notes of when its consumer was there.
	noteParts = 6
	// clockSkew is by how much the clocks of this cluster's nodes may differ: an agent that takes
	// over on another node reads when the one before it heard of a consumer.
	clockSkew = 10 * time.Second
	// keepAtOnce is how many namespaces are seen to at once, and keepTimeout for how long each: one
	// that does not get on holds up no other for long.
	keepAtOnce  = 16
	keepTimeout = 10 * time.Second
)

// Fence is a namespace here whose pods, by one contract, run under a fence.
type Fence struct {
	Namespace, Contract string
	// Length is how long the consumer may be silent.
	Length time.Duration
	// Heard is when the consumer was there, as was noted; by the clock of whichever node the
	// agent ran on.
	Heard time.Time
}

// key is the fence without what changes of it.
func (f Fence) key() Fence {
	f.Heard = time.Time{}
	return f
}

// Stock is what runs here under fences.
type Stock interface {
	// Fences returns all, and false while they are not known.
	Fences() ([]Fence, bool)
	// Stop ends the pods under a fence, and says how many it did that were not ending.
	Stop(ctx context.Context, f Fence) (int, error)
	// Note writes down Heard of a fence.
	Note(ctx context.Context, f Fence) error
}

// Keeper keeps to the fences that this cluster agreed to: it asks consumers whether they are
// there, and stops what it runs for those that are silent.
type Keeper struct {
	// Stock is what runs here. Required.
	Stock Stock
	// Clock is a clock that only goes forward, also while this machine sleeps; Wall is the time.
	// Required.
	Clock func() Ticks
	Wall  func() time.Time
	Log   *slog.Logger
	// Stopped, if set, hears how many pods were stopped under a fence.
	Stopped func(f Fence, pods int)

	mu sync.Mutex
	// asks is by contract. None is forgotten, so that no number of a question comes twice.
	asks map[string]*Ask
	// read is the fences whose notes were read; noted is when which of them was noted. Both
	// are without Heard.
	read  map[Fence]bool
	noted map[Fence]written
}

// written is when the consumer of a fence was there, by both clocks, as was noted last.
type written struct {
	alive Ticks
	heard time.Time
}

// Ask returns the number of a question for the consumer of a contract; false if it has no fence.
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

// Stops says whether nothing may be begun under a fence.
func (k *Keeper) Stops(f Fence) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of(f).Stops(k.Clock(), f.Length)
}

// of returns what is known of the consumer of a fence. What an agent before this one noted counts
// where this one knows nothing; a note of the future, or none, says nothing. A note is by a clock
// that may be set, so it is read once, when the fence is first seen. k.mu is held.
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
		if age := k.Wall().Sub(f.Heard); !f.Heard.IsZero() && age > -clockSkew {
			a.Was(k.Clock() - max(age, 0) - clockSkew)
		}
	}
	return a
}

// forget forgets the fences that are no more: one that comes again has a note of its own.
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

// keep stops what is to be stopped, and notes which consumers are there.
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

// decide says whether to stop what runs under a fence, or to note when its consumer was there,
// which it writes into the fence.
func (k *Keeper) decide(f *Fence) (stop, note bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, now := k.of(*f), k.Clock()
	if a.Stops(now, f.Length) {
		return true, false
	}
	alive, _ := a.Alive()
	key, heard := f.key(), k.Wall().Add(alive-now)
	if last, ok := k.noted[key]; ok && alive-last.alive < f.Length/noteParts {
		// Where the time was set, the agent after this one would read what was noted before wrongly.
		if moved := heard.Sub(last.heard) - (alive - last.alive); moved.Abs() < clockSkew {
			return false, false
		}
	}
	k.noted[key], f.Heard = written{alive, heard}, heard
	return false, true
}
