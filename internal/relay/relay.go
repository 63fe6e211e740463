package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/internal/accept"
)

// Config configures a Relay. All fields are required.
type Config struct {
	// Admit returns the account of a connection from an address, or false to refuse it
	// before reading from it.
	Admit func(from netip.Addr) (account string, ok bool)
	// Open returns the other end for a connection that was admitted. It may read the bytes
	// before the session.
	Open func(ctx context.Context, conn net.Conn) (End, error)
	Log  *slog.Logger
}

// End is the other end of a connection that a relay accepted.
type End struct {
	Conn net.Conn
	Way
}

// Way is where a connection leads: to or from a gateway of a peer.
type Way struct {
	// Peer is the cluster ID of the peer, to whose account the connection moves once it is known.
	Peer string
	// Gateway is the overlay address of the gateway.
	Gateway netip.Addr
}

// Relay connects connections that it accepts with others that it opens.
type Relay struct {
	cfg  Config
	warn rate.Sometimes

	mu       sync.Mutex
	conns    map[*passage]struct{}
	accounts map[string]int
	keep     func(Way) bool
}

// passage is a connection that was accepted, and the one that it leads to.
type passage struct {
	accept net.Conn
	cancel context.CancelFunc
	// account is that of its sender. way is zero until it is known. Relay.mu guards both.
	account string
	way     Way
}

// New returns a relay that does not listen yet.
func New(cfg Config) (*Relay, error) {
	if cfg.Admit == nil || cfg.Open == nil || cfg.Log == nil {
		return nil, errors.New("relay: Admit, Open and Log are required")
	}
	return &Relay{cfg: cfg, warn: rate.Sometimes{Interval: time.Minute}, conns: map[*passage]struct{}{}, accounts: map[string]int{}}, nil
}

// Serve relays the connections of a listener until ctx ends or the listener is closed. It closes
// the listener and returns after the last connection has ended.
func (r *Relay) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	return accept.Each(ctx, listener, func(err error) {
		r.warn.Do(func() { r.cfg.Log.Warn("relay cannot accept a connection", "err", err) })
	}, func(conn net.Conn) {
		pass, own := r.begin(ctx, conn)
		if pass == nil {
			_ = conn.Close()
			return
		}
		tasks.Go(func() {
			defer r.end(pass)
			r.run(own, pass)
		})
	})
}

// Cut ends the connections whose ways keep does not keep, and refuses new ones of that kind from now on.
// keep must not call the relay.
func (r *Relay) Cut(keep func(Way) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep = keep
	for p := range r.conns {
		if p.way.Peer != "" && !keep(p.way) {
			p.cancel()
		}
	}
}

// begin counts a connection. It returns nil if the connection is refused.
func (r *Relay) begin(ctx context.Context, conn net.Conn) (*passage, context.Context) {
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return nil, nil
	}
	account, ok := r.cfg.Admit(remote.Addr().Unmap().WithZone(""))
	if !ok {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.conns) >= maxConns || r.accounts[account] >= maxAccountConns {
		r.warn.Do(func() {
			r.cfg.Log.Warn("relay refuses connections: limit reached", "sender", account, "connections", len(r.conns), "ofSender", r.accounts[account])
		})
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	pass := &passage{account: account, accept: conn, cancel: cancel}
	r.conns[pass] = struct{}{}
	r.accounts[account]++
	return pass, ctx
}

func (r *Relay) end(p *passage) {
	p.cancel()
	_ = p.accept.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, p)
	r.uncount(p.account)
}

// uncount removes a connection from an account. The caller has the lock.
func (r *Relay) uncount(account string) {
	if r.accounts[account]--; r.accounts[account] == 0 {
		delete(r.accounts, account)
	}
}

// run opens the other end and passes bytes until one of them ends.
func (r *Relay) run(ctx context.Context, p *passage) {
	defer context.AfterFunc(ctx, func() { _ = p.accept.Close() })()
	other, err := r.open(ctx, p)
	if err != nil {
		r.warn.Do(func() { r.cfg.Log.Warn("relay cannot connect", "from", p.accept.RemoteAddr().String(), "err", err) })
		return
	}
	defer func() { _ = other.Close() }()
	defer context.AfterFunc(ctx, func() { _ = other.Close() })()
	pass(p.accept, other)
}

func (r *Relay) open(ctx context.Context, p *passage) (net.Conn, error) {
	if err := p.accept.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	other, err := r.cfg.Open(opening, p.accept)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.opened(p, other.Way), p.accept.SetDeadline(time.Time{})); err != nil {
		_ = other.Conn.Close()
		return nil, err
	}
	return other.Conn, nil
}

// opened moves a connection to the account of its peer.
func (r *Relay) opened(p *passage, way Way) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keep != nil && !r.keep(way) {
		return fmt.Errorf("relay for peer %s: its tunnel is gone, or the way by %s is down", way.Peer, way.Gateway)
	}
	if way.Peer != p.account {
		if r.accounts[way.Peer] >= maxAccountConns {
			return fmt.Errorf("relay for peer %s: limit of %d connections reached (maxAccountConns)", way.Peer, maxAccountConns)
		}
		r.uncount(p.account)
		r.accounts[way.Peer]++
	}
	p.account, p.way = way.Peer, way
	return nil
}
