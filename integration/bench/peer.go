package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// peer is a cluster that consists of its identity and its end of the protocol:
// all that another cluster can see of one.
type peer struct {
	name     string
	address  netip.Addr // its own of loopback, for limits are by address
	prefix   netip.Prefix
	source   *identity.Source
	bundles  *identity.Bundles
	sessions *session.Manager
	endpoint string
	provider wire.ClusterInfo
	// id is the provider's.
	id peering.ClusterID

	mu      sync.Mutex
	state   wire.State
	watches map[int]func()
	watch   int // the newest of them

	// again counts negotiations that were begun anew, offers its offers' messages; offerBytes is
	// what those took on the wire, before TLS.
	again, offers, offerBytes atomic.Int64
	offer                     atomic.Pointer[wire.Offer]
	offerAt                   atomic.Int64 // in nanoseconds since 1970

	ententev1.UnimplementedPeeringServiceServer
}

func newPeer(ctx context.Context, number int) (*peer, error) {
	id, err := identity.Generate(time.Now())
	if err != nil {
		return nil, err
	}
	p := &peer{
		name: fmt.Sprintf("peer-%04d", number), bundles: identity.NewBundles(), watches: map[int]func(){},
		address: netip.AddrFrom4([4]byte{127, 1, byte(number >> 8), byte(number)}).Next(),
		prefix:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + number>>8), byte(number), 0}), 24),
	}
	if p.source, err = identity.NewSource(identity.SourceConfig{Identity: id}); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", netip.AddrPortFrom(p.address, 0).String())
	if err != nil {
		return nil, err
	}
	p.endpoint = listener.Addr().String()
	p.state = wire.State{Protocol: 1, Endpoints: []string{p.endpoint}, Lends: wire.LendsNothing}
	calls := grpc.NewServer(grpc.Creds(session.ServerCredentials()))
	ententev1.RegisterPeeringServiceServer(calls, p)
	p.sessions, err = session.New(session.Config{
		Source: p.source, Bundles: p.bundles, Server: calls, Listener: listener, Up: p.up, Dial: p.dial,
		ClientOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithStatsHandler(p)},
	})
	return p, err
}

// dial dials from the peer's own address.
func (p *peer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: p.address.AsSlice()}}).DialContext(ctx, network, address)
}

// run is the peer's life.
func (p *peer) run(ctx context.Context) error { return p.sessions.Run(ctx) }

// times are when the parts of a peering were done, since it began.
type times struct{ joined, connected, signed time.Duration }

// peerWith redeems a token and makes a contract, as a consumer does.
func (p *peer) peerWith(ctx context.Context, token peering.Token) (times, error) {
	begin := time.Now()
	var t times
	var err error
	if p.provider, err = p.join(ctx, token); err != nil {
		return t, err
	}
	p.id = token.Issuer
	t.joined = time.Since(begin)
	if err := p.bundles.Trust(p.id, p.provider.Bundle()); err != nil {
		return t, err
	}
	p.say(func(s *wire.State) { s.BundleHash = wire.BundleHash(p.provider.Bundle()) })
	p.sessions.SetPeers([]session.Peer{{ID: p.id, Endpoints: p.provider.Endpoints, Now: true}})
	var terms peering.Terms
	for {
		if err := p.connect(ctx); err != nil {
			return t, err
		}
		if t.connected == 0 {
			t.connected = time.Since(begin)
		}
		terms, err = p.contract(ctx)
		if err == nil {
			break
		}
		// Where both sides dialled at once one session gives way to the other, and
		// takes with it what was called over it. And what the provider reads of the
		// peer may be behind what it wrote.
		if r := wire.ReasonOf(err); r != "UNAVAILABLE" && r != wire.ReasonPeerNotTrusted || ctx.Err() != nil {
			return t, err
		}
		p.again.Add(1)
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return t, err
		}
	}
	t.signed = time.Since(begin)
	p.say(func(s *wire.State) {
		s.Contracts = []wire.ContractState{{ID: terms.ContractID, Revision: terms.Revision, Phase: peering.PhaseActive}}
		s.Network = p.network()
	})
	return t, nil
}

