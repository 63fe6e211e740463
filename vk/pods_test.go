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
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	api "github.com/entente-dev/entente/api/v1alpha1"
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
}

// atHome runs a test in a home cluster in which namespace shop is offloaded to a
// provider that can be reached.
func atHome(t *testing.T, test func(h *home)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHome(t)
		h.start()
		h.remote.connect(true)
		h.settle()
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
		Name: "office", Contract: "c-1", Peer: "peerpeerpeerpeerpeerpeerpeerpeer", Client: h.client, Remote: h.remote,
		Resources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}, Version: "v1.37.2-entente", Address: netip.MustParseAddr("10.1.2.3"),
		Labels:      map[string]string{corev1.LabelArchStable: "arm64", "kubernetes.io/hostname": "evil", "example.com/gpu": "a100"},
		TranslateIP: testView().translate,
		Namespaces: func() ([]Namespace, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return append([]Namespace(nil), h.spaces...), h.err
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
	h.settle()
}

// settle lets a second pass.
func (h *home) settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (h *home) offload(spaces ...Namespace) {
	h.mu.Lock()
	h.spaces = spaces
	h.mu.Unlock()
	h.node.NamespacesChanged()
	h.settle()
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
	h.settle()
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
	h.settle()
}

// force does what a DELETE with --force does.
func (h *home) force(name string) {
	h.t.Helper()
	if err := h.client.CoreV1().Pods("shop").Delete(h.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.settle()
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
		if pod.Status.PodIP != "10.241.0.7" || pod.Status.HostIP != "10.1.2.3" || !offloadedBefore(pod) {
			t.Errorf("status is %+v, want the pod's address in home terms and Offloaded", pod.Status)
		}
		if c := findCondition(pod.Status.Conditions, corev1.PodScheduled); c == nil {
			t.Error("PodScheduled was lost")
		}
		h.remote.set("u1", corev1.PodStatus{Phase: corev1.PodSucceeded})
		h.settle()
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
		h.remote.look(func() {
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
		h.settle() // a second, in which a bucket of 10 a second would let 110 pass
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

func TestNothingIsDeletedBeforeTheCacheIsSynced(t *testing.T) {
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
		h.settle()
		if h.remote.holds("u") {
			t.Error("the orphan stays though the API server says that its pod is no more")
		}
		h.stop()
	})
}

func TestWhatIsMissingInTheCacheIsNoEvidence(t *testing.T) {
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
		h.remote.look(func() {
			if len(h.remote.unwants) > 0 || len(h.remote.deletes) > 0 {
				t.Errorf("unwanted %v, deleted %v because of a hole in the cache", h.remote.unwants, h.remote.deletes)
			}
		})
	})
}

func TestADeletedPodEndsAtTheProviderFirst(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.remote.look(func() { h.remote.linger = true })
		h.mark("web", 30)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if h.pod("web") == nil {
			t.Fatal("the local pod is gone while the remote one runs")
		}
		h.remote.look(func() {
			if g := h.remote.graces[h.remote.unwants[0]]; len(h.remote.unwants) != 1 || g != 30 {
				t.Errorf("unwanted %v with grace %d, want once with 30", h.remote.unwants, g)
			}
		})
		h.mark("web", 5)
		h.remote.look(func() {
			if g := h.remote.graces[h.remote.unwants[0]]; g != 5 {
				t.Errorf("a shorter grace period did not cross: %d", g)
			}
		})
		h.remote.lose("u1")
		h.settle()
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

func TestAPodMadeAgainUnderItsNameIsAnotherPod(t *testing.T) {
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

func TestAPodMadeAgainUnseenIsAnotherPod(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "db-0")
		second := h.pod("db-0").DeepCopy()
		second.UID, second.Status = "u2", corev1.PodStatus{Phase: corev1.PodPending}
		// To the watch this is an update.
		if _, err := h.client.CoreV1().Pods("shop").Update(h.t.Context(), second, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.settle()
		h.settle()
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
				h.settle()
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
				h.settle()
				if h.remote.holds("u1") || !h.remote.holds("u2") {
					t.Error("after the reconnect the provider should hold the other pod only")
				}
			})
		})
	}
}

func TestAPodThatIsGoneUnaskedFailsAndIsNotRunAgain(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.remote.lose("u1")
		h.settle()
		h.wantPhase("web", corev1.PodFailed, ReasonRemoteGone)
		h.stop()
		h.start()
		h.remote.connect(true)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		h.remote.look(func() {
			if h.remote.created["u1"] != 1 {
				t.Errorf("the pod was made %d times", h.remote.created["u1"])
			}
		})
	})
}

func TestAPodThatTheProviderLostMeanwhileIsNotRunAgain(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.stop()
		h.remote.look(func() { clear(h.remote.held); clear(h.remote.created) })
		h.start()
		h.remote.connect(true)
		h.settle()
		h.wantPhase("web", corev1.PodFailed, ReasonRemoteGone)
		h.remote.look(func() {
			if len(h.remote.created) > 0 {
				t.Error("it was run a second time")
			}
		})
	})
}

