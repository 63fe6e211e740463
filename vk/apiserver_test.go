package vk

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/losses"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/podstatus/podstatustest"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

// realHome is an API server with the chart in it, its owner, and the agent with the rights of an
// installation.
type realHome struct {
	t            *testing.T
	owner, agent kubernetes.Interface
	remote       *provider
	node         *Node
	stop         func()
	mu           sync.Mutex
	spaces       []Namespace
}

func newReal(t *testing.T) *realHome {
	t.Helper()
	server := charttest.StartAPIServer(t)
	r := &realHome{t: t, remote: newProvider()}
	var err error
	if r.owner, err = kubernetes.NewForConfig(server.Owner); err != nil {
		t.Fatal(err)
	}
	if r.agent, err = kubernetes.NewForConfig(server.As("entente-agent")); err != nil {
		t.Fatal(err)
	}
	ns, err := r.owner.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.spaces = []Namespace{{Name: "shop", UID: string(ns.UID), Mapping: "Suffixed"}}
	return r
}

func agentSubject() rbacv1.Subject {
	return rbacv1.Subject{Kind: "ServiceAccount", Namespace: "entente-system", Name: "entente-agent"}
}

func (r *realHome) start() {
	r.t.Helper()
	n, err := New(Config{
		Name: "office.entente.dev", Contract: "c-1", Peer: "peerpeerpeerpeerpeerpeerpeerpeer", Client: r.agent, Mirror: r.remote, Streams: r.remote,
		Resources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}, Version: "v1.37.2-entente", Address: netip.MustParseAddr("10.1.2.3"),
		TranslateIP: podstatustest.Translate, Namespaces: r.offloaded,
		Logger: slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.node = n
	ctx, cancel := context.WithCancel(r.t.Context())
	mirror, done := r.remote.attach(n), make(chan error, 2)
	go func() { mirror(ctx); done <- nil }()
	go func() { done <- n.Run(ctx) }()
	r.stop = func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				r.t.Error(err)
			}
		}
	}
}

func (r *realHome) offloaded() ([]Namespace, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spaces), nil
}

// choose sets what happens to the namespace's pods while the provider does not respond.
func (r *realHome) choose(loss peering.Loss) {
	r.mu.Lock()
	r.spaces[0].Loss = loss
	r.mu.Unlock()
	r.node.NamespacesChanged()
}

// tolerates reports whether Kubernetes leaves a pod on a lost node for this long; 0 means indefinitely.
func (r *realHome) tolerates(name string, seconds int64) bool {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		i := slices.IndexFunc(r.pod(name).Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == key })
		if i < 0 {
			return false
		}
		if t := r.pod(name).Spec.Tolerations[i]; ptr.Deref(t.TolerationSeconds, 0) != seconds {
			return false
		}
	}
	return true
}

// chosen checks that pods, running ones included, stay on a lost node as their namespace chose, and
// that the agent may change nothing else of them.
func (r *realHome) chosen(name string) {
	r.t.Helper()
	r.until("a pod is kept on a node that is lost", func() bool { return r.tolerates(name, 0) })
	before := r.remote.applied()
	r.choose(peering.Loss{Action: peering.LossEvict, After: time.Minute})
	r.until("a pod is evicted from a node that is lost for a minute", func() bool { return r.tolerates(name, 60) })
	r.choose(peering.Loss{Action: peering.LossKeep})
	r.until("a pod is kept again", func() bool { return r.tolerates(name, 0) })
	if after := r.remote.applied(); after != before {
		r.t.Errorf("a change of tolerations was sent: %d objects were applied, %d before", after, before)
	}
	if p := r.pod(name); p.Status.Phase != corev1.PodRunning {
		r.t.Errorf("the pod is %s", p.Status.Phase)
	}
	for what, patch := range map[string]string{
		"a label": `{"metadata":{"labels":{"a":"b"}}}`, "an annotation": `{"metadata":{"annotations":{"a":"b"}}}`,
		"an image": `[{"op":"replace","path":"/spec/containers/0/image","value":"other"}]`, "a deadline": `{"spec":{"activeDeadlineSeconds":1}}`,
		"a finalizer": `{"metadata":{"finalizers":["example.com/hold"]}}`,
	} {
		kind := types.MergePatchType
		if patch[0] == '[' {
			kind = types.JSONPatchType
		}
		_, err := r.agent.CoreV1().Pods("shop").Patch(r.t.Context(), name, kind, []byte(patch), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			r.t.Errorf("the agent may change %s of a pod at home: %v", what, err)
		}
	}
}

