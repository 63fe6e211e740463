package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/plan/plantest"
)

// drawTransit is clusters of which b peers with each other one, and the others may peer with each
// other or not; b may let those that do not reach each other.
func drawTransit(t *rapid.T) plantest.World {
	w := plantest.World{
		Real: netip.MustParsePrefix("10.200.0.0/16"),
		Key: func(n plantest.Node) plan.PublicKey {
			return plan.PublicKey{n.Cluster[0], n.Name[0], n.Name[1]}
		},
		Endpoints: func(plantest.Node) []string { return []string{"192.0.2.1:51820"} },
	}
	clusters := []string{"a", "b", "c", "d"}[:rapid.IntRange(3, 4).Draw(t, "clusters")]
	aliases := map[string]netip.Prefix{}
	for _, c := range clusters {
		order := rapid.Permutation([]byte{241, 242, 243, 244}).Draw(t, "aliases of "+c)
		for i, other := range clusters {
			aliases[c+other] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, order[i]}), 16)
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "nodes of "+c) {
			n := plantest.Node{
				Cluster: c, Name: fmt.Sprint("n", i), Gateway: i == 0 || rapid.Bool().Draw(t, "gateway"), Announced: rapid.Bool().Draw(t, "announced"),
				Pods: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i)}), 24)},
			}
			w.Nodes = append(w.Nodes, n)
			w.Pods = append(w.Pods, plantest.Pod{Cluster: c, Node: n.Name, Addr: netip.AddrFrom4([4]byte{10, 200, byte(i), 10}), Open: rapid.Bool().Draw(t, "open")})
		}
	}
	drawn := func(what string) func(a, b string) bool {
		known := map[string]bool{}
		return func(a, b string) bool {
			key := min(a, b) + max(a, b)
			if _, ok := known[key]; !ok {
				known[key] = rapid.Bool().Draw(t, what+" "+key)
			}
			return known[key]
		}
	}
	apart, allowed := drawn("apart"), drawn("allowed")
	w.Apart = func(a, b string) bool { return a != "b" && b != "b" && apart(a, b) }
	w.Transit = func(through, a, c string) bool { return through == "b" && allowed(a, c) }
	w.Alias = func(knows, known string) netip.Prefix { return aliases[knows+known] }
	w.Single = func(knows, through string) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 250, through[0]}), 24)
	}
	direct := drawn("tunnel")
	w.Direct = func(from plantest.Node, to plan.RemoteNode) (plan.Direct, bool) {
		exists := from.Gateway && to.IsGateway || direct(from.Cluster+from.Name, to.Cluster+to.Node)
		return plan.Direct{Use: exists}, exists
	}
	return w
}

func TestEachPacketThatPassesThroughAThirdClusterArrivesAtThePodItWasMeantFor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawTransit(t)
		s, err := plantest.Simulate(w)
		if err != nil {
			t.Fatal(err)
		}
		w.Check(t, s)
	})
}

// What transit brings is its own: without the permission a plan is the one of a cluster that never
// had it, and with a peer gone none of its aliases are left at others.
func TestTransitThatGoesLeavesThePlanAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawTransit(t)
		of := func(w plantest.World, n plantest.Node) plan.Layout {
			l, err := plan.Plan(w.Desired(n), plan.Observed{Sources: []netip.Addr{n.Pods[0].Addr().Next()}})
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Problems) > 0 {
				t.Errorf("%s/%s: %v", n.Cluster, n.Name, l.Problems)
			}
			return l
		}
		same := cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})}
		closed, gone := w, w
		closed.Transit = nil
		gone.Nodes = slices.DeleteFunc(slices.Clone(w.Nodes), func(n plantest.Node) bool { return n.Cluster == "c" })
		for _, n := range w.Nodes {
			with, without := of(w, n), of(closed, n)
			if n.Cluster != "b" {
				if diff := cmp.Diff(without, with, same); diff != "" {
					t.Errorf("what passes through others changed the plan of %s/%s:\n%s", n.Cluster, n.Name, diff)
				}
				continue
			}
			third := map[netip.Addr]bool{}
			for _, a := range with.Transit {
				third[a] = true
			}
			for i := range with.Translations {
				with.Translations[i].Local = slices.DeleteFunc(with.Translations[i].Local, func(m plan.Mapping) bool { return third[m.Real.Addr()] })
			}
			with.Transit, with.Names, without.Names = nil, nil, nil
			with.Inbound.Open = slices.DeleteFunc(with.Inbound.Open, func(o plan.Opening) bool { return third[o.Addr] })
			with.Inbound.Sources, without.Inbound.Sources = nil, nil // only transit has single ones here
			if diff := cmp.Diff(without, with, same); diff != "" {
				t.Errorf("transit changed more than its own (-without +with):\n%s", diff)
			}
			left := of(gone, n)
			for _, a := range left.Transit {
				if w.Alias("b", "c").Contains(a) {
					t.Errorf("%v of the cluster that is gone is still passed on", a)
				}
			}
		}
	})
}

