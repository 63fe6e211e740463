package offload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// tally counts the agent's requests to the API server about pods and their records.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
}

func (y *tally) note(verb string, o client.Object) {
	y.mu.Lock()
	defer y.mu.Unlock()
	switch o.(type) {
	case *corev1.Pod, *api.OffloadedPod:
		y.seen[strings.TrimPrefix(fmt.Sprintf("%s %T", verb, o), "*")]++
	}
}

// since returns the count since its last call, in total and as a text.
func (y *tally) since() (n int, text string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(y.seen)) {
		n += y.seen[what]
		text += fmt.Sprintf("%5d %s\n", y.seen[what], what)
	}
	y.seen = map[string]int{}
	return n, text
}

func (y *tally) on(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			y.note("get", o)
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			y.note("create", o)
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			y.note("update", o)
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			y.note("patch", o)
			return c.Patch(ctx, o, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			y.note("delete", o)
			return c.Delete(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			y.note("update "+sub+" of", o)
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			y.note("patch "+sub+" of", o)
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
}

// The API servers bound how fast pods are sent, so each request for a pod is a deliberate one.
func TestRequestsOfAPodsLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRequestsOfAPodsLife)
}

func testRequestsOfAPodsLife(t *testing.T) {
	const pods = 50
	c, y := newFake(t), &tally{seen: map[string]int{}}
	c.agent = y.on(c.agent)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=10,pods=100")
	remote := name + "-" + peerA.Short()
	listen(t, p, id)
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	y.since()
	quiet := func() {
		eventually(t, "nothing is left to do", func() bool {
			y.mu.Lock()
			n := fmt.Sprint(y.seen)
			y.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			y.mu.Lock()
			defer y.mu.Unlock()
			return n == fmt.Sprint(y.seen)
		})
	}
	each := func(do func(i int, name string)) {
		for i := range pods {
			do(i, fmt.Sprint("web-", i))
		}
		quiet()
	}
	atMost := func(what string, most float64) {
		n, text := y.since()
		t.Logf("%s: %.1f requests a pod\n%s", what, float64(n)/pods, text)
		if float64(n)/pods > most {
			t.Errorf("%s takes %.1f requests a pod, want %.1f\n%s", what, float64(n)/pods, most, text)
		}
	}
	each(func(_ int, pod string) { apply(t, p, id, podObject(name, pod, "1m")) })
	each(func(i int, pod string) {
		c.setPhase(t, remote, pod, corev1.PodPending, "")
		c.setPhase(t, remote, pod, corev1.PodRunning, fmt.Sprint("10.2.0.", i+1))
	})
	// Readiness and other statuses of a running pod are not recorded.
	each(func(i int, pod string) {
		var o corev1.Pod
		if !c.get(t, remote, pod, &o) {
			t.Fatalf("pod %s is gone", pod)
		}
		o.Status.Conditions = append(o.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		if err := c.owner.Status().Update(t.Context(), &o); err != nil {
			t.Fatal(err)
		}
	})
	atMost("to run", 6) // 4.1 on an idle machine: a late watch causes more requests
	each(func(_ int, pod string) {
		if err := p.Delete(t.Context(), id, podObject(name, pod, "1m").Ref, nil); err != nil {
			t.Fatal(err)
		}
	})
	eventually(t, "all are gone", func() bool {
		var left api.OffloadedPodList
		return c.owner.List(t.Context(), &left, client.InNamespace(remote)) == nil && len(left.Items) == 0
	})
	atMost("to end", 6) // 4
	// A kubelet writes that a pod ended before it deletes it: then no request is needed.
	each(func(_ int, pod string) { apply(t, p, id, podObject(name, "again-"+pod, "1m")) })
	each(func(_ int, pod string) { c.setPhase(t, remote, "again-"+pod, corev1.PodSucceeded, "") })
	y.since()
	each(func(_ int, pod string) {
		if err := p.Delete(t.Context(), id, podObject(name, "again-"+pod, "1m").Ref, nil); err != nil {
			t.Fatal(err)
		}
	})
	eventually(t, "all are gone that had ended", func() bool {
		var left api.OffloadedPodList
		return c.owner.List(t.Context(), &left, client.InNamespace(remote)) == nil && len(left.Items) == 0
	})
	atMost("to end after its end", 3.1)
}

// A pod that exists but is not in the cache is adopted and not created again; a pod of another
// owner is left alone.
func TestAPodThatTheCacheDoesNotShowIsFoundByMakingIt(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	id, name := c.fresh("cpu=1,pods=10")
	remote := name + "-" + peerA.Short()
	p, _ := c.start(t)
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	// Without the label by which the agent watches, it is in no cache.
	foreign := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: "web", UID: "another-owners"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if err := c.owner.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	err := p.Apply(t.Context(), id, podObject(name, "web", "1m"))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	eventually(t, "the consumer learns that the name is taken", func() bool {
		var o api.OffloadedPod
		return c.get(t, remote, "web", &o) && o.Status.Reason == "NameTaken" && o.Status.PodUID == ""
	})
	var still corev1.Pod
	if !c.get(t, remote, "web", &still) || still.UID != foreign.UID || len(still.Labels) > 0 {
		t.Errorf("the pod of another owner is %+v", still.ObjectMeta)
	}
	if err := c.owner.Delete(t.Context(), &still); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is made when the name is free", func() bool {
		var pod corev1.Pod
		return c.get(t, remote, "web", &pod) && pod.Labels[api.LabelOriginUID] == podObject(name, "web", "1m").Ref.UID
	})
}
