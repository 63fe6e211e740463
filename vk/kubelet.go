package vk

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	utilexec "k8s.io/client-go/util/exec"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

const (
	// streamIdle is how long a stream may be silent, as in a kubelet. How long one may last is not
	// limited.
	streamIdle = 4 * time.Hour
	// streamCreation is how long a client has to open the streams it announced.
	streamCreation = 30 * time.Second
	// shutdownGrace is how long requests may go on when the endpoint shuts down.
	shutdownGrace = 2 * time.Second
)

// KubeletConfig is what a Kubelet needs. Fields are required unless the comment
// says otherwise.
type KubeletConfig struct {
	// Client is the home cluster, which authenticates and authorises callers.
	Client kubernetes.Interface
	// Address is where to listen, as host:port. Default :10250.
	Address string
	// GetCertificate returns the serving certificate, as in tls.Config.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Metrics measures what pods use. With nil, no metrics are served.
	Metrics Metrics
	// Logger may be nil.
	Logger *slog.Logger
}

// Metrics returns what the pods on virtual nodes use, without those that were not measured.
type Metrics interface {
	// Resource returns what a kubelet serves at /metrics/resource, for the pods on some nodes.
	Resource(ctx context.Context, nodes map[string][]*corev1.Pod) ([]*dto.MetricFamily, error)
	// Summary returns what a kubelet serves at /stats/summary, for the pods on one node.
	Summary(ctx context.Context, node string, pods []*corev1.Pod) (*stats.Summary, error)
}

// Kubelet is the one HTTPS endpoint of all virtual nodes: logs, exec, attach, port-forward, the
// lists of pods and their metrics, as the API server and metrics-server ask a kubelet for them. A
// caller needs a client certificate of the cluster's client CA or a bearer token that a TokenReview
// accepts, and a SubjectAccessReview must allow the request on the pod's node.
type Kubelet struct {
	cfg  KubeletConfig
	log  *slog.Logger
	auth *kubeauth.Reviewer

	mu    sync.Mutex
	nodes map[*Node]bool
}

// NewKubelet returns a Kubelet without nodes.
func NewKubelet(cfg KubeletConfig) (*Kubelet, error) {
	if cfg.Client == nil || cfg.GetCertificate == nil {
		return nil, errors.New("a kubelet endpoint needs a Client and GetCertificate")
	}
	cfg.Address = cmp.Or(cfg.Address, ":10250")
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Kubelet{
		cfg: cfg, log: cfg.Logger, nodes: map[*Node]bool{},
		auth: kubeauth.New(kubeauth.Config{Client: cfg.Client, Log: cfg.Logger, Cache: true}),
	}, nil
}

// Add begins to serve a node.
func (k *Kubelet) Add(n *Node) {
	k.mu.Lock()
	k.nodes[n] = true
	k.mu.Unlock()
}

// Remove ceases to serve a node.
func (k *Kubelet) Remove(n *Node) {
	k.mu.Lock()
	delete(k.nodes, n)
	k.mu.Unlock()
}

// Run listens until ctx ends, and then returns nil.
func (k *Kubelet) Run(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", k.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	return k.serve(ctx, l)
}

// serverKey is the key, in a request's context, of the server's context, which outlives the
// request's handler.
type serverKey struct{}

func (k *Kubelet) serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.auth.Run(ctx) })
	server := &http.Server{
		Handler:           k,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(k.log.Handler(), slog.LevelDebug),
		// Requests end with ctx, upgraded ones too.
		BaseContext: func(net.Listener) context.Context { return context.WithValue(ctx, serverKey{}, ctx) },
	}
	wg.Go(func() {
		<-ctx.Done()
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer done()
		if server.Shutdown(stop) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(tls.NewListener(l, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		ClientAuth:     tls.RequestClientCert, // verified by kubeauth, whose CA may change
		GetCertificate: k.cfg.GetCertificate,
		NextProtos:     []string{"http/1.1"}, // exec upgrades the connection
	}))
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the API server: %w", err)
}

