// Package kubeauth authenticates and authorises HTTP requests as the cluster's API server
// does: by client certificates of the cluster's client CA, TokenReview and
// SubjectAccessReview.
package kubeauth

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
)

// AuthenticatedGroup is the group that Kubernetes puts every known user in.
const AuthenticatedGroup = "system:authenticated"

// Config configures a Reviewer.
type Config struct {
	// Client calls the API server, and Log takes its errors. Both are required.
	Client kubernetes.Interface
	Log    *slog.Logger
	// Now is the clock by which certificates are verified; nil means time.Now.
	Now func() time.Time
	// Cache means that reviews are cached: see AllowTTL.
	Cache bool
}

// Reviewer authenticates and authorises callers. Certificates count once Run or Refresh has
// read the client CA.
type Reviewer struct {
	cfg    Config
	ca     atomic.Pointer[x509.CertPool]
	tokens *cache.LRUExpireCache // SHA-256 of the token → authenticationv1.UserInfo
	grants *cache.LRUExpireCache // user and permission → bool
}

// UnknownError is why a request's caller is not a user of the cluster. Any other error means that
// the API server could not be called.
type UnknownError string

func (e UnknownError) Error() string { return string(e) }

// New returns a Reviewer.
func New(cfg Config) *Reviewer {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Reviewer{cfg: cfg, tokens: cache.NewLRUExpireCache(MaxCached), grants: cache.NewLRUExpireCache(MaxCached)}
}

// Authenticate returns the user that makes a request. As at the API server, a certificate counts
// before a token, and a token counts if the certificate is not valid.
func (r *Reviewer) Authenticate(req *http.Request) (authenticationv1.UserInfo, error) {
	var chain []*x509.Certificate
	if req.TLS != nil {
		chain = req.TLS.PeerCertificates
	}
	token, err := BearerToken(req.Header)
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	if len(chain) > 0 {
		user, err := r.certificate(chain)
		if err == nil || token == "" {
			return user, err
		}
	}
	if token == "" {
		return authenticationv1.UserInfo{}, UnknownError("present a client certificate or a bearer token of this Kubernetes cluster")
	}
	return r.token(req.Context(), token)
}

// BearerToken returns the token of the Authorization header, empty if there is no header.
func BearerToken(header http.Header) (string, error) {
	values := header.Values("Authorization")
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case len(values) > 1:
		return "", UnknownError(fmt.Sprintf("there are %d authorization headers, want one", len(values)))
	case !strings.EqualFold(scheme, "Bearer"), token == "", len(token) > MaxBearerToken, strings.ContainsAny(token, " ,\t\r\n"):
		return "", UnknownError("the authorization header is not a bearer token")
	}
	return token, nil
}

// certificate takes the user's name from the common name and the groups from the
// organisations, as the API server does.
func (r *Reviewer) certificate(chain []*x509.Certificate) (authenticationv1.UserInfo, error) {
	roots := r.ca.Load()
	if roots == nil {
		return authenticationv1.UserInfo{}, UnknownError("the cluster's client CA is not known here: use a bearer token")
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	leaf := chain[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: r.cfg.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case ok && invalid.Reason == x509.Expired:
		return authenticationv1.UserInfo{}, UnknownError(fmt.Sprintf("the client certificate is valid from %s to %s only",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339)))
	case err != nil:
		return authenticationv1.UserInfo{}, UnknownError("the client certificate is not one of this cluster's client CA")
	case leaf.Subject.CommonName == "":
		return authenticationv1.UserInfo{}, UnknownError("the client certificate has no common name")
	}
	return withAuthenticated(authenticationv1.UserInfo{Username: leaf.Subject.CommonName, Groups: leaf.Subject.Organization}), nil
}

// token asks the API server for the user of a token. Only successful reviews are cached.
func (r *Reviewer) token(ctx context.Context, token string) (authenticationv1.UserInfo, error) {
	key := sha256.Sum256([]byte(token))
	if user, ok := r.tokens.Get(key); ok {
		return user.(authenticationv1.UserInfo), nil
	}
	ctx, cancel := context.WithTimeout(ctx, ReviewTimeout)
	defer cancel()
	review, err := r.cfg.Client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("review token: %w", err)
	}
	if !review.Status.Authenticated || review.Status.User.Username == "" {
		return authenticationv1.UserInfo{}, UnknownError("this cluster does not know the bearer token, or it has expired")
	}
	user := withAuthenticated(review.Status.User)
	if r.cfg.Cache {
		r.tokens.Add(key, user, AllowTTL)
	}
	return user, nil
}

func withAuthenticated(user authenticationv1.UserInfo) authenticationv1.UserInfo {
	if !slices.Contains(user.Groups, AuthenticatedGroup) {
		user.Groups = append(slices.Clone(user.Groups), AuthenticatedGroup)
	}
	return user
}

// Allowed reports whether a user has a permission.
func (r *Reviewer) Allowed(ctx context.Context, user authenticationv1.UserInfo, permission authorizationv1.ResourceAttributes) (bool, error) {
	return r.granted(ctx, user, grantKey(user, permission), authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &permission})
}

// MayGet reports whether a user may get a URL.
func (r *Reviewer) MayGet(ctx context.Context, user authenticationv1.UserInfo, path string) (bool, error) {
	permission := authorizationv1.NonResourceAttributes{Path: path, Verb: "get"}
	return r.granted(ctx, user, grantKey(user, permission), authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &permission})
}

// grantKey is the cache key of a review.
func grantKey(user authenticationv1.UserInfo, permission any) string {
	return fmt.Sprintf("%q %q %q %q %+v", user.Username, user.UID, user.Groups, user.Extra, permission)
}

// granted asks the API server, unless its review is cached.
func (r *Reviewer) granted(ctx context.Context, user authenticationv1.UserInfo, key string, spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	if allowed, ok := r.grants.Get(key); ok {
		return allowed.(bool), nil
	}
	allowed, err := r.review(ctx, user, spec)
	if err != nil {
		return false, err
	}
	if r.cfg.Cache {
		ttl := DenyTTL
		if allowed {
			ttl = AllowTTL
		}
		r.grants.Add(key, allowed, ttl)
	}
	return allowed, nil
}

func (r *Reviewer) review(ctx context.Context, user authenticationv1.UserInfo, spec authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	spec.User, spec.UID, spec.Groups = user.Username, user.UID, user.Groups
	spec.Extra = make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for k, v := range user.Extra {
		spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	ctx, cancel := context.WithTimeout(ctx, ReviewTimeout)
	defer cancel()
	review, err := r.cfg.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}
