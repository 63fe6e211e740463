// Package puppet has clusters that a test plays: each with an identity, a session
// over TLS and the whole protocol, but with nothing behind. They do what an agent
// does as far as they are left to, and whatever else they are made to.
package puppet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
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
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// PodCIDR is the pods' prefix of those that puppets peer with.
var PodCIDR = netip.MustParsePrefix("10.200.0.0/16") //nolint:gochecknoglobals // a constant, if the type had any

// Provider is what a puppet does as a provider.
type Provider struct {
	// Offer is what it offers. It grants whatever is asked for.
	Offer peering.Offer
	// Pods takes the pods.
	Pods ententev1.OffloadServiceServer
}

// Peer is a cluster that consists of its identity and its end of the protocol:
// all that another cluster can see of one.
type Peer struct {
	// Name is what it calls itself.
	Name    string
	address netip.Addr // its own of loopback, for limits are by address
	prefix  netip.Prefix
	source  *identity.Source
	bundles *identity.Bundles
	// Sessions has its session.
	Sessions *session.Manager
	endpoint string
	other    identity.ClusterInfo
	provider *Provider
	// ID is that of the cluster that it joined.
	ID peering.ClusterID

	mu      sync.Mutex
	state   peering.PeerState
	watches map[int]func()
	watch   int // the newest of them

	// Again counts negotiations that were begun again; OfferBytes is what offers'
	// messages took on the wire, before TLS.
	Again, OfferBytes atomic.Int64
	// Offer is what it was offered last, and OfferAt when, in nanoseconds since 1970.
	Offer   atomic.Pointer[peering.Offer]
	OfferAt atomic.Int64

	ententev1.UnimplementedPeeringServiceServer
}

// New returns a puppet; each of a run needs another number, from 1. It offers nothing
// where provider is nil.
func New(ctx context.Context, number int, provider *Provider) (*Peer, error) {
	id, err := identity.Generate(time.Now())
	if err != nil {
		return nil, err
	}
	p := &Peer{
		Name: fmt.Sprintf("peer-%04d", number), bundles: identity.NewBundles(), watches: map[int]func(){}, provider: provider,
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
	p.state = peering.PeerState{Protocol: 1, Endpoints: []string{p.endpoint}, Offering: peering.OfferingNothing}
	calls := wiretest.NewServer(grpc.Creds(session.ServerCredentials()), grpc.MaxRecvMsgSize(wire.MaxOffloadMessage))
	ententev1.RegisterPeeringServiceServer(calls, p)
	if provider != nil {
		p.state.Offering = peering.OfferingSomething
		ententev1.RegisterOffloadServiceServer(calls, provider.Pods)
	}
	p.Sessions, err = session.New(session.Config{
		Source: p.source, Bundles: p.bundles, Server: calls, Listener: listener, Up: p.up, Dial: p.dial,
		ClientOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithStatsHandler(p)},
	})
	return p, err
}

// dial dials from the peer's own address.
func (p *Peer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: p.address.AsSlice()}}).DialContext(ctx, network, address)
}

// Run is the peer's life.
func (p *Peer) Run(ctx context.Context) error { return p.Sessions.Run(ctx) }

// Times are when the parts of a peering were done, since it began.
type Times struct{ Joined, Connected, Signed time.Duration }

// PeerWith redeems a token and makes a contract for a little, as a consumer does.
func (p *Peer) PeerWith(ctx context.Context, token jointoken.Token) (Times, error) {
	begin := time.Now()
	t, err := p.Join(ctx, token)
	if err != nil {
		return t, err
	}
	_, err = p.Contract(ctx, peering.Ask{Network: true}, "cpu=10m", "memory=16Mi", "pods=1")
	t.Signed = time.Since(begin)
	return t, err
}

// Join redeems a token and waits for the session.
func (p *Peer) Join(ctx context.Context, token jointoken.Token) (Times, error) {
	begin := time.Now()
	var t Times
	var err error
	if p.other, err = p.join(ctx, token); err != nil {
		return t, err
	}
	p.ID = token.Issuer
	t.Joined = time.Since(begin)
	if err := p.bundles.Trust(p.ID, p.other.Bundle); err != nil {
		return t, err
	}
	p.Say(func(s *peering.PeerState) { s.BundleHash = p.other.Bundle.Hash() })
	p.Sessions.SetPeers([]session.Peer{{ID: p.ID, Endpoints: p.other.Endpoints, Now: true}})
	err = p.connect(ctx)
	t.Connected = time.Since(begin)
	return t, err
}

// Self is its own ID.
func (p *Peer) Self() peering.ClusterID { return p.source.Identity().ID() }

