package session

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/entente-dev/entente/internal/accept"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// The application protocols of TLS (ALPN) on the peer API's port.
const (
	protoSession = "entente/1"
	protoGRPC    = "h2"
)

// Config configures a Manager.
type Config struct {
	// Source is this cluster's identity. Required.
	Source *identity.Source
	// Bundles has the trusted peers. A peer that is removed from it loses its connections at once,
	// and so does a peer whose bundle no longer covers its certificate. Required.
	Bundles *identity.Bundles
	// Denied reports whether an administrator of this side denied a cluster, which learns it when
	// it dials. It is called at any time and does not block. If nil, no cluster is denied.
	Denied func(peering.ClusterID) bool
	// Server serves the calls of peers. Make it with
	// grpc.Creds(ServerCredentials()). Run serves and stops it. Required.
	Server *grpc.Server
	// Listener is the peer API's port, TCP. Run closes it. If nil, this side only dials.
	Listener net.Listener
	// InBand accepts the connections of peers through tunnels, TCP. Run closes it. Its connections
	// have a method Peer() string that returns the peer at the other end of the tunnel, and only
	// that peer may use them. May be nil.
	InBand net.Listener
	// Carried accepts sessions that a third peer carries. Run closes it. Its connections have a
	// method Through() string that returns the peer that carries them. May be nil.
	Carried net.Listener
	// Up is called when a session came up, in a goroutine of its own: ctx ends with the
	// session. An error that it returns ends the session, which is then dialled again;
	// if it returns nil the session goes on. May be nil.
	Up func(ctx context.Context, s Info) error
	// Dial connects to an endpoint; nil means a net.Dialer, which resolves names each time.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialInBand connects to a peer through the tunnel to it. If nil, no peer can be reached so.
	DialInBand func(ctx context.Context, id peering.ClusterID) (net.Conn, error)
	// DialThrough connects to a peer through a third one that carries. If nil, no peer can be
	// reached so.
	DialThrough func(ctx context.Context, third, id peering.ClusterID) (net.Conn, error)
	// Carries reports whether a connected peer announced that it carries sessions. It does not
	// block. Required with DialThrough.
	Carries func(third peering.ClusterID) bool
	// MayDial reports whether an endpoint that no administrator vouches for may be dialled now:
	// one of Peer.Also, or of a peer that is Checked. It gets an address and a port. If nil, no
	// such endpoint may be dialled.
	MayDial func(endpoint string) bool
	// ClientOptions are added to those of the client connections that Conn returns.
	ClientOptions []grpc.DialOption
	// Log gets a line for each session that comes up or ends. If nil, they are discarded.
	Log *slog.Logger
}

// Peer is a cluster to keep a session with.
type Peer struct {
	ID peering.ClusterID
	// Endpoints is where it can be dialled, as host:port, best first. If empty, only the peer
	// dials.
	Endpoints []string
	// InBand means that it is dialled by Config.DialInBand, and not at an endpoint.
	InBand bool
	// Ways are the gateways through which DialInBand may connect. They are only compared: when
	// they or Endpoints change, the peer is dialled at once.
	Ways []string
	// Also are endpoints that others name, as host:port. A few of them are tried after each
	// round in which Endpoints failed, beside the pause before the next one.
	Also []string
	// Checked means that Endpoints, too, are dialled only if MayDial allows it, as are the
	// addresses to which their names resolve: no administrator of this side vouches for them.
	Checked bool
	// Now means that the peer just accepted this cluster and does not dial yet, so this side dials
	// without yielding to it.
	Now bool
}

// Info describes a session.
type Info struct {
	Peer peering.ClusterID
	// Number is unique among the sessions of this process.
	Number uint64
	// Dialled means that this side dialled.
	Dialled bool
	// Endpoint is the one that this side dialled. It is empty if the peer dialled, and in-band.
	Endpoint string
	// InBand means that it runs through the tunnel to the peer.
	InBand bool
	// Through is the third peer that carries it, if one does.
	Through peering.ClusterID
	// RemoteAddr is the other end of the TCP connection.
	RemoteAddr string
	// Since is when it came up.
	Since time.Time
	// RoundTrip is the smoothed round-trip time of the session, 0 until it was measured.
	RoundTrip time.Duration
	// ClockSkew is how far the peer's clock is ahead of this one's, give or take
	// half a round trip. The side that was dialled knows it once RoundTrip is known.
	ClockSkew time.Duration
	// PeerNotAfter is when the certificate that the peer showed last expires. The session
	// ends then unless the peer shows another.
	PeerNotAfter time.Time
}

