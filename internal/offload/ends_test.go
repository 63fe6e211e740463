package offload

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// endPod ends a pod as a kubelet does.
func (c *cluster) endPod(t *testing.T, ns, name string, phase corev1.PodPhase, code int32) {
	t.Helper()
	eventually(t, "the pod ends", func() bool {
		pod := &corev1.Pod{}
		if !c.get(t, ns, name, pod) {
			return false
		}
		pod.Status.Phase = phase
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
		return c.owner.Status().Update(t.Context(), pod) == nil
	})
}

// setFinalizers adds finalizers of another owner to a pod, which keep it as its containers do, or removes
// them.
func (c *cluster) setFinalizers(t *testing.T, ns, name string, finalizers ...string) {
	t.Helper()
	eventually(t, "the pod has other finalizers", func() bool {
		pod := &corev1.Pod{}
		if !c.get(t, ns, name, pod) {
			return len(finalizers) == 0
		}
		pod.Finalizers = finalizers
		return c.owner.Update(t.Context(), pod) == nil
	})
}

// endAway ends and deletes three pods of a contract while its consumer is away: one ended before it is
// deleted, one while it is, and of one the provider's owner takes the record away. It waits until their pods
// are gone.
func endAway(t *testing.T, c *cluster, p *Provider, id, name string) {
	remote := name + "-aaaaaaaa"
	done, ending, taken := podObject(name, "done", "100m"), podObject(name, "ending", "100m"), podObject(name, "taken", "100m")
	apply(t, p, id, namespaceObject(name, "Suffixed"), done, ending, taken)
	eventually(t, "the pod is there", func() bool { return c.get(t, remote, "ending", &corev1.Pod{}) })
	c.setFinalizers(t, remote, "ending", "example.com/containers")
	for _, name := range []string{"done", "taken"} {
		c.endPod(t, remote, name, corev1.PodSucceeded, 0)
		eventually(t, "its end is recorded", func() bool {
			o := &api.OffloadedPod{}
			return c.get(t, remote, name, o) && o.Status.PodStatus != nil
		})
	}
	for _, o := range []peering.Object{done, ending} {
		if err := p.Delete(t.Context(), id, o.Ref, new(int64(1))); err != nil {
			t.Fatal(err)
		}
	}
	record := &api.OffloadedPod{}
	if !c.get(t, remote, "taken", record) {
		t.Fatal("the record is gone")
	}
	if err := c.owner.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is being deleted", func() bool {
		pod := &corev1.Pod{}
		return c.get(t, remote, "ending", pod) && pod.DeletionTimestamp != nil
	})
	c.endPod(t, remote, "ending", corev1.PodFailed, 3)
	c.setFinalizers(t, remote, "ending")
	for _, name := range []string{"done", "ending", "taken"} {
		eventually(t, "the pod is gone", func() bool { return !c.get(t, remote, name, &corev1.Pod{}) })
	}
}

// testLastStatus deletes pods that ended while their consumer was away. It has to learn how they ended, not
// only that they were deleted, from any process of the agent that runs when it is back; then nothing is left
// of them.
func testLastStatus(t *testing.T, c *cluster) {
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	endAway(t, c, p, id, name)
	for _, name := range []string{"done", "ending", "taken"} {
		eventually(t, "the end of "+name+" is recorded", func() bool {
			o := &api.OffloadedPod{}
			if !c.get(t, remote, name, o) {
				t.Fatalf("the record of %s was deleted before its consumer received its end", name)
			}
			return o.DeletionTimestamp != nil && ended(o.Status.Phase)
		})
	}
	eventually(t, "no pod counts against the contract", func() bool {
		_, n, err := p.Usage(t.Context(), id)
		return err == nil && n == 0
	})
	stop()
	p, _ = c.start(t)
	h := listen(t, p, id)
	for name, want := range map[string]corev1.PodPhase{"done": corev1.PodSucceeded, "ending": corev1.PodFailed, "taken": corev1.PodSucceeded} {
		eventually(t, name+" is reported as gone", func() bool { s, _ := h.of(name); return s.Gone })
		s, phase := h.of(name)
		if phase != want || !strings.Contains(string(s.Status), "exitCode") || s.RemoteUID == "" {
			t.Errorf("of %s home learns %q, %s", name, phase, s.Status)
		}
		eventually(t, "the record goes", func() bool { return !c.get(t, remote, name, &api.OffloadedPod{}) })
	}
}

// completing is a pod that ends by itself.
func completing(ns, name string) peering.Object {
	return thing(peering.KindPod, ns, name, "uid-"+ns+"-"+name,
		`{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"100m"}}}]}}`)
}

