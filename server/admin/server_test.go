package admin

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server/internal/servertest"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	aliceToken  = "token-of-alice"
	nobodyToken = "token-of-nobody"
	agentName   = "entente-agent.entente-system.svc"
)

// authority is a client CA.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// issue makes a client certificate; change may spoil it.
func (a *authority) issue(t testing.TB, user string, groups []string, change ...func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range change {
		c(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// adminTest is an admin API that runs.
type adminTest struct {
	client     ctrlclient.WithWatch
	cache      *testCache
	tokens     *testTokens
	kubernetes *fake.Clientset
	ca         *authority
	agent      *identity.Source
	log        *servertest.SyncBuffer
	address    string
	server     *Server

	// reviews is what the API server was asked.
	reviews *syncReviews
	joined  []string
	joinErr error
	// introduced is what this cluster was introduced with.
	introduced []string
	// preview is what Preview returns for a request, and previewed the requests that it was called
	// with.
	preview   func(*v1alpha1.PeeringRequest) (string, *peering.Advertisement, error)
	previewed chan *v1alpha1.PeeringRequest
	// policies is what peers would be answered.
	policies map[string]peering.PolicyTest
	rollover error
	// self changes what this cluster is.
	self func(*Self)
	// denied takes every permission, revoked every token, and away the API server.
	denied, revoked, away atomic.Bool
	stop                  context.CancelFunc
}

// testTokens is tokens in memory.
type testTokens struct {
	mu     sync.Mutex
	issuer peering.ClusterID
	list   []jointoken.Info
}

func (s *testTokens) Mint(_ context.Context, ttl time.Duration) (jointoken.Token, error) {
	t, err := jointoken.New(rand.Reader, s.issuer, []string{"192.0.2.1:7443"}, time.Now().Add(ttl))
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.list = append(s.list, jointoken.Info{ID: t.ID, Created: time.Now(), Expires: t.Expires})
	}
	return t, err
}

func (s *testTokens) List(context.Context) ([]jointoken.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list), nil
}

func (s *testTokens) Revoke(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	if s.list = slices.DeleteFunc(s.list, func(t jointoken.Info) bool { return t.ID == id }); len(s.list) == n {
		return peering.Errorf(peering.ReasonTokenUnknown, "there is no token %s", id)
	}
	return nil
}

// testCache is informers over the client of a test.
type testCache struct {
	ctrlclient.WithWatch
	watching atomic.Int32
}

func (c *testCache) Watch(ctx context.Context, kind ctrlclient.Object, handler toolscache.ResourceEventHandler) (func(), error) {
	lists := map[string]func() ctrlclient.ObjectList{
		"*v1alpha1.ForeignCluster": func() ctrlclient.ObjectList { return &v1alpha1.ForeignClusterList{} },
		"*v1alpha1.Contract":       func() ctrlclient.ObjectList { return &v1alpha1.ContractList{} },
		"*v1alpha1.PeeringRequest": func() ctrlclient.ObjectList { return &v1alpha1.PeeringRequestList{} },
		"*v1alpha1.Tunnel":         func() ctrlclient.ObjectList { return &v1alpha1.TunnelList{} },
		"*v1alpha1.FabricNode":     func() ctrlclient.ObjectList { return &v1alpha1.FabricNodeList{} },
	}
	list := lists[fmt.Sprintf("%T", kind)]()
	// Not an informer of client-go: it waits for bookmarks, which a fake has not.
	w, err := c.WithWatch.Watch(ctx, list)
	if err != nil {
		return nil, err
	}
	if err := c.List(ctx, list); err != nil {
		return nil, err
	}
	known := map[string]ctrlclient.Object{}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		known[o.(ctrlclient.Object).GetName()] = o.(ctrlclient.Object)
		handler.OnAdd(o, true)
		return nil
	})
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	c.watching.Add(1)
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			o := e.Object.(ctrlclient.Object)
			old := known[o.GetName()]
			switch {
			case e.Type == watch.Deleted:
				delete(known, o.GetName())
				handler.OnDelete(o)
				continue
			case old == nil:
				handler.OnAdd(o, false)
			default:
				handler.OnUpdate(old, o)
			}
			known[o.GetName()] = o
		}
	}()
	return func() {
		w.Stop()
		<-done
		c.watching.Add(-1)
	}, nil
}

type syncReviews struct {
	ch chan authorizationv1.SubjectAccessReviewSpec
}

// allowed is the RBAC of the tests: user → permissions.
var allowed = map[string]bool{
	"alice": true, "admin-by-certificate": true, "system:serviceaccount:ci:bot": true,
}

func newAdminTest(t *testing.T, objects ...ctrlclient.Object) *adminTest {
	t.Helper()
	return newAdminTestWith(t, func(*Config) {}, objects...)
}