// Status is the state of the session with a peer.
type Status struct {
	// Session is the session, if it is up.
	Session *Info
	// Err is why there is no session: why the last attempt to dial failed, or the last session
	// ended. It is nil while a session is up and before the first attempt.
	Err error
	// ErrAt is the time of Err.
	ErrAt time.Time
	// Tries counts the failed rounds of dialling since the last session.
	Tries int
}

// Reasons for which a session ended, as Status and the log show them.
var (
	// errRevoked: the peer is no longer trusted here.
	errRevoked = errors.New("the peer is no longer trusted here")
	// errReplaced: another session with the same peer took its place.
	errReplaced = errors.New("another session with the peer took its place")

	errSilent       = errors.New("the peer is silent")
	errStopping     = errors.New("this agent is stopping")
	errUnresponsive = errors.New("the session no longer answered and the peer made another")
	errDuplicate    = errors.New("there is another session with the peer")
	errUntrusted    = errors.New("the peer is not trusted here")
	errFull         = fmt.Errorf("there are %d sessions already", maxSessions)
)

// Manager keeps the sessions. All methods are safe for concurrent use.
type Manager struct {
	cfg       Config
	self      peering.ClusterID
	serverTLS *tls.Config
	feed      *accept.Handoff
	// warnings bounds the log lines that strangers can cause.
	warnings *rate.Limiter
	// changed wakes Run after SetPeers.
	changed notify.Channel
	// idleAfter and intervalsOf are the limit and the function of these names. Tests replace them.
	idleAfter   time.Duration
	intervalsOf func(dialled bool) intervals
	// spare has the buffers of joiningConn.
	spare sync.Pool
	// leaf is this cluster's current leaf.
	leaf atomic.Pointer[x509svid.SVID]

	mu       sync.Mutex
	started  bool
	stopped  bool
	number   uint64
	peers    map[peering.ClusterID]Peer // those of SetPeers that can be dialled
	links    map[peering.ClusterID]*link
	direct   map[*Conn]net.Conn // with the TCP connection below
	directs  uint64             // how many there have been
	notes    map[peering.ClusterID]*note
	callers  map[peering.ClusterID]*caller
	routes   map[peering.ClusterID]*route // of the callers that are in use
	watchers map[notify.Channel]struct{}
	attended map[peering.ClusterID]bool
}

// note is what is kept about a peer between sessions.
type note struct {
	err      error
	errAt    time.Time
	tries    int
	lasted   time.Duration // the last session
	lastGood string
	from     netip.Prefix // the address of the last session that came in
}

// New checks the configuration and returns a Manager, which Run starts.
func New(cfg Config) (*Manager, error) {
	if cfg.Source == nil || cfg.Bundles == nil || cfg.Server == nil {
		return nil, errors.New("session: Source, Bundles and Server are required")
	}
	if cfg.DialThrough != nil && cfg.Carries == nil {
		return nil, errors.New("session: Carries is required with DialThrough")
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{ControlContext: checkAddress}).DialContext
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	var addr net.Addr = accept.Place{Kind: "none", Name: "not listening"}
	if cfg.Listener != nil {
		addr = cfg.Listener.Addr()
	}
	m := &Manager{
		cfg:         cfg,
		self:        cfg.Source.ID(),
		serverTLS:   cfg.Source.ServerTLS(cfg.Bundles, protoSession, protoGRPC),
		feed:        accept.NewHandoff(addr),
		changed:     notify.New(),
		idleAfter:   idleAfter,
		intervalsOf: intervalsOf,
		peers:       map[peering.ClusterID]Peer{},
		links:       map[peering.ClusterID]*link{},
		direct:      map[*Conn]net.Conn{},
		notes:       map[peering.ClusterID]*note{},
		callers:     map[peering.ClusterID]*caller{},
		routes:      map[peering.ClusterID]*route{},
		watchers:    map[notify.Channel]struct{}{},
		attended:    map[peering.ClusterID]bool{},
		warnings:    rate.NewLimiter(warnRate, warnBurst),
	}
	// A peer that dials with a certificate that is not valid yet or expired gets a verdict;
	// see greet, which judges it again.
	tolerateTime(m.serverTLS, func(cs tls.ConnectionState, _ *identity.TimeError) bool { return cs.NegotiatedProtocol == protoSession })
	// Only its options can make creating a client connection fail: check them now.
	cc, err := m.newConn(m.self)
	if err != nil {
		return nil, fmt.Errorf("session: client options: %w", err)
	}
	if err := cc.Close(); err != nil {
		return nil, fmt.Errorf("session: client options: %w", err)
	}
	return m, nil
}

