package homeapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/carry"
	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

const (
	provider = peering.ClusterID("provider")
	consumer = peering.ClusterID("consumer")
)

// world is a home and a provider with a pod of it.
type world struct {
	mu         sync.Mutex
	pod        *corev1.Pod
	offloading *v1alpha1.NamespaceOffloading
	allowed    bool
	known      bool

	home   *Home
	abroad *Abroad
	log    *syncBuffer
	// address is where the pod connects, ca what it trusts.
	address string
	ca      []byte
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func newWorld(t *testing.T, cfg *rest.Config, pod *corev1.Pod, offloading *v1alpha1.NamespaceOffloading) *world {
	t.Helper()
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{pod: pod, offloading: offloading, allowed: true, known: true, log: &syncBuffer{}}
	log := slog.New(slog.NewTextHandler(w.log, nil))
	w.home, err = NewHome(HomeConfig{
		REST: cfg, Client: clients, Namespace: "entente-system", Log: log,
		Pod: func(p peering.ClusterID, contract, uid string) *corev1.Pod {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.pod == nil || p != provider || contract != "c1" || uid != string(w.pod.UID) {
				return nil
			}
			return w.pod
		},
		Offloading: func(string) *v1alpha1.NamespaceOffloading {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.offloading
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	certificate, ca := selfSigned(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address, w.ca = listener.Addr().String(), ca
	w.abroad, err = NewAbroad(AbroadConfig{
		Listener: listener, TLS: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}}, Log: log,
		PodAt: func(a netip.Addr) (Pod, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return Pod{Consumer: consumer, Contract: "c1", UID: string(pod.UID)}, w.known && a == netip.MustParseAddr("127.0.0.1")
		},
		Allowed: func(contract string) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.allowed && contract == "c1"
		},
		Open: func(ctx context.Context, p Pod) (carry.Stream, error) {
			near, far := peertest.NewCall()
			done := make(chan error, 1)
			go func() {
				err := w.home.Connect(ctx, provider, p.Contract, p.UID, far)
				far.End(err)
				done <- err
			}()
			context.AfterFunc(ctx, func() { near.End(nil) })
			if _, err := near.Recv(); err != nil {
				return nil, <-done
			}
			return near, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for _, run := range []func(context.Context) error{w.home.Run, w.abroad.Run} {
		work.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		work.Wait()
	})
	return w
}

// selfSigned returns a certificate as a provider has one.
func selfSigned(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "provider"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		DNSNames: []string{"kubernetes.default.svc"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// config is what client-go makes of what is in a pod abroad.
func (w *world) config(change ...func(*rest.Config)) *rest.Config {
	cfg := &rest.Config{Host: "https://" + w.address, BearerToken: "added-at-home", TLSClientConfig: rest.TLSClientConfig{CAData: w.ca}, QPS: -1}
	for _, c := range change {
		c(cfg)
	}
	return cfg
}

func (w *world) client(t *testing.T, change ...func(*rest.Config)) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(w.config(change...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

// TestAPodAbroadCallsItsHomeOnARealAPIServer has a client of client-go ask through both halves, with the
// agent's own rights and policies.
func TestAPodAbroadCallsItsHomeOnARealAPIServer(t *testing.T) {
	server := charttest.StartAPIServer(t)
	owner, err := kubernetes.NewForConfig(server.Owner)
	if err != nil {
		t.Fatal(err)
	}
	pod, offloading := setUp(t, owner)
	w := newWorld(t, server.As("entente-agent"), pod, offloading)
	h2 := w.client(t)
	h1 := w.client(t, func(c *rest.Config) { c.NextProtos = []string{"http/1.1"} })

	for name, c := range map[string]kubernetes.Interface{"HTTP/2": h2, "HTTP/1.1": h1} {
		// The binding of the agent, and of the pod, take a moment to be in force.
		eventually(t, name+" reads its own pod", func() bool {
			got, err := c.CoreV1().Pods("shop").Get(t.Context(), "web-0", metav1.GetOptions{})
			return err == nil && got.UID == pod.UID
		})
		if _, err := c.CoreV1().Secrets("shop").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:shop:web") {
			t.Errorf("%s reads Secrets: %v", name, err)
		}
	}
	testWhoItIs(t, w, pod)
	testUpgrade(t, w)
	testMetrics(t, w)
	testEnds(t, w, owner, h2)
	if log := w.log.String(); strings.Contains(log, "eyJ") || !strings.Contains(log, "serviceAccount=web") {
		t.Errorf("the log has a token, or does not name the caller:\n%s", log)
	}
}

// setUp makes a namespace with a pod abroad, which may read pods and write ConfigMaps.
func setUp(t *testing.T, owner kubernetes.Interface) (*corev1.Pod, *v1alpha1.NamespaceOffloading) {
	t.Helper()
	pod, offloading := optedIn()
	pod.UID = ""
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	pod.Spec.NodeName = "abroad.entente.dev"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }
	_, err := owner.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	must(err)
	_, err = owner.CoreV1().ServiceAccounts("shop").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta("web")}, metav1.CreateOptions{})
	must(err)
	_, err = owner.RbacV1().Roles("shop").Create(t.Context(), &rbacv1.Role{ObjectMeta: meta("web"), Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"watch", "list", "create"}},
	}}, metav1.CreateOptions{})
	must(err)
	bind := func(kind, role string, subject rbacv1.Subject) {
		_, err := owner.RbacV1().RoleBindings("shop").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta(role), Subjects: []rbacv1.Subject{subject}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		}, metav1.CreateOptions{})
		must(err)
	}
	bind("Role", "web", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "shop", Name: "web"})
	bind("ClusterRole", "entente-home-api-namespace", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "entente-system", Name: "entente-agent"})
	pod, err = owner.CoreV1().Pods("shop").Create(t.Context(), pod, metav1.CreateOptions{})
	must(err)
	return pod, offloading
}

