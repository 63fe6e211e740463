package plan

import (
	"fmt"
	"net/netip"
	"testing"
)

// crowd is a node, one of a hundred, that peers with so many clusters. Each has a /16, two
// gateways, and twenty pods that it reaches.
func crowd(peers int) Desired {
	d := Desired{ClusterID: "home", Node: "n0", Reserved: []netip.Prefix{pfx("10.96.0.0/16")}, Pool: []netip.Prefix{pfx("fd00::/16")}}
	for i := range 100 {
		d.Nodes = append(d.Nodes, Node{
			Name: fmt.Sprint("n", i), PublicKey: PublicKey{1, byte(i)}, Endpoints: []string{fmt.Sprintf("192.0.2.%d:51820", i)}, Gateway: i < 3,
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i)}), 24)},
		})
	}
	for i := range peers {
		q := Peer{ClusterID: fmt.Sprintf("peer%d", i), Local: []Mapping{{pfx("10.200.0.0/16"), pfx("10.199.0.0/16")}}}
		q.Remote = []Mapping{{pfx("10.200.0.0/16"), netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i/200), byte(i % 200)}), 16)}}
		for g := range 2 {
			q.Gateways = append(q.Gateways, Gateway{Node: fmt.Sprint("g", g), PublicKey: PublicKey{2, byte(i), byte(i >> 8), byte(g)}, Endpoints: []string{"203.0.113.1:51820"}})
		}
		e := Exposure{Name: "e", AnySource: true}
		for p := range 20 {
			e.Destinations = append(e.Destinations, Destination{Addr: netip.AddrFrom4([4]byte{10, 200, byte(p), 9}), Protocol: TCP, Port: uint16(1 + i)})
		}
		q.Inbound = []Exposure{e}
		d.Peers = append(d.Peers, q)
	}
	return d
}

// BenchmarkPlan is a plan with so many peers, of a cluster of a hundred nodes.
func BenchmarkPlan(b *testing.B) {
	for _, peers := range []int{10, 100, 250, 500} {
		d := crowd(peers)
		b.Run(fmt.Sprintf("peers=%d", peers), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l, err := Plan(d, Observed{})
				if err != nil || len(l.Translations) == 0 || len(l.Problems) > peers { // a node without an address of its own has a problem for each
					b.Fatal(err, len(l.Translations), l.Problems[:min(3, len(l.Problems))])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(peers), "µs/peer")
		})
	}
}
