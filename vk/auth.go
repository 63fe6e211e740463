package vk

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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// clientCAConfigMap is where the API server publishes the CA of its clients.
	clientCAConfigMap = "extension-apiserver-authentication"
	clientCAKey       = "client-ca-file"
	// How long an answer of the API server counts. Revoking takes as long.
	tokenTTL = time.Minute
	allowTTL = time.Minute
	denyTTL  = 10 * time.Second
	// reviewTimeout bounds one question to the API server.
	reviewTimeout = 10 * time.Second
)

// caller is the user that makes a request.
type caller struct {
	name, uid string
	groups    []string
	extra     map[string][]string
}

// access is a permission that a request needs.
type access struct{ verb, subresource, node string }

// authenticator authenticates and authorises callers.
type authenticator struct {
	client kubernetes.Interface
	log    *slog.Logger
	ca     atomic.Pointer[x509.CertPool]
	tokens *utilcache.LRUExpireCache // SHA-256 of the token → caller
	grants *utilcache.LRUExpireCache // caller and access → bool
}

func newAuthenticator(client kubernetes.Interface, log *slog.Logger) *authenticator {
	return &authenticator{
		client: client, log: log,
		tokens: utilcache.NewLRUExpireCache(maxAnswers), grants: utilcache.NewLRUExpireCache(maxAnswers),
	}
}

// run keeps the client CA as the API server publishes it until ctx ends.
func (a *authenticator) run(ctx context.Context) {
	inf := coreinformers.NewFilteredConfigMapInformer(a.client, metav1.NamespaceSystem, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", clientCAConfigMap).String()
	})
	take := func(obj any) {
		cm, ok := obj.(*corev1.ConfigMap)
		if !ok || cm.Name != clientCAConfigMap || cm.Namespace != metav1.NamespaceSystem {
			return
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(cm.Data[clientCAKey])) {
			a.log.Warn("the cluster publishes no client CA, so client certificates are not accepted", "configMap", clientCAConfigMap)
			pool = nil
		}
		a.ca.Store(pool)
	}
	// These fail only on an informer that has started.
	_, _ = inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: take, UpdateFunc: func(_, is any) { take(is) }})
	_ = inf.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		a.log.Warn("watch the client CA", "configMap", clientCAConfigMap, "err", err)
	})
	inf.RunWithContext(ctx)
}

var errAnonymous = errors.New("neither a client certificate nor a bearer token")

// authenticate returns the caller of a request. As in a kubelet, a certificate that does not
// verify counts as none.
func (a *authenticator) authenticate(r *http.Request) (caller, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if who, err := a.certificate(r.TLS.PeerCertificates, time.Now()); err == nil {
			return who, nil
		} else if r.Header.Get("Authorization") == "" {
			return caller{}, err
		}
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return caller{}, errAnonymous
	}
	if len(token) > maxTokenBytes {
		return caller{}, fmt.Errorf("the token exceeds the limit of %d bytes", maxTokenBytes)
	}
	return a.token(r.Context(), token)
}

// certificate returns the caller that a client certificate names.
func (a *authenticator) certificate(chain []*x509.Certificate, now time.Time) (caller, error) {
	pool := a.ca.Load()
	if pool == nil {
		return caller{}, errors.New("the client CA is not known yet")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return caller{}, fmt.Errorf("verify the client certificate: %w", err)
	}
	if chain[0].Subject.CommonName == "" {
		return caller{}, errors.New("the client certificate has no common name")
	}
	return caller{
		name:   chain[0].Subject.CommonName,
		groups: append(slices.Clone(chain[0].Subject.Organization), "system:authenticated"),
	}, nil
}

// token returns the caller of a bearer token. Only successes are cached.
func (a *authenticator) token(ctx context.Context, token string) (caller, error) {
	key := sha256.Sum256([]byte(token))
	if who, ok := a.tokens.Get(key); ok {
		return who.(caller), nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := a.client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return caller{}, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated || review.Status.User.Username == "" {
		return caller{}, errors.New("the token is not accepted")
	}
	u := review.Status.User
	who := caller{name: u.Username, uid: u.UID, groups: u.Groups}
	for k, v := range u.Extra {
		if who.extra == nil {
			who.extra = map[string][]string{}
		}
		who.extra[k] = v
	}
	a.tokens.Add(key, who, tokenTTL)
	return who, nil
}

// accesses returns the permissions for a request, of which the caller needs one. They are
// those of a kubelet, except that exec, attach and port-forward always need create: over a
// WebSocket they are a GET, and callers that may only read must not run commands. Without a
// pod there is no node to name, so the caller needs the permission for every node.
func accesses(method string, t target, node string) []access {
	verb := map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
		http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[method]
	switch t.verb {
	case "exec", "attach", "portForward":
		verb = "create"
	case "pods":
		return []access{{verb, "pods", node}, {verb, "proxy", node}}
	}
	return []access{{verb, "proxy", node}}
}

// authorise says whether a caller has one of some permissions.
func (a *authenticator) authorise(ctx context.Context, who caller, oneOf []access) (bool, error) {
	for _, x := range oneOf {
		if x.verb == "" {
			continue
		}
		ok, err := a.review(ctx, who, x)
		if ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

func (a *authenticator) review(ctx context.Context, who caller, x access) (bool, error) {
	key := fmt.Sprintf("%q %q %q %q %+v", who.name, who.uid, who.groups, who.extra, x)
	if ok, hit := a.grants.Get(key); hit {
		return ok.(bool), nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.name, UID: who.uid, Groups: who.groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: x.verb, Version: "v1", Resource: "nodes", Subresource: x.subresource, Name: x.node,
		},
	}
	for k, v := range who.extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[k] = v
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	ok := review.Status.Allowed && !review.Status.Denied
	ttl := denyTTL
	if ok {
		ttl = allowTTL
	}
	a.grants.Add(key, ok, ttl)
	return ok, nil
}