// testMetrics checks that both halves count what passes through them.
func testMetrics(t *testing.T, w *world) {
	t.Helper()
	for _, m := range []struct {
		of     []prometheus.Collector
		name   string
		labels []string
		least  float64
	}{
		{w.home.Collectors(), "entente_home_api_connections", []string{string(provider)}, 2}, // one for each version of HTTP
		{w.abroad.Collectors(), "entente_home_api_carried_connections", []string{string(consumer)}, 2},
		{w.home.Collectors(), "entente_home_api_requests_total", []string{"passed_on", string(provider)}, 4},
		{w.home.Collectors(), "entente_home_api_requests_total", []string{"refused", string(provider)}, 1},
	} {
		if n := counted(t, m.of, m.name, m.labels); n < m.least {
			t.Errorf("%s%v is %v, want %v or more", m.name, m.labels, n, m.least)
		}
	}
}

// counted is the value of a metric with these labels.
func counted(t *testing.T, of []prometheus.Collector, name string, labels []string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(of...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(has, labels) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// testWhoItIs checks that a pod is its own ServiceAccount, whatever headers it sends.
func testWhoItIs(t *testing.T, w *world, pod *corev1.Pod) {
	t.Helper()
	c := w.client(t, func(c *rest.Config) {
		c.Impersonate = rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}}
		c.BearerToken = "another"
	})
	me, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := me.Status.UserInfo
	if user.Username != "system:serviceaccount:shop:web" || strings.Join(user.Extra["authentication.kubernetes.io/pod-uid"], "") != string(pod.UID) {
		t.Errorf("the pod is %+v", user)
	}
}

// testUpgrade checks that upgrades are refused.
func testUpgrade(t *testing.T, w *world) {
	t.Helper()
	transport, err := rest.TransportFor(w.config(func(c *rest.Config) { c.NextProtos = []string{"http/1.1"} }))
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.address+"/api/v1/namespaces/shop/pods/web-0/exec?command=id", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "SPDY/3.1")
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "upgrades do not pass") {
		t.Errorf("exec: %s: %s", response.Status, body)
	}
}

// testEnds checks that connections end when they are no longer allowed, and that the pod gets the
// reason.
func testEnds(t *testing.T, w *world, owner, c kubernetes.Interface) {
	t.Helper()
	get := func() error {
		_, err := c.CoreV1().Pods("shop").Get(t.Context(), "web-0", metav1.GetOptions{})
		return err
	}
	for _, tc := range []struct {
		name       string
		end, begin func()
		says       string
	}{
		{"the namespace's opt-in", func() { w.offloading = nil }, func() { _, w.offloading = optedIn() }, "has to say homeAPI: Allowed"},
		{"the provider's policy", func() { w.allowed = false }, func() { w.allowed = true }, "does not carry its home's API"},
		{"the pod's opt-in", func() {
			w.pod = w.pod.DeepCopy()
			w.pod.Annotations = nil
		}, func() {
			w.pod = w.pod.DeepCopy()
			w.pod.Annotations = map[string]string{v1alpha1.AnnotationHomeAPI: "true"}
		}, "does not ask for its home's API"},
	} {
		watch, err := c.CoreV1().ConfigMaps("shop").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: watch: %v", tc.name, err)
		}
		made, err := c.CoreV1().ConfigMaps("shop").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "seen-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for seen := false; !seen; {
			event, ok := <-watch.ResultChan()
			if !ok {
				t.Fatalf("%s: the watch ended before it should", tc.name)
			}
			m, is := event.Object.(*corev1.ConfigMap)
			seen = is && m.Name == made.Name
		}
		w.change(tc.end)
		began := time.Now()
		late := time.AfterFunc(5*recheck, watch.Stop)
		for range watch.ResultChan() { // until it ends
		}
		if !late.Stop() {
			t.Errorf("a watch outlives the end of %s by more than %s", tc.name, 5*recheck)
		}
		if err := get(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("after the end of %s: %v", tc.name, err)
		}
		t.Logf("a watch ended %s after the end of %s", time.Since(began).Round(time.Millisecond), tc.name)
		w.change(tc.begin)
		eventually(t, "it begins again after the end of "+tc.name, func() bool { return get() == nil })
	}
	testGone(t, w, owner, get)
}

// testGone checks that a pod that is gone has no access any more, even if a provider claims that
// it runs.
func testGone(t *testing.T, w *world, owner kubernetes.Interface, get func() error) {
	t.Helper()
	if err := owner.CoreV1().Pods("shop").Delete(t.Context(), "web-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	// The agent does not know yet: its token is bound to the pod. API servers remember for
	// seconds that one was good.
	eventually(t, "a token of a pod that is gone opens nothing", func() bool { return get() != nil })
	w.change(func() { w.pod = nil })
	if err := get(); !apierrors.IsForbidden(err) {
		t.Errorf("a pod that is gone: %v", err)
	}
	w.change(func() { w.known = false })
	stranger, err := net.Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	_ = stranger.SetDeadline(time.Now().Add(addressTimeout + 10*time.Second))
	if n, err := stranger.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("a client that is not a pod of a consumer gets %d bytes: %v", n, err)
	}
}
