package lan

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/peering"
)

// TestAClusterWithoutTheSecretIsNotTrusted adds a third cluster to the LAN that only browses, and
// then one with another secret. Each reports why there is no trust.
func TestAClusterWithoutTheSecretIsNotTrusted(t *testing.T) {
	ctx, s := onStage(t)
	rome, oslo := s.rome(), s.oslo()
	for _, tt := range []struct {
		name string
		is   setting
		// reasons are each side's reasons about the other: in the condition Trusted, or in an
		// event, which is what the one that was asked has.
		reasons map[*e2e.Side][]string
	}{
		{"one that only looks is found, and no more", found, map[*e2e.Side][]string{rome: {"GroupUnknown"}, oslo: {"Discovered"}}},
		{"one with another secret reports it", impostor, map[*e2e.Side][]string{
			rome: {"GroupSecretMismatch", "GroupProofFailed"}, oslo: {"GroupSecretMismatch", "GroupProofFailed"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := map[*e2e.Side]setting{rome: member, s.milan(): s.is[s.milan()], oslo: tt.is}
			ok(t, s.are(ctx, want))
			for _, way := range []pair{{rome, oslo}, {oslo, rome}} {
				ok(t, s.World.Until(ctx, 2*atMost, way[0].Name+" to say why it does not trust "+way[1].Name, func(ctx context.Context) (string, error) {
					fc, err := way[0].Knows(ctx, way[1])
					if err != nil || fc == nil {
						return "it does not know it", err
					}
					if fc.Spec.TrustBundle != "" {
						return "", nil // reported below
					}
					said, err := told(ctx, way[0], fc)
					if err != nil {
						return "", err
					}
					if c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted); c != nil {
						said[c.Reason] = c.Message
					}
					for _, reason := range tt.reasons[way[0]] {
						if words := said[reason]; words != "" {
							t.Logf("%s of %s: %s: %s", way[0].Name, way[1].Name, reason, words)
							return "", nil
						}
					}
					return fmt.Sprintf("it says %q, want one of %q", said, tt.reasons[way[0]]), nil
				}))
			}
			// Both were asked and have refused by now: trust would have come instead.
			for _, way := range []pair{{rome, oslo}, {oslo, rome}} {
				fc, err := way[0].Knows(ctx, way[1])
				ok(t, err)
				if fc.Spec.TrustBundle != "" {
					t.Errorf("%s trusts %s", way[0].Name, way[1].Name)
				}
			}
		})
	}
}

// told returns the messages of a cluster's events about another one, by their reasons.
func told(ctx context.Context, side *e2e.Side, fc *v1alpha1.ForeignCluster) (map[string]string, error) {
	var list corev1.EventList
	if err := side.Client.List(ctx, &list); err != nil {
		return nil, err
	}
	said := map[string]string{}
	for _, e := range list.Items {
		of := e.InvolvedObject
		if of.Kind == "ForeignCluster" && of.Name == fc.Name || of.Kind == "PeeringPolicy" && strings.Contains(e.Message, peering.ClusterID(fc.Spec.ClusterID).Short()) {
			said[e.Reason] = e.Message
		}
	}
	return said, nil
}
