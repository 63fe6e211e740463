package fabric

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/relay"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

const patience = 5 * time.Second

// idleRelays are those of a node without in-band peers.
func idleRelays(t *testing.T) *inBandRelays {
	t.Helper()
	r, err := newInBandRelays(slog.New(slog.DiscardHandler), func() []tunnel.PeerStatus { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func inBandTunnel(peer string) v1alpha1.Tunnel {
	t := tunnelTo(peer, 0)
	t.Spec.Local, t.Spec.Remote = nil, nil
	t.Spec.InBand = &v1alpha1.TunnelInBand{Agent: "10.200.1.7:7448"}
	return t
}

func TestRelaysOfANodeAdmitItsInBandPeersOnly(t *testing.T) {
	t.Parallel()
	psk := bytes.Repeat([]byte{1}, 32)
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	own.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"}}
	gateway := fabricNode("a", "me", keyA, true)
	gateway.Status.Endpoints = []string{"10.0.0.1:51820", "192.0.2.1:51820"}
	worker := fabricNode("b", "me", keyB, false)
	worker.Status.Endpoints = []string{"10.0.0.2:51820"}
	nodes := []v1alpha1.FabricNode{gateway, worker}
	of := func(node *corev1.Node, nodes []v1alpha1.FabricNode, tunnels ...v1alpha1.Tunnel) relayTable {
		return inBandTable(node, nodes, tunnels, Known{}.Update(nodes, tunnels, map[string][]byte{"p": psk, "q": psk}))
	}

	table := of(own, nodes, inBandTunnel("p"), tunnelTo("q", 0), inBandTunnel("without a key"))
	if _, ok := table.peers["p"]; !ok || len(table.peers) != 1 {
		t.Fatalf("in-band peers are %v", table.peers)
	}
	text := func(list []netip.Addr) (out []string) {
		for _, a := range list {
			out = append(out, a.String())
		}
		return out
	}
	if diff := cmp.Diff([]string{"10.0.0.1"}, text(table.own)); diff != "" {
		t.Errorf("it listens (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.0.0.1", "10.0.0.2", "10.200.1.7", "192.0.2.1"}, text(table.from)); diff != "" {
		t.Errorf("who reaches it (-want +got)\n%s", diff)
	}
	if table.overlay != plan.Overlay("me", "a") || table.peers["p"].agent != netip.MustParseAddrPort("10.200.1.7:7448") {
		t.Errorf("overlay %v, agent %v", table.overlay, table.peers["p"].agent)
	}
	if id, ok := table.peerAt(netip.MustParseAddr("fd00::2")); id != "p" || !ok {
		t.Errorf("at the address of p's gateway is %q", id)
	}
	if _, ok := table.peerAt(netip.MustParseAddr("fd00::3")); ok {
		t.Error("an address that no peer has leads to a peer")
	}

	bad := inBandTunnel("p")
	bad.Spec.InBand.Agent = "agent:7448"
	other := own.DeepCopy()
	other.Name = "b"
	for name, got := range map[string]relayTable{
		"without in-band peers":                 of(own, nodes, tunnelTo("q", 0)),
		"that is not a gateway":                 of(other, nodes, inBandTunnel("p")),
		"that does not know its cluster":        of(own, []v1alpha1.FabricNode{fabricNode("a", "", keyA, true)}, inBandTunnel("p")),
		"that does not know where its agent is": of(own, nodes, bad),
	} {
		if len(got.listens(1)) > 0 || len(got.from) > 0 {
			t.Errorf("a node %s has relays: %+v", name, got)
		}
	}
}

func TestGatewaysAreTriedInTheOrderOfTheirProbes(t *testing.T) {
	t.Parallel()
	table := relayTable{peers: map[string]relayPeer{"p": {}}}
	p := table.peers["p"]
	var observed []tunnel.PeerStatus
	for i, s := range []struct {
		name  string
		state probe.PathState
		rtt   time.Duration
	}{{"down", probe.PathDown, 0}, {"far", probe.PathUp, 2}, {"new", probe.PathUnknown, 0}, {"near", probe.PathUp, 1}} {
		p.gateways = append(p.gateways, relayGateway{s.name, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})})
		observed = append(observed, tunnel.PeerStatus{Cluster: "p", Node: s.name, Remote: true, State: s.state, RTT: s.rtt})
	}
	p.gateways = append(p.gateways, relayGateway{"never seen", netip.AddrFrom4([4]byte{10, 0, 0, 9})})
	table.peers["p"] = p
	var got []string
	for _, g := range table.ordered("p", observed) {
		got = append(got, g.node)
	}
	if diff := cmp.Diff([]string{"near", "far", "never seen", "new", "down"}, got); diff != "" {
		t.Errorf("order (-want +got)\n%s", diff)
	}
	for _, g := range p.gateways {
		if keeps := table.keeps(relay.Way{Peer: "p", Gateway: g.overlay}, observed); keeps != (g.node != "down") {
			t.Errorf("a connection by gateway %s is kept: %v", g.node, keeps)
		}
	}
	if table.keeps(relay.Way{Peer: "q", Gateway: p.gateways[1].overlay}, observed) || table.keeps(relay.Way{Peer: "p", Gateway: netip.MustParseAddr("10.9.9.9")}, observed) {
		t.Error("a connection of a peer or a gateway that is gone is kept")
	}
}

// border is two nodes' relays whose overlay addresses are of loopback. What connects there
// comes from 127.0.0.1, which is home's.
type border struct {
	home, abroad *inBandRelays
	port         uint16
	// ways is how home sees abroad's gateways.
	ways atomic.Pointer[[]tunnel.PeerStatus]
	// agent is abroad's.
	agent *relay.Listener
}

func loopback(last byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, last}) }

