package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire/wiretest"
)

// cert is short for tests.
type cert = x509.Certificate

// agent is an AdminService that returns which user it saw.
type agent struct {
	ententev1.UnimplementedAdminServiceServer
	bearer, user string
}

func (a *agent) GetInfo(ctx context.Context, _ *ententev1.GetInfoRequest) (*ententev1.GetInfoResponse, error) {
	a.bearer, a.user = strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), "|"), ""
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			a.user = info.State.PeerCertificates[0].Subject.CommonName
		}
	}
	return &ententev1.GetInfoResponse{ClusterName: "home"}, nil
}

// apiServer is as much of a Kubernetes API server as reaching the agent takes.
// It forwards ports by SPDY and knows no WebSockets.
type apiServer struct {
	t         testing.TB
	agent     *agent
	agentAddr string
	ca        []byte
	pods      []corev1.Pod
	broken    string
	forbidden string // path
	server    *httptest.Server
	upgrades  []string
	mu        sync.Mutex   // of agentAddr and ca
	reads     atomic.Int32 // of ca
}

func newAPIServer(t testing.TB) *apiServer {
	t.Helper()
	source := newSource(t)
	s := &apiServer{t: t, agent: &agent{}, ca: source.Identity().RootPEM(), pods: []corev1.Pod{pod("old", false, 2*time.Hour), pod("ready", true, time.Hour), pod("standby", true, time.Minute)}}
	s.pods[1].Labels = map[string]string{leaderLabel: "true"}
	s.agentAddr = serveAgent(t, source, s.agent)
	s.server = httptest.NewTLSServer(s)
	t.Cleanup(s.server.Close)
	return s
}

func serveAgent(t testing.TB, source *identity.Source, a *agent) string {
	t.Helper()
	addr, _ := startAgent(t, source, a)
	return addr
}

func startAgent(t testing.TB, source *identity.Source, a *agent) (addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := source.AdminTLS([]string{AgentService + "." + DefaultNamespace + ".svc"}, nil)
	config.ClientAuth = tls.RequestClientCert
	g := wiretest.NewServer(grpc.Creds(credentials.NewTLS(config)))
	ententev1.RegisterAdminServiceServer(g, a)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return l.Addr().String(), g.Stop
}

// published is the ConfigMap's content, or nil.
func (s *apiServer) published() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ca
}

// install makes another agent the cluster's, and returns how to stop it.
func (s *apiServer) install(source *identity.Source) (stop func()) {
	addr, stop := startAgent(s.t, source, s.agent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agentAddr, s.ca = addr, source.Identity().RootPEM()
	return stop
}

func (s *apiServer) target() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agentAddr
}

func pod(name string, ready bool, age time.Duration) corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

func (s *apiServer) config() *rest.Config {
	return &rest.Config{Host: s.server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw}),
	}}
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	const base = "/api/v1/namespaces/entente-system/"
	switch path := strings.TrimPrefix(r.URL.Path, base); {
	case s.forbidden != "" && path == s.forbidden:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		reply(&metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403,
			Message: path + ` is forbidden: User "alice" cannot do this`,
		})
	case path == "configmaps/entente-ca" && s.published() != nil:
		s.reads.Add(1)
		reply(&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{CAKey: string(s.published())}})
	case path == "pods":
		if r.URL.Query().Get("labelSelector") != AgentSelector {
			s.t.Errorf("listed pods by %q", r.URL.Query().Get("labelSelector"))
		}
		reply(&corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: s.pods})
	case path == "pods/ready/portforward":
		s.upgrades = append(s.upgrades, r.Header.Get("Upgrade"))
		s.forward(w, r)
	case r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		reply(&authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Status:   authorizationv1.SubjectAccessReviewStatus{Allowed: !strings.HasSuffix(s.forbidden, "portforward")},
		})
	default:
		w.WriteHeader(http.StatusNotFound)
		reply(&metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404})
	}
}

func (s *apiServer) forward(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "SPDY/3.1") {
		http.Error(w, "unable to upgrade", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		s.t.Errorf("handshake: %v", err)
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer func() { _ = conn.Close() }()
	problems, data := <-streams, <-streams
	if s.broken != "" {
		_, _ = io.WriteString(problems, s.broken)
		_ = problems.Close()
		<-conn.CloseChan()
		return
	}
	target, err := net.Dial("tcp", s.target())
	if err != nil {
		s.t.Errorf("reach the agent: %v", err)
		return
	}
	defer func() { _ = target.Close() }()
	go func() { _, _ = io.Copy(target, data) }()
	go func() { _, _ = io.Copy(data, target); _ = conn.Close() }()
	<-conn.CloseChan()
}

func dialTest(t testing.TB, cfg AdminConfig) (*Admin, error) {
	t.Helper()
	a, err := DialAdmin(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { _ = a.Close() })
	}
	return a, err
}

