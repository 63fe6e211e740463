package session

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// listen accepts connections until ctx ends. Those of each listener are limited by themselves, so that strangers, who
// reach the one for TCP alone, take no places in-band or of carried connections.
func (m *Manager) listen(ctx context.Context, wg *sync.WaitGroup, listener net.Listener) error {
	limit := newLimiter(m.wasConnectedFrom)
	var pause time.Duration
	for {
		raw, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("listen on %s: %w", listener.Addr(), err)
			}
			// Temporary, as when file descriptors run out.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			m.cfg.Log.Warn("accept", "err", err, "pause", pause)
			if !notify.Pause(ctx, pause) {
				return nil
			}
			continue
		}
		pause = 0
		h := limit.admit(raw.RemoteAddr(), time.Now(), func() { reset(raw) })
		if h == nil {
			reset(raw)
			continue
		}
		wg.Go(func() {
			defer h.done()
			m.greet(ctx, wg, raw, h)
		})
	}
}

// wasConnectedFrom reports whether a peer that is trusted was last connected from an address.
func (m *Manager) wasConnectedFrom(p netip.Prefix) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, n := range m.notes {
		if p.IsValid() && n.from == p && m.cfg.Bundles.Has(id) {
			return true
		}
	}
	return false
}

// reset closes a connection without leaving state of it in the kernel.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// greet does the handshake of an incoming connection and starts to serve it.
func (m *Manager) greet(ctx context.Context, wg *sync.WaitGroup, raw net.Conn, h *handshake) {
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	refuse := func(err error) {
		_ = raw.Close()
		// Any host can cause these, so they are logged for debugging only; but clocks that differ
		// are hard to find otherwise.
		level := slog.LevelDebug
		var late *identity.TimeError
		if errors.As(err, &late) && m.warnings.Allow() {
			level = slog.LevelWarn
		}
		m.cfg.Log.Log(ctx, level, "connection refused", "remote", raw.RemoteAddr().String(), "err", err)
	}
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		refuse(err)
		return
	}
	conn := tls.Server(raw, m.serverTLS)
	if err := conn.HandshakeContext(ctx); err != nil {
		refuse(err)
		return
	}
	auth, err := identity.PeerOf(conn.ConnectionState(), m.cfg.Bundles)
	if err != nil {
		if late, ok := errors.AsType[*identity.TimeError](err); ok && conn.ConnectionState().NegotiatedProtocol == protoSession {
			m.refuseLate(conn, late)
		}
		refuse(err)
		return
	}
	if auth.Trusted {
		h.trust()
	}
	of, inBand := cameThrough(raw)
	third := cameBy(raw)
	switch proto := conn.ConnectionState().NegotiatedProtocol; {
	case inBand && auth.ID != of:
		refuse(fmt.Errorf("cluster %q comes through the tunnel to %s", auth.ID, of))
	case third != "" && (proto != protoSession || auth.ID == third):
		refuse(errOnlySessions)
	case proto == protoSession:
		l, err := m.welcome(conn, auth, Info{InBand: inBand, Through: third})
		if err != nil {
			refuse(err)
			return
		}
		m.serve(ctx, wg, l)
	case proto == protoGRPC:
		if err := m.acceptDirect(ctx, conn, auth); err != nil {
			refuse(err)
		}
	default:
		refuse(fmt.Errorf("no common protocol (ALPN %q)", proto))
	}
}

// cameThrough returns the peer at the other end of the tunnel through which a connection came;
// false if it did not come through a tunnel.
func cameThrough(raw net.Conn) (peering.ClusterID, bool) {
	of, ok := raw.(interface{ Peer() string })
	if !ok {
		return "", false
	}
	return peering.ClusterID(of.Peer()), true
}

// welcome decides on a session that a peer dialled, sends the verdict, and registers it.
func (m *Manager) welcome(conn *tls.Conn, auth identity.AuthInfo, info Info) (*link, error) {
	info.Peer, info.RemoteAddr, info.PeerNotAfter = auth.ID, conn.RemoteAddr().String(), auth.NotAfter
	code := m.judge(auth, info)
	if err := sendVerdict(conn, code); err != nil {
		return nil, err
	}
	if code != welcome {
		return nil, fmt.Errorf("session of %s refused (code %d)", auth.ID, code)
	}
	return m.bringUp(conn, auth, info)
}

