package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// What a peer sends and does changes objects of this cluster. Each write counts with the size of the whole object,
// and is rate limited by the peer's budget: the last state is written in the end.

// shorter returns the shorter of two durations; 0 means no duration.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// writeTunnel writes a Tunnel, and returns when to continue if part of it has to wait; 0 if none does. What closes
// waits for closePause at most, and for no budget; what opens is written at most once in tunnelPause and within the
// peer's budget.
func (r *Peers) writeTunnel(ctx context.Context, fc *v1alpha1.ForeignCluster, tunnel *v1alpha1.Tunnel, spec v1alpha1.TunnelSpec) (time.Duration, error) {
	want := tunnel.DeepCopy()
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[v1alpha1.LabelManaged], want.Labels[v1alpha1.LabelPeer] = v1alpha1.Manager, fc.Spec.ClusterID
	want.Spec = spec
	if equality.Semantic.DeepEqual(tunnel, want) {
		return 0, nil
	}
	stays := allow.Common(tunnel.Spec.Allow, spec.Allow)
	closes := allow.Closes(&tunnel.Spec, &spec, stays)
	var wait, closeWait time.Duration
	r.recall(fc.UID, func(m *peerMemory) {
		wait, closeWait = m.opened.Add(tunnelPause).Sub(r.Now()), m.closed.Add(closePause).Sub(r.Now())
	})
	if wait <= 0 {
		err := r.States.Budget.Take(peering.ClusterID(fc.Spec.ClusterID), want)
		if err == nil {
			if err = r.storeTunnel(ctx, want); err == nil {
				r.recall(fc.UID, func(m *peerMemory) {
					if m.opened = r.Now(); closes {
						m.closed = r.Now()
					}
				})
				return 0, nil
			}
			return 0, r.closeInstead(ctx, err, tunnel, stays)
		}
		var over bool
		if wait, over = store.Later(err); !over {
			return 0, err
		}
	}
	if !closes {
		return wait, nil
	}
	if closeWait > 0 {
		return min(wait, closeWait), nil
	}
	err := r.closeTunnel(ctx, fc, tunnel, want, stays)
	if err == nil {
		r.recall(fc.UID, func(m *peerMemory) { m.closed = r.Now() })
	}
	return wait, err
}

// closeInstead writes only the part that closes, of a Tunnel that the API server refused: an error in the rest must
// not keep anything open. It returns the refusal, or the error of its own write.
func (r *Peers) closeInstead(ctx context.Context, refused error, tunnel *v1alpha1.Tunnel, stays []v1alpha1.Exposure) error {
	if !apierrors.IsInvalid(refused) || equality.Semantic.DeepEqual(stays, tunnel.Spec.Allow) {
		return refused
	}
	less := tunnel.DeepCopy()
	less.Spec.Allow = stays
	if err := r.storeTunnel(ctx, less); err != nil {
		return err
	}
	return refused
}

// closeTunnel makes the smallest write that closes what has to close: it keeps open only what stays open. If the
// peer's budget has no room for that, it closes all of each namespace in which something closes, until there is.
// That write is charged and does not wait: there are no more of them than namespaces, until one is opened again,
// within the budget.
func (r *Peers) closeTunnel(ctx context.Context, fc *v1alpha1.ForeignCluster, tunnel, want *v1alpha1.Tunnel, stays []v1alpha1.Exposure) error {
	peer := peering.ClusterID(fc.Spec.ClusterID)
	want.Spec.Allow = stays
	err := r.States.Budget.Take(peer, want)
	if _, over := store.Later(err); over {
		want.Spec.Allow = nil
		for _, x := range stays {
			if slices.ContainsFunc(tunnel.Spec.Allow, func(y v1alpha1.Exposure) bool { return equality.Semantic.DeepEqual(x, y) }) {
				want.Spec.Allow = append(want.Spec.Allow, x)
			}
		}
		err = r.States.Budget.Charge(peer, want)
	}
	if err != nil {
		return err
	}
	opens := want.Spec.Allow // what is stored is read back into want
	return r.closeInstead(ctx, r.storeTunnel(ctx, want), tunnel, opens)
}

func (r *Peers) storeTunnel(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	write := func() error { return r.Client.Update(ctx, tunnel, client.FieldOwner(v1alpha1.Manager)) }
	if tunnel.ResourceVersion == "" {
		write = func() error { return r.Client.Create(ctx, tunnel, client.FieldOwner(v1alpha1.Manager)) }
	}
	if err := write(); err != nil {
		return fmt.Errorf("tunnel to %s: %w", tunnel.Name, err)
	}
	return nil
}

// paceStatus takes the write of a peer's status from the peer's budget. If there is no room it postpones what
// follows from the peer, and returns until when; 0 means that all is written now. What this cluster decided, and
// other parts of it need, is charged and does not wait: which prefixes have which aliases, and that they no longer
// have any. Aliases change with the network that the peer announces, which was within its budget.
func (r *Peers) paceStatus(before, fc *v1alpha1.ForeignCluster) (time.Duration, error) {
	if equality.Semantic.DeepEqual(before.Status, fc.Status) {
		return 0, nil
	}
	peer := peering.ClusterID(fc.Spec.ClusterID)
	if fc.Hint() {
		peer = store.Hints
	}
	err := r.States.Budget.Take(peer, fc)
	wait, over := store.Later(err)
	if !over {
		return 0, err
	}
	ours := before.Status.DeepCopy()
	ours.Aliases, ours.AliasBlocks, ours.Network = fc.Status.Aliases, fc.Status.AliasBlocks, fc.Status.Network
	fc.Status = *ours
	if equality.Semantic.DeepEqual(before.Status, fc.Status) {
		return wait, nil
	}
	return wait, r.States.Budget.Charge(peer, fc)
}

// pace postpones writing what merely follows from what a peer does and reports about a contract: its use, and the
// state of its node. It returns until when, and leaves the status as it was written; 0 means that it is written
// now. A change of the contract's state is never postponed.
func (r *Contracts) pace(c peering.Contract, before, stored *v1alpha1.Contract) (time.Duration, error) {
	rest := before.DeepCopy()
	rest.Status.Used, rest.Status.Pods, rest.Status.Conditions = stored.Status.Used, stored.Status.Pods, stored.Status.Conditions
	if c.State == peering.Closed || !equalStatus(rest, stored) || equalStatus(before, stored) {
		return 0, nil
	}
	now := r.Now()
	last, _ := r.written.Load(stored.Name)
	at, _ := last.(time.Time)
	wait := at.Add(usePause).Sub(now)
	if wait <= 0 {
		err := r.Budget.Take(peering.ClusterID(stored.Spec.PeerID), stored)
		if err == nil {
			r.written.Store(stored.Name, now)
			return 0, nil
		}
		var over bool
		if wait, over = store.Later(err); !over {
			return 0, err
		}
	}
	stored.Status = *before.Status.DeepCopy()
	return wait, nil
}
