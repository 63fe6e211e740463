package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// Self is this cluster, as its administrators see it.
type Self struct {
	// ID is the cluster ID.
	ID peering.ClusterID
	// Name is the cluster's name.
	Name string
	// Version is the agent's version.
	Version string
	// Endpoints are where its peer API can be dialled, as host:port.
	Endpoints []string
	// Protocol is the newest protocol revision that it speaks.
	Protocol uint32
	// RootExpires is when its newest root certificate ends, CertificateExpires when the
	// certificate that it presents to peers ends.
	RootExpires, CertificateExpires time.Time
	// Fingerprint and Automatic are what discovery publishes of it.
	Fingerprint string
	Automatic   bool
	// Placement is what places pods of offloaded namespaces: policy/VERSION, webhook or off; empty if it is not known.
	// NotPlaced is what keeps it from that.
	Placement, NotPlaced string
	// DNS is where it is published in DNS, should be published, or should no longer be.
	DNS []DNSPublication
	// Sources are the kinds of discovery that are turned on: LAN, DNS.
	Sources []v1alpha1.Source
	// Domains are the domains that are queried for clusters.
	Domains []DNSDomain
	// Problems is what is wrong with its configuration, a line each.
	Problems []string
}

// DNSPublication is a domain that lists this cluster, or should.
type DNSPublication struct {
	// Domain is the domain, in a zone of a server; Instance and Host are the names of the records.
	Domain, Zone, Server, Instance, Host string
	// Confirmed is when the server was last seen to have the cluster's own records.
	Confirmed time.Time
	// Leaving means that the records are being removed.
	Leaving bool
	// Problem is what is wrong, if anything.
	Problem string
}

// DNSDomain is a domain that is queried for clusters.
type DNSDomain struct {
	Domain string
	// Clusters is how many it lists with an address, this one among them.
	Clusters int
	// Answered is when its list was last received, if it ever was.
	Answered time.Time
	// Error is why a query for the list, or for one of its entries, fails, and Since since when.
	// Unlisted means that the list itself cannot be queried.
	Error    string
	Since    time.Time
	Unlisted bool
	// Problems is what is wrong with its records, LeftOut how many were beyond the limits.
	Problems []string
	LeftOut  int
	// Authenticated means that, according to the resolver, DNSSEC proves all of its records.
	Authenticated bool
}

// Config configures the API for the cluster's own people.
type Config struct {
	// Log takes one line for each call that changes something. If nil, they are discarded.
	Log *slog.Logger
	// Client reads and writes custom resources and reads Namespaces. It reads what
	// it wrote: no cache. Required.
	Client ctrlclient.Client
	// Events takes what administrators decided; nil records nothing.
	Events events.EventRecorder
	// Cache notifies of changes. Required.
	Cache Cache
	// Kubernetes reviews tokens and access and reads the cluster's client CA.
	// Required.
	Kubernetes kubernetes.Interface
	// TLS has the serving certificate. Its settings about clients are replaced. Required.
	TLS *tls.Config
	// Self describes this cluster. Required.
	Self func(context.Context) (Self, error)
	// Tokens are this cluster's one-time tokens. Required.
	Tokens Tokens
	// Join redeems a token and returns the name of the peer's ForeignCluster, which is name unless
	// that is empty. Required.
	Join func(ctx context.Context, token jointoken.Token, name string) (foreignCluster string, err error)
	// Introduce introduces this cluster to the one at an endpoint, which has to prove id unless
	// that is empty, and approves it if approve is set. It returns the name of the ForeignCluster,
	// as Join does. Required.
	Introduce func(ctx context.Context, endpoint string, id peering.ClusterID, name string, approve bool) (foreignCluster string, err error)
	// Preview returns the ForeignCluster with which a PeeringRequest would be agreed now, and the
	// offer, which is nil if the contract already has what is asked for. The error is why it would
	// not be agreed. No provider reserves anything. Required.
	Preview func(ctx context.Context, request *v1alpha1.PeeringRequest) (provider string, offer *peering.Advertisement, err error)
	// TestPolicy returns what this cluster would offer a peer for a PeeringRequest. A refusal is
	// not an error. Required.
	TestPolicy func(ctx context.Context, peer peering.ClusterID, request *v1alpha1.PeeringRequest) (peering.PolicyTest, error)
	// PlanNetwork plans the network with a peer. prefixes are the peer's if it announced none
	// itself. Required.
	PlanNetwork func(ctx context.Context, peer *v1alpha1.ForeignCluster, prefixes []string) (peering.NetworkPlan, error)
	// NetworkParameters is this cluster's end of in-band tunnels. Required.
	NetworkParameters func(context.Context) (inband.Parameters, error)
	// ConnectInBand trusts a peer, connects to it by its parameters, and returns the name of its
	// ForeignCluster, as Join does. Required.
	ConnectInBand func(ctx context.Context, parameters inband.Parameters, name string) (foreignCluster string, err error)
	// Rollover replaces the key of this cluster's root, and returns when the new root ends and
	// until when the old one is presented too. Required.
	Rollover func(ctx context.Context) (root, overlap time.Time, err error)
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	// pace replaces the pauses of watches in tests.
	pace *pace
}

