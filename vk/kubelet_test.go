package vk

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/internal/servingcert"
	"github.com/entente-dev/entente/peering"
)

// authority is a CA for tests.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &authority{key, c}
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// issue returns a certificate and key in PEM.
func (a *authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage, ends time.Time) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: []string{"group"}}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: ends,
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, a.cert, k.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// testEndpoint is a kubelet endpoint on loopback, with pod shop/web on node office.
type testEndpoint struct {
	url     string
	ca      *authority
	remote  *provider
	client  kubernetes.Interface
	kubelet *Kubelet
	mu      sync.Mutex
	asked   []authorizationv1.ResourceAttributes
}

func newEndpoint(t *testing.T) *testEndpoint {
	t.Helper()
	e := &testEndpoint{ca: newAuthority(t), remote: newProvider()}
	client := fake.NewSimpleClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: kubeauth.ConfigMap}, Data: map[string]string{kubeauth.ConfigMapKey: e.ca.pem()},
	})
	client.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		r := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if name, ok := strings.CutPrefix(r.Spec.Token, "token-of-"); ok {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: name}}
		}
		return true, r, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		r := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		x := r.Spec.ResourceAttributes
		e.mu.Lock()
		e.asked = append(e.asked, *x)
		e.mu.Unlock()
		r.Status.Allowed = r.Spec.User == "admin" || r.Spec.User == "apiserver" || r.Spec.User == "reader" && x.Verb == "get"
		return true, r, nil
	})
	e.client = client
	n := e.another(t, "office")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"},
		Spec:       corev1.PodSpec{NodeName: "office", Containers: []corev1.Container{{Name: "c"}}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: api.PodOffloaded, Status: corev1.ConditionTrue}}},
	}
	if err := n.pods.GetStore().Add(pod); err != nil {
		t.Fatal(err)
	}
	serving, err := servingcert.New(servingcert.Config{Client: client, NodeName: "agent", Addresses: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} }})
	if err != nil {
		t.Fatal(err)
	}
	k, err := NewKubelet(KubeletConfig{Client: client, GetCertificate: serving.GetCertificate, Metrics: countedPods{}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	k.Add(n)
	e.kubelet = k
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.url = "https://" + l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := k.auth.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// another makes a node.
func (e *testEndpoint) another(t *testing.T, name string) *Node {
	t.Helper()
	n, err := New(Config{
		Name: name, Contract: "c", Peer: "p", Client: e.client, Mirror: e.remote, Streams: e.remote, Namespaces: func() ([]Namespace, error) { return nil, nil },
		Address: netip.MustParseAddr("127.0.0.1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its end frees the node
		over, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel()
		if err := n.Run(over); err != nil {
			t.Error(err)
		}
	})
	return n
}

// as makes a caller with a client certificate.
func (e *testEndpoint) as(t *testing.T, name string) *rest.Config {
	cert, key := e.ca.issue(t, name, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))
	return &rest.Config{Host: e.url, TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: cert, KeyData: key}}
}

func (e *testEndpoint) get(t *testing.T, c *rest.Config, path string) (int, string) {
	t.Helper()
	rt, err := rest.TransportFor(c)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: rt}).Get(e.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestKubeletCallersNeedPermission(t *testing.T) {
	e := newEndpoint(t)
	e.remote.logs = func(context.Context, peering.ObjectRef, peering.LogOptions) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("hello\n")), nil
	}
	other := newAuthority(t)
	otherCert, otherKey := other.issue(t, "admin", x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))
	oldCert, oldKey := e.ca.issue(t, "admin", x509.ExtKeyUsageClientAuth, time.Now().Add(-time.Hour))
	serverCert, serverKey := e.ca.issue(t, "admin", x509.ExtKeyUsageServerAuth, time.Now().Add(time.Hour))
	with := func(cert, key []byte, token string) *rest.Config {
		return &rest.Config{Host: e.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: cert, KeyData: key}}
	}
	const logs = "/containerLogs/shop/web/c"
	tests := map[string]struct {
		who  *rest.Config
		path string
		want int
	}{
		"anonymous":                               {with(nil, nil, ""), logs, 401},
		"a bad token":                             {with(nil, nil, "nonsense"), logs, 401},
		"a certificate of another CA":             {with(otherCert, otherKey, ""), logs, 401},
		"an expired certificate":                  {with(oldCert, oldKey, ""), logs, 401},
		"a certificate for servers":               {with(serverCert, serverKey, ""), logs, 401},
		"a caller without rights":                 {with(nil, nil, "token-of-nobody"), logs, 403},
		"a caller without rights, unknown path":   {with(nil, nil, "token-of-nobody"), "/nonsense", 403},
		"the API server":                          {e.as(t, "apiserver"), logs, 200},
		"a reader with a token":                   {with(nil, nil, "token-of-reader"), logs, 200},
		"a reader may not run commands by a GET":  {with(nil, nil, "token-of-reader"), "/exec/shop/web/c?command=sh&output=1", 403},
		"a reader may not forward ports by a GET": {with(nil, nil, "token-of-reader"), "/portForward/shop/web", 403},
		"a pod that is not here":                  {e.as(t, "apiserver"), "/containerLogs/shop/other/c", 404},
		"a container that is not there":           {e.as(t, "apiserver"), "/containerLogs/shop/web/other", 404},
		"a path that is not served":               {e.as(t, "apiserver"), "/run/shop/web/c", 404},
		"pods":                                    {e.as(t, "apiserver"), "/pods", 200},
		"running pods":                            {e.as(t, "apiserver"), "/runningpods/", 200},
		"running pods, a caller without rights":   {with(nil, nil, "token-of-nobody"), "/runningpods/", 403},
		"metrics for a caller without rights":     {with(nil, nil, "token-of-nobody"), "/metrics/resource/office", 403},
		"metrics for anonymous":                   {with(nil, nil, ""), "/metrics/resource", 401},
		"metrics for a reader":                    {with(nil, nil, "token-of-reader"), "/metrics/resource", 200},
		"metrics of a node":                       {with(nil, nil, "token-of-reader"), "/metrics/resource/office", 200},
		"metrics of a node that is not here":      {with(nil, nil, "token-of-reader"), "/metrics/resource/other", 404},
		"metrics that it does not have":           {with(nil, nil, "token-of-reader"), "/metrics/cadvisor", 404},
		"a summary for a caller without rights":   {with(nil, nil, "token-of-nobody"), "/stats/summary", 403},
		"a summary":                               {with(nil, nil, "token-of-reader"), "/stats/summary", 200},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, body := e.get(t, test.who, test.path); got != test.want {
				t.Errorf("%s gives %d %q, want %d", test.path, got, body, test.want)
			}
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.asked {
		if x.Resource != "nodes" || x.Name != "office" && x.Name != "" {
			t.Errorf("asked about %+v", x)
		}
	}
}