func TestTheAgentIsReachedThroughTheAPIServer(t *testing.T) {
	s := newAPIServer(t)
	config := s.config()
	config.BearerToken = "secret-of-alice"
	a, err := dialTest(t, AdminConfig{REST: config})
	if err != nil {
		t.Fatal(err)
	}
	info, err := a.GetInfo(t.Context(), &ententev1.GetInfoRequest{})
	if err != nil || info.GetClusterName() != "home" || s.agent.bearer != "Bearer secret-of-alice" {
		t.Errorf("got %v, %v; the agent saw %q", info, err, s.agent.bearer)
	}
	if got := strings.ToLower(strings.Join(s.upgrades, ",")); got != "websocket,spdy/3.1" {
		t.Errorf("upgrades were %s", got)
	}
}

func TestTheAgentSeesTheUserOfTheKubeconfig(t *testing.T) {
	s := newAPIServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(dir, "plugin")
	script := `#!/bin/sh
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}'`
	if err := os.WriteFile(plugin, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM := clientCertificate(t, "bob")
	for name, tc := range map[string]struct {
		change       func(*rest.Config)
		bearer, user string
	}{
		"a token":      {func(c *rest.Config) { c.BearerToken = "plain" }, "Bearer plain", ""},
		"a token file": {func(c *rest.Config) { c.BearerTokenFile = file }, "Bearer from-file", ""},
		"a plugin": {func(c *rest.Config) {
			c.ExecProvider = &api.ExecConfig{Command: plugin, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}
		}, "Bearer from-plugin", ""},
		"a client certificate":                          {func(c *rest.Config) { c.CertData, c.KeyData = certPEM, keyPEM }, "", "bob"},
		"a password, which is for the API server alone": {func(c *rest.Config) { c.Username, c.Password = "a", "b" }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := s.config()
			tc.change(config)
			a, err := dialTest(t, AdminConfig{REST: config, Address: s.agentAddr})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.GetInfo(t.Context(), &ententev1.GetInfoRequest{}); err != nil {
				t.Fatal(err)
			}
			if s.agent.bearer != tc.bearer || s.agent.user != tc.user {
				t.Errorf("the agent saw %q and %q, want %q and %q", s.agent.bearer, s.agent.user, tc.bearer, tc.user)
			}
		})
	}
}

func clientCertificate(t testing.TB, user string) (certPEM, keyPEM []byte) {
	t.Helper()
	certPEM, keyPEM, err := selfSigned(user)
	if err != nil {
		t.Fatal(err)
	}
	return certPEM, keyPEM
}