// pace has the pauses of watches.
type pace struct {
	check, grace, write, body time.Duration
}

// Server serves the admin API: gRPC and REST on the same port.
type Server struct {
	cfg      Config
	grpc     *grpc.Server
	health   *health.Server
	reviewer *kubeauth.Reviewer
	gateway  *gateway
	bodies   *bodies
	// addresses and users bound the calls of each.
	addresses, users *middleware.Limiter
	// stopping is closed when watches should come to an end.
	stopping chan struct{}
}

// New returns a server, which Run starts.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Client == nil || cfg.Cache == nil || cfg.Kubernetes == nil || cfg.TLS == nil:
		return nil, errors.New("admin server: Client, Cache, Kubernetes and TLS are required")
	case cfg.Self == nil || cfg.Tokens == nil || cfg.Join == nil || cfg.Introduce == nil:
		return nil, errors.New("admin server: Self, Tokens, Join and Introduce are required")
	case cfg.NetworkParameters == nil || cfg.ConnectInBand == nil:
		return nil, errors.New("admin server: NetworkParameters and ConnectInBand are required")
	case cfg.Preview == nil || cfg.TestPolicy == nil || cfg.PlanNetwork == nil || cfg.Rollover == nil:
		return nil, errors.New("admin server: Preview, TestPolicy, PlanNetwork and Rollover are required")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.pace = cmp.Or(cfg.pace, &pace{check: WatchCheck, grace: WatchGrace, write: middleware.WriteTimeout, body: BodyTimeout})
	validate, err := middleware.Validated()
	if err != nil {
		return nil, err
	}
	a := &Server{
		cfg: cfg, health: health.NewServer(), gateway: newGateway(), bodies: newBodies(cfg.Now, cfg.pace.body), stopping: make(chan struct{}),
		reviewer:  kubeauth.New(kubeauth.Config{Client: cfg.Kubernetes, Log: cfg.Log, Now: cfg.Now}),
		addresses: middleware.NewLimiter(AddressRate, AddressBurst, AddressCalls, cfg.Now),
		users:     middleware.NewLimiter(UserRate, UserBurst, UserCalls, cfg.Now),
	}
	watches := middleware.NewLimiter(UserRate, UserBurst, UserWatches, cfg.Now)
	healths := middleware.NewLimiter(UserRate, UserBurst, HealthWatches, cfg.Now)
	opts := append(middleware.Options(cfg.Log,
		a.called,
		middleware.Audited(cfg.Log, true, mutates),
		middleware.Recovered,
		middleware.Deadlined(UnaryTimeout),
		validate,
		healthOnly(healths, HealthWatch),
		a.authorized,
		middleware.Limited(watches, func(ctx context.Context, c *middleware.Call) (string, bool) {
			return callerOf(ctx).user.Username, c.Request == nil && !open(c.Method)
		}),
		a.whileAllowed,
	),
		grpc.MaxRecvMsgSize(MaxBody),
		grpc.MaxConcurrentStreams(middleware.MaxStreams),
		grpc.MaxHeaderListSize(middleware.MaxHeader),
		grpc.ConnectionTimeout(middleware.HandshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: middleware.KeepaliveMin, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: KeepaliveTime, Timeout: middleware.KeepaliveTimeout}),
	)
	a.grpc = grpc.NewServer(opts...)
	ententev1.RegisterAdminServiceServer(a.grpc, &service{cfg: cfg})
	healthpb.RegisterHealthServer(a.grpc, a.health)
	reflection.Register(a.grpc)
	middleware.SetServing(a.grpc, a.health, healthpb.HealthCheckResponse_NOT_SERVING)
	return a, nil
}

