package session

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// liveness is the state of a session on which its keepalive depends. A time is zero before its
// event.
type liveness struct {
	// since is when the session came up, end when it ends unless the peer shows
	// another certificate.
	since, end time.Time
	// open means that there is a control stream.
	open bool
	// messageAt is when the last message came on it, answered when the last probe was answered,
	// probedAt when the unanswered probe was sent.
	messageAt, answered, probedAt time.Time
	// read is when the last byte came from the peer, while a probe is unanswered.
	read time.Time
	// shown means that this side's current leaf was proven to the peer.
	shown bool
	// busy means that a message is being sent to the peer; its sender checks again afterwards.
	busy bool
}

// intervals has the limits of these names in limits.go.
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

// actions are what is due for a session.
type actions struct {
	ending ending
	// probe means to send a probe, show to prove this side's identity with its new leaf.
	probe, show bool
	// next is when to check again, if nothing changes before.
	next time.Time
}

// due returns what is due. While bytes come from the peer its answer may take longer: it may be
// queued behind them. Any message is a sign of life until a probe is sent; then only its answer
// is, since only that shows that the peer receives, too.
func (s liveness) due(now time.Time, i intervals) actions {
	a := actions{next: s.end, show: s.open && !s.shown && !s.busy}
	by := s.end
	switch {
	case !s.open:
		by = s.since.Add(i.open)
		a.ending = controlNotOpened
	case !s.probedAt.IsZero():
		by = later(s.probedAt.Add(i.answer), earlier(s.read.Add(i.answer), s.probedAt.Add(i.behind)))
		a.ending = probeUnanswered
	case s.busy:
	case s.answered.IsZero():
		by = now
		a.probe = true
	default:
		by = earlier(s.messageAt.Add(i.quiet), s.answered.Add(i.measure))
		a.probe = true
	}
	if now.Before(by) {
		a.ending, a.probe = keepsOpen, false
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

// keepAlive does what is due for a link, which may be to end the session. The link's timer calls
// it. One call at a time sends, and may wait until the peer reads; other calls meanwhile still
// end the session in time.
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
	if a.probe {
		out.probe = l.nextProbe(now)
	}
	if a.show {
		l.shown = leaf
		l.proofs++
		out.leaf, out.number = leaf, l.proofs
	}
	l.busy = l.busy || a.probe || a.show
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

// liveness returns the state of the link. The caller holds the lock.
func (l *link) liveness(leaf *x509svid.SVID) liveness {
	s := liveness{
		since: later(l.info.Since, l.delayedAt), end: l.notAfter.Add(expiryGrace),
		open: l.control != nil, messageAt: l.messageAt, answered: l.answered, probedAt: l.probedAt,
		shown: l.shown == leaf, busy: l.busy,
	}
	if !s.probedAt.IsZero() {
		s.probedAt = later(s.probedAt, l.delayedAt)
		s.read = time.Unix(0, l.readAt.Load())
	}
	return s
}

// noteDelay notes if the timer fired late: then this process did not run, and an answer may be
// unread. The timeouts then start again, once. The caller holds the lock.
func (l *link) noteDelay(now time.Time) {
	if l.delayedAt.IsZero() && now.Sub(l.dueAt) >= lateTimer {
		l.delayedAt = now
	}
}

// setTimer sets the timer. The caller holds the lock.
func (l *link) setTimer(now, next time.Time) {
	after := max(next.Sub(now), 0)
	if after > 0 {
		after = max(after, minTimerPause)
	}
	l.dueAt = now.Add(after)
	l.timer.Reset(after)
}

// nextProbe returns the next probe. The caller holds the lock.
func (l *link) nextProbe(now time.Time) []byte {
	l.probes++
	l.probedAt, l.delayedAt = now, time.Time{}
	return binary.BigEndian.AppendUint64(nil, l.probes)
}

// answer takes an answer to a probe, and reports whether subscribers are to be notified: of the
// first answer, and when the peer's clock jumped. An answer to any but the last probe is ignored.
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
func skewOf(clock, probed, answered time.Time) time.Duration {
	return clock.Sub(probed.Add(answered.Sub(probed) / 2)).Round(time.Millisecond)
}
