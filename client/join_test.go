package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

var newSource = identitytest.NewSource

func selfOf(s *identity.Source, name string) identity.ClusterInfo {
	return identity.ClusterInfo{Name: name, Bundle: identity.Bundle{Roots: []*cert{s.Identity().Root()}}}
}

// issuer is a TrustService whose responses a test sets.
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
	s := wiretest.NewServer(grpc.Creds(credentials.NewTLS(as.ServerTLS(identity.NewBundles(), "h2"))))
	ententev1.RegisterTrustServiceServer(s, &issuer{join: join})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func tokenOf(t testing.TB, of *identity.Source, expires time.Time, endpoints ...string) jointoken.Token {
	t.Helper()
	token, err := jointoken.New(rand.Reader, of.ID(), endpoints, expires)
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
	secret, _ := jointoken.ParseSecret(got.GetSecret())
	if secret != token.Secret || got.GetTokenId() != token.ID || got.GetCluster().GetName() != "home" {
		t.Errorf("sent %v", got.GetCluster())
	}
}

func TestAFailedJoinReturnsTheReason(t *testing.T) {
	t.Parallel()
	home, foreign, stranger := newSource(t), newSource(t), newSource(t)
	refuse := func(e *peering.Error) func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
		return func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) { return nil, wire.Status(e).Err() }
	}
	invalid := func(md map[string]string) *peering.Error {
		return &peering.Error{Reason: peering.ReasonTokenInvalid, Message: "no", Metadata: md}
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
		token  jointoken.Token
		reason peering.Reason
		says   []string
	}{
		"nothing listens": {tokenOf(t, foreign, soon, closed), peering.ReasonPeerUnreachable, []string{closed, "refused"}},
		"another cluster listens": {
			tokenOf(t, foreign, soon, serveIssuer(t, stranger, nil)), peering.ReasonPeerIdentity,
			[]string{string(stranger.ID()), string(foreign.ID()), "was intercepted"},
		},
		"something else listens": {tokenOf(t, foreign, soon, silent.Addr().String()), peering.ReasonPeerIdentity, []string{"not an Entente agent"}},
		"the token was used": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, refuse(invalid(map[string]string{peering.TokenCause: peering.TokenCauseUsed})))),
			peering.ReasonTokenInvalid,
			[]string{"redeemed by another cluster"},
		},
		"the issuer's clock is ahead": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, refuse(invalid(map[string]string{
				peering.TokenCause: peering.TokenCauseExpired, peering.TokenClock: time.Now().Add(time.Hour).Format(time.RFC3339),
			})))), peering.ReasonTokenExpired, []string{"expired", "ahead of this cluster's", "clocks"},
		},
		"the token expired by both clocks": {
			tokenOf(t, foreign, past, serveIssuer(t, foreign, refuse(invalid(nil)))), peering.ReasonTokenExpired, []string{"expired at"},
		},
		"the token is unknown": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, refuse(invalid(nil)))), peering.ReasonTokenInvalid, []string{"used, revoked or has expired"},
		},
		"the issuer answers with another's roots": {
			tokenOf(t, foreign, soon, serveIssuer(t, foreign, func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
				return &ententev1.JoinResponse{Cluster: wire.ClusterInfoTo(selfOf(stranger, "x"))}, nil
			})), peering.ReasonResponseInvalid, []string{"breaks the protocol"},
		},
		"the token is the cluster's own": {tokenOf(t, home, soon, closed), peering.ReasonPeerIsSelf, []string{"other cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Join(t.Context(), JoinConfig{Token: tc.token, Source: home, Self: selfOf(home, "home")})
			if wire.ReasonOf(err) != tc.reason {
				t.Fatalf("got %v (%s), want %s", err, wire.ReasonOf(err), tc.reason)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not have %q", err, want)
				}
			}
		})
	}
}

func TestJoinEndsWithItsContext(t *testing.T) {
	home, foreign := newSource(t), newSource(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := Join(ctx, JoinConfig{
		Token: tokenOf(t, foreign, time.Now().Add(time.Minute), "192.0.2.1:1", "192.0.2.2:1"), Source: home, Self: selfOf(home, "home"),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
	})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > joinDialTimeout {
		t.Errorf("got %v after %s", err, time.Since(start))
	}
}
