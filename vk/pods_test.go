package vk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/losses"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/podstatus/podstatustest"
	"github.com/entente-dev/entente/peering"
)

// home is a home cluster with a virtual node, inside a synctest bubble: time
// passes at once.
type home struct {
	t      *testing.T
	client *fake.Clientset
	remote *provider
	node   *Node
	stop   func()

	mu     sync.Mutex
	spaces []Namespace
	err    error
	// undecided is why pods must not be sent yet, by their label app.
	undecided map[string]string
	looks     int // how often the namespaces were asked for
}

// atHome runs a test in a home cluster in which namespace shop is offloaded to a
// provider that can be reached.
func atHome(t *testing.T, test func(h *home)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		h.start()
		h.remote.connect(true)
		h.second()
		test(h)
		h.stop()
	})
}

func newHome(t *testing.T) *home {
	return &home{
		t: t, remote: newProvider(),
		client: fake.NewSimpleClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "ns-1"}}),
		spaces: []Namespace{{Name: "shop", UID: "ns-1", Mapping: "Suffixed"}},
	}
}

// start begins a process of the agent; its stop ends it.
func (h *home) start() {
	h.t.Helper()
	node, err := New(Config{
		Name: "office", Contract: "c-1", Peer: "peerpeerpeerpeerpeerpeerpeerpeer", Client: h.client, Mirror: h.remote, Streams: h.remote,
		Resources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}, Version: "v1.37.2-entente", Address: netip.MustParseAddr("10.1.2.3"),
		Labels:      map[string]string{corev1.LabelArchStable: "arm64", "kubernetes.io/hostname": "evil", "example.com/gpu": "a100"},
		TranslateIP: podstatustest.Translate,
		Namespaces: func() ([]Namespace, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.looks++
			return append([]Namespace(nil), h.spaces...), h.err
		},
		Undecided: func(_ string, labels map[string]string) string {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.undecided[labels["app"]]
		},
		Logger: slog.New(slog.NewTextHandler(h.t.Output(), nil)),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.node = node
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	mirror := h.remote.attach(node)
	wg.Go(func() { mirror(ctx) })
	wg.Go(func() {
		if err := node.Run(ctx); err != nil {
			h.t.Error(err)
		}
	})
	h.stop = func() {
		cancel()
		wg.Wait()
		synctest.Wait()
	}
	h.second()
}

// second lets a second pass.
func (h *home) second() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (h *home) offload(spaces ...Namespace) {
	h.mu.Lock()
	h.spaces = spaces
	h.mu.Unlock()
	h.node.NamespacesChanged()
	h.second()
}

// tolerated lets a pod onto a virtual node: the scheduler puts no other there.
func tolerated() []corev1.Toleration {
	return []corev1.Toleration{{Key: api.TaintVirtualNode, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
}

// bind makes a pod that the scheduler put on the virtual node.
func (h *home) bind(uid, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	h.t.Helper()
	grace := int64(30)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: "office", Tolerations: tolerated(), Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: &grace},
		Status:     corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}},
	}
	for _, f := range change {
		f(pod)
	}
	if _, err := h.client.CoreV1().Pods(pod.Namespace).Create(h.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.second()
	return pod
}

func (h *home) pod(name string) *corev1.Pod {
	h.t.Helper()
	pod, err := h.client.CoreV1().Pods("shop").Get(h.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return pod
}

// mark does what a DELETE does to a pod that has a grace period.
func (h *home) mark(name string, grace int64) {
	h.t.Helper()
	pod := h.pod(name).DeepCopy()
	now := metav1.Now()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	if _, err := h.client.CoreV1().Pods("shop").Update(h.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.second()
}

// force does what a DELETE with --force does.
func (h *home) force(name string) {
	h.t.Helper()
	if err := h.client.CoreV1().Pods("shop").Delete(h.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.second()
}

func (h *home) wantPhase(name string, phase corev1.PodPhase, reason string) *corev1.Pod {
	h.t.Helper()
	pod := h.pod(name)
	if pod == nil {
		h.t.Fatalf("pod %s is not there", name)
	}
	if pod.Status.Phase != phase || pod.Status.Reason != reason {
		h.t.Errorf("pod %s is %s %q (%s), want %s %q", name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message, phase, reason)
	}
	return pod
}

func (h *home) event(reason string) string {
	h.t.Helper()
	list, err := h.client.CoreV1().Events("shop").List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == reason {
			return e.Message
		}
	}
	return ""
}

func TestAPodCrossesAndItsStatusComesBack(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		pod := h.wantPhase("web", corev1.PodRunning, "")
		if pod.Status.PodIP != "10.241.0.7" || pod.Status.HostIP != "10.1.2.3" || !podstatus.Offloaded(pod) {
			t.Errorf("status is %+v, want the pod's address in home terms and Offloaded", pod.Status)
		}
		if c := podstatus.Condition(pod.Status.Conditions, corev1.PodScheduled); c == nil {
			t.Error("PodScheduled was lost")
		}
		h.remote.set("u1", corev1.PodStatus{Phase: corev1.PodSucceeded})
		h.second()
		h.wantPhase("web", corev1.PodSucceeded, "")
	})
}

func TestARestartWithTwentyPodsChangesNothing(t *testing.T) {
	atHome(t, func(h *home) {
		for i := range 20 {
			h.bind(fmt.Sprintf("u%d", i), fmt.Sprintf("web-%d", i))
		}
		before, _ := h.client.CoreV1().Pods("shop").List(h.t.Context(), metav1.ListOptions{})
		h.stop()
		h.client.ClearActions()
		h.start()
		h.remote.connect(true)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		h.remote.locked(func() {
			if len(h.remote.unwants)+len(h.remote.deletes)+len(h.remote.applies) > 0 {
				t.Errorf("after the restart: unwanted %v, deleted %v, applied %v; want nothing", h.remote.unwants, h.remote.deletes, h.remote.applies)
			}
			if len(h.remote.wants) != 21 {
				t.Errorf("%d objects are wanted, want 20 pods and their namespace", len(h.remote.wants))
			}
			for uid, times := range h.remote.created {
				if times != 1 {
					t.Errorf("pod %s was made %d times", uid, times)
				}
			}
		})
		after, _ := h.client.CoreV1().Pods("shop").List(h.t.Context(), metav1.ListOptions{})
		for i := range before.Items {
			if before.Items[i].UID != after.Items[i].UID || after.Items[i].Status.Phase != corev1.PodRunning {
				t.Errorf("pod %s changed", before.Items[i].Name)
			}
		}
		for _, a := range h.client.Actions() {
			if a.GetResource().Resource == "pods" && (a.GetVerb() == "patch" || a.GetVerb() == "delete") {
				t.Errorf("after the restart: %s of a pod", a.GetVerb())
			}
		}
	})
}

func TestManyPodsDoNotWaitForEachOther(t *testing.T) {
	atHome(t, func(h *home) {
		for i := range 500 {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("u", i))},
				Spec:       corev1.PodSpec{NodeName: "office", Tolerations: tolerated(), Containers: []corev1.Container{{Name: "c"}}},
			}
			if err := h.client.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
			if i%20 == 0 {
				synctest.Wait() // the fake's watches have small buffers; no time passes
			}
		}
		h.second() // a second, in which a bucket of 10 a second would let 110 pass
		list, err := h.client.CoreV1().Pods("shop").List(h.t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		running := 0
		for i := range list.Items {
			if list.Items[i].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != 500 {
			t.Errorf("%d of 500 pods run after a second", running)
		}
	})
}

