package session

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// ExpiredError says that a session was cut because the peer did not show a new
// certificate before the last one ended.
type ExpiredError struct {
	// NotAfter is when that was.
	NotAfter time.Time
	// Refused is why a newer one was not taken; nil if none came.
	Refused error
}

// Error implements error.
func (e *ExpiredError) Error() string {
	text := fmt.Sprintf("the peer's certificate ended at %s", e.NotAfter.UTC().Format(time.RFC3339))
	if e.Refused != nil {
		return fmt.Sprintf("%s, and the next one was refused: %v", text, e.Refused)
	}
	return text + " and it did not show another"
}

// Unwrap returns why the next certificate was refused.
func (e *ExpiredError) Unwrap() error { return e.Refused }

// watchLeaf has every link show this cluster's leaf of the moment, until ctx ends.
func (m *Manager) watchLeaf(ctx context.Context) {
	changes, unsubscribe := m.cfg.Source.Subscribe()
	defer unsubscribe()
	for ctx.Err() == nil {
		m.takeLeaf()
		// A timer stands still while the machine sleeps, a certificate's end does not.
		timer := time.NewTimer(min(max(time.Until(m.cfg.Source.Next()), minTendPause), measureEvery))
		select {
		case <-ctx.Done():
		case <-changes:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// takeLeaf looks which leaf is this cluster's. One that cannot be renewed is the
// source's to tell of.
func (m *Manager) takeLeaf() {
	svid, err := m.cfg.Source.GetX509SVID()
	if err != nil || m.leaf.Swap(svid) == svid {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		m.plan(l)
	}
}

// plan has a link tended when something is due, which may be now. It never waits.
func (m *Manager) plan(l *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && !l.ended {
		now := time.Now()
		l.wasAway(now)
		l.wake(now, l.pulse(m.leaf.Load()).due(now, l.pace).next)
	}
}

// tend does what is due for a link: it proves this side with each new leaf, asks
// whether the peer is there, and ends the session when its time is over. The
// link's timer calls it. One call at a time sends, which may take until the peer
// reads; others go on looking meanwhile whether the session has to end.
func (m *Manager) tend(ctx context.Context, l *link) {
	if !l.begin() {
		return
	}
	defer l.tasks.Done()
	for more := true; more; {
		var e errand
		var err error
		if e, more, err = m.look(l); more {
			err = l.run(e)
		}
		if err != nil {
			m.end(ctx, l, err)
			return
		}
	}
}

// errand is what to send to a peer.
type errand struct {
	question []byte
	// leaf is what to prove this side with, as the proof of that number; nil is
	// nothing.
	leaf   *x509svid.SVID
	number uint32
}

// look decides what is to be sent on a link now, if anything is, and when to look
// again. Its error is why the session has to end.
func (m *Manager) look(l *link) (e errand, more bool, err error) {
	leaf := m.leaf.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.wasAway(now)
	d := l.pulse(leaf).due(now, l.pace)
	switch d.ending {
	case hasExpired:
		return e, false, &ExpiredError{NotAfter: l.notAfter, Refused: l.refused}
	case isSilent:
		return e, false, fmt.Errorf("%w: no answer for %s", errSilent, l.pace.answer)
	case isUnopened:
		return e, false, fmt.Errorf("%w: no control stream for %s", errSilent, l.pace.open)
	case goesOn:
	}
	if d.ask {
		e.question = l.ask(now)
	}
	if d.show {
		l.shown = leaf
		l.proofs++
		e.leaf, e.number = leaf, l.proofs
	}
	more = d.ask || d.show
	l.busy = l.busy || more
	l.wake(now, l.pulse(leaf).due(now, l.pace).next)
	return e, more, nil
}

// run sends. It returns why the session has to end.
func (l *link) run(e errand) error {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.busy = false
	}()
	if e.question != nil {
		if err := l.control.send(kindAsk, e.question); err != nil {
			return l.controlError(err)
		}
	}
	if e.leaf == nil {
		return nil
	}
	p, err := prove(e.leaf, e.number, l.binding, l.info.Dialled)
	if err != nil {
		return err
	}
	if err := l.control.send(kindProof, p.encode()); err != nil {
		return l.controlError(err)
	}
	return nil
}

// pulse is how things stand. The lock is held.
func (l *link) pulse(leaf *x509svid.SVID) pulse {
	p := pulse{
		since: later(l.info.Since, l.anew), end: l.notAfter.Add(expiryGrace),
		open: l.control != nil, heard: l.heard, answered: l.answered, asked: l.askedAt,
		shown: l.shown == leaf, busy: l.busy,
	}
	if !p.asked.IsZero() {
		p.asked = later(p.asked, l.anew)
		p.read = time.Unix(0, l.readAt.Load())
	}
	return p
}

// wasAway looks whether this side came too late to look: then the answer may have come
// meanwhile, with nobody to read it, and what is waited for gets its whole time anew,
// once. The lock is held.
func (l *link) wasAway(now time.Time) {
	if l.anew.IsZero() && now.Sub(l.lookAt) >= lateLook {
		l.anew = now
	}
}

// wake sets the timer. The lock is held.
func (l *link) wake(now, next time.Time) {
	after := max(next.Sub(now), 0)
	if after > 0 {
		after = max(after, minTendPause)
	}
	l.lookAt = now.Add(after)
	l.timer.Reset(after)
}

// begin begins a look, unless the link has ended.
func (l *link) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.tasks.Add(1)
	}
	return !l.ended
}

