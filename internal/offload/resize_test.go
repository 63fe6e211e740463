package offload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// sized is a pod as its consumer resized it.
func sized(o peering.Object, cpu string) peering.Object {
	before, after, _ := strings.Cut(string(o.JSON), `"cpu":"`)
	_, after, _ = strings.Cut(after, `"`)
	o.JSON = []byte(before + `"cpu":"` + cpu + `"` + after)
	return o
}

// schedule puts a pod on a node of 8 cores.
func (c *cluster) schedule(t *testing.T, ns, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if err := c.owner.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi")}
	if err := c.owner.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is bound", func() bool {
		pod := &corev1.Pod{}
		if !c.get(t, ns, name, pod) {
			return false
		}
		return c.owner.SubResource("binding").Create(t.Context(), pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}) == nil
	})
}

// give acts as the kubelet: the pod's container has these resources, and the pod this condition.
func (c *cluster) give(t *testing.T, ns, name, cpu string, conditions ...corev1.PodCondition) {
	t.Helper()
	has := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	eventually(t, "the pod takes a status", func() bool {
		pod := &corev1.Pod{}
		if !c.get(t, ns, name, pod) {
			return false
		}
		pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning, conditions
		pod.Status.ObservedGeneration = pod.Generation
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "c", Image: "i", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			AllocatedResources: has, Resources: &corev1.ResourceRequirements{Requests: has},
		}}
		return c.owner.Status().Update(t.Context(), pod) == nil
	})
}

// uses waits until a contract uses so much CPU, and its pod's container is to have so much.
func (c *cluster) uses(t *testing.T, p *Provider, id, ns, name, used, asked string) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Log(last)
		}
	}()
	eventually(t, fmt.Sprintf("the contract uses %s and the pod asks for %s", used, asked), func() bool {
		all, _, err := p.Usage(t.Context(), id)
		pod := &corev1.Pod{}
		if err != nil || !c.get(t, ns, name, pod) {
			return false
		}
		u, a := all[corev1.ResourceCPU], pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]
		last = fmt.Sprintf("used %s, asked %s", u.String(), a.String())
		return u.Cmp(resource.MustParse(used)) == 0 && a.Cmp(resource.MustParse(asked)) == 0
	})
}