// find returns a pod and its node; both are nil if no node has it.
func (k *Kubelet) find(namespace, name string) (*Node, *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n := range k.nodes {
		obj, ok, err := n.pods.GetStore().GetByKey(namespace + "/" + name)
		if p := podOf(obj); err == nil && ok && p != nil && p.Spec.NodeName == n.cfg.Name {
			return n, p
		}
	}
	return nil, nil
}

// The paths of metrics. All nodes have one address, so the name of one of them may follow.
const (
	resourcePath = "/metrics/resource"
	summaryPath  = "/stats/summary"
)

// target is what a request's path names.
type target struct {
	verb                      string // containerLogs, exec, attach, portForward, pods, runningpods, metrics or stats
	namespace, pod, container string
	// node is the one whose metrics are asked for; "" means all.
	node string
}

// parseTarget parses a path, and reports whether it is served.
func parseTarget(path string) (target, bool) {
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/"), "/")
	if slices.Contains(parts, "") {
		return target{}, false
	}
	switch {
	case len(parts) == 1 && (parts[0] == "pods" || parts[0] == "runningpods"):
		return target{verb: parts[0]}, true
	case (len(parts) == 2 || len(parts) == 3) && (parts[0] == "metrics" && parts[1] == "resource" || parts[0] == "stats" && parts[1] == "summary"):
		return target{verb: parts[0], node: strings.Join(parts[2:], "")}, true
	case len(parts) == 4 && (parts[0] == "containerLogs" || parts[0] == "exec" || parts[0] == "attach"):
		return target{verb: parts[0], namespace: parts[1], pod: parts[2], container: parts[3]}, true
	case len(parts) == 3 && parts[0] == "portForward":
		return target{verb: parts[0], namespace: parts[1], pod: parts[2]}, true
	}
	return target{}, false
}

// ServeHTTP implements http.Handler.
func (k *Kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, err := k.auth.Authenticate(r)
	if err != nil {
		k.log.Debug("kubelet endpoint", "path", r.URL.Path, "err", err)
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	t, served := parseTarget(r.URL.Path)
	node, pod := (*Node)(nil), (*corev1.Pod)(nil)
	name := ""
	if len(k.podsOf(t.node)) == 1 {
		name = t.node
	}
	if t.pod != "" {
		if node, pod = k.find(t.namespace, t.pod); node != nil {
			name = node.cfg.Name
		}
	}
	allowed, err := k.authorise(r.Context(), who, accesses(r.Method, t, name))
	if err != nil {
		k.log.Warn("kubelet endpoint: authorise", "user", who.Username, "err", err)
		http.Error(w, "cannot authorise now", http.StatusInternalServerError)
		return
	}
	switch {
	case !allowed:
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, path=%s)", who.Username, r.URL.Path), http.StatusForbidden)
	case !served:
		http.NotFound(w, r)
	case t.pod != "" && pod == nil:
		http.Error(w, fmt.Sprintf("pod %s/%s is not on a virtual node of this agent", t.namespace, t.pod), http.StatusNotFound)
	case t.container != "" && !hasContainer(pod, t.container):
		http.Error(w, fmt.Sprintf("container %s not found in pod %s/%s", t.container, t.namespace, t.pod), http.StatusNotFound)
	case pod != nil && !node.took(pod):
		http.Error(w, podstatus.NotTaken(pod, t.container), http.StatusBadRequest)
	case t.verb == "metrics" || t.verb == "stats":
		k.measure(w, r, t)
	default:
		k.handle(w, r, t, node, pod)
	}
}

// measure responds with the metrics of one node, or of all.
func (k *Kubelet) measure(w http.ResponseWriter, r *http.Request, t target) {
	nodes := k.podsOf(t.node)
	switch {
	case k.cfg.Metrics == nil:
		http.Error(w, "this agent serves no metrics of pods", http.StatusNotImplemented)
		return
	case t.node != "" && len(nodes) == 0:
		http.Error(w, "no virtual node of this agent is called "+t.node, http.StatusNotFound)
		return
	case t.verb == "stats" && len(nodes) != 1:
		http.Error(w, fmt.Sprintf("this agent has %d virtual nodes: ask for %s/NODE", len(nodes), summaryPath), http.StatusNotFound)
		return
	}
	h := vkapi.PodHandlerConfig{GetMetricsResource: func(ctx context.Context) ([]*dto.MetricFamily, error) {
		return k.cfg.Metrics.Resource(ctx, nodes)
	}, GetStatsSummary: func(ctx context.Context) (*stats.Summary, error) {
		for name, pods := range nodes {
			return k.cfg.Metrics.Summary(ctx, name, pods)
		}
		return nil, errors.New("no virtual node is asked for")
	}}
	r = r.Clone(r.Context())
	if r.URL.Path = resourcePath; t.verb == "stats" {
		r.URL.Path = summaryPath
		w.Header().Set("Content-Type", "application/json")
	}
	vkapi.PodHandler(h, false).ServeHTTP(w, r)
}

