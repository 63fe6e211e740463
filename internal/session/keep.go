package session

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

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

// keep goes on with a session beyond the certificates of its handshake: it proves
// this side with each new leaf, takes the peer's proofs, and measures. It returns
// when ctx ends, or why the session has to. What it starts ends with the link.
func (m *Manager) keep(ctx context.Context, l *link, wg *sync.WaitGroup) error {
	changes, unsubscribe := m.cfg.Source.Subscribe()
	defer unsubscribe()
	measure := time.NewTicker(measureEvery)
	defer measure.Stop()
	failed := make(chan error, 1)

	var ctl *control
	var shown *x509svid.SVID
	number := uint32(0)
	for {
		if err := l.expired(time.Now()); err != nil {
			return err
		}
		if !time.Now().Before(l.answer()) {
			return errSilent
		}
		// One that cannot be renewed is the source's to tell of.
		if svid, err := m.cfg.Source.GetX509SVID(); err == nil && ctl != nil && svid != shown {
			number++
			p, err := prove(svid, number, l.binding, l.info.Dialled)
			if err != nil {
				return err
			}
			if err := ctl.send(kindProof, p.encode()); err != nil {
				return l.controlError(err)
			}
			shown = svid
		}
		next := min(time.Until(m.cfg.Source.Next()), time.Until(l.end()), time.Until(l.answer()))
		timer := time.NewTimer(max(next, minKeepPause))
		var err error
		select {
		case <-ctx.Done():
		case stream := <-l.control:
			ctl = &control{stream: stream}
			wg.Go(func() { failed <- m.hear(l, ctl) })
			err = ctl.send(kindAsk, l.ask(time.Now()))
		case <-measure.C:
			if ctl != nil {
				err = ctl.send(kindAsk, l.ask(time.Now()))
			}
		case err := <-failed:
			timer.Stop()
			return err
		case <-changes:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return l.controlError(err)
		}
	}
}

// controlError says why there is no more control stream: nil if the session ended
// as a whole, whose reason others tell.
func (l *link) controlError(err error) error {
	if l.mux.IsClosed() {
		return nil
	}
	return fmt.Errorf("control stream: %w", err)
}

// hear takes what the peer says on the control stream until that ends. It returns
// why the session has to.
func (m *Manager) hear(l *link, ctl *control) error {
	var rate bucket
	last := uint32(0)
	for {
		kind, body, err := readMessage(ctl.stream)
		if abuse, ok := errors.AsType[*AbuseError](err); ok {
			return abuse
		}
		if err != nil {
			return l.controlError(err)
		}
		if !rate.take(time.Now(), controlRate, controlBurst) {
			return &AbuseError{What: "too many control messages"}
		}
		switch kind {
		case kindProof:
			p, err := decodeProof(body)
			if err != nil {
				return &AbuseError{What: "a proof of identity that cannot be read: " + err.Error()}
			}
			if p.number <= last {
				return &AbuseError{What: "a proof of identity was repeated"}
			}
			last = p.number
			if err := m.proven(l, p); err != nil {
				return err
			}
		case kindAsk:
			if len(body) != 8 {
				return &AbuseError{What: "a question that is none"}
			}
			if err := ctl.send(kindTell, binary.BigEndian.AppendUint64(body, uint64(time.Now().UnixMilli()))); err != nil {
				return l.controlError(err)
			}
		case kindTell:
			if len(body) != 16 {
				return &AbuseError{What: "an answer that is none"}
			}
			if l.told(binary.BigEndian.Uint64(body), time.UnixMilli(int64(binary.BigEndian.Uint64(body[8:]))), time.Now()) {
				m.mu.Lock()
				m.notify(l.info.Peer)
				m.mu.Unlock()
			}
		}
	}
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
		l.mu.Unlock()
		if m.limiter.mayWarn(time.Now()) {
			m.cfg.Log.Warn("the peer's new certificate is refused; its session ends with the old one", "peer", l.info.Peer, "end", l.end(), "err", err)
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
	l.chain, l.notAfter, l.refused = chain, auth.NotAfter, nil
	l.mu.Unlock()
	if changed {
		m.mu.Lock()
		m.notify(l.info.Peer)
		m.mu.Unlock()
	}
	return nil
}

// answer is by when the peer has to have said something on the control stream; far
// off when nothing is due.
func (l *link) answer() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.asked == 0:
		return l.info.Since.Add(openTimeout + writeTimeout) // the peer opens the stream
	case l.askedAt.IsZero():
		return l.notAfter.Add(expiryGrace)
	}
	return l.askedAt.Add(writeTimeout)
}

// end is when the session ends unless the peer shows another certificate.
func (l *link) end() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.notAfter.Add(expiryGrace)
}

// expired says that it is that late.
func (l *link) expired(now time.Time) error {
	if now.Before(l.end()) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return &ExpiredError{NotAfter: l.notAfter, Refused: l.refused}
}

// ask returns the next question for the peer's clock.
func (l *link) ask(now time.Time) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	l.askedAt = now
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
	l.askedAt = time.Time{}
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
		chain := l.chain
		l.mu.Unlock()
		if _, err := identity.VerifyPeer(chain, m.cfg.Bundles, time.Now()); notOnlyLate(err) {
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