// A kubelet's list of pods that run has no others.
func TestRunningPodsAreThoseThatRun(t *testing.T) {
	e := newEndpoint(t)
	if code, got := e.get(t, e.as(t, "apiserver"), "/runningpods"); code != 200 || strings.Contains(got, `"web"`) {
		t.Errorf("before the pod runs /runningpods gives %d %s", code, got)
	}
	n := e.another(t, "depot")
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "u2"}, Spec: corev1.PodSpec{NodeName: "depot"}}
	n.mu.Lock()
	n.podState(podRef(running)).remote = &corev1.PodStatus{Phase: corev1.PodRunning}
	n.mu.Unlock()
	if err := n.pods.GetStore().Add(running); err != nil {
		t.Fatal(err)
	}
	e.kubelet.Add(n)
	if code, got := e.get(t, e.as(t, "apiserver"), "/runningpods/"); code != 200 || !strings.Contains(got, `"db"`) || strings.Contains(got, `"web"`) {
		t.Errorf("/runningpods/ gives %d %s", code, got)
	}
}

// countedPods returns how many pods each node has.
type countedPods struct{}

func (countedPods) Resource(_ context.Context, nodes map[string][]*corev1.Pod) ([]*dto.MetricFamily, error) {
	f := &dto.MetricFamily{Name: new("pods"), Type: dto.MetricType_GAUGE.Enum()}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		f.Metric = append(f.Metric, &dto.Metric{Label: []*dto.LabelPair{{Name: new("node"), Value: &name}}, Gauge: &dto.Gauge{Value: new(float64(len(nodes[name])))}})
	}
	return []*dto.MetricFamily{f}, nil
}

