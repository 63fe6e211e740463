package session

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// link is a session that is up.
type link struct {
	// info is as it was when the link came up; see snapshot.
	info Info
	auth identity.AuthInfo
	raw  net.Conn // the TCP connection
	mux  *yamux.Session
	// binding is the channel binding of the TLS connection.
	binding []byte
	// tasks counts what runs for the link.
	tasks sync.WaitGroup
	// readAt is when the last byte came from the peer, in nanoseconds since 1970.
	readAt atomic.Int64

	mu     sync.Mutex
	reason error
	// timer calls keepAlive at dueAt. It is nil before the link is served; ended means that the
	// link is no longer served. delayedAt is when the timer fired late, if it did since the last
	// probe.
	timer            *time.Timer
	intervals        intervals
	dueAt, delayedAt time.Time
	ended            bool
	// control is the control stream, nil until it is open; later it does not change. busy means
	// that keepAlive is sending on it.
	control *control
	busy    bool
	// shown is the leaf that was last proven to the peer, proofs how many leaves were.
	shown  *x509svid.SVID
	proofs uint32
	// chain is the certificate chain that the peer last proved, in DER, and notAfter when its leaf
	// ends; refused is why a newer one was not accepted.
	chain    [][]byte
	notAfter time.Time
	refused  error
	// messageAt is when the last message came on the control stream. probes counts the probes that
	// were sent; probedAt is when the unanswered one was, if there is one, and answered when the
	// last answer came.
	messageAt time.Time
	probes    uint64
	probedAt  time.Time
	answered  time.Time
	roundTrip time.Duration
	clockSkew time.Duration
}

// bringUp makes a TLS connection the session with a peer.
func (m *Manager) bringUp(conn *tls.Conn, auth identity.AuthInfo, info Info) (*link, error) {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	l, err := m.newLink(conn, auth, info)
	if err != nil {
		return nil, err
	}
	if err := m.register(l); err != nil {
		l.close(err)
		return nil, err
	}
	return l, nil
}

// newLink starts yamux on a TLS connection. The caller registers the link or closes it.
func (m *Manager) newLink(conn *tls.Conn, auth identity.AuthInfo, info Info) (*link, error) {
	binding, err := bindingOf(conn)
	if err != nil {
		return nil, err
	}
	l := &link{
		info: info, auth: auth, raw: conn.NetConn(), binding: binding,
		notAfter: auth.NotAfter, clockSkew: info.ClockSkew,
	}
	shown := conn.ConnectionState().PeerCertificates
	for _, c := range shown {
		l.chain = append(l.chain, bytes.Clone(c.Raw))
	}
	// crypto/tls keeps the parsed certificates for the state of the connection, which is not
	// read from here on. A certificate is several times as large as its DER.
	clear(shown)
	metered := &meteredConn{Conn: &joiningConn{Conn: conn, spare: &m.spare}, meter: newMeter(!info.Dialled), readAt: &l.readAt, abuse: l.close}
	start := yamux.Server
	if info.Dialled {
		start = yamux.Client
	}
	mux, err := start(metered, &yamux.Config{
		AcceptBacklog: acceptBacklog,
		// The control stream has probes of its own; yamux's would cost each idle session a
		// goroutine.
		EnableKeepAlive:        false,
		KeepAliveInterval:      measureInterval,
		ConnectionWriteTimeout: writeTimeout,
		MaxStreamWindowSize:    streamWindow,
		StreamOpenTimeout:      openTimeout,
		StreamCloseTimeout:     closeTimeout,
		// It logs what the peer sends, without bound. The error says why a session ended.
		LogOutput: io.Discard,
	})
	if err != nil {
		return nil, fmt.Errorf("start yamux: %w", err)
	}
	l.mux = mux
	if info.Dialled {
		// Before any other stream: it is known by its number.
		stream, err := mux.OpenStream()
		if err != nil {
			_ = mux.Close()
			return nil, fmt.Errorf("open control stream: %w", muxError(err))
		}
		l.control = &control{stream: stream}
	}
	return l, nil
}

// snapshot returns the session as it is now.
func (l *link) snapshot() Info {
	info := l.info
	l.mu.Lock()
	defer l.mu.Unlock()
	info.PeerNotAfter, info.RoundTrip, info.ClockSkew = l.notAfter, l.roundTrip, l.clockSkew
	return info
}

// close closes the connection; the first reason counts. yamux notices by its failed read,
// so this may be called from anywhere and never waits.
func (l *link) close(reason error) {
	l.mu.Lock()
	l.reason = cmp.Or(l.reason, reason)
	l.mu.Unlock()
	_ = l.raw.Close()
}

// why returns why the link ended.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

// alive reports whether the other end answers a ping in time.
func (l *link) alive() bool {
	answered := make(chan bool, 1)
	go func() { // ends with the ping: within writeTimeout, or when the link closes
		_, err := l.mux.Ping()
		answered <- err == nil
	}()
	select {
	case ok := <-answered:
		return ok
	case <-time.After(aliveTimeout):
		return false
	}
}

// supersedes reports whether a new session with a peer replaces the old one; if not, the old one
// stays if it is alive. A session that a third peer carries yields to a direct one.
func (m *Manager) supersedes(old, info Info) bool {
	if carried := old.Through != ""; carried != (info.Through != "") {
		return carried
	}
	return replaces(m.self, info.Peer, old.Dialled, info.Dialled)
}

// replaces decides between two sessions of the same kind. The session that the lower ID dialled
// wins. If the same side dialled both, it lost the first one.
func replaces(self, peer peering.ClusterID, oldDialled, newDialled bool) bool {
	if oldDialled == newDialled {
		return true
	}
	return newDialled == (self < peer)
}