func newBorder(t *testing.T) *border {
	t.Helper()
	b := &border{}
	b.ways.Store(&[]tunnel.PeerStatus{})
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.port = netip.MustParseAddrPort(free.Addr().String()).Port()
	_ = free.Close()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, toAgent := b.keys(t)
	log := slog.New(slog.DiscardHandler)
	b.agent, err = relay.Listen(relay.ListenerConfig{
		Listener: inner, Log: log, Keys: func(peer string) []relay.Key {
			if peer != "home" {
				return nil
			}
			return []relay.Key{toAgent}
		},
		Address: func(string) net.Addr { return &net.TCPAddr{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.agent.Close() })
	run := func(observe func() []tunnel.PeerStatus, table relayTable) *inBandRelays {
		r, err := newInBandRelays(log, observe)
		if err != nil {
			t.Fatal(err)
		}
		r.port = b.port
		r.Set(table)
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the relays ended with %v", err)
			}
		})
		return r
	}
	b.abroad = run(func() []tunnel.PeerStatus { return nil }, b.abroadTable(t))
	b.home = run(func() []tunnel.PeerStatus { return *b.ways.Load() }, b.homeTable(t))
	for _, r := range []*inBandRelays{b.home, b.abroad} {
		eventually(t, "the relays listen", func() bool { return len(r.Listening()) == 1 })
	}
	return b
}

func (b *border) keys(t *testing.T) (toPeer, toAgent relay.Key) {
	t.Helper()
	toPeer, err := relay.KeyFrom([32]byte{1}, relay.ToPeer)
	toAgent, errAgent := relay.KeyFrom([32]byte{1}, relay.ToAgent)
	if err != nil || errAgent != nil {
		t.Fatal(err, errAgent)
	}
	return toPeer, toAgent
}

// abroadTable is that of a node abroad.
func (b *border) abroadTable(t *testing.T) relayTable {
	_, toAgent := b.keys(t)
	return relayTable{overlay: loopback(2), own: []netip.Addr{loopback(3)}, peers: map[string]relayPeer{
		"home": {agent: netip.MustParseAddrPort(b.agent.Addr().String()), toAgent: toAgent, gateways: []relayGateway{{"gw", loopback(1)}}},
	}}
}

// homeTable is that of a node at home, with a gateway abroad whose port is closed.
func (b *border) homeTable(t *testing.T) relayTable {
	toPeer, _ := b.keys(t)
	return relayTable{overlay: loopback(4), own: []netip.Addr{loopback(5)}, from: []netip.Addr{loopback(1)}, peers: map[string]relayPeer{
		"abroad": {toPeer: []relay.Key{toPeer}, gateways: []relayGateway{{"away", loopback(6)}, {"gw", loopback(2)}}},
	}}
}

