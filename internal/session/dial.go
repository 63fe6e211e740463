package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// dialError is the error of a round of dialling: one error for each endpoint.
type dialError struct {
	Peer  peering.ClusterID
	Tries []error
}

func (e *dialError) Error() string {
	parts := make([]string, len(e.Tries))
	for i, err := range e.Tries {
		parts[i] = err.Error()
	}
	return fmt.Sprintf("dial peer %s %s", e.Peer, strings.Join(parts, "; "))
}

// Unwrap returns the errors of the endpoints.
func (e *dialError) Unwrap() []error { return e.Tries }

// dialer dials one peer. Its loop runs only while there is no session, or a third peer carries
// it.
type dialer struct {
	endpoints []string
	// pause is the pause before the next round of dialling.
	pause time.Duration
	// cancel ends the loop, done is closed when it ended; both are nil before the first loop.
	// again notifies of changed endpoints.
	cancel context.CancelFunc
	done   chan struct{}
	again  notify.Channel
	// trying means that some of Peer.Also are being dialled; next is the first of them to be tried
	// next time.
	trying atomic.Bool
	next   int
	// up means that there was a session when dialAll last checked. began is when the loop began,
	// and thirds are the third peers that it tried; only the loop uses these two.
	up     bool
	began  time.Time
	thirds thirds
}

// ended reports whether no loop runs.
func (d *dialer) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return d.done == nil
	}
}

// dialAll dials each peer of SetPeers that has no session, until ctx ends.
func (m *Manager) dialAll(ctx context.Context, wg *sync.WaitGroup) {
	dialers := map[peering.ClusterID]*dialer{}
	for ctx.Err() == nil {
		m.mu.Lock()
		peers := maps.Clone(m.peers)
		m.mu.Unlock()
		for id, d := range dialers {
			if _, ok := peers[id]; !ok {
				if d.cancel != nil {
					d.cancel()
					<-d.done
				}
				delete(dialers, id)
			}
		}
		for id, peer := range peers {
			endpoints, d := slices.Concat(peer.Endpoints, peer.Ways), dialers[id]
			if d == nil {
				d = &dialer{again: notify.New(), endpoints: endpoints, thirds: thirds{}}
				dialers[id] = d
			} else if !slices.Equal(d.endpoints, endpoints) {
				d.endpoints = endpoints
				d.again.Notify()
			}
			up := m.link(id) != nil
			lost := d.up && !up
			d.up = up
			if !d.ended() {
				if lost { // the session that a third peer carried
					d.again.Notify()
				}
				continue
			}
			if m.hasDirect(id) {
				continue
			}
			if d.cancel != nil {
				d.cancel()
			}
			var loop context.Context
			loop, d.cancel = context.WithCancel(ctx)
			d.done = make(chan struct{})
			wg.Go(func() {
				m.dialLoop(loop, ctx, wg, id, d)
				close(d.done)
				m.changed.Notify() // its session may be gone already
			})
		}
		select {
		case <-ctx.Done():
		case <-m.changed:
		}
	}
	for _, d := range dialers {
		if d.cancel != nil {
			d.cancel()
		}
	}
}

// dialLoop dials a peer until there is a session with it that no third peer carries, or ctx
// ends. A session that it brings up lives as long as run.
func (m *Manager) dialLoop(ctx, run context.Context, wg *sync.WaitGroup, id peering.ClusterID, d *dialer) {
	// wait returns false when ctx ended. Changed endpoints are tried at once.
	wait := func(pause time.Duration) bool {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return false
		case <-d.again:
			d.pause = backoffMin
		case <-timer.C:
		}
		return true
	}
	backOff := func() bool {
		ok := wait(jitter(d.pause))
		d.pause = min(time.Duration(float64(d.pause)*backoffFactor), backoffMax)
		return ok
	}
	m.mu.Lock()
	now, lasted := m.peers[id].Now, m.noteOf(id).lasted
	m.mu.Unlock()
	switch first := d.pause == 0; {
	case first, lasted >= stableAfter:
		d.pause = backoffMin
		if yield := id < m.self && (!first || !now); yield && !wait(yieldDelay) {
			return
		}
	case !backOff():
		return
	}
	d.began = time.Now()
	for !m.hasDirect(id) {
		failures := m.dialThird(ctx, run, wg, id, d)
		l, err := m.dial(ctx, id, failures)
		if l != nil {
			if ctx.Err() != nil {
				m.CloseSession(l.info.Number, errStopping)
			}
			m.serve(run, wg, l)
			return
		}
		if ctx.Err() != nil {
			return
		}
		m.failed(id, err)
		if err != nil {
			m.dialAlso(ctx, run, wg, id, d)
		}
		if !backOff() {
			return
		}
	}
}

// jitter spreads a pause.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + backoffJitter*(2*rand.Float64()-1)))
}

