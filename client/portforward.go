package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/entente-dev/entente/internal/notify"
)

// ErrNoAgent says that there is no pod of the agent, or none that is ready and leads.
var ErrNoAgent = errors.New("no pod of the agent")

// DialPort opens a connection to a port of the agent's pod that leads, through the API server, like
// kubectl port-forward. It needs the permissions to list pods and to create pods/portforward in the
// namespace of the installation; without them the error is one of Kubernetes (apierrors.IsForbidden).
// It is ErrNoAgent if no pod is ready and leads.
func DialPort(ctx context.Context, config *rest.Config, namespace string, port int) (net.Conn, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("dial agent: %w", err)
	}
	return forwardPort(ctx, config, clients, namespace, port)
}

// forwardPort opens a connection to a port of an agent's pod through the API server. Nothing listens
// on this machine meanwhile, so no other user of it can use the connection.
func forwardPort(ctx context.Context, config *rest.Config, clients kubernetes.Interface, namespace string, port int) (net.Conn, error) {
	pod, err := leadingAgent(ctx, clients, namespace)
	if err != nil {
		return nil, err
	}
	url := clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("reach pod %s: %w", pod, err)
	}
	// As kubectl does: WebSocket, which passes proxies, or SPDY if the API server or a proxy does
	// not support that.
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, config)
	if err != nil {
		return nil, fmt.Errorf("reach pod %s: %w", pod, err)
	}
	dialer := portforward.NewFallbackDialerForStreaming(websocket, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	streams, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil && !mayForward(ctx, clients, namespace) {
		// The dialer's error has only a text.
		return nil, apierrors.NewForbidden(corev1.Resource("pods/portforward"), pod, err)
	}
	if err != nil {
		return nil, fmt.Errorf("forward a port to pod %s/%s: %w", namespace, pod, err)
	}
	conn, err := newPodConn(streams, namespace+"/"+pod, port)
	if err != nil {
		_ = streams.Close()
		return nil, fmt.Errorf("forward a port to pod %s/%s: %w", namespace, pod, err)
	}
	return conn, nil
}

// mayForward reports whether the API server lets this user forward ports. If that cannot be found
// out, it returns true.
func mayForward(ctx context.Context, clients kubernetes.Interface, namespace string) bool {
	review, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: "create", Resource: "pods", Subresource: "portforward",
		}},
	}, metav1.CreateOptions{})
	return err != nil || review.Status.Allowed
}

// leaderAgain is how often it is checked whether an agent leads, leaderWait for how long: another
// one takes over within that.
const leaderAgain, leaderWait = 500 * time.Millisecond, 12 * time.Second

// leadingAgent returns the pod of the agent that leads, and waits for one to take over.
func leadingAgent(ctx context.Context, clients kubernetes.Interface, namespace string) (string, error) {
	began := time.Now()
	for {
		pods, err := clients.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: AgentSelector})
		if err != nil {
			return "", fmt.Errorf("list the agent's pods in %s: %w", namespace, err)
		}
		name, soon := leaderOf(pods.Items)
		switch {
		case name != "":
			return name, nil
		case len(pods.Items) == 0:
			return "", fmt.Errorf("%w in namespace %s: is Entente installed there?", ErrNoAgent, namespace)
		case !soon || time.Since(began) >= leaderWait:
			return "", fmt.Errorf("%w in namespace %s is ready and leads: see `kubectl -n %s describe pod -l %s`", ErrNoAgent, namespace, namespace, AgentSelector)
		}
		if !notify.Pause(ctx, leaderAgain) {
			return "", ctx.Err()
		}
	}
}

// leaderOf returns the agent's pod that leads, the youngest if two claim to, or an empty name.
// soon means that another one is ready to lead.
func leaderOf(pods []corev1.Pod) (name string, soon bool) {
	var best *corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if !pod.DeletionTimestamp.IsZero() || !podReady(pod) {
			continue
		}
		soon = true
		if pod.Labels[leaderLabel] == "true" && (best == nil || best.CreationTimestamp.Before(&pod.CreationTimestamp)) {
			best = pod
		}
	}
	if best == nil {
		return "", soon
	}
	return best.Name, true
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podConn is one forwarded connection as a net.Conn. The streams below have no
// deadlines; gRPC closes the connection where it would set one.
type podConn struct {
	data    httpstream.Stream
	streams httpstream.Connection
	pod     podAddr

	// reported is closed when the kubelet's error stream ended; remote is why the pod cannot be
	// reached, as it reported.
	reported chan struct{}
	remote   error
	closed   sync.Once
}

// reasonWait is how long the kubelet's reason may come after the connection broke.
const reasonWait = 200 * time.Millisecond

type podAddr string

func (podAddr) Network() string  { return "portforward" }
func (a podAddr) String() string { return string(a) }

func newPodConn(streams httpstream.Connection, pod string, port int) (*podConn, error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	problems, err := streams.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("open error stream: %w", err)
	}
	// Nothing is written to it.
	_ = problems.Close()
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := streams.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("open data stream: %w", err)
	}
	c := &podConn{data: data, streams: streams, pod: podAddr(pod), reported: make(chan struct{})}
	go func() {
		text, err := io.ReadAll(io.LimitReader(problems, 4096))
		if err == nil && len(text) > 0 {
			c.remote = fmt.Errorf("pod %s: %s", pod, text)
		}
		close(c.reported)
		if c.remote != nil {
			_ = c.Close()
		}
	}()
	return c, nil
}

// why returns the kubelet's reason for a failure, if it sent one, and err otherwise.
func (c *podConn) why(doing string, err error) error {
	select {
	case <-c.reported:
		if c.remote != nil {
			return c.remote
		}
	case <-time.After(reasonWait):
	}
	if errors.Is(err, io.EOF) && doing == "read from" {
		return io.EOF
	}
	return fmt.Errorf("%s pod %s: %w", doing, c.pod, err)
}

func (c *podConn) Read(b []byte) (int, error) {
	n, err := c.data.Read(b)
	if err != nil {
		return n, c.why("read from", err)
	}
	return n, nil
}

func (c *podConn) Write(b []byte) (int, error) {
	n, err := c.data.Write(b)
	if err != nil {
		return n, c.why("write to", err)
	}
	return n, nil
}

func (c *podConn) Close() error {
	var err error
	c.closed.Do(func() {
		_ = c.data.Reset()
		err = c.streams.Close()
	})
	return err
}

func (c *podConn) LocalAddr() net.Addr { return podAddr("local") }

func (c *podConn) RemoteAddr() net.Addr { return c.pod }

// SetDeadline implements net.Conn; there are no deadlines.
func (c *podConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn; there are no deadlines.
func (c *podConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn; there are no deadlines.
func (c *podConn) SetWriteDeadline(time.Time) error { return nil }
