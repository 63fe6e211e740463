package tunnel

import (
	"net/netip"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

func TestOnlyAHandshakeProvesAKey(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	peers := []plan.Peer{{ClusterID: "away", PresharedKey: plan.PresharedKey{7}}, {ClusterID: "thief", PresharedKey: plan.PresharedKey{9}}}
	wants := func(cluster string) []plan.WireGuardPeer {
		return []plan.WireGuardPeer{{PublicKey: plan.PublicKey{3}, Cluster: cluster, AllowedIPs: []netip.Prefix{}}}
	}
	have := func(psk byte, handshake time.Time) []deviceKey {
		return []deviceKey{{plan.PublicKey{3}, plan.PresharedKey{psk}, handshake}}
	}
	k := keyProofs{}
	k.observe(now, nil, peers)
	k.planned(now, wants("thief"))
	k.observe(now.Add(time.Second), have(9, time.Time{}), peers)
	if got := k.proven(); len(got) > 0 {
		t.Errorf("without a handshake it is proven by %v", got)
	}
	k.planned(now.Add(30*time.Second), wants("away"))
	k.observe(now.Add(35*time.Second), have(7, now.Add(33*time.Second)), peers)
	if got := k.proven()[plan.PublicKey{3}]; got != "away" {
		t.Errorf("after a handshake it is proven by %q", got)
	}
	// The owner ends its peering, and the other has the key: the handshake was not its.
	k.planned(now.Add(60*time.Second), wants("thief"))
	k.observe(now.Add(61*time.Second), have(9, now.Add(33*time.Second)), peers)
	if got := k.proven(); len(got) > 0 {
		t.Errorf("by another's handshake it is proven by %v", got)
	}
	k.planned(now.Add(62*time.Second), nil)
	if len(k) > 0 {
		t.Error("keys that no peer announces are remembered")
	}
	// Another process finds the keys in the device.
	k = keyProofs{}
	k.observe(now, have(7, now.Add(-time.Minute)), peers)
	if got := k.proven()[plan.PublicKey{3}]; got != "away" {
		t.Errorf("a session that lives is proven by %q", got)
	}
	k = keyProofs{}
	k.observe(now, have(9, now.Add(-time.Hour)), peers)
	if got := k.proven(); len(got) > 0 {
		t.Errorf("an hour after its last handshake it is proven by %v", got)
	}
}