// clear reports whether a new session with a peer may come up. It first pings the old one if that
// has precedence.
func (m *Manager) clear(info Info) bool {
	m.mu.Lock()
	old := m.links[info.Peer]
	m.mu.Unlock()
	if old == nil || m.supersedes(old.info, info) {
		return true
	}
	if old.alive() {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(old, errUnresponsive)
	return true
}

// register makes a link the peer's session.
func (m *Manager) register(l *link) error {
	id := l.info.Peer
	m.mu.Lock()
	defer m.mu.Unlock()
	// Removing a bundle closes what is registered; later registrations fail here.
	if !l.auth.Trusted || !m.cfg.Bundles.Has(id) {
		return errUntrusted
	}
	if m.stopped {
		return errStopping
	}
	old := m.links[id]
	if old == nil && len(m.links) >= maxSessions {
		return errFull
	}
	if old != nil {
		if !m.supersedes(old.info, l.info) {
			return errDuplicate
		}
		m.drop(old, errReplaced)
	}
	m.number++
	l.info.Number, l.auth.Session = m.number, m.number
	l.info.Since = time.Now()
	m.links[id] = l
	n := m.noteOf(id)
	n.err, n.tries = nil, 0
	if l.info.Endpoint != "" {
		n.lastGood = l.info.Endpoint
	}
	if !l.info.Dialled && !l.info.InBand && l.info.Through == "" {
		n.from = prefixOf(l.raw.RemoteAddr())
	}
	m.notify(id)
	if l.info.Through != "" {
		m.changed.Notify() // it is dialled all the same
	}
	return nil
}

// drop ends a link, and removes it if it is the peer's session. The caller holds the lock.
func (m *Manager) drop(l *link, reason error) {
	l.close(reason)
	id := l.info.Peer
	if m.links[id] != l {
		return
	}
	delete(m.links, id)
	n := m.noteOf(id)
	n.err, n.errAt = fmt.Errorf("session with %s ended: %w", id, l.why()), time.Now()
	n.lasted = time.Since(l.info.Since)
	m.notify(id)
	m.changed.Notify() // it may have to be dialled
}

// serve starts the goroutines that serve a link until it ends, which wg counts. It runs in the
// goroutine that did the handshake, which ends soon, and leaves little work to the one that
// lasts: a stack that grew once hardly shrinks again.
func (m *Manager) serve(parent context.Context, wg *sync.WaitGroup, l *link) {
	ctx, cancel := context.WithCancel(parent)
	m.cfg.Log.Info("session up", "peer", l.info.Peer, "session", l.info.Number, "remote", l.info.RemoteAddr, "dialled", l.info.Dialled, "inBand", l.info.InBand, "through", l.info.Through, "endpoint", l.info.Endpoint)
	if l.control != nil {
		l.tasks.Go(func() { m.end(ctx, l, m.readControl(l)) })
	}
	m.mu.Lock()
	l.mu.Lock()
	l.intervals = m.intervalsFor(l)
	l.dueAt = time.Now()
	l.timer = time.AfterFunc(0, func() { m.keepAlive(ctx, l) })
	l.mu.Unlock()
	m.mu.Unlock()
	// The bundle may have changed between the handshake and here.
	m.recheck(l.info.Peer)
	if m.cfg.Up != nil {
		l.tasks.Go(func() { m.end(ctx, l, m.cfg.Up(ctx, l.snapshot())) })
	}
	wg.Go(func() {
		reason := m.acceptStreams(ctx, l)
		cancel()
		if parent.Err() != nil {
			reason = errStopping
		}
		m.finish(l, reason)
	})
}

// finish waits for the goroutines of a link that ended.
func (m *Manager) finish(l *link, reason error) {
	m.mu.Lock()
	m.drop(l, reason) // unless there is a reason already
	m.mu.Unlock()
	_ = l.mux.Close()
	m.cfg.Log.Info("session down", "peer", l.info.Peer, "session", l.info.Number, "reason", l.why(), "lasted", time.Since(l.info.Since).Round(time.Millisecond))
	l.mu.Lock()
	l.ended = true
	l.timer.Stop()
	l.mu.Unlock()
	l.tasks.Wait()
}

// acceptStreams hands the peer's streams to gRPC. It returns why the session ended.
func (m *Manager) acceptStreams(ctx context.Context, l *link) error {
	for {
		stream, err := l.mux.AcceptStreamWithContext(ctx)
		if err == nil {
			err = m.accept(ctx, l, stream)
		}
		if err != nil {
			return muxError(err)
		}
	}
}

// accept takes a stream. Its error ends the link.
func (m *Manager) accept(ctx context.Context, l *link, stream *yamux.Stream) error {
	if n := l.mux.NumStreams(); n > maxStreams {
		return &abuseError{What: fmt.Sprintf("%d streams are open, the limit is %d", n, maxStreams)}
	}
	if stream.StreamID() != controlStream {
		m.handToGRPC(ctx, &Conn{Conn: stream, info: l.auth})
		return nil
	}
	if l.control != nil {
		return &abuseError{What: "it opened the control stream twice"}
	}
	l.mu.Lock()
	l.control = &control{stream: stream}
	l.mu.Unlock()
	l.tasks.Go(func() { m.end(ctx, l, m.readControl(l)) })
	m.schedule(l)
	return nil
}

// muxError returns a readable reason why yamux ended.
func muxError(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the peer closed the connection")
	case errors.Is(err, yamux.ErrRecvWindowExceeded):
		return &abuseError{What: "it sent more than it was allowed to"}
	case errors.Is(err, yamux.ErrDuplicateStream), errors.Is(err, yamux.ErrInvalidVersion), errors.Is(err, yamux.ErrInvalidMsgType), errors.Is(err, yamux.ErrUnexpectedFlag):
		return &abuseError{What: err.Error()}
	}
	return err
}
