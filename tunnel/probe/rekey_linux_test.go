package probe

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

func TestRekeyFollowsOnlyKnownNodesAtLimitedRate(t *testing.T) {
	now := time.Unix(1e9, 0)
	known, stranger := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	key := KeyTagOf(plan.PublicKey{1})
	called := 0
	p := New("d", 1, func() {}, func() {}, func(time.Time) { called++ })
	p.Set(netip.Addr{}, 0, []Target{{Overlay: known, NextKey: key}}, nil)
	ask := rekey{kind: rekeyAsk, in: 300 * time.Millisecond, key: key}
	p.receiveRekey(stranger, ask, now)
	p.receiveRekey(known, rekey{kind: rekeyAsk, in: time.Second, key: KeyTag{9}}, now)
	if due, next := p.Due(now.Add(time.Hour)); len(due) > 0 || !next.IsZero() || called > 0 {
		t.Errorf("followed: %v, next at %v", due, next)
	}
	p.receiveRekey(known, ask, now)
	if due, next := p.Due(now); len(due) > 0 || next != now.Add(ask.in+RekeyMargin) || called != 1 {
		t.Errorf("due now: %v, next at %v", due, next)
	}
	if by, ok := p.BeginReplacing(now, false); ok || by != known {
		t.Errorf("it replaces its own key while it is about to follow another node, %v", by)
	}
	if _, ok := p.BeginReplacing(now, true); !ok {
		t.Error("it does not replace its own key regardless of that")
	}
	p.EndReplacing()
	// More messages with the same time change nothing.
	for i := range 10_000 {
		p.receiveRekey(known, rekey{kind: rekeyAsk, in: 300*time.Millisecond - time.Duration(i%300)*time.Millisecond, key: key}, now)
	}
	if called > rekeysPerSecond {
		t.Errorf("10,000 messages did something %d times", called)
	}
	if due, _ := p.Due(now.Add(time.Second)); len(due) != 1 || due[0] != known {
		t.Errorf("due: %v", due)
	}
	if due, next := p.Due(now.Add(time.Hour)); len(due) > 0 || !next.IsZero() {
		t.Errorf("and once more: %v, %v", due, next)
	}
	now = now.Add(time.Minute)
	p.receiveRekey(known, ask, now)
	p.receiveRekey(known, rekey{kind: rekeyOff, key: key}, now)
	p.receiveRekey(known, ask, now) // it was on its way for longer
	if due, next := p.Due(now.Add(time.Hour)); len(due) > 0 || !next.IsZero() {
		t.Errorf("after it called that off: %v, %v", due, next)
	}
	now = now.Add(rekeyOffPause)
	p.receiveRekey(known, ask, now)
	if _, next := p.Due(now); next.IsZero() {
		t.Error("it is not followed when it tries again")
	}
	p.receiveRekey(known, rekey{kind: rekeyOff, key: key}, now)
	if by, ok := p.BeginReplacing(now, false); !ok {
		t.Errorf("it cannot replace its own key, because of %v", by)
	}
	p.receiveRekey(known, ask, now)
	if due, _ := p.Due(now.Add(time.Hour)); len(due) > 0 {
		t.Errorf("while it replaces its own: %v", due)
	}
}

// A node that announces its next key again and again, and never uses it, does not keep others from replacing
// theirs; neither do many such nodes together.
func TestAnnouncementsDoNotKeepANodeFromReplacingItsKey(t *testing.T) {
	for nodes, most := range map[int]time.Duration{1: 10 * time.Second, 64: rekeyPatience + 10*time.Second} {
		now := time.Unix(1e9, 0)
		p := New("d", 1, func() {}, func() {}, func(time.Time) {})
		var targets []Target
		for i := range nodes {
			targets = append(targets, Target{Overlay: netip.AddrFrom16([16]byte{0xfd, 15: byte(i)}), NextKey: KeyTag{1, byte(i)}})
		}
		p.Set(netip.Addr{}, 0, targets, nil)
		asked := make([]time.Time, nodes)
		can := time.Duration(-1)
		for age := time.Duration(0); age < most && can < 0; age += 50 * time.Millisecond {
			at := now.Add(age)
			for i, to := range targets {
				if age < time.Duration(i)*50*time.Millisecond {
					continue // they begin one after the other
				}
				if at.Sub(asked[i]) >= 1500*time.Millisecond {
					p.receiveRekey(to.Overlay, rekey{kind: rekeyOff, key: to.NextKey}, at)
					asked[i] = at
				}
				p.receiveRekey(to.Overlay, rekey{kind: rekeyAsk, in: rekeyMost, key: to.NextKey}, at)
			}
			if due, _ := p.Due(at); len(due) > 0 {
				t.Fatalf("%d nodes: %v are followed", nodes, due)
			}
			if age%(2350*time.Millisecond) == 0 && age > 0 {
				if by, ok := p.BeginReplacing(at, false); ok {
					can = age
				} else if !by.IsValid() {
					t.Fatal("it waits for no node")
				}
			}
		}
		if can < 0 {
			t.Errorf("%d nodes kept it from replacing its key for %v", nodes, most)
		}
		t.Logf("%d nodes kept it from replacing its key for %v", nodes, can)
	}
}