func (countedPods) Summary(_ context.Context, node string, pods []*corev1.Pod) (*stats.Summary, error) {
	return &stats.Summary{Node: stats.NodeStats{NodeName: node}, Pods: make([]stats.PodStats, len(pods))}, nil
}

// All virtual nodes have one address: the path names the node.
func TestMetricsAreThoseOfTheNodeThatIsNamed(t *testing.T) {
	e := newEndpoint(t)
	e.kubelet.Add(e.another(t, "depot"))
	reader := &rest.Config{Host: e.url, BearerToken: "token-of-reader", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	for path, want := range map[string]string{
		"/metrics/resource":        "# TYPE pods gauge\npods{node=\"depot\"} 0\npods{node=\"office\"} 1\n",
		"/metrics/resource/office": "# TYPE pods gauge\npods{node=\"office\"} 1\n",
		"/metrics/resource/depot/": "# TYPE pods gauge\npods{node=\"depot\"} 0\n",
		"/stats/summary":           "this agent has 2 virtual nodes: ask for /stats/summary/NODE\n",
	} {
		if _, got := e.get(t, reader, path); got != want {
			t.Errorf("%s is\n%swant\n%s", path, got, want)
		}
	}
	if _, got := e.get(t, reader, "/stats/summary/office"); !strings.Contains(got, `"nodeName":"office"`) || strings.Count(got, "podRef") != 1 {
		t.Errorf("the summary is %s", got)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := map[string]bool{}
	for _, x := range e.asked {
		asked[x.Verb+" "+x.Subresource+" "+x.Name] = true
	}
	want := map[string]bool{"get metrics ": true, "get metrics office": true, "get metrics depot": true, "get stats ": true, "get stats office": true}
	if d := cmp.Diff(want, asked); d != "" {
		t.Error(d)
	}
}

func TestLogsAreFollowedUntilTheCallerGoes(t *testing.T) {
	e := newEndpoint(t)
	var got peering.LogOptions
	pr, pw := io.Pipe()
	closed := make(chan struct{})
	e.remote.logs = func(ctx context.Context, ref peering.ObjectRef, o peering.LogOptions) (io.ReadCloser, error) {
		got = o
		context.AfterFunc(ctx, func() { close(closed) })
		return pr, nil
	}
	rt, err := rest.TransportFor(e.as(t, "apiserver"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: rt}).Get(e.url + "/containerLogs/shop/web/c?follow=true&tailLines=0&timestamps=true")
	go func() { _, _ = io.WriteString(pw, "one\n") }()
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, line); err != nil || string(line) != "one\n" {
		t.Fatalf("read %q, %v: a line that is followed should come at once", line, err)
	}
	if !got.Follow || !got.Timestamps || got.TailLines == nil || *got.TailLines != 0 {
		t.Errorf("options are %+v", got)
	}
	resp.Body.Close()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the log goes on though its reader is gone")
	}
}

