package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/plan/plantest"
)

// TestEachPacketArrivesAtThePodItWasMeantFor plans worlds of clusters with the same pod prefix, in
// which aliases of one cluster may well be those that another uses for a third.
func TestEachPacketArrivesAtThePodItWasMeantFor(t *testing.T) {
	t.Parallel()
	direct, entered := 0, 0
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
		w.Direct = drawDirect(t)
		w.Alias = func(knows, known string) netip.Prefix { return aliases[knows+known] }
		s, err := plantest.Simulate(w)
		if err != nil {
			t.Fatal(err)
		}
		w.Check(t, s)
		direct, entered = direct+s.Direct, entered+s.Entered
	})
	if direct == 0 || entered == 0 {
		t.Errorf("%d packets went directly, and %d entered at a gateway: want some of each", direct, entered)
	}
}

// drawDirect draws which tunnels there are, and which of them work: each node finds that by itself.
func drawDirect(t *rapid.T) func(plantest.Node, plan.RemoteNode) (plan.Direct, bool) {
	type tunnel struct {
		plan.Direct
		exists bool
	}
	tunnels := map[string]tunnel{}
	return func(from plantest.Node, to plan.RemoteNode) (plan.Direct, bool) {
		pair := fmt.Sprint(from.Cluster, from.Name, to.Cluster, to.Node)
		d, known := tunnels[pair]
		if !known {
			d.Use, d.Leaving = rapid.Bool().Draw(t, pair+" works"), rapid.IntRange(0, 3).Draw(t, pair+" ends") == 0
			d.exists = from.Gateway && to.IsGateway || rapid.IntRange(0, 9).Draw(t, pair+" exists") > 0
			tunnels[pair] = d
		}
		return d.Direct, d.exists
	}
}

// drawnCluster is a cluster of a random world.
type drawnCluster struct {
	name string
	// prefixes are those of its pods: of IPv4, of IPv6, or of both.
	prefixes []netip.Prefix
	// number is that in its IPv4 prefix, and in its IPv6 prefix.
	number byte
}

// inside returns an address of a cluster, or of a prefix of that form.
func inside(p netip.Prefix, node, host byte) netip.Addr {
	b := p.Addr().AsSlice()
	if p.Addr().Is4() {
		b[2], b[3] = node, host
	} else {
		b[9], b[15] = node, host
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// aliasPrefix is a prefix in the pool of aliases, of the family of another.
func aliasPrefix(like netip.Prefix, group, number byte) netip.Prefix {
	if like.Addr().Is4() {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, group + number}), 16)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, group, number}), 64)
}

// drawCluster draws a cluster with its nodes and pods.
func drawCluster(t *rapid.T, w *plantest.World, i int) drawnCluster {
	c := drawnCluster{name: string(rune('a' + i))}
	if rapid.Bool().Draw(t, "own prefixes of "+c.name) {
		c.number = byte(i + 1)
	}
	families := rapid.SampledFrom([]string{"4", "6", "46", "46"}).Draw(t, "families of "+c.name)
	for _, family := range families {
		if family == '4' {
			c.prefixes = append(c.prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200 + c.number}), 16))
		} else {
			c.prefixes = append(c.prefixes, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x77, c.number}), 64))
		}
	}
	for j := range byte(rapid.IntRange(1, 3).Draw(t, "nodes of "+c.name)) {
		n := plantest.Node{Cluster: c.name, Name: fmt.Sprint("n", j), Gateway: j == 0 || rapid.Bool().Draw(t, "gateway"), Announced: rapid.Bool().Draw(t, "announced")}
		for _, p := range c.prefixes {
			bits := map[bool]int{true: 24, false: 80}[p.Addr().Is4()]
			n.Pods = append(n.Pods, netip.PrefixFrom(inside(p, j, 0), bits))
			n.Own = append(n.Own, inside(p, j, 1))
			for host := range byte(rapid.IntRange(1, 2).Draw(t, "pods")) {
				w.Pods = append(w.Pods, plantest.Pod{Cluster: c.name, Node: n.Name, Addr: inside(p, j, 10+host), Open: rapid.Bool().Draw(t, "open")})
			}
		}
		w.Nodes = append(w.Nodes, n)
	}
	return c
}