func TestPodsAreNotDeletedBeforeTheCacheIsSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "gone", UID: "u"}
		h.remote.held[ref] = peering.Object{Ref: ref}
		h.err = errors.New("the cache of NamespaceOffloadings is cold")
		h.start()
		h.remote.connect(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if h.node.Orphan(h.t.Context(), peering.Held{Ref: ref}) || !h.remote.holds("u") {
			t.Error("an orphan may go though not everything is known")
		}
		h.mu.Lock()
		h.err = nil
		h.mu.Unlock()
		time.Sleep(2 * time.Second)
		h.remote.poke()
		h.second()
		if h.remote.holds("u") {
			t.Error("the orphan stays though the API server says that its pod is gone")
		}
		h.stop()
	})
}

func TestAbsenceFromTheCacheDoesNotProveAnEnd(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		if err := h.node.pods.GetStore().Delete(h.pod("web")); err != nil {
			t.Fatal(err)
		}
		h.node.podQueue.Add("u1")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: "u1"}
		if h.node.Orphan(h.t.Context(), peering.Held{Ref: ref}) {
			t.Error("a pod that is in the API may go")
		}
		h.remote.locked(func() {
			if len(h.remote.unwants) > 0 || len(h.remote.deletes) > 0 {
				t.Errorf("unwanted %v, deleted %v because of a hole in the cache", h.remote.unwants, h.remote.deletes)
			}
		})
	})
}

func TestADeletedPodEndsAtTheProviderFirst(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.remote.locked(func() { h.remote.linger = true })
		h.mark("web", 30)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if h.pod("web") == nil {
			t.Fatal("the local pod is gone while the remote one runs")
		}
		h.remote.locked(func() {
			if g := h.remote.graces[h.remote.unwants[0]]; len(h.remote.unwants) != 1 || g != 30 {
				t.Errorf("unwanted %v with grace %d, want once with 30", h.remote.unwants, g)
			}
		})
		h.mark("web", 5)
		h.remote.locked(func() {
			if g := h.remote.graces[h.remote.unwants[0]]; g != 5 {
				t.Errorf("a shorter grace period did not cross: %d", g)
			}
		})
		h.remote.lose("u1")
		h.second()
		if pod := h.pod("web"); pod != nil {
			t.Errorf("the local pod is still there, %s %s", pod.Status.Phase, pod.Status.Reason)
		}
	})
}

func TestAPodWithAFinalizerIsTerminalBeforeItGoes(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "job", func(p *corev1.Pod) { p.Finalizers = []string{"batch.kubernetes.io/job-tracking"} })
		var phase corev1.PodPhase
		h.client.PrependReactor("delete", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			obj, err := h.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "shop", "job")
			if pod, ok := obj.(*corev1.Pod); ok && err == nil {
				phase = pod.Status.Phase
			}
			return false, nil, nil
		})
		h.mark("job", 30)
		if phase != corev1.PodFailed {
			t.Errorf("the pod was %q when it was deleted, want Failed: its owner decides by that", phase)
		}
	})
}

func TestAPodCreatedAgainUnderItsNameIsAnotherPod(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "db-0")
		h.mark("db-0", 1)
		if h.pod("db-0") != nil {
			t.Fatal("the first pod is still there")
		}
		h.bind("u2", "db-0")
		h.wantPhase("db-0", corev1.PodRunning, "")
		if h.remote.holds("u1") || !h.remote.holds("u2") {
			t.Error("the provider should hold the second pod and not the first")
		}
	})
}

func TestAPodCreatedAgainUnseenIsAnotherPod(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "db-0")
		second := h.pod("db-0").DeepCopy()
		second.UID, second.Status = "u2", corev1.PodStatus{Phase: corev1.PodPending}
		// To the watch this is an update.
		if _, err := h.client.CoreV1().Pods("shop").Update(h.t.Context(), second, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		h.second()
		h.wantPhase("db-0", corev1.PodRunning, "")
		if h.remote.holds("u1") || !h.remote.holds("u2") {
			t.Error("the provider should hold the second pod and not the first")
		}
	})
}

func TestAForcedDeleteWhileThePeerIsLost(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			atHome(t, func(h *home) {
				h.bind("u1", "web")
				h.bind("u2", "other")
				h.remote.connect(false)
				h.second()
				h.mark("web", 30)
				if h.pod("web") == nil {
					t.Fatal("the pod went without word from the provider")
				}
				h.force("web")
				if !h.remote.holds("u1") {
					t.Fatal("the provider cannot know yet")
				}
				if restart {
					h.stop()
					h.start()
				}
				h.remote.connect(true)
				h.second()
				if h.remote.holds("u1") || !h.remote.holds("u2") {
					t.Error("after the reconnect the provider should hold the other pod only")
				}
			})
		})
	}
}

// deletesGracefully has the API server delete pods as a real one: one on a node stays, unless it is deleted without a
// grace period, and that only becomes shorter.
func (h *home) deletesGracefully() {
	h.client.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		d := a.(k8stesting.DeleteActionImpl)
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		obj, err := h.client.Tracker().Get(pods, d.Namespace, d.Name)
		if err != nil {
			return true, nil, err
		}
		pod := obj.(*corev1.Pod).DeepCopy()
		if u := d.DeleteOptions.Preconditions; u == nil || *u.UID != pod.UID {
			h.t.Errorf("deleted with %+v, want the UID as a precondition", d.DeleteOptions)
		}
		grace := ptr.Deref(d.DeleteOptions.GracePeriodSeconds, *pod.Spec.TerminationGracePeriodSeconds)
		if grace == 0 || pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds <= grace {
			return grace != 0, nil, nil
		}
		now := metav1.Now()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
		return true, nil, h.client.Tracker().Update(pods, pod, d.Namespace)
	})
}

// ownedBy gives a pod a controller, and the restart policy of its pods.
func ownedBy(kind string, policy corev1.RestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: kind, Name: "web", UID: "owner", Controller: new(true)}}
		p.Spec.RestartPolicy = policy
	}
}