func (e *testEndpoint) exec(t *testing.T, query string, o remotecommand.StreamOptions) error {
	t.Helper()
	u, err := url.Parse(e.url + query)
	if err != nil {
		t.Fatal(err)
	}
	ex, err := remotecommand.NewSPDYExecutor(e.as(t, "apiserver"), http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	return ex.StreamWithContext(t.Context(), o)
}

func TestExecCarriesStreamsAndTheExitCode(t *testing.T) {
	e := newEndpoint(t)
	e.remote.exec = func(_ context.Context, ref peering.ObjectRef, o peering.ExecOptions) error {
		in, err := io.ReadAll(o.Stdin)
		if err != nil {
			return err
		}
		fmt.Fprintf(o.Stdout, "%s %s %q %s", ref.UID, o.Container, o.Command, in)
		fmt.Fprint(o.Stderr, "oops")
		return fmt.Errorf("exec: %w", utilexec.CodeExitError{Err: errors.New("command terminated"), Code: 42})
	}
	var out, errs bytes.Buffer
	err := e.exec(t, "/exec/shop/web/c?command=cat&command=-n&input=1&output=1&error=1", remotecommand.StreamOptions{Stdin: strings.NewReader("typed"), Stdout: &out, Stderr: &errs})
	var exit utilexec.CodeExitError
	if !errors.As(err, &exit) || exit.Code != 42 {
		t.Errorf("exec returned %v, want exit code 42", err)
	}
	if want := `u1 c ["cat" "-n"] typed`; out.String() != want || errs.String() != "oops" {
		t.Errorf("stdout %q, stderr %q, want %q and oops", out.String(), errs.String(), want)
	}
	e.remote.exec = func(_ context.Context, _ peering.ObjectRef, o peering.ExecOptions) error {
		if o.Command != nil || o.Stdin != nil || o.Stderr != nil {
			return fmt.Errorf("attach with %+v", o)
		}
		_, err := io.WriteString(o.Stdout, "attached")
		return err
	}
	out.Reset()
	if err := e.exec(t, "/attach/shop/web/c?output=1", remotecommand.StreamOptions{Stdout: &out}); err != nil || out.String() != "attached" {
		t.Errorf("attach gave %q, %v", out.String(), err)
	}
}

type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	v, ok := <-s
	if !ok {
		return nil
	}
	return &v
}

func TestExecOnATerminalIsResizedAndEndsWithItsCaller(t *testing.T) {
	e := newEndpoint(t)
	ended := make(chan struct{})
	e.remote.exec = func(ctx context.Context, _ peering.ObjectRef, o peering.ExecOptions) error {
		defer close(ended)
		if !o.TTY || o.Stderr != nil {
			return fmt.Errorf("not a terminal: %+v", o)
		}
		s, ok := o.Resize(ctx)
		if !ok {
			return errors.New("the terminal has no size")
		}
		fmt.Fprintf(o.Stdout, "%dx%d", s.Width, s.Height)
		<-ctx.Done()
		return ctx.Err()
	}
	u, err := url.Parse(e.url + "/exec/shop/web/c?command=sh&input=1&output=1&tty=1")
	if err != nil {
		t.Fatal(err)
	}
	ex, err := remotecommand.NewSPDYExecutor(e.as(t, "apiserver"), http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	queue := make(sizes, 1)
	queue <- remotecommand.TerminalSize{Width: 80, Height: 24}
	defer close(queue)
	pr, pw := io.Pipe()
	stdin, typed := io.Pipe()
	defer typed.Close()
	done := make(chan error, 1)
	go func() {
		done <- ex.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: pw, Tty: true, TerminalSizeQueue: queue})
	}()
	got := make([]byte, 5)
	if _, err := io.ReadFull(pr, got); err != nil || string(got) != "80x24" {
		t.Fatalf("the process saw %q, %v", got, err)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the process goes on though its caller went")
	}
	<-done
}

// gone is what the library returns for a terminal whose caller has gone: sizes of zero, without pause.
type gone struct{ vkapi.AttachIO }

func (gone) TTY() bool { return true }

func (gone) Resize() <-chan vkapi.TermSize {
	zeros := make(chan vkapi.TermSize, 1)
	zeros <- vkapi.TermSize{}
	return zeros
}

