package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func newSource(t testing.TB) *identity.Source {
	t.Helper()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, err := identity.NewSource(identity.SourceConfig{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func selfOf(s *identity.Source, name string) wire.ClusterInfo {
	return wire.ClusterInfo{Name: name, Roots: []*cert{s.Identity().Root()}}
}

// issuer is a TrustService whose answers a test gives.
type issuer struct {
	ententev1.UnimplementedTrustServiceServer
	join func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error)
}

func (i *issuer) Join(_ context.Context, r *ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
	return i.join(r)
}

// serveIssuer serves over real TLS as a cluster, and returns where.
func serveIssuer(t testing.TB, as *identity.Source, join func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(as.ServerTLS(identity.NewBundles(), "h2"))))
	ententev1.RegisterTrustServiceServer(s, &issuer{join: join})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func tokenOf(t testing.TB, of *identity.Source, expires time.Time, endpoints ...string) peering.Token {
	t.Helper()
	token, err := peering.NewToken(rand.Reader, of.ID(), endpoints, expires)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestJoinTriesEndpointsInTurnAndPinsTheIssuer(t *testing.T) {
	home, foreign, stranger := newSource(t), newSource(t), newSource(t)
	var got *ententev1.JoinRequest
	good := serveIssuer(t, foreign, func(r *ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
		got = r
		return &ententev1.JoinResponse{Cluster: wire.ClusterInfoTo(selfOf(foreign, "office"))}, nil
	})
	elsewhere := serveIssuer(t, stranger, func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
		t.Error("the secret was sent to another cluster")
		return nil, errors.New("no")
	})
	token := tokenOf(t, foreign, time.Now().Add(time.Minute), closedPort(t), elsewhere, good)
	info, err := Join(t.Context(), JoinConfig{Token: token, Source: home, Self: selfOf(home, "home")})
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != "office" || !info.Roots[0].Equal(foreign.Identity().Root()) {
		t.Errorf("got %+v", info)
	}
	secret, _ := peering.ParseSecret(got.GetSecret())
	if secret != token.Secret || got.GetTokenId() != token.ID || got.GetCluster().GetName() != "home" {
		t.Errorf("sent %v", got.GetCluster())
	}
}

func TestWhatJoinSaysWhenItFails(t *testing.T) {
	home, foreign, stranger := newSource(t), newSource(t), newSource(t)
	refuse := func(e *wire.Error) func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
		return func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) { return nil, e.GRPCStatus().Err() }
	}
	invalid := func(md map[string]string) *wire.Error {
		return &wire.Error{Reason: wire.ReasonTokenInvalid, Message: "no", Metadata: md}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.6\r\n"))
			_ = c.Close()
		}
	}()
	closed := closedPort(t)
	soon, past := time.Now().Add(time.Minute), time.Now().Add(-time.Minute)
	for name, tc := range map[string]struct {
		token  peering.Token
		reason wire.Reason
		says   []string
	}{
		"nobody listens": {tokenOf(t, foreign, soon, closed), wire.ReasonPeerUnreachable, []string{closed, "refused"}},
		"another cluster listens": {
			tokenOf(t, foreign, soon, serveIssuer(t, stranger, nil)), wire.ReasonPeerIdentity,
			[]string{string(stranger.ID()), string(foreign.ID()), "in between"},
		},
		"something else listens": {tokenOf(t, foreign, soon, silent.Addr().String()), wire.ReasonPeerIdentity, []string{"not an Entente agent"}},
		"the token was used": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, refuse(invalid(map[string]string{wire.TokenCause: wire.TokenCauseUsed})))),
			wire.ReasonTokenInvalid,
			[]string{"redeemed by another cluster"},
		},
		"the issuer's clock is ahead": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, refuse(invalid(map[string]string{
				wire.TokenCause: wire.TokenCauseExpired, wire.TokenClock: time.Now().Add(time.Hour).Format(time.RFC3339),
			})))), wire.ReasonTokenExpired, []string{"expired", "ahead of this cluster's", "clocks"},
		},
		"the token expired by both clocks": {
			tokenOf(t, foreign, past, serveIssuer(t, foreign, refuse(invalid(nil)))), wire.ReasonTokenExpired, []string{"expired at"},
		},
		"the token is unknown": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, refuse(invalid(nil)))), wire.ReasonTokenInvalid, []string{"used, revoked or has expired"},
		},
		"the issuer answers with another's roots": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
				return &ententev1.JoinResponse{Cluster: wire.ClusterInfoTo(selfOf(stranger, "x"))}, nil
			})), wire.ReasonResponseInvalid, []string{"breaks the protocol"},
		},
		"the token is the cluster's own": {tokenOf(t, home, soon, closed), wire.ReasonPeerIsSelf, []string{"other cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Join(t.Context(), JoinConfig{Token: tc.token, Source: home, Self: selfOf(home, "home")})
			if wire.ReasonOf(err) != tc.reason {
				t.Fatalf("got %v (%s), want %s", err, wire.ReasonOf(err), tc.reason)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestJoinGivesUpWithItsContext(t *testing.T) {
	home, foreign := newSource(t), newSource(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := Join(ctx, JoinConfig{
		Token: tokenOf(t, foreign, time.Now().Add(time.Minute), "192.0.2.1:1", "192.0.2.2:1"), Source: home, Self: selfOf(home, "home"),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
	})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
		t.Errorf("got %v after %s", err, time.Since(start))
	}
}

// provider is a PeeringService whose answers a test gives.
type provider struct {
	ententev1.UnimplementedPeeringServiceServer
	request func(*ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error)
	sign    func(*ententev1.SignContractRequest) (*ententev1.SignContractResponse, error)
	session func(ententev1.PeeringService_SessionServer) error
}

func (p *provider) RequestPeering(_ context.Context, r *ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
	return p.request(r)
}

func (p *provider) SignContract(_ context.Context, r *ententev1.SignContractRequest) (*ententev1.SignContractResponse, error) {
	return p.sign(r)
}

func (p *provider) Session(s ententev1.PeeringService_SessionServer) error { return p.session(s) }

func serveProvider(t testing.TB, p *provider) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s := grpc.NewServer()
	ententev1.RegisterPeeringServiceServer(s, p)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func terms(consumer, provider *identity.Source) peering.Terms {
	now := time.Now().UTC().Truncate(time.Second)
	return peering.Terms{
		ContractID: "c-1", RequestID: "r-1", Revision: 1,
		Consumer: consumer.Identity().Party(), Provider: provider.Identity().Party(),
		Resources: peering.Resources{"cpu": peering.Whole(1)}, NotBefore: now, NotAfter: now.Add(time.Hour), PodSecurity: peering.PodSecurityBaseline,
	}
}

func signed(t testing.TB, terms peering.Terms, by ...*identity.Source) peering.Envelope {
	t.Helper()
	e, err := peering.NewEnvelope(terms)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range by {
		if e, err = e.Sign(rand.Reader, s.Identity().Signer()); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func TestOnlyTheContractThatWasSentComesBackSigned(t *testing.T) {
	home, foreign, stranger := newSource(t), newSource(t), newSource(t)
	mine := signed(t, terms(home, foreign), home)
	longer := terms(home, foreign)
	longer.NotAfter = longer.NotAfter.Add(time.Hour)
	another := terms(home, foreign)
	another.ContractID = "c-2"
	for name, tc := range map[string]struct {
		answer peering.Envelope
		want   wire.Reason
	}{
		"signed by both":                      {signed(t, terms(home, foreign), home, foreign), ""},
		"not signed by the provider":          {mine, wire.ReasonResponseInvalid},
		"signed by a third":                   {signed(t, terms(home, foreign), home, stranger), wire.ReasonResponseInvalid},
		"of an earlier round, signed by both": {signed(t, longer, home, foreign), ""},
		"other terms, never signed here":      {signed(t, longer, foreign), wire.ReasonResponseInvalid},
		"another contract, signed by both":    {signed(t, another, home, foreign), wire.ReasonResponseInvalid},
		"nothing":                             {peering.Envelope{}, wire.ReasonResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provider{sign: func(*ententev1.SignContractRequest) (*ententev1.SignContractResponse, error) {
				return &ententev1.SignContractResponse{Envelope: wire.EnvelopeTo(tc.answer)}, nil
			}}
			_, err := Peering{Conn: serveProvider(t, p)}.Sign(t.Context(), mine)
			if got := wire.ReasonOf(err); got != tc.want {
				t.Errorf("got %v (%s), want %q", err, got, tc.want)
			}
		})
	}
}

func TestAnAdvertisementAnswersItsRequest(t *testing.T) {
	ad := wire.Advertisement{ContractID: "c", RequestID: "r", ValidUntil: time.Now(), Grant: peering.Grant{
		Resources: peering.Resources{"cpu": peering.Whole(1)}, Duration: time.Hour, PodSecurity: peering.PodSecurityBaseline,
	}}
	var refusal error
	p := &provider{request: func(*ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
		return &ententev1.RequestPeeringResponse{Advertisement: wire.AdvertisementTo(ad)}, refusal
	}}
	c := Peering{Conn: serveProvider(t, p)}
	ask := peering.Ask{RequestID: "r", Resources: ad.Grant.Resources}
	if got, err := c.Request(t.Context(), ask); err != nil || got.ContractID != "c" {
		t.Errorf("got %v, %v", got, err)
	}
	ask.RequestID = "other"
	if _, err := c.Request(t.Context(), ask); wire.ReasonOf(err) != wire.ReasonResponseInvalid {
		t.Errorf("the answer to another request: %v", err)
	}
	refusal = (&wire.Error{Reason: wire.ReasonPolicyPending, Message: "wait", RetryAfter: time.Minute}).GRPCStatus().Err()
	_, err := c.Request(t.Context(), ask)
	if e := wire.FromStatus(err); e.Reason != wire.ReasonPolicyPending || e.RetryAfter != time.Minute {
		t.Errorf("a refusal: %v", err)
	}
}

func TestASessionGoesOnUntilOneSideEndsIt(t *testing.T) {
	for name, tc := range map[string]struct {
		serve func(ententev1.PeeringService_SessionServer) error
		want  string
	}{
		"the peer ends it": {func(ententev1.PeeringService_SessionServer) error { return nil }, "the peer ended it"},
		"the peer refuses it": {func(ententev1.PeeringService_SessionServer) error {
			return (&wire.Error{Reason: wire.ReasonPeerNotTrusted, Message: "no more"}).GRPCStatus().Err()
		}, "no more"},
		"the peer falls silent": {func(s ententev1.PeeringService_SessionServer) error { <-s.Context().Done(); return nil }, "said nothing"},
		"the peer says nonsense": {func(s ententev1.PeeringService_SessionServer) error {
			err := s.Send(&ententev1.SessionResponse{State: &ententev1.PeerState{Sequence: 1, Endpoints: []string{"x"}}})
			<-s.Context().Done()
			return err
		}, "endpoint"},
		"this side has enough": {func(s ententev1.PeeringService_SessionServer) error {
			err := s.Send(&ententev1.SessionResponse{State: &ententev1.PeerState{Sequence: 1}})
			<-s.Context().Done()
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := RunSession(ctx, serveProvider(t, &provider{session: tc.serve}), heartbeat.Config{
				Interval: 100 * time.Millisecond,
				Current: func(context.Context) (*ententev1.PeerState, <-chan struct{}, error) {
					return &ententev1.PeerState{Protocol: 1}, nil, nil
				},
				Observe: func(_ context.Context, s *ententev1.PeerState) error {
					if tc.want == "" {
						cancel()
					}
					return nil
				},
			})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
