package relay

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// ListenerConfig configures a Listener. All fields are required.
type ListenerConfig struct {
	// Listener is where inbound relays dial the agent. The Listener closes it.
	Listener net.Listener
	// Keys returns the keys of a peer that is in-band, each of which is accepted.
	Keys func(peer string) []Key
	// Address returns the address from which a peer's connections count as coming: a relay
	// has one address for all peers.
	Address func(peer string) net.Addr
	Log     *slog.Logger
}

// Listener accepts the connections of peers that come from inbound relays.
type Listener struct {
	cfg  ListenerConfig
	warn rate.Sometimes
	out  chan *Conn
	done chan struct{}
	once sync.Once

	mu sync.Mutex
	// pending are the connections that were not handed out yet, with their remote addresses.
	pending map[net.Conn]netip.Addr
}

// Conn is a connection of a peer, as a relay of this cluster announced it.
type Conn struct {
	net.Conn
	peer string
	addr net.Addr
}

// Peer returns the ID of the cluster from whose gateway the connection comes.
func (c *Conn) Peer() string { return c.peer }

// RemoteAddr returns the address that counts as the peer's, not that of the relay.
func (c *Conn) RemoteAddr() net.Addr { return c.addr }

// Listen begins to accept connections.
func Listen(cfg ListenerConfig) (*Listener, error) {
	if cfg.Listener == nil || cfg.Keys == nil || cfg.Address == nil || cfg.Log == nil {
		return nil, errors.New("relay: Listener, Keys, Address and Log are required")
	}
	l := &Listener{
		cfg: cfg, warn: rate.Sometimes{Interval: time.Minute}, out: make(chan *Conn), done: make(chan struct{}), pending: map[net.Conn]netip.Addr{},
	}
	go l.accept()
	return l, nil
}

// Accept implements net.Listener. It returns a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.out:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.cfg.Listener.Addr() }

// Close implements net.Listener. It also closes connections that have not proven their peer yet.
func (l *Listener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.done)
		err = l.cfg.Listener.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.pending {
			_ = c.Close()
		}
	})
	return err
}

func (l *Listener) accept() {
	for {
		conn, err := l.cfg.Listener.Accept()
		switch {
		case err == nil:
			if l.begin(conn) {
				go l.prove(conn)
			} else {
				_ = conn.Close()
			}
			continue
		case errors.Is(err, net.ErrClosed):
			_ = l.Close()
			return
		}
		l.warn.Do(func() { l.cfg.Log.Warn("cannot accept a connection of a relay", "err", err) })
		select {
		case <-l.done:
			return
		case <-time.After(acceptPause):
		}
	}
}

// begin counts a connection that has not proven its peer yet. It returns false beyond the limits.
func (l *Listener) begin(conn net.Conn) bool {
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return false
	}
	addr := remote.Addr().Unmap()
	l.mu.Lock()
	defer l.mu.Unlock()
	same := 0
	for _, a := range l.pending {
		if a == addr {
			same++
		}
	}
	select {
	case <-l.done:
		return false
	default:
	}
	if len(l.pending) >= maxUnproven || same >= maxUnprovenOfAddress {
		l.warn.Do(func() {
			l.cfg.Log.Warn("refusing connections of relays: limit reached", "address", addr.String(), "ofAddress", same, "all", len(l.pending))
		})
		return false
	}
	l.pending[conn] = addr
	return true
}

// prove reads the peer of a connection, and hands the connection out.
func (l *Listener) prove(conn net.Conn) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pending, conn)
	}()
	peer, err := l.read(conn)
	if err != nil {
		l.warn.Do(func() {
			l.cfg.Log.Warn("refused a connection that is not from a relay", "from", conn.RemoteAddr().String(), "err", err)
		})
		_ = conn.Close()
		return
	}
	select {
	case l.out <- &Conn{Conn: conn, peer: peer, addr: l.cfg.Address(peer)}:
	case <-l.done:
		_ = conn.Close()
	}
}

func (l *Listener) read(conn net.Conn) (peer string, err error) {
	if err := conn.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return "", err
	}
	if peer, err = readRequest(conn, l.cfg.Keys); err != nil {
		_, _ = conn.Write([]byte{responseRefused})
		return "", err
	}
	if _, err := conn.Write([]byte{responseOK}); err != nil {
		return "", err
	}
	return peer, conn.SetDeadline(time.Time{})
}
