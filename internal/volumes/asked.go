package volumes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/internal/refusals"
	"github.com/entente-dev/entente/peering"
)

// request is which volume a contract's provider was asked for: that of the claim with a UID.
type request struct{ uid, contract string }

// ack is the last acknowledgement of a request.
type ack struct {
	claim   types.NamespacedName
	peer    peering.ClusterID
	hash    peering.Hash // of the wanted volume, or zero if its deletion was requested
	done    bool         // the volume is as requested, or deleted
	refusal *peering.Refusal
	shown   refusals.Shown // what users see of the refusals
	// given: there may be a PersistentVolume of it, or may have been, and so data. Only an order deletes it.
	given bool
}

// Ack records the acknowledgement of a volume by a contract's provider.
func (h *Home) Ack(contract string, a peering.Ack) {
	key := request{a.Ref.UID, contract}
	h.mu.Lock()
	known, ok := h.acks[key]
	if ok && a.Hash == known.hash {
		known.done, known.refusal = a.Refusal == nil, a.Refusal
		known.shown.Set(peering.KindClaim, a.Refusal, time.Now())
		h.acks[key] = known
		if known.done && known.hash == (peering.Hash{}) && !known.given {
			delete(h.acks, key)
		}
	}
	h.mu.Unlock()
	if !ok {
		return
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: known.claim.Namespace, Name: known.claim.Name}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: a.Ref.Name}}
	// The caller handles a provider's messages, and must not wait for a reconcile.
	go func() {
		h.claims <- event.GenericEvent{Object: claim}
		h.volumes <- event.GenericEvent{Object: pv}
	}()
}

// ask asks a provider for a volume, or to delete it if o is nil, and returns the acknowledgement so
// far. now is of whom and for what it asks.
func (h *Home) ask(contract string, ref peering.ObjectRef, o *peering.Object, now ack) ack {
	if o != nil {
		now.hash = o.Hash()
	}
	key := request{ref.UID, contract}
	h.mu.Lock()
	was, ok := h.acks[key]
	now.given = now.given || was.given
	if !ok || was.hash != now.hash {
		was = now
	}
	was.given = now.given
	var former []string
	if was.given { // one contract keeps it
		maps.DeleteFunc(h.acks, func(k request, a ack) bool {
			ends := k.uid == key.uid && a.given && k != key
			if ends {
				former = append(former, k.contract)
			}
			return ends
		})
	}
	h.acks[key] = was
	h.mu.Unlock()
	for _, c := range former {
		// Without this it would create the volume once another contract deleted it.
		if o != nil {
			h.Providers.Want(c, *o)
		}
	}
	// This is repeated each time: a request may be lost with a session's state, and one that is
	// known costs nothing.
	switch {
	case o != nil:
		h.Providers.Want(contract, *o)
	case !was.done:
		h.Providers.Unwant(contract, ref)
	}
	return was
}

// give records that a PersistentVolume of a requested volume may exist from now on.
func (h *Home) give(key request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a, ok := h.acks[key]; ok {
		a.given = true
		h.acks[key] = a
	}
}

// forget forgets a volume that was deleted by an order.
func (h *Home) forget(uid string) {
	h.mu.Lock()
	maps.DeleteFunc(h.acks, func(k request, a ack) bool { return k.uid == uid && a.given })
	h.mu.Unlock()
}

// notGiven returns the requests for claims of a name, except for one, whose volumes no
// PersistentVolume was made of.
func (h *Home) notGiven(claim types.NamespacedName, but request) map[request]ack {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[request]ack{}
	for key, a := range h.acks {
		if a.claim == claim && key != but && !a.given {
			out[key] = a
		}
	}
	return out
}

// drop has providers delete the volumes that they were asked for, for claims of a name that are
// gone, or go elsewhere; but is the request that remains. A volume that a PersistentVolume was ever
// made of stays. What no PersistentVolume was made of was never mounted: pods cross with the names
// of the volumes that their claims are bound to.
func (h *Home) drop(ctx context.Context, claim types.NamespacedName, but request) (reconcile.Result, error) {
	for key, a := range h.notGiven(claim, but) {
		var pv *corev1.PersistentVolume
		if a.hash != (peering.Hash{}) { // its deletion was not requested yet
			var err error
			if pv, err = h.volumeOf(ctx, key.uid); err != nil {
				return reconcile.Result{}, err
			}
		}
		switch {
		case pv != nil && peerOf(pv) == a.peer:
			h.give(key)
		case !slices.ContainsFunc(h.Providers.Contracts(a.peer), func(c Contract) bool { return c.ID == key.contract }):
			h.mu.Lock()
			delete(h.acks, key) // what the provider has of the contract, it keeps
			h.mu.Unlock()
		default:
			ref := peering.ObjectRef{Kind: peering.KindClaim, Namespace: a.claim.Namespace, Name: Name(key.uid), UID: key.uid}
			h.ask(key.contract, ref, nil, ack{claim: a.claim, peer: a.peer})
		}
	}
	if len(h.notGiven(claim, but)) > 0 {
		return reconcile.Result{RequeueAfter: refused}, nil // a request may be lost with a session's state
	}
	return reconcile.Result{}, nil
}

// dropping reports whether another contract of a peer is still to delete the volume of a request.
func (h *Home) dropping(key request, claim types.NamespacedName, peer peering.ClusterID) bool {
	for other, a := range h.notGiven(claim, key) {
		if other.uid == key.uid && a.peer == peer {
			return true
		}
	}
	return false
}

// volumeOf reads the PersistentVolume that was made for the claim with a UID, from the API server.
// It is nil if there is none.
func (h *Home) volumeOf(ctx context.Context, uid string) (*corev1.PersistentVolume, error) {
	pv := &corev1.PersistentVolume{}
	err := h.Reader.Get(ctx, client.ObjectKey{Name: Name(uid)}, pv)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // that there is none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read volume %s: %w", Name(uid), err)
	}
	return pv, nil
}
