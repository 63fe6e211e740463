package store

import (
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Closed says whether a contract is over. One that was just signed and not reconciled yet is not.
func Closed(c *v1alpha1.Contract) bool {
	return Unverified(c).State == peering.Closed
}

// AcceptsNew says whether new work and further revisions are taken under a contract: it is
// in force, and nobody asked for an end of which its state does not say yet.
func AcceptsNew(c *v1alpha1.Contract, contract peering.Contract) bool {
	return contract.Wants().AcceptNew && c.Spec.Termination == "" && c.DeletionTimestamp.IsZero()
}

// EndedByPeer says whether the peer ended a contract, by a call or by its state on the
// session.
func EndedByPeer(c *v1alpha1.Contract) bool {
	// A peer whose clock is a little ahead reports a contract as closed that reached its end;
	// the reason distinguishes the two.
	if c.Status.Reason != "" {
		return c.Status.Reason == peering.EndedByPeer.Name()
	}
	return c.Spec.Termination == v1alpha1.TerminatePeer
}

// Settled says whether a contract is closed and nothing is left to do for it: it is kept only
// as a record of what it cost.
func Released(c *v1alpha1.Contract) bool {
	return Closed(c) && !controllerutil.ContainsFinalizer(c, v1alpha1.Finalizer)
}

// FoundBy says how a cluster came to be known.
func FoundBy(fc *v1alpha1.ForeignCluster) v1alpha1.Found {
	switch ours := fc.Labels[v1alpha1.LabelManaged] == v1alpha1.Manager; {
	case fc.Status.Found != "" && (fc.Status.Found != v1alpha1.FoundManual || fc.Spec.JoinToken == nil):
		return fc.Status.Found
	case fc.Spec.JoinToken != nil, ours && fc.Spec.TrustBundle != "":
		return v1alpha1.FoundToken
	case ours && fc.Hint() && len(fc.Status.Sightings) > 0:
		return fc.Status.Sightings[0].Source
	case ours && fc.Hint():
		return "" // its status is about to be written
	case ours:
		return v1alpha1.FoundIntroduction
	}
	return v1alpha1.FoundManual
}

// MadeByPolicy returns the policy that a ForeignCluster, a PeeringRequest or a
// NamespaceOffloading was made by; empty means none. One that a person wrote has none,
// whatever its label says.
func MadeByPolicy(o interface{ GetLabels() map[string]string }) string {
	labels := o.GetLabels()
	if labels[v1alpha1.LabelManaged] != v1alpha1.Manager {
		return ""
	}
	return labels[v1alpha1.LabelAutomatic]
}

// PeerOfPolicy returns the policy that a ForeignCluster is a peer of; empty means none. One that has
// the label alone is a person's: a policy says why, too.
func PeerOfPolicy(fc *v1alpha1.ForeignCluster) string {
	if fc.Annotations[v1alpha1.AnnotationAutomaticBy] == "" {
		return ""
	}
	return MadeByPolicy(fc)
}