// A pod that may complete, that the provider's cluster deletes and that nobody ends there, as on a dead node, is
// deleted at home: its owner makes another, and only another. It is there until it is gone at the provider.
func TestAPodThatDoesNotEndAtTheProviderIsDeletedForItsOwner(t *testing.T) {
	owned := ownedBy("Job", corev1.RestartPolicyNever)
	atHome(t, func(h *home) {
		h.deletesGracefully()
		h.bind("u1", "web", owned)
		h.bind("u2", "alone")
		h.bind("u3", "fine", owned)
		h.remote.locked(func() { h.remote.linger = true })
		for _, uid := range []string{"u1", "u2"} {
			h.remote.locked(func() { h.remote.deleting[uid] = "2026-01-02T03:04:05Z" })
			h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodRunning})
		}
		h.second()
		if h.event(podstatus.ReasonRemoteDeleting) == "" {
			t.Error("no event says that the provider deletes the pod")
		}
		h.remote.connect(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if pod := h.pod("web"); pod.DeletionTimestamp != nil {
			t.Error("a pod is deleted while the provider does not respond")
		}
		h.stop()
		h.start()
		h.remote.connect(true)
		time.Sleep(30*time.Second + stuckAfter/2)
		synctest.Wait()
		if pod := h.pod("web"); pod.DeletionTimestamp != nil {
			t.Error("a pod is deleted too early")
		}
		time.Sleep(stuckAfter)
		synctest.Wait()
		if pod := h.pod("web"); pod == nil || pod.DeletionTimestamp == nil {
			t.Fatalf("a pod that does not end at the provider: %+v, want one that is being deleted", pod)
		}
		if h.event(reasonRemoteStuck) == "" {
			t.Error("no event says why the pod is deleted")
		}
		for _, name := range []string{"alone", "fine"} {
			if pod := h.pod(name); pod == nil || pod.DeletionTimestamp != nil {
				t.Errorf("%s: %+v, want it to stay", name, pod)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if h.pod("web") == nil {
			t.Error("the pod is gone though nobody knows that it ended")
		}
		h.remote.lose("u1")
		h.remote.lose("u2")
		h.second()
		if pod := h.pod("web"); pod != nil {
			t.Errorf("the pod is still there: %+v", pod.Status)
		}
		h.wantPhase("alone", corev1.PodFailed, reasonRemoteGone)
	})
}

func TestAPodThatIsGoneUnaskedFailsAndIsNotRunAgain(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.remote.lose("u1")
		h.second()
		h.wantPhase("web", corev1.PodFailed, reasonRemoteGone)
		h.stop()
		h.start()
		h.remote.connect(true)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		h.remote.locked(func() {
			if h.remote.created["u1"] != 1 {
				t.Errorf("the pod was made %d times", h.remote.created["u1"])
			}
		})
	})
}

// unsee takes a pod out of the node's cache and memory: of a process that began when its API server was behind.
func (h *home) unsee(name string) {
	h.t.Helper()
	pod := h.pod(name)
	if err := h.node.pods.GetStore().Delete(pod); err != nil {
		h.t.Fatal(err)
	}
	h.node.mu.Lock()
	delete(h.node.state, string(pod.UID))
	h.node.mu.Unlock()
}

// see has a pod come into the node's cache.
func (h *home) see(name string) {
	h.t.Helper()
	pod := h.pod(name).DeepCopy()
	pod.Annotations = map[string]string{"example.com/seen": "now"}
	if _, err := h.client.CoreV1().Pods("shop").Update(h.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.second()
}

// A provider sends each status once. It may come before the pod is in the cache.
func TestAStatusThatComesBeforeItsPodIsShown(t *testing.T) {
	for name, come := range map[string]func(h *home, ref peering.ObjectRef){
		"of a pod that is there": func(h *home, ref peering.ObjectRef) {
			h.remote.set(ref.UID, corev1.PodStatus{Phase: corev1.PodSucceeded})
		},
		"of a pod that is gone": func(h *home, ref peering.ObjectRef) {
			h.remote.locked(func() { delete(h.remote.held, ref) })
			h.node.PodStatus(peering.PodStatus{Ref: ref, Status: []byte(`{"phase":"Succeeded"}`), Gone: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				ref := podRef(h.bind("u1", "web"))
				h.unsee("web")
				come(h, ref)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				h.wantPhase("web", corev1.PodRunning, "")
				h.see("web")
				h.wantPhase("web", corev1.PodSucceeded, "")
				h.node.mu.Lock()
				defer h.node.mu.Unlock()
				if n := len(h.node.unknown.sizes); n != 0 || h.node.unknown.bytes != 0 {
					t.Errorf("%d pods of %d bytes are not known, though all are", n, h.node.unknown.bytes)
				}
			})
		})
	}
}

func TestALargeStatusThatComesBeforeTheCacheIsSyncedIsShown(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.stop()
		var answers atomic.Bool
		h.client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			return !answers.Load(), nil, errors.New("the API server does not answer yet")
		})
		h.start()
		status := corev1.PodStatus{Phase: corev1.PodSucceeded}
		for i := range 40 {
			status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: fmt.Sprint("c", i), Image: strings.Repeat("i", 1024)})
		}
		h.remote.locked(func() { h.remote.status["u1"] = status })
		h.remote.connect(true)
		h.second()
		answers.Store(true)
		time.Sleep(time.Minute)
		h.second()
		h.wantPhase("web", corev1.PodSucceeded, "")
	})
}

func TestAPodThatTheProviderLostMeanwhileIsNotRunAgain(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.stop()
		h.remote.locked(func() { clear(h.remote.held); clear(h.remote.created) })
		h.start()
		h.remote.connect(true)
		h.second()
		h.wantPhase("web", corev1.PodFailed, reasonRemoteGone)
		h.remote.locked(func() {
			if len(h.remote.created) > 0 {
				t.Error("it was run a second time")
			}
		})
	})
}

// For a pod that went unasked, the provider keeps how it ended, and the mirror the wanted object, until home
// no longer has the pod.
func TestAPodThatIsGoneIsUnwantedWhenItIsDeleted(t *testing.T) {
	for name, remove := range map[string]func(h *home){
		"with a grace period": func(h *home) { h.mark("web", 30) },
		"by force":            func(h *home) { h.force("web") },
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				ref := podRef(h.bind("u1", "web"))
				h.remote.lose("u1")
				h.second()
				h.wantPhase("web", corev1.PodFailed, reasonRemoteGone)
				remove(h)
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				if h.pod("web") != nil {
					t.Error("the pod is there still")
				}
				h.remote.locked(func() {
					if diff := cmp.Diff([]peering.ObjectRef{ref}, h.remote.unwants); diff != "" {
						t.Errorf("unwanted (-want +got):\n%s", diff)
					}
				})
				h.node.mu.Lock()
				defer h.node.mu.Unlock()
				if len(h.node.state) != 0 {
					t.Errorf("%d pods are remembered", len(h.node.state))
				}
			})
		})
	}
}

func TestEndedPodsAreNeverRunAgain(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "batch")
		h.remote.set("u1", corev1.PodStatus{Phase: corev1.PodSucceeded})
		h.second()
		for range 2 {
			// The provider forgets all about it.
			h.remote.connect(false)
			h.second()
			h.remote.locked(func() { clear(h.remote.held); clear(h.remote.created) })
			h.remote.connect(true)
			h.second()
			h.wantPhase("batch", corev1.PodSucceeded, "")
			h.remote.locked(func() {
				if len(h.remote.created) > 0 {
					t.Error("it was run a second time")
				}
			})
			h.stop()
			h.start()
		}
	})
}

func TestPodShowsWhyItsNamespaceIsRefused(t *testing.T) {
	atHome(t, func(h *home) {
		h.remote.refuse = func(o peering.Object) *peering.Refusal {
			if o.Ref.Kind == peering.KindNamespace {
				return &peering.Refusal{Reason: peering.RefusedNamespace, Message: "it may not keep its name", Retryable: true}
			}
			return &peering.Refusal{Reason: peering.RefusedNamespace, Message: "the namespace is not here yet", Retryable: true}
		}
		h.offload(Namespace{Name: "shop", UID: "ns-2", Mapping: "Same"})
		h.second()
		h.bind("u1", "web")
		h.second()
		h.wantPhase("web", corev1.PodPending, "NamespaceRefused")
		if m := h.pod("web").Status.Message; !strings.Contains(m, "keep its name") {
			t.Errorf("the status says %q", m)
		}
		h.remote.locked(func() { h.remote.refuse = nil })
		h.remote.retry()
		h.second()
		h.wantPhase("web", corev1.PodRunning, "")
	})
}

