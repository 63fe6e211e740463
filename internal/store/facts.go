package store

import (
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Closed reports whether a contract is over. One that was just signed and not reconciled yet is not.
func Closed(c *v1alpha1.Contract) bool {
	return Unverified(c).State == peering.Closed
}

// AcceptsNew reports whether new work and further revisions are accepted under a contract: it is in force, and
// neither side asked for an end that its state does not show yet.
func AcceptsNew(c *v1alpha1.Contract, contract peering.Contract) bool {
	return contract.Desired().AcceptNew && c.Spec.Termination == "" && c.DeletionTimestamp.IsZero()
}

// EndedByPeer reports whether the peer ended a contract, by a call or by its state on the session.
func EndedByPeer(c *v1alpha1.Contract) bool {
	// A peer whose clock is a little ahead may report a contract that reached its end as closed; the reason
	// distinguishes the two cases.
	if c.Status.Reason != "" {
		return c.Status.Reason == peering.EndedByPeer.Name()
	}
	return c.Spec.Termination == v1alpha1.TerminatePeer
}

// Released reports whether a contract is closed and nothing is left to do for it: it is kept only as a record of
// what it cost.
func Released(c *v1alpha1.Contract) bool {
	return Closed(c) && !controllerutil.ContainsFinalizer(c, v1alpha1.Finalizer)
}

// FoundBy returns how a cluster came to be known.
func FoundBy(fc *v1alpha1.ForeignCluster) v1alpha1.Source {
	switch ours := fc.Labels[v1alpha1.LabelManaged] == v1alpha1.Manager; {
	case fc.Status.Source != "" && (fc.Status.Source != v1alpha1.SourceManual || fc.Spec.JoinToken == nil):
		return fc.Status.Source
	case fc.Spec.JoinToken != nil, ours && fc.Spec.TrustBundle != "":
		return v1alpha1.SourceToken
	case ours && fc.Hint() && len(fc.Status.Sightings) > 0:
		return fc.Status.Sightings[0].Source
	case ours && fc.Hint():
		return "" // its status is about to be written
	case ours:
		return v1alpha1.SourceIntroduction
	}
	return v1alpha1.SourceManual
}

// MadeByPolicy returns the policy that made a ForeignCluster, a PeeringRequest or a NamespaceOffloading; empty if
// none did. One that an administrator wrote has none, whatever its label says.
func MadeByPolicy(o interface{ GetLabels() map[string]string }) string {
	labels := o.GetLabels()
	if labels[v1alpha1.LabelManaged] != v1alpha1.Manager {
		return ""
	}
	return labels[v1alpha1.LabelAutomatic]
}

// PeerOfPolicy returns the policy that a ForeignCluster is a peer of; empty if it is none's. The label alone does
// not make it one: a policy also records why.
func PeerOfPolicy(fc *v1alpha1.ForeignCluster) string {
	if fc.Annotations[v1alpha1.AnnotationAutomaticBy] == "" {
		return ""
	}
	return MadeByPolicy(fc)
}
