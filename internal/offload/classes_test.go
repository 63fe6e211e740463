package offload

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// classed is a pod with classes of its consumer.
func classed(o peering.Object, fields string) peering.Object {
	o.JSON = []byte(strings.Replace(string(o.JSON), `"containers":`, fields+`,"containers":`, 1))
	return o
}

func testClasses(t *testing.T, c *cluster) {
	if !c.real {
		t.Skip("a fake cluster gives no pod a priority")
	}
	for _, o := range []client.Object{
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "peers"}, Value: 100, PreemptionPolicy: new(corev1.PreemptNever)},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "pushes"}, Value: 200},
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "runsc"}, Handler: "runsc", Overhead: &nodev1.Overhead{
			PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		}},
	} {
		if err := c.owner.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := c.start(t)
	id, name := c.fresh("cpu=2,pods=20")
	k, _ := c.contract(id)
	k.Classes = podspec.Classes{
		Runtime: []api.ClassMapping{{From: "sandboxed", To: "runsc"}},
		Priority: []api.PriorityMapping{
			{From: "important", To: "peers"},
			{From: "pushy", To: "pushes"},
			{From: "urgent", To: "pushes", Preemption: corev1.PreemptLowerPriority},
			{From: "lost", To: "none"},
		},
	}
	c.set(id, &k)
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	made := func(what string, like func(s *corev1.PodSpec) bool) {
		t.Helper()
		pod := &corev1.Pod{}
		eventually(t, "pod "+what+" is made as it should be", func() bool { return c.get(t, name+"-aaaaaaaa", what, pod) && like(&pod.Spec) })
	}
	has := func(class string, priority int32, preemption corev1.PreemptionPolicy) func(s *corev1.PodSpec) bool {
		return func(s *corev1.PodSpec) bool {
			return s.PriorityClassName == class && ptr.Deref(s.Priority, -1) == priority && ptr.Deref(s.PreemptionPolicy, "") == preemption
		}
	}
	important := classed(podObject(name, "important", "100m"), `"priorityClassName":"important"`)
	apply(t, p, id, important, classed(podObject(name, "urgent", "100m"), `"priorityClassName":"urgent"`),
		classed(podObject(name, "unknown", "100m"), `"priorityClassName":"system-node-critical","priority":2000001000,"preemptionPolicy":"PreemptLowerPriority"`))
	made("important", has("peers", 100, corev1.PreemptNever))
	made("urgent", has("pushes", 200, corev1.PreemptLowerPriority))
	made("unknown", has("", 0, corev1.PreemptLowerPriority))
	refused(t, p.Apply(t.Context(), id, classed(podObject(name, "pushy", "100m"), `"priorityClassName":"pushy"`)), peering.RefusedInvalid, true, "PreemptionPolicy")
	refused(t, p.Apply(t.Context(), id, classed(podObject(name, "lost", "100m"), `"priorityClassName":"lost"`)), peering.RefusedInvalid, true, "none")

	apply(t, p, id, classed(podObject(name, "sandboxed", "100m"), `"runtimeClassName":"sandboxed"`))
	made("sandboxed", func(s *corev1.PodSpec) bool { return ptr.Deref(s.RuntimeClassName, "") == "runsc" })
	used, _, err := p.Usage(t.Context(), id)
	if q := used[corev1.ResourceCPU]; err != nil || q.Cmp(resource.MustParse("500m")) != 0 {
		t.Errorf("the contract uses %s, %v, want 500m with what the class takes", q.String(), err)
	}
	bare := classed(podObject(name, "bare", "100m"), `"runtimeClassName":"runsc"`)
	refused(t, p.Apply(t.Context(), id, bare), peering.RefusedInvalid, true, "not mapped")

	// The policy changes: a running pod keeps its classes, even when it is applied again.
	k.Classes = podspec.Classes{Runtime: []api.ClassMapping{{From: "runsc", To: "runsc"}}}
	c.set(id, &k)
	image := important
	image.JSON = []byte(strings.Replace(string(image.JSON), `"image":"i"`, `"image":"i2"`, 1))
	apply(t, p, id, image, bare, classed(podObject(name, "later", "100m"), `"priorityClassName":"important"`))
	made("important", func(s *corev1.PodSpec) bool {
		return s.Containers[0].Image == "i2" && has("peers", 100, corev1.PreemptNever)(s)
	})
	made("later", has("", 0, corev1.PreemptLowerPriority))
	made("bare", func(s *corev1.PodSpec) bool { return ptr.Deref(s.RuntimeClassName, "") == "runsc" })
}

func testPriorityNotes(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=2,pods=20")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	h := listen(t, p, id)
	pod := classed(podObject(name, "web", "100m"), `"priorityClassName":"important"`)
	apply(t, p, id, podObject(name, "plain", "100m"), pod)
	pod.JSON = []byte(strings.Replace(string(pod.JSON), `"image":"i"`, `"image":"i2"`, 1))
	apply(t, p, id, pod)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.events) != 1 || h.events[0].Ref != pod.Ref || h.events[0].Reason != "NotCarried" || h.events[0].Type != corev1.EventTypeNormal || !strings.Contains(h.events[0].Message, "priority class important to none") {
		t.Errorf("home hears %+v", h.events)
	}
}
