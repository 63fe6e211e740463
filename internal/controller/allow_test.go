package controller

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/peering"
)

// What is open follows from this cluster's decisions alone, whatever the peer announces and
// leaves out.
func TestPeersCannotKeepFlowsOpen(t *testing.T) {
	addr := netip.MustParseAddr
	http := v1alpha1.DestinationPort{Protocol: "TCP", Port: 80}
	prefixes := []string{"10.0.0.0/16", "10.1.0.0/16", "fd00:1::/64", "10.2.0.0/15"}
	rapid.Check(t, func(rt *rapid.T) {
		milan := peertest.NewOther(t, "milan")
		fc := peertest.TrustedAs("milan", milan)
		contract := peertest.ContractWith(milan, "c-1", v1alpha1.ContractProvider)
		pt := newPeersTest(t, fc, contract)
		pt.AliasPool = []netip.Prefix{prefix("10.240.0.0/15")}
		for range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			var now v1alpha1.ForeignCluster
			if err := pt.Client.Get(t.Context(), client.ObjectKeyFromObject(fc), &now); err != nil {
				rt.Fatal(err)
			}
			now.Status.Network = nil
			if rapid.Bool().Draw(rt, "network") {
				now.Status.Network = &v1alpha1.PeerNetwork{Prefixes: rapid.SliceOfNDistinct(rapid.SampledFrom(prefixes), 0, 4, rapid.ID).Draw(rt, "prefixes")}
				if rapid.Bool().Draw(rt, "gateways") {
					now.Status.Network.Gateways = []v1alpha1.Gateway{{Name: "n1", PublicKey: "k", OverlayAddress: "fd00::1"}}
				}
				if rapid.Bool().Draw(rt, "aliases") {
					now.Status.Network.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.0.0.0/16", Alias: "10.250.0.0/16"}}
				}
			}
			if err := pt.Client.Status().Update(t.Context(), &now); err != nil {
				rt.Fatal(err)
			}
			pt.States.PodCIDRs = []netip.Prefix{prefix("10.0.0.0/16")}
			if rapid.Bool().Draw(rt, "a node joins") {
				pt.States.PodCIDRs = append(pt.States.PodCIDRs, prefix("10.9.0.0/24"))
			}
			var exposed []allow.Exposed
			for i := range rapid.IntRange(0, 3).Draw(rt, "open") {
				exposed = append(exposed, allow.Exposed{Contract: "c-1", Namespace: fmt.Sprint(i), From: []netip.Addr{addr("10.240.0.1")}, To: []allow.Destination{{Addr: addr("10.0.0.7"), Port: http}}})
			}
			pt.Exposed = func(context.Context, peering.ClusterID) ([]allow.Exposed, error) { return exposed, nil }
			pt.clock.Pass(tunnelPause)
			pt.look(t, "milan")
			var stands v1alpha1.Tunnel
			if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: "milan"}, &stands); client.IgnoreNotFound(err) != nil {
				rt.Fatal(err)
			} else if err != nil {
				continue
			}
			want, _ := allow.Plan(exposed, nil)
			if diff := cmp.Diff(want, stands.Spec.Allow, cmpopts.EquateEmpty()); diff != "" {
				rt.Fatalf("open is (-want +got):\n%s", diff)
			}
		}
	})
}