func newAdminTestWith(t *testing.T, change func(*Config), objects ...ctrlclient.Object) *adminTest {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { servertest.NoneLeft(t, leaks) })
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	a := &adminTest{
		ca: newAuthority(t), agent: identitytest.NewSource(t), log: &servertest.SyncBuffer{}, reviews: &syncReviews{make(chan authorizationv1.SubjectAccessReviewSpec, 1000)},
		previewed: make(chan *v1alpha1.PeeringRequest, 100), policies: map[string]peering.PolicyTest{}, self: func(*Self) {},
		preview: func(*v1alpha1.PeeringRequest) (string, *peering.Advertisement, error) { return "", nil, nil },
	}
	a.client = ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	a.cache, a.tokens = &testCache{WithWatch: a.client}, &testTokens{issuer: a.agent.ID()}
	a.kubernetes = fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: kubeauth.ConfigMap},
		Data:       map[string]string{kubeauth.ConfigMapKey: a.ca.pem()},
	})
	a.kubernetes.PrependReactor("create", "tokenreviews", a.reviewToken)
	a.kubernetes.PrependReactor("create", "subjectaccessreviews", a.reviewAccess)
	var err error
	cfg := Config{
		Log:        slog.New(slog.NewJSONHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Client:     a.client,
		Cache:      a.cache,
		Kubernetes: a.kubernetes,
		TLS:        a.agent.AdminTLS([]string{agentName}, nil),
		Self: func(context.Context) (Self, error) {
			self := Self{ID: a.agent.ID(), Name: "home", Version: "v1.2.3", Endpoints: []string{"192.0.2.1:7443"}, Protocol: 1}
			a.self(&self)
			return self, nil
		},
		Tokens: a.tokens,
		Join: func(ctx context.Context, token jointoken.Token, name string) (string, error) {
			if a.joinErr != nil {
				return "", a.joinErr
			}
			a.joined = append(a.joined, string(token.Issuer))
			fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(token.Issuer)}}
			return name, a.client.Create(ctx, fc)
		},
		Introduce: func(ctx context.Context, endpoint string, id peering.ClusterID, name string, approve bool) (string, error) {
			a.introduced = append(a.introduced, fmt.Sprint(endpoint, " ", id, " ", name, " ", approve))
			if a.joinErr != nil {
				return "", a.joinErr
			}
			fc := &v1alpha1.ForeignCluster{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: strings.Repeat("s", 32), Endpoints: []string{endpoint}},
				Status: v1alpha1.ForeignClusterStatus{Source: v1alpha1.SourceIntroduction, Introduction: &v1alpha1.Introduction{Code: "042917"}},
			}
			return name, a.client.Create(ctx, fc)
		},
		Preview: func(_ context.Context, request *v1alpha1.PeeringRequest) (string, *peering.Advertisement, error) {
			a.previewed <- request.DeepCopy()
			return a.preview(request)
		},
		TestPolicy: func(_ context.Context, peer peering.ClusterID, request *v1alpha1.PeeringRequest) (peering.PolicyTest, error) {
			a.previewed <- request.DeepCopy()
			return a.policies[string(peer)], nil
		},
		PlanNetwork: func(_ context.Context, fc *v1alpha1.ForeignCluster, prefixes []string) (peering.NetworkPlan, error) {
			plan := peering.NetworkPlan{Pool: []string{"198.18.0.0/15"}, Own: []peering.PlannedGateway{{Name: "gw1", Endpoints: []string{"192.0.2.1:51820"}}}}
			for _, p := range prefixes {
				plan.Remote = append(plan.Remote, peering.PlannedAlias{Prefix: p, Alias: "198.18.0.0/16"})
			}
			if fc.Name == "office" {
				plan.Refused = []string{"it cannot"}
			}
			return plan, nil
		},
		NetworkParameters: func(context.Context) (inband.Parameters, error) { return inband.Parameters{}, nil },
		ConnectInBand: func(context.Context, inband.Parameters, string) (string, error) {
			return "", peering.Errorf(peering.ReasonPeerNameTaken, "another cluster is called that")
		},
		Rollover: func(context.Context) (root, overlap time.Time, err error) {
			return epoch.AddDate(10, 0, 0), epoch.AddDate(0, 0, 1), a.rollover
		},
	}
	change(&cfg)
	a.server, err = New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	a.stop = cancel
	done := make(chan error, 1)
	go func() { done <- a.server.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return a
}

func (a *adminTest) reviewToken(action k8stesting.Action) (bool, runtime.Object, error) {
	switch {
	case a.away.Load():
		return true, nil, errors.New("etcdserver: no leader")
	case a.revoked.Load():
		return true, &authenticationv1.TokenReview{}, nil
	}
	review := action.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
	switch review.Spec.Token {
	case aliceToken:
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "alice", Groups: []string{"devs"}}}
	case nobodyToken:
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "nobody"}}
	case "broken":
		return true, nil, errors.New("etcdserver: no leader")
	}
	return true, review, nil
}

func (a *adminTest) reviewAccess(action k8stesting.Action) (bool, runtime.Object, error) {
	review := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
	a.reviews.ch <- review.Spec
	review.Status.Allowed = allowed[review.Spec.User] && !a.denied.Load()
	return true, review, nil
}

// asked returns what access was asked about since the last time.
func (a *adminTest) asked() []authorizationv1.SubjectAccessReviewSpec {
	var out []authorizationv1.SubjectAccessReviewSpec
	for {
		select {
		case s := <-a.reviews.ch:
			out = append(out, s)
		default:
			return out
		}
	}
}

func (a *adminTest) tls(certs ...tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.agent.Identity().Root())
	return &tls.Config{RootCAs: pool, ServerName: agentName, Certificates: certs, MinVersion: tls.VersionTLS13}
}

// bearer is per-call credentials.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}
func (bearer) RequireTransportSecurity() bool { return true }

func (a *adminTest) dial(t testing.TB, token string, certs ...tls.Certificate) *grpc.ClientConn {
	t.Helper()
	opts := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(a.tls(certs...)))}
	if token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer(token)))
	}
	conn, err := grpc.NewClient("passthrough:///"+a.address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (a *adminTest) alice(t testing.TB) ententev1.AdminServiceClient {
	t.Helper()
	return ententev1.NewAdminServiceClient(a.dial(t, aliceToken))
}

// rest makes a REST request and returns status and body.
func (a *adminTest) rest(t testing.TB, method, path, body string, header http.Header, certs ...tls.Certificate) (int, string, http.Header) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: a.tls(certs...), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+a.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(resp.Header, resp.Trailer)
	return resp.StatusCode, string(b), resp.Header
}

func asAlice() http.Header { return http.Header{"Authorization": {"Bearer " + aliceToken}} }

func TestACallerIsAuthenticated(t *testing.T) {
	a := newAdminTest(t)
	foreign := newAuthority(t)
	good := a.ca.issue(t, "admin-by-certificate", []string{"system:masters"})
	for name, tc := range map[string]struct {
		token string
		certs []tls.Certificate
		want  peering.Reason
		user  string
		group string
	}{
		"a bearer token that the API server knows":          {token: aliceToken, user: "alice", group: "devs"},
		"a client certificate of the cluster's CA":          {certs: []tls.Certificate{good}, user: "admin-by-certificate", group: "system:masters"},
		"a certificate counts before a token":               {certs: []tls.Certificate{good}, token: nobodyToken, user: "admin-by-certificate", group: "system:masters"},
		"a token counts beside a certificate that does not": {certs: []tls.Certificate{foreign.issue(t, "alice", nil)}, token: aliceToken, user: "alice", group: "devs"},
		"nothing": {want: peering.ReasonCallerUnknown},
		"a token that the API server does not know":      {token: "other", want: peering.ReasonCallerUnknown},
		"a token while the API server is not well":       {token: "broken", want: peering.ReasonKubernetes},
		"a certificate of another CA with a mighty name": {certs: []tls.Certificate{foreign.issue(t, "alice", []string{"system:masters"})}, want: peering.ReasonCallerUnknown},
		"a certificate that has expired":                 {certs: []tls.Certificate{a.ca.issue(t, "alice", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })}, want: peering.ReasonCallerUnknown},
		"a certificate that is for servers":              {certs: []tls.Certificate{a.ca.issue(t, "alice", nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })}, want: peering.ReasonCallerUnknown},
		"a certificate without a name":                   {certs: []tls.Certificate{a.ca.issue(t, "", nil)}, want: peering.ReasonCallerUnknown},
		"a user who may not":                             {token: nobodyToken, want: peering.ReasonCallerNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			a.asked()
			_, err := ententev1.NewAdminServiceClient(a.dial(t, tc.token, tc.certs...)).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
			if got := wire.ReasonOf(err); got != tc.want {
				t.Fatalf("gRPC: got %v (%s), want %q", err, got, tc.want)
			}
			header := http.Header{}
			if tc.token != "" {
				header.Set("Authorization", "Bearer "+tc.token)
			}
			code, body, _ := a.rest(t, "GET", "/v1/info", "", header, tc.certs...)
			if (code == 200) != (tc.want == "") || tc.want != "" && !strings.Contains(body, string(tc.want)) {
				t.Errorf("REST: got %d %s, want %q", code, body, tc.want)
			}
			if tc.user == "" {
				return
			}
			reviews := a.asked()
			if len(reviews) != 2 {
				t.Fatalf("asked %d times, want once for gRPC and once for REST", len(reviews))
			}
			for _, r := range reviews {
				if r.User != tc.user || !strings.Contains(strings.Join(r.Groups, " "), tc.group) || r.Groups[len(r.Groups)-1] != kubeauth.AuthenticatedGroup {
					t.Errorf("asked about %s %v", r.User, r.Groups)
				}
			}
		})
	}
}

