package tunnel

import (
	"net/netip"
	"slices"
	"time"
)

// better decides when to try better ways to a peer that is reached through the agents.
//
// WireGuard sends to one endpoint at a time, so in a trial packets go to another endpoint for
// betterWindow. If they arrive, the peer's WireGuard follows, and ours follows it: nothing is lost.
// Otherwise these packets are lost, so trials are rare and, except for the first one, wait for
// moments without traffic. Where both sides are behind NAT, each lets packets in only from where it sent
// some before, so each side announces its trials to the other, and both try.
type better struct {
	// candidates are the endpoints that were known last. They were tried at tried and are due again
	// at due; pause is the pause after the next trial.
	candidates []netip.AddrPort
	due, tried time.Time
	pause      time.Duration
	// busy is how many more trials these candidates get although there is traffic: on a busy machine
	// one trial may miss a way that works.
	busy int
}

// next reports whether to try the candidates of a peer that is reached through the agents now. asked is
// when the peer last announced a trial; busy says that there is traffic.
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
	// The peer's trial may be only its answer to our last one.
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
