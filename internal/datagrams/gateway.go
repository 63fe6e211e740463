package datagrams

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/entente-dev/entente/internal/notify"
)

// GatewayConfig configures a Gateway.
type GatewayConfig struct {
	// Dial connects to the agent. Required.
	Dial func(ctx context.Context) (net.Conn, error)
	// Port is the UDP port of the node's WireGuard, Local the port on the loopback addresses of
	// gateways of peers, if it is free there. Both are required.
	Port, Local int
	// Log is required.
	Log *slog.Logger
}

// Peer is a peer whose gateways may have to be reached through the agents.
type Peer struct {
	ID  string
	Key Key
	// Gateways are the WireGuard public keys of its gateways.
	Gateways [][32]byte
	// Needed says that some gateway of it is not reached otherwise: there is a link then.
	Needed bool
}

// Gateway is the part in a gateway node: between its WireGuard, to which each gateway
// of a peer is an address on loopback, and links to the agent.
type Gateway struct {
	cfg     GatewayConfig
	changed chan struct{}

	mu sync.Mutex
	// self is the node's own WireGuard public key, needed the peers that need a link.
	self    [32]byte
	needed  map[string]Key
	sockets map[socketID]*socket
	links   map[string]*uplink
	// reading counts the readers of sockets.
	reading sync.WaitGroup
}

type socketID struct {
	peer    string
	gateway Tag
}

// socket is the address of a gateway of a peer.
type socket struct {
	conn *net.UDPConn
	at   netip.AddrPort
	// delayed are the datagrams that are delayed until release; nil while none are.
	delayed *queue
	release *time.Timer
}

// uplink is the link of a peer, which may be being made.
type uplink struct {
	self   [32]byte
	queue  *queue
	cancel context.CancelFunc
}

// NewGateway returns a Gateway without peers.
func NewGateway(cfg GatewayConfig) (*Gateway, error) {
	if cfg.Dial == nil || cfg.Log == nil || cfg.Port <= 0 || cfg.Local <= 0 {
		return nil, errors.New("datagrams: Dial, Port, Local and Log are required")
	}
	return &Gateway{cfg: cfg, changed: make(chan struct{}, 1), sockets: map[socketID]*socket{}, links: map[string]*uplink{}}, nil
}

// Set replaces the peers. self is the node's own WireGuard public key. The sockets and links of those
// that stay are kept.
func (g *Gateway) Set(self [32]byte, peers []Peer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	keep := map[socketID]bool{}
	g.self, g.needed = self, map[string]Key{}
	for _, p := range peers {
		for _, k := range p.Gateways {
			keep[socketID{p.ID, tagOf(k)}] = true
		}
		if p.Needed && self != [32]byte{} {
			g.needed[p.ID] = p.Key
		}
	}
	for id, s := range g.sockets {
		if !keep[id] {
			_ = s.conn.Close()
			delete(g.sockets, id)
		}
	}
	for id := range keep {
		if g.sockets[id] == nil && len(g.sockets) < MaxSockets {
			if err := g.open(id); err != nil {
				g.cfg.Log.Warn("no address on loopback for a gateway of a peer", "peer", id.peer, "err", err)
			}
		}
	}
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Run keeps the links of peers that need one until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	var linking sync.WaitGroup
	defer func() {
		g.Set([32]byte{}, nil)
		linking.Wait()
		g.reading.Wait()
	}()
	for {
		g.mu.Lock()
		for id, l := range g.links {
			// A changed preshared key is used for the next link.
			if _, ok := g.needed[id]; !ok || g.self != l.self {
				l.cancel()
				delete(g.links, id)
			}
		}
		for id := range g.needed {
			if g.links[id] == nil {
				l := &uplink{self: g.self, queue: newQueue()}
				var own context.Context
				own, l.cancel = context.WithCancel(ctx)
				g.links[id] = l
				linking.Go(func() { g.connect(own, id, l) })
			}
		}
		g.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-g.changed:
		}
	}
}

// Endpoint returns the address at which the node's WireGuard reaches a gateway of a peer through the
// agents. It returns false if that gateway has no address here.
func (g *Gateway) Endpoint(peer string, gateway [32]byte) (netip.AddrPort, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sockets[socketID{peer, tagOf(gateway)}]
	if s == nil {
		return netip.AddrPort{}, false
	}
	return s.at, true
}

// loopback returns the address on loopback for a gateway of a peer. It is always the same, so that
// WireGuard finds it again after a restart, and differs between gateways, since WireGuard limits
// handshakes by address. 127.64.0.0/10 is rarely used otherwise.
func loopback(id socketID) netip.Addr {
	sum := sha256.Sum256(append([]byte("entente loopback\x00"+id.peer+"\x00"), id.gateway[:]...))
	return netip.AddrFrom4([4]byte{127, 64 | sum[0]&63, sum[1], sum[2]})
}

