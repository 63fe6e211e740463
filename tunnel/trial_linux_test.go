package tunnel

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// TestGatewaysWithoutACommonKeyMeetByTheFirst has the cluster that leads begin again with the first key, as when its
// administrator connects the peer again, while the other one uses a later key that it alone has, and looks for one.
func TestGatewaysWithoutACommonKeyMeetByTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	leader, follower := r.node("a", 1, "11"), r.node("b", 1, "12")
	if clusterID(follower.cluster) < clusterID(leader.cluster) {
		leader, follower = follower, leader
	}
	first, lost, later := plan.PresharedKey{1}, plan.PresharedKey{2}, plan.PresharedKey{3}
	set := func(n, to *rigNode, key plan.PresharedKey, spare plan.SpareKeys) {
		peer := inBandPeer(to)
		peer.PresharedKey, peer.Spare = key, spare
		n.set(n.desired([]*rigNode{n}, peer))
	}
	set(leader, follower, first, plan.SpareKeys{Previous: lost, First: first})
	set(follower, leader, later, plan.SpareKeys{Number: 3})
	time.Sleep(5 * time.Second)
	for _, p := range leader.fabric.seen().Peers {
		if !p.LastHandshake.IsZero() {
			t.Fatal("two gateways without a common key have a session")
		}
	}
	set(follower, leader, later, plan.SpareKeys{Number: 3, First: first})
	began := time.Now()
	leader.up()
	follower.up()
	t.Logf("they met after %v", time.Since(began).Round(time.Second))
}