func (c *cluster) deletePod(t *testing.T, ns, name string) {
	t.Helper()
	pod := &corev1.Pod{}
	if !c.get(t, ns, name, pod) {
		t.Fatalf("pod %s is gone", name)
	}
	if err := c.owner.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// testEndsWithoutAgents ends and deletes pods while neither the agent here nor that of home runs. Home has to learn
// how they ended from the next one, and nothing is left of them.
func testEndsWithoutAgents(t *testing.T, c *cluster) {
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	serves := podObject(name, "serves", "100m")
	apply(t, p, id, namespaceObject(name, "Suffixed"), completing(name, "done"), completing(name, "failed"), completing(name, "killed"), completing(name, "removed"), serves)
	for _, name := range []string{"done", "failed", "killed", "removed", "serves"} {
		eventually(t, "the pod is recorded", func() bool {
			o := &api.OffloadedPod{}
			return c.get(t, remote, name, o) && o.Status.PodUID != ""
		})
	}
	stop()
	c.endPod(t, remote, "done", corev1.PodSucceeded, 0)
	c.endPod(t, remote, "failed", corev1.PodFailed, 3)
	c.endPod(t, remote, "removed", corev1.PodSucceeded, 0)
	for _, name := range []string{"done", "failed", "killed", "removed", "serves"} {
		c.deletePod(t, remote, name)
	}
	record := &api.OffloadedPod{}
	if !c.get(t, remote, "removed", record) {
		t.Fatal("the record is gone")
	}
	if err := c.owner.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	_, stop = c.start(t)
	for _, name := range []string{"done", "failed", "killed", "removed", "serves"} {
		eventually(t, "pod "+name+" is gone, and its end recorded", func() bool {
			o := &api.OffloadedPod{}
			return !c.get(t, remote, name, &corev1.Pod{}) && c.get(t, remote, name, o) && ended(o.Status.Phase)
		})
	}
	stop()
	p, _ = c.start(t)
	h := listen(t, p, id)
	for name, want := range map[string]string{"done": "exitCode\":0", "failed": "exitCode\":3", "removed": "exitCode\":0", "killed": "PodDeleted", "serves": "PodDeleted"} {
		eventually(t, name+" is reported as gone", func() bool { s, _ := h.of(name); return s.Gone })
		s, phase := h.of(name)
		if succeeded := name == "done" || name == "removed"; (phase == corev1.PodSucceeded) != succeeded || !strings.Contains(string(s.Status), want) {
			t.Errorf("of %s home learns %q, %s", name, phase, s.Status)
		}
		if err := p.Delete(t.Context(), id, s.Ref, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the record goes", func() bool { return !c.get(t, remote, name, &api.OffloadedPod{}) })
	}
}

// testEndsInADeletedNamespace has the owner of this cluster delete a namespace with pods that ended, while no agent
// runs: they go once home has received how they ended, though the agent has lost its rights there.
func testEndsInADeletedNamespace(t *testing.T, c *cluster) {
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	apply(t, p, id, namespaceObject(name, "Suffixed"), completing(name, "done"))
	eventually(t, "the pod is recorded", func() bool {
		o := &api.OffloadedPod{}
		return c.get(t, remote, "done", o) && o.Status.PodUID != ""
	})
	stop()
	c.endPod(t, remote, "done", corev1.PodSucceeded, 0)
	ns, record := &corev1.Namespace{}, &api.OffloadedPod{}
	if !c.get(t, "", remote, ns) || !c.get(t, remote, "done", record) {
		t.Fatal("it is gone")
	}
	// A fake cluster has no controller of namespaces.
	ns.Finalizers = []string{"example.com/contents"}
	if err := c.owner.Update(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{ns, record} {
		if err := c.owner.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	c.deletePod(t, remote, "done")
	if c.real {
		binding := &rbacv1.RoleBinding{}
		binding.Namespace, binding.Name = remote, bindingName
		if err := c.owner.Delete(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
	}
	p, _ = c.start(t)
	eventually(t, "the pod is gone, and its end recorded", func() bool {
		return !c.get(t, remote, "done", &corev1.Pod{}) && c.get(t, remote, "done", record) && record.Status.Phase == corev1.PodSucceeded
	})
	h := listen(t, p, id)
	eventually(t, "home receives the end", func() bool { s, phase := h.of("done"); return s.Gone && phase == corev1.PodSucceeded })
	eventually(t, "the record goes", func() bool { return !c.get(t, remote, "done", &api.OffloadedPod{}) })
	if c.get(t, "", remote, ns) {
		ns.Finalizers = nil
		if err := c.owner.Update(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
}

// testPodsWithoutRecords has the owner of this cluster take the record of a pod away, with its finalizer, and delete
// the pod, as the garbage collector does then: once while the agent runs and once while it does not.
func testPodsWithoutRecords(t *testing.T, c *cluster) {
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	apply(t, p, id, namespaceObject(name, "Suffixed"), completing(name, "watched"), completing(name, "unwatched"))
	take := func(name string) {
		t.Helper()
		eventually(t, "the record is taken away", func() bool {
			o := &api.OffloadedPod{}
			if !c.get(t, remote, name, o) {
				return true
			}
			if o.DeletionTimestamp == nil {
				_ = c.owner.Delete(t.Context(), o)
				return false
			}
			o.Finalizers = nil
			_ = c.owner.Update(t.Context(), o)
			return !c.get(t, remote, name, o)
		})
		pod := &corev1.Pod{}
		if c.get(t, remote, name, pod) {
			_ = c.owner.Delete(t.Context(), pod)
		}
	}
	for _, name := range []string{"watched", "unwatched"} {
		eventually(t, "the pod is recorded", func() bool {
			o := &api.OffloadedPod{}
			return c.get(t, remote, name, o) && o.Status.PodUID != ""
		})
	}
	take("watched")
	eventually(t, "the pod is gone", func() bool { return !c.get(t, remote, "watched", &corev1.Pod{}) })
	stop()
	take("unwatched")
	if !c.get(t, remote, "unwatched", &corev1.Pod{}) {
		t.Error("a pod without its agent has no finalizer")
	}
	p, _ = c.start(t)
	eventually(t, "the pod is gone", func() bool { return !c.get(t, remote, "unwatched", &corev1.Pod{}) })
	c.makesAnother(t, p, id, name)
}

func TestTheRecordOfAnEndIsKeptForALimitedTime(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	eventually(t, "the namespace is known", func() bool { return p.inv.space(remote) != nil })
	now := time.Now()
	o := &api.OffloadedPod{}
	o.Namespace, o.Spec.Contract, o.DeletionTimestamp = remote, id, &metav1.Time{Time: now}
	if got := p.keptFor(o, now); got != endKept {
		t.Errorf("it is kept for %s", got)
	}
	if got := p.keptFor(o, now.Add(endKept)); got > 0 {
		t.Errorf("then it is kept for %s more", got)
	}
	ns := &corev1.Namespace{}
	if !c.get(t, "", remote, ns) {
		t.Fatal("the namespace is gone")
	}
	ns.Finalizers = []string{"example.com/contents"}
	if err := errors.Join(c.owner.Update(t.Context(), ns), c.owner.Delete(t.Context(), ns)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "less long where the namespace is being deleted", func() bool { return p.keptFor(o, now) == endKeptDeleting })
	k, _ := c.contract(id)
	k.AcceptNew = false
	c.set(id, &k)
	if got := p.keptFor(o, now); got > 0 {
		t.Errorf("of a contract that ends it is kept for %s", got)
	}
}

// testUnheardEnds ends pods while their consumer is away, and then ends the contract, also where the namespace is
// being deleted, so that it never receives their ends.
func testUnheardEnds(t *testing.T, c *cluster) {
	closed := func(t *testing.T, p *Provider, id string) {
		t.Helper()
		c.set(id, nil)
		eventually(t, "no pod is left", func() bool {
			left, err := p.CloseContract(t.Context(), peerA, id)
			return err == nil && left.Pods == 0
		})
	}
	for what, end := range map[string]func(t *testing.T, p *Provider, id, remote string){
		"the contract ends": func(t *testing.T, p *Provider, id, _ string) {
			closed(t, p, id)
		},
		"the provider deletes the namespace, and then the contract ends": func(t *testing.T, p *Provider, id, remote string) {
			ns := &corev1.Namespace{}
			ns.Name = remote
			if err := c.owner.Delete(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
			closed(t, p, id)
		},
	} {
		t.Run(what, func(t *testing.T) {
			p, _ := c.start(t)
			id, name := c.fresh("cpu=1")
			remote := name + "-aaaaaaaa"
			endAway(t, c, p, id, name)
			end(t, p, id, remote)
			for _, name := range []string{"done", "ending", "taken"} {
				eventually(t, "the record of "+name+" goes", func() bool { return !c.get(t, remote, name, &api.OffloadedPod{}) })
			}
		})
	}
}

// A write that fails does not lose how a pod ended that was deleted since.
func TestTheEndOfADeletedPodSurvivesAWriteThatFails(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	var failing atomic.Bool
	var failed atomic.Int32
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if _, is := o.(*api.OffloadedPod); is && failing.Load() {
				failed.Add(1)
				return apierrors.NewServiceUnavailable("the API server restarts")
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote, o := name+"-aaaaaaaa", &api.OffloadedPod{}
	apply(t, p, id, namespaceObject(name, "Suffixed"), podObject(name, "web", "100m"))
	eventually(t, "the pod is recorded", func() bool { return c.get(t, remote, "web", o) && o.Status.PodUID != "" })
	failing.Store(true)
	c.endPod(t, remote, "web", corev1.PodSucceeded, 0)
	eventually(t, "its end is not recorded", func() bool { return failed.Load() > 0 })
	c.deletePod(t, remote, "web")
	before := failed.Load()
	eventually(t, "nor that it is gone", func() bool { return !c.get(t, remote, "web", &corev1.Pod{}) && failed.Load() > before+3 })
	failing.Store(false)
	eventually(t, "the record has an end", func() bool { return c.get(t, remote, "web", o) && ended(o.Status.Phase) })
	if o.Status.Phase != corev1.PodSucceeded || o.Status.Reason != "" {
		t.Errorf("it is recorded as %s %s", o.Status.Phase, o.Status.Reason)
	}
}
