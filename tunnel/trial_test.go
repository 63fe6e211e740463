package tunnel

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// wireGuardSide is one end of a WireGuard session, as far as preshared keys matter to it.
type wireGuardSide struct {
	peer   plan.WireGuardPeer
	leads  bool
	trials presharedTrials
	uses   plan.PresharedKey
}

func (w *wireGuardSide) pass(now, handshake time.Time) {
	peers := []plan.WireGuardPeer{w.peer}
	w.trials.choose(now, peers, []deviceKey{{key: w.peer.PublicKey, handshake: handshake}}, func(string) bool { return w.leads })
	w.uses = peers[0].PresharedKey
}

// TestSidesFindTheKeyThatTheOtherUses has both sides make a handshake each 120 s, and each 5 s
// after that until it succeeds, as WireGuard does. Whatever one side knows and the other uses, the
// session is renewed before it ends.
func TestSidesFindTheKeyThatTheOtherUses(t *testing.T) {
	k1, k2, k3 := plan.PresharedKey{1}, plan.PresharedKey{2}, plan.PresharedKey{3}
	for name, tc := range map[string]struct {
		leader, follower plan.PresharedKey // desired at first
		then             plan.PresharedKey // what the leader should use later
		spare            plan.SpareKeys    // of the follower
	}{
		"both changed": {leader: k1, follower: k1, then: k2, spare: plan.SpareKeys{Next: k2}},
		"the leader changed and the other follows": {leader: k2, follower: k1, then: k2, spare: plan.SpareKeys{Next: k2}},
		"the follower changed alone":               {leader: k1, follower: k2, then: k1, spare: plan.SpareKeys{Previous: k1}},
		"the leader is one behind, of three":       {leader: k1, follower: k2, then: k1, spare: plan.SpareKeys{Next: k3, Previous: k1}},
		"and then goes on":                         {leader: k2, follower: k2, then: k3, spare: plan.SpareKeys{Next: k3, Previous: k1}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Unix(1e9, 0)
			handshake := began
			leader := &wireGuardSide{leads: true, trials: presharedTrials{}, peer: plan.WireGuardPeer{PublicKey: plan.PublicKey{1}, PresharedKey: tc.leader}}
			follower := &wireGuardSide{trials: presharedTrials{}, peer: plan.WireGuardPeer{PublicKey: plan.PublicKey{2}, PresharedKey: tc.follower, Spare: tc.spare}}
			renewed := 0
			for second := range 1000 {
				now := began.Add(time.Duration(second) * time.Second)
				if second == 300 {
					leader.peer.PresharedKey = tc.then
				}
				leader.pass(now, handshake)
				follower.pass(now, handshake)
				age := now.Sub(handshake)
				if age >= 120*time.Second && second%5 == 0 && leader.uses == follower.uses {
					handshake, age = now, 0
					renewed++
				}
				if age > userspace.SessionLife-15*time.Second {
					t.Fatalf("after %d s the session is %v old", second, age)
				}
			}
			if renewed < 5 {
				t.Errorf("%d handshakes", renewed)
			}
		})
	}
}

