package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// dualHome is [home] with pods of both families, on one of its nodes.
func dualHome(t *rapid.T) Desired {
	d := home(rapid.SampledFrom([]string{"gw", "worker"}).Draw(t, "node"))
	for i := range d.Nodes {
		d.Nodes[i].PodCIDRs = append(d.Nodes[i].PodCIDRs, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x77, 0, 1, 9: byte(i + 1)}), 80))
	}
	d.Peers[0].Local = append(d.Peers[0].Local, Mapping{pfx("fd77:1::/64"), pfx("fd01::/64")}) // the home cluster's own
	return d
}

// drawPeer is a peer whose aliases, keys and classes are its own.
func drawPeer(t *rapid.T, i int) Peer {
	q := Peer{ClusterID: fmt.Sprintf("peer%d", i), PresharedKey: PresharedKey{byte(i), 1}}
	for g := range rapid.IntRange(1, 3).Draw(t, "gateways") {
		q.Gateways = append(q.Gateways, Gateway{Node: fmt.Sprint("g", g), PublicKey: PublicKey{byte(i), byte(g), 9}, Endpoints: []string{fmt.Sprintf("203.0.113.%d:51820", 10*i+g)}})
	}
	four := func(group byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, group + byte(i)}), 16)
	}
	six := func(group byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, group, 7: byte(i)}), 64)
	}
	families := rapid.SampledFrom([]string{"4", "6", "46"}).Draw(t, "families")
	if strings.Contains(families, "4") {
		q.addAliases(t, pfx("10.200.0.0/16"), pfx("10.201.0.0/16"), four(40), four(20), netip.MustParseAddr("10.200.2.9"))
	}
	if strings.Contains(families, "6") {
		q.addAliases(t, pfx("fd77:1::/64"), pfx("fd78:1::/64"), six(1), six(2), netip.MustParseAddr("fd77:1::2:0:0:9"))
	}
	for e := range rapid.IntRange(0, 2).Draw(t, "exposures") {
		q.Inbound = append(q.Inbound, Exposure{
			Name: fmt.Sprint("e", e), AnySource: rapid.Bool().Draw(t, "any source"), Sources: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(20 + i), 1, byte(e)})},
			Destinations: []Destination{{Addr: netip.AddrFrom4([4]byte{10, 200, 2, byte(e)}), Protocol: TCP, Port: 80}},
		})
	}
	return q
}

// addAliases draws by what a peer knows this cluster, and this cluster the peer, in one family: by prefixes, the
// peer's being the same or another one, or by single addresses where a pool has no room.
func (q *Peer) addAliases(t *rapid.T, own, another, here, there netip.Prefix, pod netip.Addr) {
	if rapid.IntRange(0, 2).Draw(t, "knows single addresses") == 0 {
		for range rapid.IntRange(0, 3).Draw(t, "known addresses") {
			q.Local = append(q.Local, Mapping{host(pod), host(here.Addr().Next())})
			pod, here = pod.Next(), netip.PrefixFrom(here.Addr().Next(), here.Bits())
		}
	} else {
		q.Local = append(q.Local, Mapping{own, here})
	}
	switch rapid.IntRange(0, 3).Draw(t, "is known by") {
	case 0:
		q.RemoteBlocks = append(q.RemoteBlocks, there)
	case 1:
		q.Remote = append(q.Remote, Mapping{another, there})
	default:
		q.Remote = append(q.Remote, Mapping{own, there})
	}
}

// leave removes a peer from a layout.
func leave(l Layout, q Peer) Layout {
	alias := func(p netip.Prefix) bool {
		return slices.ContainsFunc(q.Aliases(), p.Overlaps)
	}
	overlay := func(p netip.Prefix) bool {
		return overlayPrefix(q.ClusterID).Contains(p.Addr()) && slices.ContainsFunc(q.Gateways, func(g Gateway) bool { return host(GatewayOverlay(q, g)) == p })
	}
	l.Peers = slices.DeleteFunc(l.Peers, func(w WireGuardPeer) bool { return w.Cluster == q.ClusterID })
	for i := range l.Peers {
		l.Peers[i].AllowedIPs = slices.DeleteFunc(l.Peers[i].AllowedIPs, alias)
	}
	l.Routes = slices.DeleteFunc(l.Routes, func(r Route) bool { return alias(r.Prefix) || overlay(r.Prefix) })
	l.Translations = slices.DeleteFunc(l.Translations, func(t Translation) bool { return t.Cluster == q.ClusterID })
	l.Remote = slices.DeleteFunc(l.Remote, alias)
	l.Masquerades = slices.DeleteFunc(l.Masquerades, func(m Masquerade) bool { return m.Cluster == q.ClusterID })
	classes := map[Class]bool{}
	l.Inbound.Prefixes = slices.DeleteFunc(l.Inbound.Prefixes, func(p PrefixClass) bool {
		classes[p.Class] = classes[p.Class] || alias(p.Prefix)
		return alias(p.Prefix)
	})
	l.Inbound.Sources = slices.DeleteFunc(l.Inbound.Sources, func(s SourceClass) bool {
		classes[s.Class] = classes[s.Class] || alias(host(s.Source))
		return alias(host(s.Source))
	})
	l.Inbound.Open = slices.DeleteFunc(l.Inbound.Open, func(o Opening) bool { return classes[o.Class] })
	l.Names = slices.DeleteFunc(l.Names, func(n Names) bool { return n.Cluster == q.ClusterID })
	l.Problems = slices.DeleteFunc(l.Problems, func(p Problem) bool { return p.Peer == q.ClusterID })
	return l
}