// drawAliases draws by what a cluster knows another, which is number i of those that it knows: by the
// prefixes themselves where those are free, by aliases, or by aliases of single addresses, as where
// the pool has no room for more. All nodes' own addresses are among those.
func drawAliases(t *rapid.T, w plantest.World, knows, known drawnCluster, taken map[netip.Prefix]bool, number byte) (out plantest.Aliases) {
	for _, p := range known.prefixes {
		what := fmt.Sprintf("%s knows %v of %s", knows.name, p, known.name)
		free := !taken[p] && !slices.Contains(knows.prefixes, p)
		how := rapid.SampledFrom([]string{"itself", "alias", "single"}).Draw(t, what)
		switch {
		case how == "itself" && free:
			taken[p] = true
			out.Mappings = append(out.Mappings, plan.Mapping{Real: p, Alias: p})
		case how != "single":
			out.Mappings = append(out.Mappings, plan.Mapping{Real: p, Alias: aliasPrefix(p, 20, number)})
		default:
			block := aliasPrefix(p, 40, number)
			out.Blocks = append(out.Blocks, block)
			host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
			next := byte(0)
			name := func(a netip.Addr) {
				if p.Contains(a) {
					next++
					out.Mappings = append(out.Mappings, plan.Mapping{Real: host(a), Alias: host(inside(block, 0, next))})
				}
			}
			for _, n := range w.Nodes {
				if n.Cluster == known.name {
					for _, a := range n.Own {
						name(a)
					}
				}
			}
			for _, pod := range w.Pods {
				if pod.Cluster == known.name && p.Contains(pod.Addr) && rapid.Bool().Draw(t, fmt.Sprint(what, ": ", pod.Addr)) {
					name(pod.Addr)
				}
			}
		}
	}
	return out
}

// TestEachPacketArrivesInClustersOfAllFamilies is TestEachPacketArrivesAtThePodItWasMeantFor in clusters of
// IPv4, of IPv6 and of both, with prefixes of their own or the same ones, some of which know no more of each
// other than single addresses.
func TestEachPacketArrivesInClustersOfAllFamilies(t *testing.T) {
	t.Parallel()
	entered := 0
	rapid.Check(t, func(t *rapid.T) {
		w := plantest.World{
			Key: func(n plantest.Node) plan.PublicKey {
				return plan.PublicKey{n.Cluster[0], n.Name[0], n.Name[1]}
			},
			Endpoints: func(plantest.Node) []string { return []string{"192.0.2.1:51820"} },
		}
		var clusters []drawnCluster
		for i := range rapid.IntRange(2, 4).Draw(t, "clusters") {
			clusters = append(clusters, drawCluster(t, &w, i))
		}
		aliases := map[string]plantest.Aliases{}
		for _, knows := range clusters {
			order := rapid.Permutation([]byte{1, 2, 3, 4, 5}).Draw(t, "aliases of "+knows.name)
			taken := map[netip.Prefix]bool{}
			for i, known := range clusters {
				if known.name != knows.name {
					aliases[knows.name+known.name] = drawAliases(t, w, knows, known, taken, order[i])
				}
			}
		}
		w.Prefixes = func(cluster string) []netip.Prefix { return clusters[cluster[0]-'a'].prefixes }
		w.Aliases = func(knows, known string) plantest.Aliases { return aliases[knows+known] }
		w.Direct = drawDirect(t)
		s, err := plantest.Simulate(w)
		if err != nil {
			t.Fatal(err)
		}
		w.Check(t, s)
		entered += s.Entered
	})
	if entered == 0 {
		t.Error("no packet entered at a gateway")
	}
}
