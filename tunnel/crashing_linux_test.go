package tunnel

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// TestACrashingGatewayOfOnePeerCostsAnotherPeerNoPackets kills the tunnel process, the fabric and both of the only
// gateway of one peer again and again, and starts them again, under packets each pingEvery to another peer. With its
// fabric the gateway loses its key, so that it comes back as a stranger.
func TestACrashingGatewayOfOnePeerCostsAnotherPeerNoPackets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, well, ill := r.node("a", 1, "11"), r.node("b", 1, "12"), r.node("c", 1, "13")
	const aliasOfIll = "10.243.0.0/16"
	a.set(a.desired([]*rigNode{a}, peering(ill, aliasOfA, aliasOfIll, openTo(a.podAddr)), peering(well, aliasOfA, aliasOfB, openTo(a.podAddr))))
	back := func(n *rigNode, alias string) plan.Desired {
		return n.desired([]*rigNode{n}, peering(a, alias, aliasOfA, openTo(n.podAddr)))
	}
	well.set(back(well, aliasOfB))
	inIll := back(ill, aliasOfIll)
	ill.set(inIll)
	for _, n := range []*rigNode{a, well, ill} {
		n.up()
	}
	e := r.echoes(a.pod, remap(t, ill.podAddr, aliasOfIll)) // traffic that is lost, as of clients that try again
	defer e.stop()
	_, stop := r.pings(a.pod, remap(t, well.podAddr, aliasOfB))
	time.Sleep(time.Second)
	for i := range 12 {
		if i%3 != 0 {
			ill.fabric.kill()
		}
		if i%3 != 1 {
			ill.wireguard.kill()
		}
		time.Sleep(300 * time.Millisecond)
		if i%3 != 1 {
			ill.startWireGuard()
		}
		if i%3 != 0 {
			ill.startFabric()
			ill.set(inIll)
		}
		time.Sleep(time.Second)
	}
	sent, lost := stop()
	if lost, _ := e.since(time.Now().Add(-10 * time.Second)); lost == 0 {
		t.Error("the gateway that crashes lost nothing")
	}
	t.Logf("%d of %d packets to the other peer were lost", lost, sent)
	if sent < int64(4*time.Second/pingEvery) || lost > mayLose(sent) {
		t.Errorf("%d of %d packets to the other peer were lost", lost, sent)
	}
}
