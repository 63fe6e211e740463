package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/budget"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// meter is a client whose writes are counted against the budget of the peer whose
// label the object has. A write that has to wait fails with an overBudget, and
// writes nothing.
type meter struct {
	client.WithWatch
	now func() time.Time
	mu  *sync.Mutex
	// used is what peers make the agent write.
	used *budget.Budget[peering.ClusterID]
}

const (
	// MaxBytes is how many bytes all consumers together can have in this cluster.
	MaxBytes = stock.MaxBytes
	// MaxEnds is how many bytes are written if all of that goes at once: of a pod and
	// of its record, which are as large and count both, three times one of them.
	MaxEnds = MaxBytes / 2 * 3
)

// Writes bounds the bytes that consumers make the agent write.
func Writes() budget.Limits {
	return budget.Limits{Burst: budgetBurst, Rate: budgetRate, UserBurst: budgetPeerBurst, UserRate: budgetRate}
}

// newMeter returns a meter whose budget is half used. What a process before this one
// let through is not known, and a restart must not double what etcd has to keep.
func newMeter(c client.WithWatch, l budget.Limits, now func() time.Time) meter {
	m := meter{WithWatch: c, now: now, mu: new(sync.Mutex), used: budget.New[peering.ClusterID](l)}
	for i, rest := 0, l.Burst/2; rest > 0; i, rest = i+1, rest-l.UserBurst {
		m.used.Charge(now(), peering.ClusterID(fmt.Sprint("before-", i)), min(rest, l.UserBurst))
	}
	return m
}

// overBudget is the error of a write that has to wait.
type overBudget struct {
	peer peering.ClusterID
	wait time.Duration
}

func (e *overBudget) Error() string {
	return fmt.Sprintf("peer %s made this cluster write more than its share; the write waits %s", e.peer, e.wait)
}

type urgentKey struct{}

// urgent returns a context whose writes are counted and do not wait: what takes
// away what a peer has here. There is never more of that than MaxEnds.
func urgent(ctx context.Context) context.Context {
	return context.WithValue(ctx, urgentKey{}, true)
}

// spend counts so many writes of an object as it will be. The API server stores the
// whole, however little of it changed.
func (m meter) spend(ctx context.Context, o client.Object, writes int) error {
	peer := peering.ClusterID(o.GetLabels()[api.LabelPeer])
	size := budgetWriteBytes
	if !goes(o) {
		if b, err := json.Marshal(o); err == nil {
			size += len(b)
		}
		// What the cache has of a pod is without its template, which is written all the same.
		if o, ok := o.(*api.OffloadedPod); ok && len(o.Spec.Template.Raw) == 0 {
			size += notedBytes(o.Annotations) / podBytes(1)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Value(urgentKey{}) != nil {
		m.used.Charge(m.now(), peer, float64(writes*size))
		return nil
	}
	return over(peer, m.used.Take(m.now(), peer, float64(writes*size)))
}

// goes says of an object that ends whether etcd keeps no more than its key of that: the
// last finalizer is away.
func goes(o client.Object) bool {
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0
}

// room says whether a peer has to wait with its next write. What would wait in the end
// is better not begun: reading large objects takes time, too.
func (m meter) room(peer peering.ClusterID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return over(peer, m.used.Wait(m.now(), peer))
}

// over returns the error of a peer that has to wait, nil if it has not.
func over(peer peering.ClusterID, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	return &overBudget{peer: peer, wait: min(max(wait, budgetWaitMin), budgetWaitMax)}
}

// Create implements client.Writer. A pod is also written when it is bound, and when
// its kubelet says how it starts.
func (m meter) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	writes := 1
	if _, ok := o.(*corev1.Pod); ok {
		writes += budgetPodStarts
	}
	if err := m.spend(ctx, o, writes); err != nil {
		return err
	}
	return m.WithWatch.Create(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

func (m meter) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := m.spend(ctx, o, 1); err != nil {
		return err
	}
	return m.WithWatch.Update(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

func (m meter) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := m.spend(ctx, o, 1); err != nil {
		return err
	}
	return m.WithWatch.Patch(ctx, o, patch, opts...) //nolint:wrapcheck // it is the client
}

// Delete implements client.Writer. A delete makes room and does not wait.
func (m meter) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := m.spend(urgent(ctx), o, 1); err != nil {
		return err
	}
	return m.WithWatch.Delete(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

func (m meter) Status() client.SubResourceWriter {
	return meteredStatus{SubResourceWriter: m.WithWatch.Status(), meter: m}
}

type meteredStatus struct {
	client.SubResourceWriter
	meter meter
}

func (s meteredStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := s.meter.spend(ctx, o, 1); err != nil {
		return err
	}
	return s.SubResourceWriter.Update(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

func (s meteredStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := s.meter.spend(ctx, o, 1); err != nil {
		return err
	}
	return s.SubResourceWriter.Patch(ctx, o, patch, opts...) //nolint:wrapcheck // it is the client
}

// Admit implements server.OffloadObjects. A call that waits for the budget keeps those
// that come later waiting until it is done: so as many are tried as there is room for,
// in the order in which they came.
func (p *Provider) Admit(ctx context.Context, contract string) (done func(), err error) {
	c, err := p.contract(contract)
	if err != nil {
		return nil, err
	}
	line := "admit/" + string(c.Peer)
	if !p.locks.Taken(line) && p.client.room(c.Peer) == nil {
		return func() {}, nil
	}
	return p.awaitRoom(ctx, line, c.Peer)
}

// paced does something for a peer, again if a write of it had to wait. It must be fit
// to be done again.
func (p *Provider) paced(ctx context.Context, peer peering.ClusterID, do func() error) error {
	err := do()
	for {
		if _, over := errors.AsType[*overBudget](err); !over {
			return err
		}
		// Not Admit's line: this may be who the others there wait for.
		done, late := p.awaitRoom(ctx, "go on/"+string(peer), peer)
		if late != nil {
			return late
		}
		err = do()
		done()
	}
}

// awaitRoom waits in a line, and at its head until the peer may write. Whoever is behind
// waits until done is called.
func (p *Provider) awaitRoom(ctx context.Context, line string, peer peering.ClusterID) (done func(), err error) {
	patient, cancel := context.WithTimeoutCause(ctx, budgetPatience, refuse(peering.RefusedQuota, true,
		"this consumer makes the provider's cluster write more than its share; change fewer objects, less often, or wait"))
	defer cancel()
	done, err = p.locks.Lock(patient, line)
	if err != nil {
		return nil, err
	}
	for {
		over, ok := errors.AsType[*overBudget](p.client.room(peer))
		if !ok {
			return done, nil
		}
		again := time.NewTimer(over.wait)
		select {
		case <-again.C:
		case <-patient.Done():
			again.Stop()
			done()
			return nil, context.Cause(patient)
		}
	}
}
