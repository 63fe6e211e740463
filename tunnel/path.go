package tunnel

import (
	"slices"
	"time"
)

// PathState is what probes say about the way to a gateway and back.
type PathState int

// The states of a path.
const (
	// PathUnknown: too few probes were sent to say.
	PathUnknown PathState = iota
	// PathUp: a probe was answered, and at most two were lost since.
	PathUp
	// PathDown: the last three probes, or more, were lost.
	PathDown
)

// String is the name of the state, in lower case.
func (s PathState) String() string {
	switch s {
	case PathUp:
		return "up"
	case PathDown:
		return "down"
	default:
		return "unknown"
	}
}

const (
	// probeEvery is the pace of probes, probeLoss how many must be lost in a
	// row for a path to be down.
	probeEvery = time.Second
	probeLoss  = 3
	// probePatience is how long an answer may take before its probe counts as
	// lost, at least; on slow paths it is twice the usual time.
	probePatience = 500 * time.Millisecond
	// probeMemory is how many probes are remembered, and so bounds the round
	// trip that can be measured, to as many seconds.
	probeMemory = 16
)

// Path is the history of the probes of one path, as a value.
type Path struct {
	sent     [probeMemory]time.Time // by sequence number modulo memory
	next     uint64                 // the sequence number of the next probe
	answered uint64                 // one more than the highest that was answered
	rtt      time.Duration
	again    bool // there was more than one answer
	last     time.Time
}

// Next is the sequence number of the next probe.
func (p Path) Next() uint64 { return p.next }

// Sent notes that probe Next was sent.
func (p Path) Sent(now time.Time) Path {
	p.sent[p.next%probeMemory] = now
	p.next++
	return p
}

// Answered notes the answer to a probe. Answers to probes that were not sent,
// or are forgotten, or were answered before, change nothing.
func (p Path) Answered(seq uint64, now time.Time) Path {
	if seq >= p.next || p.next-seq > probeMemory || p.sent[seq%probeMemory].IsZero() {
		return p
	}
	took := max(0, now.Sub(p.sent[seq%probeMemory]))
	p.sent[seq%probeMemory] = time.Time{}
	p.again = p.again || !p.last.IsZero()
	if p.rtt == 0 || took < p.rtt/2 {
		p.rtt = took // it may have waited for a handshake
	} else {
		p.rtt += (took - p.rtt) / 8 // RFC 6298's smoothing
	}
	p.answered = max(p.answered, seq+1)
	p.last = now
	return p
}

// RTT is the smoothed round trip. Zero before the second answer: the first probe
// often waits for a handshake.
func (p Path) RTT() time.Duration {
	if !p.again {
		return 0
	}
	return p.rtt
}

// LastAnswer is when the path was last seen to work. Zero if never.
func (p Path) LastAnswer() time.Time { return p.last }

// patience is how long an answer may take before its probe counts as lost.
func (p Path) patience() time.Duration { return max(probePatience, 2*p.rtt) }

// State judges the path.
func (p Path) State(now time.Time) PathState {
	patience := p.patience()
	lost := 0
	for seq := p.answered; seq < p.next; seq++ {
		if p.next-seq > probeMemory || now.Sub(p.sent[seq%probeMemory]) >= patience {
			lost++
		}
		if lost >= probeLoss {
			return PathDown
		}
	}
	if p.answered == 0 {
		return PathUnknown
	}
	return PathUp
}

// similar says whether two round trips differ so little that it is no news: by a
// millisecond, or by less than a half. One that is not known yet is like no other.
func similar(a, b time.Duration) bool {
	a, b = min(a, b), max(a, b)
	return a == b || a > 0 && (b-a < time.Millisecond || b < 2*a)
}

// gatewayState is what probes say about one gateway of a peer.
type gatewayState struct {
	node string
	path PathState
	// carries says that the gateway announced that it carries traffic to us.
	carries bool
}

// activeGateway picks the gateway that gets the aliases of a peer: of those in
// the best state, one that says that it carries us; else the one in use; else
// the first. So both clusters agree on a pair of gateways without talking about
// it, and nothing moves without need.
func activeGateway(gateways []gatewayState, current string) string {
	if len(gateways) == 0 {
		return ""
	}
	score := func(g gatewayState) int {
		s := map[PathState]int{PathUp: 8, PathUnknown: 4, PathDown: 0}[g.path]
		if g.path == PathUp && g.carries {
			s += 2
		}
		if g.node == current {
			s++
		}
		return s
	}
	best := slices.MaxFunc(gateways, func(a, b gatewayState) int { return score(a) - score(b) })
	return best.node
}
