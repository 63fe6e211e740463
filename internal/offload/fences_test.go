package offload

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/peering"
)

// keeper is an agent that enforces fences, whose clocks the test advances.
type keeper struct {
	*fencing.Keeper
	*Provider
	forward atomic.Int64
	stopped atomic.Int64
	checks  atomic.Int64
	kill    func()
}

// counted counts how often the fences are checked.
type counted struct {
	*Provider
	checks *atomic.Int64
}

func (c counted) Fences() ([]fencing.Fence, bool) {
	fences, known := c.Provider.Fences()
	if known {
		c.checks.Add(1)
	}
	return fences, known
}

// checked waits until all fences were checked, as they are by now.
func (k *keeper) checked(t *testing.T) {
	t.Helper()
	// One check may be under way, and the third begins when the second is over.
	before := k.checks.Load()
	eventually(t, "the fences are checked", func() bool { return k.checks.Load() >= before+3 })
}

func (k *keeper) after(d time.Duration) { k.forward.Add(int64(d)) }

// keeps starts an agent at a time from now.
func keeps(t *testing.T, c *cluster, from time.Duration) *keeper {
	t.Helper()
	k := &keeper{}
	k.forward.Store(int64(from))
	began := time.Now()
	k.Keeper = &fencing.Keeper{
		Clock:   func() fencing.Ticks { return time.Since(began) + time.Duration(k.forward.Load()) },
		Wall:    func() time.Time { return time.Now().Add(time.Duration(k.forward.Load())) },
		Log:     slog.New(slog.DiscardHandler),
		Stopped: func(_ fencing.Fence, pods int) { k.stopped.Add(int64(pods)) },
	}
	p, stop := c.startFenced(t, k.Stops)
	k.Provider, k.Stock = p, counted{p, &k.checks}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = k.Keeper.Run(ctx)
	}()
	k.kill = sync.OnceFunc(func() { cancel(); <-done; stop() })
	t.Cleanup(k.kill)
	return k
}

// hears makes the consumer of a contract respond.
func (k *keeper) hears(t *testing.T, contract string) {
	t.Helper()
	eventually(t, "the consumer is asked", func() bool {
		n, ok := k.Ask(contract)
		if ok {
			k.Answered(contract, n)
		}
		return ok
	})
}

func fencedNamespace(name string, seconds int) peering.Object {
	return thing(peering.KindNamespace, "", name, "uid-"+name, fmt.Sprintf(`{"mapping":"Suffixed","fenceSeconds":%d}`, seconds))
}

// runs reports whether a pod exists and is not being deleted.
func (c *cluster) runs(t *testing.T, ns, name string) bool {
	t.Helper()
	pod := &corev1.Pod{}
	return c.get(t, ns+"-aaaaaaaa", name, pod) && pod.DeletionTimestamp == nil
}