// end ends a link for what was found while it was served; nil is nothing.
func (m *Manager) end(ctx context.Context, l *link, reason error) {
	if reason == nil || ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(l, reason)
}

// controlError says why there is no more control stream: nil if the session ended
// as a whole, whose reason others tell. What is wrong with the peer says so by
// itself.
func (l *link) controlError(err error) error {
	if _, ok := errors.AsType[*AbuseError](err); ok || errors.Is(err, errUntrusted) {
		return err
	}
	if l.mux.IsClosed() {
		return nil
	}
	return fmt.Errorf("control stream: %w", err)
}

// hearing is what goes on from one message of a peer's to the next.
type hearing struct {
	rate *rate.Limiter
	// proof is the number of the last proof.
	proof uint32
}

// hear takes what the peer says on the control stream until that ends. It returns
// why the session has to.
func (m *Manager) hear(l *link) error {
	h := hearing{rate: rate.NewLimiter(controlRate, controlBurst)}
	for {
		kind, body, err := readMessage(l.control.stream)
		if err == nil {
			err = m.heed(l, &h, kind, body)
		}
		if err != nil {
			return l.controlError(err)
		}
		l.control.stream.Shrink() // mostly it is seconds until the next
	}
}

// heed takes a message. Its error ends the control stream, and with it the session.
func (m *Manager) heed(l *link, h *hearing, kind byte, body []byte) error {
	now := time.Now()
	if !h.rate.AllowN(now, 1) {
		return &AbuseError{What: "too many control messages"}
	}
	l.mu.Lock()
	l.heard = now
	l.mu.Unlock()
	switch kind {
	case kindProof:
		p, err := decodeProof(body)
		if err != nil {
			return &AbuseError{What: "a proof of identity that cannot be read: " + err.Error()}
		}
		if p.number <= h.proof {
			return &AbuseError{What: "a proof of identity was repeated"}
		}
		h.proof = p.number
		if err := m.proven(l, p); err != nil {
			return err
		}
	case kindAsk:
		if len(body) != 8 {
			return &AbuseError{What: "a question that is none"}
		}
		if err := l.control.send(kindTell, binary.BigEndian.AppendUint64(body, uint64(now.UnixMilli()))); err != nil {
			return err
		}
	case kindTell:
		if len(body) != 16 {
			return &AbuseError{What: "an answer that is none"}
		}
		if l.told(binary.BigEndian.Uint64(body), time.UnixMilli(int64(binary.BigEndian.Uint64(body[8:]))), now) {
			m.mu.Lock()
			m.notify(l.info.Peer)
			m.mu.Unlock()
		}
	}
	m.plan(l)
	return nil
}

