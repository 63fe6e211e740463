package homeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/accept"
	"github.com/entente-dev/entente/internal/carry"
	"github.com/entente-dev/entente/peering"
)

// HomeConfig configures a Home. All of it is required.
type HomeConfig struct {
	// REST is how to reach the API server. Its credentials are not used for requests of pods.
	REST *rest.Config
	// Client requests tokens.
	Client kubernetes.Interface
	// Pod returns the pod with a UID on the virtual node of a contract with a provider, or nil. It
	// must not block, and the pod is only read.
	Pod func(provider peering.ClusterID, contract, uid string) *corev1.Pod
	// Offloading returns the NamespaceOffloading of a namespace, or nil. It must not block.
	Offloading func(namespace string) *v1alpha1.NamespaceOffloading
	// Namespace is the agent's own.
	Namespace string
	Log       *slog.Logger
}

// Home passes requests of pods abroad on to the API server of this cluster, their home.
type Home struct {
	cfg      HomeConfig
	proxy    *httputil.ReverseProxy
	accepted *accept.Handoff
	tokens   *tokens
	now      func() time.Time
	requests *prometheus.CounterVec

	mu    sync.Mutex
	conns map[*conn]struct{}
	pods  map[types.UID]*account
	peers map[peering.ClusterID]*account
}

// conn is a connection of a pod.
type conn struct {
	net.Conn
	provider      peering.ClusterID
	contract, uid string
	pod, peer     *account
	// moved is when the last bytes passed, in Unix nanoseconds.
	moved    atomic.Int64
	requests atomic.Int64
	// why is why home ended the connection.
	why atomic.Pointer[error]
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.moved.Store(time.Now().UnixNano())
	return n, err //nolint:wrapcheck // it is a net.Conn
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.moved.Store(time.Now().UnixNano())
	return n, err //nolint:wrapcheck // it is a net.Conn
}

// cut ends a connection, and with it all of its requests.
func (c *conn) cut(why error) {
	c.why.CompareAndSwap(nil, &why)
	_ = c.Close()
}

// NewHome returns a Home that serves while Run runs.
func NewHome(cfg HomeConfig) (*Home, error) {
	if cfg.REST == nil || cfg.Client == nil || cfg.Pod == nil || cfg.Offloading == nil || cfg.Namespace == "" || cfg.Log == nil {
		return nil, errors.New("home API: all of its configuration is required")
	}
	h := &Home{
		cfg: cfg, accepted: accept.NewHandoff(abroad()), now: time.Now, requests: newRequests(),
		conns: make(map[*conn]struct{}), pods: make(map[types.UID]*account), peers: make(map[peering.ClusterID]*account),
	}
	h.tokens = &tokens{client: cfg.Client, now: h.now, all: make(map[types.UID]*token)}
	var err error
	h.proxy, err = newProxy(cfg.REST, func(c *conn) { h.tokens.forget(types.UID(c.uid)) }, cfg.Log)
	return h, err
}

// Run serves connections until ctx ends.
func (h *Home) Run(ctx context.Context) error {
	server := newServer(http.HandlerFunc(h.serve))
	done := make(chan error, 1)
	go func() { done <- server.Serve(h.accepted) }()
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = h.accepted.Close()
			_ = server.Close()
			<-done //nolint:errcheck // it was closed
			h.check(func(*conn) error { return errStopping })
			return nil
		case err := <-done:
			return fmt.Errorf("serve pods abroad: %w", err)
		case <-tick.C:
			h.check(h.over)
		}
	}
}

var (
	errStopping = &peering.Error{Reason: peering.ReasonStopping, Message: "the agent of the pod's home is about to stop", RetryAfter: time.Second}
	errIdle     = fmt.Errorf("nothing passed for %s", idleTimeout)
)

// over returns why a connection has to end, or nil if it may go on.
func (h *Home) over(c *conn) error {
	if h.now().Sub(time.Unix(0, c.moved.Load())) > idleTimeout {
		return errIdle
	}
	_, err := h.allowed(c.provider, c.contract, c.uid)
	return err
}

// check cuts the connections that have to end, and removes accounts that are no longer needed.
func (h *Home) check(over func(*conn) error) {
	h.mu.Lock()
	open := slices.Collect(maps.Keys(h.conns))
	maps.DeleteFunc(h.peers, func(_ peering.ClusterID, a *account) bool { return a.over(h.now()) })
	for uid, a := range h.pods {
		if a.over(h.now()) {
			delete(h.pods, uid)
			h.tokens.forget(uid)
		}
	}
	h.mu.Unlock()
	for _, c := range open {
		if why := over(c); why != nil {
			c.cut(why)
		}
	}
}

