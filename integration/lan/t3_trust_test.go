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
)

// TestWhoDoesNotKnowTheSecretIsNotTrusted has a third cluster on the LAN that only looks,
// and then one whose secret is another one. Each is told why there is no trust.
func TestWhoDoesNotKnowTheSecretIsNotTrusted(t *testing.T) {
	ctx, s := onStage(t)
	rome, oslo := s.rome(), s.oslo()
	for _, tt := range []struct {
		name string
		is   setting
		// words is what each side says of the other, in the condition Trusted.
		words map[*e2e.Side]string
	}{
		{"one that only looks is found, and no more", found, map[*e2e.Side]string{rome: "", oslo: ""}},
		{"one with another secret is told so", impostor, map[*e2e.Side]string{rome: "secret", oslo: "secret"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := map[*e2e.Side]setting{rome: member, s.milan(): s.is[s.milan()], oslo: tt.is}
			ok(t, s.are(ctx, want))
			for _, way := range []pair{{rome, oslo}, {oslo, rome}} {
				ok(t, s.world.Until(ctx, atMost, way[0].Name+" to say why it does not trust "+way[1].Name, func(ctx context.Context) (string, error) {
					fc, err := way[0].Knows(ctx, way[1])
					if err != nil || fc == nil {
						return "it does not know it", err
					}
					if fc.Spec.TrustBundle != "" {
						return "", nil
					}
					c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
					if c == nil || !strings.Contains(c.Message, tt.words[way[0]]) {
						return fmt.Sprintf("it says %+v", c), nil
					}
					t.Logf("%s of %s: %s: %s", way[0].Name, way[1].Name, c.Reason, c.Message)
					return "", nil
				}))
				fc, err := way[0].Knows(ctx, way[1])
				ok(t, err)
				if fc.Spec.TrustBundle != "" {
					t.Errorf("%s trusts %s", way[0].Name, way[1].Name)
				}
			}
			ok(t, s.logsEvents(ctx, t, rome, oslo))
		})
	}
}

// logsEvents writes down what was told of clusters.
func (s *stage) logsEvents(ctx context.Context, t *testing.T, sides ...*e2e.Side) error {
	t.Helper()
	for _, side := range sides {
		var list corev1.EventList
		if err := side.Client.List(ctx, &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == "ForeignCluster" || e.InvolvedObject.Kind == "PeeringPolicy" {
				t.Logf("%s: event %s %s of %s %s: %s", side.Name, e.Type, e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
			}
		}
	}
	return nil
}
