package probe

import "time"

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
	// probeEvery is the pace of probes at rest, probeBusy while there is traffic, and
	// probeSoon at least after one was lost and until the first is answered.
	probeEvery = time.Second
	probeBusy  = 200 * time.Millisecond
	probeSoon  = 100 * time.Millisecond
	// probeTogether is for how long what is due is gathered, and probeLate how late that may be done
	// by a process that has a processor.
	probeTogether = 5 * time.Millisecond
	probeLate     = 20 * time.Millisecond
	// probeLoss is how many must be lost in a row for a path to be down.
	probeLoss = 3
	// probePatience is how long an answer may take before its probe counts as
	// lost, at least; on slow paths it is twice the usual time. unheardPatience is that of a
	// path of which nothing is known.
	probePatience   = 200 * time.Millisecond
	unheardPatience = time.Second
	// probeBegins is for how many probes a new path is probed soon after each other.
	probeBegins = 10
	// probeMemory is how many probes are remembered, and so bounds the round
	// trip that can be measured: a path is not probed sooner than an eighth of that.
	probeMemory = 16
	// refusalHolds is for how long a path is up after the node at its end said that nobody
	// listens there. Kernels say so once a second (net.ipv6.icmp.ratelimit).
	refusalHolds = 2500 * time.Millisecond
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
	refused  time.Time // when the other end said last that nobody listens
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

// Stalled notes that this process had no processor between two times: answers that came meanwhile
// were not read, so what waited for one gets as much longer.
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

// Refused notes that the node at the other end says that nobody listens there: packets pass,
// though its fabric does not run.
func (p Path) Refused(now time.Time) Path {
	p.refused = now
	return p
}

// Answers says that the path is up and that the fabric at the other end answers.
func (p Path) Answers(now time.Time) bool {
	return p.State(now) == PathUp && p.lost(now) < probeLoss
}

// Suspect says that the path is up, but for what was sent last and is lost. Where nobody listens it
// is known why.
func (p Path) Suspect(now time.Time) bool {
	return p.State(now) == PathUp && p.lost(now) > 0 && !p.refusing(now)
}

func (p Path) refusing(now time.Time) bool { return now.Sub(p.refused) < refusalHolds }

// LastHeard is when the other end last answered, or said that nobody listens. Zero if never.
func (p Path) LastHeard() time.Time {
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

// LastAnswer is when the path was last seen to work. Zero if never.
func (p Path) LastAnswer() time.Time { return p.last }

// patience is how long an answer may take before its probe counts as lost.
func (p Path) patience() time.Duration {
	if p.rtt == 0 {
		return unheardPatience
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

// Overdue is when the next of the probes that were not answered counts as lost. Zero if that changes
// nothing: none waits for an answer, or the path is not up.
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

// Similar says whether two round trips differ so little that it is no news: by a
// millisecond, or by less than a half. One that is not known yet is like no other.
func Similar(a, b time.Duration) bool {
	a, b = min(a, b), max(a, b)
	return a == b || a > 0 && (b-a < time.Millisecond || b < 2*a)
}
