package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/internal/budget"
	"github.com/entente-dev/entente/peering"
)

// Hints is the key of the budget that all writes for discovery share.
const Hints peering.ClusterID = ""

// WriteBudget bounds what this cluster's API server stores of what peers send and sign, and of what follows from
// that: states, offers, statements, contracts and tunnels. etcd keeps each revision of an object whole until it is
// compacted, so a write counts with the size of the object and not of the change. A write over the budget is not
// dropped: the newest is made when there is room.
type WriteBudget struct {
	Now func() time.Time

	mu   sync.Mutex
	used *budget.Budget[peering.ClusterID]
}

// Writes returns the limits of the bytes that peers cause to be written.
func Writes() budget.Limits {
	return budget.Limits{Burst: allWriteBurst, Rate: allWriteBytes, UserBurst: PeerWriteBurst, UserRate: PeerWriteBytes}
}

// LaterError says that a write is over the budget.
type LaterError struct {
	// After is when there is room for it.
	After time.Duration
}

func (e *LaterError) Error() string {
	return fmt.Sprintf("over the budget of writes that peers may cause here; there is room in %s", e.After.Round(time.Millisecond))
}

// Take takes the write of an object from the budget of a peer and of all of them. If there is no room it takes
// nothing, and returns a *LaterError.
func (b *WriteBudget) Take(peer peering.ClusterID, o client.Object) error {
	n, err := size(o)
	if err != nil {
		return err
	}
	return b.TakeBytes(peer, n)
}

// Charge counts the write of an object that cannot wait.
func (b *WriteBudget) Charge(peer peering.ClusterID, o client.Object) error {
	n, err := size(o)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.budget().Charge(b.Now(), peer, float64(n+WriteOverhead))
	return nil
}

// size is about how many bytes an object has in etcd.
func size(o client.Object) (int, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", o.GetName(), err)
	}
	return len(text), nil
}

// budget returns the budget, created at first use. The caller holds the lock.
func (b *WriteBudget) budget() *budget.Budget[peering.ClusterID] {
	if b.used == nil {
		b.used = budget.New[peering.ClusterID](Writes())
	}
	return b.used
}

// TakeBytes is Take for a given size.
func (b *WriteBudget) TakeBytes(peer peering.ClusterID, size int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait := b.budget().Take(b.Now(), peer, float64(size+WriteOverhead)); wait > 0 {
		return &LaterError{After: wait}
	}
	return nil
}

// Later returns when a write that is over a budget should be tried again, and whether err says so.
func Later(err error) (time.Duration, bool) {
	over, ok := errors.AsType[*LaterError](err)
	if !ok {
		return 0, false
	}
	return max(over.After, time.Millisecond), true
}
