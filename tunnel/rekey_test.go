package tunnel

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

func TestNextKeysShowThatTheyAreUsed(t *testing.T) {
	now := time.Unix(1e9, 0)
	const me, node = "me", "gw"
	overlay := plan.Overlay(me, node)
	k1, k2, k3 := plan.PublicKey{1}, plan.PublicKey{2}, plan.PublicKey{3}
	desired := func(key, next plan.PublicKey) plan.Desired {
		return plan.Desired{ClusterID: me, Nodes: []plan.Node{{Name: node, PublicKey: key, NextKey: next}}}
	}
	moved := func(key plan.PublicKey, ago time.Duration) map[netip.Addr]keyMove {
		return map[netip.Addr]keyMove{overlay: {key: key, at: now.Add(-ago)}}
	}
	shook := func(first, second time.Duration) []deviceKey {
		return []deviceKey{{key: k1, handshake: now.Add(-first)}, {key: k2, handshake: now.Add(-second)}}
	}
	const never = 1e9 * time.Second
	for name, tc := range map[string]struct {
		desired plan.Desired
		moves   map[netip.Addr]keyMove
		have    []deviceKey
		want    plan.PublicKey
		rests   bool
	}{
		"nothing was announced":                    {desired: desired(k1, k2)},
		"it was just followed":                     {desired: desired(k1, k2), moves: moved(k2, time.Second), have: shook(time.Minute, never), want: k2},
		"there was a handshake":                    {desired: desired(k1, k2), moves: moved(k2, time.Minute), have: shook(2*time.Minute, time.Second), want: k2},
		"there was no handshake":                   {desired: desired(k1, k2), moves: moved(k2, rekeyTrial), have: shook(time.Minute, never), rests: true},
		"there was a late handshake":               {desired: desired(k1, k2), have: shook(time.Minute, time.Second), want: k2},
		"the process began after it was followed":  {desired: desired(k1, k2), have: shook(2*time.Minute, time.Minute), want: k2},
		"the old key made a handshake after that":  {desired: desired(k1, k2), have: shook(time.Second, time.Minute)},
		"it is announced":                          {desired: desired(k2, plan.PublicKey{}), moves: moved(k2, time.Minute), have: shook(2*time.Minute, time.Second)},
		"it announces another next key after that": {desired: desired(k1, k3), moves: moved(k2, time.Second), have: shook(time.Minute, never)},
		"the node is gone":                         {desired: plan.Desired{ClusterID: me}, moves: moved(k2, time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRekeying()
			if tc.moves != nil {
				r.moves = tc.moves
			}
			got := r.inUse(now, tc.desired, tc.have)
			if got[overlay] != tc.want {
				t.Errorf("key %v is in use, want %v", got[overlay], tc.want)
			}
			if _, rests := r.rests[overlay]; rests != tc.rests {
				t.Errorf("rests is %v", rests)
			}
			if _, stays := r.moves[overlay]; stays != !tc.want.IsZero() {
				t.Errorf("moves are %v", r.moves)
			}
			if tag := r.follows(plan.WireGuardPeer{Overlay: overlay, NextKey: k2}); (tag == probe.KeyTag{}) != tc.rests {
				t.Errorf("it is followed to %v", tag)
			}
		})
	}
	r := newRekeying()
	r.rests[overlay] = now
	r.inUse(now, desired(k1, k2), nil)
	if len(r.rests) > 0 {
		t.Error("it rests for ever")
	}
}

// TestAnOverlayAddressOfAnotherClusterShowsNothing: a peer that announces the overlay address of another's node, or of
// a node of this cluster, for a node without a next key does not end that one's use of its next key.
func TestAnOverlayAddressOfAnotherClusterShowsNothing(t *testing.T) {
	now := time.Unix(1e9, 0)
	victim, home := plan.Overlay("away", "gw"), plan.Overlay("me", "worker")
	away := plan.Peer{ClusterID: "away", Gateways: []plan.Gateway{{Node: "gw", PublicKey: plan.PublicKey{1}, NextKey: plan.PublicKey{2}, Overlay: victim}}}
	stolen := []plan.Gateway{{Node: "a", PublicKey: plan.PublicKey{5}, Overlay: victim}, {Node: "b", PublicKey: plan.PublicKey{6}, Overlay: home}}
	for name, thief := range map[string]plan.Peer{
		"of its gateways": {ClusterID: "thief", Gateways: stolen}, "of its nodes": {ClusterID: "thief", Nodes: stolen},
	} {
		for _, peers := range [][]plan.Peer{{away, thief}, {thief, away}} {
			d := plan.Desired{ClusterID: "me", Nodes: []plan.Node{{Name: "worker", PublicKey: plan.PublicKey{3}, NextKey: plan.PublicKey{4}}}, Peers: peers}
			r := newRekeying()
			r.moves = map[netip.Addr]keyMove{victim: {key: plan.PublicKey{2}, at: now}, home: {key: plan.PublicKey{4}, at: now}}
			if got := r.inUse(now, d, nil); got[victim] != (plan.PublicKey{2}) || got[home] != (plan.PublicKey{4}) || len(r.moves) != 2 {
				t.Errorf("%s, after %s: in use are %v", name, peers[0].ClusterID, got)
			}
		}
	}
}