// TestSidesThatLostTheirKeysMeetByTheFirst has both sides look for a key while the tunnel is down, having begun at
// different times: they meet within two and a half minutes, keep the key that works as long as they look, and then use the one
// that they agreed on by it.
func TestSidesThatLostTheirKeysMeetByTheFirst(t *testing.T) {
	first, k1, k2, k3, k4 := plan.PresharedKey{9}, plan.PresharedKey{1}, plan.PresharedKey{2}, plan.PresharedKey{3}, plan.PresharedKey{4}
	for name, tc := range map[string]struct {
		leader, follower           plan.PresharedKey
		leaderSpare, followerSpare plan.SpareKeys
	}{
		"the follower begins again":                     {k1, first, plan.SpareKeys{}, plan.SpareKeys{}},
		"the leader begins again":                       {first, k1, plan.SpareKeys{}, plan.SpareKeys{}},
		"one is behind":                                 {k1, k2, plan.SpareKeys{}, plan.SpareKeys{}},
		"both know the most keys, and none in common":   {k1, k3, plan.SpareKeys{Next: k2}, plan.SpareKeys{Next: k4, Previous: plan.PresharedKey{5}}},
		"an administrator of the leader connects again": {first, k1, plan.SpareKeys{Previous: k2}, plan.SpareKeys{}},
	} {
		t.Run(name, func(t *testing.T) {
			worst := 0
			for late := range 60 {
				began := time.Unix(1e9, 0)
				leader := &wireGuardSide{leads: true, trials: presharedTrials{}, peer: plan.WireGuardPeer{PublicKey: plan.PublicKey{1}, PresharedKey: tc.leader, Spare: tc.leaderSpare}}
				follower := &wireGuardSide{trials: presharedTrials{}, peer: plan.WireGuardPeer{PublicKey: plan.PublicKey{2}, PresharedKey: tc.follower, Spare: tc.followerSpare}}
				leader.peer.Spare.First = first
				var handshake time.Time
				met := 0
				for second := range 1500 {
					now := began.Add(time.Duration(second) * time.Second)
					if second == late {
						follower.peer.Spare.First = first
					}
					if second == 1000 { // they agreed
						leader.peer.PresharedKey, leader.peer.Spare = k4, plan.SpareKeys{Previous: tc.leader}
						follower.peer.PresharedKey, follower.peer.Spare = k4, plan.SpareKeys{Previous: tc.follower}
					}
					leader.pass(now, handshake)
					follower.pass(now, handshake)
					if now.Sub(handshake) >= 120*time.Second && second%5 == 0 && leader.uses == follower.uses {
						handshake, met = now, met+1
						worst = max(worst, map[int]int{1: second - late}[met])
					}
					if met > 0 && now.Sub(handshake) > 125*time.Second {
						t.Fatalf("late by %d s: after %d s the session is %v old", late, second, now.Sub(handshake))
					}
				}
				if met < 10 || leader.uses != k4 || follower.uses != k4 {
					t.Fatalf("late by %d s: %d handshakes", late, met)
				}
			}
			if worst > 150 {
				t.Errorf("they met after %d s", worst)
			}
		})
	}
}

func TestOnlyTheFollowerTriesKeysAndOnlyWhenHandshakesFail(t *testing.T) {
	now := time.Unix(1e9, 0)
	k1, k2 := plan.PresharedKey{1}, plan.PresharedKey{2}
	for name, tc := range map[string]struct {
		leads     bool
		missing   bool
		spare     plan.SpareKeys
		handshake time.Duration // its age
		want      plan.PresharedKey
	}{
		"handshakes succeed":       {spare: plan.SpareKeys{Next: k2}, handshake: time.Minute, want: k1},
		"they fail":                {spare: plan.SpareKeys{Next: k2}, handshake: keyLate, want: k2},
		"they fail at the leader":  {leads: true, spare: plan.SpareKeys{Next: k2}, handshake: keyLate, want: k1},
		"no other key is known":    {handshake: time.Hour, want: k1},
		"the key cannot be read":   {missing: true, spare: plan.SpareKeys{Next: k2}, handshake: time.Hour, want: k1},
		"there was no handshake":   {spare: plan.SpareKeys{Previous: k2}, handshake: 1e9 * time.Second, want: k2},
		"the key before was in it": {spare: plan.SpareKeys{Previous: k2}, handshake: 150 * time.Second, want: k2},
	} {
		w := &wireGuardSide{leads: tc.leads, trials: presharedTrials{}, peer: plan.WireGuardPeer{PresharedKey: k1, KeyMissing: tc.missing, Spare: tc.spare}}
		w.pass(now.Add(-keyTry), now.Add(-tc.handshake))
		w.pass(now, now.Add(-tc.handshake))
		if w.uses != tc.want {
			t.Errorf("%s: key %d is used, want %d", name, [32]byte(w.uses)[0], [32]byte(tc.want)[0])
		}
	}
	// The key that was found stays, and the next desired one is used at once.
	w := &wireGuardSide{trials: presharedTrials{}, peer: plan.WireGuardPeer{PresharedKey: k1, Spare: plan.SpareKeys{Next: k2}}}
	w.pass(now, now.Add(-keyLate))
	w.pass(now.Add(keyTry), now.Add(-keyLate))
	w.pass(now.Add(time.Hour), now.Add(time.Hour))
	if w.uses != k2 {
		t.Error("the key that worked is not used any more")
	}
	w.peer.PresharedKey, w.peer.Spare = k2, plan.SpareKeys{Previous: k1}
	w.pass(now.Add(time.Hour), now.Add(time.Hour))
	if w.uses != k2 {
		t.Error("the desired key is not")
	}
	// A peer that is down is not tried with another key each few seconds for ever.
	tries, last := 0, w.uses
	for s := range 3600 {
		w.pass(now.Add(2*time.Hour+time.Duration(s)*time.Second), now)
		if w.uses != last {
			tries, last = tries+1, w.uses
		}
	}
	if tries > 25 || tries < 5 {
		t.Errorf("%d tries in an hour", tries)
	}
}
