package tunnel

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/probe"
)

// detourWithin is how long nothing may pass when a way that worked is blocked and there is another.
const detourWithin = 9 * time.Second

// nowhere is where no flow goes to.
const nowhere = "203.0.113.1"

// blockUDP drops UDP from and to a node, except flows to an address.
func (n *rigNode) blockUDP(but string) {
	n.r.t.Helper()
	n.r.in(n.ns, fmt.Sprintf(`set -e
nft add table ip cut
nft 'add chain ip cut in { type filter hook input priority 0; }'
nft 'add chain ip cut out { type filter hook output priority 0; }'
nft add rule ip cut in meta l4proto udp ct original ip daddr != %[1]s drop
nft add rule ip cut out meta l4proto udp ct original ip daddr != %[1]s drop`, but))
}

func (n *rigNode) unblockUDP() {
	n.r.t.Helper()
	n.r.in(n.ns, "nft delete table ip cut")
}

// at is where a node reports its only peer, if the path is up.
func (n *rigNode) at() (netip.AddrPort, Way, error) {
	s := n.fabric.seen()
	if len(s.Peers) != 1 || s.Peers[0].State != probe.PathUp {
		return netip.AddrPort{}, "", fmt.Errorf("%s: %+v", n.name, s.Peers)
	}
	return s.Peers[0].Endpoint, s.Peers[0].Way, nil
}

// flow reports whether echoes have come back lately.
func (e *echoes) flow() error {
	if lost, gap := e.since(time.Now().Add(-500 * time.Millisecond)); lost > 0 || gap == 0 {
		return fmt.Errorf("%d were lost in the last half second", lost)
	}
	return nil
}

// written is how often a fabric has changed its device.
func (n *rigNode) written() int { return strings.Count(n.fabric.log(), `what="WireGuard peers"`) }

// pairOf are two clusters of a node each, of which the first knows the second at some more addresses.
func pairOf(r *rig, more ...string) (a, b *rigNode) {
	r.t.Helper()
	a, b = r.node("a", 1, "11"), r.node("b", 2, "12")
	to := peering(b, "10.241.0.0/16", "10.242.0.0/16")
	for _, m := range more {
		to.Gateways[0].Endpoints = append(to.Gateways[0].Endpoints, m+":51820")
	}
	a.set(a.desired([]*rigNode{a}, to))
	b.set(b.desired([]*rigNode{b}, peering(a, "10.242.0.0/16", "10.241.0.0/16", openTo(b.podAddr))))
	a.up()
	b.up()
	return a, b
}

func TestABlockedWayIsLeftForAnotherEndpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const door = "172.31.0.112" // of a router of b
	a, b := pairOf(r, door)
	r.in(b.ns, "set -e; ip addr add "+door+"/24 dev eth0; nft add table ip door; nft 'add chain ip door pre { type nat hook prerouting priority dstnat; }'; nft add rule ip door pre ip daddr "+door+" dnat to "+b.underlay.String())
	stream := r.echoes(a.pod, remap(t, b.podAddr, "10.242.0.0/16"))
	defer stream.stop()
	time.Sleep(2 * time.Second)
	began := time.Now()
	b.blockUDP(door)
	r.eventually("the other endpoint is in use", func() error {
		at, _, err := a.at()
		if err == nil && at.Addr().String() != door {
			err = fmt.Errorf("it is at %v", at)
		}
		return err
	})
	r.eventually("packets pass", stream.flow)
	lost, gap := stream.since(began)
	t.Logf("UDP to one of two endpoints blocked: nothing passed for %v, lost %d", gap, lost)
	if gap > detourWithin {
		t.Errorf("nothing passed for %v, want %v", gap, detourWithin)
	}
}

// What comes back by itself comes back where it was.
func TestAPeerThatComesBackIsWhereItWas(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := pairOf(r, "172.31.0.99") // which no node has
	was, _, err := a.at()
	if err != nil {
		t.Fatal(err)
	}
	stream := r.echoes(a.pod, remap(t, b.podAddr, "10.242.0.0/16"))
	defer stream.stop()
	again := func() {
		b.startFabric()
		b.set(b.desired([]*rigNode{b}, peering(a, "10.242.0.0/16", "10.241.0.0/16", openTo(b.podAddr))))
	}
	for _, fault := range []struct {
		what       string
		harm, heal func()
		lasts      time.Duration
		// within is how soon packets pass after it ended.
		within time.Duration
		// untouched says that nothing is written.
		untouched bool
	}{
		{"the way is blocked for a second", func() { b.blockUDP(nowhere) }, b.unblockUDP, time.Second, 3 * time.Second, true},
		{"the way is blocked for 6 s", func() { b.blockUDP(nowhere) }, b.unblockUDP, 6 * time.Second, 4 * time.Second, false},
		{"the fabric is killed", b.fabric.kill, again, 20 * time.Second, time.Second, true},
		{"the tunnel process is killed", b.wireguard.kill, b.startWireGuard, 3 * time.Second, 15 * time.Second, false},
	} {
		t.Run(fault.what, func(t *testing.T) {
			r.t = t
			r.eventually("packets pass", stream.flow)
			time.Sleep(2 * time.Second)
			before := a.written()
			fault.harm()
			time.Sleep(fault.lasts)
			during := a.written() - before
			ended := time.Now()
			fault.heal()
			r.eventually("packets pass", stream.flow)
			passes := time.Since(ended)
			a.up()
			b.up()
			_, gap := stream.since(ended)
			t.Logf("it wrote %d times while it lasted; after it ended nothing passed for %v", during, gap)
			if gap > fault.within {
				t.Errorf("packets passed %v after it ended, want %v", passes, fault.within)
			}
			if now, _, err := a.at(); err != nil || now != was {
				t.Errorf("it is at %v, was at %v: %v", now, was, err)
			}
			if fault.untouched && during > 0 {
				t.Errorf("it wrote %d times though the peer is there:\n%s", during, a.fabric.log())
			}
		})
	}
}

// A peer behind NAT is at the address where it was seen, which is not announced.
func TestAPeerThatRoamedIsNotLostWhenItsPathBreaks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 2, "12")
	public := b.behind(symmetric, 2)
	to := peering(b, "10.241.0.0/16", "10.242.0.0/16")
	to.Gateways[0].Endpoints = []string{"172.31.0.98:51820", "172.31.0.99:51820"} // which no node has
	a.set(a.desired([]*rigNode{a}, to))
	b.set(b.desired([]*rigNode{b}, peering(a, "10.242.0.0/16", "10.241.0.0/16", openTo(b.podAddr))))
	a.up()
	b.up()
	was, _, err := a.at()
	if err != nil || was.Addr() != public {
		t.Fatalf("it is at %v, want it at %v: %v", was, public, err)
	}
	before := a.written()
	a.blockUDP(nowhere)
	time.Sleep(7 * time.Second)
	t.Logf("it was tried elsewhere, %d times written", a.written()-before)
	if s := a.fabric.seen(); s.Peers[0].Endpoint != was || s.Peers[0].State != probe.PathDown {
		t.Errorf("reported %+v, want it down at %v", s.Peers[0], was)
	}
	ended := time.Now()
	a.unblockUDP()
	r.eventually("its path is up", func() error { _, _, err := a.at(); return err })
	took := time.Since(ended)
	if now, _, _ := a.at(); now != was {
		t.Errorf("it is at %v, was at %v", now, was)
	}
	t.Logf("up after %v", took)
	if took > 5*time.Second {
		t.Errorf("it was up %v after its path was whole again", took)
	}
}