// Run listens, dials and serves until ctx ends, then closes everything and
// returns nil. It returns an error when the listener or the server fails. It runs
// once.
func (m *Manager) Run(parent context.Context) error {
	m.mu.Lock()
	if m.started {
		m.mu.Unlock()
		return errors.New("session: Run was called twice")
	}
	m.started = true
	m.mu.Unlock()

	unwatch := m.cfg.Bundles.Watch(func(id peering.ClusterID, trusted bool) {
		if !trusted {
			m.Close(id, errRevoked)
			return
		}
		m.recheck(id)
	})
	defer unwatch()

	ctx, fail := context.WithCancelCause(parent)
	var wg sync.WaitGroup
	m.loadLeaf() // before there is a link
	wg.Go(func() { m.watchLeaf(ctx) })
	wg.Go(func() {
		err := cmp.Or(m.cfg.Server.Serve(m.feed), grpc.ErrServerStopped)
		if ctx.Err() == nil {
			fail(fmt.Errorf("serve gRPC: %w", err))
		}
	})
	for _, listener := range m.listeners() {
		wg.Go(func() {
			if err := m.listen(ctx, &wg, listener); err != nil && ctx.Err() == nil {
				fail(err)
			}
		})
	}
	m.dialAll(ctx, &wg)
	m.shutdown()
	wg.Wait()
	if parent.Err() == nil {
		return context.Cause(ctx)
	}
	return nil
}

// listeners are where peers come in.
func (m *Manager) listeners() []net.Listener {
	return slices.DeleteFunc([]net.Listener{m.cfg.Listener, m.cfg.InBand, m.cfg.Carried}, func(l net.Listener) bool { return l == nil })
}

// shutdown closes everything that Run opened.
func (m *Manager) shutdown() {
	for _, l := range m.listeners() {
		_ = l.Close()
	}
	m.mu.Lock()
	m.stopped = true
	for _, l := range m.links {
		l.close(errStopping)
	}
	for _, raw := range m.direct {
		_ = raw.Close()
	}
	callers := slices.Collect(maps.Values(m.callers))
	m.mu.Unlock()
	_ = m.feed.Close()
	m.cfg.Server.Stop()
	for _, c := range callers {
		c.close()
	}
}

// Addr returns where the peer API listens, or nil.
func (m *Manager) Addr() net.Addr {
	if m.cfg.Listener == nil {
		return nil
	}
	return m.cfg.Listener.Addr()
}

// SetPeers replaces the clusters with which to keep a session. Those that have endpoints, or are
// in-band, or may be reached through others, are dialled until a direct session is up; changed
// endpoints are tried at once. A peer that is left out is no longer dialled; its session stays up
// as long as the peer is trusted.
func (m *Manager) SetPeers(peers []Peer) {
	dial := make(map[peering.ClusterID]Peer, len(peers))
	for _, p := range peers {
		if p.ID != m.self && (len(p.Endpoints) > 0 || p.InBand || m.cfg.DialThrough != nil) {
			if p.InBand {
				p.Endpoints, p.Also = nil, nil
			}
			p.Endpoints = slices.Clone(p.Endpoints[:min(len(p.Endpoints), peering.MaxEndpoints)])
			p.Also = slices.Clone(p.Also[:min(len(p.Also), peering.MaxEndpoints)])
			dial[p.ID] = p
		}
	}
	m.mu.Lock()
	m.peers = dial
	m.mu.Unlock()
	m.changed.Notify()
}

// Conn returns the client connection to a peer, which outlives sessions: while there is no
// session, calls fail with Unavailable, or wait for one with grpc.WaitForReady.
func (m *Manager) Conn(id peering.ClusterID) grpc.ClientConnInterface { return m.caller(id) }

func (m *Manager) caller(id peering.ClusterID) *caller {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.callers[id]
	if c == nil {
		c = &caller{m: m, peer: id, closed: m.stopped}
		m.callers[id] = c
	}
	return c
}