// An invalid transit is left out and reported, and opens no flows.
func TestTransitThatDoesNotFitStaysClosed(t *testing.T) {
	t.Parallel()
	host := func(a string) netip.Prefix { return netip.PrefixFrom(netip.MustParseAddr(a), 32) }
	gateway := func(n byte) []plan.Gateway {
		return []plan.Gateway{{Node: "g", PublicKey: plan.PublicKey{n}, Endpoints: []string{"192.0.2.1:51820"}}}
	}
	const aliasOfA, aliasOfC = "10.241.0.0/16", "10.242.0.0/16"
	peers := func(t plan.Transit, e plan.Exposure) []plan.Peer {
		real := netip.MustParsePrefix("10.200.0.0/16")
		e.Name, e.Destinations = "shop", []plan.Destination{{Addr: t.Real.Addr()}}
		return []plan.Peer{
			{
				ClusterID: "a", Gateways: gateway(1), Local: []plan.Mapping{{Real: real, Alias: netip.MustParsePrefix("10.1.0.0/16")}},
				Remote: []plan.Mapping{{Real: real, Alias: netip.MustParsePrefix(aliasOfA)}}, Transit: []plan.Transit{t}, Inbound: []plan.Exposure{e},
			},
			{
				ClusterID: "c", Gateways: gateway(2), Local: []plan.Mapping{{Real: real, Alias: netip.MustParsePrefix("10.1.0.0/16")}},
				Remote: []plan.Mapping{{Real: real, Alias: netip.MustParsePrefix(aliasOfC)}},
			},
		}
	}
	source := []netip.Addr{netip.MustParseAddr("10.241.0.7")}
	for what, c := range map[string]struct {
		transit  plan.Transit
		exposure plan.Exposure
		open     bool
	}{
		"a valid one":                      {plan.Transit{Cluster: "c", Mapping: plan.Mapping{Real: host("10.242.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Third: "c", Sources: source}, true},
		"all addresses of the peer":        {plan.Transit{Cluster: "c", Mapping: plan.Mapping{Real: host("10.242.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Third: "c", AnySource: true}, false},
		"as an address of this cluster":    {plan.Transit{Cluster: "c", Mapping: plan.Mapping{Real: host("10.242.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Sources: source}, false},
		"an address of no peer":            {plan.Transit{Cluster: "c", Mapping: plan.Mapping{Real: host("10.243.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Third: "c", Sources: source}, false},
		"an address of the peer itself":    {plan.Transit{Cluster: "a", Mapping: plan.Mapping{Real: host("10.241.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Third: "a", Sources: source}, false},
		"an address of another than said":  {plan.Transit{Cluster: "a", Mapping: plan.Mapping{Real: host("10.242.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Third: "a", Sources: source}, false},
		"an address of a cluster unknown":  {plan.Transit{Cluster: "x", Mapping: plan.Mapping{Real: host("10.242.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Third: "x", Sources: source}, false},
		"a prefix":                         {plan.Transit{Cluster: "c", Mapping: plan.Mapping{Real: netip.MustParsePrefix("10.242.0.0/24"), Alias: netip.MustParsePrefix("10.9.0.0/24")}}, plan.Exposure{Third: "c", Sources: source}, false},
		"a name that one of ours has":      {plan.Transit{Cluster: "c", Mapping: plan.Mapping{Real: host("10.242.0.9"), Alias: host("10.1.0.1")}}, plan.Exposure{Third: "c", Sources: source}, false},
		"a pod of this cluster as a third": {plan.Transit{Cluster: "c", Mapping: plan.Mapping{Real: host("10.200.0.9"), Alias: host("10.9.0.1")}}, plan.Exposure{Third: "c", Sources: source}, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := plan.Desired{
				ClusterID: "b", Node: "gw", Nodes: []plan.Node{{Name: "gw", PublicKey: plan.PublicKey{9}, Gateway: true, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.1.0/24")}}},
				Peers: peers(c.transit, c.exposure),
			}
			l, err := plan.Plan(d, plan.Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.1.1")}})
			if err != nil {
				t.Fatal(err)
			}
			open := len(l.Inbound.Open) > 0
			if open && what == "as an address of this cluster" {
				t.Errorf("it is open: %v", l.Inbound)
			}
			if open != c.open || open == (len(l.Problems) > 0) {
				t.Errorf("open %v: %v; problems %v", open, l.Inbound, l.Problems)
			}
		})
	}
}