func testFences(t *testing.T, c *cluster) {
	k := keeps(t, c, 0)
	id, name := c.fresh("cpu=1")
	other, own := c.fresh("cpu=1")
	contract, _ := c.contract(id)
	contract.MinFence = 4 * time.Minute
	c.set(id, &contract)
	for _, seconds := range []int{-1, 1, 239, 24*60*60 + 1, 1 << 40} {
		refused(t, k.Apply(t.Context(), id, fencedNamespace(name, seconds)), peering.RefusedNamespace, true, "the provider agrees to 4m0s up to 24h0m0s")
	}
	if _, asks := k.Ask(id); asks {
		t.Error("the consumer is probed though no fence was agreed")
	}
	patient := podObject(name, "web", "1m")
	patient.JSON = []byte(strings.Replace(string(patient.JSON), `"spec":{`, `"spec":{"terminationGracePeriodSeconds":3600,`, 1))
	leaving := podObject(name, "leaving", "1m")
	leaving.JSON = []byte(strings.Replace(string(leaving.JSON), `"spec":{`, `"spec":{"terminationGracePeriodSeconds":3600,`, 1))
	apply(t, k.Provider, id, fencedNamespace(name, 240), namespaceObject(name+"-own", "Suffixed"), patient, leaving, podObject(name+"-own", "web", "1m"))
	apply(t, k.Provider, other, namespaceObject(own, "Suffixed"), podObject(own, "web", "1m"))
	spaces := []string{name, name + "-own", own}
	eventually(t, "the pods are made", func() bool {
		return c.runs(t, spaces[0], "web") && c.runs(t, spaces[1], "web") && c.runs(t, spaces[2], "web")
	})
	c.bind(t, name+"-aaaaaaaa", "web")
	eventually(t, "the pod is made that leaves", func() bool { return c.runs(t, name, "leaving") })
	c.bind(t, name+"-aaaaaaaa", "leaving")
	if err := k.Delete(t.Context(), id, leaving.Ref, new(int64(3600))); err != nil {
		t.Fatal(err)
	}
	if _, asks := k.Ask(other); asks {
		t.Error("a consumer without a fence is probed")
	}
	k.hears(t, id)

	k.after(170 * time.Second)
	k.checked(t)
	if !c.runs(t, name, "web") {
		t.Fatal("a pod was stopped before its time")
	}
	k.after(10 * time.Second)
	pod := &corev1.Pod{}
	eventually(t, "the pod under the fence is stopped", func() bool { return !c.runs(t, name, "web") })
	if c.get(t, name+"-aaaaaaaa", "web", pod) && (pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds > int64(fencing.Grace/time.Second)) {
		t.Errorf("its containers have %v to end", pod.DeletionGracePeriodSeconds)
	}
	eventually(t, "a pod that had an hour to end has no more time than the fence leaves", func() bool {
		pod := &corev1.Pod{}
		return !c.get(t, name+"-aaaaaaaa", "leaving", pod) || pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds <= int64(fencing.Grace/time.Second)
	})
	c.force(t, name+"-aaaaaaaa", "leaving")
	if !c.runs(t, spaces[1], "web") || !c.runs(t, spaces[2], "web") {
		t.Error("a pod was stopped that has no fence")
	}
	refused(t, k.Apply(t.Context(), id, podObject(name, "late", "1m")), peering.RefusedInternal, true, "has not responded")
	eventually(t, "it is said", func() bool { return k.stopped.Load() == 1 })
	c.force(t, name+"-aaaaaaaa", "web")
	eventually(t, "its record goes", func() bool { return !c.get(t, name+"-aaaaaaaa", "web", &api.OffloadedPod{}) })

	// It responds again: new pods may start, and an agent that takes over knows until when.
	k.hears(t, id)
	apply(t, k.Provider, id, podObject(name, "next", "1m"))
	eventually(t, "another pod is made", func() bool { return c.runs(t, name, "next") })
	ns := &corev1.Namespace{}
	eventually(t, "it is noted that the consumer was there", func() bool {
		f, ok := fencing.NotedFor(name, id, ns.Annotations)
		return c.get(t, "", name+"-aaaaaaaa", ns) && ok && time.Until(f.LastSeen) > 2*time.Minute
	})
	passed := time.Duration(k.forward.Load())
	k.kill()
	k = keeps(t, c, passed+2*time.Minute)
	k.checked(t)
	if !c.runs(t, name, "next") {
		t.Error("an agent that took over stopped a pod before its time")
	}
	k.kill()
	k = keeps(t, c, passed+3*time.Minute)
	eventually(t, "an agent that took over stops the pod", func() bool { return !c.runs(t, name, "next") })
	if !c.runs(t, spaces[1], "web") || !c.runs(t, spaces[2], "web") {
		t.Error("a pod was stopped that has no fence")
	}

	// A namespace that wants no fence any more has none.
	apply(t, k.Provider, id, fencedNamespace(name, 0))
	eventually(t, "a pod is taken again", func() bool { return k.Apply(t.Context(), id, podObject(name, "free", "1m")) == nil })
	eventually(t, "a pod without a fence is made", func() bool { return c.runs(t, name, "free") })
	k.after(time.Hour)
	k.checked(t)
	if !c.runs(t, name, "free") {
		t.Error("a pod was stopped whose namespace no longer has a fence")
	}
}

// bind binds a pod to a node, so that the API server waits for a kubelet to end it.
func (c *cluster) bind(t *testing.T, ns, name string) {
	t.Helper()
	if !c.real {
		return
	}
	pod := &corev1.Pod{}
	c.get(t, ns, name, pod)
	if err := c.owner.SubResource("binding").Create(t.Context(), pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}); err != nil {
		t.Fatal(err)
	}
}

// force is the kubelet that ended a pod.
func (c *cluster) force(t *testing.T, ns, name string) {
	t.Helper()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = ns, name
	if err := c.owner.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}
