package offload

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

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

// testUnheardEnds ends pods while their consumer is away, and then ends the contract or namespace, so that it
// never receives their ends.
func testUnheardEnds(t *testing.T, c *cluster) {
	for what, end := range map[string]func(t *testing.T, p *Provider, id, remote string){
		"the contract ends": func(t *testing.T, p *Provider, id, _ string) {
			c.set(id, nil)
			eventually(t, "nothing is left", func() bool {
				left, err := p.CloseContract(t.Context(), peerA, id)
				return err == nil && left.None()
			})
		},
		"the provider deletes the namespace": func(t *testing.T, _ *Provider, _, remote string) {
			ns := &corev1.Namespace{}
			ns.Name = remote
			if err := c.owner.Delete(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
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
