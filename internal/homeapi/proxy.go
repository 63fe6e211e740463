package homeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/peering"
)

type (
	connKey  struct{}
	tokenKey struct{}
)

// newServer returns a server of HTTP/1.1, and of HTTP/2 by prior knowledge, without TLS, which
// the provider terminates.
func newServer(handler http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: handler, Protocols: protocols, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxRequestsOfPod, MaxReceiveBufferPerConnection: receiveBuffer, MaxReceiveBufferPerStream: receiveBuffer,
		},
		// Errors of clients are returned to them.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
}

// newProxy returns a proxy that passes requests on to the API server, with the token in their
// context. It calls rejected if the API server rejects the token.
func newProxy(cfg *rest.Config, rejected func(*conn), log *slog.Logger) (*httputil.ReverseProxy, error) {
	// A request of a pod must not have the agent's own credentials.
	anonymous := rest.AnonymousClientConfig(cfg)
	transport, err := rest.TransportFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	target, _, err := rest.DefaultServerUrlFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	target = &url.URL{Scheme: target.Scheme, Host: target.Host, Path: target.Path}
	return &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: nil,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host, r.Out.Trailer = "", nil
			clean(r.Out.Header)
			value, _ := r.In.Context().Value(tokenKey{}).(string)
			r.Out.Header.Set("Authorization", "Bearer "+value)
		},
		ModifyResponse: func(response *http.Response) error {
			if c, ok := response.Request.Context().Value(connKey{}).(*conn); ok && response.StatusCode == http.StatusUnauthorized {
				rejected(c)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the pod does not wait for it
			}
			log.Warn("the API server does not respond to a pod abroad", "err", err)
			refuse(w, peering.Errorf(peering.ReasonKubernetes, "the API server of the pod's home does not respond to its agent"))
		},
	}, nil
}

// tokenRefusal is the error that a pod gets if no token can be issued for it.
func tokenRefusal(err error, pod *corev1.Pod) error {
	name := pod.Namespace + "/" + serviceAccount(pod)
	switch {
	case apierrors.IsNotFound(err):
		return peering.Errorf(peering.ReasonPolicyRefused, "home has no ServiceAccount %s, or no such pod, any more", name)
	case apierrors.IsForbidden(err):
		return peering.Errorf(peering.ReasonPolicyRefused, "the agent of home may not ask for tokens of ServiceAccount %s; its administrator has to check the agent's log", name)
	}
	return peering.Errorf(peering.ReasonKubernetes, "home cannot issue a token of ServiceAccount %s now", name)
}

// refuse responds with an error in the form of an API server's.
func refuse(w http.ResponseWriter, err error) {
	code, reason := http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	message := "the API of home cannot be reached"
	status := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure}
	if own, ok := errors.AsType[*peering.Error](err); ok {
		message = "entente: " + own.Message
		switch own.Reason { //nolint:exhaustive // all others are 503
		case peering.ReasonPolicyRefused, peering.ReasonPodUnknown, peering.ReasonPeerNotTrusted:
			code, reason = http.StatusForbidden, metav1.StatusReasonForbidden
		case peering.ReasonTooManyCalls:
			code, reason = http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests
		case peering.ReasonRequestInvalid:
			code, reason = http.StatusBadRequest, metav1.StatusReasonBadRequest
		}
		if s := int32(own.RetryAfter.Seconds()); s > 0 {
			status.Details = &metav1.StatusDetails{RetryAfterSeconds: s}
			w.Header().Set("Retry-After", strconv.Itoa(int(s)))
		}
	}
	status.Message, status.Reason, status.Code = peering.Text(message, peering.MaxMessageLen), reason, int32(code)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status)
}
