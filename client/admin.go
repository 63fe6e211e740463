package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Names of the agent's objects in each cluster.
const (
	// DefaultNamespace is the namespace of the installation.
	DefaultNamespace = "entente-system"
	// AgentService is the Service of the agent; its certificate is for
	// AgentService.NAMESPACE.svc.
	AgentService = "entente-agent"
	// AdminPort is the port of the admin API.
	AdminPort = 7444
	// CAConfigMap is the ConfigMap in which the agent publishes the certificate
	// authority of its admin API, under CAKey.
	CAConfigMap = "entente-ca"
	CAKey       = "ca.crt"
	// CLIRole is the Role, in the namespace of the installation, of users who reach the agent
	// through the API server.
	CLIRole = "entente-cli"
	// leaderLabel is "true" on the pod that leads, as in the API.
	leaderLabel = "entente.dev/leader"
	// AgentSelector selects the agent's pods.
	AgentSelector = "app.kubernetes.io/name=entente,app.kubernetes.io/component=agent"
)

// Limits of the connection to the agent.
const (
	adminDialTimeout = 20 * time.Second
	// adminRedialFirst is the pause after a dial that failed, and adminRedialLast what it
	// grows to.
	adminRedialFirst = 500 * time.Millisecond
	adminRedialLast  = 5 * time.Second
	adminMaxMessage  = 4 << 20
)

// AdminConfig configures DialAdmin.
type AdminConfig struct {
	// REST reaches the Kubernetes API server, as from a kubeconfig. Its client
	// certificate or bearer token (also of an exec plugin) authenticates the caller to the agent.
	// Required.
	REST *rest.Config
	// Namespace is where Entente is installed; empty means DefaultNamespace.
	Namespace string
	// Address dials the agent directly, as host:port, and not through the API
	// server. It is for callers in the cluster.
	Address string
	// CA is the agent's certificate authority, PEM; empty reads it from the
	// cluster.
	CA []byte
}

// Admin is a connection to a cluster's own agent. Its methods are those of the
// AdminService, and a few that take several calls.
type Admin struct {
	ententev1.AdminServiceClient
	conn  grpc.ClientConnInterface
	close func() error
}

// NewAdmin returns a client of an agent over a connection, which the caller has to close.
func NewAdmin(conn grpc.ClientConnInterface) *Admin {
	return &Admin{AdminServiceClient: ententev1.NewAdminServiceClient(conn), conn: conn, close: func() error { return nil }}
}

// Close ends the connection that DialAdmin made.
func (a *Admin) Close() error { return a.close() }

// Conn returns the connection, for services besides the AdminService, such as
// health.
func (a *Admin) Conn() grpc.ClientConnInterface { return a.conn }

// DialAdmin connects to the agent of a cluster. The agent need not be reachable from outside: the
// connection goes through the API server, like kubectl port-forward, and is encrypted end to end.
// It needs the permissions to get the ConfigMap entente-ca, to list pods, and to create
// pods/portforward in the namespace of the installation.
//
// If the cluster's API server responds, it returns without having dialled the agent; the first
// call fails if the agent cannot be reached.
func DialAdmin(ctx context.Context, cfg AdminConfig) (*Admin, error) {
	if cfg.REST == nil {
		return nil, errors.New("dial agent: no kubeconfig")
	}
	if cfg.REST.Impersonate.UserName != "" {
		return nil, errors.New("dial agent: impersonation (--as) works at the API server only; use a kubeconfig of that user")
	}
	cfg.Namespace = cmp.Or(cfg.Namespace, DefaultNamespace)
	clients, err := kubernetes.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("dial agent: %w", err)
	}
	var published func(context.Context) ([]byte, error)
	if len(cfg.CA) == 0 {
		published = func(ctx context.Context) ([]byte, error) { return publishedCA(ctx, clients, cfg.Namespace) }
		if cfg.CA, err = published(ctx); err != nil {
			return nil, err
		}
	}
	secure, err := adminTLS(cfg)
	if err != nil {
		return nil, err
	}
	refused := &refusal{}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := forwardPort(ctx, cfg.REST, clients, cfg.Namespace, AdminPort)
		return conn, refused.note(err, cfg.Namespace)
	}
	if cfg.Address != "" {
		dial = func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", cfg.Address)
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+secure.ServerName,
		grpc.WithTransportCredentials(newAgentTLS(secure, published)),
		grpc.WithPerRPCCredentials(bearerOf{cfg.REST}),
		grpc.WithContextDialer(dial),
		grpc.WithUnaryInterceptor(refused.unary),
		grpc.WithStreamInterceptor(refused.stream),
		grpc.WithConnectParams(grpc.ConnectParams{
			MinConnectTimeout: adminDialTimeout,
			Backoff:           backoff.Config{BaseDelay: adminRedialFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: adminRedialLast},
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 15 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(adminMaxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("dial agent: %w", err)
	}
	a := NewAdmin(conn)
	a.close = conn.Close
	return a, nil
}

// publishedCA reads the agent's certificate authority from its ConfigMap, for which callers trust
// the API server.
func publishedCA(ctx context.Context, clients kubernetes.Interface, namespace string) ([]byte, error) {
	cm, err := clients.CoreV1().ConfigMaps(namespace).Get(ctx, CAConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("no ConfigMap %s/%s: Entente is not installed in this cluster, is in another namespace (--entente-namespace), or its agent has not started yet", namespace, CAConfigMap)
	case apierrors.IsForbidden(err):
		return nil, notAllowed(err, namespace)
	case err != nil:
		return nil, fmt.Errorf("get ConfigMap %s/%s: %w", namespace, CAConfigMap, err)
	case cm.Data[CAKey] == "":
		return nil, fmt.Errorf("ConfigMap %s/%s has no %s", namespace, CAConfigMap, CAKey)
	}
	return []byte(cm.Data[CAKey]), nil
}

// notAllowed is the error of callers whom the API server does not let reach the agent, which
// means that a RoleBinding is missing.
func notAllowed(err error, namespace string) error {
	return &peering.Error{
		Reason: peering.ReasonCallerNotAllowed, Err: err,
		Message: fmt.Sprintf("Kubernetes does not let you reach the agent: %s: an administrator can allow it with: kubectl -n %s create rolebinding NAME --role=%s --user=NAME",
			peering.Text(err.Error(), peering.MaxMessageLen/2), namespace, CLIRole),
	}
}

// refusal keeps the error that the API server forbids to reach the agent. gRPC dials by itself,
// and reports a failed dial only as unavailable.
type refusal struct {
	mu  sync.Mutex
	err error
}

// note keeps the outcome of a dial, and returns its error.
func (r *refusal) note(err error, namespace string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = nil
	if apierrors.IsForbidden(err) {
		r.err = notAllowed(err, namespace)
	}
	return err
}

// instead returns the refusal in place of an error that it caused.
func (r *refusal) instead(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil && status.Code(err) == codes.Unavailable {
		return r.err
	}
	return err
}

func (r *refusal) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return r.instead(call(ctx, method, req, reply, cc, opts...))
}

func (r *refusal) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	return s, r.instead(err)
}

