package session

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// liveness is the state of a session that its keepalive depends on. Times that have not
// come are zero.
type liveness struct {
	// since is when the session came up, end when it ends unless the peer shows
	// another certificate.
	since, end time.Time
	// open says that there is a control stream.
	open bool
	// heard is when the last message came on it, answered when the last probe was
	// answered, asked when the open probe was sent.
	heard, answered, asked time.Time
	// read is when the last byte came from the peer, while a probe is open.
	read time.Time
	// shown says that the peer was shown this side's current leaf.
	shown bool
	// busy says that a message is being sent to the peer; its sender looks again after it.
	busy bool
}

// intervals are the limits of these names.
type intervals struct{ open, quiet, measure, answer, behind time.Duration }

func intervalsOf(dialled bool) intervals {
	i := intervals{open: openTimeout, quiet: quietAfter, measure: measureInterval, answer: answerTimeout, behind: answerBehind}
	if dialled {
		i.quiet = quietAfterDialled
	}
	return i
}

// ending is why the keepalive ends a session.
type ending int

const (
	keepsOpen ending = iota
	// certificateExpired: the peer's certificate ended and it showed no other.
	certificateExpired
	// probeUnanswered: the peer did not answer in time.
	probeUnanswered
	// controlNotOpened: the peer did not open the control stream.
	controlNotOpened
)

// actions is what is due for a session.
type actions struct {
	ending ending
	// ask says to send a probe, show to prove this side's identity with its new leaf.
	ask, show bool
	// next is when to look again, if nothing changes before.
	next time.Time
}

// due returns what is due. While bytes come from the peer its answer may take longer: it
// may be queued behind them. While no probe is open any message is a sign of life; after
// a probe only its answer is, since only that shows that the peer receives, too.
func (s liveness) due(now time.Time, i intervals) actions {
	a := actions{next: s.end, show: s.open && !s.shown && !s.busy}
	by := s.end
	switch {
	case !s.open:
		by = s.since.Add(i.open)
		a.ending = controlNotOpened
	case !s.asked.IsZero():
		by = later(s.asked.Add(i.answer), earlier(s.read.Add(i.answer), s.asked.Add(i.behind)))
		a.ending = probeUnanswered
	case s.busy:
	case s.answered.IsZero():
		by = now
		a.ask = true
	default:
		by = earlier(s.heard.Add(i.quiet), s.answered.Add(i.measure))
		a.ask = true
	}
	if now.Before(by) {
		a.ending, a.ask = keepsOpen, false
	}
	if !now.Before(s.end) {
		a.ending = certificateExpired
	}
	a.next = earlier(by, s.end)
	if a.show {
		a.next = earlier(now, a.next)
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// schedule sets a link's timer to when something is due next, which may be now.
func (m *Manager) schedule(l *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && !l.ended {
		now := time.Now()
		l.noteDelay(now)
		l.setTimer(now, l.liveness(m.leaf.Load()).due(now, l.intervals).next)
	}
}

// keepAlive does what is due for a link, and ends the session if that is. The link's
// timer calls it. One call at a time sends, and may wait until the peer reads; others
// meanwhile still end the session in time.
func (m *Manager) keepAlive(ctx context.Context, l *link) {
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.tasks.Add(1)
	}
	l.mu.Unlock()
	if ended {
		return
	}
	defer l.tasks.Done()
	for {
		out, err := m.next(l)
		if err == nil && out.probe == nil && out.leaf == nil {
			return
		}
		if err == nil {
			err = l.send(out)
		}
		if err != nil {
			m.end(ctx, l, err)
			return
		}
	}
}

// outgoing is what to send to a peer: a probe, a proof of identity with a leaf, or both.
type outgoing struct {
	probe  []byte
	leaf   *x509svid.SVID
	number uint32 // of the proof
}

// next decides what to send on a link now, if anything, and sets the timer. Its error is
// why the session has to end.
func (m *Manager) next(l *link) (out outgoing, err error) {
	leaf := m.leaf.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.noteDelay(now)
	a := l.liveness(leaf).due(now, l.intervals)
	switch a.ending {
	case certificateExpired:
		return out, &expiredError{NotAfter: l.notAfter, Refused: l.refused}
	case probeUnanswered:
		return out, fmt.Errorf("%w: no answer for %s", errSilent, l.intervals.answer)
	case controlNotOpened:
		return out, fmt.Errorf("%w: no control stream for %s", errSilent, l.intervals.open)
	case keepsOpen:
	}
	if a.ask {
		out.probe = l.nextProbe(now)
	}
	if a.show {
		l.shown = leaf
		l.proofs++
		out.leaf, out.number = leaf, l.proofs
	}
	l.busy = l.busy || a.ask || a.show
	l.setTimer(now, l.liveness(leaf).due(now, l.intervals).next)
	return out, nil
}

// send sends. It returns why the session has to end.
func (l *link) send(out outgoing) error {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.busy = false
	}()
	if out.probe != nil {
		if err := l.control.send(kindProbe, out.probe); err != nil {
			return l.controlError(err)
		}
	}
	if out.leaf == nil {
		return nil
	}
	p, err := prove(out.leaf, out.number, l.binding, l.info.Dialled)
	if err != nil {
		return err
	}
	if err := l.control.send(kindProof, p.encode()); err != nil {
		return l.controlError(err)
	}
	return nil
}

