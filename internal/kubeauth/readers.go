package kubeauth

import (
	"errors"
	"log/slog"
	"net/http"

	"k8s.io/client-go/kubernetes"
)

// MetricsReaders lets only authorised callers read metrics: with a token that the API server
// knows, of a user who may get the URL that is asked for.
func MetricsReaders(c kubernetes.Interface, log *slog.Logger, next http.Handler) http.Handler {
	places := make(chan struct{}, maxReaders)
	reviewer := New(Config{Client: c, Log: log})
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
func judgeReader(reviewer *Reviewer, r *http.Request) (status int, why string) {
	user, err := reviewer.Authenticate(r)
	if unknown, ok := errors.AsType[UnknownError](err); ok {
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
