package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server/internal/middleware"
	"github.com/entente-dev/entente/server/internal/servertest"
)

// peerCreds is the TLS of the peer API on plain TCP connections. session is the session number
// that they are given; 0 means no session.
type peerCreds struct {
	config  *tls.Config
	bundles *identity.Bundles
	session uint64
}

func (c peerCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Server(raw, c.config)
	if err := conn.Handshake(); err != nil {
		return nil, nil, err
	}
	info, err := identity.PeerOf(conn.ConnectionState(), c.bundles)
	info.Session = c.session
	return conn, info, err
}

func (c peerCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("server only")
}

func (c peerCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (c peerCreds) Clone() credentials.TransportCredentials { return c }
func (c peerCreds) OverrideServerName(string) error         { return nil }

// fakeTrust is a Trust in memory.
type fakeTrust struct {
	self identity.ClusterInfo

	mu      sync.Mutex
	tokens  map[string]*fakeToken
	peers   map[peering.ClusterID]identity.ClusterInfo
	failAdd error

	introduced
}

type fakeToken struct {
	hash peering.Hash
	by   peering.ClusterID
}

func (f *fakeTrust) Join(_ context.Context, by peering.ClusterID, info identity.ClusterInfo, id string, secret jointoken.Secret) (identity.ClusterInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tokens[id]
	if t == nil || !secret.Matches(t.hash) || t.by != "" && t.by != by {
		return identity.ClusterInfo{}, &peering.Error{Reason: peering.ReasonTokenInvalid, Message: "the token is not valid"}
	}
	t.by = by
	if f.failAdd != nil {
		return identity.ClusterInfo{}, f.failAdd
	}
	f.peers[by] = info
	return f.self, nil
}

// fakePeering is a Negotiator and Sessions in memory.
type fakePeering struct {
	advertise func(peering.Ask) (peering.Advertisement, error)

	mu         sync.Mutex
	terminated []string
	observed   map[peering.ClusterID]int
}

func (f *fakePeering) Advertise(_ context.Context, _ peering.ClusterID, ask peering.Ask) (peering.Advertisement, error) {
	return f.advertise(ask)
}

func (f *fakePeering) Sign(_ context.Context, _ peering.ClusterID, e peering.Envelope) (peering.Envelope, error) {
	if _, err := e.VerifyConsumer(); err != nil {
		return peering.Envelope{}, fmt.Errorf("check: %w", err)
	}
	return e, nil
}

func (f *fakePeering) Preview(_ context.Context, _ peering.ClusterID, ask peering.Ask) (peering.Advertisement, error) {
	ad, err := f.advertise(ask)
	ad.ContractID = ""
	return ad, err
}

func (f *fakePeering) Contract(_ context.Context, _ peering.ClusterID, contract string) (peering.Envelope, error) {
	return peering.Envelope{}, peering.Errorf(peering.ReasonContractUnknown, "no contract %s", contract)
}

func (f *fakePeering) Statements(context.Context, peering.ClusterID, string, uint64) ([]peering.Envelope, error) {
	return nil, nil
}

func (f *fakePeering) Offer(context.Context, peering.ClusterID) (peering.Offer, <-chan struct{}, error) {
	return peering.Offer{Message: "nothing"}, nil, nil
}

func (f *fakePeering) Terminate(_ context.Context, _ peering.ClusterID, contract, message string, _ time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.terminated = append(f.terminated, contract+": "+message)
	return nil
}

func (f *fakePeering) State(context.Context, peering.ClusterID) (*ententev1.PeerState, error) {
	return &ententev1.PeerState{Protocol: 1}, nil
}

func (f *fakePeering) Watch(peering.ClusterID, func()) func() { return func() {} }

func (f *fakePeering) Observe(_ context.Context, peer peering.ClusterID, _ *ententev1.PeerState) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observed[peer]++
	return nil
}

// peerTest is a peer API that runs, and a cluster that calls it.
type peerTest struct {
	self, caller *identity.Source
	bundles      *identity.Bundles
	trust        *fakeTrust
	peering      *fakePeering
	log          *servertest.SyncBuffer
	address      string
	server       *Peer
	stop         context.CancelFunc
}

