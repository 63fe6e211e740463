package paced

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/budget"
	"github.com/entente-dev/entente/internal/turns"
	"github.com/entente-dev/entente/peering"
)

// writes counts what is written against the budget of the peer in the object's label.
type writes struct {
	now    func() time.Time
	unseen func(client.Object) int
	// lines are the queues of writes that wait for room, by peer.
	lines turns.Locks

	mu   sync.Mutex
	used *budget.Budget[peering.ClusterID]
}

// Writes returns the limits of the bytes that the agent writes for consumers.
func Writes() budget.Limits {
	return budget.Limits{Burst: budgetBurst, Rate: budgetRate, UserBurst: budgetPeerBurst, UserRate: budgetRate}
}

func newWrites(cfg Config) *writes {
	w := &writes{now: cfg.Now, unseen: cfg.Unseen, used: budget.New[peering.ClusterID](cfg.Writes)}
	for i, rest := 0, cfg.Writes.Burst/2; rest > 0; i, rest = i+1, rest-cfg.Writes.UserBurst {
		w.used.Charge(w.now(), peering.ClusterID(fmt.Sprint("before-", i)), min(rest, cfg.Writes.UserBurst))
	}
	return w
}

// OverBudget is the error of a write that has to wait.
type OverBudget struct {
	Peer peering.ClusterID
	Wait time.Duration
}

func (e *OverBudget) Error() string {
	return fmt.Sprintf("peer %s made this cluster write more than its share; the write waits %s", e.Peer, e.Wait)
}

type urgentKey struct{}

// Urgent returns a context whose writes are counted and do not wait. It is for writes that remove
// what a peer has here, which bounds them.
func Urgent(ctx context.Context) context.Context {
	return context.WithValue(ctx, urgentKey{}, true)
}

// spend counts writes of an object in its new form, 0 for a dry run. The API server stores the
// whole object, however little of it changed.
func (w *writes) spend(ctx context.Context, o client.Object, writes int) error {
	if writes == 0 {
		return nil
	}
	peer := peering.ClusterID(o.GetLabels()[api.LabelPeer])
	size := budgetWriteBytes
	if !goes(o) {
		if b, err := json.Marshal(o); err == nil {
			size += len(b)
		}
		size += w.unseen(o)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Value(urgentKey{}) != nil {
		w.used.Charge(w.now(), peer, float64(writes*size))
		return nil
	}
	return over(peer, w.used.Take(w.now(), peer, float64(writes*size)))
}

// goes reports whether a write removes an object, of which etcd then keeps only the key: it is
// being deleted and has no finalizer left.
func goes(o client.Object) bool {
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0
}

// over returns the error of a peer that has to wait, or nil.
func over(peer peering.ClusterID, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	return &OverBudget{Peer: peer, Wait: min(max(wait, budgetWaitMin), budgetWaitMax)}
}

// Room returns an OverBudget if a peer's next write has to wait. Work that would end in such a
// write should not begin: reading large objects takes time, too.
func (c Client) Room(peer peering.ClusterID) error {
	w := c.writes
	w.mu.Lock()
	defer w.mu.Unlock()
	return over(peer, w.used.Wait(w.now(), peer))
}

// Admit waits until a peer may write. As many writes as there is room for are admitted, in the
// order in which they came; the next one waits until done is called. A write that waited for
// patience is refused.
func (c Client) Admit(ctx context.Context, peer peering.ClusterID) (done func(), err error) {
	line := "admit/" + string(peer)
	if !c.writes.lines.Taken(line) && c.Room(peer) == nil {
		return func() {}, nil
	}
	return c.await(ctx, line, peer)
}

// Retry calls do for a peer, and again if a write in it has to wait. do must be safe to repeat.
func (c Client) Retry(ctx context.Context, peer peering.ClusterID, do func() error) error {
	err := do()
	for {
		if _, over := errors.AsType[*OverBudget](err); !over {
			return err
		}
		// Not in Admit's queue, in which others may wait for this call.
		done, late := c.await(ctx, "go on/"+string(peer), peer)
		if late != nil {
			return late
		}
		err = do()
		done()
	}
}

// await waits in a queue, and at its head until the peer may write. The next in the queue waits
// until done is called.
func (c Client) await(ctx context.Context, line string, peer peering.ClusterID) (done func(), err error) {
	patient, cancel := context.WithTimeoutCause(ctx, patience, &peering.Refusal{
		Reason: peering.RefusedQuota, Retryable: true,
		Message: "this consumer makes the provider's cluster write more than its share; change fewer objects, less often, or wait",
	})
	defer cancel()
	done, err = c.writes.lines.Lock(patient, line)
	if err != nil {
		return nil, err
	}
	for {
		over, ok := errors.AsType[*OverBudget](c.Room(peer))
		if !ok {
			return done, nil
		}
		again := time.NewTimer(over.Wait)
		select {
		case <-again.C:
		case <-patient.Done():
			again.Stop()
			done()
			return nil, context.Cause(patient)
		}
	}
}