// Run serves gRPC and REST on a TCP listener until ctx ends; then calls have
// DrainTimeout to end. It closes the listener.
func (a *Server) Run(ctx context.Context, listener net.Listener) error {
	rest, closeREST, err := a.gateway.handler(ctx)
	if err != nil {
		_ = listener.Close()
		return err
	}
	defer closeREST()
	listener = atMost(listener, LoopbackConnections, MaxConnections, ConnectionsPerAddress)
	web := a.web(rest)
	// The first caller may already have a certificate.
	if err := a.reviewer.Refresh(ctx); err != nil {
		a.cfg.Log.WarnContext(ctx, "read the cluster's client CA", "err", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		a.reviewer.Run(ctx)
		return nil
	})
	group.Go(func() error {
		if err := a.grpc.Serve(a.gateway.listener); err != nil && ctx.Err() == nil {
			return fmt.Errorf("serve the gateway: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		if err := web.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve administrators on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		a.health.Shutdown()
		close(a.stopping)
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), middleware.DrainTimeout)
		defer cancel()
		if web.Shutdown(drain) != nil {
			_ = web.Close()
		}
		// Calls over net/http have ended with it; only calls of the gateway are left.
		a.grpc.Stop()
		return nil
	})
	middleware.SetServing(a.grpc, a.health, healthpb.HealthCheckResponse_SERVING)
	return group.Wait()
}

