package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// expiredError is the error that a session was cut because the peer did not show a new
// certificate before the last one ended.
type expiredError struct {
	// NotAfter is when the last certificate ended.
	NotAfter time.Time
	// Refused is why a newer one was not accepted, if one came.
	Refused error
}

func (e *expiredError) Error() string {
	text := fmt.Sprintf("the peer's certificate ended at %s", e.NotAfter.UTC().Format(time.RFC3339))
	if e.Refused != nil {
		return fmt.Sprintf("%s, and the next one was refused: %v", text, e.Refused)
	}
	return text + " and it did not show another"
}

// Unwrap returns why the next certificate was refused.
func (e *expiredError) Unwrap() error { return e.Refused }

// watchLeaf makes every link show this cluster's current leaf, until ctx ends.
func (m *Manager) watchLeaf(ctx context.Context) {
	changes, unsubscribe := m.cfg.Source.Subscribe()
	defer unsubscribe()
	for ctx.Err() == nil {
		m.loadLeaf()
		// A timer stops while the machine sleeps, and a certificate still ends.
		timer := time.NewTimer(min(max(time.Until(m.cfg.Source.Next()), minTimerPause), measureInterval))
		select {
		case <-ctx.Done():
		case <-changes:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// loadLeaf loads this cluster's current leaf. The source reports one that it cannot renew.
func (m *Manager) loadLeaf() {
	svid, err := m.cfg.Source.GetX509SVID()
	if err != nil || m.leaf.Swap(svid) == svid {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		m.schedule(l)
	}
}

// end ends a link for a reason, unless that is nil or ctx ended.
func (m *Manager) end(ctx context.Context, l *link, reason error) {
	if reason == nil || ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(l, reason)
}

// proven takes a peer's proof of identity. Its error ends the session. A proof that is the
// peer's but does not verify here ends nothing: the certificate that the peer showed before
// counts until it expires.
func (m *Manager) proven(l *link, p proof) error {
	chain, err := p.certificates(l.binding, !l.info.Dialled)
	if err != nil {
		return &abuseError{What: "a wrong proof of identity: " + err.Error()}
	}
	auth, err := identity.VerifyPeer(chain, m.cfg.Bundles, time.Now())
	if err != nil {
		l.mu.Lock()
		l.refused = err
		end := l.notAfter.Add(expiryGrace)
		l.mu.Unlock()
		if m.warnings.Allow() {
			m.cfg.Log.Warn("the peer's new certificate is refused; its session ends with the old one", "peer", l.info.Peer, "end", end, "err", err)
		}
		return nil
	}
	if auth.ID != l.info.Peer {
		return &abuseError{What: "it proves to be another cluster, " + string(auth.ID)}
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

// recheck closes the connections of a peer under certificates that its trust bundle no
// longer covers, as after the overlap of a rollover. It may be called at any time for a
// peer that is still trusted.
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
			m.drop(l, fmt.Errorf("the peer's trust bundle no longer covers its certificate: %w", err))
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

// notOnlyLate reports whether more is wrong with a chain than its time: an expired one has its
// own limit.
func notOnlyLate(err error) bool {
	_, late := errors.AsType[*identity.TimeError](err)
	return err != nil && !late
}
