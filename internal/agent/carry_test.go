package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/exchange"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// carryNode is one cluster's agent as far as sessions go: its peer API with all of its limits,
// and its sessions, on loopback. Which peers have contracts can be set.
type carryNode struct {
	*agent
	stop      func()
	contracts atomic.Bool
}

// walls keeps nodes from dialling each other.
type walls struct {
	mu     sync.Mutex
	closed map[string]bool // by address
	tries  atomic.Int64
}

func (w *walls) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	closed := w.closed[address]
	w.mu.Unlock()
	if closed {
		w.tries.Add(1)
		return nil, errors.New("no route to host")
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

func (w *walls) set(address string, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed[address] = closed
}

func startCarryNode(t *testing.T, w *walls, cfg CarryConfig) *carryNode {
	t.Helper()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := identity.NewSource(identity.SourceConfig{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Rate, cfg.AllRate = 1<<20, 4<<20
	n := &carryNode{agent: &agent{source: source, bundles: identity.NewBundles(), log: slog.New(slog.DiscardHandler)}}
	n.contracts.Store(true)
	n.exchange = exchange.New(&controller.States{
		Client: indexed(fake.NewClientBuilder().WithScheme(kube.Scheme())), Namespace: "entente-system", Endpoints: func() []string { return nil },
		Budget: &store.WriteBudget{Now: time.Now},
	}, n.log)
	if n.thirds, err = n.buildThirds(cfg); err != nil {
		t.Fatal(err)
	}
	n.thirds.contracted = func(peering.ClusterID) bool { return n.contracts.Load() }
	peer, err := server.NewPeer(server.PeerConfig{
		Log: n.log, Credentials: session.ServerCredentials(), Self: source.ID(), Trusted: n.bundles.Has, Carrier: n.thirds,
		Trust: joining{}, Introductions: introductions{}, Proofs: proofs{}, Negotiator: negotiator{}, Contracts: struct{ server.Contracts }{}, Offers: struct{ server.Offers }{}, Sessions: struct{ server.Sessions }{},
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := session.Config{Source: source, Bundles: n.bundles, Server: peer.GRPC(), Listener: listener, Dial: w.dial, Log: n.log}
	if cfg.Through {
		config.Carried, config.DialThrough, config.Carries = n.thirds.listener, n.thirds.dial, n.exchange.Carries
	}
	if n.sessions, err = session.New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{func(ctx context.Context) error { return peer.Run(ctx) }, n.sessions.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	n.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(n.stop)
	return n
}

// knows makes nodes trust each other.
func knows(t *testing.T, nodes ...*carryNode) {
	t.Helper()
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				if err := a.bundles.Trust(b.source.ID(), b.source.Identity().TrustBundle()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// dials has a node dial others.
func (n *carryNode) dials(others ...*carryNode) {
	var peers []session.Peer
	for _, o := range others {
		peers = append(peers, session.Peer{ID: o.source.ID(), Endpoints: []string{o.sessions.Addr().String()}})
	}
	n.sessions.SetPeers(peers)
}

// hears gives a node the state of a peer, which has whether that carries.
func (n *carryNode) hears(t *testing.T, third *carryNode) {
	t.Helper()
	state := &ententev1.PeerState{Sequence: 1, Protocol: peering.Protocol, Capabilities: third.thirds.capabilities(n.source.ID())}
	if err := n.exchange.Observe(t.Context(), third.source.ID(), state); err != nil {
		t.Fatal(err)
	}
}

func (n *carryNode) session(other *carryNode) *session.Info {
	return n.sessions.Status(other.source.ID()).Session
}

// call calls another node's peer API.
func (n *carryNode) call(ctx context.Context, other *carryNode) error {
	_, err := healthpb.NewHealthClient(n.sessions.Conn(other.source.ID())).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

// through waits until two nodes have a session through a third one, or directly through none,
// at both ends, and both can call.
func through(t *testing.T, a, b *carryNode, thirds ...*carryNode) *carryNode {
	t.Helper()
	var by *carryNode
	began := time.Now()
	eventually(t, "a session the way that it is expected to go", func() bool {
		s, o := a.session(b), b.session(a)
		if s == nil || o == nil || s.Through != o.Through || s.Dialled == o.Dialled {
			return false
		}
		if len(thirds) == 0 {
			return s.Through == ""
		}
		for _, c := range thirds {
			if s.Through == c.source.ID() {
				by = c
				return true
			}
		}
		return false
	})
	t.Logf("after %s", time.Since(began).Round(time.Millisecond))
	eventually(t, "both can call", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return a.call(ctx, b) == nil && b.call(ctx, a) == nil
	})
	return by
}

func TestAThirdPeerCarriesTheSessionOfTwoThatCannotDialEachOther(t *testing.T) {
	t.Parallel()
	w := &walls{closed: map[string]bool{}}
	relay := CarryConfig{For: CarryForContracts, Through: true}
	c, d := startCarryNode(t, w, relay), startCarryNode(t, w, relay)
	a, b := startCarryNode(t, w, CarryConfig{For: CarryForNone, Through: true}), startCarryNode(t, w, CarryConfig{For: CarryForNone, Through: true})
	knows(t, a, b, c, d)
	for _, n := range []*carryNode{a, b} {
		w.set(n.sessions.Addr().String(), true)
		n.hears(t, c)
		n.hears(t, d)
	}
	a.dials(b, c, d)
	b.dials(a, c, d)
	used := through(t, a, b, c, d)
	other := c
	if used == c {
		other = d
	}
	if used.session(a) == nil || used.session(a).Through != "" {
		t.Fatal("the session with who carries is itself carried")
	}

	used.contracts.Store(false)
	if got := through(t, a, b, other); got != other {
		t.Fatal("it goes through who does not allow it")
	}

	used.contracts.Store(true)
	other.stop()
	through(t, a, b, used)

	for _, n := range []*carryNode{a, b} {
		w.set(n.sessions.Addr().String(), false)
	}
	through(t, a, b)
	if w.tries.Load() < 4 {
		t.Error("hardly any direct dial while the session was carried")
	}
	eventually(t, "nothing is carried any more", func() bool {
		return used.thirds.carrier.Carried() == 0 && len(a.sessions.Sessions()) == 2 && len(b.sessions.Sessions()) == 2
	})
	before := a.session(b)
	used.stop()
	eventually(t, "who carried is gone", func() bool { return len(a.sessions.Sessions()) == 1 && len(b.sessions.Sessions()) == 1 })
	through(t, a, b)
	if s := a.session(b); s.Number != before.Number {
		t.Errorf("the session moved again: %+v, then %+v", before, s)
	}
}

// askFor asks a node for a connection, and returns its response.
func askFor(t *testing.T, from, at *carryNode, target peering.ClusterID) (*client.Carrying, error) {
	t.Helper()
	named := newTarget(from.source.ID(), target)
	s, err := client.Carry(t.Context(), from.sessions.Conn(at.source.ID()), named)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.End(nil) })
	_, err = s.Recv()
	return s, err
}

func TestACarrierRevealsNothingOfItsPeers(t *testing.T) {
	t.Parallel()
	w := &walls{closed: map[string]bool{}}
	c := startCarryNode(t, w, CarryConfig{For: CarryForContracts, Through: true})
	a, b, away := startCarryNode(t, w, CarryConfig{For: CarryForNone}), startCarryNode(t, w, CarryConfig{For: CarryForNone}), startCarryNode(t, w, CarryConfig{For: CarryForNone, Through: true})
	stranger := startCarryNode(t, w, CarryConfig{For: CarryForNone, Through: true})
	knows(t, a, c)
	knows(t, b, c)
	knows(t, away, c)
	a.dials(c)
	b.dials(c)
	eventually(t, "sessions", func() bool {
		return a.session(c) != nil && b.session(c) != nil && c.session(a) != nil && c.session(b) != nil
	})
	var allowed atomic.Pointer[carryNode]
	c.thirds.contracted = func(id peering.ClusterID) bool { n := allowed.Load(); return n == nil || id == n.source.ID() }
	said := map[string]string{}
	for name, target := range map[string]*carryNode{
		"that takes no connections": b, "without a session": away, "that is not known": stranger, "that is itself": a, "that is the caller": c,
	} {
		_, err := askFor(t, a, c, target.source.ID())
		if wire.ReasonOf(err) != peering.ReasonPolicyRefused {
			t.Errorf("a peer %s: %v", name, err)
			continue
		}
		said[err.Error()] = name
	}
	allowed.Store(a)
	_, err := askFor(t, a, c, b.source.ID())
	said[err.Error()] = "that has no contract"
	allowed.Store(b)
	_, err = askFor(t, a, c, b.source.ID())
	said[err.Error()] = "where the caller has none"
	if len(said) != 1 {
		t.Errorf("the responses differ: %v", said)
	}
}

func TestASessionThatIsCarriedCarriesNone(t *testing.T) {
	t.Parallel()
	w := &walls{closed: map[string]bool{}}
	c := startCarryNode(t, w, CarryConfig{For: CarryForPeers, Through: true})
	a, b, far := startCarryNode(t, w, CarryConfig{For: CarryForPeers, Through: true}), startCarryNode(t, w, CarryConfig{For: CarryForPeers, Through: true}), startCarryNode(t, w, CarryConfig{For: CarryForPeers, Through: true})
	knows(t, a, b, c, far)
	for _, n := range []*carryNode{a, b} {
		w.set(n.sessions.Addr().String(), true)
		n.hears(t, c)
	}
	a.dials(b, c)
	b.dials(a, c)
	far.dials(c)
	through(t, a, b, c)
	// b peers with far as well, and a asks b for it, over the session that is carried.
	b.dials(a, c, far)
	eventually(t, "a session of b with far, on both sides", func() bool { return b.session(far) != nil && far.session(b) != nil })
	if _, err := askFor(t, a, b, far.source.ID()); wire.ReasonOf(err) != peering.ReasonPolicyRefused {
		t.Errorf("a carried session carries another: %v", err)
	}
	if _, err := askFor(t, far, b, a.source.ID()); wire.ReasonOf(err) != peering.ReasonPolicyRefused {
		t.Errorf("a peer is reached over a session that is carried: %v", err)
	}
}