func newPeerTest(t *testing.T, change ...func(*PeerConfig)) *peerTest {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { servertest.NoneLeft(t, leaks) })
	p := &peerTest{self: identitytest.NewSource(t), caller: identitytest.NewSource(t), bundles: identity.NewBundles(), log: &servertest.SyncBuffer{}}
	p.trust = &fakeTrust{
		self:   identity.ClusterInfo{Name: "provider", Endpoints: []string{"192.0.2.1:7443"}, Bundle: identity.Bundle{Roots: roots(p.self)}},
		tokens: map[string]*fakeToken{}, peers: map[peering.ClusterID]identity.ClusterInfo{},
	}
	p.peering = &fakePeering{observed: map[peering.ClusterID]int{}}
	cfg := PeerConfig{
		Log:         slog.New(slog.NewJSONHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Credentials: peerCreds{p.self.ServerTLS(p.bundles, "h2"), p.bundles, 0},
		Self:        p.self.ID(), Trusted: p.bundles.Has,
		Trust: p.trust, Introductions: p.trust, Proofs: p.trust, Negotiator: p.peering, Contracts: p.peering, Offers: p.peering, Sessions: p.peering,
		// No caller is silent for too long unless a test sets a shorter interval.
		HeartbeatInterval: time.Minute,
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if p.server, err = NewPeer(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.server.Run(ctx, l) }()
	p.stop = cancel
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return p
}

func roots(s *identity.Source) []*x509.Certificate { return []*x509.Certificate{s.Identity().Root()} }

// dial connects as a cluster.
func (p *peerTest) dial(t testing.TB, as *identity.Source) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.address,
		grpc.WithTransportCredentials(credentials.NewTLS(as.ClientTLS(p.self.ID(), nil, "", "h2"))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (p *peerTest) trustCaller(t testing.TB) {
	t.Helper()
	if err := p.bundles.Trust(p.caller.ID(), p.caller.Identity().TrustBundle()); err != nil {
		t.Fatal(err)
	}
}

func (p *peerTest) token(t testing.TB) jointoken.Token {
	t.Helper()
	token, err := jointoken.New(rand.Reader, p.self.ID(), []string{p.address}, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	p.trust.mu.Lock()
	defer p.trust.mu.Unlock()
	p.trust.tokens[token.ID] = &fakeToken{hash: token.Secret.Hash()}
	return token
}

func joinRequest(token jointoken.Token, as *identity.Source) *ententev1.JoinRequest {
	secret := [32]byte(token.Secret)
	return &ententev1.JoinRequest{TokenId: token.ID, Secret: secret[:], Cluster: &ententev1.ClusterInfo{
		Name: "consumer", Endpoints: []string{"192.0.2.2:7443"}, Bundle: as.Identity().TrustBundle().DER(),
	}}
}

func TestAStrangerCanJoinAndAskForHealthAndNothingElse(t *testing.T) {
	p := newPeerTest(t)
	conn := p.dial(t, p.caller)
	ctx := t.Context()
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
	unary := map[string]func() error{
		"RequestPeering": func() error {
			_, err := ententev1.NewPeeringServiceClient(conn).RequestPeering(ctx, &ententev1.RequestPeeringRequest{})
			return err
		},
		"Session": func() error {
			s, err := ententev1.NewPeeringServiceClient(conn).Session(ctx)
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
		"reflection": func() error {
			s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			_, err = s.Recv()
			return err
		},
		"a method that does not exist": func() error {
			return conn.Invoke(ctx, "/entente.v1.PeeringService/Nothing", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
		},
		"a service that is for others": func() error {
			_, err := ententev1.NewAdminServiceClient(conn).GetInfo(ctx, &ententev1.GetInfoRequest{})
			return err
		},
	}
	for name, call := range unary {
		if err := call(); wire.ReasonOf(err) != peering.ReasonPeerNotTrusted && status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: got %v, want PEER_NOT_TRUSTED", name, err)
		}
	}
	resp, err := ententev1.NewTrustServiceClient(conn).Join(ctx, joinRequest(p.token(t), p.caller))
	if err != nil {
		t.Fatalf("join: %v", err)
	}
	info, err := wire.ClusterInfoFrom(resp.GetCluster(), p.self.ID())
	if err != nil || info.Name != "provider" {
		t.Errorf("join answered %v, %v", info, err)
	}
	if got := p.trust.peers[p.caller.ID()]; got.Name != "consumer" {
		t.Errorf("the caller is recorded as %+v", got)
	}
}

func TestAConnectionWithoutACertificateCannotEvenJoin(t *testing.T) {
	p := newPeerTest(t)
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
	_, err = ententev1.NewTrustServiceClient(conn).Join(t.Context(), joinRequest(p.token(t), p.caller))
	if wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
		t.Errorf("join: got %v", err)
	}
}

func TestInvalidJoinsAreRefused(t *testing.T) {
	p := newPeerTest(t)
	stranger := identitytest.NewSource(t)
	for name, tc := range map[string]struct {
		as     *identity.Source
		change func(*ententev1.JoinRequest)
		want   peering.Reason
	}{
		"a wrong secret":                            {p.caller, func(r *ententev1.JoinRequest) { r.Secret[0] ^= 1 }, peering.ReasonTokenInvalid},
		"an unknown token":                          {p.caller, func(r *ententev1.JoinRequest) { r.TokenId = "nope" }, peering.ReasonTokenInvalid},
		"a secret of 31 bytes":                      {p.caller, func(r *ententev1.JoinRequest) { r.Secret = r.Secret[:31] }, peering.ReasonRequestInvalid},
		"a bundle of another cluster":               {p.caller, func(r *ententev1.JoinRequest) { r.Cluster.Bundle = stranger.Identity().TrustBundle().DER() }, peering.ReasonRequestInvalid},
		"no cluster":                                {p.caller, func(r *ententev1.JoinRequest) { r.Cluster = nil }, peering.ReasonRequestInvalid},
		"nine endpoints":                            {p.caller, func(r *ententev1.JoinRequest) { r.Cluster.Endpoints = strings.Fields(strings.Repeat("a:1 ", 9)) }, peering.ReasonRequestInvalid},
		"the cluster itself, by a token of its own": {p.self, func(*ententev1.JoinRequest) {}, peering.ReasonPeerIsSelf},
	} {
		t.Run(name, func(t *testing.T) {
			token := p.token(t)
			req := joinRequest(token, tc.as)
			tc.change(req)
			_, err := ententev1.NewTrustServiceClient(p.dial(t, tc.as)).Join(t.Context(), req)
			if got := wire.ReasonOf(err); got != tc.want {
				t.Errorf("got %v (%s), want %s", err, got, tc.want)
			}
			if p.trust.tokens[token.ID].by != "" {
				t.Error("the token was used up")
			}
		})
	}
}

func TestOfAHundredRedeemersOneSucceedsAndItMayRepeat(t *testing.T) {
	// The limits' clock runs fast, or the test would wait for them.
	began := time.Now()
	p := newPeerTest(t, func(c *PeerConfig) {
		c.Now = func() time.Time { return began.Add(50 * time.Since(began)) }
	})
	token := p.token(t)
	const redeemers = 100
	sources := make([]*identity.Source, redeemers)
	for i := range sources {
		sources[i] = identitytest.NewSource(t)
	}
	var mu sync.Mutex
	var won []*identity.Source
	refused := map[peering.Reason]int{}
	var wg sync.WaitGroup
	// Strangers share an address here and its budget: limits push some back.
	join := func(conn *grpc.ClientConn, s *identity.Source) error {
		for {
			_, err := ententev1.NewTrustServiceClient(conn).Join(t.Context(), joinRequest(token, s))
			if e := wire.FromStatus(err); e == nil || e.Reason == peering.ReasonTokenInvalid || e.RetryAfter == 0 {
				return err
			}
			time.Sleep(wire.FromStatus(err).RetryAfter / 50)
		}
	}
	for _, s := range sources {
		conn := p.dial(t, s)
		wg.Go(func() {
			err := join(conn, s)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, s)
			} else {
				refused[wire.ReasonOf(err)]++
			}
		})
	}
	wg.Wait()
	if len(won) != 1 || refused[peering.ReasonTokenInvalid] != redeemers-1 {
		t.Fatalf("%d succeeded, refused: %v", len(won), refused)
	}
	if err := join(p.dial(t, won[0]), won[0]); err != nil {
		t.Errorf("repeating the join that succeeded: %v", err)
	}
}

func TestAJoinThatFailedHalfWayCanBeRepeated(t *testing.T) {
	p := newPeerTest(t)
	p.trust.failAdd = errors.New("etcd at 10.0.0.1 said no")
	token := p.token(t)
	c := ententev1.NewTrustServiceClient(p.dial(t, p.caller))
	_, err := c.Join(t.Context(), joinRequest(token, p.caller))
	if wire.ReasonOf(err) != peering.ReasonInternal || strings.Contains(err.Error(), "etcd") {
		t.Errorf("got %v, want INTERNAL without details", err)
	}
	if !strings.Contains(p.log.String(), "etcd at 10.0.0.1") {
		t.Error("the log does not have the cause")
	}
	p.trust.mu.Lock()
	p.trust.failAdd = nil
	p.trust.mu.Unlock()
	if _, err := c.Join(t.Context(), joinRequest(token, p.caller)); err != nil {
		t.Errorf("repeating: %v", err)
	}
}

func TestTrustedPeersNegotiateContracts(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	ctx := t.Context()
	c := ententev1.NewPeeringServiceClient(p.dial(t, p.caller))
	ask := peering.Ask{RequestID: "r-1", Resources: peering.Resources{"cpu": peering.Whole(2)}, Network: true}
	ad := peering.Advertisement{ContractID: "c-1", RequestID: "r-1", Revision: 1, ValidUntil: time.Now().Add(time.Minute).Truncate(time.Second).UTC(), Grant: peering.Grant{
		Duration: time.Hour,
		Clauses: peering.Clauses{
			Resources: ask.Resources, Network: true, PodSecurity: peering.PodSecurityBaseline, Exposure: peering.ExposureOffloaded,
		},
	}}
	p.peering.advertise = func(got peering.Ask) (peering.Advertisement, error) {
		if diff := cmp.Diff(ask, got, cmpopts.EquateComparable(peering.Quantity{}, peering.Decimal{})); diff != "" {
			t.Errorf("ask (-want +got)\n%s", diff)
		}
		return ad, nil
	}
	resp, err := c.RequestPeering(ctx, &ententev1.RequestPeeringRequest{Request: wire.AskTo(ask)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.AdvertisementFrom(resp.GetAdvertisement(), false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ad, got, cmpopts.EquateComparable(peering.Quantity{}, peering.Decimal{})); diff != "" {
		t.Errorf("advertisement (-want +got)\n%s", diff)
	}
	if _, err := c.TerminateContract(ctx, &ententev1.TerminateContractRequest{ContractId: "c-1", Message: "bye\x1b[2J"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c-1: bye [2J"}, p.peering.terminated); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, tc := range map[string]struct {
		err    error
		reason peering.Reason
		code   codes.Code
		retry  bool
	}{
		"a policy's no":     {&peering.Error{Reason: peering.ReasonPolicyRefused, Message: "no"}, peering.ReasonPolicyRefused, codes.PermissionDenied, false},
		"no capacity":       {peering.Refuse(peering.ReasonCapacityExhausted, "", "full"), peering.ReasonCapacityExhausted, codes.ResourceExhausted, true},
		"too many offers":   {peering.Errorf(peering.ReasonCapacityExhausted, "too many"), peering.ReasonCapacityExhausted, codes.ResourceExhausted, false},
		"a pending request": {&peering.Error{Reason: peering.ReasonPolicyPending, Message: "wait", RetryAfter: time.Second}, peering.ReasonPolicyPending, codes.FailedPrecondition, true},
		"a signature":       {peering.Errorf(peering.ReasonSignatureInvalid, "missing"), peering.ReasonSignatureInvalid, codes.InvalidArgument, false},
		"anything else":     {errors.New("disk on fire"), peering.ReasonInternal, codes.Internal, false},
	} {
		p.peering.advertise = func(peering.Ask) (peering.Advertisement, error) {
			return peering.Advertisement{}, fmt.Errorf("deep: %w", tc.err)
		}
		_, err := c.RequestPeering(ctx, &ententev1.RequestPeeringRequest{Request: wire.AskTo(ask)})
		e := wire.FromStatus(err)
		if status.Code(err) != tc.code || e.Reason != tc.reason || (e.RetryAfter > 0) != tc.retry {
			t.Errorf("%s: got %v, reason %s, retry after %s", name, err, e.Reason, e.RetryAfter)
		}
	}
}

func TestInvalidMessageIsReportedFieldByField(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	conn := p.dial(t, p.caller)
	_, err := ententev1.NewPeeringServiceClient(conn).TerminateContract(t.Context(), &ententev1.TerminateContractRequest{})
	e := wire.FromStatus(err)
	if status.Code(err) != codes.InvalidArgument || len(e.Violations) != 1 || e.Violations[0].Field != "contract_id" {
		t.Errorf("unary: %v %+v", err, e)
	}
	s, err := ententev1.NewPeeringServiceClient(conn).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&ententev1.SessionRequest{}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Recv()
	}
	if e := wire.FromStatus(err); e.Reason != peering.ReasonRequestInvalid || len(e.Violations) != 1 || e.Violations[0].Field != "state" {
		t.Errorf("stream: %v %+v", err, e)
	}
}

func TestPanicFailsItsCallAlone(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	c := ententev1.NewPeeringServiceClient(p.dial(t, p.caller))
	ask := &ententev1.RequestPeeringRequest{Request: &ententev1.PeeringRequest{RequestId: "r", Resources: &ententev1.ResourceList{}}}
	p.peering.advertise = func(peering.Ask) (peering.Advertisement, error) { panic("the password is hunter2") }
	for range 2 {
		_, err := c.RequestPeering(t.Context(), ask)
		if wire.ReasonOf(err) != peering.ReasonInternal || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	}
}

func TestASessionEndsWithTheTrustInTheCaller(t *testing.T) {
	// The caller beats often enough for a busy machine.
	p := newPeerTest(t, func(c *PeerConfig) { c.HeartbeatInterval = 2 * time.Second })
	p.trustCaller(t)
	s, err := ententev1.NewPeeringServiceClient(p.dial(t, p.caller)).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for i := uint64(1); s.Send(&ententev1.SessionRequest{State: &ententev1.PeerState{Sequence: i}}) == nil; i++ {
			time.Sleep(50 * time.Millisecond)
		}
	}()
	for range 3 {
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	p.bundles.Remove(p.caller.ID())
	start := time.Now()
	for err == nil {
		_, err = s.Recv()
	}
	if wire.ReasonOf(err) != peering.ReasonPeerNotTrusted || time.Since(start) > TrustCheck+servertest.Prompt {
		t.Errorf("ended after %s with %v", time.Since(start), err)
	}
}

func TestASilentSessionEnds(t *testing.T) {
	silent := make(chan uint64, 1)
	p := newPeerTest(t, func(c *PeerConfig) {
		c.HeartbeatInterval, c.Silent = 50*time.Millisecond, func(session uint64) { silent <- session }
	})
	p.trustCaller(t)
	s, err := ententev1.NewPeeringServiceClient(p.dial(t, p.caller)).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Recv()
	}
	if wire.ReasonOf(err) != peering.ReasonHeartbeatLost {
		t.Errorf("got %v", err)
	}
	<-silent
}

// Keepalives of its session show whether a caller is there; on other connections only the states
// do.
func TestOnlySessionsHaveALongerHeartbeatTimeout(t *testing.T) {
	for session, want := range map[uint64]time.Duration{0: 0, 7: heartbeat.SessionTimeout} {
		p := newPeerTest(t, func(c *PeerConfig) {
			creds, _ := c.Credentials.(peerCreds)
			creds.session = session
			c.Credentials = creds
		})
		p.trustCaller(t)
		s, err := ententev1.NewPeeringServiceClient(p.dial(t, p.caller)).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := m.GetState().GetHeartbeatTimeout().AsDuration(); got != want {
			t.Errorf("session %d: patience %s, want %s", session, got, want)
		}
	}
}

func TestOnlyTheNewestSessionsOfAPeerGoOn(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	c := ententev1.NewPeeringServiceClient(p.dial(t, p.caller))
	var first ententev1.PeeringService_SessionClient
	for i := range MaxSessionsPerPeer + 1 {
		s, err := c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = s
		}
	}
	_, err := first.Recv()
	if wire.ReasonOf(err) != peering.ReasonSessionSuperseded {
		t.Errorf("got %v", err)
	}
}

func TestStoppingEndsStreamsAndHealth(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	conn := p.dial(t, p.caller)
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: ententev1.PeeringService_ServiceDesc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health is %v, %v", r, err)
	}
	s, err := ententev1.NewPeeringServiceClient(conn).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	p.stop()
	if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health is %v, %v", r, err)
	}
	_, err = s.Recv()
	if wire.ReasonOf(err) != peering.ReasonStopping || time.Since(start) > middleware.DrainTimeout {
		t.Errorf("the session ended after %s with %v", time.Since(start), err)
	}
}

