package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probes are handlers of each kind: one that the lab's server satisfies, and one that nothing does.
func probes() map[string][2]corev1.ProbeHandler {
	const closed = 9999
	exec := func(argv ...string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: argv}}
	}
	get := func(path string, port intstr.IntOrString) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: port}}
	}
	tcp := func(port int32) corev1.ProbeHandler {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}
	}
	grpc := func(port int32) corev1.ProbeHandler {
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port}}
	}
	return map[string][2]corev1.ProbeHandler{
		"exec": {exec("/tool", "curl", "http://localhost:8080/healthz"), exec("/tool", "exit", "3")},
		"http": {get("/healthz", intstr.FromString("http")), get("/healthz", intstr.FromInt32(closed))},
		"tcp":  {tcp(EchoPort), tcp(closed)},
		"grpc": {grpc(WebPort), grpc(closed)},
	}
}

// TestProbesOfEachKindDecideAbroad has pods abroad be probed by exec, HTTP, TCP and gRPC. What satisfies its probes is
// ready and does not restart; what does not is not ready, or restarts, and home shows both, and why.
func TestProbesOfEachKindDecideAbroad(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	every := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 2, TimeoutSeconds: 2, FailureThreshold: 3}
	}
	for kind, handlers := range probes() {
		good := WebPod(shop, kind, map[string]string{"app": "good"})
		place(&good.Spec, Away, nil)
		c := &good.Spec.Containers[0]
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = every(handlers[0]), every(handlers[0]), every(handlers[0])
		c.StartupProbe.FailureThreshold, c.LivenessProbe.FailureThreshold = 60, 30 // the machine may be busy
		bad := WebPod(shop, kind+"-fails", map[string]string{"app": "bad"})
		place(&bad.Spec, Away, nil)
		unready, restarts := bad.Spec.Containers[0], bad.Spec.Containers[0]
		unready.Name, unready.Args, unready.Ports = "unready", []string{"sleep"}, nil
		unready.ReadinessProbe = every(handlers[1])
		restarts.Name, restarts.Args, restarts.Ports = "restarts", []string{"sleep"}, nil
		restarts.ReadinessProbe, restarts.LivenessProbe = nil, every(handlers[1])
		bad.Spec.Containers = []corev1.Container{unready, restarts}
		OK(t, w.Home.Create(ctx, good, bad))
	}
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, map[string]string{"app": "good"}, len(probes()))
	OK(t, err)
	for kind := range probes() {
		OK(t, w.Until(ctx, Scheduled, "home to show what fails its probes by "+kind, func(ctx context.Context) (string, error) {
			return failsItsProbes(ctx, w, kind+"-fails")
		}))
	}
	now, err := w.Home.PodsReady(ctx, Soon, shop, map[string]string{"app": "good"}, len(probes()))
	OK(t, err)
	for i := range now {
		if n := Restarts(&now[i]); n > 0 {
			t.Errorf("pod %s, whose probes succeed, restarted %d times", now[i].Name, n)
		}
	}
}

// failsItsProbes returns what home does not yet show of a pod that fails its probes.
func failsItsProbes(ctx context.Context, w *World, name string) (missing string, err error) {
	pods, err := w.Home.Pods(ctx, shop, map[string]string{"app": "bad"})
	if err != nil {
		return "", err
	}
	for i := range pods {
		if pods[i].Name != name {
			continue
		}
		for _, c := range pods[i].Status.ContainerStatuses {
			switch {
			case c.Name == "unready" && (c.Ready || c.RestartCount > 0 || c.State.Running == nil):
				return fmt.Sprintf("container %s is %+v", c.Name, c), nil
			case c.Name == "restarts" && c.RestartCount == 0:
				return fmt.Sprintf("container %s did not restart", c.Name), nil
			}
		}
		return eventsOf(ctx, w, &pods[i], "Readiness probe failed", "Liveness probe failed")
	}
	return "there is no such pod", nil
}

// eventsOf returns which words no event of a pod at home has.
func eventsOf(ctx context.Context, w *World, p *corev1.Pod, words ...string) (missing string, err error) {
	var events corev1.EventList
	if err := w.Home.Client.List(ctx, &events); err != nil {
		return "", err
	}
	var said strings.Builder
	for _, e := range events.Items {
		if e.InvolvedObject.UID == p.UID {
			fmt.Fprintf(&said, "%s: %s\n", e.Reason, e.Message)
		}
	}
	for _, word := range words {
		if !strings.Contains(said.String(), word) {
			return fmt.Sprintf("no event says %q:\n%s", word, said.String()), nil
		}
	}
	return "", nil
}

// TestLifecycleHooksRunAbroad has containers abroad run a hook by exec and one by HTTP after they start and before they
// stop. A hook by exec reaches a Service of home by its name; one by HTTP asks the pod itself.
func TestLifecycleHooksRunAbroad(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	witness, service := Web(shop, "witness", 1, AtHome)
	OK(t, w.Home.Create(ctx, witness, service))
	witnesses, err := w.Home.PodsReady(ctx, Scheduled, shop, witness.Labels, 1)
	OK(t, err)

	p := WebPod(shop, "hooked", map[string]string{"app": "hooked"})
	place(&p.Spec, Away, nil)
	p.Spec.TerminationGracePeriodSeconds = new(int64(30))
	tells := func(path string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/tool", "curl", "-t", "20s", "http://witness:8080" + path}}}
	}
	byHTTP := func(path string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(WebPort)}}
	}
	web := &p.Spec.Containers[0]
	web.Lifecycle = &corev1.Lifecycle{PostStart: byHTTP("/started-http"), PreStop: byHTTP("/stopping-http")}
	execs := *web
	execs.Name, execs.Args, execs.Ports, execs.ReadinessProbe = "execs", []string{"sleep"}, nil, nil
	execs.Lifecycle = &corev1.Lifecycle{PostStart: tells("/started-exec"), PreStop: tells("/stopping-exec")}
	p.Spec.Containers = append(p.Spec.Containers, execs)
	OK(t, w.Home.Create(ctx, p))
	_, err = w.Home.PodsReady(ctx, Scheduled, shop, p.Labels, 1)
	OK(t, err)

	var log Output
	follows, stop := context.WithCancel(Watching(ctx, &log))
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = w.Home.Kubectl(follows, "logs", "-n", shop, p.Name, "-c", "web", "-f")
	}()
	told := func(path string) {
		t.Helper()
		OK(t, w.Until(ctx, Soon, "the hook to ask for "+path, func(ctx context.Context) (string, error) {
			text, err := w.Home.Kubectl(ctx, "logs", "-n", shop, witnesses[0].Name)
			if err == nil && !strings.Contains(text+log.String(), "GET "+path+" ") {
				return "it did not", nil
			}
			return "", err
		}))
	}
	told("/started-exec")
	told("/started-http")
	if strings.Contains(log.String(), "/stopping") {
		t.Errorf("a hook of the end ran at the beginning:\n%s", log.String())
	}
	OK(t, w.Home.Client.Delete(ctx, p))
	told("/stopping-exec")
	told("/stopping-http")
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the log of a container that is gone does not end")
	}

	t.Run("a hook that fails is shown at home", func(t *testing.T) {
		bad := WebPod(shop, "refuses", map[string]string{"app": "refuses"})
		place(&bad.Spec, Away, nil)
		bad.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/tool", "exit", "3"}}}}
		OK(t, w.Home.Create(ctx, bad))
		OK(t, w.Until(ctx, Scheduled, "an event of the hook that failed", func(ctx context.Context) (string, error) {
			return eventsOf(ctx, w, bad, "FailedPostStartHook")
		}))
	})
}
