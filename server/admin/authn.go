package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// caller is the user that makes a request.
type caller struct {
	remote string
	// user is empty for requests that need no caller.
	user authenticationv1.UserInfo
	// again authenticates the request again.
	again func(context.Context) (authenticationv1.UserInfo, error)
}

// callerKey is the key of the caller in a gRPC call's context. A REST call's caller is found by
// callerNumber in its metadata, which is only read on the gateway's connection.
type callerKey struct{}

const callerNumber = "entente-gateway-caller"

func unknownCaller(format string, args ...any) error {
	return peering.Errorf(peering.ReasonCallerUnknown, format, args...)
}

// addr is the remote address of an HTTP request.
type addr string

func (addr) Network() string { return "tcp" }

func (a addr) String() string { return string(a) }

// admitted authenticates requests and limits those of each address and user, before a byte of
// their bodies is read. It logs refused requests as calls.
func (a *Server) admitted(next http.Handler) http.Handler {
	audit := middleware.Audited(a.cfg.Log, true, mutates)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		framed := r.ProtoMajor == 2 && isGRPC(r.Header.Get("Content-Type"))
		if !framed && !strings.HasPrefix(r.URL.Path, "/v1/") {
			r.Body = http.NoBody
			next.ServeHTTP(w, r)
			return
		}
		c := &middleware.Call{Method: r.URL.Path}
		admitted, leave, err := a.admit(w, r, c, framed)
		defer leave()
		if err == nil {
			next.ServeHTTP(w, admitted)
			return
		}
		ctx := peer.NewContext(r.Context(), &peer.Peer{Addr: addr(r.RemoteAddr)})
		ctx = metadata.NewIncomingContext(ctx, metadata.MD{middleware.CallIDHeader: r.Header.Values(middleware.CallIDHeader)})
		refused := audit(ctx, c, func(context.Context) error { return err })
		w.Header().Set(middleware.CallIDHeader, c.ID)
		refuse(w, framed, refused)
	})
}

// admit returns a request with its caller and, unless it is a stream's, its whole body.
// leave has to be called when it is over, also after an error.
func (a *Server) admit(w http.ResponseWriter, r *http.Request, c *middleware.Call, framed bool) (admitted *http.Request, leave func(), err error) {
	var left []func()
	leave = func() {
		for _, f := range left {
			f()
		}
	}
	enter := func(l *middleware.Limiter, key string) error {
		f, err := l.Enter(key)
		if err == nil {
			left = append(left, f)
		}
		return err
	}
	one := &caller{remote: r.RemoteAddr, again: func(ctx context.Context) (authenticationv1.UserInfo, error) {
		return a.authenticate(r.WithContext(ctx))
	}}
	if err := enter(a.addresses, middleware.AddressKey(r.RemoteAddr)); err != nil {
		return nil, leave, err
	}
	limit := int64(MaxBody)
	if framed {
		limit += 5
	}
	health := framed && open(r.URL.Path)
	if health {
		limit = 5 + HealthName + 3 // and the tag and length of the name
	} else {
		if one.user, err = a.authenticate(r); err != nil {
			return nil, leave, err
		}
		c.Who = peering.Text(one.user.Username, 256)
		if err := enter(a.users, one.user.Username); err != nil {
			return nil, leave, err
		}
	}
	admitted = r.WithContext(context.WithValue(r.Context(), callerKey{}, one))
	if framed && isReflection(r.URL.Path) {
		admitted.Body = &messages{Closer: r.Body, body: r.Body}
		return admitted, leave, nil
	}
	body, done, err := a.bodies.read(w, r, one.user.Username, limit)
	left = append(left, done)
	admitted.Body = io.NopCloser(bytes.NewReader(body))
	if large := (*http.MaxBytesError)(nil); health && errors.As(err, &large) {
		err = middleware.BadField("service", "has to be at most %d bytes", HealthName)
	}
	return admitted, leave, tooLong(err)
}

// authenticate returns the Kubernetes user that makes a request.
func (a *Server) authenticate(r *http.Request) (authenticationv1.UserInfo, error) {
	user, err := a.reviewer.Authenticate(r)
	switch unknown, ok := errors.AsType[kubeauth.UnknownError](err); {
	case ok:
		return user, unknownCaller("%s", unknown)
	case err != nil:
		return user, &peering.Error{
			Reason: peering.ReasonKubernetes, Message: "the cluster's API server could not review the token",
			RetryAfter: middleware.RetryKubernetes, Err: err,
		}
	}
	return user, nil
}

// called finds a call's caller.
func (a *Server) called(ctx context.Context, c *middleware.Call, next func(context.Context) error) error {
	one, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		numbers := metadata.ValueFromIncomingContext(ctx, callerNumber)
		if len(numbers) != 1 {
			return errors.New("a call that is not admitted")
		}
		found, _ := a.gateway.callers.Load(numbers[0])
		if one, ok = found.(*caller); !ok {
			return errors.New("a call that is not admitted")
		}
		ctx = context.WithValue(ctx, callerKey{}, one)
	}
	c.Who = peering.Text(one.user.Username, 256)
	p := peer.Peer{}
	if had, ok := peer.FromContext(ctx); ok {
		p = *had
	}
	p.Addr = addr(one.remote)
	return next(peer.NewContext(ctx, &p))
}

// callerOf returns a call's caller.
func callerOf(ctx context.Context) *caller {
	one, _ := ctx.Value(callerKey{}).(*caller)
	return one
}

// refuse responds to a request with an error, which is a status.
func refuse(w http.ResponseWriter, framed bool, err error) {
	st := status.Convert(err)
	h := w.Header()
	if wait := wire.FromStatus(err).RetryAfter; wait > 0 {
		h.Set("Retry-After", strconv.Itoa(int(wait.Seconds()+1)))
	}
	if framed {
		// A response of trailers alone (gRPC over HTTP/2).
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", strconv.Itoa(int(st.Code())))
		h.Set("Grpc-Message", url.PathEscape(st.Message()))
		if details, err := proto.Marshal(st.Proto()); err == nil {
			h.Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
		}
		w.WriteHeader(http.StatusOK)
		return
	}
	h.Set("Content-Type", "application/json")
	code := runtime.HTTPStatusFromCode(st.Code())
	switch v := wire.FromStatus(err).Violations; {
	case code == http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case len(v) == 1 && v[0].Field == contentType:
		code = http.StatusUnsupportedMediaType
	}
	w.WriteHeader(code)
	if body, err := protojson.Marshal(st.Proto()); err == nil {
		_, _ = w.Write(body)
	}
}