func TestATerminalWhoseCallerWentHasNoMoreSizes(t *testing.T) {
	t.Parallel()
	remote := &provider{exec: func(_ context.Context, _ peering.ObjectRef, o peering.ExecOptions) error {
		if s, ok := o.Resize(t.Context()); ok {
			return fmt.Errorf("the provider received %+v", s)
		}
		return nil
	}}
	if err := runExec(t.Context(), remote, peering.ObjectRef{}, "c", nil, url.Values{}, gone{}); err != nil {
		t.Error(err)
	}
}

func TestPortForwardCarriesBytesBothWays(t *testing.T) {
	e := newEndpoint(t)
	ended := make(chan struct{})
	e.remote.dial = func(ctx context.Context, ref peering.ObjectRef, port int32, conn io.ReadWriteCloser) error {
		defer close(ended)
		buf := make([]byte, 5)
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "%d:%s", port, buf); err != nil {
			return err
		}
		<-ctx.Done() // a server that keeps the connection open
		return nil
	}
	c := e.as(t, "apiserver")
	rt, upgrader, err := spdy.RoundTripperFor(c)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(e.url + "/portForward/shop/web")
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	fw, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: rt}, http.MethodPost, u), []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- fw.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := fw.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "8080:hello" {
		t.Errorf("got %q, %v", got, err)
	}
	close(stop)
	<-done
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the connection to the pod stays though kubectl ended")
	}
}

func TestParseTarget(t *testing.T) {
	for path, want := range map[string]bool{
		"/pods": true, "/pods/": true, "/containerLogs/a/b/c": true, "/exec/a/b/c": true, "/attach/a/b/c": true, "/portForward/a/b": true,
		"/": false, "/exec/a/b": false, "/exec/a/b/c/d": false, "/exec//b/c": false, "/run/a/b/c": false, "/metrics": false, "/exec/../b/c/..": false,
	} {
		if _, got := parseTarget(path); got != want {
			t.Errorf("parseTarget(%q) = %v", path, got)
		}
	}
}

// A caller learns why a pod has no containers yet, as from a kubelet, and not that the provider does not know it.
func TestAPodThatWasNotTakenSaysWhy(t *testing.T) {
	e := newEndpoint(t)
	e.remote.logs = func(context.Context, peering.ObjectRef, peering.LogOptions) (io.ReadCloser, error) {
		return nil, peering.Errorf(peering.ReasonPodUnknown, "it is not here")
	}
	n := e.another(t, "depot")
	e.kubelet.Add(n)
	const why = "NotOffloadable: spec.hostNetwork is a namespace of the provider's node"
	for name, status := range map[string]corev1.PodStatus{
		"refused": {Phase: corev1.PodPending, Reason: "NotOffloadable", Message: "spec.hostNetwork is a namespace of the provider's node"},
		"new":     {},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: "depot", Containers: []corev1.Container{{Name: "c"}}}, Status: status,
		}
		if err := n.pods.GetStore().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/containerLogs/shop/refused/c":            `container "c" in pod "refused" is waiting to start: ` + why,
		"/exec/shop/refused/c?command=sh&output=1": `container "c" in pod "refused" is waiting to start: ` + why,
		"/attach/shop/refused/c?output=1":          `container "c" in pod "refused" is waiting to start: ` + why,
		"/portForward/shop/refused":                `pod "refused" is waiting to start: ` + why,
		"/containerLogs/shop/new/c":                `container "c" in pod "new" is waiting to start: the provider has not taken it yet`,
	} {
		if code, got := e.get(t, e.as(t, "apiserver"), path); code != http.StatusBadRequest || strings.TrimSpace(got) != want {
			t.Errorf("%s gives %d %q, want %d %q", path, code, got, http.StatusBadRequest, want)
		}
	}
	// Its status at home may be late.
	n.mu.Lock()
	n.podState(peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "new", UID: "new"}).remote = &corev1.PodStatus{Phase: corev1.PodRunning}
	n.mu.Unlock()
	if code, got := e.get(t, e.as(t, "apiserver"), "/containerLogs/shop/new/c"); code == http.StatusBadRequest || !strings.Contains(got, "it is not here") {
		t.Errorf("a pod that runs gives %d %q, want what the provider says", code, got)
	}
}
