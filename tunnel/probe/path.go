package probe

import (
	"slices"
	"time"
)

// PathState is the state of the way to a gateway and back, by its probes.
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
	// probeEvery is the pace of probes at rest, probeBusy while there is traffic, and
	// probeSoon at least after one was lost and until the first is answered.
	probeEvery = time.Second
	probeBusy  = 200 * time.Millisecond
	probeSoon  = 100 * time.Millisecond
	// probeTogether is for how long due work is gathered. A round that begins more than probeLate
	// after it was due shows that this process was not scheduled.
	probeTogether = 5 * time.Millisecond
	probeLate     = 20 * time.Millisecond
	// probeLoss is how many must be lost in a row for a path to be down.
	probeLoss = 3
	// probePatience is how long an answer may take before its probe counts as
	// lost, at least; on slow paths it is twice the usual time. firstPatience applies to a
	// path on which no probe was answered yet.
	probePatience = 200 * time.Millisecond
	firstPatience = time.Second
	// probeBegins is for how many probes a new path is probed soon after each other.
	probeBegins = 10
	// probeMemory is how many probes are remembered, and so bounds the round
	// trip that can be measured: a path is not probed sooner than an eighth of that.
	probeMemory = 16
	// refusalValid is for how long a path is up after the kernel of the node at its end answered that
	// the port is closed. Kernels send that once a second (net.ipv6.icmp.ratelimit).
	refusalValid = 2500 * time.Millisecond
)

// Path is the history of the probes of one path, as a value.
type Path struct {
	sent     [probeMemory]time.Time // by sequence number modulo memory
	next     uint64                 // the sequence number of the next probe
	answered uint64                 // one more than the highest that was answered
	rtt      time.Duration
	again    bool // there was more than one answer
	last     time.Time
	times    Times     // of the answers
	refused  time.Time // when the other end last answered that the port is closed
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
	p.times = p.times.With(took)
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

// Stalled notes that this process was not scheduled between two times: answers that arrived meanwhile
// were not read, so the probes that waited for one get that much more time.
func (p Path) Stalled(from, to time.Time) Path {
	for i, at := range p.sent {
		if !at.IsZero() && from.Sub(at) < p.patience() {
			p.sent[i] = at.Add(to.Sub(from))
		}
	}
	return p
}

// Times are the round trips of the probes that were answered, one each.
func (p Path) Times() Times { return p.times }

// RTT is the smoothed round trip. Zero before the second answer: the first probe
// often waits for a handshake.
func (p Path) RTT() time.Duration {
	if !p.again {
		return 0
	}
	return p.rtt
}

// Refused notes that the kernel at the other end answered that the port is closed: packets pass,
// though the fabric there does not run.
func (p Path) Refused(now time.Time) Path {
	p.refused = now
	return p
}

// Answers reports whether the path is up and the fabric at the other end answers.
func (p Path) Answers(now time.Time) bool {
	return p.State(now) == PathUp && p.lost(now) < probeLoss
}

// Suspect reports whether the path is up and the last probes on it were lost. A closed port at the
// other end explains the loss, so that path is not suspect.
func (p Path) Suspect(now time.Time) bool {
	return p.State(now) == PathUp && p.lost(now) > 0 && !p.refusing(now)
}

func (p Path) refusing(now time.Time) bool { return now.Sub(p.refused) < refusalValid }

// LastResponse returns when the other end last answered or refused a probe; zero means never.
func (p Path) LastResponse() time.Time {
	if p.refused.After(p.last) {
		return p.refused
	}
	return p.last
}

// Pace is when to send the next probe after one that was sent now.
func (p Path) Pace(now time.Time, busy bool) time.Duration {
	soon := max(probeSoon, p.patience()/probeLoss)
	switch state := p.State(now); {
	case state == PathUnknown && p.next < probeBegins:
		return probeSoon
	case state == PathUp && p.lost(now) > 0:
		return soon
	case state == PathUp && busy:
		return max(probeBusy, soon)
	default:
		return probeEvery
	}
}

// Unanswered reports whether a probe that was sent at that time was not answered.
func (p Path) Unanswered(sent time.Time) bool {
	return slices.ContainsFunc(p.sent[:], sent.Equal)
}

// LastAnswer returns when a probe was last answered; zero means never.
func (p Path) LastAnswer() time.Time { return p.last }

// patience is how long an answer may take before its probe counts as lost.
func (p Path) patience() time.Duration {
	if p.rtt == 0 {
		return firstPatience
	}
	return max(probePatience, 2*p.rtt)
}

// lost is how many probes were lost since the last answer, probeLoss at most.
func (p Path) lost(now time.Time) int {
	patience, lost := p.patience(), 0
	for seq := p.answered; seq < p.next && lost < probeLoss; seq++ {
		if p.next-seq > probeMemory || now.Sub(p.sent[seq%probeMemory]) >= patience {
			lost++
		}
	}
	return lost
}

// Overdue returns when the next unanswered probe counts as lost. It returns zero if that changes
// nothing: no probe waits for an answer, or the path is not up.
func (p Path) Overdue(now time.Time) time.Time {
	if p.State(now) != PathUp {
		return time.Time{}
	}
	for seq := p.answered; seq < p.next; seq++ {
		if at := p.sent[seq%probeMemory].Add(p.patience()); p.next-seq <= probeMemory && at.After(now) {
			return at
		}
	}
	return time.Time{}
}

// State judges the path.
func (p Path) State(now time.Time) PathState {
	switch {
	case p.refusing(now):
		return PathUp
	case p.lost(now) >= probeLoss:
		return PathDown
	case p.answered == 0:
		return PathUnknown
	}
	return PathUp
}

// Similar reports whether two round trips differ too little for a new report: by less than a
// millisecond, or by less than a half. An unknown one is similar only to another unknown one.
func Similar(a, b time.Duration) bool {
	a, b = min(a, b), max(a, b)
	return a == b || a > 0 && (b-a < time.Millisecond || b < 2*a)
}
