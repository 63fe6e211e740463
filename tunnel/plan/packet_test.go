package plan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/plan/plantest"
)

// TestEachPacketArrivesAtThePodItWasMeantFor plans worlds of clusters with the same pod prefix, in
// which aliases of one cluster may well be those that another uses for a third.
func TestEachPacketArrivesAtThePodItWasMeantFor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := plantest.World{
			Real: netip.MustParsePrefix("10.200.0.0/16"),
			Key: func(n plantest.Node) plan.PublicKey {
				return plan.PublicKey{n.Cluster[0], n.Name[0], n.Name[1]}
			},
			Endpoints: func(plantest.Node) []string { return []string{"192.0.2.1:51820"} },
		}
		clusters := []string{"a", "b", "c", "d"}[:rapid.IntRange(2, 4).Draw(t, "clusters")]
		aliases := map[string]netip.Prefix{}
		for _, c := range clusters {
			order := rapid.Permutation([]byte{241, 242, 243, 244, 245}).Draw(t, "aliases of "+c)
			for i, other := range clusters {
				aliases[c+other] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, order[i]}), 16)
			}
			for i := range rapid.IntRange(1, 3).Draw(t, "nodes of "+c) {
				n := plantest.Node{
					Cluster: c, Name: fmt.Sprint("n", i), Gateway: i == 0 || rapid.Bool().Draw(t, "gateway"), Announced: rapid.Bool().Draw(t, "announced"),
					Pods: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i)}), 24)},
				}
				if j := rapid.IntRange(0, 4).Draw(t, "borrows of"); j < i { // an address of another node's block
					borrowed := netip.AddrFrom4([4]byte{10, 200, byte(j), byte(100 + i)})
					n.Pods = append(n.Pods, netip.PrefixFrom(borrowed, 32))
					w.Pods = append(w.Pods, plantest.Pod{Cluster: c, Node: n.Name, Addr: borrowed, Open: true})
				}
				w.Nodes = append(w.Nodes, n)
				w.Pods = append(w.Pods, plantest.Pod{Cluster: c, Node: n.Name, Addr: netip.AddrFrom4([4]byte{10, 200, byte(i), 10}), Open: rapid.Bool().Draw(t, "open")})
			}
		}
		// Which tunnels there are, and which of them work, each node finds by itself.
		type tunnel struct {
			plan.Direct
			exists bool
		}
		tunnels := map[string]tunnel{}
		w.Direct = func(from plantest.Node, to plan.RemoteNode) (plan.Direct, bool) {
			pair := fmt.Sprint(from.Cluster, from.Name, to.Cluster, to.Node)
			d, known := tunnels[pair]
			if !known {
				d.Use, d.Leaving = rapid.Bool().Draw(t, pair+" works"), rapid.IntRange(0, 3).Draw(t, pair+" ends") == 0
				d.exists = from.Gateway && to.IsGateway || rapid.IntRange(0, 9).Draw(t, pair+" exists") > 0
				tunnels[pair] = d
			}
			return d.Direct, d.exists
		}
		w.Alias = func(knows, known string) netip.Prefix { return aliases[knows+known] }
		s, err := plantest.Simulate(w)
		if err != nil {
			t.Fatal(err)
		}
		w.Check(t, s)
	})
}
