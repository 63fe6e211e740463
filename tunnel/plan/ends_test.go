package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// For any announcement of a peer, the targets and the probers are addresses of its own, of families in
// which both ends have an address that the other knows, and nothing else of the plan changes.
func TestEndToEndProbesAreOfThePeersOwnAddresses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := home("gw")
		d.Peers = append(d.Peers, drawPeer(t, 1), drawPeer(t, 2))
		o := Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.1.1"), netip.MustParseAddr("fd77:1:0:0:1::1")}[:rapid.IntRange(0, 2).Draw(t, "sources")]}
		without, err := Plan(d, o)
		if err != nil {
			t.Fatal(err)
		}
		addr := rapid.Custom(func(t *rapid.T) netip.Addr {
			all := slices.Concat(d.Peers[0].Aliases(), d.Peers[1].Aliases(), d.Peers[2].Aliases(), []netip.Prefix{pfx("0.0.0.0/0"), pfx("10.200.0.0/16"), pfx("fd00::/8")})
			p := rapid.SampledFrom(all).Draw(t, "in")
			b := p.Masked().Addr().AsSlice()
			b[len(b)-1] |= rapid.Byte().Draw(t, "host")
			a, _ := netip.AddrFromSlice(b)
			return a
		})
		for i := range rapid.IntRange(0, 200).Draw(t, "nodes") {
			d.Peers[1].Probed = append(d.Peers[1].Probed, Probed{Node: fmt.Sprint("n", i), Addrs: rapid.SliceOfN(addr, 0, 4).Draw(t, "addresses")})
		}
		with, err := Plan(d, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range with.Ends {
			if e.Cluster != d.Peers[1].ClusterID || len(e.Targets) > 2*maxEnds || len(e.Probers) > 2*maxProbed {
				t.Fatalf("%s: %d targets, %d probers", e.Cluster, len(e.Targets), len(e.Probers))
			}
			for _, a := range e.Probers {
				if !slices.ContainsFunc(d.Peers[1].Aliases(), func(p netip.Prefix) bool { return p.Contains(a) }) || !slices.Contains(with.Remote, with.Remote[slices.IndexFunc(with.Remote, func(p netip.Prefix) bool { return p.Contains(a) })]) {
					t.Fatalf("%v is not the peer's", a)
				}
				if !slices.ContainsFunc(e.Sources, func(s netip.Addr) bool { return s.BitLen() == a.BitLen() }) {
					t.Fatalf("%v is probed from nowhere", a)
				}
			}
			for _, to := range e.Targets {
				if !slices.Contains(e.Probers, to.Addr) {
					t.Fatalf("%v is probed and may not probe", to)
				}
			}
			for _, s := range e.Sources {
				if !slices.Contains(o.Sources, s) {
					t.Fatalf("%v is not this node's", s)
				}
			}
		}
		with.Ends = nil
		if diff := cmp.Diff(without, with, compareAddrs()); diff != "" {
			t.Fatalf("more than what is probed changed:\n%s", diff)
		}
	})
}

func TestNodesOfAClusterProbeAllNodesOfALargePeer(t *testing.T) {
	d := home("gw")
	for i := range maxProbed {
		d.Peers[0].Probed = append(d.Peers[0].Probed, Probed{Node: fmt.Sprint("n", i), Addrs: []netip.Addr{d.Peers[0].Remote[0].Alias.Addr().Next()}})
		for range i {
			d.Peers[0].Probed[i].Addrs[0] = d.Peers[0].Probed[i].Addrs[0].Next()
		}
	}
	all := map[string]bool{}
	for _, node := range []string{"gw", "worker"} {
		d.Node = node
		l, err := Plan(d, Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.1.1")}})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Ends) != 1 || len(l.Ends[0].Targets) != maxEnds || len(l.Ends[0].Probers) != maxProbed {
			t.Fatalf("%+v", l.Ends)
		}
		for _, e := range l.Ends[0].Targets {
			all[e.Node] = true
		}
	}
	if len(all) < maxEnds*5/4 {
		t.Errorf("two nodes probe %d nodes together, want more than %d", len(all), maxEnds)
	}
}
