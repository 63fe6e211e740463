package kubeauth

import (
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
)

// MetricsReaders lets only authorised callers read metrics: with a token that the API server
// knows, of a user who may get the requested URL. Others get an error with the reason. The API
// server is asked about maxReaders at a time, since any pod can ask. Its reviews are cached for a
// while, so that a regular reader costs it nothing, and can go on while it is away.
func MetricsReaders(c kubernetes.Interface, log *slog.Logger, next http.Handler) http.Handler {
	r := New(Config{Client: c, Log: log, Cache: true})
	places := make(chan struct{}, maxReaders)
	judge := func(req *http.Request) (status int, why string) {
		if r.cached(req) {
			return http.StatusOK, ""
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			return r.judge(req)
		default:
			return http.StatusTooManyRequests, "too many readers at once; try again"
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if status, why := judge(req); status != http.StatusOK {
			http.Error(w, "read metrics: "+why, status)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// cached reports whether the API server need not be asked, since the user of the token was lately
// allowed to get the URL.
func (r *Reviewer) cached(req *http.Request) bool {
	token, err := BearerToken(req.Header)
	if err != nil || token == "" {
		return false
	}
	user, ok := r.tokens.Get(sha256.Sum256([]byte(token)))
	if !ok {
		return false
	}
	allowed, ok := r.grants.Get(grantKey(user.(authenticationv1.UserInfo), authorizationv1.NonResourceAttributes{Path: req.URL.Path, Verb: "get"}))
	return ok && allowed.(bool)
}

// judge returns StatusOK for a user who may get what is requested, or another status, and why.
func (r *Reviewer) judge(req *http.Request) (status int, why string) {
	user, err := r.Authenticate(req)
	if unknown, ok := errors.AsType[UnknownError](err); ok {
		return http.StatusUnauthorized, unknown.Error() + ": send the token of a ServiceAccount that may get the URL " + req.URL.Path + ", as Authorization: Bearer TOKEN"
	}
	may := false
	if err == nil {
		may, err = r.MayGet(req.Context(), user, req.URL.Path)
	}
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, "the API server cannot be asked about the token and its user's rights; try again"
	case !may:
		return http.StatusForbidden, "user " + user.Username + " may not get the URL " + req.URL.Path + "; bind the ClusterRole entente-metrics"
	}
	return http.StatusOK, ""
}