// web returns the HTTP server of gRPC and REST.
func (a *Server) web(rest http.Handler) *http.Server {
	return &http.Server{
		Handler:           a.handler(a.admitted(rest)),
		TLSConfig:         a.tls(),
		ReadHeaderTimeout: middleware.HandshakeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    middleware.MaxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: MaxStreams,
			SendPingTimeout:      KeepaliveTime,
			PingTimeout:          middleware.KeepaliveTimeout,
			WriteByteTimeout:     middleware.DrainTimeout + KeepaliveTime,
		},
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connectedKey{}, time.Now())
		},
		ErrorLog: slog.NewLogLogger(a.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// tls requests a certificate of clients and does not verify it. kubeauth does, so that the error
// says what is wrong, and so that a bearer token counts beside an invalid certificate.
func (a *Server) tls() *tls.Config {
	c := a.cfg.TLS.Clone()
	c.MinVersion = tls.VersionTLS13
	c.ClientAuth = tls.RequestClientCert
	c.ClientCAs = nil
	c.NextProtos = []string{"h2", "http/1.1"}
	return c
}

type connectedKey struct{}

// handler passes gRPC requests to the gRPC server and all others to REST.
func (a *Server) handler(rest http.Handler) http.Handler {
	calls := a.admitted(a.grpc)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at, ok := r.Context().Value(connectedKey{}).(time.Time); ok && time.Since(at) > middleware.ConnectionAge {
			// net/http sends a GOAWAY for it on HTTP/2: running calls go on.
			w.Header().Set("Connection", "close")
		}
		w = &patientWriter{ResponseWriter: w, patience: a.cfg.pace.write}
		if r.ProtoMajor == 2 && isGRPC(r.Header.Get("Content-Type")) {
			calls.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// patientWriter cuts off a reader that does not read what is written to it: a watch without a
// reader would keep its goroutines for ever. There is no limit while nothing is written.
type patientWriter struct {
	http.ResponseWriter
	patience time.Duration
}

func (w *patientWriter) hurry() func() {
	rc := http.NewResponseController(w.ResponseWriter)
	_ = rc.SetWriteDeadline(time.Now().Add(w.patience))
	return func() { _ = rc.SetWriteDeadline(time.Time{}) }
}

func (w *patientWriter) Write(b []byte) (int, error) {
	defer w.hurry()()
	return w.ResponseWriter.Write(b) //nolint:wrapcheck // a writer's own error
}

func (w *patientWriter) Flush() { _ = w.FlushError() }

// FlushError is a method that http.ResponseController uses.
func (w *patientWriter) FlushError() error {
	defer w.hurry()()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is a method that http.ResponseController uses.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// open reports whether a method needs no caller. Those of health do not, since they reveal nothing.
func open(method string) bool {
	return strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/")
}

// isReflection reports whether a method is one of reflection, which every known caller may call.
func isReflection(method string) bool {
	return strings.HasPrefix(method, "/grpc.reflection.v1.") || strings.HasPrefix(method, "/grpc.reflection.v1alpha.")
}

// healthOnly bounds how many watches of health an address has, and how long each goes on.
func healthOnly(watches *middleware.Limiter, long time.Duration) middleware.Func {
	return func(ctx context.Context, c *middleware.Call, next func(context.Context) error) error {
		if !open(c.Method) || c.Request != nil {
			return next(ctx)
		}
		leave, err := watches.Enter(middleware.AddressKey(callerOf(ctx).remote))
		if err != nil {
			return err
		}
		defer leave()
		ctx, cancel := context.WithTimeout(ctx, long)
		defer cancel()
		return next(ctx)
	}
}

// authorized checks whether the caller may call a method. No caller may call an unknown method.
func (a *Server) authorized(ctx context.Context, c *middleware.Call, next func(context.Context) error) error {
	if open(c.Method) || isReflection(c.Method) {
		return next(ctx)
	}
	need, ok := permissions(c.Method, c.Request)
	if !ok {
		return &peering.Error{Reason: peering.ReasonCallerNotAllowed, Message: "no caller may call this method"}
	}
	if err := a.authorize(ctx, callerOf(ctx).user, need); err != nil {
		return err
	}
	return next(ctx)
}

// whileAllowed ends a watch when its caller may no longer watch, or when the process is about to
// stop. It cancels the handler's context, with the reason as its cause.
func (a *Server) whileAllowed(ctx context.Context, c *middleware.Call, next func(context.Context) error) error {
	if c.Request != nil || !strings.HasPrefix(c.Method, "/"+ententev1.AdminService_ServiceDesc.ServiceName+"/") {
		return next(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(a.allowed(ctx, c))
	}()
	err := next(ctx)
	cancel(nil)
	<-done
	return err
}

// allowed blocks until a watch has to end, and returns why.
func (a *Server) allowed(ctx context.Context, c *middleware.Call) error {
	tick := time.NewTicker(a.cfg.pace.check)
	defer tick.Stop()
	sure := time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.stopping:
			return &peering.Error{Reason: peering.ReasonStopping, Message: "the agent is about to stop", RetryAfter: middleware.RetryStopping}
		case <-tick.C:
		}
		err := a.allowedNow(ctx, c)
		switch {
		case err == nil:
			sure = time.Now()
		case wire.ReasonOf(err) == peering.ReasonKubernetes && time.Since(sure) < a.cfg.pace.grace:
			// The review failed, and did not refuse.
		default:
			return err
		}
	}
}

// allowedNow authenticates the caller again, since a token can be revoked, and checks whether it
// may call.
func (a *Server) allowedNow(ctx context.Context, c *middleware.Call) error {
	user, err := callerOf(ctx).again(ctx)
	if err != nil {
		return err
	}
	need, _ := permissions(c.Method, nil)
	return a.authorize(ctx, user, need)
}