func TestPodsOfALocalNamespaceStay(t *testing.T) {
	atHome(t, func(h *home) {
		local := Namespace{Name: "shop", UID: "ns-1", Mapping: "Suffixed", PodsStay: true}
		h.bind("u0", "before")
		h.second()
		h.offload(local)
		h.bind("u1", "web")
		h.second()
		h.wantPhase("web", corev1.PodPending, podstatus.ReasonNotApplicable)
		if m := h.pod("web").Status.Message; !strings.Contains(m, "podStrategy Local") || h.remote.holds("u1") {
			t.Errorf("the status says %q; the provider has the pod: %t", m, h.remote.holds("u1"))
		}
		if !h.remote.holds("ns-1") || !h.remote.holds("u0") {
			t.Error("the namespace, or a pod that ran before, is gone from the provider")
		}
		local.PodsStay = false
		h.offload(local)
		h.second()
		h.wantPhase("web", corev1.PodRunning, "")
	})
}

func TestARefusalIsShownAndOvercome(t *testing.T) {
	atHome(t, func(h *home) {
		h.remote.refuse = func(o peering.Object) *peering.Refusal {
			if o.Ref.Kind != peering.KindPod {
				return nil
			}
			return &peering.Refusal{Reason: peering.RefusedQuota, Message: "2 CPUs are asked, 1 is left; ask for more", Retryable: true}
		}
		h.bind("u1", "web")
		h.wantPhase("web", corev1.PodPending, "QuotaExceeded")
		if m := h.event("QuotaExceeded"); !strings.Contains(m, "ask for more") {
			t.Errorf("the event says %q", m)
		}
		h.remote.locked(func() { h.remote.refuse = nil })
		h.remote.retry()
		h.second()
		h.wantPhase("web", corev1.PodRunning, "")
	})
}

// A mirror drops objects for which it has no room. Nothing at home changes when it has room again.
func TestObjectsRefusedForRoomAreWantedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		const words = "a contract has at most 20000 objects"
		full, asked := true, map[peering.Kind]int{}
		h.remote.bar = func(o peering.Object) *peering.Refusal {
			asked[o.Ref.Kind]++
			if full {
				return &peering.Refusal{Reason: peering.RefusedQuota, Retryable: true, Message: words}
			}
			return nil
		}
		for _, o := range []runtime.Object{
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings", UID: "cm"}},
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "svc"}},
		} {
			if err := h.client.Tracker().Add(o); err != nil {
				t.Fatal(err)
			}
		}
		h.start()
		h.remote.connect(true)
		h.bind("u1", "web", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
			}}}
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		h.wantPhase("web", corev1.PodPending, "QuotaExceeded")
		if m := h.event("QuotaExceeded"); !strings.Contains(m, words) {
			t.Errorf("the event says %q", m)
		}
		h.remote.locked(func() {
			full = false
			for kind, times := range asked {
				if times < 3 || times > 15 {
					t.Errorf("a %s was wanted %d times in 10 minutes", kind, times)
				}
			}
			if len(asked) != 4 {
				t.Errorf("%d kinds were wanted, want a namespace, a ConfigMap, a Service and a pod", len(asked))
			}
		})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for _, uid := range []string{"ns-1", "cm", "svc", "u1"} {
			if !h.remote.holds(uid) {
				t.Errorf("%s did not cross though there is room", uid)
			}
		}
		h.wantPhase("web", corev1.PodRunning, "")
		h.stop()
	})
}

func TestARefusedPodCanBeDeleted(t *testing.T) {
	atHome(t, func(h *home) {
		h.remote.refuse = func(o peering.Object) *peering.Refusal {
			return &peering.Refusal{Reason: peering.RefusedPodSecurity, Message: "privileged"}
		}
		h.bind("u1", "web")
		h.wantPhase("web", corev1.PodPending, "PodSecurity")
		h.mark("web", 30)
		if h.pod("web") != nil {
			t.Error("the pod is still there")
		}
	})
}

// Owners count a pod with a finalizer of theirs once its phase is final, and keep it until then. A kubelet makes that of
// any pod that is deleted, even of one that it never started.
func TestADeletedPodThatNeverCrossedIsFailedWhereAFinalizerKeepsIt(t *testing.T) {
	refuse := func(h *home) {
		h.remote.locked(func() {
			h.remote.refuse = func(o peering.Object) *peering.Refusal {
				if o.Ref.Kind != peering.KindPod {
					return nil
				}
				return &peering.Refusal{Reason: peering.RefusedQuota, Message: "1 CPU is left", Retryable: true}
			}
		})
	}
	lose := func(h *home) { h.remote.connect(false); h.second() }
	find := func(h *home) { h.remote.connect(true); h.second() }
	hostNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	for name, tc := range map[string]struct {
		before func(h *home)
		change func(*corev1.Pod)
		then   func(h *home) // after the pod is bound
		after  func(h *home) // after it is deleted
		why    string
	}{
		"refused":             {before: refuse, why: "QuotaExceeded: 1 CPU is left"},
		"waiting":             {change: withConfigMap("cm", false), why: `MandatoryConfigMapNotFound: ConfigMap "cm" is not there`},
		"held":                {before: func(h *home) { h.churn(0, losses.Max, h.remote.lose) }, why: reasonLosingPods + ": the provider took pods"},
		"not offloadable":     {change: hostNetwork, why: reasonNotOffloaded + ": this pod cannot run in another cluster: spec.hostNetwork"},
		"not offloaded":       {before: func(h *home) { h.offload() }, why: podstatus.ReasonNotApplicable + ": namespace shop is not offloaded"},
		"offloaded no more":   {before: refuse, then: func(h *home) { h.offload() }, why: "QuotaExceeded: 1 CPU is left"},
		"a peer that is lost": {before: lose, change: hostNetwork, why: reasonNotOffloaded + ": this pod cannot run in another cluster: spec.hostNetwork"},
		"a peer that returns": {before: lose, after: find},
		"lost while refused":  {before: refuse, then: lose, after: find, why: "QuotaExceeded: 1 CPU is left"},
		"after a restart":     {before: refuse, then: func(h *home) { h.stop(); h.start(); h.remote.connect(true); h.second() }, why: "QuotaExceeded: 1 CPU is left"},
		"over a restart":      {change: hostNetwork, after: func(h *home) { h.stop(); h.start() }, why: reasonNotOffloaded + ": this pod cannot run in another cluster: spec.hostNetwork"},
		"fenced while waiting": {
			before: func(h *home) { h.offload(fencedShop(0)); h.node.Asked() }, change: withConfigMap("cm", false), then: lose,
			after: func(h *home) { h.after(fenceWait + time.Second) }, why: `MandatoryConfigMapNotFound: ConfigMap "cm" is not there`,
		},
	} {
		for _, grace := range []int64{30, 0} {
			t.Run(fmt.Sprintf("%s, grace %d", name, grace), func(t *testing.T) {
				atHome(t, func(h *home) {
					do := func(f func(h *home)) {
						if f != nil {
							f(h)
						}
					}
					do(tc.before)
					h.bind("u1", "job", func(p *corev1.Pod) {
						p.Finalizers, p.Spec.RestartPolicy = []string{"batch.kubernetes.io/job-tracking"}, corev1.RestartPolicyNever
						if tc.change != nil {
							tc.change(p)
						}
					})
					do(tc.then)
					// The API server keeps it for its finalizer.
					deletes := 0
					h.client.PrependReactor("delete", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
						deletes++
						return true, nil, nil
					})
					h.mark("job", grace)
					do(tc.after)
					pod := h.wantPhase("job", corev1.PodFailed, reasonDeleted)
					want := notTaken
					if tc.why != "" {
						want += "; last it waited with " + tc.why
					}
					if !strings.HasPrefix(pod.Status.Message, want) {
						t.Errorf("the message is %q, want %q", pod.Status.Message, want)
					}
					if podstatus.Offloaded(pod) || podstatus.Condition(pod.Status.Conditions, corev1.DisruptionTarget) != nil {
						t.Errorf("the conditions are %+v", pod.Status.Conditions)
					}
					if deletes == 0 && grace > 0 || deletes > 0 && grace == 0 {
						t.Errorf("the pod was deleted %d times", deletes)
					}
					h.client.ClearActions()
					h.after(10 * time.Minute)
					for _, a := range h.client.Actions() {
						if a.GetResource().Resource == "pods" && a.GetVerb() == "patch" {
							t.Error("its status is written again")
						}
					}
				})
			})
		}
	}
}

