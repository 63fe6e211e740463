package offload

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/peering"
)

// revised puts other amounts into a contract's place, as its next revision does.
func (c *cluster) revised(t *testing.T, id string, edit func(*Contract)) {
	t.Helper()
	k, ok := c.contract(id)
	if !ok {
		t.Fatalf("no contract %s", id)
	}
	k.Resources = k.Resources.DeepCopy()
	edit(&k)
	c.set(id, &k)
}

func TestASmallerRevisionEndsNoPod(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=3,pods=10")
	remote := name + "-aaaaaaaa"
	apply(t, p, id, namespaceObject(name, "Suffixed"), podObject(name, "a", "1"), podObject(name, "b", "1"), podObject(name, "c", "1"))
	running := func() (n int) {
		for _, pod := range []string{"a", "b", "c"} {
			if found := (&corev1.Pod{}); c.get(t, remote, pod, found) && found.DeletionTimestamp == nil {
				n++
			}
		}
		return n
	}
	eventually(t, "all run", func() bool { return running() == 3 })

	c.revised(t, id, func(k *Contract) {
		k.Resources[corev1.ResourceCPU] = resource.MustParse("1500m")
	})
	refused(t, p.Apply(t.Context(), id, podObject(name, "d", "1")), peering.RefusedQuota, true, "of which live pods use 3")
	// What is there may be applied again, and is not counted twice.
	apply(t, p, id, podObject(name, "a", "1"))
	if n := running(); n != 3 {
		t.Fatalf("%d run", n)
	}
	for i, pod := range []string{"a", "b"} {
		if err := p.Delete(t.Context(), id, podObject(name, pod, "1").Ref, new(int64(0))); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pod is gone", func() bool { return running() == 2-i })
	}
	eventually(t, "half a core is free again", func() bool { return p.Apply(t.Context(), id, podObject(name, "d", "500m")) == nil })

	c.revised(t, id, func(k *Contract) { k.Resources[corev1.ResourceCPU] = resource.MustParse("2") })
	apply(t, p, id, podObject(name, "e", "500m"))
	refused(t, p.Apply(t.Context(), id, podObject(name, "f", "1m")), peering.RefusedQuota, true, "")
}

func TestARuntimeClassCountsWithItsOverhead(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	overhead := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}
	for _, class := range []*nodev1.RuntimeClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "gvisor"}, Handler: "runsc", Overhead: &nodev1.Overhead{PodFixed: overhead}},
		{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, Handler: "secret"},
	} {
		if err := c.owner.Create(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,pods=10")
	c.revised(t, id, func(k *Contract) {
		k.RuntimeClasses, k.NodeSelector = []string{"gvisor", "gone"}, map[string]string{"gpu": "a100"}
	})
	pod := func(pod, class, cpu string) peering.Object {
		return thing(peering.KindPod, name, pod, "uid-"+pod, fmt.Sprintf(
			`{"spec":{"runtimeClassName":%q,"overhead":{"cpu":"1m"},"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":%q}}}]}}`, class, cpu))
	}
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	refused(t, p.Apply(t.Context(), id, pod("x", "secret", "100m")), peering.RefusedInvalid, true, "not part of the contract")
	refused(t, p.Apply(t.Context(), id, pod("x", "gone", "100m")), peering.RefusedInvalid, true, "any more")
	refused(t, p.Apply(t.Context(), id, pod("x", "gvisor", "800m")), peering.RefusedQuota, true, "1050m")
	apply(t, p, id, pod("a", "gvisor", "500m"))
	refused(t, p.Apply(t.Context(), id, pod("b", "gvisor", "100m")), peering.RefusedQuota, true, "live pods use 750m")
	made := &corev1.Pod{}
	eventually(t, "the pod is there", func() bool { return c.get(t, name+"-aaaaaaaa", "a", made) })
	if got := made.Spec.Overhead[corev1.ResourceCPU]; got.String() != "250m" || *made.Spec.RuntimeClassName != "gvisor" {
		t.Errorf("it takes %s more and runs by %s", got.String(), *made.Spec.RuntimeClassName)
	}
	terms := made.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 2 || terms[0].MatchExpressions[1].Key != "gpu" {
		t.Errorf("it may run on %v", terms)
	}
}
