package session

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc/resolver"

	"github.com/entente-dev/entente/peering"
)

// routeScheme is the scheme of a client connection's target; the rest of it is
// the peer.
const routeScheme = "session"

// routes resolves peers to their sessions, for gRPC. Each session is an address of its own: gRPC
// connects to a new one at once, whatever happened to the last.
type routes struct{ m *Manager }

func (routes) Scheme() string { return routeScheme }

// Build implements resolver.Builder. gRPC calls it when a client connection is
// first used, and again when it was idle meanwhile.
func (b routes) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	r := &route{m: b.m, peer: peering.ClusterID(target.Endpoint()), cc: cc, updating: true}
	b.m.mu.Lock()
	b.m.routes[r.peer] = r
	b.m.mu.Unlock()
	r.pass()
	return r, nil
}

// route passes one client connection the session to use, or why there is no session.
type route struct {
	m    *Manager
	peer peering.ClusterID
	cc   resolver.ClientConn

	// The manager's lock guards the rest. number and reason are what gRPC last got; updating means
	// that a goroutine is passing on a change.
	number   uint64
	reason   string
	updating bool
	closed   bool
}

// update passes a change on to gRPC. The manager's lock is held, under which gRPC's own
// must not be taken.
func (m *Manager) update(id peering.ClusterID) {
	if r := m.routes[id]; r != nil && !r.updating {
		r.updating = true
		go r.pass() // ends when gRPC is up to date
	}
}

// pass passes the current state to gRPC, until nothing changed meanwhile.
func (r *route) pass() {
	for {
		number, reason, had, more := r.next()
		switch {
		case !more:
			return
		case number != 0:
			// Its error would be that of the balancer, which tries again by itself.
			_ = r.cc.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: routeAddress(number)}}})
		default:
			if had {
				// An error alone leaves the last address in use.
				_ = r.cc.UpdateState(resolver.State{})
			}
			r.cc.ReportError(errors.New(reason))
		}
	}
}

// next returns what gRPC did not get yet: a session, or why there is no session, and whether gRPC
// had one before. more is false if gRPC is up to date.
func (r *route) next() (number uint64, reason string, had, more bool) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if l := r.m.links[r.peer]; l != nil {
		number = l.info.Number
	} else {
		reason = r.m.noSession(r.peer).Error()
	}
	if r.closed || number == r.number && reason == r.reason {
		r.updating = false
		return 0, "", false, false
	}
	had = r.number != 0
	r.number, r.reason = number, reason
	return number, reason, had, true
}

// ResolveNow implements resolver.Resolver. Changes are passed on at once.
func (*route) ResolveNow(resolver.ResolveNowOptions) {}

func (r *route) Close() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.closed = true
	if r.m.routes[r.peer] == r {
		delete(r.m.routes, r.peer)
	}
}

func routeAddress(number uint64) string { return "session-" + strconv.FormatUint(number, 10) }

// noSession returns why there is no session with a peer. The caller holds the lock.
func (m *Manager) noSession(id peering.ClusterID) error {
	if n := m.notes[id]; n != nil && n.err != nil {
		return fmt.Errorf("no session with %s: %w", id, n.err)
	}
	return fmt.Errorf("no session with %s: waiting for it to come up", id)
}

// open opens a stream to a peer, for gRPC, in the session with this address.
func (m *Manager) open(id peering.ClusterID, address string) (net.Conn, error) {
	m.mu.Lock()
	l, none := m.links[id], m.noSession(id)
	m.mu.Unlock()
	if l == nil {
		return nil, none
	}
	if routeAddress(l.info.Number) != address {
		return nil, fmt.Errorf("%s with %s was replaced by another session", address, id)
	}
	stream, err := l.mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open stream to %s: %w", id, err)
	}
	return &Conn{Conn: stream, info: l.auth}, nil
}