// allowed returns a pod abroad if it may call, or why it may not.
func (h *Home) allowed(provider peering.ClusterID, contract, uid string) (*corev1.Pod, error) {
	f := facts{pod: h.cfg.Pod(provider, contract, uid), own: h.cfg.Namespace, now: h.now()}
	if f.pod != nil {
		f.offloading = h.cfg.Offloading(f.pod.Namespace)
	}
	return f.pod, f.refusal()
}

// Connect serves a connection of a pod that a provider runs, until it ends. Its error is sent to
// the provider and the pod.
func (h *Home) Connect(ctx context.Context, provider peering.ClusterID, contract, uid string, s carry.Stream) error {
	pod, err := h.allowed(provider, contract, uid)
	if err != nil {
		h.cfg.Log.Info("refused a pod abroad its home's API", "peer", provider, "contract", contract, "uid", uid, "why", err)
		return err
	}
	c := &conn{provider: provider, contract: contract, uid: uid}
	c.moved.Store(h.now().UnixNano())
	near, pass := carry.Join(s, provider, abroad())
	c.Conn = near
	if err := h.enter(c, pod.UID); err != nil {
		s.End(err)
		return err
	}
	defer h.leave(c)
	if err := s.Send(nil); err != nil {
		return err //nolint:wrapcheck // of the call that it ends
	}
	log := h.cfg.Log.With("peer", provider, "contract", contract, "pod", pod.Namespace+"/"+pod.Name, "uid", uid, "serviceAccount", serviceAccount(pod))
	if !h.accepted.Give(ctx, c) {
		return errStopping
	}
	log.Info("a pod abroad is connected to its home's API")
	began := h.now()
	pass()
	_ = c.Close()
	why := c.why.Load()
	if why == nil {
		log.Info("a pod abroad is disconnected from its home's API", "requests", c.requests.Load(), "after", h.now().Sub(began))
		return nil
	}
	log.Info("cut a pod abroad off its home's API", "requests", c.requests.Load(), "after", h.now().Sub(began), "why", *why)
	return *why
}

// enter counts a connection, unless that would be too many.
func (h *Home) enter(c *conn, uid types.UID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.peer = h.peers[c.provider]; c.peer == nil {
		c.peer = accountOfPeer()
		h.peers[c.provider] = c.peer
	}
	if err := c.peer.open(h.now()); err != nil {
		return err
	}
	if c.pod = h.pods[uid]; c.pod == nil {
		c.pod = accountOfPod()
		h.pods[uid] = c.pod
	}
	if err := c.pod.open(h.now()); err != nil {
		c.peer.close(h.now())
		return err
	}
	h.conns[c] = struct{}{}
	return nil
}

func (h *Home) leave(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
	c.peer.close(h.now())
	c.pod.close(h.now())
}

// begin counts a request, unless that would be too many.
func (h *Home) begin(c *conn) (end func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := c.peer.begin(h.now()); err != nil {
		return nil, err
	}
	if err := c.pod.begin(h.now()); err != nil {
		c.peer.end()
		return nil, err
	}
	c.requests.Add(1)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		c.peer.end()
		c.pod.end()
	}, nil
}

// serve serves a request.
func (h *Home) serve(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		refuse(w, peering.Errorf(peering.ReasonInternal, "unknown caller"))
		return
	}
	count := func(outcome string) { h.requests.WithLabelValues(string(c.provider), outcome).Inc() }
	end, err := h.begin(c)
	if err != nil {
		count(outcomeLimited)
		refuse(w, err)
		return
	}
	defer end()
	pod, err := h.allowed(c.provider, c.contract, c.uid)
	if err == nil {
		err = checkRequest(r)
	}
	if err != nil {
		count(outcomeRefused)
		refuse(w, err)
		return
	}
	value, err := h.tokens.of(r.Context(), pod)
	if err != nil {
		outcome := outcomeCancelled
		if r.Context().Err() == nil {
			outcome = outcomeRefused
			h.cfg.Log.Warn("no token for a pod abroad", "peer", c.provider, "pod", pod.Namespace+"/"+pod.Name, "uid", c.uid, "err", err)
		}
		count(outcome)
		refuse(w, tokenRefusal(err, pod))
		return
	}
	count(outcomePassed)
	h.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, value)))
}

// abroad is the address of a connection from another cluster.
func abroad() net.Addr { return accept.Place{Kind: "peer", Name: "a pod abroad"} }