func (m *Manager) link(id peering.ClusterID) *link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.links[id]
}

// failed records a round of dialling that brought up no session.
func (m *Manager) failed(id peering.ClusterID, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil || m.links[id] != nil {
		return
	}
	n := m.noteOf(id)
	first := n.tries == 0
	n.err, n.errAt = err, time.Now()
	n.tries++
	if first {
		m.cfg.Log.Warn("no session", "peer", id, "err", err)
	}
	m.notify(id)
}

// dial tries each endpoint once, the one that worked last first. It returns neither link nor
// error when the peer's session came up meanwhile. The error includes the failures in before.
func (m *Manager) dial(ctx context.Context, id peering.ClusterID, before []error) (*link, error) {
	m.mu.Lock()
	endpoints := slices.Clone(m.peers[id].Endpoints)
	if m.peers[id].InBand {
		endpoints = []string{inBand}
	}
	good := ""
	if n := m.notes[id]; n != nil {
		good = n.lastGood
	}
	m.mu.Unlock()
	if i := slices.Index(endpoints, good); i > 0 {
		endpoints = slices.Insert(slices.Delete(endpoints, i, i+1), 0, good)
	}
	failure := &dialError{Peer: id}
	for _, endpoint := range endpoints {
		l, err := m.dialEndpoint(ctx, id, endpoint)
		if err == nil {
			return l, nil
		}
		if m.hasDirect(id) || ctx.Err() != nil {
			return nil, nil //nolint:nilnil,nilerr // whatever failed, there is nothing left to dial
		}
		at := "at " + endpoint
		if endpoint == inBand {
			at = endpoint
		}
		failure.Tries = append(failure.Tries, fmt.Errorf("%s: %w", at, err))
	}
	if _, answered := errors.AsType[*RefusedError](failure); answered {
		before = nil // another way would lead to the same refusal
	}
	if failure.Tries = append(failure.Tries, before...); len(failure.Tries) == 0 {
		return nil, nil //nolint:nilnil // without an endpoint there is no failure
	}
	return nil, failure
}

// dialAlso begins to dial a peer at the endpoints that others name, after its own failed. No
// administrator vouches for them: they are dialled during the pause before the next round, and
// the cluster there has to prove that it is the peer. Errors are not kept, so that they do not
// hide what is wrong with the peer's own endpoints.
func (m *Manager) dialAlso(ctx, run context.Context, wg *sync.WaitGroup, id peering.ClusterID, d *dialer) {
	m.mu.Lock()
	peer := m.peers[id]
	m.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(peer.Also), func(e string) bool { return slices.Contains(peer.Endpoints, e) })
	if len(all) == 0 || m.cfg.MayDial == nil || !d.trying.CompareAndSwap(false, true) {
		return
	}
	first := d.next
	d.next += alsoTries
	wg.Go(func() {
		defer d.trying.Store(false)
		for i := range min(alsoTries, len(all)) {
			endpoint := all[(first+i)%len(all)]
			if m.hasDirect(id) || ctx.Err() != nil || !m.cfg.MayDial(endpoint) {
				continue
			}
			l, err := m.dialEndpoint(ctx, id, endpoint)
			if l == nil {
				m.cfg.Log.Debug("no session at an endpoint that others name", "peer", id, "endpoint", endpoint, "err", err)
				continue
			}
			if ctx.Err() != nil {
				m.CloseSession(l.info.Number, errStopping)
			}
			m.serve(run, wg, l)
			return
		}
	})
}

// errReserved is why a peer that is Checked is not dialled at an endpoint.
var errReserved = errors.New("the address is one of this cluster's own, or these are not known yet")

// mayDialKey is the context key of the check of addresses in a dial.
type mayDialKey struct{}

// mayDial reports whether an endpoint that no administrator vouches for may be dialled now.
func (m *Manager) mayDial(endpoint string) bool {
	return m.cfg.MayDial != nil && m.cfg.MayDial(endpoint)
}

// checkAddress is a net.Dialer's ControlContext. It checks each address to which a name resolves,
// so that a name cannot lead to an address that may not be dialled.
func checkAddress(ctx context.Context, _, address string, _ syscall.RawConn) error {
	if may, ok := ctx.Value(mayDialKey{}).(func(string) bool); ok && !may(address) {
		return errReserved
	}
	return nil
}

// inBand is used in place of an endpoint for the way through the tunnel.
const inBand = "in-band"

// dialEndpoint brings up a session through one endpoint. It returns neither link nor error if the
// peer's session came up before the handshake.
func (m *Manager) dialEndpoint(ctx context.Context, id peering.ClusterID, endpoint string) (*link, error) {
	raw, host, err := m.connect(ctx, id, endpoint)
	if err != nil {
		return nil, err
	}
	if m.hasDirect(id) {
		_ = raw.Close()
		return nil, nil //nolint:nilnil // the session is there already
	}
	info := Info{Peer: id, Endpoint: endpoint}
	if endpoint == inBand {
		info.Endpoint, info.InBand = "", true
	}
	l, err := m.shake(ctx, raw, info, host)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return l, nil
}