// A DaemonSet has one event that its pods are not run on virtual nodes, however many there are and were.
func TestADaemonSetIsToldOnceThatItsPodsAreNotRun(t *testing.T) {
	atHome(t, func(h *home) {
		h.offload()
		h.client.ClearActions()
		for i := range 3 {
			name := fmt.Sprint("ds-", i)
			h.bind(fmt.Sprint("u", i+1), name, func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "ds", UID: "set", Controller: new(true)}}
			})
			h.wantPhase(name, corev1.PodPending, podstatus.ReasonNotApplicable)
		}
		h.after(time.Minute)
		told := 0
		for _, a := range h.client.Actions() {
			if c, ok := a.(k8stesting.CreateAction); ok && a.GetResource().Resource == "events" {
				e := c.GetObject().(*corev1.Event)
				if e.InvolvedObject.Kind != "DaemonSet" || e.InvolvedObject.UID != "set" || e.Reason != "NotOnVirtualNodes" {
					t.Errorf("an event of %s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason)
				}
				told++
			}
		}
		if told != 1 {
			t.Errorf("%d events, want one", told)
		}
	})
}

func TestAForeignPodIsNotApplicable(t *testing.T) {
	atHome(t, func(h *home) {
		h.offload()
		h.bind("u1", "ds", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "ds", Controller: new(true)}}
		})
		ds := h.wantPhase("ds", corev1.PodPending, podstatus.ReasonNotApplicable)
		// A rolling update waits for pods that are not ready, on all nodes.
		if c := podstatus.Condition(ds.Status.Conditions, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue || c.Reason != podstatus.ReasonNotApplicable || ds.Status.PodIP != "" {
			t.Errorf("its DaemonSet waits for ever: %+v", ds.Status)
		}
		h.bind("u9", "unscheduled")
		if c := podstatus.Condition(h.wantPhase("unscheduled", corev1.PodPending, podstatus.ReasonNotApplicable).Status.Conditions, corev1.PodReady); c != nil {
			t.Errorf("a pod that is not of a DaemonSet is called Ready=%s", c.Status)
		}
		h.client.ClearActions()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, a := range h.client.Actions() {
			if a.GetResource().Resource == "pods" && a.GetVerb() != "watch" && a.GetVerb() != "list" {
				t.Errorf("a foreign pod keeps us busy: %s", a.GetVerb())
			}
		}
		h.remote.locked(func() {
			for ref := range h.remote.wants {
				t.Errorf("%s is wanted", ref)
			}
		})
		h.mark("ds", 30)
		if h.pod("ds") != nil {
			t.Error("a foreign pod cannot be deleted")
		}
	})
}

func TestAPodOfAnotherNodeIsIgnored(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web", func(p *corev1.Pod) { p.Spec.NodeName = "real" })
		h.wantPhase("web", corev1.PodPending, "")
		if h.remote.holds("u1") {
			t.Error("a pod of another node crossed")
		}
	})
}

func TestRunningPodsSurviveTheEndOfOffloading(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "old")
		h.offload()
		h.bind("u2", "new")
		h.wantPhase("old", corev1.PodRunning, "")
		h.wantPhase("new", corev1.PodPending, podstatus.ReasonNotApplicable)
		h.stop()
		h.start()
		h.remote.connect(true)
		h.second()
		if !h.remote.holds("u1") || !h.remote.holds("ns-1") {
			t.Error("after a restart the running pod or its namespace went")
		}
		h.mark("old", 30)
		time.Sleep(2 * time.Minute)
		h.remote.poke()
		h.second()
		if h.remote.holds("u1") || h.remote.holds("ns-1") {
			t.Error("the namespace stays though nothing of it is left")
		}
	})
}

func withConfigMap(name string, optional bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional},
		}})
	}
}

func configMap(name, uid, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}, Data: map[string]string{"k": value}}
}

func TestAConfigMapCrossesAndFollowsChanges(t *testing.T) {
	atHome(t, func(h *home) {
		ctx, maps := h.t.Context(), h.client.CoreV1().ConfigMaps("shop")
		h.bind("u1", "web", withConfigMap("cm", false), withConfigMap("maybe", true))
		h.wantPhase("web", corev1.PodPending, "MandatoryConfigMapNotFound")
		if m := h.event("MandatoryConfigMapNotFound"); !strings.Contains(m, `ConfigMap "cm" is not there`) {
			t.Errorf("the event says %q", m)
		}
		if h.remote.holds("u1") {
			t.Fatal("the pod crossed without its ConfigMap")
		}
		must := func(_ *corev1.ConfigMap, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			h.second()
		}
		must(maps.Create(ctx, configMap("cm", "cm-1", "one"), metav1.CreateOptions{}))
		must(maps.Create(ctx, configMap("unused", "cm-9", "secret"), metav1.CreateOptions{}))
		h.wantPhase("web", corev1.PodRunning, "")
		if m := h.event("OptionalConfigMapNotFound"); !strings.Contains(m, `ConfigMap "maybe" is not there; the pod runs without it`) {
			t.Errorf("the event says %q", m)
		}
		value := func(uid string) (v string) {
			h.remote.locked(func() {
				for ref, o := range h.remote.held {
					if ref.UID == uid {
						var cm corev1.ConfigMap
						if err := json.Unmarshal(o.JSON, &cm); err != nil {
							t.Fatal(err)
						}
						v = cm.Data["k"]
					}
				}
			})
			return v
		}
		if value("cm-1") != "one" || h.remote.holds("cm-9") {
			t.Error("the ConfigMap that is referred to should cross, the other not")
		}
		must(maps.Update(ctx, configMap("cm", "cm-1", "two"), metav1.UpdateOptions{}))
		if v := value("cm-1"); v != "two" {
			t.Errorf("an update did not cross: %q", v)
		}
		must(maps.Create(ctx, configMap("maybe", "cm-2", "late"), metav1.CreateOptions{}))
		if v := value("cm-2"); v != "late" {
			t.Errorf("an optional ConfigMap that came later did not cross: %q", v)
		}
		// The same name with another UID is another object.
		if err := maps.Delete(ctx, "cm", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		must(maps.Create(ctx, configMap("cm", "cm-3", "three"), metav1.CreateOptions{}))
		h.remote.locked(func() {
			if len(h.remote.clashes) > 0 {
				t.Errorf("%v was wanted together with its successor", h.remote.clashes)
			}
		})
		if h.remote.holds("cm-1") || value("cm-3") != "three" {
			t.Error("the old ConfigMap stays, or the new one did not cross")
		}
		h.mark("web", 1)
		h.second()
		if h.remote.holds("cm-3") || h.remote.holds("cm-2") {
			t.Error("ConfigMaps stay at the provider though no pod refers to them")
		}
		h.wantWatches("shop", 4)
	})
}

func (h *home) wantWatches(namespace string, n int) {
	h.t.Helper()
	if got := len(h.node.informers(namespace)); got != n {
		h.t.Errorf("%d watches in namespace %s, want %d", got, namespace, n)
	}
}

func TestAServiceAccountTokenNeverCrosses(t *testing.T) {
	atHome(t, func(h *home) {
		token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "token", UID: "s-1"}, Type: corev1.SecretTypeServiceAccountToken}
		if _, err := h.client.CoreV1().Secrets("shop").Create(h.t.Context(), token, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.bind("u1", "web", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "token"}}}}
		})
		pod := h.wantPhase("web", corev1.PodPending, reasonMissing)
		if !strings.Contains(pod.Status.Message, "credential") || h.remote.holds("s-1") {
			t.Errorf("the status says %q", pod.Status.Message)
		}
	})
}

