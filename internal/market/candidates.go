package market

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
)

// LeftOut is how long a PeeringRequest that can choose does not ask a provider again
// that ended its contract.
const LeftOut = 10 * time.Minute

// Eligible returns the clusters that a PeeringRequest with a selector may ask now,
// sorted by name, and why other clusters that match are left out. contracts are the
// request's.
func Eligible(s *v1alpha1.PeeringRequest, peers []v1alpha1.ForeignCluster, contracts []*v1alpha1.Contract, now time.Time) (ask []*v1alpha1.ForeignCluster, not []string) {
	selector, err := metav1.LabelSelectorAsSelector(s.Spec.ClusterSelector)
	if err != nil {
		return nil, []string{"spec.clusterSelector: " + err.Error()}
	}
	sorted := slices.SortedFunc(slices.Values(peers), func(a, b v1alpha1.ForeignCluster) int { return cmp.Compare(a.Name, b.Name) })
	for i := range sorted {
		fc := &sorted[i]
		if !selector.Matches(labels.Set(fc.Labels)) {
			continue
		}
		if s.Excludes(fc.Name) {
			not = append(not, fmt.Sprintf("%s: it was unpeered from; take it off the annotation %s to ask it again", fc.Name, v1alpha1.AnnotationExcludedClusters))
			continue
		}
		if why := Unusable(fc); why != "" {
			not = append(not, fc.Name+": "+why)
			continue
		}
		if until := outUntil(fc, contracts); now.Before(until) {
			not = append(not, fmt.Sprintf("%s: it ended a contract and is left out until %s", fc.Name, until.UTC().Format(time.RFC3339)))
			continue
		}
		if len(ask) == maxCandidates {
			not = append(not, fmt.Sprintf("%s: limit of %d compared clusters reached", fc.Name, maxCandidates))
			continue
		}
		ask = append(ask, fc)
	}
	return ask, not
}

// Unusable returns why a cluster cannot be asked now; empty if it can.
func Unusable(fc *v1alpha1.ForeignCluster) string {
	switch {
	case !fc.DeletionTimestamp.IsZero():
		return "it is being forgotten"
	case fc.Spec.TrustBundle == "" || meta.IsStatusConditionFalse(fc.Status.Conditions, v1alpha1.ConditionTrusted):
		return "it is not trusted"
	case !meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected):
		return "there is no session with it"
	}
	return ""
}

// outUntil returns until when a cluster is left out because of contracts that it
// ended.
func outUntil(fc *v1alpha1.ForeignCluster, contracts []*v1alpha1.Contract) time.Time {
	var until time.Time
	for _, c := range contracts {
		if c.Spec.PeerID != fc.Spec.ClusterID || !store.Closed(c) || !store.EndedByPeer(c) || c.Status.ClosedAt == nil {
			continue
		}
		if t := c.Status.ClosedAt.Add(LeftOut); t.After(until) {
			until = t
		}
	}
	return until
}