// Prefix is that of its pods.
func (p *Peer) Prefix() netip.Prefix { return p.prefix }

// Conn reaches the cluster that it joined.
func (p *Peer) Conn() grpc.ClientConnInterface { return p.Sessions.Conn(p.ID) }

// Contract asks for resources, such as "cpu=1", and signs what is offered.
func (p *Peer) Contract(ctx context.Context, ask peering.Ask, resources ...string) (peering.Terms, error) {
	amounts := map[string]string{}
	for _, r := range resources {
		name, amount, _ := strings.Cut(r, "=")
		amounts[name] = amount
	}
	var err error
	if ask.Resources, err = peering.ParseResources(amounts); err != nil {
		return peering.Terms{}, err
	}
	for {
		if err := p.connect(ctx); err != nil {
			return peering.Terms{}, err
		}
		terms, err := p.contract(ctx, ask)
		if err == nil {
			p.Say(func(s *peering.PeerState) {
				s.Contracts = append(s.Contracts, peering.ContractState{ID: terms.ContractID, Revision: terms.Revision, Phase: peering.PhaseActive})
				if ask.Network && s.Network == nil {
					s.Network = p.network()
				}
			})
			return terms, nil
		}
		// Where both sides dialled at once one session gives way to the other, and
		// takes with it what was called over it. And what the provider reads of the
		// peer may be behind what it wrote.
		if r := wire.ReasonOf(err); r != "UNAVAILABLE" && r != peering.ReasonPeerNotTrusted || ctx.Err() != nil {
			return terms, err
		}
		p.Again.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// join redeems the token. A provider that has too many callers turns some away
// before it has heard them; these try again.
func (p *Peer) join(ctx context.Context, token jointoken.Token) (identity.ClusterInfo, error) {
	self := identity.ClusterInfo{Name: p.Name, Endpoints: []string{p.endpoint}, Bundle: p.source.Identity().TrustBundle()}
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		info, err := client.Join(ctx, client.JoinConfig{Token: token, Source: p.source, Self: self, Dial: p.dial})
		if err == nil || ctx.Err() != nil {
			return info, err
		}
		switch wire.ReasonOf(err) {
		case peering.ReasonPeerUnreachable, peering.ReasonPeerIdentity, peering.ReasonRateLimited, peering.ReasonTooManyCalls:
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
func (p *Peer) connect(ctx context.Context) error {
	changes, cancel := p.Sessions.Subscribe()
	defer cancel()
	for p.Sessions.Status(p.ID).Session == nil {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s has no session: %w", p.Name, errors.Join(context.Cause(ctx), p.Sessions.Status(p.ID).Err))
		case <-changes:
		}
	}
	return nil
}

// contract asks, and signs what is offered.
func (p *Peer) contract(ctx context.Context, ask peering.Ask) (peering.Terms, error) {
	var terms peering.Terms
	ask.RequestID = newID()
	call := client.Peering{Conn: p.Conn()}
	ad, err := call.Request(ctx, ask)
	if err != nil {
		return terms, err
	}
	self := p.source.Identity()
	at := time.Now().UTC().Add(-time.Minute).Truncate(time.Second)
	terms = peering.Terms{
		ContractID: ad.ContractID, RequestID: ad.RequestID, Revision: ad.Revision, Previous: ad.PreviousHash, Consumer: self.Party(), Provider: p.other.Bundle.Party(p.ID), NotBefore: at, NotAfter: at.Add(ad.Duration),
		Clauses: ad.Clauses,
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
func (p *Peer) network() *peering.Network {
	n := &peering.Network{Prefixes: []netip.Prefix{p.prefix}}
	g := peering.Gateway{Name: p.Name + "-1", Endpoints: []string{netip.AddrPortFrom(p.address, 51820).String()}}
	overlay := [16]byte{0xfd, 0x99}
	// What crypto/rand reads cannot fail.
	_, _ = rand.Read(g.PublicKey[:])
	_, _ = rand.Read(overlay[8:])
	_, _ = rand.Read(n.PresharedKeyShare[:])
	g.Overlay = netip.AddrFrom16(overlay)
	n.Gateways = []peering.Gateway{g}
	n.Aliases = []peering.Alias{{Prefix: PodCIDR, Alias: netip.MustParsePrefix("10.98.0.0/16")}}
	return n
}

// Say changes what the peer says of itself.
func (p *Peer) Say(change func(*peering.PeerState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
	for _, changed := range p.watches {
		changed()
	}
}

func (p *Peer) watchState(changed func()) func() {
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

func (p *Peer) exchange() heartbeat.Config {
	return heartbeat.Config{
		Timeout: heartbeat.SessionTimeout,
		Current: func(context.Context) (*ententev1.PeerState, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return wire.StateTo(p.state), nil
		},
		Watch:   p.watchState,
		Observe: func(context.Context, *ententev1.PeerState) error { return nil },
	}
}

// up runs while a session lives: it exchanges states, and watches the provider's offer.
func (p *Peer) up(ctx context.Context, s session.Info) error {
	conn := p.Sessions.Conn(s.Peer)
	g, ctx := errgroup.WithContext(ctx)
	if s.Dialled {
		g.Go(func() error { return client.RunSession(ctx, conn, p.exchange()) })
	}
	g.Go(func() error {
		return client.Peering{Conn: conn}.WatchOffer(ctx, func(o peering.Offer) {
			p.Offer.Store(&o)
			p.OfferAt.Store(time.Now().UnixNano())
		})
	})
	return g.Wait()
}

// Session implements PeeringService for a provider that dialled.
func (p *Peer) Session(stream grpc.BidiStreamingServer[ententev1.SessionRequest, ententev1.SessionResponse]) error {
	return heartbeat.Run(stream.Context(), heartbeat.Stream{
		Send: func(s *ententev1.PeerState) error { return stream.Send(&ententev1.SessionResponse{State: s}) },
		Recv: func() (*ententev1.PeerState, error) {
			m, err := stream.Recv()
			return m.GetState(), err
		},
	}, p.exchange())
}

// WatchOffer implements PeeringService.
func (p *Peer) WatchOffer(_ *ententev1.WatchOfferRequest, stream grpc.ServerStreamingServer[ententev1.WatchOfferResponse]) error {
	offer := peering.Offer{Message: "nothing is offered here"}
	if p.provider != nil {
		offer = p.provider.Offer
	}
	if err := stream.Send(wire.OfferTo(offer, nil)); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// RequestPeering implements PeeringService: what is asked for is granted, for a day.
func (p *Peer) RequestPeering(_ context.Context, req *ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
	ask, err := wire.AskFrom(req.GetRequest())
	if err != nil {
		return nil, err
	}
	if p.provider == nil {
		return nil, peering.Errorf(peering.ReasonPolicyRefused, "nothing is offered here")
	}
	ad := peering.Advertisement{
		ContractID: "c-" + newID(), RequestID: ask.RequestID, Revision: 1, ValidUntil: time.Now().Add(time.Minute).Truncate(time.Second),
		Grant: peering.Grant{
			Duration: 24 * time.Hour,
			Clauses: peering.Clauses{
				Resources: ask.Resources, Network: ask.Network, PodSecurity: peering.PodSecurityBaseline,
				Exposure: peering.ExposureOffloaded, NodeSelector: ask.NodeSelector, Renewable: true, Notice: time.Hour,
			},
		},
	}
	if req.GetValidateOnly() {
		ad.ContractID = ""
	}
	return &ententev1.RequestPeeringResponse{Advertisement: wire.AdvertisementTo(ad)}, nil
}

// SignContract implements PeeringService.
func (p *Peer) SignContract(_ context.Context, req *ententev1.SignContractRequest) (*ententev1.SignContractResponse, error) {
	envelope, err := wire.EnvelopeFrom(req.GetEnvelope())
	if err != nil {
		return nil, err
	}
	terms, err := envelope.VerifyConsumer()
	if err != nil {
		return nil, err
	}
	self := p.source.Identity()
	if envelope, err = envelope.Sign(rand.Reader, self.ID(), self.Signer()); err != nil {
		return nil, err
	}
	p.Say(func(s *peering.PeerState) {
		s.Contracts = append(s.Contracts, peering.ContractState{ID: terms.ContractID, Revision: terms.Revision, Phase: peering.PhaseActive})
	})
	return &ententev1.SignContractResponse{Envelope: wire.EnvelopeTo(envelope)}, nil
}

// newID returns a name that nothing else has.
func newID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // which cannot fail
	return hex.EncodeToString(id)
}

type methodKey struct{}

// TagRPC implements stats.Handler.
func (p *Peer) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, methodKey{}, info.FullMethodName)
}

// HandleRPC implements stats.Handler: it counts what offers weigh.
func (p *Peer) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok && ctx.Value(methodKey{}) == ententev1.PeeringService_WatchOffer_FullMethodName {
		p.OfferBytes.Add(int64(in.WireLength))
	}
}

// TagConn implements stats.Handler.
func (*Peer) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*Peer) HandleConn(context.Context, stats.ConnStats) {}
