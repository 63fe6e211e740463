package probe

import (
	"net/netip"
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
	if p.SetBusy(true) {
		t.Error("it replaces its own key while it is about to follow another node")
	}
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
	if due, next := p.Due(now.Add(time.Hour)); len(due) > 0 || !next.IsZero() {
		t.Errorf("after it called that off: %v, %v", due, next)
	}
	if !p.SetBusy(true) {
		t.Error("it cannot replace its own key")
	}
	p.receiveRekey(known, ask, now)
	if due, _ := p.Due(now.Add(time.Hour)); len(due) > 0 {
		t.Errorf("while it replaces its own: %v", due)
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