func TestOnlyTheAgentGetsTheToken(t *testing.T) {
	s := newAPIServer(t)
	// What answers in the agent's place has a certificate of another authority.
	impostor := &agent{}
	config := s.config()
	config.BearerToken = "secret-of-alice"
	a, err := dialTest(t, AdminConfig{REST: config, Address: serveAgent(t, newSource(t), impostor)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.GetInfo(t.Context(), &ententev1.GetInfoRequest{}); ReasonOf(err) != "UNAVAILABLE" || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("got %v", err)
	}
	if impostor.bearer != "" {
		t.Error("the impostor saw the token")
	}
}

// TestAnAgentThatWasInstalledAgainIsTrusted is about watches that outlive a helm
// uninstall and install: a new agent has another authority.
func TestAnAgentThatWasInstalledAgainIsTrusted(t *testing.T) {
	s := newAPIServer(t)
	stop := s.install(newSource(t))
	a, err := dialTest(t, AdminConfig{REST: s.config()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.GetInfo(t.Context(), &ententev1.GetInfoRequest{}); err != nil {
		t.Fatal(err)
	}
	s.install(newSource(t))
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := a.GetInfo(ctx, &ententev1.GetInfoRequest{}, grpc.WaitForReady(true))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("got %v", err)
		}
	}
	if n := s.reads.Load(); n != 2 {
		t.Errorf("the authority was read %d times", n)
	}
}

// TestAConfiguredAuthorityIsTheOnlyOne: the authority that the caller trusts is not replaced by
// the one that the cluster publishes.
func TestAConfiguredAuthorityIsTheOnlyOne(t *testing.T) {
	s := newAPIServer(t)
	a, err := dialTest(t, AdminConfig{REST: s.config(), CA: newSource(t).Identity().RootPEM()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.GetInfo(t.Context(), &ententev1.GetInfoRequest{}); ReasonOf(err) != "UNAVAILABLE" || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("got %v", err)
		}
	}
	if s.reads.Load() > 0 {
		t.Error("the published one was read")
	}
}

func TestAnAgentThatIsAwayIsDialledSlowly(t *testing.T) {
	s := newAPIServer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a, err := dialTest(t, AdminConfig{REST: s.config(), Address: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = a.GetInfo(t.Context(), &ententev1.GetInfoRequest{}, grpc.WaitForReady(true)) }()
	var began time.Time
	for i := range 3 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if i == 0 {
			began = time.Now()
		}
	}
	if took := time.Since(began); took < adminRedialFirst {
		t.Errorf("dialled twice again within %s", took)
	}
}

func TestTheAgentThatLeadsIsAsked(t *testing.T) {
	t.Parallel()
	leads := func(p corev1.Pod) corev1.Pod {
		p.Labels = map[string]string{leaderLabel: "true"}
		return p
	}
	ends := func(p corev1.Pod) corev1.Pod {
		p.DeletionTimestamp = new(metav1.Now())
		return p
	}
	for name, tc := range map[string]struct {
		pods []corev1.Pod
		want string
		soon bool
	}{
		"one that leads and one that waits": {[]corev1.Pod{leads(pod("a", true, time.Hour)), pod("b", true, time.Minute)}, "a", true},
		"the leader died a moment ago":      {[]corev1.Pod{leads(pod("a", false, time.Hour)), pod("b", true, time.Minute)}, "", true},
		"the leader is being deleted":       {[]corev1.Pod{ends(leads(pod("a", true, time.Hour))), pod("b", true, time.Minute)}, "", true},
		"another took over":                 {[]corev1.Pod{leads(pod("a", true, time.Hour)), leads(pod("b", true, time.Minute))}, "b", true},
		"none is ready":                     {[]corev1.Pod{leads(pod("a", false, time.Hour)), pod("b", false, time.Minute)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, soon := leaderOf(tc.pods); got != tc.want || soon != tc.soon {
				t.Errorf("it is %q, soon %v, want %q, %v", got, soon, tc.want, tc.soon)
			}
		})
	}
}

// Any port of the leader's pod can be reached, and callers can distinguish that there is no such pod from that they may
// not, and from that the port is closed.
func TestDialPortReachesTheLeader(t *testing.T) {
	dial := func(s *apiServer) error {
		conn, err := DialPort(t.Context(), s.config(), DefaultNamespace, 7451)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(s.published())
		return tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: AgentService + "." + DefaultNamespace + ".svc", MinVersion: tls.VersionTLS13}).HandshakeContext(t.Context())
	}
	s := newAPIServer(t)
	if err := dial(s); err != nil {
		t.Error(err)
	}
	s.broken = "dial tcp4 127.0.0.1:7451: connection refused"
	if err := dial(s); err == nil || errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a closed port: %v", err)
	}
	s.forbidden = "pods/ready/portforward"
	if err := dial(s); !apierrors.IsForbidden(err) {
		t.Errorf("without the right: %v", err)
	}
	for _, pods := range [][]corev1.Pod{nil, s.pods[:1]} {
		s.pods = pods
		if err := dial(s); !errors.Is(err, ErrNoAgent) {
			t.Errorf("with %d pods: %v", len(pods), err)
		}
	}
}

func TestAnUnreachableAgentIsReportedWithItsCause(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*apiServer, *rest.Config)
		want   string
	}{
		"Entente is not installed":    {func(s *apiServer, _ *rest.Config) { s.ca = nil }, "not installed in this cluster"},
		"the published CA is garbage": {func(s *apiServer, _ *rest.Config) { s.ca = []byte("x") }, "cannot be read"},
		"the agent has no pod":        {func(s *apiServer, _ *rest.Config) { s.pods = nil }, "no pod of the agent"},
		"the agent is not ready":      {func(s *apiServer, _ *rest.Config) { s.pods = s.pods[:1] }, "is ready"},
		"the kubelet cannot reach it": {func(s *apiServer, _ *rest.Config) { s.broken = "dial tcp4 127.0.0.1:7444: connection refused" }, "7444: connection refused"},
		"the user is impersonated":    {func(_ *apiServer, c *rest.Config) { c.Impersonate.UserName = "root" }, "impersonation"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			config := s.config()
			tc.change(s, config)
			a, err := dialTest(t, AdminConfig{REST: config})
			if err == nil {
				_, err = a.GetInfo(t.Context(), &ententev1.GetInfoRequest{})
			}
			if err == nil || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAMissingRoleIsNotTakenForAnAgentThatIsDown(t *testing.T) {
	for _, path := range []string{"configmaps/entente-ca", "pods", "pods/ready/portforward"} {
		t.Run(path, func(t *testing.T) {
			s := newAPIServer(t)
			s.forbidden = path
			a, err := dialTest(t, AdminConfig{REST: s.config()})
			if err == nil {
				_, err = a.GetInfo(t.Context(), &ententev1.GetInfoRequest{})
			}
			if ReasonOf(err) != "CALLER_NOT_ALLOWED" || !strings.Contains(Explain(err), `User "alice" cannot`) || !strings.Contains(Explain(err), "--role=entente-cli") {
				t.Errorf("reason %s: %v", ReasonOf(err), err)
			}
			if path == "configmaps/entente-ca" {
				return
			}
			stream, err := a.WatchPeers(t.Context(), &ententev1.WatchPeersRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if ReasonOf(err) != "CALLER_NOT_ALLOWED" {
				t.Errorf("of a watch: reason %s: %v", ReasonOf(err), err)
			}
		})
	}
}
