package tunnel

import (
	"fmt"
	"testing"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// The key of a node changes, and its tunnel process may be restarted: the totals only grow.
func TestRefusedPacketsAddUpByCluster(t *testing.T) {
	t.Parallel()
	one, two, next := plan.PublicKey{1}, plan.PublicKey{2}, plan.PublicKey{3}
	peers := []plan.WireGuardPeer{{PublicKey: one, Cluster: "b", Remote: true}, {PublicKey: two, Cluster: "b", Remote: true}, {PublicKey: next, Cluster: "own"}}
	var c cipherDrops
	for _, step := range []struct {
		what   string
		report map[plan.PublicKey]uint64
		peers  []plan.WireGuardPeer
		want   map[string]uint64
	}{
		{"the first report", map[plan.PublicKey]uint64{one: 5, two: 1}, peers, map[string]uint64{"b": 6}},
		{"the same", map[plan.PublicKey]uint64{one: 5, two: 1}, peers, map[string]uint64{"b": 6}},
		{"a key is gone", map[plan.PublicKey]uint64{two: 2}, peers[1:], map[string]uint64{"b": 7}},
		{"a process begins", map[plan.PublicKey]uint64{two: 1}, peers[1:], map[string]uint64{"b": 8}},
		{"an own node", map[plan.PublicKey]uint64{two: 1, next: 4}, peers[1:], map[string]uint64{"b": 8, "": 4}},
		{"one that is not planned yet", map[plan.PublicKey]uint64{two: 1, next: 4, {9}: 3}, peers[1:], map[string]uint64{"b": 8, "": 4}},
		{"the peer is gone", nil, peers[2:], map[string]uint64{"": 4}},
	} {
		c.observe(step.report, step.peers)
		totals := firewall.Totals{Dropped: map[firewall.Drop]firewall.Count{}}
		c.add(totals)
		got := map[string]uint64{}
		for d, n := range totals.Dropped {
			if d.Reason != firewall.Cipher {
				t.Errorf("reason %q", d.Reason)
			}
			got[d.Peer] = n.Packets
		}
		if fmt.Sprint(got) != fmt.Sprint(step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}
