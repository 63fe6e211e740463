package market

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// anyProvider is a PeeringRequest that chooses among clusters with a label.
var anyProvider = &v1alpha1.PeeringRequest{Spec: v1alpha1.PeeringRequestSpec{
	ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"offers": "yes"}},
}}

func TestEligibleLeavesOutWhatCannotBeAsked(t *testing.T) {
	t.Parallel()
	peer := func(name string, change func(*v1alpha1.ForeignCluster)) v1alpha1.ForeignCluster {
		fc := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"offers": "yes"}}}
		fc.Spec.ClusterID, fc.Spec.TrustBundle = "id-"+name, "PEM"
		fc.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue}}
		if change != nil {
			change(&fc)
		}
		return fc
	}
	peers := []v1alpha1.ForeignCluster{
		peer("b", nil), peer("a", nil),
		peer("unlabelled", func(fc *v1alpha1.ForeignCluster) { fc.Labels = nil }),
		peer("untrusted", func(fc *v1alpha1.ForeignCluster) { fc.Spec.TrustBundle = "" }),
		peer("away", func(fc *v1alpha1.ForeignCluster) { fc.Status.Conditions[1].Status = metav1.ConditionFalse }),
		peer("going", func(fc *v1alpha1.ForeignCluster) { fc.DeletionTimestamp = &metav1.Time{Time: now} }),
		peer("ended", nil), peer("ended-long-ago", nil), peer("expired", nil),
	}
	over := func(peer string, reason peering.EndReason, ago time.Duration) *v1alpha1.Contract {
		c := &v1alpha1.Contract{Spec: v1alpha1.ContractSpec{PeerID: "id-" + peer}}
		closed := metav1.NewTime(now.Add(-ago))
		c.Status.Phase, c.Status.Reason, c.Status.ClosedAt = "Closed", reason.Name(), &closed
		return c
	}
	contracts := []*v1alpha1.Contract{
		over("ended", peering.EndedByPeer, 9*time.Minute), over("ended-long-ago", peering.EndedByPeer, 10*time.Minute),
		over("expired", peering.EndedByExpiry, time.Minute),
	}
	ask, not := Eligible(anyProvider, peers, contracts, now)
	var names []string
	for _, fc := range ask {
		names = append(names, fc.Name)
	}
	if diff := cmp.Diff([]string{"a", "b", "ended-long-ago", "expired"}, names); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if len(not) != 4 || !strings.Contains(strings.Join(not, "\n"), "ended: it ended a contract") {
		t.Errorf("left out are %q", not)
	}
	var many []v1alpha1.ForeignCluster
	for i := range maxCandidates + 3 {
		many = append(many, peer(fmt.Sprintf("p-%03d", i), nil))
	}
	if ask, not := Eligible(anyProvider, many, nil, now); len(ask) != maxCandidates || len(not) != 3 {
		t.Errorf("of %d peers %d are asked and %d left out", len(many), len(ask), len(not))
	}
}