// join redeems the token. A provider that has too many callers turns some away
// before it has heard them; these try again.
func (p *peer) join(ctx context.Context, token peering.Token) (wire.ClusterInfo, error) {
	self := wire.NewClusterInfo(p.name, []string{p.endpoint}, p.source.Identity().TrustBundle())
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		info, err := client.Join(ctx, client.JoinConfig{Token: token, Source: p.source, Self: self, Dial: p.dial})
		if err == nil || ctx.Err() != nil {
			return info, err
		}
		switch wire.ReasonOf(err) {
		case wire.ReasonPeerUnreachable, wire.ReasonPeerIdentity, wire.ReasonRateLimited, wire.ReasonTooManyCalls:
		default:
			return info, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// connect waits for the session.
func (p *peer) connect(ctx context.Context) error {
	changes, cancel := p.sessions.Subscribe()
	defer cancel()
	for p.sessions.Status(p.id).Session == nil {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s has no session: %w", p.name, errors.Join(context.Cause(ctx), p.sessions.Status(p.id).Err))
		case <-changes:
		}
	}
	return nil
}

// contract asks for a little, and signs what is offered.
func (p *peer) contract(ctx context.Context) (peering.Terms, error) {
	var terms peering.Terms
	resources, err := peering.ParseResources(map[string]string{"cpu": "10m", "memory": "16Mi", "pods": "1"})
	if err != nil {
		return terms, err
	}
	request := make([]byte, 16)
	if _, err := rand.Read(request); err != nil {
		return terms, err
	}
	call := client.Peering{Conn: p.sessions.Conn(p.id)}
	ad, err := call.Request(ctx, peering.Ask{RequestID: hex.EncodeToString(request), Resources: resources, Network: true})
	if err != nil {
		return terms, err
	}
	g, self := ad.Grant, p.source.Identity()
	at := time.Now().UTC().Add(-time.Minute).Truncate(time.Second)
	terms = peering.Terms{
		ContractID: ad.ContractID, RequestID: ad.RequestID, Revision: ad.Revision, Previous: ad.PreviousHash,
		Consumer: self.Party(), Provider: p.provider.Bundle().Party(p.id),
		Resources: g.Resources, NotBefore: at, NotAfter: at.Add(g.Duration),
		Network: g.Network, PodSecurity: g.PodSecurity, NodeLabels: g.NodeLabels,
		Price: g.Price, Renewable: g.Renewable, Notice: g.Notice, StatementPeriod: g.StatementPeriod, Exposure: g.Exposure,
		NodeSelector: g.NodeSelector, RuntimeClasses: g.RuntimeClasses,
	}
	envelope, err := peering.NewEnvelope(terms)
	if err != nil {
		return terms, err
	}
	if envelope, err = envelope.Sign(rand.Reader, self.ID(), self.Signer()); err != nil {
		return terms, err
	}
	_, err = call.Sign(ctx, envelope)
	return terms, err
}

// network is the peer's end of a tunnel that nothing goes through.
func (p *peer) network() *wire.Network {
	n := &wire.Network{Prefixes: []netip.Prefix{p.prefix}}
	g := wire.Gateway{Name: p.name + "-1", Endpoints: []string{netip.AddrPortFrom(p.address, 51820).String()}}
	overlay := [16]byte{0xfd, 0x99}
	// What crypto/rand reads cannot fail.
	_, _ = rand.Read(g.PublicKey[:])
	_, _ = rand.Read(overlay[8:])
	_, _ = rand.Read(n.PresharedHalf[:])
	g.Overlay = netip.AddrFrom16(overlay)
	n.Gateways = []wire.Gateway{g}
	n.Aliases = []wire.Alias{{Prefix: podCIDR, Alias: netip.MustParsePrefix("10.98.0.0/16")}}
	return n
}

// say changes what the peer says of itself.
func (p *peer) say(change func(*wire.State)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
	for _, changed := range p.watches {
		changed()
	}
}

func (p *peer) watchState(changed func()) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch++
	number := p.watch
	p.watches[number] = changed
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watches, number)
	}
}

func (p *peer) exchange() heartbeat.Config {
	return heartbeat.Config{
		Patience: heartbeat.SessionPatience,
		Current: func(context.Context) (*ententev1.PeerState, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return wire.StateTo(p.state), nil
		},
		Watch:   p.watchState,
		Observe: func(context.Context, *ententev1.PeerState) error { return nil },
	}
}

// up is what goes on while a session lives: states, and the provider's offer.
func (p *peer) up(ctx context.Context, s session.Info) error {
	conn := p.sessions.Conn(s.Peer)
	g, ctx := errgroup.WithContext(ctx)
	if s.Dialled {
		g.Go(func() error { return client.RunSession(ctx, conn, p.exchange()) })
	}
	g.Go(func() error {
		return client.Peering{Conn: conn}.WatchOffer(ctx, func(o wire.Offer) {
			p.offer.Store(&o)
			p.offerAt.Store(time.Now().UnixNano())
			p.offers.Add(1)
		})
	})
	return g.Wait()
}

// Session implements PeeringService for a provider that dialled.
func (p *peer) Session(stream grpc.BidiStreamingServer[ententev1.SessionRequest, ententev1.SessionResponse]) error {
	return heartbeat.Run(stream.Context(), heartbeat.Stream{
		Send: func(s *ententev1.PeerState) error { return stream.Send(&ententev1.SessionResponse{State: s}) },
		Recv: func() (*ententev1.PeerState, error) {
			m, err := stream.Recv()
			return m.GetState(), err
		},
	}, p.exchange())
}

// WatchOffer implements PeeringService: the peer lends nothing.
func (p *peer) WatchOffer(_ *ententev1.WatchOfferRequest, stream grpc.ServerStreamingServer[ententev1.WatchOfferResponse]) error {
	if err := stream.Send(wire.OfferSnapshot(wire.Offer{Message: "nothing is lent here"})); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

type methodKey struct{}

// TagRPC implements stats.Handler.
func (p *peer) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, methodKey{}, info.FullMethodName)
}

// HandleRPC implements stats.Handler: it counts what offers weigh.
func (p *peer) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok && ctx.Value(methodKey{}) == ententev1.PeeringService_WatchOffer_FullMethodName {
		p.offerBytes.Add(int64(in.WireLength))
	}
}

// TagConn implements stats.Handler.
func (*peer) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*peer) HandleConn(context.Context, stats.ConnStats) {}