func TestStrangersAreLimitedByAddressAndPeersAreNot(t *testing.T) {
	// The limits' clock does not move: slow callers are limited as well.
	now := time.Now()
	p := newPeerTest(t, func(c *PeerConfig) { c.Now = func() time.Time { return now } })
	conn := p.dial(t, p.caller)
	limited := 0
	for range StrangerBurst + 20 {
		_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if e := wire.FromStatus(err); e != nil {
			if e.Reason != peering.ReasonRateLimited || e.RetryAfter == 0 {
				t.Fatalf("got %v", err)
			}
			limited++
		}
	}
	if limited == 0 {
		t.Error("a flood of calls of a stranger was not limited")
	}
	p.trustCaller(t)
	trusted := p.dial(t, p.caller)
	for range StrangerBurst + 20 {
		if _, err := healthpb.NewHealthClient(trusted).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatalf("a trusted peer was limited: %v", err)
		}
	}
}

func TestMessagesBeyondTheLimitAreRefused(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	c := ententev1.NewPeeringServiceClient(p.dial(t, p.caller))
	_, err := c.SignContract(t.Context(), &ententev1.SignContractRequest{Envelope: &ententev1.Envelope{Payload: make([]byte, MaxMessage+1), PayloadType: "x"}})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

func TestAuditLineNamesCallerAndCallButNoSecret(t *testing.T) {
	p := newPeerTest(t)
	token := p.token(t)
	if _, err := ententev1.NewTrustServiceClient(p.dial(t, p.caller)).Join(t.Context(), joinRequest(token, p.caller)); err != nil {
		t.Fatal(err)
	}
	text, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	log := p.log.String()
	for _, want := range []string{`"method":"entente.v1.TrustService/Join"`, `"who":"` + string(p.caller.ID()) + `"`, `"token":"` + token.ID + `"`, `"code":"OK"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %s:\n%s", want, log)
		}
	}
	secret := [32]byte(token.Secret)
	for _, not := range []string{text, fmt.Sprintf("%x", secret), string(secret[:])} {
		if strings.Contains(log, not) {
			t.Errorf("the log has the secret:\n%s", log)
		}
	}
}

func TestReflectionIsForTrustedPeers(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	s, err := reflectionpb.NewServerReflectionClient(p.dial(t, p.caller)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Recv()
	if err != nil || len(r.GetListServicesResponse().GetService()) < 3 {
		t.Errorf("got %v, %v", r, err)
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("ended with %v", err)
	}
}

// raw connects as a cluster and sends only the preface.
func (p *peerTest) raw(t *testing.T, as *identity.Source) *servertest.H2 {
	t.Helper()
	r := p.rawSilent(t, as)
	go r.Read()
	return r
}

// rawSilent connects and never reads.
func (p *peerTest) rawSilent(t *testing.T, as *identity.Source) *servertest.H2 {
	t.Helper()
	conn, err := tls.Dial("tcp", p.address, as.ClientTLS(p.self.ID(), nil, "", "h2"))
	if err != nil {
		t.Fatal(err)
	}
	return servertest.Greet(t, conn)
}