func TestSecretsThatMayNotBeReadYetAreNotFatal(t *testing.T) {
	atHome(t, func(h *home) {
		var mu sync.Mutex
		forbidden := true
		h.client.PrependReactor("list", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			if forbidden {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no RoleBinding yet"))
			}
			return false, nil, nil
		})
		h.bind("u1", "web", withConfigMap("maybe", true))
		h.second()
		pod := h.wantPhase("web", corev1.PodPending, reasonMissing)
		if !strings.Contains(pod.Status.Message, "not known yet") || !strings.Contains(pod.Status.Message, "forbidden") {
			t.Errorf("the status says %q", pod.Status.Message)
		}
		mu.Lock()
		forbidden = false
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		h.wantPhase("web", corev1.PodRunning, "")
	})
}

func TestAPodWaitsUntilItsNetworkPoliciesAreKnown(t *testing.T) {
	atHome(t, func(h *home) {
		decide := func(why string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.undecided = map[string]string{"web": why}
		}
		app := func(p *corev1.Pod) { p.Labels = map[string]string{"app": p.Name} }
		decide("the pods of this cluster are not known yet")
		h.bind("u1", "web", app)
		h.bind("u2", "other", app)
		h.after(3 * time.Second)
		h.wantPhase("other", corev1.PodRunning, "")
		pod := h.wantPhase("web", corev1.PodPending, reasonUndecided)
		if h.remote.holds("u1") || !strings.Contains(pod.Status.Message, "the pods of this cluster are not known yet") {
			t.Errorf("the pod was sent %t, its status says %q", h.remote.holds("u1"), pod.Status.Message)
		}

		// It is sent in the same instant.
		decide("")
		h.node.Decided()
		synctest.Wait()
		h.wantPhase("web", corev1.PodRunning, "")
		if n := len(h.node.waitsSince); n != 0 {
			t.Errorf("%d pods are remembered that do not wait any longer", n)
		}

		// What was sent does not wait again, not after a restart either.
		decide("the pods of this cluster are not known yet")
		h.stop()
		h.start()
		h.remote.connect(true)
		h.after(3 * time.Second)
		h.wantPhase("web", corev1.PodRunning, "")

		// A pod that goes while it waits is forgotten, and one whose turn nobody announces goes, too.
		h.bind("u3", "web-3", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
		h.bind("u4", "web-4", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
		h.second()
		h.force("web-3")
		decide("")
		h.after(2 * undecidedRetry)
		h.wantPhase("web-4", corev1.PodRunning, "")
		if n := len(h.node.waitsSince); n != 0 {
			t.Errorf("%d pods are remembered that do not wait any longer", n)
		}
	})
}

// wantPodsReady checks the Ready condition of all pods.
func (h *home) wantPodsReady(status corev1.ConditionStatus, reason string) {
	h.t.Helper()
	list, err := h.client.CoreV1().Pods("shop").List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	wrong := 0
	for i := range list.Items {
		if c := podstatus.Condition(list.Items[i].Status.Conditions, corev1.PodReady); c == nil || c.Status != status || c.Reason != reason {
			wrong++
		}
	}
	if wrong > 0 {
		h.t.Errorf("%d of %d pods are not Ready=%s %q", wrong, len(list.Items), status, reason)
	}
}

// after lets some time pass.
func (h *home) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestPodsOfALostPeerAreNotReadyUntilItIsBack(t *testing.T) {
	atHome(t, func(h *home) {
		const pods = 60 // the fake watch has a buffer for 100
		for i := range pods {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("u", i))},
				Spec:       corev1.PodSpec{NodeName: "office", Tolerations: tolerated(), Containers: []corev1.Container{{Name: "c"}}},
			}
			if err := h.client.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		h.second()
		before := h.pod("web-7").Status
		h.client.ClearActions()
		for range 3 {
			h.remote.connect(false)
			h.after(podLossGrace - time.Second)
			h.wantPodsReady(corev1.ConditionTrue, "")
			h.after(2 * time.Second)
			h.wantPodsReady(corev1.ConditionFalse, podstatus.ReasonPeerLost)
			h.after(10 * time.Minute)
			h.wantPodsReady(corev1.ConditionFalse, podstatus.ReasonPeerLost)
			h.remote.connect(true)
			h.second()
			h.wantPodsReady(corev1.ConditionTrue, "")
		}
		// Some are written twice where the cache is behind; to the API server that changes nothing.
		if writes, _ := h.written(); writes < 3*2*pods || writes > 3*3*pods {
			t.Errorf("%d statuses were written of %d pods that were lost and came back thrice", writes, pods)
		}
		if diff := cmp.Diff(before, h.pod("web-7").Status); diff != "" {
			t.Errorf("the status (-before +after):\n%s", diff)
		}
		h.remote.locked(func() {
			if len(h.remote.unwants) > 0 {
				t.Errorf("unwanted %v", h.remote.unwants)
			}
		})
	})
}

func TestPodsStayReadyForLongerWhileTheTunnelPassesTraffic(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.node.SetNetwork(Network{Wanted: true, Up: true, Known: true})
		h.remote.connect(false)
		h.after(podLossGraceTunnel - time.Second)
		h.wantPodsReady(corev1.ConditionTrue, "")
		h.after(2 * time.Second)
		h.wantPodsReady(corev1.ConditionFalse, podstatus.ReasonPeerLost)
		h.remote.connect(true)
		h.second()
		h.wantPodsReady(corev1.ConditionTrue, "")

		h.remote.connect(false)
		h.after(podLossGrace + time.Second)
		h.wantPodsReady(corev1.ConditionTrue, "")
		h.node.SetNetwork(Network{Wanted: true, Known: true, Reason: "ProbesLost"})
		h.second()
		h.wantPodsReady(corev1.ConditionFalse, podstatus.ReasonPeerLost)
	})
}