// TestCallersSpeakOnlyForThemselves is about the gateway's word on who calls: it must
// count from the gateway alone.
func TestCallersSpeakOnlyForThemselves(t *testing.T) {
	a := newAdminTest(t)
	mighty := a.ca.issue(t, "admin-by-certificate", []string{"system:masters"})
	der := string(mighty.Certificate[0])
	b64 := base64.StdEncoding.EncodeToString(mighty.Certificate[0])

	t.Run("by gRPC metadata", func(t *testing.T) {
		for _, md := range []metadata.MD{
			metadata.Pairs(callerNumber, "1"),
			metadata.Pairs("entente-gateway-certificate-bin", der),
			metadata.Pairs("x-remote-user", "alice", "x-remote-group", "system:masters"),
			metadata.Pairs("authorization", "Bearer "+aliceToken, "authorization", "Bearer "+nobodyToken),
			metadata.Pairs("authorization", "Basic YWxpY2U6cHc="),
			metadata.Pairs("grpcgateway-authorization", "Bearer "+aliceToken),
		} {
			ctx := metadata.NewOutgoingContext(t.Context(), md)
			_, err := ententev1.NewAdminServiceClient(a.dial(t, "")).GetInfo(ctx, &ententev1.GetInfoRequest{})
			if wire.ReasonOf(err) != peering.ReasonCallerUnknown {
				t.Errorf("%v: got %v", md, err)
			}
		}
	})
	t.Run("by HTTP headers", func(t *testing.T) {
		for _, header := range []http.Header{
			{"Entente-Gateway-Caller": {"1"}},
			{"Grpc-Metadata-Entente-Gateway-Caller": {"1"}},
			{"Grpc-Metadata-Authorization": {"Bearer " + aliceToken}},
			{"Grpcgateway-Authorization": {"Bearer " + aliceToken}},
			{"X-Remote-User": {"alice"}, "X-Remote-Group": {"system:masters"}},
			{"X-Ssl-Client-Cert": {b64}, "X-Forwarded-Client-Cert": {b64}},
			{"Impersonate-User": {"alice"}},
			{"Authorization": {"Basic YWxpY2U6cHc="}},
			{"Authorization": {"Bearer " + aliceToken, "Bearer " + nobodyToken}},
			{"Authorization": {"Bearer " + aliceToken + ", Bearer x"}},
		} {
			code, body, _ := a.rest(t, "GET", "/v1/info", "", header)
			if code != http.StatusUnauthorized {
				t.Errorf("%v: got %d %s", header, code, body)
			}
		}
	})
	t.Run("beside a caller's own certificate", func(t *testing.T) {
		weak := a.ca.issue(t, "nobody", nil)
		a.asked()
		code, _, _ := a.rest(t, "GET", "/v1/info", "", http.Header{
			"Grpc-Metadata-Entente-Gateway-Caller": {"1"}, "Entente-Gateway-Caller": {"1"},
		}, weak)
		for _, r := range a.asked() {
			if r.User != "nobody" {
				t.Errorf("asked about %s", r.User)
			}
		}
		if code != http.StatusForbidden {
			t.Errorf("got %d", code)
		}
	})
	t.Run("by REST framed as gRPC", func(t *testing.T) {
		code, body, header := a.rest(t, "POST", ententev1.AdminService_GetInfo_FullMethodName, "\x00\x00\x00\x00\x00", http.Header{
			"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Entente-Gateway-Caller": {"1"},
		})
		if header.Get("Grpc-Status") != "16" {
			t.Errorf("got %d %q %v", code, body, header)
		}
	})
	if strings.Contains(a.log.String(), `"who":"admin-by-certificate"`) {
		t.Error("another user was taken for the administrator")
	}
}

