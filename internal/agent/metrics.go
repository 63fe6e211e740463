package agent

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/entente-dev/entente/internal/kubeauth"
)

// metricsReviews is how many readers of the metrics are judged at once; any pod can ask.
const metricsReviews = 4

// metricsFilter lets only authorised callers read the metrics: with a token that the API
// server knows, of a user who may get the URL /metrics.
func (a *agent) metricsFilter(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
		return metricsReaders(a.kubernetes, a.log, next), nil
	}, nil
}

func metricsReaders(c kubernetes.Interface, log *slog.Logger, next http.Handler) http.Handler {
	places := make(chan struct{}, metricsReviews)
	reviewer := kubeauth.New(kubeauth.Config{Client: c, Log: log})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
		default:
			http.Error(w, "read metrics: too many readers at once; try again", http.StatusTooManyRequests)
			return
		}
		status, text := judgeReader(reviewer, r)
		<-places
		if status != http.StatusOK {
			http.Error(w, "read metrics: "+text, status)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// judgeReader returns StatusOK for a user who may get what is requested; or another status,
// and why.
func judgeReader(reviewer *kubeauth.Reviewer, r *http.Request) (status int, why string) {
	user, err := reviewer.Authenticate(r)
	if unknown, ok := errors.AsType[kubeauth.UnknownError](err); ok {
		return http.StatusUnauthorized, unknown.Error() + ": send the token of a ServiceAccount that may get the URL " + r.URL.Path + ", as Authorization: Bearer TOKEN"
	}
	may := false
	if err == nil {
		may, err = reviewer.MayGet(r.Context(), user, r.URL.Path)
	}
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, "the API server cannot be asked about the token and its user's rights; try again"
	case !may:
		return http.StatusForbidden, "user " + user.Username + " may not get the URL " + r.URL.Path + "; bind the ClusterRole entente-metrics"
	}
	return http.StatusOK, ""
}
