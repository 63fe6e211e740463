package offload

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/peering"
)

// sharedRef returns the reference that an object here has at its home.
func sharedRef(kind peering.Kind, origin string, o metav1.Object) peering.ObjectRef {
	return peering.ObjectRef{Kind: kind, Namespace: origin, Name: originName(kind, o), UID: o.GetLabels()[api.LabelOriginUID]}
}

// noteKey is the annotation with an object as its home applied it; "" for kinds without one.
func noteKey(kind peering.Kind) string {
	switch kind {
	case peering.KindService:
		return reflection.NoteService
	case peering.KindNetworkPolicy:
		return notePolicy
	case peering.KindNamespace, peering.KindPod, peering.KindConfigMap, peering.KindSecret, peering.KindClaim:
	}
	return ""
}

// noted reports whether an object's note, if its kind has one, belongs to what was applied with a hash.
func noted(ref peering.ObjectRef, o metav1.Object, hash peering.Hash) bool {
	key := noteKey(ref.Kind)
	if key == "" {
		return true
	}
	note, err := reflection.Unpack(o.GetAnnotations()[key])
	return err == nil && peering.Object{Ref: ref, JSON: note}.Hash() == hash
}

// checkNote returns the note on an object. If it is not ok, no contract applied it: then it must not be used,
// and the consumer is asked to apply the object again.
func (p *Provider) checkNote(o client.Object) (note []byte, ok bool) {
	ns := p.inv.space(o.GetNamespace())
	note, err := reflection.Unpack(o.GetAnnotations()[noteKey(kindOf(o))])
	if ns == nil {
		return note, err == nil // it is deleted with its namespace, or a later event shows its note
	}
	ref := sharedRef(kindOf(o), ns.Labels[api.LabelOriginNamespace], o)
	if noted := (peering.Object{Ref: ref, JSON: note}).Hash(); err == nil && slices.ContainsFunc(holders(o), func(contract string) bool {
		hash, ok := heldBy(o, contract)
		return ok && hash == noted
	}) {
		return note, true
	}
	p.cfg.Log.Warn("another writer changed the agent's annotation on an object of a consumer; the consumer applies it again",
		"namespace", o.GetNamespace(), "object", ref)
	p.compareAgain(peering.ClusterID(ns.Labels[api.LabelPeer]), time.Now())
	return nil, false
}

// errCompare ends the streams of a consumer, which compares when it opens new ones.
var errCompare = peering.Errorf(peering.ReasonConflict, "objects at the provider are not as they were applied; compare them again")

// compareIn returns the time until a consumer may be asked again to compare its objects here: the other
// writer may go on. Until the last question is sent, it covers what is found meanwhile.
func (p *Provider) compareIn(peer peering.ClusterID, now time.Time) time.Duration {
	last, ok := p.compared.Load(peer)
	if !ok || now.Before(last.(time.Time)) {
		return 0
	}
	return max(last.(time.Time).Add(compareInterval).Sub(now), 0)
}

// compareAgain asks a consumer to compare its objects here, if that is due: after configGather, so that one
// question covers all objects that another writer changed at about the same time. What is still wrong then
// is found at the comparer's next interval.
func (p *Provider) compareAgain(peer peering.ClusterID, now time.Time) {
	if last, ok := p.compared.Load(peer); ok && now.Before(last.(time.Time).Add(compareInterval)) {
		return
	}
	p.compared.Store(peer, now.Add(configGather))
	time.AfterFunc(configGather, func() {
		p.hub.End(func(contract string) bool {
			c, ok := p.cfg.Contracts(contract)
			return ok && c.Peer == peer
		})
	})
}
