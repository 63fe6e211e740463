package faults

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestTrafficOutlivesItsMasters kills the fabric's process on both sides, and an
// agent, while packets pass between pods. The tunnel's own process lives, so none
// is lost.
func TestTrafficOutlivesItsMasters(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	e2e.Offloaded(ctx, t, w, shop)
	inn, service := e2e.Web(shop, "inn", 1, e2e.AtHome)
	out, _ := e2e.Web(shop, "out", 1, e2e.Away)
	// Only what a Service leads to is open to pods abroad.
	service.Spec.Ports = append(service.Spec.Ports,
		corev1.ServicePort{Name: "echo", Port: 8081, TargetPort: intstr.FromInt32(8081)},
		corev1.ServicePort{Name: "echo-udp", Protocol: corev1.ProtocolUDP, Port: 8081, TargetPort: intstr.FromInt32(8081)})
	e2e.OK(t, w.Home.Create(ctx, inn, service, out))
	inns, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, inn.Labels, 1)
	e2e.OK(t, err)
	outs, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, 1)
	e2e.OK(t, err)
	e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, inns[0].Name, "http://"+outs[0].Status.PodIP+":8080/name", outs))
	e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, outs[0].Name, "http://inn:8080/name", inns))

	twin, err := w.Abroad.Twin(ctx, &outs[0])
	e2e.OK(t, err)
	lives := e2e.LivesOf([]corev1.Pod{inns[0], outs[0], *twin})

	deaths := []struct {
		name string
		side *e2e.Side
		part string
	}{
		{"the fabric at home dies", w.Home, e2e.PartNode},
		{"the fabric abroad dies", w.Abroad, e2e.PartNode},
		{"the agent abroad dies", w.Abroad, e2e.PartAgent},
	}
	for _, death := range deaths {
		t.Run(death.name, func(t *testing.T) {
			wireguard, err := death.side.Process(ctx, e2e.PartWireGuard)
			e2e.OK(t, err)
			before, err := death.side.Process(ctx, death.part)
			e2e.OK(t, err)
			stream, err := w.Home.StartStream(ctx, inns[0].Status.PodIP, outs[0].Status.PodIP)
			e2e.OK(t, err)
			time.Sleep(time.Second)
			killErr := death.side.Kill(ctx, death.part)
			backErr := w.Until(ctx, e2e.Restarted, death.part+" of "+death.side.Name+" to be back", func(ctx context.Context) (string, error) {
				now, err := death.side.Process(ctx, death.part)
				if now == before {
					return "it is still dying", err
				}
				return "", err
			})
			time.Sleep(3 * time.Second)
			result := stream.Stop()
			e2e.OK(t, killErr)
			e2e.OK(t, backErr)
			t.Log(result)
			if result.Lost > 0 || result.TCPError != nil || result.Sent < 500 {
				t.Errorf("%s", result)
			}
			if now, err := death.side.Process(ctx, e2e.PartWireGuard); err != nil || now != wireguard {
				t.Errorf("the tunnel's process was %d and is %d (%v)", wireguard, now, err)
			}
		})
	}
	for _, session := range []string{"up", "down"} {
		t.Run("the agent at home dies under a stream from abroad, with the session "+session, func(t *testing.T) {
			if session == "down" {
				deaf(ctx, t, w)
			}
			streamOutlivesHomesAgent(ctx, t, w, twin.Status.PodIP, inns[0].Status.PodIP)
		})
	}
	e2e.OK(t, w.Abroad.AgentReady(ctx, e2e.Restarted))
	_, err = w.Peered(ctx, e2e.Restarted)
	e2e.OK(t, err)
	pods, err := w.Home.Pods(ctx, shop, nil)
	e2e.OK(t, err)
	if twin, err = w.Abroad.Twin(ctx, &outs[0]); err != nil {
		t.Fatal(err)
	}
	if err := lives.Same(e2e.LivesOf(append(pods, *twin))); err != nil {
		t.Errorf("pods did not outlive it: %v", err)
	}
}

// deaf keeps the agents from hearing of each other, until the test ends, and leaves
// the tunnel alone.
func deaf(ctx context.Context, t *testing.T, w *e2e.World) {
	t.Helper()
	rules := fmt.Sprintf("table inet deaf { chain forward { type filter hook forward priority 0; tcp dport %[1]d drop; tcp sport %[1]d drop; }; }", e2e.PeerNodePort)
	_, err := w.OnInternet(ctx, "nft", rules)
	e2e.OK(t, err)
	t.Cleanup(func() {
		if _, err := w.OnInternet(context.WithoutCancel(ctx), "nft", "delete table inet deaf"); err != nil {
			t.Errorf("reconnect the agents: %v", err)
		}
	})
	_, err = w.Home.Condition(ctx, e2e.Restarted, v1alpha1.ConditionConnected, metav1.ConditionFalse)
	e2e.OK(t, err)
}