// podsOf returns the pods of a node, or of all nodes, by node.
func (k *Kubelet) podsOf(name string) map[string][]*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make(map[string][]*corev1.Pod)
	for n := range k.nodes {
		if name == "" || n.cfg.Name == name {
			out[n.cfg.Name] = n.localPods()
		}
	}
	return out
}

func hasContainer(pod *corev1.Pod, name string) bool {
	found := false
	podspec.EachContainer(&pod.Spec, func(_ string, c *corev1.Container) { found = found || c.Name == name })
	return found
}

// handle lets the library serve a request that is allowed. The request's context ends when the
// caller goes, even if it was upgraded.
func (k *Kubelet) handle(w http.ResponseWriter, r *http.Request, t target, node *Node, pod *corev1.Pod) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	out := &hijackWatcher{ResponseWriter: w, gone: cancel, atEnd: func(f func()) func() bool {
		server, ok := ctx.Value(serverKey{}).(context.Context) //nolint:contextcheck // the connection outlives its request
		if !ok {
			server = ctx
		}
		return context.AfterFunc(server, f)
	}}
	var ref peering.ObjectRef
	if pod != nil {
		ref = podRef(pod)
	}
	h := vkapi.PodHandlerConfig{StreamIdleTimeout: streamIdle, StreamCreationTimeout: streamCreation}
	switch t.verb {
	case "pods":
		h.GetPodsFromKubernetes = func(context.Context) ([]*corev1.Pod, error) { return k.allPods(), nil }
	case "runningpods":
		vkapi.HandleRunningPods(func(context.Context) ([]*corev1.Pod, error) { // the library routes it where it debugs only
			return k.runningPods(), nil
		})(out, r)
		return
	case "containerLogs":
		h.GetContainerLogs = func(ctx context.Context, _, _, container string, o vkapi.ContainerLogOpts) (io.ReadCloser, error) {
			logs, err := node.cfg.Streams.Logs(ctx, ref, logOptions(container, r.URL.Query(), o, time.Now()))
			if err != nil {
				return nil, err
			}
			if o.Follow {
				out.Flush() // the caller learns that it is connected, not only when a line comes
			}
			return &ctxReader{ReadCloser: logs, stop: context.AfterFunc(ctx, func() { _ = logs.Close() })}, nil
		}
	case "exec":
		h.RunInContainer = func(ctx context.Context, _, _, container string, cmd []string, a vkapi.AttachIO) error {
			return runExec(ctx, node.cfg.Streams, ref, container, cmd, r.URL.Query(), a)
		}
	case "attach":
		h.AttachToContainer = func(ctx context.Context, _, _, container string, a vkapi.AttachIO) error {
			return runExec(ctx, node.cfg.Streams, ref, container, nil, r.URL.Query(), a)
		}
	case "portForward":
		// The library has these two the wrong way round for port-forward.
		h.StreamIdleTimeout, h.StreamCreationTimeout = streamCreation, streamIdle
		h.PortForward = func(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
			return node.cfg.Streams.PortForward(ctx, ref, port, stream)
		}
	}
	vkapi.PodHandler(h, false).ServeHTTP(out, r)
}

func (k *Kubelet) allPods() []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*corev1.Pod
	for n := range k.nodes {
		out = append(out, n.localPods()...)
	}
	return out
}

// runningPods returns the pods that run according to their providers' last statuses: like a kubelet's
// runtime, a provider knows before the API server does.
func (k *Kubelet) runningPods() []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*corev1.Pod
	for n := range k.nodes {
		n.mu.Lock()
		for _, p := range n.localPods() {
			if st := n.state[string(p.UID)]; st != nil && !st.gone && st.remote != nil && st.remote.Phase == corev1.PodRunning {
				out = append(out, p)
			}
		}
		n.mu.Unlock()
	}
	return out
}

