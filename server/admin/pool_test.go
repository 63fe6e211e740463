package admin

import (
	"strings"
	"testing"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func TestAPeerIsAskedForEachOfItsPools(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)))
	c := a.alice(t)
	for pool, name := range map[string]string{"": "office", "gpu": "office-gpu", "spot": "office-spot"} {
		resp, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/office", Pool: pool})
		if err != nil || resp.GetPeeringRequest() != name {
			t.Fatalf("pool %q: made %v, %v; want %s", pool, resp, err, name)
		}
		var made v1alpha1.PeeringRequest
		if err := a.client.Get(t.Context(), ctrlclient.ObjectKey{Name: name}, &made); err != nil || made.Spec.Pool != pool {
			t.Errorf("%s asks for pool %q, %v", name, made.Spec.Pool, err)
		}
		if got, err := c.GetPeering(t.Context(), &ententev1.GetPeeringRequest{Name: "peerings/" + name}); err != nil || got.GetPeering().GetPool() != pool {
			t.Errorf("%s is returned as %v, %v", name, got, err)
		}
	}
	if _, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/office", Pool: "GPU"}); err == nil {
		t.Error("a malformed pool was asked for")
	}
	for peer, want := range map[string]string{
		"a": "a-" + strings.Repeat("p", 32), strings.Repeat("a", 63): strings.Repeat("a", 30) + "-" + strings.Repeat("p", 32),
		strings.Repeat("a", 29) + "." + strings.Repeat("b", 200): strings.Repeat("a", 29) + "-" + strings.Repeat("p", 32),
	} {
		if got := nameInPool(peer, strings.Repeat("p", 32)); got != want {
			t.Errorf("%s: %s, want %s", peer, got, want)
		}
	}
}