func testResize(t *testing.T, c *cluster) {
	if !c.real {
		t.Skip("a fake client has no such subresource")
	}
	p, stop := c.start(t)
	id, name := c.fresh("cpu=4,memory=1Gi,pods=10")
	remote := name + "-aaaaaaaa"
	web, other := podObject(name, "web", "1"), podObject(name, "other", "1")
	apply(t, p, id, namespaceObject(name, "Suffixed"), web, other)
	c.schedule(t, remote, "web")
	c.give(t, remote, "web", "1")

	apply(t, p, id, sized(web, "3"))
	c.uses(t, p, id, remote, "web", "4", "3")
	refused(t, p.Apply(t.Context(), id, podObject(name, "third", "1")), peering.RefusedQuota, true, "cpu")
	// The kubelet has not acted, so the released resources are not available yet.
	waits := corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred, LastTransitionTime: metav1.Now()}
	c.give(t, remote, "web", "1", waits)
	apply(t, p, id, sized(web, "2"))
	c.uses(t, p, id, remote, "web", "4", "2")
	refused(t, p.Apply(t.Context(), id, podObject(name, "third", "1")), peering.RefusedQuota, true, "cpu")
	stop()
	p, _ = c.start(t)
	c.uses(t, p, id, remote, "web", "4", "2")
	c.give(t, remote, "web", "2", corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	refused(t, p.Apply(t.Context(), id, podObject(name, "third", "1")), peering.RefusedQuota, true, "cpu")
	c.give(t, remote, "web", "2")
	c.uses(t, p, id, remote, "web", "3", "2")
	apply(t, p, id, podObject(name, "third", "1"))

	refused(t, p.Apply(t.Context(), id, sized(web, "2001m")), peering.RefusedQuota, true, "cpu")
	c.uses(t, p, id, remote, "web", "4", "2")
	less := web
	less.JSON = []byte(strings.Replace(string(web.JSON), `{"requests":{"cpu":"1"}}`, `{}`, 1))
	refused(t, p.Apply(t.Context(), id, less), peering.RefusedInvalid, false, "is removed")
	if err := c.owner.SubResource("resizes").Update(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: "web"}}); !notServed(err) {
		t.Errorf("for a missing subresource the API server returns %v", err)
	}
	if err := c.owner.SubResource("resize").Update(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: "none"}}); err == nil || notServed(err) {
		t.Errorf("for a missing pod it returns %v", err)
	}
	// The API server is asked before anything counts.
	guaranteed := web
	guaranteed.JSON = []byte(strings.Replace(string(web.JSON), `{"requests":{"cpu":"1"}}`, `{"requests":{"cpu":"1","memory":"1Mi"},"limits":{"cpu":"1","memory":"1Mi"}}`, 1))
	refused(t, p.Apply(t.Context(), id, guaranteed), peering.RefusedInvalid, false, "QOS")
	o := &api.OffloadedPod{}
	if c.get(t, remote, "web", o); o.Annotations[noteResizing] != "" || len(o.Spec.Requests) != 2 {
		t.Errorf("the refused resize counts: %v", o.Spec.Requests)
	}
	// What the provider's own rules add to a pod stays as it is.
	pod := &corev1.Pod{}
	if !c.get(t, remote, "web", pod) {
		t.Fatal("the pod is gone")
	}
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Mi")
	if err := c.owner.SubResource("resize").Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	apply(t, p, id, sized(web, "1500m"))
	c.uses(t, p, id, remote, "web", "4", "1500m")
	if c.get(t, remote, "web", pod); pod.Spec.Containers[0].Resources.Requests.Memory().String() != "1Mi" {
		t.Errorf("the pod has %v", pod.Spec.Containers[0].Resources)
	}
	if err := c.owner.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

// An API server that resizes nothing is named as the reason, and nothing counts.
func TestAnAPIServerThatDoesNotResizeIsTheReason(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if sub == subResize {
				return apierrors.NewGenericServerResponse(http.StatusNotFound, "put", corev1.Resource("pods"), o.GetName(), "404 page not found", 0, true)
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	p, _ := c.start(t)
	id, name := c.fresh("cpu=2")
	web := podObject(name, "web", "1")
	apply(t, p, id, namespaceObject(name, "Suffixed"), web)
	eventually(t, "the pod is made", func() bool { return c.get(t, name+"-aaaaaaaa", "web", &corev1.Pod{}) })
	refused(t, p.Apply(t.Context(), id, sized(web, "2")), peering.RefusedInvalid, false, "does not serve pods/resize")
	apply(t, p, id, podObject(name, "other", "1"))
}

func testResizesAtOnce(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=2,pods=50")
	pods := make([]peering.Object, 10)
	for i := range pods {
		pods[i] = podObject(name, fmt.Sprint("web-", i), "100m")
	}
	apply(t, p, id, append([]peering.Object{namespaceObject(name, "Suffixed")}, pods...)...)
	for _, o := range pods {
		eventually(t, "a pod is made", func() bool { return c.get(t, name+"-aaaaaaaa", o.Ref.Name, &corev1.Pod{}) })
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var ok, no int
	for _, o := range pods {
		wg.Go(func() {
			err := p.Apply(t.Context(), id, sized(o, "400m"))
			mu.Lock()
			defer mu.Unlock()
			var r *peering.Refusal
			switch {
			case err == nil:
				ok++
			case errors.As(err, &r) && r.Reason == peering.RefusedQuota:
				no++
			default:
				t.Errorf("apply: %v", err)
			}
		})
	}
	wg.Wait()
	if ok != 3 || no != 7 {
		t.Errorf("%d resized and %d refused, want 3 and 7", ok, no)
	}
}
