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

// sharedRef names an object here as the home of its namespace does.
func sharedRef(kind peering.Kind, origin string, o metav1.Object) peering.ObjectRef {
	return peering.ObjectRef{Kind: kind, Namespace: origin, Name: originName(kind, o), UID: o.GetLabels()[api.LabelOriginUID]}
}

// noteKey is the annotation with what the home of an object said of it; empty for kinds on which nothing is noted.
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

// noted says whether the note on an object, of a kind that has one, is of what was applied with a hash.
func noted(ref peering.ObjectRef, o metav1.Object, hash peering.Hash) bool {
	key := noteKey(ref.Kind)
	if key == "" {
		return true
	}
	note, err := reflection.Unpack(o.GetAnnotations()[key])
	return err == nil && peering.Object{Ref: ref, JSON: note}.Hash() == hash
}

// checkNote returns the note on an object. It is not ok unless it is of what some contract applied: then the consumer
// is to apply it again, and what is noted is not to be followed.
func (p *Provider) checkNote(o client.Object) (note []byte, ok bool) {
	ns := p.inv.space(o.GetNamespace())
	note, err := reflection.Unpack(o.GetAnnotations()[noteKey(kindOf(o))])
	if ns == nil {
		return note, err == nil // it goes with its namespace, or that is seen in a moment
	}
	ref := sharedRef(kindOf(o), ns.Labels[api.LabelOriginNamespace], o)
	if noted := (peering.Object{Ref: ref, JSON: note}).Hash(); err == nil && slices.ContainsFunc(holders(o), func(contract string) bool {
		hash, ok := heldBy(o, contract)
		return ok && hash == noted
	}) {
		return note, true
	}
	p.cfg.Log.Warn("somebody changed what the agent notes on an object of a consumer's; the consumer applies it again",
		"namespace", o.GetNamespace(), "object", ref)
	p.compareAgain(peering.ClusterID(ns.Labels[api.LabelPeer]), time.Now())
	return nil, false
}

// errCompare ends the streams of a consumer, which begins others by comparing.
var errCompare = peering.Errorf(peering.ReasonConflict, "objects at the provider are not as they were applied; compare them again")

// compareIn returns in what time a consumer may be asked to compare what is here of it: not all the time, as who changes
// it may do so again.
func (p *Provider) compareIn(peer peering.ClusterID, now time.Time) time.Duration {
	last, ok := p.compared.Load(peer)
	if !ok {
		return 0
	}
	return max(last.(time.Time).Add(compareInterval).Sub(now), 0)
}

// compareAgain has a consumer compare what is here of it, if it may. What is still wrong then is found by the comparer's
// interval.
func (p *Provider) compareAgain(peer peering.ClusterID, now time.Time) {
	if p.compareIn(peer, now) > 0 {
		return
	}
	p.compared.Store(peer, now)
	p.hub.End(func(contract string) bool {
		c, ok := p.cfg.Contracts(contract)
		return ok && c.Peer == peer
	})
}
