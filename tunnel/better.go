package tunnel

import (
	"net/netip"
	"slices"
	"time"
)

// better decides when better ways to a peer are tried that is reached through the agents.
//
// WireGuard sends to one endpoint at a time, so a trial is that for betterWindow packets go to
// another one. If they arrive, the peer's WireGuard follows, and ours follows it: nothing is lost.
// If not, what was sent in that moment is, so trials are rare and, but for the first one, wait for
// moments without traffic. Two translations of addresses let packets in only where packets went out before, so
// each side tells the other when it tries, and both do.
type better struct {
	// candidates are those that were known last, due is when they are tried next, tried when they
	// were last, pause that after the next trial.
	candidates []netip.AddrPort
	due, tried time.Time
	pause      time.Duration
	// busy is how many more trials these candidates get although there is traffic: on a machine that
	// is late, one may miss a way that works.
	busy int
}

// next is what follows for a peer that is reached through the agents: whether to try the candidates
// now. asked is when the peer last said that it tries; busy says that there is traffic.
func (b *better) next(now, asked time.Time, busy bool, candidates []netip.AddrPort) bool {
	switch {
	case b.due.IsZero():
		b.due, b.pause, b.busy = now.Add(betterFirst), betterMin, betterNew
	case !slices.Equal(candidates, b.candidates):
		b.due, b.pause = earlier(b.due, later(now.Add(betterFirst), b.tried.Add(betterMin))), betterMin
		b.busy = betterNew
	}
	b.candidates = candidates
	if len(candidates) == 0 {
		return false
	}
	// Not where the peer only answers our last one.
	answers := asked.Sub(b.tried) >= betterAsked
	if !answers && (now.Before(b.due) || busy && b.busy == 0 && now.Sub(b.due) < betterBusy) {
		return false
	}
	b.tried, b.due, b.busy = now, now.Add(b.pause), max(0, b.busy-1)
	b.pause = min(2*b.pause, betterMax)
	return true
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