// The patience counts for one replacement: much later, it begins again.
func TestPatienceWithOtherNodesBeginsAgain(t *testing.T) {
	now := time.Unix(1e9, 0)
	known, key := netip.MustParseAddr("fd00::1"), KeyTagOf(plan.PublicKey{1})
	p := New("d", 1, func() {}, func() {}, func(time.Time) {})
	p.Set(netip.Addr{}, 0, []Target{{Overlay: known, NextKey: key}}, nil)
	for _, at := range []time.Time{now, now.Add(2 * rekeyPatience)} {
		p.receiveRekey(known, rekey{kind: rekeyAsk, in: time.Second, key: key}, at)
		if _, ok := p.BeginReplacing(at, false); ok {
			t.Errorf("it does not wait at %v", at)
		}
		p.Due(at.Add(time.Minute))
	}
}

// Two nodes that announce the same next key are followed one after the other: one of them may not have it, and the
// other one must not be promised what this node cannot do then.
func TestOnlyOneNodeIsFollowedToAKeyAtATime(t *testing.T) {
	now := time.Unix(1e9, 0)
	honest, other, third := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3")
	key := KeyTagOf(plan.PublicKey{1})
	p := New("d", 1, func() {}, func() {}, func(time.Time) {})
	targets := []Target{{Overlay: honest, NextKey: key}, {Overlay: other, NextKey: key}, {Overlay: third, NextKey: KeyTag{9}}}
	p.Set(netip.Addr{}, 0, targets, nil)
	ask := func(from netip.Addr, key KeyTag) {
		p.receiveRekey(from, rekey{kind: rekeyAsk, in: 300 * time.Millisecond, key: key}, now)
	}
	ask(honest, key)
	ask(other, key)
	ask(third, KeyTag{9})
	now = now.Add(time.Second)
	if due, _ := p.Due(now); !slices.Equal(due, []netip.Addr{honest, third}) {
		t.Errorf("followed are %v", due)
	}
	ask(other, key) // the device is being changed
	if due, _ := p.Due(now.Add(time.Second)); len(due) > 0 {
		t.Errorf("after it was followed, and before it shows: %v", due)
	}
	p.Set(netip.Addr{}, 0, targets, nil) // it did not use the key
	ask(other, key)
	if due, _ := p.Due(now.Add(time.Second)); !slices.Equal(due, []netip.Addr{other}) {
		t.Errorf("followed later are %v", due)
	}
}

func TestNodesAreReadyThatConfirmedLately(t *testing.T) {
	now := time.Unix(1e9, 0)
	a, b, down := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3")
	key := KeyTagOf(plan.PublicKey{1})
	p := New("d", 1, func() {}, func() {}, func(time.Time) {})
	p.Set(netip.Addr{}, 0, []Target{{Overlay: a}, {Overlay: b}, {Overlay: down}}, nil)
	p.tracked[a].State, p.tracked[b].State = PathUp, PathUp
	p.Ask(key, 0)
	p.receiveRekey(a, rekey{kind: rekeyFollow, key: key}, now)
	p.receiveRekey(b, rekey{kind: rekeyFollow, key: KeyTag{9}}, now)
	if got := p.Unready(key, now); len(got) != 1 || got[0] != b {
		t.Errorf("unready: %v, want %v", got, b)
	}
	if got := p.Unready(key, now.Add(time.Second)); len(got) != 2 {
		t.Errorf("unready a second later: %v", got)
	}
}
