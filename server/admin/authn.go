package admin

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// Metadata with which the REST gateway says for whom it calls. It counts only on
// the gateway's own connection, and a call with it on any other is refused.
const (
	// gatewayPrefix begins the names of all of them.
	gatewayPrefix = "entente-gateway-"
	// gatewayCertificate is the chain with which the caller proved itself in its
	// TLS handshake, leaf first, DER, concatenated. It is verified here.
	gatewayCertificate = gatewayPrefix + "certificate-bin"
	// gatewayAddress is the caller's address.
	gatewayAddress = gatewayPrefix + "address"
)

// authenticatedGroup is the group that Kubernetes puts every known user in.
const authenticatedGroup = "system:authenticated"

// authenticator finds out who calls the admin API.
type authenticator struct {
	client kubernetes.Interface
	ca     func() *x509.CertPool
	now    func() time.Time
	// gateway is the SHA-256 of the gateway's own certificate.
	gateway [sha256.Size]byte
}

// presented is what a call proved or claims, before anything of it is believed.
type presented struct {
	// certificates is the client's chain; whoever presented it holds the key of the
	// first one.
	certificates []*x509.Certificate
	// bearer is the bearer token; empty if there is none.
	bearer string
	// address is where the call came from.
	address string
}

func unknownCaller(format string, args ...any) error {
	return peering.Errorf(peering.ReasonCallerUnknown, format, args...)
}

// present reads what a call comes with.
func (a *authenticator) present(ctx context.Context) (presented, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return presented{}, unknownCaller("the call came over no connection")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return presented{}, unknownCaller("the connection is not encrypted")
	}
	out := presented{certificates: info.State.PeerCertificates, address: middleware.RemoteAddress(ctx)}
	md, _ := metadata.FromIncomingContext(ctx)
	if a.isGateway(out.certificates) {
		if err := out.fromGateway(md); err != nil {
			return presented{}, err
		}
	} else {
		for key := range md {
			if strings.HasPrefix(key, gatewayPrefix) {
				return presented{}, unknownCaller("metadata %s* is not for callers to set", gatewayPrefix)
			}
		}
	}
	var err error
	out.bearer, err = bearerToken(md.Get("authorization"))
	return out, err
}

func (a *authenticator) isGateway(chain []*x509.Certificate) bool {
	return len(chain) > 0 && sha256.Sum256(chain[0].Raw) == a.gateway
}

// fromGateway replaces the gateway itself by whom it calls for.
func (p *presented) fromGateway(md metadata.MD) error {
	p.certificates = nil
	addresses := md.Get(gatewayAddress)
	if len(addresses) != 1 {
		return unknownCaller("the gateway gave %d addresses, want one", len(addresses))
	}
	p.address = addresses[0]
	ders := md.Get(gatewayCertificate)
	switch len(ders) {
	case 0:
		return nil
	case 1:
		chain, err := x509.ParseCertificates([]byte(ders[0]))
		if err != nil || len(chain) == 0 {
			return unknownCaller("the client certificate cannot be read")
		}
		p.certificates = chain
		return nil
	}
	return unknownCaller("the gateway gave %d certificates, want one", len(ders))
}

// bearerToken returns the one token of the authorization metadata.
func bearerToken(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", unknownCaller("there are %d authorization headers, want one", len(values))
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > MaxBearerToken || strings.ContainsAny(token, " \t,") {
		return "", unknownCaller("the authorization header is not a bearer token")
	}
	return token, nil
}

// authenticate returns the Kubernetes user who calls. As at the API server, a
// certificate counts before a token, and a token counts where the certificate
// does not.
func (a *authenticator) authenticate(ctx context.Context, p presented) (authenticationv1.UserInfo, error) {
	var refused error
	if len(p.certificates) > 0 {
		user, err := a.byCertificate(p.certificates)
		if err == nil {
			return user, nil
		}
		refused = err
	}
	if p.bearer != "" {
		return a.byToken(ctx, p.bearer)
	}
	if refused != nil {
		return authenticationv1.UserInfo{}, refused
	}
	return authenticationv1.UserInfo{}, unknownCaller("present a client certificate or a bearer token of this Kubernetes cluster")
}

// byCertificate takes the user name from the common name and the groups from the
// organisations, as the API server does.
func (a *authenticator) byCertificate(chain []*x509.Certificate) (authenticationv1.UserInfo, error) {
	roots := a.ca()
	if roots == nil {
		return authenticationv1.UserInfo{}, unknownCaller("the cluster's client CA is not known here: use a bearer token")
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: a.now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return authenticationv1.UserInfo{}, unknownCaller("the client certificate is valid from %s to %s only",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	case err != nil:
		return authenticationv1.UserInfo{}, unknownCaller("the client certificate is not one of this cluster's client CA")
	case leaf.Subject.CommonName == "":
		return authenticationv1.UserInfo{}, unknownCaller("the client certificate has no common name")
	}
	return authenticationv1.UserInfo{
		Username: leaf.Subject.CommonName,
		Groups:   withAuthenticated(leaf.Subject.Organization),
	}, nil
}

// byToken asks the API server whose token it is.
func (a *authenticator) byToken(ctx context.Context, token string) (authenticationv1.UserInfo, error) {
	review, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, &peering.Error{
			Reason: peering.ReasonKubernetes, Message: "the cluster's API server could not review the token",
			RetryAfter: middleware.RetryKubernetes, Err: fmt.Errorf("review token: %w", err),
		}
	}
	if !review.Status.Authenticated || review.Status.User.Username == "" {
		return authenticationv1.UserInfo{}, unknownCaller("this cluster does not know the bearer token, or it has expired")
	}
	user := review.Status.User
	user.Groups = withAuthenticated(user.Groups)
	return user, nil
}

func withAuthenticated(groups []string) []string {
	if slices.Contains(groups, authenticatedGroup) {
		return groups
	}
	return append(slices.Clone(groups), authenticatedGroup)
}
