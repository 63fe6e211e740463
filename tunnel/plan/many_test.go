package plan

import (
	"fmt"
	"net/netip"
	"testing"
)

// manyPeers is a cluster of 100 nodes with so many peers, each with three gateways, of which each
// knows 200 addresses one by one, and opens as many.
func manyPeers(n int) Desired {
	d := Desired{ClusterID: "home", Node: "node-0", Pods: []netip.Prefix{pfx("10.200.0.0/16")}, Pool: []netip.Prefix{pfx("198.18.0.0/15")}}
	for i := range 100 {
		d.Nodes = append(d.Nodes, Node{
			Name: fmt.Sprint("node-", i), PublicKey: PublicKey{1, byte(i)}, Gateway: i < 3, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i), 0}), 24)},
		})
	}
	for i := range n {
		q := Peer{ClusterID: fmt.Sprint("peer-", i), PresharedKey: PresharedKey{1}}
		for g := range 3 {
			q.Gateways = append(q.Gateways, Gateway{Node: fmt.Sprint("gw-", g), PublicKey: PublicKey{2, byte(i), byte(i >> 8), byte(g)}, Endpoints: []string{"192.0.2.1:51820"}})
		}
		e := Exposure{Name: "all", AnySource: true}
		for a := range 200 {
			own := netip.AddrFrom4([4]byte{10, 200, byte(a % 100), byte(2 + a/100)})
			q.Local = append(q.Local, Mapping{host(own), host(netip.AddrFrom4([4]byte{198, 19, byte(i), byte(a)}))})
			e.Destinations = append(e.Destinations, Destination{Addr: own})
		}
		for b := range 4 {
			at := netip.AddrFrom4([4]byte{198, byte(18 + i/256), byte(i), byte(64 * b)})
			q.RemoteBlocks = append(q.RemoteBlocks, netip.PrefixFrom(at, 26))
		}
		q.Inbound = []Exposure{e}
		d.Peers = append(d.Peers, q)
	}
	return d
}

// Time and memory of a plan grow with the number of peers, and no faster.
func BenchmarkPlanOfManyPeers(b *testing.B) {
	for _, n := range []int{10, 100, 250, 500} {
		b.Run(fmt.Sprint(n, " peers"), func(b *testing.B) {
			d := manyPeers(n)
			b.ReportAllocs()
			for b.Loop() {
				l, err := Plan(d, Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.0.1")}})
				if err != nil || len(l.Problems) > 0 || len(l.Translations) == 0 {
					b.Fatal(err, l.Problems)
				}
			}
		})
	}
}

// The plan of a peer is the same with fewer peers, and a change of one peer does not change
// the plan of another.
func TestThePlanOfAPeerDoesNotDependOnOthers(t *testing.T) {
	all, err := Plan(manyPeers(60), Observed{})
	if err != nil {
		t.Fatal(err)
	}
	d := manyPeers(60)
	d.Peers[7].Local, d.Peers[7].Gateways, d.Peers[7].Inbound = nil, d.Peers[7].Gateways[:1], nil
	less, err := Plan(d, Observed{})
	if err != nil {
		t.Fatal(err)
	}
	of := func(l Layout) map[string]string {
		out := map[string]string{}
		for _, p := range l.Peers {
			if p.Cluster != "home" { // what these carry is each peer's own
				out[p.Cluster] += fmt.Sprint(p)
			}
		}
		for _, x := range l.Translations {
			out[x.Cluster] += fmt.Sprint(x)
		}
		for _, m := range l.Masquerades {
			out[m.Cluster] += fmt.Sprint(m)
		}
		return out
	}
	before, after := of(all), of(less)
	for id, text := range before {
		if id != "peer-7" && after[id] != text {
			t.Errorf("%s changed", id)
		}
	}
	if len(before) != 60 || after["peer-7"] == before["peer-7"] {
		t.Errorf("%d peers; the one that changed is as it was: %t", len(before), after["peer-7"] == before["peer-7"])
	}
}