// open opens the socket of a gateway. The caller has the lock.
func (g *Gateway) open(id socketID) error {
	wireguard := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(g.cfg.Port)))
	local := loopback(id)
	// Connected, so that it receives only from the node's WireGuard.
	conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, uint16(g.cfg.Local))), wireguard)
	if errors.Is(err, syscall.EADDRINUSE) {
		conn, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)), wireguard)
	}
	if err != nil {
		return fmt.Errorf("open a socket on loopback: %w", err)
	}
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
	at, ok := netip.AddrFromSlice(conn.LocalAddr().(*net.UDPAddr).IP.To4()) //nolint:forcetypeassert // what DialUDP gives
	if !ok {
		_ = conn.Close()
		return errors.New("a socket without an address")
	}
	s := &socket{conn: conn, at: netip.AddrPortFrom(at, uint16(conn.LocalAddr().(*net.UDPAddr).Port))} //nolint:forcetypeassert // as above
	g.sockets[id] = s
	g.reading.Go(func() { g.read(id, s) })
	return nil
}

// read passes on the datagrams of WireGuard to a gateway of a peer, until the socket is closed.
func (g *Gateway) read(id socketID, s *socket) {
	buffer := make([]byte, MaxDatagram+1)
	for {
		n, err := s.conn.Read(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // such as when WireGuard did not listen a moment ago
		case kindOf(buffer[:n]) == kindNone:
			continue
		}
		g.mu.Lock()
		l := g.links[id.peer]
		g.mu.Unlock()
		if l != nil {
			l.queue.push(time.Now(), Tag{}, id.gateway, buffer[:n])
		}
	}
}

// connect keeps the link of a peer until ctx ends.
func (g *Gateway) connect(ctx context.Context, id string, l *uplink) {
	defer l.cancel()
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		began := time.Now()
		err := g.link(ctx, id, l)
		if ctx.Err() != nil {
			return
		}
		g.cfg.Log.Warn("no link to the agent for a peer's datagrams", "peer", id, "err", err)
		if time.Since(began) > retryMax {
			pause = retryMin
		}
		if !notify.Pause(ctx, pause) {
			return
		}
	}
}

// link makes the link of a peer and serves it until it ends.
func (g *Gateway) link(ctx context.Context, id string, l *uplink) error {
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	conn, err := g.cfg.Dial(dialling)
	cancel()
	if err != nil {
		return fmt.Errorf("dial the agent: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	g.mu.Lock()
	key := g.needed[id]
	g.mu.Unlock()
	if err := ask(conn, request{gateway: l.self, peer: id}, key); err != nil {
		return err
	}
	g.cfg.Log.Info("the agent carries datagrams", "peer", id)
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stop()
	writing.Go(func() {
		_ = writeLink(ctx, conn, l.queue, func(i item) Tag { return i.to })
		_ = conn.Close()
	})
	return readLink(conn, func(from Tag, datagram []byte) { g.deliver(id, from, datagram) })
}

// Delay delays for d the datagrams for the node's WireGuard from the gateway of a peer that has an
// address on loopback. Those for which there is no room, or that wait too long, are lost. If some are
// delayed already they are delayed for d from now.
func (g *Gateway) Delay(at netip.AddrPort, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.sockets {
		if s.at != at {
			continue
		}
		d = min(d, maxWait)
		if s.delayed != nil {
			s.release.Reset(d)
			continue
		}
		s.delayed = newQueue()
		s.release = time.AfterFunc(d, func() {
			g.mu.Lock()
			delayed := s.delayed
			s.delayed = nil
			g.mu.Unlock()
			if delayed == nil {
				return // the timer was set again while this began
			}
			for _, i := range delayed.take(time.Now(), maxQueued) {
				_, _ = s.conn.Write(i.data)
			}
		})
	}
}

// deliver sends a datagram of a gateway of a peer to the node's WireGuard.
func (g *Gateway) deliver(id string, from Tag, datagram []byte) {
	g.mu.Lock()
	s := g.sockets[socketID{id, from}]
	if s == nil || kindOf(datagram) == kindNone {
		g.mu.Unlock()
		return
	}
	delayed := s.delayed != nil
	if delayed {
		s.delayed.push(time.Now(), from, Tag{}, datagram)
	}
	g.mu.Unlock()
	if !delayed {
		_, _ = s.conn.Write(datagram) // if there is no room it is lost
	}
}
