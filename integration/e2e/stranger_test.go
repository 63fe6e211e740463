package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// stranger is a third cluster that exists as a key only, on the internet between
// the two, and speaks the peer API with abroad as it likes.
type stranger struct {
	world    *World
	name     string
	identity *identity.Identity
	source   *identity.Source
	// issuer is the cluster that it speaks to, at endpoint.
	issuer   peering.ClusterID
	endpoint string
}

// newStranger makes an unknown cluster. A token of abroad has its address and identity.
func newStranger(ctx context.Context, t *testing.T, w *World, name string) (*stranger, jointoken.Token) {
	t.Helper()
	id, err := identity.Generate(time.Now())
	OK(t, err)
	source, err := identity.NewSource(identity.SourceConfig{Identity: id})
	OK(t, err)
	token := parsedToken(ctx, t, w.Abroad)
	return &stranger{world: w, name: name, identity: id, source: source, issuer: token.Issuer, endpoint: token.Endpoints[0]}, token
}

// parsedToken makes a token and reads it.
func parsedToken(ctx context.Context, t *testing.T, s *Side, args ...string) jointoken.Token {
	t.Helper()
	text, err := s.CreateToken(ctx, args...)
	OK(t, err)
	token, err := jointoken.Parse(text)
	OK(t, err)
	return token
}

// join redeems a token.
func (s *stranger) join(ctx context.Context, token jointoken.Token) error {
	_, err := client.Join(ctx, client.JoinConfig{
		Token: token, Source: s.source, Dial: s.world.DialOnInternet,
		Self: identity.ClusterInfo{Name: s.name, Bundle: identity.Bundle{Roots: []*x509.Certificate{s.identity.Root()}}},
	})
	return err
}

// forget removes the stranger from abroad.
func (s *stranger) forget(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	var list v1alpha1.ForeignClusterList
	OK(t, s.world.Abroad.Client.List(ctx, &list))
	for i := range list.Items {
		if list.Items[i].Spec.ClusterID == string(s.identity.ID()) {
			OK(t, ctrlclient.IgnoreNotFound(s.world.Abroad.Client.Delete(ctx, &list.Items[i])))
		}
	}
	OK(t, s.world.Until(ctx, Soon, "the stranger to be forgotten", func(ctx context.Context) (string, error) {
		var list v1alpha1.ForeignClusterList
		if err := s.world.Abroad.Client.List(ctx, &list); err != nil {
			return "", err
		}
		for i := range list.Items {
			if list.Items[i].Spec.ClusterID == string(s.identity.ID()) {
				return "it is still known", nil
			}
		}
		return "", nil
	}))
}

// dial connects to the peer API of abroad with the stranger's certificate.
func (s *stranger) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			raw, err := s.world.DialOnInternet(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			secure := tls.Client(raw, s.source.ClientTLS(s.issuer, nil, "", "h2"))
			if err := secure.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, raw.Close())
			}
			return secure, nil
		}),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)),
	)
	OK(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// wantReason checks what an error of the peer API is about.
func wantReason(t *testing.T, err error, want peering.Reason) {
	t.Helper()
	if got := wire.ReasonOf(err); got != want {
		t.Errorf("the answer is %q (%v), want %q", got, err, want)
	}
}