// TestAHandshakeCountsForTheClusterThatMadeIt: whatever else is announced, only a handshake with the preshared key
// of a peer shows that a node of that peer uses its next key.
func TestAHandshakeCountsForTheClusterThatMadeIt(t *testing.T) {
	now := time.Unix(1e9, 0)
	victim, thief := plan.Overlay("away", "gw"), plan.Overlay("thief", "own")
	k1, k2, k3 := plan.PublicKey{1}, plan.PublicKey{2}, plan.PublicKey{3}
	ours, theirs, later := plan.PresharedKey{7}, plan.PresharedKey{9}, plan.PresharedKey{8}
	away := plan.Peer{ClusterID: "away", PresharedKey: ours, Gateways: []plan.Gateway{{Node: "gw", PublicKey: k1, NextKey: k2, Overlay: victim}}}
	peer := func(g plan.Gateway) plan.Peer {
		return plan.Peer{ClusterID: "thief", PresharedKey: theirs, Gateways: []plan.Gateway{g}}
	}
	have := func(psk plan.PresharedKey, handshake time.Time) []deviceKey {
		return []deviceKey{{k1, ours, now.Add(-time.Minute)}, {k2, psk, handshake}, {k3, theirs, time.Time{}}}
	}
	for name, tc := range map[string]struct {
		thief  plan.Peer
		have   []deviceKey
		change func(*plan.Peer)
		want   map[netip.Addr]plan.PublicKey
	}{
		"another announces its next key": {
			thief: peer(plan.Gateway{Node: "own", PublicKey: k3, NextKey: k2}), have: have(ours, now), want: map[netip.Addr]plan.PublicKey{victim: k2},
		},
		"with the preshared key before": {
			have: have(ours, now), want: map[netip.Addr]plan.PublicKey{victim: k2},
			change: func(q *plan.Peer) { q.PresharedKey, q.Spare.Previous = later, ours },
		},
		"while its preshared key cannot be read": {
			have: have(ours, now), want: map[netip.Addr]plan.PublicKey{victim: k2},
			change: func(q *plan.Peer) { q.PresharedKey, q.KeyMissing = plan.PresharedKey{}, true },
		},
		"another made the handshake": {
			thief: peer(plan.Gateway{Node: "own", PublicKey: k3, NextKey: k2}), have: have(theirs, now), want: map[netip.Addr]plan.PublicKey{thief: k2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, first := range []bool{true, false} {
				q := away
				if tc.change != nil {
					tc.change(&q)
				}
				d := plan.Desired{ClusterID: "me", Peers: []plan.Peer{q, tc.thief}}
				if first {
					slices.Reverse(d.Peers)
				}
				r := newRekeying()
				if got := r.inUse(now, d, tc.have); !maps.Equal(got, tc.want) {
					t.Errorf("it comes first: %v: in use are %v, want %v", first, got, tc.want)
				}
			}
		})
	}
}

func TestANodeCallsOffUnlessOthersHaveFollowed(t *testing.T) {
	for late, want := range map[time.Duration]bool{0: false, rekeyLate: false, rekeyLate + 1: true, probe.RekeyMargin: false, time.Second / 2: false, rekeyTrial: true, time.Minute: true} {
		if callsOff(late) != want {
			t.Errorf("%v late: it calls off: %v", late, !want)
		}
	}
}

func TestPassesWaitForOtherNodesOnceASecond(t *testing.T) {
	now, r := time.Unix(1e9, 0), newRekeying()
	if end := r.soon(now); end != now.Add(rekeySoon) {
		t.Errorf("the first pass waits until %v", end)
	}
	r.paused = now
	if end := r.soon(now.Add(rekeyPaused - 1)); end.After(now.Add(rekeyPaused - 1)) {
		t.Errorf("the next one waits until %v", end)
	}
	if end := r.soon(now.Add(rekeyPaused)); end != now.Add(rekeyPaused+rekeySoon) {
		t.Errorf("a later one waits until %v", end)
	}
}

// Nodes that try at the same time and are in each other's way do not try again at the same time.
func TestNodesDoNotTryAgainTogether(t *testing.T) {
	pauses := map[time.Duration]bool{}
	for i := range 64 {
		pause := rekeyPause(plan.PublicKey{byte(i)}, i)
		if pause < rekeyAgain || pause > 2*rekeyAgain {
			t.Fatalf("a pause of %v", pause)
		}
		pauses[pause] = true
	}
	if len(pauses) < 8 {
		t.Errorf("%d different pauses", len(pauses))
	}
}

// If both sides begin a handshake in the same moment neither completes it, and WireGuard tries again
// after 5 s. What is sent waits meanwhile, and is lost.
func TestAHandshakeWithANextKeyIsBegunAgainSoon(t *testing.T) {
	now := time.Unix(1e9, 0)
	overlay := plan.Overlay("me", "gw")
	r := newRekeying()
	r.moves[overlay] = keyMove{key: plan.PublicKey{2}, at: now}
	var at []time.Duration
	for age := time.Duration(0); age < 2*rekeyTrial; age += 10 * time.Millisecond {
		if again, _ := r.unshaken(now.Add(age)); len(again) > 0 {
			at = append(at, age)
		}
	}
	if len(at) != 4 || at[0] != rekeyShake || at[3] != 8*rekeyShake {
		t.Errorf("begun again after %v", at)
	}
	r.moves[overlay] = keyMove{key: plan.PublicKey{2}, at: now, proven: true}
	if again, next := r.unshaken(now.Add(time.Second)); len(again) > 0 || next > 0 {
		t.Errorf("one that was completed: %v, next %v", again, next)
	}
}

func TestWhatAReplacementWaitsForSaysUntilWhenOthersMayNotFollow(t *testing.T) {
	r, at := newRekeying(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if got := r.mayRest(at); got != "" {
		t.Errorf("before any replacement: %q", got)
	}
	r.replaced = at
	const want = ": this node replaced its key at 12:00:00 UTC, and a node that completed no handshake by that key for 2s follows it to another one from 12:10:02 UTC on"
	if got := r.mayRest(at.Add(rekeyRest)); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := r.mayRest(at.Add(rekeyRest + rekeyTrial)); got != "" {
		t.Errorf("when none rests any longer: %q", got)
	}
}