func TestPodsOfAPeerThatIsLostAtAStartAreNotReady(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.stop()
		h.start()
		h.after(15 * time.Second) // the agent was restarted, the peer may be there at once
		h.wantPodsReady(corev1.ConditionTrue, "")
		h.after(10 * time.Second)
		h.wantPodsReady(corev1.ConditionFalse, podstatus.ReasonPeerLost)
		h.remote.connect(true)
		h.second()
		h.wantPodsReady(corev1.ConditionTrue, "")
	})
}

func TestASilentPeerIsShownAsLostBeforeItsSessionEnds(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		since := time.Now()
		h.after(time.Second)
		h.node.SetSilence(since)
		h.after(500 * time.Millisecond)
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		h.after(time.Second)
		h.wantReady(corev1.ConditionFalse, "PeerLost")
		h.remote.connect(false) // the session ends for that
		h.second()
		h.wantReady(corev1.ConditionFalse, "PeerLost")
		h.after(podLossGrace - 3*time.Second)
		h.wantPodsReady(corev1.ConditionFalse, podstatus.ReasonPeerLost)
		h.remote.connect(true)
		h.second()
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		h.wantPodsReady(corev1.ConditionTrue, "")

		// It was only slow.
		h.node.SetSilence(time.Now())
		h.after(podLossGrace + time.Second)
		h.wantPodsReady(corev1.ConditionFalse, podstatus.ReasonPeerLost)
		h.node.SetSilence(time.Time{})
		h.second()
		h.wantReady(corev1.ConditionTrue, "PeerConnected")
		h.wantPodsReady(corev1.ConditionTrue, "")
	})
}

func TestARefusedStatusKeepsNoPod(t *testing.T) {
	for name, refused := range map[string]error{
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web", nil),
		"forbidden": apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("exceeded quota")),
		"too large": apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.client.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
					patch, ok := a.(k8stesting.PatchAction)
					return ok && strings.Contains(string(patch.GetPatch()), `"podIP"`), nil, refused
				})
				h.bind("u1", "web")
				pod := h.wantPhase("web", corev1.PodRunning, "")
				if c := podstatus.Condition(pod.Status.Conditions, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue || pod.Status.PodIP != "" {
					t.Errorf("the status is %+v, want phase and readiness and no more", pod.Status)
				}
				if h.event("InvalidStatus") == "" {
					t.Error("no event says so")
				}
				h.client.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
				h.mark("web", 30)
				h.second()
				if h.pod("web") != nil {
					t.Error("the pod stays")
				}
			})
		})
	}
}

// Kubernetes evicts a pod from a node that is lost after five minutes by default, and an agent may die at
// any moment. Where its tolerations are not the agent's to change it runs all the same.
func TestAPodCrossesOnceItSaysWhatItTolerates(t *testing.T) {
	for name, test := range map[string]struct {
		refusal error
		phase   corev1.PodPhase
	}{
		"the API server is away": {apierrors.NewServiceUnavailable("busy"), corev1.PodPending},
		"a policy forbids it":    {apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("tolerations are ours")), corev1.PodRunning},
		"by default":             {nil, corev1.PodRunning},
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				var relented atomic.Bool
				h.client.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
					patch, ok := a.(k8stesting.PatchAction)
					return test.refusal != nil && !relented.Load() && ok && strings.Contains(string(patch.GetPatch()), `"tolerations"`), nil, test.refusal
				})
				space := fencedShop(0)
				space.Loss = peering.Loss{Action: peering.LossKeep}
				h.offload(space)
				h.bind("u1", "web")
				h.second()
				if runs := h.pod("web").Status.Phase == corev1.PodRunning; runs != (test.phase == corev1.PodRunning) {
					t.Errorf("the pod is %s, want %s", h.pod("web").Status.Phase, test.phase)
				}
				relented.Store(true)
				h.after(time.Minute)
				h.wantPhase("web", corev1.PodRunning, "")
			})
		})
	}
}

func TestEphemeralContainersCrossAndComeBack(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		debug := func(name string) {
			pod := h.pod("web").DeepCopy()
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "busybox"}, TargetContainerName: "c",
			})
			if _, err := h.client.CoreV1().Pods("shop").Update(h.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				h.t.Fatal(err)
			}
			h.second()
		}
		debug("debugger")
		h.remote.locked(func() {
			for ref, o := range h.remote.held {
				if ref.UID == "u1" && !strings.Contains(string(o.JSON), `"debugger"`) {
					t.Errorf("the provider has %s", o.JSON)
				}
			}
		})
		running := messageStatus("", corev1.ConditionTrue)
		running.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debugger", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		h.remote.set("u1", running)
		h.second()
		if s := h.pod("web").Status.EphemeralContainerStatuses; len(s) != 1 || s[0].State.Running == nil {
			t.Errorf("statuses are %+v, want a container that runs", s)
		}
		h.remote.refuse = func(peering.Object) *peering.Refusal {
			return &peering.Refusal{Reason: peering.RefusedPodSecurity, Message: "SYS_PTRACE is not baseline"}
		}
		debug("spy")
		h.second()
		s := h.pod("web").Status.EphemeralContainerStatuses
		if len(s) != 2 || s[0].State.Running == nil || s[1].State.Waiting == nil || s[1].State.Waiting.Reason != "PodSecurity" || !strings.Contains(s[1].State.Waiting.Message, "SYS_PTRACE") {
			t.Errorf("statuses are %+v, want why the second was refused", s)
		}
		h.wantPhase("web", corev1.PodRunning, "")
	})
}

// kubectl debug waits for the container to run, so earlier statuses of the provider do not delay
// that.
func TestEphemeralContainersBringTheirWrites(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		status := messageStatus("", corev1.ConditionTrue)
		for i := range 2 * maxFirstStatuses {
			h.remote.set("u1", messageStatus(fmt.Sprint(i), corev1.ConditionTrue))
			h.second()
		}
		for i := range 3 {
			name := fmt.Sprint("debugger-", i)
			pod := h.pod("web").DeepCopy()
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "busybox"},
			})
			if _, err := h.client.CoreV1().Pods("shop").Update(h.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				h.t.Fatal(err)
			}
			h.second()
			for _, state := range []corev1.ContainerState{
				{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
				{Running: &corev1.ContainerStateRunning{}},
				{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}},
			} {
				status.EphemeralContainerStatuses = append(status.EphemeralContainerStatuses[:i:i], corev1.ContainerStatus{Name: name, State: state})
				h.remote.set("u1", status)
				h.second()
				if s := h.pod("web").Status.EphemeralContainerStatuses; len(s) != i+1 || !apiequality.Semantic.DeepEqual(s[i].State, state) {
					t.Fatalf("statuses are %+v, want the last to be %+v at once", s, state)
				}
			}
		}
	})
}

func TestEventTextsCannotDrawOnATerminal(t *testing.T) {
	atHome(t, func(h *home) {
		const text = "red\x1b[31m\r\nalert\u202e"
		h.remote.refuse = func(o peering.Object) *peering.Refusal {
			if o.Ref.Kind != peering.KindPod {
				return nil
			}
			return &peering.Refusal{Reason: peering.RefusedQuota, Message: text, Retryable: true}
		}
		h.bind("u1", "web")
		h.node.PodEvent(peering.PodEvent{
			Ref:  peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: "u1"},
			Type: text, Reason: text, Message: text, Count: 1,
		})
		h.second()
		list, err := h.client.CoreV1().Events("shop").List(h.t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) < 2 {
			t.Fatalf("%d events, %v; want one of the refusal and one of the provider", len(list.Items), err)
		}
		for _, e := range list.Items {
			if s := e.Reason + e.Message + e.Type; s != peering.Text(s, len(s)) {
				t.Errorf("event %q", s)
			}
		}
		if s := h.pod("web").Status.Message; s != "red [31m  alert " {
			t.Errorf("the pod's message is %q", s)
		}
	})
}

