package tunnel

import (
	"strings"
	"testing"
	"time"
)

// While the table of nftables is gone, a packet from a tunnel is for an alias that is not
// translated. The node's default route leads to the network between the clusters: without the rule
// for packets from the device, they are seen there.
func TestUntranslatedPacketsEndOnTheNode(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	a.set(a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, openTo(a.podAddr))))
	b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA)))
	a.up()
	b.up()
	to := remap(t, a.podAddr, aliasOfA)
	r.wantSeen("pod to pod", b.pod, "tcp", to, 8080, remap(t, b.podAddr, aliasOfB).String())

	a.fabric.kill() // or it mends the table
	r.in(a.ns, "nft delete table inet entente")
	clear := r.capture("inet")
	e := r.echoes(b.pod, to)
	defer e.stop()
	time.Sleep(time.Second)
	if seen := clear(); seen != "" {
		t.Errorf("seen in clear between the clusters: %.500q", seen)
	}
	r.in(a.ns, "ip rule del pref 142")
	clear = r.capture("inet")
	time.Sleep(time.Second)
	if seen := clear(); !strings.Contains(seen, to.String()) {
		t.Errorf("nothing for %v is seen without the rule, so nothing was shown: %.500q", to, seen)
	}
}
