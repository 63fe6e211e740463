package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/intake"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// PeerConfig configures what other clusters see.
type PeerConfig struct {
	// Log takes one line for each call that changes something. If nil, they are discarded.
	Log *slog.Logger
	// Credentials makes the identity.AuthInfo of each connection. Required.
	Credentials credentials.TransportCredentials
	// Self is this cluster's ID. Required.
	Self peering.ClusterID
	// Trusted reports whether a cluster is trusted now. It is called for each call, and once per
	// TrustCheck while a stream is open, so that the stream does not outlive the trust. Required.
	Trusted func(peering.ClusterID) bool
	// Trust, Introductions and Proofs make peers trusted, each in its own way. Required.
	Trust         Trust
	Introductions Introductions
	Proofs        Proofs
	// Negotiator makes and changes contracts, and Contracts serves those that were signed. Required.
	Negotiator Negotiator
	Contracts  Contracts
	// Offers returns what peers are offered. Required.
	Offers Offers
	// Sessions exchanges states with peers. Required.
	Sessions Sessions
	// Silent is called, if not nil, when the heartbeat of a peer is lost, with the session as in
	// identity.AuthInfo.
	Silent func(session uint64)
	// Datagrams takes datagrams for this cluster's gateways; nil refuses them.
	Datagrams Datagrams
	// Carrier carries connections between peers, and from peers to this cluster; nil refuses
	// them.
	Carrier Carrier
	// HomeAPI serves this cluster's pods that peers run; nil leaves the service out.
	HomeAPI HomeAPI
	// Offload runs the peers' pods; nil leaves the service out.
	Offload ententev1.OffloadServiceServer
	// Exports returns the Services that consumers may import; nil leaves the service out.
	Exports Exports
	// HeartbeatInterval is the pause between two states of a session; 0 means the default of
	// package heartbeat.
	HeartbeatInterval time.Duration
	// Keepalive is after how much silence gRPC probes a connection; 0 means PeerKeepalive.
	Keepalive time.Duration
	// Now is the clock of the limits; nil means time.Now.
	Now func() time.Time

	// unread, if not nil, changes the limits on unread messages in tests.
	unread func(*intake.Config)
}

// Peer serves the peer API.
type Peer struct {
	cfg     PeerConfig
	grpc    *grpc.Server
	health  *health.Server
	meter   *intake.Meter
	streams *trustedStreams
}

// withDefaults checks a configuration and fills in what it leaves out.
func (cfg PeerConfig) withDefaults() (PeerConfig, error) {
	if cfg.Credentials == nil || cfg.Trusted == nil || cfg.Offers == nil || cfg.Sessions == nil {
		return cfg, errors.New("peer server: Credentials, Trusted, Offers and Sessions are required")
	}
	if cfg.Trust == nil || cfg.Introductions == nil || cfg.Proofs == nil || cfg.Negotiator == nil || cfg.Contracts == nil {
		return cfg, errors.New("peer server: Trust, Introductions, Proofs, Negotiator and Contracts are required")
	}
	if _, err := peering.ParseClusterID(string(cfg.Self)); err != nil {
		return cfg, fmt.Errorf("peer server: own ID: %w", err)
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Keepalive <= 0 {
		cfg.Keepalive = PeerKeepalive
	}
	return cfg, nil
}

// NewPeer returns a server, which Run starts.
func NewPeer(cfg PeerConfig) (*Peer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	validate, err := middleware.Validated(protovalidate.WithFilter(protovalidate.FilterFunc(middleware.IgnoreUnknownValues)))
	if err != nil {
		return nil, err
	}
	p := &Peer{cfg: cfg, health: health.NewServer(), streams: newTrustedStreams(cfg.Trusted)}
	unread := intake.Config{
		Log: cfg.Log, Sender: p.sender, Call: CallUnread, Peer: PeerUnread, Stranger: StrangerUnread, All: AllUnread,
		EndTimeout: EndTimeout, WriteTimeout: middleware.WriteTimeout, ReadBuffer: ReadBuffer,
	}
	if cfg.unread != nil {
		cfg.unread(&unread)
	}
	p.meter = intake.New(unread)
	opts := append(middleware.Options(cfg.Log,
		middleware.Audited(cfg.Log, false, peerMutates),
		middleware.Recovered,
		p.admit,
		middleware.Deadlined(UnaryTimeout),
		validate,
	),
		grpc.Creds(p.meter.Credentials(cfg.Credentials)),
		grpc.InTapHandle(p.limited()),
		grpc.StatsHandler(p.meter),
		grpc.MaxRecvMsgSize(MaxMessage),
		// The meter reads through a buffer of its own.
		grpc.ReadBufferSize(0), grpc.WriteBufferSize(ConnectionBuffer),
		grpc.InitialWindowSize(StreamWindow), grpc.InitialConnWindowSize(ConnectionWindow),
		grpc.MaxConcurrentStreams(middleware.MaxStreams),
		grpc.MaxHeaderListSize(middleware.MaxHeader),
		grpc.ConnectionTimeout(middleware.HandshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: middleware.KeepaliveMin, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: cfg.Keepalive, Timeout: middleware.KeepaliveTimeout,
			MaxConnectionAge: middleware.ConnectionAge, MaxConnectionAgeGrace: ConnectionGrace,
		}),
	)
	p.grpc = grpc.NewServer(opts...)
	ententev1.RegisterTrustServiceServer(p.grpc, &trustServer{cfg: cfg})
	ententev1.RegisterPeeringServiceServer(p.grpc, &peeringServer{cfg: cfg, sessions: newStreamCount(), watches: newStreamCount()})
	ententev1.RegisterRelayServiceServer(p.grpc, &relayServer{cfg: cfg, datagrams: newStreamCount()})
	if cfg.Offload != nil {
		ententev1.RegisterOffloadServiceServer(p.grpc, cfg.Offload)
	}
	if cfg.HomeAPI != nil {
		ententev1.RegisterHomeServiceServer(p.grpc, &homeServer{home: cfg.HomeAPI})
	}
	if cfg.Exports != nil {
		ententev1.RegisterExportServiceServer(p.grpc, &exportServer{exports: cfg.Exports, watches: newStreamCount(), sets: newStreamCount()})
	}
	healthpb.RegisterHealthServer(p.grpc, p.health)
	reflection.Register(p.grpc)
	middleware.SetServing(p.grpc, p.health, healthpb.HealthCheckResponse_NOT_SERVING)
	return p, nil
}