func TestEventsOfTheProviderAreShownOnce(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		e := peering.PodEvent{
			Ref:  peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: "u1"},
			Type: "Warning", Reason: "Back Off!", Message: "restarting", Count: 3,
		}
		for range 3 {
			h.node.PodEvent(e)
		}
		e.Ref.UID = "unknown"
		h.node.PodEvent(e)
		h.second()
		list, _ := h.client.CoreV1().Events("shop").List(h.t.Context(), metav1.ListOptions{})
		n := 0
		for _, got := range list.Items {
			if got.Reason == "BackOff" {
				n += int(got.Count)
				if got.InvolvedObject.UID != "u1" || got.Type != "Warning" {
					t.Errorf("event is about %+v", got.InvolvedObject)
				}
			}
		}
		if n != 1 {
			t.Errorf("the event was recorded %d times, want once", n)
		}
	})
}

// Whatever a provider sends, about pods that it has and others: memory, writes and the shown
// statuses are bounded, and nothing is deleted.
func TestAHostileProviderIsBounded(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.client.ClearActions()
		big, err := json.Marshal(podstatustest.Forged(20))
		if err != nil || len(big) > podstatus.MaxStatusBytes {
			t.Fatalf("the status has %d bytes, %v", len(big), err)
		}
		const times = 500
		for i := range times {
			for _, uid := range []string{"u1", fmt.Sprint("x", i)} {
				ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "x", UID: uid}
				long := fmt.Sprint(i, strings.Repeat("y", 100<<10))
				h.node.PodStatus(peering.PodStatus{Ref: ref, Status: big})
				h.node.PodStatus(peering.PodStatus{Ref: ref, Status: []byte(`nonsense`)})
				h.node.PodStatus(peering.PodStatus{Ref: ref, Status: fmt.Appendf(nil, `{"phase":"Running","message":%q}`, long[:50<<10])})
				h.node.Ack(peering.Ack{Ref: ref})
				h.node.Ack(peering.Ack{Ref: ref, Hash: peering.Hash{1}, Refusal: &peering.Refusal{Reason: peering.RefusedQuota, Message: long}})
				h.node.PodEvent(peering.PodEvent{Ref: ref, Reason: fmt.Sprint("R", i), Message: long, Count: int32(i)})
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		h.node.mu.Lock()
		st := h.node.state["u1"]
		if n := len(h.node.state); n != 1+times || len(h.node.unknown.sizes) != times || st == nil {
			t.Errorf("%d pods are remembered, want the one that is known here, and for a while the others", n)
		}
		kept, err := json.Marshal(st.remote)
		if err != nil || len(kept) > podstatus.MaxMessagesBytes+16<<10 || len(st.events) > maxEventsPerPod {
			t.Errorf("of one pod a status of %d bytes and %d events are remembered, %v", len(kept), len(st.events), err)
		}
		h.node.mu.Unlock()
		writes, size := h.written()
		// Its statuses differ in readiness.
		if most := maxFirstStatuses + maxFlips + times/10/int(flipPace.Seconds()) + 1; writes > most || size > most*(podstatus.MaxMessagesBytes+16<<10) {
			t.Errorf("%d statuses of %d bytes were written, want at most %d", writes, size, most)
		}
		events := 0
		for _, a := range h.client.Actions() {
			if a.GetVerb() == "delete" {
				t.Errorf("delete of %s", a.GetResource().Resource)
			}
			if a.GetResource().Resource == "events" {
				events++
			}
		}
		if events > 2*25 { // what the events library lets through of one pod, with the updates of its counts
			t.Errorf("%d events were written of one pod", events)
		}
		time.Sleep((times/maxUnknownReads + 1) * time.Minute)
		h.node.mu.Lock()
		if n := len(h.node.state); n != 1 || h.node.unknown.bytes != 0 {
			t.Errorf("%d pods are remembered, of %d bytes, want the one that is known here", n, h.node.unknown.bytes)
		}
		h.node.mu.Unlock()
		shown, err := json.Marshal(h.pod("web").Status)
		if err != nil || len(shown) > podstatus.MaxMessagesBytes+16<<10 {
			t.Errorf("the pod's status has %d bytes, %v", len(shown), err)
		}
	})
}

// The provider invents a pod, and its status comes while what is remembered of the pod is being dropped.
func TestAStatusThatComesWhileItsPodIsDroppedStays(t *testing.T) {
	atHome(t, func(h *home) {
		const uid = "x"
		p := h.node.plan(uid)
		if p.step != stepDrop {
			t.Fatalf("the step is %d, want %d", p.step, stepDrop)
		}
		ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "x", UID: uid}
		h.node.PodStatus(peering.PodStatus{Ref: ref, Status: []byte(`{"phase":"Running"}`)})
		if err := h.node.drop(t.Context(), uid, p.st); err != nil {
			t.Fatal(err)
		}
		h.node.mu.Lock()
		if st := h.node.state[uid]; st == nil || st.remote == nil || !h.node.unknown.has(uid) {
			t.Errorf("of the pod %+v is remembered, unknown %v", st, h.node.unknown.has(uid))
		}
		h.node.mu.Unlock()
		h.node.dropUnknown(t.Context())
		h.node.mu.Lock()
		defer h.node.mu.Unlock()
		if len(h.node.state)+len(h.node.unknown.sizes) > 0 {
			t.Errorf("%d pods are remembered, %d of them unknown, though the API server has none", len(h.node.state), len(h.node.unknown.sizes))
		}
	})
}

func TestUnknownPodsAreBoundedBeforeTheCacheIsSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		h.err = errors.New("the cache of NamespaceOffloadings is cold")
		h.start()
		for i := range maxUnknownPods + 100 {
			ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "x", UID: fmt.Sprint("x", i)}
			h.node.PodStatus(peering.PodStatus{Ref: ref, Status: []byte(`{"phase":"Running"}`)})
		}
		h.node.mu.Lock()
		if n := len(h.node.state); n != maxUnknownPods {
			t.Errorf("%d unknown pods are remembered, want %d", n, maxUnknownPods)
		}
		h.node.mu.Unlock()
		large := fmt.Appendf(nil, `{"phase":"Running","message":%q}`, strings.Repeat("y", 60<<10))
		for i := range maxUnknownBytes/len(large) + 10 {
			ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "x", UID: fmt.Sprint("x", i)}
			h.node.PodStatus(peering.PodStatus{Ref: ref, Status: large})
			h.node.PodStatus(peering.PodStatus{Ref: ref, Gone: true}) // which leaves the status
		}
		h.node.mu.Lock()
		if n := h.node.unknown.bytes; n > maxUnknownBytes || n < maxUnknownBytes/2 || len(h.node.state) != len(h.node.unknown.sizes) {
			t.Errorf("of %d unknown pods %d bytes are remembered, want at most %d", len(h.node.state), n, maxUnknownBytes)
		}
		h.node.mu.Unlock()
		h.stop()
	})
}
