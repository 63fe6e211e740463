package admin

import (
	"context"
	_ "embed"
	"fmt"
	"mime"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// openAPI describes the REST API. It is a copy of gen/openapi, since a Go file
// cannot embed what lies outside its directory; a test keeps the two the same.
//
//go:embed openapi/admin.openapi.json
var openAPI []byte

// gateway translates REST to gRPC. It calls the gRPC server over connections in memory, so
// that every call goes through the same middleware.
type gateway struct {
	listener *bufconn.Listener
	// callers has the callers of the calls in progress, by number.
	callers sync.Map
	last    atomic.Uint64
}

func newGateway() *gateway { return &gateway{listener: bufconn.Listen(MaxBody)} }

// handler returns the REST API over the gRPC server.
func (g *gateway) handler(ctx context.Context) (http.Handler, func(), error) {
	conn, err := grpc.NewClient("passthrough:///gateway",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return g.listener.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxAnswer)),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("dial the gateway's server: %w", err)
	}
	setQueryParser()
	none := func(string) (string, bool) { return "", false }
	mux := runtime.NewServeMux(
		// No header of a request becomes metadata.
		runtime.WithIncomingHeaderMatcher(none),
		runtime.WithOutgoingHeaderMatcher(func(key string) (string, bool) { return "X-Request-Id", key == middleware.CallIDHeader }),
		runtime.WithOutgoingTrailerMatcher(none),
		runtime.WithMetadata(forwarded),
		runtime.WithErrorHandler(gatewayError),
		runtime.WithForwardResponseOption(beginStream),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithMarshalerOption(runtime.MIMEWildcard, marshaler{&runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{EmitUnpopulated: false},
			UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: false},
		}}),
	)
	if err := ententev1.RegisterAdminServiceHandler(ctx, mux, conn); err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("register the gateway: %w", err)
	}
	description, err := describe(openAPI)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	root := http.NewServeMux()
	root.Handle("/v1/", g.sanitized(mux))
	root.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(description)
	})
	root.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(hints))
	})
	// A browser with a client certificate presents it for any page.
	return hardened(http.NewCrossOriginProtection().Handler(root)), func() { _ = conn.Close() }, nil
}

const hints = `Entente's admin API, over gRPC and REST on this port.

  /openapi.json   what there is (OpenAPI)
  /v1/info        this cluster
  /v1/peers       its peers
  /v1/peers:watch its peers, and a line of JSON whenever one changes

Authenticate with a client certificate or a bearer token of this Kubernetes
cluster. The CLI does it all: entente --help
`

type numberKey struct{}

// forwarded returns the metadata that names the caller for whom the gateway calls. It is never
// taken from the request's own headers.
func forwarded(ctx context.Context, r *http.Request) metadata.MD {
	number, _ := ctx.Value(numberKey{}).(string)
	md := metadata.Pairs(callerNumber, number)
	if ids := r.Header.Values(middleware.CallIDHeader); len(ids) == 1 && middleware.ValidCallID(ids[0]) {
		md.Set(middleware.CallIDHeader, ids[0])
	}
	return md
}

// allowedHeaders are the headers of a request that are not removed.
//
//nolint:gochecknoglobals // a constant set
var allowedHeaders = map[string]bool{
	"Accept": true, "Content-Type": true, "Content-Length": true, "X-Request-Id": true,
}

// contentType is the header with the media type of a body, and the field that an error about it
// names.
const contentType = "Content-Type"

// sanitized removes every header that is not in allowedHeaders, and refuses bodies that are not
// JSON.
func (g *gateway) sanitized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clean := make(http.Header)
		for key, values := range r.Header {
			if allowedHeaders[key] && len(values) == 1 {
				clean[key] = values
			}
		}
		if r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
			if t, _, err := mime.ParseMediaType(r.Header.Get(contentType)); err != nil || t != "application/json" {
				refuse(w, false, middleware.StatusOf(middleware.BadField(contentType, "want application/json"), "", true).Err())
				return
			}
		}
		number := strconv.FormatUint(g.last.Add(1), 10)
		g.callers.Store(number, callerOf(r.Context()))
		defer g.callers.Delete(number)
		r2 := r.Clone(context.WithValue(r.Context(), numberKey{}, number))
		r2.Header = clean
		r2.Host = ""
		next.ServeHTTP(w, r2)
	})
}

// hardened keeps browsers from treating a response as anything but data.
func hardened(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		next.ServeHTTP(w, r)
	})
}
