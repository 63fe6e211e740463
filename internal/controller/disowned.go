package controller

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// disowned says whether the provider of a contract in force does not hold it, or
// only as one that is over: it forgot this cluster and was joined again, or was
// restored from a backup. A provider holds a contract before its consumer does, so
// when it leaves one out of what it says, it is asked, and what it answers is proof.
// The other way round there is nothing to prove: see Strays.
func (r *Contracts) disowned(ctx context.Context, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) bool {
	if fc == nil || stored.Spec.Role != v1alpha1.ContractConsumer || !inForce(stored) || endsNow(stored) || saidOf(fc, stored.Name) != nil {
		return false
	}
	now, peer := r.Now(), peering.ClusterID(stored.Spec.PeerID)
	if !meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected) || now.Sub(stored.CreationTimestamp.Time) < strayAge ||
		!r.asked.due(peer, stored.Name, "held", now) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	_, err := r.Counterpart.Contract(ctx, peer, stored.Name)
	r.asked.answered(peer, stored.Name, "held", err, now)
	switch peering.ReasonOf(err) { //nolint:exhaustive // all others prove nothing
	case peering.ReasonContractUnknown, peering.ReasonContractClosed:
		return true
	}
	return false
}
