package admin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"fmt"
	"math/big"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// openAPI describes the REST API. It is a copy of gen/openapi, since a Go file
// cannot embed what lies outside its directory; a test keeps the two the same.
//
//go:embed openapi/admin.openapi.json
var openAPI []byte

// gatewayName is the name in the gateway's certificate. Nobody else sees it.
const gatewayName = "gateway.entente.internal"

// gatewayLife is how long the gateway's certificate is valid: longer than any
// process runs. Its key never leaves the process.
const gatewayLife = 10 * 365 * 24 * time.Hour

// gateway translates REST to gRPC. It calls the gRPC server over a connection of
// its own on the loopback interface, so that every call goes through the same
// middleware, and shows itself there by a certificate that exists in this
// process only. Only on that connection may a call say for whom it is made.
type gateway struct {
	serverTLS, clientTLS *tls.Config
	fingerprint          [sha256.Size]byte
}

func newGateway(now time.Time) (*gateway, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: gatewayName},
		DNSNames:     []string{gatewayName},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(gatewayLife),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	pair := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
	return &gateway{
		serverTLS: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: pair,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		},
		clientTLS: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: pair,
			RootCAs: pool, ServerName: gatewayName,
		},
		fingerprint: sha256.Sum256(der),
	}, nil
}

// listenLoopback listens on a free port that only this machine, and in a pod
// only this pod, can reach.
func listenLoopback(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err == nil {
		return l, nil
	}
	if l, err6 := lc.Listen(ctx, "tcp", "[::1]:0"); err6 == nil {
		return l, nil
	}
	return nil, fmt.Errorf("listen on loopback: %w", err)
}

// handler returns the REST API over the gRPC server at a loopback address.
func (g *gateway) handler(ctx context.Context, address string) (http.Handler, func(), error) {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(g.clientTLS)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4*MaxMessage)),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("dial the gateway's server: %w", err)
	}
	none := func(string) (string, bool) { return "", false }
	mux := runtime.NewServeMux(
		// Nothing of a request becomes metadata by its name. The library always
		// passes Authorization, which sanitized has made sure of.
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
	root.Handle("/v1/", sanitized(mux))
	root.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(description)
	})
	root.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(hints))
	})
	// A browser that holds a client certificate sends it for any page.
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

// forwarded says for whom the gateway calls. What the request says of that
// itself never gets here.
func forwarded(_ context.Context, r *http.Request) metadata.MD {
	md := metadata.Pairs(gatewayAddress, r.RemoteAddr)
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		var chain []byte
		for _, c := range r.TLS.PeerCertificates {
			chain = append(chain, c.Raw...)
		}
		if len(chain) <= middleware.MaxHeader/4 {
			md.Set(gatewayCertificate, string(chain))
		}
	}
	if ids := r.Header.Values(middleware.CallIDHeader); len(ids) == 1 && middleware.ValidCallID(ids[0]) {
		md.Set(middleware.CallIDHeader, ids[0])
	}
	return md
}

// allowedHeaders is what of a request's headers gets past the edge.
//
//nolint:gochecknoglobals // a constant set
var allowedHeaders = map[string]bool{
	"Accept": true, "Content-Type": true, "Content-Length": true, "X-Request-Id": true,
}

// sanitized strips every header that is not on the list, passes one bearer
// token, and takes bodies that are JSON and not too large.
func sanitized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clean := make(http.Header)
		for key, values := range r.Header {
			if allowedHeaders[key] && len(values) == 1 {
				clean[key] = values
			}
		}
		if authorization := r.Header.Values("Authorization"); len(authorization) > 0 {
			token, err := bearerToken(authorization)
			if err != nil {
				refuse(w, err)
				return
			}
			clean.Set("Authorization", "Bearer "+token)
		}
		if r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
			if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
				refuse(w, &peering.Error{
					Reason: peering.ReasonRequestInvalid, Message: "the request is not valid",
					Violations: []peering.Violation{{Field: "Content-Type", Message: "want application/json"}},
				})
				return
			}
		}
		r2 := r.Clone(r.Context())
		r2.Header = clean
		r2.Host = ""
		r2.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		next.ServeHTTP(w, r2)
	})
}

// refuse answers as the gateway does for errors.
func refuse(w http.ResponseWriter, err error) {
	st := wire.Status(wire.FromStatus(err))
	w.Header().Set("Content-Type", "application/json")
	code := http.StatusUnsupportedMediaType
	if st.Code() == codes.Unauthenticated {
		code = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(code)
	body, err := protojson.Marshal(st.Proto())
	if err != nil {
		return // a status can be written
	}
	_, _ = w.Write(body) //nolint:gosec // JSON of a status, said to be that and not to be sniffed
}

// hardened keeps browsers from making anything of an answer but data.
func hardened(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		next.ServeHTTP(w, r)
	})
}