// liveness returns the link's. The lock is held.
func (l *link) liveness(leaf *x509svid.SVID) liveness {
	s := liveness{
		since: later(l.info.Since, l.delayedAt), end: l.notAfter.Add(expiryGrace),
		open: l.control != nil, heard: l.heard, answered: l.answered, asked: l.probedAt,
		shown: l.shown == leaf, busy: l.busy,
	}
	if !s.asked.IsZero() {
		s.asked = later(s.asked, l.delayedAt)
		s.read = time.Unix(0, l.readAt.Load())
	}
	return s
}

// noteDelay notes if the timer fired late: this process had no processor, so an answer may
// have come that was not read. What is waited for then gets its whole time again, once.
// The lock is held.
func (l *link) noteDelay(now time.Time) {
	if l.delayedAt.IsZero() && now.Sub(l.dueAt) >= lateTimer {
		l.delayedAt = now
	}
}

// setTimer sets the timer. The lock is held.
func (l *link) setTimer(now, next time.Time) {
	after := max(next.Sub(now), 0)
	if after > 0 {
		after = max(after, minTimerPause)
	}
	l.dueAt = now.Add(after)
	l.timer.Reset(after)
}

// nextProbe returns the next probe. The lock is held.
func (l *link) nextProbe(now time.Time) []byte {
	l.probes++
	l.probedAt, l.delayedAt = now, time.Time{}
	return binary.BigEndian.AppendUint64(nil, l.probes)
}

// answer takes an answer to a probe, and says whether it is worth a notification: it is the
// first, or the peer's clock jumped. An answer to any but the last probe is ignored.
func (l *link) answer(probe uint64, clock, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if probe != l.probes || l.probedAt.IsZero() {
		return false
	}
	sample := max(now.Sub(l.probedAt), 1)
	skew := skewOf(clock, l.probedAt, now)
	changed := l.roundTrip == 0 || (skew-l.clockSkew).Abs() >= time.Second
	l.clockSkew = skew
	l.probedAt, l.answered = time.Time{}, now
	l.roundTrip = cmp.Or(l.roundTrip, sample)
	// Smoothed as TCP does it (RFC 6298).
	l.roundTrip += (sample - l.roundTrip) / 8
	return changed
}

// skewOf returns how far the peer's clock is ahead, given its answer to a probe.
func skewOf(clock, asked, answered time.Time) time.Duration {
	return clock.Sub(asked.Add(answered.Sub(asked) / 2)).Round(time.Millisecond)
}