func TestEachMethodAsksForItsPermission(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)))
	c := a.alice(t)
	ctx := t.Context()
	id := strings.Repeat("a", 32)
	for name, tc := range map[string]struct {
		call func() error
		want []string
	}{
		"GetInfo":       {func() error { _, err := c.GetInfo(ctx, &ententev1.GetInfoRequest{}); return err }, []string{"list foreignclusters"}},
		"ListPeers":     {func() error { _, err := c.ListPeers(ctx, &ententev1.ListPeersRequest{}); return err }, []string{"list foreignclusters"}},
		"GetPeer":       {func() error { _, err := c.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/office"}); return err }, []string{"get foreignclusters office"}},
		"GetPeer by ID": {func() error { _, err := c.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/" + id}); return err }, []string{"get foreignclusters"}},
		"CreateToken":   {func() error { _, err := c.CreateToken(ctx, &ententev1.CreateTokenRequest{}); return err }, []string{"create tokens"}},
		"JoinPeer": {func() error {
			_, err := c.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: "x"})
			if wire.ReasonOf(err) == peering.ReasonTokenMalformed {
				return nil
			}
			return err
		}, []string{"create foreignclusters"}},
		"GetNetworkParameters": {func() error {
			_, err := c.GetNetworkParameters(ctx, &ententev1.GetNetworkParametersRequest{})
			if wire.ReasonOf(err) == peering.ReasonNoEndpoint {
				return nil
			}
			return err
		}, []string{"list foreignclusters"}},
		"ConnectInBand": {func() error {
			p := officeParameters()
			p.ClusterId = string(a.agent.ID())
			_, err := c.ConnectInBand(ctx, &ententev1.ConnectInBandRequest{Parameters: p})
			if wire.ReasonOf(err) == peering.ReasonPeerIsSelf {
				return nil
			}
			return err
		}, []string{"create foreignclusters"}},
		"CreatePeering": {func() error {
			_, err := c.CreatePeering(ctx, &ententev1.CreatePeeringRequest{Peer: "peers/office"})
			return err
		}, []string{"create peeringrequests"}},
		"EndPeering": {func() error {
			_, err := c.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/office"})
			return err
		}, []string{"delete peeringrequests"}},
		"OffloadNamespace": {func() error {
			_, err := c.OffloadNamespace(ctx, &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop"})
			if wire.ReasonOf(err) == peering.ReasonNamespaceUnknown {
				return nil
			}
			return err
		}, []string{"create namespaceoffloadings in shop"}},
		"UnoffloadNamespace": {func() error {
			_, err := c.UnoffloadNamespace(ctx, &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/shop"})
			if wire.ReasonOf(err) == peering.ReasonNamespaceNotOffloaded {
				return nil
			}
			return err
		}, []string{"delete namespaceoffloadings in shop"}},
	} {
		a.asked()
		if err := tc.call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, r := range a.asked() {
			s := r.ResourceAttributes.Verb + " " + r.ResourceAttributes.Resource
			if r.ResourceAttributes.Name != "" {
				s += " " + r.ResourceAttributes.Name
			}
			if r.ResourceAttributes.Namespace != "" {
				s += " in " + r.ResourceAttributes.Namespace
			}
			if r.ResourceAttributes.Group != "entente.dev" {
				t.Errorf("%s: asked about group %s", name, r.ResourceAttributes.Group)
			}
			got = append(got, s)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if need, ok := permissions(ententev1.AdminService_EndPeering_FullMethodName, &ententev1.EndPeeringRequest{Peer: "peers/office", Forget: true}); !ok || len(need) != 2 || need[1].String() != "delete foreignclusters.entente.dev office" {
		t.Errorf("to forget: %v", need)
	}
}

func TestHealthNeedsNoCallerAndNothingElseDoes(t *testing.T) {
	a := newAdminTest(t)
	conn := a.dial(t, "")
	// It listens a moment before it serves.
	waittest.Eventually(t, "it serves", func() bool {
		resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: ententev1.AdminService_ServiceDesc.ServiceName})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetStatus() == healthpb.HealthCheckResponse_SERVING
	})
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
	if err == nil {
		err = stream.RecvMsg(&healthpb.HealthCheckResponse{})
	}
	if wire.ReasonOf(err) != peering.ReasonCallerUnknown {
		t.Errorf("reflection: got %v", err)
	}
	err = a.dial(t, aliceToken).Invoke(t.Context(), "/entente.v1.TrustService/Join", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unimplemented {
		t.Errorf("a service of peers: got %v", err)
	}
}

func peerObject(name, id string) *v1alpha1.ForeignCluster {
	return &v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-" + "fc-0001"},
		Spec:       v1alpha1.ForeignClusterSpec{ClusterID: id, Endpoints: []string{"192.0.2.9:7443"}},
		Status: v1alpha1.ForeignClusterStatus{Role: v1alpha1.RoleProvider, Protocol: 1, Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionTrue, Reason: "Joined", Message: "ok"},
		}},
	}
}

func contractObject(name, peer, id string, role v1alpha1.ContractRole, phase string, pods int32) *v1alpha1.Contract {
	return &v1alpha1.Contract{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ContractSpec{
			ForeignCluster: peer, PeerID: id, Role: role, Revision: 1,
			Resources: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi")},
		},
		Status: v1alpha1.ContractStatus{Phase: phase, Pods: pods, Node: "entente-" + name},
	}
}

func TestAPeersMessageHasItsContractsAndTunnel(t *testing.T) {
	id, other := strings.Repeat("b", 32), strings.Repeat("c", 32)
	now := metav1.Now()
	node := func(name string, seen time.Time, path ...v1alpha1.FabricPath) *v1alpha1.FabricNode {
		return &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FabricNodeSpec{Gateway: true}, Status: v1alpha1.FabricNodeStatus{
			Backend: "kernel", ObservedAt: metav1.NewTime(seen), Paths: path,
		}}
	}
	a := newAdminTest(t, peerObject("office", id), peerObject("lab", other),
		contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 3),
		contractObject("k2", "lab", other, v1alpha1.ContractProvider, "Active", 1),
		&v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: v1alpha1.TunnelSpec{
			ForeignCluster: "office", PeerID: id, Remote: []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.241.0.0/16"}},
		}},
		node("silent", now.Add(-time.Hour), v1alpha1.FabricPath{PeerID: id, State: "Up", RoundTripMicroseconds: 1}),
		node("n1", now.Time, v1alpha1.FabricPath{PeerID: id, State: "Down"}),
		node("n2", now.Time, v1alpha1.FabricPath{PeerID: id, State: "Up", RoundTripMicroseconds: 900, Endpoint: "192.0.2.9:51820"}),
		node("n3", now.Time, v1alpha1.FabricPath{PeerID: id, State: "Up", RoundTripMicroseconds: 1500}),
	)
	resp, err := a.alice(t).GetPeer(t.Context(), &ententev1.GetPeerRequest{Name: "peers/office"})
	if err != nil {
		t.Fatal(err)
	}
	want := &ententev1.Peer{
		Name: "peers/office", ClusterId: id, Role: "Provider", Endpoints: []string{"192.0.2.9:7443"}, Protocol: 1,
		Conditions: []*ententev1.Condition{{Type: "Trusted", Status: "True", Reason: "Joined", Message: "ok"}},
		Contracts: []*ententev1.Contract{{
			ContractId: "k1", Name: "contracts/k1", Peer: "peers/office", Revision: 1, Phase: "Active", Role: "Consumer", Node: "entente-k1", Pods: 3,
			Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "2", "memory": "4Gi"}},
		}},
		Tunnel: &ententev1.Tunnel{
			Up: true, Backend: "kernel", Endpoint: "192.0.2.9:51820", RoundTrip: durationpb.New(900 * time.Microsecond),
			RemotePrefixes: map[string]string{"10.200.0.0/16": "10.241.0.0/16"},
		},
	}
	if diff := cmp.Diff(want, resp.GetPeer(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	_, err = a.alice(t).GetPeer(t.Context(), &ententev1.GetPeerRequest{Name: "peers/nobody"})
	if status.Code(err) != codes.NotFound || wire.ReasonOf(err) != peering.ReasonPeerUnknown {
		t.Errorf("an unknown peer: %v", err)
	}
}

func TestATunnelThatNoFreshGatewayCarriesIsDown(t *testing.T) {
	id, now := strings.Repeat("b", 32), time.Now()
	v := &snapshot{now: now, tunnels: []v1alpha1.Tunnel{{Spec: v1alpha1.TunnelSpec{PeerID: id}}}}
	for name, tc := range map[string]struct {
		gateway bool
		seen    time.Time
		up      bool
	}{
		"a gateway":                        {true, now, true},
		"a gateway that is silent":         {true, now.Add(-FabricFresh - time.Second), false},
		"a node that is a gateway no more": {false, now, false},
	} {
		v.nodes = []v1alpha1.FabricNode{{Spec: v1alpha1.FabricNodeSpec{Gateway: tc.gateway}, Status: v1alpha1.FabricNodeStatus{
			ObservedAt: metav1.NewTime(tc.seen), Paths: []v1alpha1.FabricPath{{PeerID: id, State: "Up"}},
		}}}
		if got := v.tunnel(peerObject("p", id)).GetUp(); got != tc.up {
			t.Errorf("%s says that the tunnel is up: it is up %v", name, got)
		}
	}
	if v.tunnel(peerObject("p", "another")) != nil {
		t.Error("there is a tunnel to a peer without one")
	}
}

func TestPeersComeInPages(t *testing.T) {
	var objects []ctrlclient.Object
	for i := range 7 {
		objects = append(objects, peerObject(fmt.Sprintf("p%d", i), strings.Repeat(string(rune('a'+i)), 32)))
	}
	a := newAdminTest(t, objects...)
	var got []string
	token := ""
	for pages := 1; ; pages++ {
		resp, err := a.alice(t).ListPeers(t.Context(), &ententev1.ListPeersRequest{PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range resp.GetPeers() {
			got = append(got, strings.TrimPrefix(p.GetName(), "peers/"))
		}
		if token = resp.GetNextPageToken(); token == "" {
			if pages != 3 {
				t.Errorf("%d pages, want 3", pages)
			}
			break
		}
		if pages == 1 {
			// What goes meanwhile does not disturb the pages.
			if err := a.client.Delete(t.Context(), objects[2].DeepCopyObject().(ctrlclient.Object)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]string{"p0", "p1", "p2", "p3", "p4", "p5", "p6"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, bad := range []string{"%%%", "AA", base64.RawURLEncoding.EncodeToString([]byte("1:p1")), pageToken("contracts of ", "p1"), pageToken("peers", "p1") + "="} {
		if _, err := a.alice(t).ListPeers(t.Context(), &ententev1.ListPeersRequest{PageToken: bad}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Errorf("page token %q: got %v", bad, err)
		}
	}
	if _, err := a.alice(t).ListPeers(t.Context(), &ententev1.ListPeersRequest{PageSize: -1}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a negative page size: got %v", err)
	}
}

func TestTokensAreMadeAndRedeemed(t *testing.T) {
	a := newAdminTest(t)
	c := a.alice(t)
	resp, err := c.CreateToken(t.Context(), &ententev1.CreateTokenRequest{Ttl: durationpb.New(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	token, err := jointoken.Parse(resp.GetToken())
	if err != nil || token.ID != resp.GetTokenId() || !resp.GetExpireTime().AsTime().Equal(token.Expires) {
		t.Errorf("got %v, %v", token, err)
	}
	if _, err := c.CreateToken(t.Context(), &ententev1.CreateTokenRequest{Ttl: durationpb.New(time.Hour)}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("for an hour: got %v", err)
	}
	if strings.Contains(a.log.String(), resp.GetToken()) {
		t.Error("the log has the token")
	}
	if _, err := c.JoinPeer(t.Context(), &ententev1.JoinPeerRequest{Token: resp.GetToken()}); wire.ReasonOf(err) != peering.ReasonPeerIsSelf {
		t.Errorf("its own token: got %v", err)
	}
	mint := func(expires time.Time) string {
		foreign, err := jointoken.New(rand.Reader, peering.ClusterID(strings.Repeat("z", 32)), []string{"192.0.2.7:7443"}, expires)
		if err != nil {
			t.Fatal(err)
		}
		text, err := foreign.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := mint(time.Now().Add(time.Minute))
	for name, tc := range map[string]struct {
		token string
		want  peering.Reason
	}{
		"one that is cut off":     {good[:len(good)-12], peering.ReasonTokenMalformed},
		"one with a wrong letter": {strings.Replace(good, good[10:11], "_", 1), peering.ReasonTokenMalformed},
		"one of no kind":          {"hello", peering.ReasonTokenMalformed},
		"one of yesterday":        {mint(time.Now().Add(-24 * time.Hour)), peering.ReasonTokenExpired},
	} {
		_, err := c.JoinPeer(t.Context(), &ententev1.JoinPeerRequest{Token: tc.token})
		if wire.ReasonOf(err) != tc.want || strings.Contains(err.Error(), tc.token) && len(tc.token) > 20 {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	joined, err := c.JoinPeer(t.Context(), &ententev1.JoinPeerRequest{Token: good, Name: "office"})
	if err != nil || joined.GetPeer().GetName() != "peers/office" || len(a.joined) != 1 {
		t.Errorf("got %v, %v", joined, err)
	}
	a.joinErr = &peering.Error{Reason: peering.ReasonPeerUnreachable, Message: "cannot connect to 192.0.2.7:7443: refused"}
	if _, err := c.JoinPeer(t.Context(), &ententev1.JoinPeerRequest{Token: good}); wire.ReasonOf(err) != peering.ReasonPeerUnreachable || !strings.Contains(err.Error(), "192.0.2.7:7443") {
		t.Errorf("got %v", err)
	}
}

func TestAPeeringIsAskedForOnceAndEnded(t *testing.T) {
	id := strings.Repeat("d", 32)
	a := newAdminTest(t, peerObject("office", id),
		contractObject("mine", "office", id, v1alpha1.ContractConsumer, "Active", 2),
		contractObject("old", "office", id, v1alpha1.ContractConsumer, "Closed", 0),
		contractObject("theirs", "office", id, v1alpha1.ContractProvider, "Active", 5),
	)
	c := a.alice(t)
	ctx := t.Context()
	req := &ententev1.CreatePeeringRequest{
		Peer: "peers/office", Duration: durationpb.New(time.Hour), NoNetwork: true,
		Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1500m", "memory": "2Gi"}},
	}
	resp, err := c.CreatePeering(ctx, req)
	if err != nil || resp.GetPeeringRequest() != "office" {
		t.Fatalf("got %v, %v", resp, err)
	}
	var request v1alpha1.PeeringRequest
	if err := a.client.Get(ctx, ctrlclient.ObjectKey{Name: "office"}, &request); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.PeeringRequestSpec{
		ForeignCluster: "office", Network: v1alpha1.NetworkNone, Renewal: v1alpha1.RenewalAutomatic, Duration: &metav1.Duration{Duration: time.Hour},
		Resources: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("2Gi")},
	}
	if diff := cmp.Diff(want, request.Spec); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	_, err = c.CreatePeering(ctx, req)
	if e := wire.FromStatus(err); e.Reason != peering.ReasonPeeringExists || e.Metadata["peeringRequest"] != "office" {
		t.Errorf("again: got %v", err)
	}
	for _, bad := range []map[string]string{{"cpu": "-1"}, {"cpu": "0"}, {"pods": "1500m"}, {"cpu": "lots"}, {"a b": "1"}, {"pods": "0"}, {"pods": "0", "cpu": "1"}} {
		req.Resources.Amounts, req.PeeringRequest = bad, "other"
		if _, err := c.CreatePeering(ctx, req); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Errorf("%v: got %v", bad, err)
		}
	} // No pods and a tunnel is one that can be asked for.
	alone := &ententev1.CreatePeeringRequest{Peer: "peers/office", PeeringRequest: "alone", Resources: &ententev1.ResourceList{Amounts: map[string]string{"pods": "0"}}}
	if _, err := c.CreatePeering(ctx, alone); err != nil {
		t.Errorf("a tunnel alone: %v", err)
	}

	if _, err := c.CreatePeering(ctx, &ententev1.CreatePeeringRequest{Peer: "peers/nobody"}); wire.ReasonOf(err) != peering.ReasonPeerUnknown {
		t.Errorf("an unknown peer: got %v", err)
	}

	_, err = c.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/office", RefuseIfRunning: true})
	if e := wire.FromStatus(err); e.Reason != peering.ReasonPodsRunning || e.Metadata["pods"] != "2" {
		t.Errorf("refuse if running: got %v", err)
	}
	termination := func(name string) v1alpha1.Termination {
		var c v1alpha1.Contract
		if err := a.client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &c); err != nil {
			t.Fatal(err)
		}
		return c.Spec.Termination
	}
	if got := termination("mine"); got != "" {
		t.Errorf("what was refused was begun: %s", got)
	}
	ended, err := c.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/office"})
	if err != nil || ended.GetPods() != 2 {
		t.Fatalf("got %v, %v", ended, err)
	}
	if err := a.client.Get(ctx, ctrlclient.ObjectKey{Name: "office"}, &request); ctrlclient.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the peering request is there still: %v", err)
	}
	if m, o, th := termination("mine"), termination("old"), termination("theirs"); m != v1alpha1.TerminateDrain || o != "" || th != "" {
		t.Errorf("terminations: mine %q, old %q, theirs %q", m, o, th)
	}
	// Draining can be cut short, and not the other way round.
	for _, now := range []bool{true, false} {
		if _, err := c.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/" + id, Now: now}); err != nil {
			t.Fatal(err)
		}
		if got := termination("mine"); got != v1alpha1.TerminateNow {
			t.Errorf("now=%v: termination is %q", now, got)
		}
	}
	ended, err = c.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/office", Forget: true, Now: true})
	if err != nil || ended.GetPods() != 7 {
		t.Fatalf("forget: got %v, %v", ended, err)
	}
	if got := termination("theirs"); got != v1alpha1.TerminateNow {
		t.Errorf("forget: theirs is %q", got)
	}
	if _, err := c.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/office"}); wire.ReasonOf(err) != peering.ReasonPeerUnknown {
		t.Errorf("after forgetting: got %v", err)
	}
}

// TestOffloadWaitsForTheUnoffloadBeforeIt: what is written to an object that is being
// deleted goes with it.
func TestOffloadWaitsForTheUnoffloadBeforeIt(t *testing.T) {
	t.Parallel()
	ending := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: v1alpha1.NamespaceOffloadingName, Finalizers: []string{v1alpha1.Finalizer},
	}}
	ending.Spec.PodStrategy, ending.Spec.NameMapping = v1alpha1.StrategyRemote, v1alpha1.MappingSuffixed
	// The call reads it while it is being deleted, and then once more.
	reads := make(chan struct{}, 1000)
	a := newAdminTestWith(t, func(cfg *Config) {
		cfg.Client = interceptor.NewClient(cfg.Client.(ctrlclient.WithWatch), interceptor.Funcs{
			Get: func(ctx context.Context, c ctrlclient.WithWatch, key ctrlclient.ObjectKey, o ctrlclient.Object, opts ...ctrlclient.GetOption) error {
				err := c.Get(ctx, key, o, opts...)
				if _, ok := o.(*v1alpha1.NamespaceOffloading); ok && !o.GetDeletionTimestamp().IsZero() {
					reads <- struct{}{}
				}
				return err
			},
		})
	}, ending, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{v1alpha1.LabelOffloading: "enabled"}}})
	c := a.alice(t)
	if _, err := c.UnoffloadNamespace(t.Context(), &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/shop"}); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() {
		<-reads
		<-reads
		patch := ctrlclient.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		released <- a.client.Patch(context.WithoutCancel(t.Context()), ending.DeepCopy(), patch)
	}()
	if _, err := c.OffloadNamespace(t.Context(), &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", PodStrategy: "Remote"}); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	var o v1alpha1.NamespaceOffloading
	if err := a.client.Get(t.Context(), ctrlclient.ObjectKeyFromObject(ending), &o); err != nil || !o.DeletionTimestamp.IsZero() {
		t.Errorf("the namespace is not offloaded: %v, deleted at %v", err, o.DeletionTimestamp)
	}
}

func TestANamespaceIsOffloadedAndReturned(t *testing.T) {
	id := strings.Repeat("d", 32)
	a := newAdminTest(t, peerObject("office", id), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	c := a.alice(t)
	ctx := t.Context()
	get := func() v1alpha1.NamespaceOffloadingSpec {
		t.Helper()
		var o v1alpha1.NamespaceOffloading
		if err := a.client.Get(ctx, ctrlclient.ObjectKey{Namespace: "shop", Name: v1alpha1.NamespaceOffloadingName}, &o); err != nil {
			t.Fatal(err)
		}
		return o.Spec
	}
	if _, err := c.OffloadNamespace(ctx, &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v1alpha1.NamespaceOffloadingSpec{PodStrategy: "LocalAndRemote", NameMapping: "Suffixed", Misplaced: "Stay"}, get()); diff != "" {
		t.Errorf("defaults (-want +got)\n%s", diff)
	}
	if _, err := c.OffloadNamespace(ctx, &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", PodStrategy: "Remote", Peers: []string{"office"}, Move: new(true)}); err != nil {
		t.Fatal(err)
	}
	spec := get()
	if spec.PodStrategy != "Remote" || spec.Misplaced != v1alpha1.MisplacedMove || spec.NameMapping != "Suffixed" || spec.ClusterSelector == nil {
		t.Errorf("changed to %+v", spec)
	}
	// A call that does not set what happens to pods when a provider is lost, and whether they may
	// call home's API server, leaves it unchanged.
	if _, err := c.OffloadNamespace(ctx, &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", HomeApi: "Allowed"}); err != nil {
		t.Fatal(err)
	}
	for _, req := range []*ententev1.OffloadNamespaceRequest{
		{Namespace: "namespaces/shop", PeerLost: &ententev1.PeerLost{Action: "Fence", After: durationpb.New(10 * time.Minute)}},
		{Namespace: "namespaces/shop", PodStrategy: "Remote", Peers: []string{"office"}},
	} {
		if _, err := c.OffloadNamespace(ctx, req); err != nil {
			t.Fatal(err)
		}
		if p := get().PeerLost; p == nil || p.Action != v1alpha1.PeerLostFence || p.After == nil || p.After.Duration != 10*time.Minute {
			t.Errorf("pods of a lost provider: %+v", p)
		}
		if got := get().HomeAPI; got != v1alpha1.HomeAPIAllowed {
			t.Errorf("the API of home is %s", got)
		}
	}
	if _, err := c.OffloadNamespace(ctx, &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", PeerLost: &ententev1.PeerLost{Action: "Drop"}}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("an unknown action: %v", err)
	}
	var fc v1alpha1.ForeignCluster
	if err := a.client.Get(ctx, ctrlclient.ObjectKey{Name: "office"}, &fc); err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.ClusterSelector)
	if err != nil || !selector.Matches(labelSet(fc.Labels)) {
		t.Errorf("selector %v does not select %v", spec.ClusterSelector, fc.Labels)
	}
	for name, tc := range map[string]struct {
		req  *ententev1.OffloadNamespaceRequest
		want peering.Reason
	}{
		"another name":         {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", RemoteName: "rome"}, peering.ReasonMappingFixed},
		"no name":              {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", NameMapping: "Chosen"}, peering.ReasonRequestInvalid},
		"a name of no use":     {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", NameMapping: "Same", RemoteName: "rome"}, peering.ReasonRequestInvalid},
		"a malformed name":     {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", RemoteName: "../x"}, peering.ReasonRequestInvalid},
		"another mapping":      {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", NameMapping: "Same"}, peering.ReasonMappingFixed},
		"an unknown namespace": {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/nope"}, peering.ReasonNamespaceUnknown},
		"an unknown peer":      {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", Peers: []string{"nobody"}}, peering.ReasonPeerUnknown},
		"an unknown strategy":  {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", PodStrategy: "Both"}, peering.ReasonRequestInvalid},
		"a path for a name":    {&ententev1.OffloadNamespaceRequest{Namespace: "namespaces/../x"}, peering.ReasonRequestInvalid},
	} {
		if _, err := c.OffloadNamespace(ctx, tc.req); wire.ReasonOf(err) != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	if _, err := c.UnoffloadNamespace(ctx, &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/shop"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.UnoffloadNamespace(ctx, &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/shop"}); wire.ReasonOf(err) != peering.ReasonNamespaceNotOffloaded {
		t.Errorf("again: got %v", err)
	}
}

func TestTheEndOfAnOffloadingNamesThoseItWasOpenTo(t *testing.T) {
	a := newAdminTest(t, &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: v1alpha1.NamespaceOffloadingName, Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       v1alpha1.NamespaceOffloadingSpec{OpenTo: []string{"shop", "*"}},
	})
	c := a.alice(t)
	for _, want := range [][]string{{"namespaces/shop", "namespaces/-"}, nil} { // once it is ending it is open to none
		resp, err := c.UnoffloadNamespace(t.Context(), &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/data"})
		if err != nil || !slices.Equal(resp.GetOpenTo(), want) {
			t.Errorf("it was open to %q (%v), want %q", resp.GetOpenTo(), err, want)
		}
	}
}

// TestAnOffloadingKeepsWhatACallLeavesOut: a call that sets one thing must not let pods go where they were not allowed to.
// The agent writes finalizers and statuses of the same object.
func TestAnOffloadingIsChangedThoughItWasWrittenMeanwhile(t *testing.T) {
	shop := ctrlclient.ObjectKey{Namespace: "shop", Name: v1alpha1.NamespaceOffloadingName}
	var once sync.Once
	a := newAdminTestWith(t, func(cfg *Config) {
		cfg.Client = interceptor.NewClient(cfg.Client.(ctrlclient.WithWatch), interceptor.Funcs{
			Patch: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, patch ctrlclient.Patch, opts ...ctrlclient.PatchOption) error {
				once.Do(func() {
					var meanwhile v1alpha1.NamespaceOffloading
					if err := c.Get(ctx, shop, &meanwhile); err != nil {
						t.Error(err)
					}
					meanwhile.Finalizers = []string{v1alpha1.Finalizer}
					if err := c.Update(ctx, &meanwhile); err != nil {
						t.Error(err)
					}
				})
				return c.Patch(ctx, o, patch, opts...)
			},
		})
	}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop.Namespace, Name: shop.Name}, Spec: v1alpha1.NamespaceOffloadingSpec{NameMapping: v1alpha1.MappingSuffixed},
	})
	if _, err := a.alice(t).OffloadNamespace(t.Context(), &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", PodStrategy: "Remote"}); err != nil {
		t.Fatal(err)
	}
	var o v1alpha1.NamespaceOffloading
	if err := a.client.Get(t.Context(), shop, &o); err != nil || o.Spec.PodStrategy != v1alpha1.StrategyRemote || len(o.Finalizers) != 1 {
		t.Errorf("it is %+v with finalizers %v (%v)", o.Spec, o.Finalizers, err)
	}
}

func TestAnOffloadingKeepsWhatACallLeavesOut(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("d", 32)), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	c := a.alice(t)
	offload := func(req *ententev1.OffloadNamespaceRequest) v1alpha1.NamespaceOffloadingSpec {
		t.Helper()
		req.Namespace = "namespaces/shop"
		if _, err := c.OffloadNamespace(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		var o v1alpha1.NamespaceOffloading
		if err := a.client.Get(t.Context(), ctrlclient.ObjectKey{Namespace: "shop", Name: v1alpha1.NamespaceOffloadingName}, &o); err != nil {
			t.Fatal(err)
		}
		return o.Spec
	}
	want := offload(&ententev1.OffloadNamespaceRequest{PodStrategy: "Remote", Peers: []string{"office"}, Move: new(true)})
	for _, change := range []struct {
		name string
		req  *ententev1.OffloadNamespaceRequest
		set  func()
	}{
		{"the API of home", &ententev1.OffloadNamespaceRequest{HomeApi: "Allowed"}, func() { want.HomeAPI = v1alpha1.HomeAPIAllowed }},
		{"a lost peer", &ententev1.OffloadNamespaceRequest{PeerLost: &ententev1.PeerLost{Action: "Keep"}}, func() {
			want.PeerLost = &v1alpha1.PeerLost{Action: v1alpha1.PeerLostKeep}
		}},
		{"to whom it is open", &ententev1.OffloadNamespaceRequest{OpenTo: &ententev1.NamespaceList{Namespaces: []string{"namespaces/bank", "namespaces/-"}}}, func() {
			want.OpenTo = []string{"bank", "*"}
		}},
		{"nothing", &ententev1.OffloadNamespaceRequest{}, func() {}},
		{"that it is open to none", &ententev1.OffloadNamespaceRequest{OpenTo: &ententev1.NamespaceList{}}, func() { want.OpenTo = nil }},
		{"the strategy", &ententev1.OffloadNamespaceRequest{PodStrategy: "LocalAndRemote"}, func() { want.PodStrategy = v1alpha1.StrategyLocalAndRemote }},
		{"all peers", &ententev1.OffloadNamespaceRequest{Peers: []string{"peers/-"}}, func() { want.ClusterSelector = nil }},
		{"that pods stay", &ententev1.OffloadNamespaceRequest{Move: new(false)}, func() { want.Misplaced = v1alpha1.MisplacedStay }},
		{"the strategy again", &ententev1.OffloadNamespaceRequest{PodStrategy: "Remote"}, func() { want.PodStrategy = v1alpha1.StrategyRemote }},
		{"that pods move", &ententev1.OffloadNamespaceRequest{Move: new(true)}, func() { want.Misplaced = v1alpha1.MisplacedMove }},
	} {
		change.set()
		if diff := cmp.Diff(want, offload(change.req)); diff != "" {
			t.Errorf("a call that sets %s (-want +got)\n%s", change.name, diff)
		}
	}
	_, err := c.OffloadNamespace(t.Context(), &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop", Peers: []string{"peers/-", "office"}})
	if wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("all peers, and one of them: %v", err)
	}
}

type labelSet map[string]string

func (l labelSet) Has(k string) bool              { _, ok := l[k]; return ok }
func (l labelSet) Get(k string) string            { return l[k] }
func (l labelSet) Lookup(k string) (string, bool) { v, ok := l[k]; return v, ok }

func TestRESTReturnsTheSame(t *testing.T) {
	id := strings.Repeat("d", 32)
	a := newAdminTest(t, peerObject("office", id), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	jsonHeader := asAlice()
	jsonHeader.Set("Content-Type", "application/json; charset=utf-8")
	for _, tc := range []struct {
		name, method, path, body string
		header                   http.Header
		code                     int
		want                     string
	}{
		{"info", "GET", "/v1/info", "", asAlice(), 200, `"clusterName":"home"`},
		{"a peer", "GET", "/v1/peers/office", "", asAlice(), 200, `"name":"peers/office"`},
		{"an unknown peer", "GET", "/v1/peers/nobody", "", asAlice(), 404, `"reason":"PEER_UNKNOWN"`},
		{"a peering", "POST", "/v1/peers/office/peerings", `{"resources":{"amounts":{"cpu":"1"}}}`, jsonHeader, 200, `"peeringRequest":"office"`},
		{"a peering that is there", "POST", "/v1/peers/office/peerings", `{}`, jsonHeader, 409, `"reason":"PEERING_EXISTS"`},
		{"offloading", "PUT", "/v1/namespaces/shop/offloading", `{}`, jsonHeader, 200, `{}`},
		{"unoffloading", "DELETE", "/v1/namespaces/shop/offloading", "", asAlice(), 200, `{}`},
		{"unpeering", "POST", "/v1/peers/office:unpeer", `{"now":true}`, jsonHeader, 200, `{}`},
		{"a form", "POST", "/v1/tokens", `ttl=60`, http.Header{"Authorization": asAlice()["Authorization"], "Content-Type": {"application/x-www-form-urlencoded"}}, 415, "application/json"},
		{"a field that is not valid", "POST", "/v1/tokens", `{"ttl":"3600s"}`, jsonHeader, 400, `"field":"ttl"`},
		{"a GET that pretends to be a POST", "GET", "/v1/peers:join", "", http.Header{"Authorization": asAlice()["Authorization"], "X-Http-Method-Override": {"POST"}}, 501, ""},
		{"a change without a kind of content", "PATCH", "/v1/peerings/office", `{}`, asAlice(), 415, "application/json"},
		{"a page of another site", "POST", "/v1/tokens", `{}`, http.Header{"Authorization": asAlice()["Authorization"], "Content-Type": {"application/json"}, "Sec-Fetch-Site": {"cross-site"}}, 403, ""},
		{"the description", "GET", "/openapi.json", "", nil, 200, `"openapi"`},
		{"the front page", "GET", "/", "", nil, 200, "/openapi.json"},
		{"another page", "GET", "/admin", "", nil, 404, ""},
		{"a path that climbs", "GET", "/v1/peers/..%2f..%2ftokens", "", asAlice(), 404, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body, header := a.rest(t, tc.method, tc.path, tc.body, tc.header)
			compact := &bytes.Buffer{}
			if json.Compact(compact, []byte(body)) == nil {
				body = compact.String()
			}
			if code != tc.code && !(tc.code == 501 && code == 405) || !strings.Contains(body, tc.want) {
				t.Errorf("got %d %s, want %d with %s", code, body, tc.code, tc.want)
			}
			if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" {
				t.Errorf("headers are %v", header)
			}
		})
	}
	code, _, _ := a.rest(t, "POST", "/v1/tokens", `{"ttl":"`+strings.Repeat("0", MaxBody)+`1s"}`, jsonHeader)
	if code == 200 {
		t.Error("a body beyond the limit was taken")
	}
}

func TestTheEmbeddedDescriptionIsTheGeneratedOne(t *testing.T) {
	generated, err := os.ReadFile("../../gen/openapi/entente/v1/admin.openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(generated, openAPI) {
		t.Error("copy gen/openapi/entente/v1/admin.openapi.json to server/admin/openapi: the API changed")
	}
}

func TestTheRequestIDGoesAllTheWay(t *testing.T) {
	a := newAdminTest(t)
	header := asAlice()
	header.Set("Content-Type", "application/json")
	header.Set("X-Request-Id", "my-request-7")
	_, _, got := a.rest(t, "POST", "/v1/tokens", "{}", header)
	if got.Get("X-Request-Id") != "my-request-7" || !strings.Contains(a.log.String(), `"call":"my-request-7"`) {
		t.Errorf("answered %v", got)
	}
	header.Set("X-Request-Id", "bad id\twith spaces")
	if _, _, got := a.rest(t, "POST", "/v1/tokens", "{}", header); got.Get("X-Request-Id") == "bad id\twith spaces" || got.Get("X-Request-Id") == "" {
		t.Errorf("answered %v", got)
	}
	if !strings.Contains(a.log.String(), `"address":"127.0.0.1:`) {
		t.Error("the log does not have where REST calls came from")
	}
}

func TestTheClientCAIsReadAgain(t *testing.T) {
	a := newAdminTest(t)
	next := newAuthority(t)
	cm, err := a.kubernetes.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), kubeauth.ConfigMap, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	call := func() error {
		_, err := ententev1.NewAdminServiceClient(a.dial(t, "", next.issue(t, "alice", nil))).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
		return err
	}
	if err := call(); wire.ReasonOf(err) != peering.ReasonCallerUnknown {
		t.Errorf("before: %v", err)
	}
	cm.Data[kubeauth.ConfigMapKey] = next.pem()
	if _, err := a.kubernetes.CoreV1().ConfigMaps(metav1.NamespaceSystem).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := a.server.reviewer.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := call(); err != nil {
		t.Errorf("after: %v", err)
	}
	cm.Data[kubeauth.ConfigMapKey] = "garbage"
	if _, err := a.kubernetes.CoreV1().ConfigMaps(metav1.NamespaceSystem).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := a.server.reviewer.Refresh(t.Context()); err == nil {
		t.Error("a CA that is not a certificate was taken")
	}
	if err := call(); err != nil {
		t.Errorf("the one read before does not stay: %v", err)
	}
}