// connect opens a TCP connection to an endpoint, and returns its host.
func (m *Manager) connect(ctx context.Context, id peering.ClusterID, endpoint string) (raw net.Conn, host string, err error) {
	if endpoint == inBand {
		if m.cfg.DialInBand == nil {
			return nil, "", errors.New("this agent cannot dial through tunnels")
		}
		ctx, cancel := context.WithTimeout(ctx, inBandTimeout)
		defer cancel()
		raw, err = m.cfg.DialInBand(ctx, id)
		return raw, "", err
	}
	host, _, err = net.SplitHostPort(endpoint)
	if err != nil {
		return nil, "", errors.New("not host:port")
	}
	dctx := ctx
	m.mu.Lock()
	checked := m.peers[id].Checked
	m.mu.Unlock()
	if checked {
		// Before the timeout begins: MayDial may take a while.
		if _, err := netip.ParseAddr(host); err == nil && !m.mayDial(endpoint) {
			return nil, "", errReserved
		}
		dctx = context.WithValue(ctx, mayDialKey{}, m.mayDial)
	}
	cctx, cancel := context.WithTimeout(dctx, connectTimeout)
	defer cancel()
	raw, err = m.cfg.Dial(cctx, "tcp", endpoint)
	return raw, host, err
}

// shake does the dialling side's handshake and registers the session. info has how the peer was
// reached.
func (m *Manager) shake(ctx context.Context, raw net.Conn, info Info, host string) (*link, error) {
	id := info.Peer
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	cfg := m.cfg.Source.ClientTLS(id, m.cfg.Bundles, serverName(host), protoSession)
	var late *identity.TimeError
	tolerateTime(cfg, func(_ tls.ConnectionState, err *identity.TimeError) bool {
		late = err
		return true
	})
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, alertError(err)
	}
	if p := conn.ConnectionState().NegotiatedProtocol; p != protoSession {
		return nil, fmt.Errorf("the peer does not speak %s", protoSession)
	}
	skew, err := awaitVerdict(conn, id, late)
	if err != nil {
		return nil, err
	}
	auth, err := identity.PeerOf(conn.ConnectionState(), m.cfg.Bundles)
	if err != nil {
		return nil, err
	}
	info.Dialled, info.RemoteAddr = true, raw.RemoteAddr().String()
	info.ClockSkew, info.PeerNotAfter = skew, auth.NotAfter
	if !m.clear(info) {
		return nil, errDuplicate
	}
	return m.bringUp(conn, auth, info)
}

// awaitVerdict waits until the peer lets this side in, and returns how far its clock is ahead.
// late is set if its certificate is not valid now: then only its clock is used.
func awaitVerdict(conn *tls.Conn, id peering.ClusterID, late *identity.TimeError) (skew time.Duration, err error) {
	asked := time.Now()
	code, theirs, err := readPreface(conn)
	now := time.Now()
	switch {
	case late != nil:
		if err == nil {
			late.Clock = theirs
		}
		return 0, late
	case err != nil:
		return 0, alertError(err)
	case code != welcome:
		return 0, &RefusedError{Peer: id, code: code, Clock: theirs, Now: now}
	}
	return skewOf(theirs, asked, now), nil
}

// tolerateTime lets a handshake succeed although the other side's certificate is not valid
// yet or expired, if nothing else is wrong with it and pass says so. The caller has to
// refuse the other side after the handshake: only then can the two exchange their clocks,
// so that an administrator learns which one is wrong.
func tolerateTime(cfg *tls.Config, pass func(tls.ConnectionState, *identity.TimeError) bool) {
	verify := cfg.VerifyConnection
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		err := verify(cs)
		if late, ok := errors.AsType[*identity.TimeError](err); ok && pass(cs, late) {
			return nil
		}
		return err
	}
}

// serverName is the SNI to send: a DNS name or nothing.
func serverName(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return strings.TrimSuffix(host, ".")
}

// errGeneration: the peer responds, but does not speak the protocol of sessions.
var errGeneration = errors.New("the peer's agent does not speak " + protoSession + ": the two agents are too many versions apart; upgrade the older one")

// alertError returns a readable error if the other side aborted the handshake.
func alertError(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		// crypto/tls does not export its alerts (RFC 7301, section 3.2).
		if op.Err.Error() == "tls: no application protocol" {
			return errGeneration
		}
		return fmt.Errorf("the peer did not accept this cluster's certificate (%w); this cluster's clock says %s: if the peer's differs much, set the clocks right",
			err, time.Now().UTC().Format(time.RFC3339))
	}
	return err
}