// took reports whether the provider took a pod, as its status at home says, or the provider, which knows first.
func (n *Node) took(pod *corev1.Pod) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := n.state[string(pod.UID)]
	return podstatus.Offloaded(pod) || st != nil && st.remote != nil
}

// logOptions returns the options of a request for logs. The library does not distinguish a tail of
// no lines from no tail, so that is read from the query.
func logOptions(container string, q url.Values, o vkapi.ContainerLogOpts, now time.Time) peering.LogOptions {
	out := peering.LogOptions{Container: container, Follow: o.Follow, Previous: o.Previous, Timestamps: o.Timestamps}
	if lines, err := strconv.ParseInt(q.Get("tailLines"), 10, 64); err == nil && lines >= 0 {
		out.TailLines = &lines
	}
	if o.LimitBytes > 0 {
		limit := int64(o.LimitBytes)
		out.LimitBytes = &limit
	}
	since := int64(o.SinceSeconds)
	if !o.SinceTime.IsZero() {
		since = int64(math.Ceil(max(now.Sub(o.SinceTime).Seconds(), 1)))
	}
	if since > 0 {
		out.SinceSeconds = &since
	}
	return out
}

// runExec connects the caller's streams to a process at the provider. The query says which streams
// the caller uses: over WebSocket all of them exist.
func runExec(ctx context.Context, remote Streams, ref peering.ObjectRef, container string, cmd []string, q url.Values, a vkapi.AttachIO) error {
	opts := peering.ExecOptions{Container: container, Command: cmd, TTY: a.TTY()}
	if q.Get(corev1.ExecStdinParam) == "1" {
		opts.Stdin = a.Stdin()
	}
	if q.Get(corev1.ExecStdoutParam) == "1" {
		opts.Stdout = a.Stdout()
	}
	if q.Get(corev1.ExecStderrParam) == "1" && !a.TTY() {
		opts.Stderr = a.Stderr()
	}
	if a.TTY() {
		opts.Resize = func(ctx context.Context) (peering.TerminalSize, bool) {
			select {
			case <-ctx.Done():
				return peering.TerminalSize{}, false
			case s, ok := <-a.Resize():
				// Once its caller is gone the library sends sizes of zero without pause.
				return peering.TerminalSize(s), ok && s != (vkapi.TermSize{})
			}
		}
	}
	err := remote.Exec(ctx, ref, opts)
	if exit, ok := errors.AsType[utilexec.CodeExitError](err); ok {
		return exit // the library does not unwrap errors
	}
	return err
}

// ctxReader is a log that is closed when its caller goes.
type ctxReader struct {
	io.ReadCloser
	stop func() bool
}

func (r *ctxReader) Close() error {
	r.stop()
	return r.ReadCloser.Close()
}

// hijackWatcher notices when the connection of an upgraded request ends, which its context does
// not.
type hijackWatcher struct {
	http.ResponseWriter
	atEnd func(shut func()) (stop func() bool) // closes the connection when the server ends
	gone  func()
}

// Flush implements http.Flusher, for logs that are followed.
func (w *hijackWatcher) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (w *hijackWatcher) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.New("this connection cannot be upgraded")
	}
	conn, rw, err := h.Hijack()
	if err != nil {
		return nil, nil, err
	}
	// What was read ahead is returned first.
	ahead, err := rw.Reader.Peek(rw.Reader.Buffered())
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("upgrade: %w", err)
	}
	c := &watchedConn{Conn: conn, gone: w.gone, stop: w.atEnd(func() { _ = conn.Close() })}
	r := io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), c)
	return c, bufio.NewReadWriter(bufio.NewReader(r), bufio.NewWriter(c)), nil
}

// watchedConn calls gone when nothing more can be read from it.
type watchedConn struct {
	net.Conn
	gone func()
	stop func() bool
}

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		var t net.Error
		if !errors.As(err, &t) || !t.Timeout() {
			c.gone()
		}
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.stop()
	c.gone()
	return c.Conn.Close()
}