func sendVerdict(conn *tls.Conn, code verdict) error {
	if _, err := conn.Write(encodePreface(code, time.Now())); err != nil {
		return err
	}
	if code != welcome {
		// The verdict has to arrive before the connection is reset.
		_ = conn.CloseWrite()
	}
	return nil
}

// refuseLate sends this side's clock to a peer whose certificate is valid but for its time,
// and records the refusal for the administrators of this side.
func (m *Manager) refuseLate(conn *tls.Conn, late *identity.TimeError) {
	_ = sendVerdict(conn, refusedClock)
	if !m.cfg.Bundles.Has(late.ID) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.links[late.ID] == nil {
		n := m.noteOf(late.ID)
		n.err, n.errAt = late, time.Now()
		m.notify(late.ID)
	}
}

// judge returns the verdict on a peer that dialled.
func (m *Manager) judge(auth identity.AuthInfo, info Info) verdict {
	if auth.ID != "" && m.cfg.Denied != nil && m.cfg.Denied(auth.ID) {
		return refusedDenied
	}
	if !auth.Trusted {
		return refusedUntrusted
	}
	m.mu.Lock()
	full := m.links[auth.ID] == nil && len(m.links) >= maxSessions
	m.mu.Unlock()
	if full {
		return refusedFull
	}
	if !m.clear(info) {
		return refusedDuplicate
	}
	return welcome
}

// acceptDirect hands an h2 connection to gRPC.
func (m *Manager) acceptDirect(ctx context.Context, conn *tls.Conn, auth identity.AuthInfo) error {
	c := &Conn{Conn: conn, info: auth}
	raw := conn.NetConn()
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: tcpIdle, Interval: tcpInterval, Count: tcpProbes})
	}
	// Such a connection cannot show a new certificate.
	life := time.Until(auth.NotAfter.Add(expiryGrace))
	if !auth.Trusted {
		life = strangerLife
		c.limit = &atomic.Int64{}
		c.limit.Store(strangerBytes)
	}
	expiry := time.AfterFunc(life, func() { _ = raw.Close() })
	c.closed = func() {
		expiry.Stop()
		m.mu.Lock()
		delete(m.direct, c)
		m.mu.Unlock()
	}
	if err := m.track(c, raw); err != nil {
		c.closed()
		return err
	}
	if auth.Trusted {
		// The bundle may have changed between the handshake and here.
		m.recheck(auth.ID)
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		c.closed()
		return err
	}
	m.handToGRPC(ctx, c)
	return nil
}

// handToGRPC hands a connection to gRPC, or closes it when gRPC stopped.
func (m *Manager) handToGRPC(ctx context.Context, c *Conn) {
	if !m.feed.Give(ctx, c) {
		_ = c.Close()
	}
}

// track registers an h2 connection, within the limits. Where strangers take all their places, it closes one of them for
// another.
func (m *Manager) track(c *Conn, raw net.Conn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var strangers []*Conn
	var near, trusted, same int
	from := prefixOf(raw.RemoteAddr())
	for other, conn := range m.direct {
		if !other.info.Trusted {
			strangers = append(strangers, other)
			if prefixOf(conn.RemoteAddr()) == from {
				near++
			}
			continue
		}
		trusted++
		if other.info.ID == c.info.ID {
			same++
		}
	}
	switch {
	case m.stopped:
		return errStopping
	case !c.info.Trusted:
		if near >= maxStrangersPerIP {
			return fmt.Errorf("%d connections of clients that are not trusted, %d of them from this address", len(strangers), near)
		}
		if len(strangers) >= maxStrangers {
			m.closeOne(strangers)
		}
	case !m.cfg.Bundles.Has(c.info.ID):
		return errUntrusted
	case trusted >= maxDirect || same >= maxDirectPerPeer:
		return fmt.Errorf("%d connections of %s, %d of all peers", same, c.info.ID, trusted)
	}
	m.directs++
	c.number = m.directs
	m.direct[c] = raw
	return nil
}

// closeOne closes the oldest connection of the busiest of these. The caller holds the lock.
func (m *Manager) closeOne(of []*Conn) {
	slices.SortFunc(of, func(a, b *Conn) int { return cmp.Compare(a.number, b.number) })
	c := of[oldestOfBusiest(of, func(c *Conn) netip.Prefix { return prefixOf(m.direct[c].RemoteAddr()) })]
	reset(m.direct[c])
	delete(m.direct, c)
}