// limited bounds calls before a message is read: gRPC allocates memory for each message that is
// announced, and interceptors see it only once it is whole.
func (p *Peer) limited() tap.ServerInHandle {
	strangers := middleware.NewLimiter(StrangerRate, StrangerBurst, StrangerCalls, p.cfg.Now)
	peers := middleware.NewLimiter(PeerRate, PeerBurst, PeerCalls, p.cfg.Now)
	return func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		limit, key, refusals := strangers, middleware.AddressKey(middleware.RemoteAddress(ctx)), StrangerRefused
		if info, ok := identity.PeerFromContext(ctx); ok && p.trusts(info) {
			limit, key, refusals = peers, string(info.ID), PeerRefused
		}
		leave, err := limit.Enter(key)
		if err != nil {
			p.meter.Refused(ctx, refusals)
			return nil, middleware.StatusOf(err, "", false).Err()
		}
		context.AfterFunc(ctx, leave)
		return p.meter.Begin(ctx), nil
	}
}

// GRPC returns the gRPC server, for code that accepts connections for it.
func (p *Peer) GRPC() *grpc.Server { return p.grpc }

// Run serves the listeners, if any, until ctx ends; then calls have DrainTimeout
// to end. It returns an error when a listener fails.
func (p *Peer) Run(ctx context.Context, listeners ...net.Listener) error {
	middleware.SetServing(p.grpc, p.health, healthpb.HealthCheckResponse_SERVING)
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		group.Go(func() error {
			if err := p.grpc.Serve(l); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve peers on %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		notify.Each(ctx, TrustCheck, p.streams.check)
		p.health.Shutdown()
		p.streams.stop()
		stop(p.grpc)
		return nil
	})
	return group.Wait()
}

// stop lets calls end for DrainTimeout, then cuts them.
func stop(s *grpc.Server) {
	cut := time.AfterFunc(middleware.DrainTimeout, s.Stop)
	defer cut.Stop()
	s.GracefulStop()
}

func (p *Peer) trusts(info identity.AuthInfo) bool {
	return info.Trusted && info.ID != "" && p.cfg.Trusted(info.ID)
}

// sender returns the name under which the unread bytes of a connection are counted.
func (p *Peer) sender(remote net.Addr, auth credentials.AuthInfo) (name string, trusted bool) {
	if info, ok := auth.(identity.AuthInfo); ok && p.trusts(info) {
		return string(info.ID), true
	}
	return "address " + middleware.AddressKey(remote.String()), false
}

// admit lets strangers join, introduce themselves and ask for health, and trusted peers call
// every method.
func (p *Peer) admit(ctx context.Context, c *middleware.Call, next func(context.Context) error) error {
	info, ok := identity.PeerFromContext(ctx)
	if ok {
		c.Who = string(info.ID)
	}
	if strings.HasPrefix(c.Method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		return next(ctx)
	}
	switch {
	case !ok || info.ID == "":
		return &peering.Error{Reason: peering.ReasonPeerNotTrusted, Message: "present a certificate of your cluster's identity"}
	case openToStrangers(c.Method):
		return next(ctx)
	case !p.trusts(info):
		return &peering.Error{
			Reason:   peering.ReasonPeerNotTrusted,
			Message:  "this cluster does not trust yours: join with a token, or introduce yourself and have it approved, first",
			Metadata: map[string]string{"clusterId": string(info.ID)},
		}
	case c.Request != nil:
		return next(ctx)
	}
	return p.streams.run(ctx, info.ID, c.ID, next)
}

// peerMutates reports whether a method changes something, so that calls of it are audited.
func peerMutates(method string) bool {
	switch method {
	case ententev1.TrustService_Join_FullMethodName,
		ententev1.TrustService_Introduce_FullMethodName,
		ententev1.TrustService_Reveal_FullMethodName,
		ententev1.TrustService_Prove_FullMethodName,
		ententev1.TrustService_Confirm_FullMethodName,
		ententev1.TrustService_UpdateBundle_FullMethodName,
		ententev1.TrustService_Revoke_FullMethodName,
		ententev1.PeeringService_RequestPeering_FullMethodName,
		ententev1.PeeringService_SignContract_FullMethodName,
		ententev1.PeeringService_TerminateContract_FullMethodName,
		ententev1.PeeringService_Session_FullMethodName,
		ententev1.OffloadService_Sync_FullMethodName,
		ententev1.OffloadService_Exec_FullMethodName,
		ententev1.OffloadService_PortForward_FullMethodName,
		ententev1.HomeService_ConnectAPI_FullMethodName:
		return true
	}
	return false
}
