package offload

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/peering"
)

// An ephemeral container is a write of the whole pod, and waits for the peer's budget.
func TestEphemeralContainersCountAgainstTheBudget(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	var added atomic.Int32
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if sub == "ephemeralcontainers" {
				added.Add(1)
				return nil
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	o := podObject(name, "web", "1m")
	apply(t, p, id, namespaceObject(name, "Suffixed"), o)
	remote := name + "-" + peerA.Short()
	pod, offloaded := &corev1.Pod{}, &api.OffloadedPod{}
	eventually(t, "the pod is recorded", func() bool {
		return c.get(t, remote, "web", pod) && c.get(t, remote, "web", offloaded) && offloaded.Status.PodUID == string(pod.UID)
	})
	spend(t, p, peerA)
	var over *paced.OverBudget
	offloaded.Spec.Template = runtime.RawExtension{Raw: []byte(strings.Replace(string(o.JSON), `"containers":`, `"ephemeralContainers":[{"name":"debug","image":"d"}],"containers":`, 1))}
	if err := p.updatePod(t.Context(), offloaded); !errors.As(err, &over) || added.Load() > 0 {
		t.Errorf("the pod was written %d times beyond the budget: %v", added.Load(), err)
	}
}

// A pod that is refused after its reservation releases that.
func TestARefusedPodKeepsNoRoom(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	var refuses atomic.Bool
	refuses.Store(true)
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if len((&client.CreateOptions{}).ApplyOptions(opts).DryRun) > 0 && refuses.Load() {
				return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), o.GetName(), nil)
			}
			return c.Create(ctx, o, opts...)
		},
	})
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,pods=1")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	refused(t, p.Apply(t.Context(), id, podObject(name, "one", "1")), peering.RefusedInvalid, false, "does not take")
	refuses.Store(false)
	apply(t, p, id, podObject(name, "two", "1"))
}

// holdFirst makes the first OffloadedPod that the agent creates wait, from making until made is
// closed. The object must not be read meanwhile: a client writes the API server's response into it.
func holdFirst(c *cluster) (making <-chan struct{}, made chan<- struct{}) {
	begun, end := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if pod, ok := o.(*api.OffloadedPod); ok && first.CompareAndSwap(true, false) {
				needs := pod.Spec.Requests
				pod.Spec.Requests = nil
				close(begun)
				<-end
				pod.Spec.Requests = needs
			}
			return c.Create(ctx, o, opts...)
		},
	})
	return begun, end
}

// A pod that is being created counts, whatever happens to the object meanwhile.
func TestAPodThatIsBeingMadeCounts(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	making, made := holdFirst(c)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,pods=5")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	result := make(chan error, 1)
	go func() { result <- p.Apply(t.Context(), id, podObject(name, "one", "1")) }()
	<-making
	refused(t, p.Apply(t.Context(), id, podObject(name, "two", "1")), peering.RefusedQuota, true, "cpu")
	close(made)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// A contract is not over while a pod of it is being made.
func TestAContractIsNotOverWhileAPodIsBeingMade(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	making, made := holdFirst(c)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,pods=5")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	result := make(chan error, 1)
	go func() { result <- p.Apply(t.Context(), id, podObject(name, "one", "1m")) }()
	<-making
	c.set(id, nil)
	for range 2 {
		// While a pod is left its namespace stays, so the contract is not over later either.
		left, err := p.CloseContract(t.Context(), peerA, id)
		if err != nil || left.Pods != 1 || left.Namespaces != 1 {
			t.Fatalf("left is %+v, %v, want the pod and its namespace", left, err)
		}
		refused(t, p.Apply(t.Context(), id, podObject(name, "two", "1m")), peering.RefusedContract, false, id)
	}
	close(made)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the contract is over with its pod", func() bool {
		left, err := p.CloseContract(t.Context(), peerA, id)
		return err == nil && left.None()
	})
	if pods := (&api.OffloadedPodList{}); c.owner.List(t.Context(), pods) != nil || len(pods.Items) > 0 {
		t.Errorf("left is %v", pods.Items)
	}
}

// A delete does not wait for the budget, even with a grace period.
func TestADeleteDoesNotWaitForTheBudget(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,pods=5")
	one := podObject(name, "one", "1m")
	apply(t, p, id, namespaceObject(name, "Suffixed"), one)
	spend(t, p, peerA)
	if err := p.Delete(t.Context(), id, one.Ref, new(int64(30))); err != nil {
		t.Error(err)
	}
	refused(t, p.Apply(t.Context(), id, podObject(name, "two", "1m")), peering.RefusedQuota, true, "write")
}

// spend uses up a peer's budget of writes.
func spend(t *testing.T, p *Provider, peer peering.ClusterID) {
	t.Helper()
	large := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "none", Name: "none", Labels: map[string]string{api.LabelPeer: string(peer)}},
		Data:       map[string]string{"x": strings.Repeat("x", 64<<20)},
	}
	for p.client.Room(peer) == nil {
		if err := p.client.Update(paced.Urgent(t.Context()), large); err == nil {
			t.Fatal("there is such a ConfigMap")
		}
	}
}

// What others hold still is rewritten when a consumer deletes it, though its budget is
// spent.
func TestDeletingSharedObjectsDoesNotWait(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, _ := c.start(t)
	first, ns := c.fresh("cpu=1")
	second, _ := c.fresh("cpu=1")
	config := thing(peering.KindConfigMap, ns, "config", "u-config", `{"data":{"a":"b"}}`)
	apply(t, p, first, namespaceObject(ns, "Suffixed"), config)
	apply(t, p, second, namespaceObject(ns, "Suffixed"), config)
	spend(t, p, peerA)
	for _, ref := range []peering.ObjectRef{config.Ref, namespaceObject(ns, "Suffixed").Ref} {
		if err := p.Delete(t.Context(), first, ref, nil); err != nil {
			t.Errorf("delete %s: %v", ref, err)
		}
	}
}