// until waits for something that has to come true.
func (r *realHome) until(what string, ok func() bool) {
	r.t.Helper()
	waittest.Eventually(r.t, what, ok)
}

func (r *realHome) pod(name string) *corev1.Pod {
	r.t.Helper()
	pod, err := r.owner.CoreV1().Pods("shop").Get(r.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return pod
}

func (r *realHome) bind(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	r.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{
		NodeName: "office.entente.dev", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Tolerations: tolerated(),
	}}
	for _, f := range change {
		f(pod)
	}
	pod, err := r.owner.CoreV1().Pods("shop").Create(r.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod
}

func (r *realHome) office() *corev1.Node {
	r.t.Helper()
	node, err := r.owner.CoreV1().Nodes().Get(r.t.Context(), "office.entente.dev", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return node
}

func TestOnARealAPIServer(t *testing.T) {
	r := newReal(t)
	ctx := t.Context()
	r.start()
	r.until("a node is there, not ready", func() bool { n := r.office(); return n != nil && readyOf(n).Reason == "PeerNotConnected" })
	r.remote.connect(true)
	r.until("the node is ready", func() bool { return readyOf(r.office()).Status == corev1.ConditionTrue })
	r.until("it has a lease", func() bool {
		_, err := r.owner.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "office.entente.dev", metav1.GetOptions{})
		return err == nil
	})

	web := r.bind("web")
	r.until("a pod runs", func() bool {
		p := r.pod("web")
		return p.Status.Phase == corev1.PodRunning && p.Status.PodIP == "10.241.0.7" && p.Status.HostIP == "10.1.2.3" && podstatus.Offloaded(p)
	})
	stale := r.pod("web").DeepCopy()
	stale.UID = "another"
	if err := r.node.patchStatus(ctx, stale, corev1.PodStatus{Phase: corev1.PodFailed}); err != nil || r.pod("web").Status.Phase != corev1.PodRunning {
		t.Errorf("the status of another UID was written, %v", err)
	}

	if _, err := r.owner.CoreV1().Secrets("shop").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "v"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.bind("reader", func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
	})
	r.until("a pod waits for the right to read Secrets", func() bool {
		return r.pod("reader").Status.Reason == reasonMissing && strings.Contains(r.pod("reader").Status.Message, "forbidden")
	})
	if _, err := r.owner.RbacV1().RoleBindings("shop").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "entente"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "entente-consumer-namespace"}, Subjects: []rbacv1.Subject{agentSubject()},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("it runs when there is a RoleBinding", func() bool { return r.pod("reader").Status.Phase == corev1.PodRunning })
	r.chosen("reader")
	r.until("there is an event of it", func() bool {
		list, err := r.owner.CoreV1().Events("shop").List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reasonMissing})
		return err == nil && len(list.Items) > 0
	})

	r.bind("stowaway", func(p *corev1.Pod) { p.Spec.Tolerations = nil })
	r.until("a pod that was bound by hand has an event that it is left alone", func() bool {
		list, err := r.owner.CoreV1().Events("shop").List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reasonNotTolerated})
		return err == nil && len(list.Items) == 1 && list.Items[0].InvolvedObject.Name == "stowaway"
	})
	if p := r.pod("stowaway"); len(p.Status.Conditions) > 0 || p.Status.Reason != "" {
		t.Errorf("its status is %+v", p.Status)
	}

	before := r.office()
	if err := r.owner.CoreV1().Nodes().Delete(ctx, "office.entente.dev", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("a deleted node is there again", func() bool {
		n := r.office()
		return n != nil && n.UID != before.UID && readyOf(n).Status == corev1.ConditionTrue && len(n.Spec.Taints) > 0
	})

	r.stop()
	r.start()
	r.remote.connect(true)
	r.until("everything is declared after a restart", func() (ready bool) { r.remote.locked(func() { ready = r.remote.ready }); return ready })
	r.remote.locked(func() {
		if len(r.remote.unwants)+len(r.remote.applies) > 0 {
			t.Errorf("a restart unwanted %v and applied %v", r.remote.unwants, r.remote.applies)
		}
		r.remote.linger = true
	})

	if err := r.owner.CoreV1().Pods("shop").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("the provider is asked to end a pod", func() (asked bool) {
		r.remote.locked(func() { asked = r.remote.ending[string(web.UID)] })
		return asked
	})
	if p := r.pod("web"); p == nil || p.DeletionTimestamp == nil {
		t.Error("the local pod did not wait for the remote one")
	}
	r.remote.lose(string(web.UID))
	r.until("the local pod is gone", func() bool { return r.pod("web") == nil })

	r.remote.locked(func() { r.remote.linger = false })
	r.bind("job", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/count"} })
	r.until("a pod with a finalizer runs", func() bool { return r.pod("job").Status.Phase == corev1.PodRunning })
	r.bind("stays", func(p *corev1.Pod) {
		p.Finalizers, p.Spec.HostNetwork = []string{"example.com/count"}, true
	})
	r.until("a pod cannot run elsewhere", func() bool { return r.pod("stays").Status.Reason == reasonNotOffloaded })
	if err := r.node.Drain(ctx, nil); err != nil {
		t.Error(err)
	}
	if p := r.pod("stays"); p == nil || p.Status.Phase != corev1.PodFailed || p.Status.Reason != reasonDeleted ||
		podstatus.Condition(p.Status.Conditions, corev1.DisruptionTarget) == nil {
		t.Error("after the drain the counted pod that never ran should have failed, by a disruption")
	}
	if p := r.pod("job"); p == nil || p.Status.Phase != corev1.PodFailed || r.pod("reader") != nil || !r.office().Spec.Unschedulable {
		t.Error("after the drain the counted pod should have failed, and the other be gone, on a cordoned node")
	}
	r.stop()
	if err := r.node.Remove(ctx); err != nil {
		t.Error(err)
	}
	if r.office() != nil {
		t.Error("the node is still there")
	}
}

// A real API server accepts the reduced form of a forged status, and the pod ends.
func TestForgedStatusesOnARealAPIServer(t *testing.T) {
	r := newReal(t)
	ctx := t.Context()
	r.start()
	defer func() { r.stop() }()
	r.remote.connect(true)
	job := r.bind("job", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	r.until("a pod runs", func() bool { return r.pod("job").Status.Phase == corev1.PodRunning })

	ended := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.200.0.7", ContainerStatuses: []corev1.ContainerStatus{
		{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}},
	}}
	r.remote.set(string(job.UID), ended)
	r.until("its container is terminated", func() bool {
		c := r.pod("job").Status.ContainerStatuses
		return len(c) == 1 && c[0].State.Terminated != nil
	})
	forged := *podstatustest.Forged(50)
	forged.InitContainerStatuses, forged.EphemeralContainerStatuses, forged.Message = nil, nil, "forged"
	forged.ContainerStatuses = forged.ContainerStatuses[:1]
	forged.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	r.remote.set(string(job.UID), forged)
	r.until("the reduced form of a forged status is shown", func() bool { return r.pod("job").Status.Message == "forged" })
	p := r.pod("job")
	if c := p.Status.ContainerStatuses[0]; c.Resources == nil || len(c.Resources.Requests)+len(c.Resources.Limits)+len(c.AllocatedResources) > 0 || c.State.Terminated == nil || len(p.Status.PodIPs) != 1 {
		t.Errorf("status is %+v", p.Status)
	}
	for i := range losses.Max {
		lost := r.bind(fmt.Sprint("lost-", i))
		r.until("a pod runs", func() bool { return r.pod(lost.Name).Status.Phase == corev1.PodRunning })
		r.remote.lose(string(lost.UID))
		r.until("it is lost", func() bool { return r.pod(lost.Name).Status.Phase == corev1.PodFailed })
	}
	r.until("the agent taints its node", func() bool { return slices.Contains(r.office().Spec.Taints, losingTaint()) })
	r.until("an event says why", func() bool {
		list, err := r.owner.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "reason=PodsLost,involvedObject.kind=Node"})
		return err == nil && len(list.Items) == 1
	})
	r.remote.locked(func() { r.remote.linger = true })
	if err := r.owner.CoreV1().Pods("shop").Delete(ctx, "job", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("the provider is asked to end it", func() (asked bool) {
		r.remote.locked(func() { asked = r.remote.ending[string(job.UID)] })
		return asked
	})
	r.remote.lose(string(job.UID))
	r.until("the pod is gone", func() bool { return r.pod("job") == nil })
}