// proven takes a peer's proof of identity. Its error ends the session. A proof
// that is the peer's but does not verify here ends nothing: what the peer showed
// before counts until its end.
func (m *Manager) proven(l *link, p proof) error {
	chain, err := p.certificates(l.binding, !l.info.Dialled)
	if err != nil {
		return &AbuseError{What: "a wrong proof of identity: " + err.Error()}
	}
	auth, err := identity.VerifyPeer(chain, m.cfg.Bundles, time.Now())
	if err != nil {
		l.mu.Lock()
		l.refused = err
		end := l.notAfter.Add(expiryGrace)
		l.mu.Unlock()
		if m.limiter.warnings.Allow() {
			m.cfg.Log.Warn("the peer's new certificate is refused; its session ends with the old one", "peer", l.info.Peer, "end", end, "err", err)
		}
		return nil
	}
	if auth.ID != l.info.Peer {
		return &AbuseError{What: "it proves to be another cluster, " + string(auth.ID)}
	}
	if !auth.Trusted {
		return errUntrusted
	}
	l.mu.Lock()
	changed := !l.notAfter.Equal(auth.NotAfter)
	l.chain, l.notAfter, l.refused = p.chain, auth.NotAfter, nil
	l.mu.Unlock()
	if changed {
		m.mu.Lock()
		m.notify(l.info.Peer)
		m.mu.Unlock()
	}
	return nil
}

// ask returns the next question for the peer's clock. The lock is held.
func (l *link) ask(now time.Time) []byte {
	l.asked++
	l.askedAt, l.anew = now, time.Time{}
	return binary.BigEndian.AppendUint64(nil, l.asked)
}

// told takes an answer to the latest question, and says whether it tells something
// new: it is the first, or the peer's clock jumped.
func (l *link) told(question uint64, clock, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if question != l.asked || l.askedAt.IsZero() {
		return false
	}
	sample := max(now.Sub(l.askedAt), 1)
	skew := skewOf(clock, l.askedAt, now)
	news := l.roundTrip == 0 || (skew-l.clockSkew).Abs() >= time.Second
	l.clockSkew = skew
	l.askedAt, l.answered = time.Time{}, now
	if l.roundTrip == 0 {
		l.roundTrip = sample
	}
	// Smoothed as TCP does it (RFC 6298).
	l.roundTrip += (sample - l.roundTrip) / 8
	return news
}

// skewOf returns how far the peer's clock is ahead, given what it said to a
// question.
func skewOf(clock, asked, answered time.Time) time.Duration {
	return clock.Sub(asked.Add(answered.Sub(asked) / 2)).Round(time.Millisecond)
}

// recheck cuts what a peer has open under certificates that its trust bundle does
// not cover any more, as after the overlap of a rollover. Whoever still trusts the
// peer may call it at any time.
func (m *Manager) recheck(id peering.ClusterID) {
	m.mu.Lock()
	l := m.links[id]
	var direct []*Conn
	for c := range m.direct {
		if c.info.ID == id {
			direct = append(direct, c)
		}
	}
	m.mu.Unlock()
	if l != nil {
		l.mu.Lock()
		ders := l.chain
		l.mu.Unlock()
		chain, err := parseChain(ders)
		if err == nil {
			_, err = identity.VerifyPeer(chain, m.cfg.Bundles, time.Now())
		}
		if notOnlyLate(err) {
			m.mu.Lock()
			m.drop(l, fmt.Errorf("the peer's trust bundle does not cover its certificate any more: %w", err))
			m.mu.Unlock()
		}
	}
	for _, c := range direct {
		conn, ok := c.Conn.(*tls.Conn)
		if !ok {
			continue
		}
		if _, err := identity.PeerOf(conn.ConnectionState(), m.cfg.Bundles); notOnlyLate(err) {
			_ = conn.NetConn().Close()
		}
	}
}

// notOnlyLate says that a chain is wrong, not only too old, which has its own
// limit.
func notOnlyLate(err error) bool {
	_, late := errors.AsType[*identity.TimeError](err)
	return err != nil && !late
}