// streamOutlivesHomesAgent kills the agent at home while a pod abroad talks to one at
// home, by flows that the pod abroad opened before and after.
func streamOutlivesHomesAgent(ctx context.Context, t *testing.T, w *e2e.World, from, to string) {
	t.Helper()
	peer, err := w.Abroad.Peer(ctx)
	e2e.OK(t, err)
	alias, err := e2e.Alias(peer, to)
	e2e.OK(t, err)
	before, err := w.Home.Process(ctx, e2e.PartAgent)
	e2e.OK(t, err)
	stream, err := w.Abroad.StartStream(ctx, from, alias)
	e2e.OK(t, err)
	time.Sleep(time.Second)
	killErr := w.Home.Kill(ctx, e2e.PartAgent)
	backErr := w.Until(ctx, e2e.Restarted, "the agent at home to be back", func(ctx context.Context) (string, error) {
		now, err := w.Home.Process(ctx, e2e.PartAgent)
		if now == before {
			return "it is still dying", err
		}
		_, err = w.Home.AgentPod(ctx)
		return "", err
	})
	time.Sleep(20 * time.Second) // until its reconcilers have looked at everything
	later, laterErr := w.Abroad.StartStream(ctx, from, alias)
	time.Sleep(3 * time.Second)
	result := stream.Stop()
	e2e.OK(t, killErr)
	e2e.OK(t, backErr)
	e2e.OK(t, laterErr)
	second := later.Stop()
	t.Log(result, second)
	if result.Lost > 0 || result.TCPError != nil || second.Lost > 0 || second.TCPError != nil {
		t.Errorf("%s; opened after it was back: %s", result, second)
	}
}

// A node has to say NotReady within silenceAim once its provider does not answer, and within silenceSeen on a machine
// that does much else.
const (
	silenceAim  = 5 * time.Second
	silenceSeen = 2 * silenceAim
)