// What a peer brings is its own: with it gone, and nothing else changed, the plan is the one that
// there was before it, wherever in the order it stood.
func TestAPeerThatGoesLeavesThePlanAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := dualHome(t)
		d.Pool = []netip.Prefix{pfx("10.16.0.0/12")}
		observed := Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.1.1")}, Carriers: map[string]Carrier{}}
		count := rapid.IntRange(1, 5).Draw(t, "others")
		for i := range count + 1 {
			q := drawPeer(t, i)
			d.Peers = append(d.Peers, q)
			if rapid.Bool().Draw(t, "elected") {
				observed.Carriers[q.ClusterID] = Carrier{Home: "gw", Peer: q.Gateways[len(q.Gateways)-1].Node, Claims: rapid.Bool().Draw(t, "claims")}
			}
		}
		with, err := Plan(d, observed)
		if err != nil {
			t.Fatal(err)
		}
		i := 1 + rapid.IntRange(0, count).Draw(t, "which goes") // the first is home's own
		gone := d.Peers[i]
		d.Peers = slices.Delete(slices.Clone(d.Peers), i, i+1)
		without, err := Plan(d, observed)
		if err != nil {
			t.Fatal(err)
		}
		// Open ports of a class are open to no source once no source has the class.
		if diff := cmp.Diff(leave(without, gone), leave(with, gone), compareAddrs(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s changed what is not its own (-without +with):\n%s", gone.ClusterID, diff)
		}
		if diff := cmp.Diff(without, leave(without, gone), compareAddrs(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s is gone, and left something:\n%s", gone.ClusterID, diff)
		}
	})
}

// Whatever a peer announces, however it contradicts itself or others, changes nothing for peers that
// were trusted before it.
func TestAnAnnouncementChangesNothingForOtherPeers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := dualHome(t)
		for i := range rapid.IntRange(0, 3).Draw(t, "others") {
			d.Peers = append(d.Peers, drawPeer(t, i))
		}
		without, err := Plan(d, Observed{})
		if err != nil {
			t.Fatal(err)
		}
		evil := drawPeer(t, 9)
		for i := range evil.Remote {
			if rapid.Bool().Draw(t, "another alias") {
				evil.Remote[i] = Mapping{Real: drawPrefix(t, "real", 8, 24), Alias: drawPrefix(t, "alias", 8, 24)}
			}
		}
		for i := range evil.Gateways {
			g := &evil.Gateways[i]
			// Keys of others are left out here: the cluster that proves a key has it.
			if rapid.Bool().Draw(t, "another overlay") {
				g.Overlay = rapid.SampledFrom(without.Peers).Draw(t, "of").Overlay
			}
			if rapid.Bool().Draw(t, "another endpoint") {
				g.Endpoints = []string{rapid.SampledFrom([]string{"", "x", "127.0.0.1:1", "10.21.0.1:51820", "[::]:0"}).Draw(t, "endpoint")}
			}
		}
		d.Peers = append(d.Peers, evil)
		with, err := Plan(d, Observed{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(with.Problems, func(p Problem) bool { return p.Peer == evil.ClusterID && strings.HasPrefix(p.Text, "left out") }) {
			evil = Peer{ClusterID: evil.ClusterID} // nothing is its own, whatever it claims
		}
		// An alias that is left out is not its own, either.
		others := func(a netip.Prefix) bool {
			return slices.ContainsFunc(slices.Concat(without.Remote, without.Home, d.Reserved), a.Overlaps)
		}
		evil.Remote = slices.DeleteFunc(evil.Remote, func(m Mapping) bool { return others(m.Alias) })
		evil.RemoteBlocks = slices.DeleteFunc(evil.RemoteBlocks, others)
		if diff := cmp.Diff(without, leave(with, evil), compareAddrs(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("it changed the plan for others (-without +with):\n%s", diff)
		}
	})
}
