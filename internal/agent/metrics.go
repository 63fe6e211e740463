package agent

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// metricsReviews is how many readers of the metrics are judged at once; any pod can
	// ask.
	metricsReviews = 4
	// metricsReviewTime is how long the API server may take for that.
	metricsReviewTime = 10 * time.Second
)

// metricsFilter lets only authorised callers read the metrics: with a token that the API
// server knows, of a user who may get the URL /metrics.
func (a *agent) metricsFilter(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
		return metricsReaders(a.kubernetes, next), nil
	}, nil
}

func metricsReaders(c kubernetes.Interface, next http.Handler) http.Handler {
	places := make(chan struct{}, metricsReviews)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			http.Error(w, "read metrics: send the token of a ServiceAccount that may get the URL "+r.URL.Path+", as Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		select {
		case places <- struct{}{}:
		default:
			http.Error(w, "read metrics: too many readers at once; try again", http.StatusTooManyRequests)
			return
		}
		status, text := judgeReader(r.Context(), c, token, r.URL.Path)
		<-places
		if status != http.StatusOK {
			http.Error(w, "read metrics: "+text, status)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// judgeReader returns StatusOK for the token of a user who may get the path; or another
// status, and why.
func judgeReader(ctx context.Context, c kubernetes.Interface, token, path string) (status int, why string) {
	ctx, cancel := context.WithTimeout(ctx, metricsReviewTime)
	defer cancel()
	review, err := c.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, "the API server cannot be asked about the token; try again"
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, "the API server does not know the token: it is wrong or expired"
	}
	user := review.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	access, err := c.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, "the API server cannot be asked about the user's rights; try again"
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, "user " + user.Username + " may not get the URL " + path + "; bind the ClusterRole entente-metrics"
	}
	return http.StatusOK, ""
}
