package controller

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/trust"
)

func TestThePeerThatCarriesASessionIsNamed(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newInBandTest(t, func() *v1alpha1.ForeignCluster {
		fc := inBandPeer(t, "milan", milan)
		fc.Spec.TrustBundle, fc.Spec.InBand, fc.Finalizers = milan.Info.PEM(), nil, []string{v1alpha1.Finalizer}
		return fc
	}())
	pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now(), Through: "genoa"}})
	pt.look(t, "milan")
	fc := peertest.PeerCalled(t, pt.Client, "milan")
	if c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionConnected); c == nil || c.Reason != "SessionUp" || !strings.Contains(c.Message, "through peer genoa") {
		t.Errorf("the condition is %+v", c)
	}
	if fc.Status.Session == nil || fc.Status.Session.Through != "genoa" {
		t.Errorf("the session is %+v", fc.Status.Session)
	}
}