func (m *Manager) newConn(id peering.ClusterID) (*grpc.ClientConn, error) {
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: backoffFactor, Jitter: backoffJitter, MaxDelay: backoffMax}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transportCreds{}),
		grpc.WithAuthority("entente"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(0), grpc.WithWriteBufferSize(callBuffer),
		grpc.WithMaxHeaderListSize(callHeaders), grpc.WithInitialWindowSize(callWindow), grpc.WithInitialConnWindowSize(callsWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(callMessage)),
		// For failures within a session: a new session is another address.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: openTimeout}),
		grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) {
			return m.open(id, address)
		}),
		grpc.WithResolvers(routes{m}),
	}
	return grpc.NewClient(routeScheme+":///"+string(id), append(opts, m.cfg.ClientOptions...)...)
}

// Status returns the state of the session with a peer.
func (m *Manager) Status(id peering.ClusterID) Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s Status
	if l := m.links[id]; l != nil {
		info := l.snapshot()
		s.Session = &info
		return s
	}
	if n := m.notes[id]; n != nil {
		s.Err, s.ErrAt, s.Tries = n.err, n.errAt, n.tries
	}
	return s
}

// Sessions returns the sessions that are up, by peer.
func (m *Manager) Sessions() []Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Info, 0, len(m.links))
	for _, id := range slices.Sorted(maps.Keys(m.links)) {
		list = append(list, m.links[id].snapshot())
	}
	return list
}

// Subscribe returns a channel that gets a value after sessions came up or ended or a status
// changed, one for any number of changes. cancel ends the subscription.
func (m *Manager) Subscribe() (changes <-chan struct{}, cancel func()) {
	c := notify.New()
	m.mu.Lock()
	m.watchers[c] = struct{}{}
	m.mu.Unlock()
	return c, func() {
		m.mu.Lock()
		delete(m.watchers, c)
		m.mu.Unlock()
	}
}

// Close closes a peer's session and every other connection of it, at once. It is
// dialled again if SetPeers says so and the peer is trusted.
func (m *Manager) Close(id peering.ClusterID, reason error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.links[id]; l != nil {
		m.drop(l, reason)
	}
	for c, raw := range m.direct {
		if c.info.ID == id {
			_ = raw.Close()
		}
	}
}

// CloseSession closes one session, by Info.Number, and no later one.
func (m *Manager) CloseSession(number uint64, reason error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		if l.info.Number == number {
			m.drop(l, reason)
			return
		}
	}
}

// Attend sets whether a peer is probed more often, in its current session and in later ones.
func (m *Manager) Attend(id peering.ClusterID, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.attended[id] == on {
		return
	}
	if on {
		m.attended[id] = true
	} else {
		delete(m.attended, id)
	}
	l := m.links[id]
	if l == nil {
		return
	}
	l.mu.Lock()
	l.intervals = m.intervalsFor(l)
	l.mu.Unlock()
	m.schedule(l)
}

// intervalsFor returns the intervals of a link. The caller holds the lock.
func (m *Manager) intervalsFor(l *link) intervals {
	i := m.intervalsOf(l.info.Dialled)
	if m.attended[l.info.Peer] {
		i.quiet = min(i.quiet, quietAttended)
	}
	return i
}

// Silence returns since when a peer has neither answered a probe nor sent anything else, or zero
// if no probe is unanswered. connected is false if there is no session.
func (m *Manager) Silence(id peering.ClusterID) (since time.Time, connected bool) {
	m.mu.Lock()
	l := m.links[id]
	m.mu.Unlock()
	if l == nil {
		return time.Time{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probedAt.IsZero() {
		return time.Time{}, true
	}
	return later(later(l.probedAt, l.delayedAt), time.Unix(0, l.readAt.Load())), true
}

// RoundTrip returns the smoothed round-trip time of a peer's session, 0 if there is no session or
// it was not measured yet.
func (m *Manager) RoundTrip(id peering.ClusterID) time.Duration {
	m.mu.Lock()
	l := m.links[id]
	m.mu.Unlock()
	if l == nil {
		return 0
	}
	return l.snapshot().RoundTrip
}

// notify wakes the subscribers, and gRPC, after the state of a peer changed. The caller holds the
// lock.
func (m *Manager) notify(id peering.ClusterID) {
	m.update(id)
	for c := range m.watchers {
		c.Notify()
	}
}

// noteOf returns the note of a peer. The caller holds the lock.
func (m *Manager) noteOf(id peering.ClusterID) *note {
	n := m.notes[id]
	if n == nil {
		n = &note{}
		m.notes[id] = n
	}
	return n
}
