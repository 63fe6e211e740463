// Package podstreams streams logs, commands and forwarded ports of pods through the API server.
package podstreams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/entente-dev/entente/peering"
)

// Streams opens streams into the pods of contracts.
type Streams struct {
	// find returns the pod here that runs a consumer's pod under a contract, or a NotFound error. If a container is
	// named, its consumer has to be allowed to reach it.
	find func(ctx context.Context, contract string, pod peering.ObjectRef, container string) (types.NamespacedName, error)
	// cfg and pods are nil if streams are not available.
	cfg  *rest.Config
	pods rest.Interface
}

// New returns Streams into the pods that find returns. Without a cfg they all fail.
func New(cfg *rest.Config, find func(context.Context, string, peering.ObjectRef, string) (types.NamespacedName, error)) (*Streams, error) {
	if cfg == nil {
		return &Streams{find: find}, nil
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout, cfg.QPS = 0, -1 // streams have no limit here
	core, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client of pods: %w", err)
	}
	return &Streams{find: find, cfg: cfg, pods: core.RESTClient()}, nil
}

// pod returns the pod for a stream. The container is empty for a stream into the pod as a whole.
func (s *Streams) pod(ctx context.Context, contract string, ref peering.ObjectRef, container string) (types.NamespacedName, error) {
	if s.pods == nil {
		return types.NamespacedName{}, errors.New("this agent serves no logs, exec or port-forward")
	}
	return s.find(ctx, contract, ref, container)
}

// request begins a request to a pod's subresource.
func (s *Streams) request(pod types.NamespacedName, subresource string) *rest.Request {
	return s.pods.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource(subresource)
}

// Logs opens the log of a container.
func (s *Streams) Logs(ctx context.Context, contract string, ref peering.ObjectRef, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	pod, err := s.pod(ctx, contract, ref, o.Container)
	if err != nil {
		return nil, err
	}
	log, err := typedcorev1.New(s.pods).Pods(pod.Namespace).GetLogs(pod.Name, o).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return log, nil
}

// Exec runs a command in a container, or attaches to it if the command is empty, until the process
// ends. An exit code is returned as an exec.CodeExitError of k8s.io/client-go/util/exec. It calls
// ready once it has found the pod.
func (s *Streams) Exec(ctx context.Context, contract string, ref peering.ObjectRef, o *corev1.PodExecOptions, streams remotecommand.StreamOptions, ready func()) error {
	pod, err := s.pod(ctx, contract, ref, o.Container)
	if err != nil {
		return err
	}
	subresource, params := "exec", runtime.Object(o)
	if len(o.Command) == 0 {
		subresource = "attach"
		params = &corev1.PodAttachOptions{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY, Container: o.Container}
	}
	u := s.request(pod, subresource).VersionedParams(params, scheme.ParameterCodec).URL()
	executor, err := Executor(s.cfg, u)
	if err != nil {
		return fmt.Errorf("%s: %w", subresource, err)
	}
	ready()
	return executor.StreamWithContext(ctx, streams)
}

// Executor runs a command through a pod's subresource: over WebSocket or, if that does not pass, SPDY.
func Executor(cfg *rest.Config, u *url.URL) (remotecommand.Executor, error) {
	overWebsocket, err := remotecommand.NewWebSocketExecutor(cfg, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	overSPDY, err := remotecommand.NewSPDYExecutor(cfg, http.MethodPost, u)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(overWebsocket, overSPDY, upgradeFailed)
}

// upgradeFailed reports whether the API server, or a proxy before it, does not support WebSocket.
func upgradeFailed(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// PortForward carries one connection to a port of a pod, until either end closes it. It closes rw,
// and calls ready once it has found the pod.
func (s *Streams) PortForward(ctx context.Context, contract string, ref peering.ObjectRef, port int32, rw io.ReadWriteCloser, ready func()) error {
	defer rw.Close()
	pod, err := s.pod(ctx, contract, ref, "") // containers share the network
	if err != nil {
		return err
	}
	u := s.request(pod, "portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(s.cfg)
	if err != nil {
		return fmt.Errorf("port-forward: %w", err)
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	overWebsocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, s.cfg)
	if err != nil {
		return fmt.Errorf("port-forward: %w", err)
	}
	conn, _, err := portforward.NewFallbackDialerForStreaming(overWebsocket, overSPDY, upgradeFailed).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return fmt.Errorf("port-forward: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ready()
	return carry(ctx, conn, port, rw)
}

// carry connects rw to a port, over the two streams of the protocol: one for data, and one on which
// the other end reports an error.
func carry(ctx context.Context, conn httpstream.Connection, port int32, rw io.ReadWriteCloser) error {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	problems, err := conn.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("open error stream: %w", err)
	}
	// Nothing is written to it.
	_ = problems.Close()
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("open data stream: %w", err)
	}
	said := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(io.LimitReader(problems, maxProblem))
		said <- string(b)
	}()
	go func() {
		_, _ = io.Copy(data, rw)
		// Half-closed: the port may still send data.
		_ = data.Close()
	}()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(rw, data)
		done <- err
	}()
	select {
	case <-ctx.Done():
		_ = conn.Close()
		err = context.Cause(ctx)
	case <-conn.CloseChan():
		err = errors.New("the connection to the pod was lost")
	case err = <-done:
	}
	// Data that was not sent yet must not keep the other end from reporting an error.
	_ = data.Reset()
	rw.Close()
	late := time.NewTimer(problemTimeout)
	defer late.Stop()
	select {
	case problem := <-said:
		if problem = strings.TrimSpace(problem); problem != "" && ctx.Err() == nil {
			return apierrors.NewBadRequest(fmt.Sprintf("port %d: %s", port, peering.Text(problem, maxProblem)))
		}
	case <-late.C:
	}
	return err
}