// TestProviderIsAway cuts the internet and heals it again. In make matrix that is after longer than
// Kubernetes leaves pods on a node that does not answer (300 s), and the pods of another namespace
// are to be evicted by then.
func TestProviderIsAway(t *testing.T) {
	ctx, w := theStage.On(t)
	name := peered(ctx, t, w)
	e2e.Offloaded(ctx, t, w, shop)
	out, service := e2e.Web(shop, "out", 3, e2e.Away)
	e2e.OK(t, w.Home.Create(ctx, out, service))
	pods, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, 3)
	e2e.OK(t, err)
	serves := func(n int) {
		t.Helper()
		what := fmt.Sprintf("%d of the Service's endpoints to be ready", n)
		e2e.OK(t, w.Until(ctx, e2e.Restarted, what, func(ctx context.Context) (string, error) {
			ready, err := w.Home.ReadyEndpoints(ctx, shop, "out")
			if len(ready) != n {
				return fmt.Sprintf("they are %q", ready), err
			}
			return "", err
		}))
	}
	serves(3)
	remote, err := w.RemoteNamespace(ctx, shop)
	e2e.OK(t, err)
	twins, err := w.Abroad.Pods(ctx, remote, out.Labels)
	e2e.OK(t, err)
	home, abroad := e2e.LivesOf(pods), e2e.LivesOf(twins)
	if len(twins) != 3 {
		t.Fatalf("%d pods abroad, want 3", len(twins))
	}

	away := 20 * time.Second
	evicted := func() {}
	if only.InMatrix() {
		away = 330 * time.Second
		evicted = evictedFrom(ctx, t, w, name)
	}
	begin := time.Now()
	e2e.OK(t, w.Cut(ctx))
	e2e.OK(t, w.Until(ctx, e2e.Restarted, "node "+name+" to be NotReady", func(ctx context.Context) (string, error) {
		var node corev1.Node
		if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &node); err != nil {
			return "", err
		}
		if ready, _ := e2e.NodeCondition(&node); ready {
			return "it is Ready", nil
		}
		_, why := e2e.NodeCondition(&node)
		t.Logf("NotReady %s after the cut: %s", time.Since(begin).Round(100*time.Millisecond), why)
		return "", nil
	}))
	took := time.Since(begin)
	t.Logf("the provider's silence was seen after %s; the aim is %s", took.Round(100*time.Millisecond), silenceAim)
	if took > silenceSeen {
		t.Errorf("the provider's silence was seen after %s, want %s at most, and %s where nothing else is to do", took.Round(100*time.Millisecond), silenceSeen, silenceAim)
	}
	for _, condition := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionNetwork} {
		c, err := w.Home.Condition(ctx, e2e.Restarted, condition, metav1.ConditionFalse)
		e2e.OK(t, err)
		t.Logf("%s: %s: %s", condition, c.Reason, c.Message)
		if c.Message == "" {
			t.Errorf("condition %s does not say why", condition)
		}
	}
	e2e.OK(t, w.Until(ctx, e2e.Restarted, "the pods not to be Ready", func(ctx context.Context) (string, error) {
		now, err := w.Home.Pods(ctx, shop, out.Labels)
		for i := range now {
			if c := e2e.PodReadiness(&now[i]); c == nil || c.Status != corev1.ConditionFalse || c.Reason != "PeerLost" {
				return e2e.PodText(&now[i]), nil
			}
		}
		return "", err
	}))
	t.Logf("no pod Ready %s after the cut", time.Since(begin).Round(100*time.Millisecond))
	serves(0)
	t.Logf("no endpoint ready %s after the cut", time.Since(begin).Round(100*time.Millisecond))
	_, err = w.Home.Entente(ctx, "info")
	e2e.OK(t, e2e.Ended(err, "unhealthy", w.Abroad.Name, v1alpha1.ConditionConnected))
	if failed := err.(*e2e.CommandError); failed.Code != 3 { //nolint:errorlint // e2e.Ended looked
		t.Errorf("entente info ends with %d, want 3", failed.Code)
	}
	evicted()
	// Long enough for a component that would take silence for an end.
	time.Sleep(away)
	same := func() { untouched(ctx, t, w, remote, home, abroad, out.Labels) }
	same()

	begin = time.Now()
	e2e.OK(t, w.Heal(ctx))
	_, err = w.Home.VirtualNodeReady(ctx, e2e.Restarted)
	e2e.OK(t, err)
	t.Logf("Ready again %s after the cut was healed", time.Since(begin).Round(100*time.Millisecond))
	_, err = w.Home.PodsReady(ctx, e2e.Soon, shop, out.Labels, 3)
	e2e.OK(t, err)
	t.Logf("all pods Ready %s after the cut was healed", time.Since(begin).Round(100*time.Millisecond))
	serves(3)
	t.Logf("all endpoints ready %s after the cut was healed", time.Since(begin).Round(100*time.Millisecond))
	_, err = w.Peered(ctx, e2e.Restarted)
	e2e.OK(t, err)
	time.Sleep(5 * time.Second)
	same()
	evicted()
}

// evictedFrom has pods run on a virtual node, in a namespace that does without them after ten seconds.
// What it returns wants others in their place at home, the same ones each time, and, while the
// provider answers, none abroad.
func evictedFrom(ctx context.Context, t *testing.T, w *e2e.World, node string) (check func()) {
	t.Helper()
	const hall = "hall"
	e2e.Offloaded(ctx, t, w, hall, "--peer-lost", "evict=10s")
	out, _ := runAway(ctx, t, w, hall, node)
	remote, err := w.RemoteNamespace(ctx, hall)
	e2e.OK(t, err)
	begin := time.Now()
	var stay e2e.Lives
	return func() {
		t.Helper()
		var run []corev1.Pod
		e2e.OK(t, w.Until(ctx, e2e.Restarted, "pods at home in place of those abroad", func(ctx context.Context) (string, error) {
			now, err := w.Home.Pods(ctx, hall, out.Labels)
			run = slices.DeleteFunc(now, func(p corev1.Pod) bool {
				ready := e2e.PodReadiness(&p)
				return p.DeletionTimestamp != nil || p.Spec.NodeName == node || ready == nil || ready.Status != corev1.ConditionTrue
			})
			if len(run) != 2 {
				return fmt.Sprintf("%d run there", len(run)), err
			}
			return "", err
		}))
		if stay == nil {
			t.Logf("other pods run at home %s after the cut", time.Since(begin).Round(100*time.Millisecond))
			stay = e2e.LivesOf(run)
			return
		}
		if err := stay.Same(e2e.LivesOf(run)); err != nil {
			t.Error(err)
		}
		e2e.OK(t, w.Until(ctx, e2e.Restarted, "evicted pods to be gone abroad", func(ctx context.Context) (string, error) {
			twins, err := w.Abroad.Pods(ctx, remote, out.Labels)
			if len(twins) > 0 {
				return fmt.Sprintf("%d are there", len(twins)), err
			}
			return "", err
		}))
	}
}