func TestWhatEndedIsNeverRunAgain(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "batch")
		h.remote.set("u1", corev1.PodStatus{Phase: corev1.PodSucceeded})
		h.settle()
		for range 2 {
			// The provider forgets all about it.
			h.remote.connect(false)
			h.settle()
			h.remote.look(func() { clear(h.remote.held); clear(h.remote.created) })
			h.remote.connect(true)
			h.settle()
			h.wantPhase("batch", corev1.PodSucceeded, "")
			h.remote.look(func() {
				if len(h.remote.created) > 0 {
					t.Error("it was run a second time")
				}
			})
			h.stop()
			h.start()
		}
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
		h.remote.look(func() { h.remote.refuse = nil })
		h.remote.retry()
		h.settle()
		h.wantPhase("web", corev1.PodRunning, "")
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

func TestAForeignPodIsNotApplicable(t *testing.T) {
	atHome(t, func(h *home) {
		h.offload()
		h.bind("u1", "ds", func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "ds"}} })
		h.wantPhase("ds", corev1.PodPending, ReasonNotApplicable)
		h.client.ClearActions()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, a := range h.client.Actions() {
			if a.GetResource().Resource == "pods" && a.GetVerb() != "watch" && a.GetVerb() != "list" {
				t.Errorf("a foreign pod keeps us busy: %s", a.GetVerb())
			}
		}
		h.remote.look(func() {
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

func TestAPodOfAnotherNodeIsNobodysBusiness(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web", func(p *corev1.Pod) { p.Spec.NodeName = "real" })
		h.wantPhase("web", corev1.PodPending, "")
		if h.remote.holds("u1") {
			t.Error("a pod of another node crossed")
		}
	})
}

func TestWhatRunsGoesOnWhenItsNamespaceIsNotOffloadedAnyMore(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "old")
		h.offload()
		h.bind("u2", "new")
		h.wantPhase("old", corev1.PodRunning, "")
		h.wantPhase("new", corev1.PodPending, ReasonNotApplicable)
		h.stop()
		h.start()
		h.remote.connect(true)
		h.settle()
		if !h.remote.holds("u1") || !h.remote.holds("ns-1") {
			t.Error("after a restart the running pod or its namespace went")
		}
		h.mark("old", 30)
		time.Sleep(2 * time.Minute)
		h.remote.poke()
		h.settle()
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

func TestAConfigMapCrossesAndStaysInStep(t *testing.T) {
	atHome(t, func(h *home) {
		ctx, maps := h.t.Context(), h.client.CoreV1().ConfigMaps("shop")
		h.bind("u1", "web", withConfigMap("cm", false), withConfigMap("maybe", true))
		h.wantPhase("web", corev1.PodPending, ReasonMissing)
		if m := h.event(ReasonMissing); !strings.Contains(m, `ConfigMap "cm" is not there`) {
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
			h.settle()
		}
		must(maps.Create(ctx, configMap("cm", "cm-1", "one"), metav1.CreateOptions{}))
		must(maps.Create(ctx, configMap("unused", "cm-9", "secret"), metav1.CreateOptions{}))
		h.wantPhase("web", corev1.PodRunning, "")
		value := func(uid string) (v string) {
			h.remote.look(func() {
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
		h.remote.look(func() {
			if len(h.remote.clashes) > 0 {
				t.Errorf("%v was wanted together with its successor", h.remote.clashes)
			}
		})
		if h.remote.holds("cm-1") || value("cm-3") != "three" {
			t.Error("the old ConfigMap stays, or the new one did not cross")
		}
		h.mark("web", 1)
		h.settle()
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
		pod := h.wantPhase("web", corev1.PodPending, ReasonMissing)
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
		h.settle()
		pod := h.wantPhase("web", corev1.PodPending, ReasonMissing)
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

func TestALostPeerLeavesTheStatusAlone(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.remote.connect(false)
		h.settle()
		// What the node lifecycle controller does when the node is not ready.
		pod := h.pod("web").DeepCopy()
		findCondition(pod.Status.Conditions, corev1.PodReady).Status = corev1.ConditionFalse
		if _, err := h.client.CoreV1().Pods("shop").UpdateStatus(h.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if c := findCondition(h.pod("web").Status.Conditions, corev1.PodReady); c.Status != corev1.ConditionFalse {
			t.Error("the pod is called ready though nobody knows")
		}
		h.remote.connect(true)
		h.settle()
		if c := findCondition(h.pod("web").Status.Conditions, corev1.PodReady); c.Status != corev1.ConditionTrue {
			t.Error("the pod is not ready again after the reconnect")
		}
		h.remote.look(func() {
			if len(h.remote.unwants) > 0 {
				t.Errorf("unwanted %v", h.remote.unwants)
			}
		})
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
		h.settle()
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
			t.Errorf("the event was told %d times, want once", n)
		}
	})
}

func TestAHostileProviderIsBounded(t *testing.T) {
	atHome(t, func(h *home) {
		for i := range 1000 {
			ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "x", UID: fmt.Sprint("x", i)}
			h.node.PodStatus(peering.PodStatus{Ref: ref, Status: []byte(`{"phase":"Running"}`)})
			h.node.PodStatus(peering.PodStatus{Ref: ref, Status: []byte(`nonsense`)})
			h.node.Ack(peering.Ack{Ref: ref})
			h.node.PodEvent(peering.PodEvent{Ref: ref})
		}
		h.settle()
		h.node.mu.Lock()
		defer h.node.mu.Unlock()
		if n := len(h.node.state); n > 0 {
			t.Errorf("%d pods are remembered that are not known here", n)
		}
	})
}