// adminTLS trusts only the agent's own authority, and presents the same client certificate as to
// the API server.
func adminTLS(cfg AdminConfig) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cfg.CA) {
		return nil, errors.New("dial agent: its certificate authority cannot be read")
	}
	out := &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    roots,
		ServerName: AgentService + "." + cfg.Namespace + ".svc",
	}
	tc, err := cfg.REST.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("dial agent: read credentials: %w", err)
	}
	own, err := transport.TLSConfigFor(tc)
	if err != nil {
		return nil, fmt.Errorf("dial agent: read credentials: %w", err)
	}
	if own != nil {
		out.Certificates, out.GetClientCertificate = own.Certificates, own.GetClientCertificate
	}
	return out, nil
}

// agentTLS is the transport security of a connection to an agent. An agent that was installed
// again has another authority: if its certificate is not trusted, the published authority is read
// again for the next dial.
type agentTLS struct {
	credentials.TransportCredentials
	published func(context.Context) ([]byte, error)

	mu     sync.Mutex
	config *tls.Config
}

// newAgentTLS returns the credentials of a configuration. If published is nil, the authority
// never changes.
func newAgentTLS(config *tls.Config, published func(context.Context) ([]byte, error)) credentials.TransportCredentials {
	if published == nil {
		return credentials.NewTLS(config)
	}
	return &agentTLS{published: published, config: config, TransportCredentials: credentials.NewTLS(config)}
}

func (a *agentTLS) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a.mu.Lock()
	config := a.config
	a.mu.Unlock()
	secure, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		a.trust(ctx)
	}
	return secure, info, err
}

func (a *agentTLS) Clone() credentials.TransportCredentials {
	a.mu.Lock()
	defer a.mu.Unlock()
	return newAgentTLS(a.config, a.published)
}

// trust trusts the authority that is published now. If it cannot be read, the next dial fails or
// tries again.
func (a *agentTLS) trust(ctx context.Context) {
	ca, err := a.published(ctx)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config = a.config.Clone()
	a.config.RootCAs = roots
}

// bearerOf adds to each call the bearer token that a kubeconfig adds to requests to the API
// server, wherever it comes from: the file, a token file, or a plugin.
type bearerOf struct{ config *rest.Config }

func (b bearerOf) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	seen := &headerCatcher{}
	wrapped, err := rest.HTTPWrappersForConfig(b.config, seen)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+AgentService, nil)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	resp, err := wrapped.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	_ = resp.Body.Close()
	if !strings.HasPrefix(seen.authorization, "Bearer ") {
		return nil, nil //nolint:nilnil // without a token, a certificate authenticates the caller
	}
	return map[string]string{"authorization": seen.authorization}, nil
}

func (bearerOf) RequireTransportSecurity() bool { return true }

// headerCatcher records the credentials of a request, and does not send it.
type headerCatcher struct{ authorization string }

func (h *headerCatcher) RoundTrip(r *http.Request) (*http.Response, error) {
	h.authorization = r.Header.Get("Authorization")
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r, Header: http.Header{}}, nil
}