// runAway runs two pods on a virtual node that may run at home as well.
func runAway(ctx context.Context, t *testing.T, w *e2e.World, namespace, node string) (*appsv1.Deployment, []corev1.Pod) {
	t.Helper()
	out, _ := e2e.Web(namespace, "out", 2, e2e.Anywhere)
	out.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}}},
		}}},
	}}
	e2e.OK(t, w.Home.Create(ctx, out))
	pods, err := w.Home.PodsReady(ctx, e2e.Scheduled, namespace, out.Labels, 2)
	e2e.OK(t, err)
	for i := range pods {
		if pods[i].Spec.NodeName != node {
			t.Fatalf("pod %s is on node %s, not abroad", pods[i].Name, pods[i].Spec.NodeName)
		}
	}
	return out, pods
}

// untouched checks that pods and their twins are the same as before, and never restarted.
func untouched(ctx context.Context, t *testing.T, w *e2e.World, remote string, home, abroad e2e.Lives, pods map[string]string) {
	t.Helper()
	now, err := w.Home.Pods(ctx, shop, pods)
	e2e.OK(t, err)
	if err := home.Same(e2e.LivesOf(now)); err != nil {
		t.Errorf("at home: %v", err)
	}
	there, err := w.Abroad.Pods(ctx, remote, pods)
	e2e.OK(t, err)
	if err := abroad.Same(e2e.LivesOf(there)); err != nil {
		t.Errorf("abroad: %v", err)
	}
}

// TestConsumersAgentRestarts kills the consumer's agent while 20 of its pods run abroad, and checks
// that they are left alone.
func TestConsumersAgentRestarts(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	e2e.Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	const replicas = 20
	out, _ := e2e.Web(shop, "out", replicas, e2e.Anywhere) // the strategy places them
	begin := time.Now()
	e2e.OK(t, w.Home.Create(ctx, out))
	pods, err := w.Home.PodsReady(ctx, 2*e2e.Scheduled, shop, out.Labels, replicas)
	e2e.OK(t, err)
	t.Logf("%d pods ran abroad after %s", replicas, time.Since(begin).Round(100*time.Millisecond))
	if atHome, _ := e2e.Split(pods); len(atHome) > 0 {
		t.Fatalf("%d pods are at home, with the strategy Remote", len(atHome))
	}
	remote, err := w.RemoteNamespace(ctx, shop)
	e2e.OK(t, err)
	twins, err := w.Abroad.Pods(ctx, remote, out.Labels)
	e2e.OK(t, err)
	home, abroad := e2e.LivesOf(pods), e2e.LivesOf(twins)

	changes, err := w.Abroad.Client.Watch(ctx, &corev1.PodList{}, ctrlclient.InNamespace(remote))
	e2e.OK(t, err)
	touched := make(chan string, 1000)
	go func() {
		for e := range changes.ResultChan() {
			p, is := e.Object.(*corev1.Pod)
			if !is {
				continue
			}
			was := abroad[p.Namespace+"/"+p.Name]
			switch {
			case e.Type == watch.Deleted:
				touched <- p.Name + " was deleted"
			case !p.DeletionTimestamp.IsZero():
				touched <- p.Name + " is being deleted"
			case was != e2e.LivesOf([]corev1.Pod{*p})[p.Namespace+"/"+p.Name]:
				touched <- p.Name + " is new or was restarted"
			}
		}
		close(touched)
	}()

	begin = time.Now()
	e2e.OK(t, w.Home.KillAgent(ctx))
	e2e.OK(t, w.Home.AgentReady(ctx, e2e.Restarted))
	t.Logf("the agent was ready again after %s", time.Since(begin).Round(100*time.Millisecond))
	_, err = w.Peered(ctx, e2e.Restarted)
	e2e.OK(t, err)
	time.Sleep(10 * time.Second)
	changes.Stop()
	for what := range touched {
		t.Errorf("abroad, pod %s", what)
	}
	_, err = w.Home.PodsReady(ctx, e2e.Soon, shop, out.Labels, replicas)
	e2e.OK(t, err)
	untouched(ctx, t, w, remote, home, abroad, out.Labels)
	// And it still does its work.
	if _, err := w.Home.Kubectl(ctx, "logs", "-n", shop, pods[0].Name, "--tail=1"); err != nil {
		t.Error(err)
	}
	e2e.OK(t, w.Home.Client.Delete(ctx, &pods[0]))
	e2e.OK(t, w.Until(ctx, e2e.Soon, "the twin of a deleted pod to be gone", func(ctx context.Context) (string, error) {
		if twin, err := w.Abroad.Twin(ctx, &pods[0]); err == nil {
			return fmt.Sprint(e2e.PodText(twin)), nil
		}
		return "", nil
	}))
}
