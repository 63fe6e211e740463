package tunnel

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"github.com/entente-dev/entente/tunnel/plan"
)

func overlayAt(n *rigNode) netip.Addr { return plan.Overlay(clusterID(n.cluster), n.name) }

// inBand is the desired state for a peer without a contract.
func inBandPeer(to *rigNode) plan.Peer {
	return plan.Peer{ClusterID: clusterID(to.cluster), PresharedKey: plan.PresharedKey{1, 2, 3}, Gateways: []plan.Gateway{to.gateway()}, InBand: true}
}

// serve has a server of the test's listen on all addresses of a node.
func (n *rigNode) serve(port int) {
	n.r.t.Helper()
	p := n.r.start(n.ns, "server", []string{"TUNNEL_TEST_PORT=" + strconv.Itoa(port)})
	n.r.t.Cleanup(p.kill)
}

func TestATunnelWithoutPrefixesCarriesThePeerAPIAndNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b, c := r.node("a", 1, "11"), r.node("b", 1, "12"), r.node("c", 1, "13")
	const other = 7447
	for _, n := range []*rigNode{a, b} {
		n.serve(RelayPort)
		n.serve(other)
	}
	wantA := a.desired([]*rigNode{a}, inBandPeer(b), peering(c, "10.241.0.0/16", "10.243.0.0/16"))
	wantA.Relay = plan.Relay{Listen: []netip.Addr{a.underlay}, From: []netip.Addr{a.podAddr, a.underlay}}
	a.set(wantA)
	wantB := b.desired([]*rigNode{b}, inBandPeer(a))
	wantB.Nodes[0].PodCIDRs = append(wantB.Nodes[0].PodCIDRs, netip.MustParsePrefix("fd77:1::/64"))
	b.set(wantB)
	c.set(c.desired([]*rigNode{c}, peering(a, "10.243.0.0/16", "10.241.0.0/16")))
	a.up()
	b.up()
	c.up()

	r.wantSeen("from gateway to gateway", b.ns, "tcp", overlayAt(a), RelayPort, overlayAt(b).String())
	r.wantSeen("and back", a.ns, "tcp", overlayAt(b), RelayPort, overlayAt(a).String())
	r.wantClosed("another port", b.ns, "tcp", overlayAt(a), other)
	r.wantClosed("the port over UDP", b.ns, "udp", overlayAt(a), RelayPort)
	r.wantClosed("a peer that is not in-band", c.ns, "tcp", overlayAt(a), RelayPort)

	// The network plugin gives pods the node's address on the way out.
	r.in(b.ns, "nft add table ip6 cni && nft 'add chain ip6 cni post { type nat hook postrouting priority 100; }' && nft 'add rule ip6 cni post counter masquerade'")
	r.wantClosed("a pod of the peer", b.pod, "tcp", overlayAt(a), RelayPort)
	r.in(b.ns, "nft delete table ip6 cni")

	// What the cipher does not vouch for.
	r.in(b.ns, fmt.Sprintf("ip -6 addr add %v/128 dev lo", overlayAt(c)))
	if seen, err := r.askFrom(b.ns, overlayAt(c), "tcp", overlayAt(a), RelayPort); err == nil {
		t.Errorf("a peer's gateway with another's address is seen as %s", seen)
	}

	r.wantSeen("this cluster's agent", a.pod, "tcp", a.underlay, RelayPort, a.podAddr.String())
	r.wantClosed("another machine on the network", "inet", "tcp", a.underlay, RelayPort)
	r.wantClosed("a peer's node on the network", b.ns, "tcp", a.underlay, RelayPort)
	r.wantSeen("another port of the node is not the fabric's", "inet", "tcp", a.underlay, other, "172.31.0.1")

	// Once it is not in-band any more, its gateways reach nothing.
	a.set(a.desired([]*rigNode{a}, func() plan.Peer { p := inBandPeer(b); p.InBand = false; return p }()))
	r.eventually("the relay is closed to the peer", func() error {
		if seen, err := r.ask(b.ns, "tcp", overlayAt(a), RelayPort); err == nil {
			return fmt.Errorf("reached, seen as %s", seen)
		}
		return nil
	})
}