// ask is what home's agent does.
func (b *border) ask(t *testing.T, key relay.Key) (net.Conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", b.home.Listening()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, relay.Ask(conn, "abroad", key, patience)
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

func closedSoon(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	return err != nil && (!errors.As(err, &timeout) || !timeout.Timeout())
}

func TestTwoAgentsReachEachOtherByTheirGateways(t *testing.T) {
	b := newBorder(t)
	toPeer, toAgent := b.keys(t)
	conn, err := b.ask(t, toPeer)
	if err != nil {
		t.Fatal(err)
	}
	met, err := b.agent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = met.Close() }()
	if got := met.(*relay.Conn).Peer(); got != "home" {
		t.Errorf("the agent gets a connection of %s", got)
	}
	for _, way := range [][2]net.Conn{{conn, met}, {met, conn}} {
		if _, err := io.WriteString(way[0], "hello"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != "hello" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	// The key that proves the fabric to the agent is of no use to reach a peer.
	if _, err := b.ask(t, toAgent); err == nil {
		t.Error("a relay took the key of the other direction")
	}

	// The way by its gateway goes down.
	b.ways.Store(&[]tunnel.PeerStatus{{Cluster: "abroad", Node: "gw", Remote: true, State: probe.PathDown}})
	b.home.kick.Notify()
	if !closedSoon(conn) || !closedSoon(met) {
		t.Error("a connection goes on by a gateway that is gone")
	}
	b.ways.Store(&[]tunnel.PeerStatus{})
	eventually(t, "the way is up", func() bool {
		b.home.kick.Notify()
		c, err := b.ask(t, toPeer)
		if err != nil {
			return false
		}
		met, err := b.agent.Accept()
		return err == nil && c.Close() == nil && met.Close() == nil
	})

	if conn, err = b.ask(t, toPeer); err != nil {
		t.Fatal(err)
	}
	if met, err = b.agent.Accept(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = met.Close() }()
	// The tunnel ends, on one side.
	b.abroad.Set(relayTable{})
	if !closedSoon(conn) || !closedSoon(met) {
		t.Error("a connection outlives its tunnel")
	}
	// Listening is empty as soon as the configuration is; the listener closes a moment later.
	eventually(t, "nothing listens any more", func() bool {
		c, err := net.Dial("tcp", netip.AddrPortFrom(loopback(2), b.port).String())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if _, err := b.ask(t, toPeer); err == nil || !strings.Contains(err.Error(), "reaches no gateway") {
		t.Errorf("a peer that is gone: %v", err)
	}
}

func TestAPeersGatewayTakesABoundedPartOfARelay(t *testing.T) {
	b := newBorder(t)
	at := netip.AddrPortFrom(loopback(2), b.port).String()
	var conns []net.Conn
	for range 20 {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		conns = append(conns, conn)
	}
	// Those that are let in reach the agent, and no more of them than a peer may have.
	accepted := make(chan net.Conn, len(conns))
	go func() {
		for {
			c, err := b.agent.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	closed := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) || err != nil && strings.Contains(err.Error(), "reset") {
			closed++
		}
	}
	if let := len(conns) - closed; let < 1 || let > 8 || len(accepted) > 8 {
		t.Errorf("%d connections of one peer were let in, %d reached the agent", let, len(accepted))
	}

	// Connections of addresses that are not those of a peer's gateway are refused.
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}}
	conn, err := other.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if !closedSoon(conn) {
		t.Error("a stranger was let in")
	}
}

func TestRelaysThatCannotListenReportIt(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	r := idleRelays(t)
	r.port = netip.MustParseAddrPort(taken.Addr().String()).Port()
	r.Set(relayTable{overlay: loopback(9), peers: map[string]relayPeer{"p": {}}})
	r.adjust(t.Context())
	if len(r.Problems()) > 0 || len(r.failed) != 1 {
		t.Fatalf("problems %q at once, failures %v", r.Problems(), r.failed)
	}
	for at, f := range r.failed {
		f.since = time.Now().Add(-listenPatience)
		r.failed[at] = f
	}
	if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0], "cannot listen on TCP 127.0.0.9") {
		t.Errorf("problems %q", p)
	}
	r.Set(relayTable{})
	r.adjust(t.Context())
	if len(r.failed) > 0 {
		t.Error("a problem outlives what it is about")
	}
}
