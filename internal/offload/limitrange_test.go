package offload

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// A pod without resources counts and runs with the contract's defaults.
func testLimitRange(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,memory=1Gi")
	remote := name + "-aaaaaaaa"
	limited := func(text string) api.LimitedResources {
		return api.LimitedResources(container(text, "").Resources.Requests)
	}
	c.revised(t, id, func(k *Contract) {
		k.LimitRange = &api.LimitRange{
			Container: &api.ContainerLimitRange{
				DefaultRequest: limited("cpu=300m,memory=64Mi"), Default: limited("cpu=500m"), Max: limited("cpu=800m"),
			},
			Pod: &api.PodLimitRange{Min: limited("memory=32Mi")},
		}
	})
	silent := func(pod, more string) peering.Object {
		return thing(peering.KindPod, name, pod, "uid-"+name+"-"+pod, `{"metadata":{"labels":{"app":"web"}},"spec":{`+more+`"containers":[{"name":"c","image":"i"}]}}`)
	}
	o := silent("web", "")
	apply(t, p, id, namespaceObject(name, "Suffixed"), o, o)
	pod := &corev1.Pod{}
	eventually(t, "the pod is made", func() bool { return c.get(t, remote, "web", pod) })
	want := container("cpu=300m,memory=64Mi", "cpu=500m").Resources
	if got := pod.Spec.Containers[0].Resources; !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("it has %v, want %v", got, want)
	}
	used, _, err := p.Usage(t.Context(), id)
	if cpu, memory := used[corev1.ResourceCPU], used[corev1.ResourceMemory]; err != nil || cpu.Cmp(resource.MustParse("300m")) != 0 || memory.Cmp(resource.MustParse("64Mi")) != 0 {
		t.Errorf("it counts %v, %v", used, err)
	}

	// A change of its own resources at home is not a resize.
	changed := o
	changed.JSON = []byte(strings.Replace(string(o.JSON), `"image":"i"`, `"image":"i2"`, 1))
	apply(t, p, id, changed)
	eventually(t, "the image follows", func() bool {
		return c.get(t, remote, "web", pod) && pod.Spec.Containers[0].Image == "i2"
	})
	if got := pod.Spec.Containers[0].Resources; !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("it has %v now, want %v", got, want)
	}

	refused(t, p.Apply(t.Context(), id, podObject(name, "large", "900m")), peering.RefusedInvalid, false,
		"container c may use up to 900m cpu, and the contract's limit range allows at most 800m a container")
	tiny := podObject(name, "tiny", "1m")
	tiny.JSON = []byte(strings.Replace(string(tiny.JSON), `"cpu":"1m"`, `"cpu":"1m","memory":"1Mi"`, 1))
	refused(t, p.Apply(t.Context(), id, tiny), peering.RefusedInvalid, false, "the pod requests 1Mi memory, and the contract's limit range requires at least 32Mi a pod")

	// The quota applies to pods without resources.
	apply(t, p, id, silent("b", ""), silent("c", ""))
	refused(t, p.Apply(t.Context(), id, silent("d", "")), peering.RefusedQuota, true, "the contract has 1 cpu, of which live pods use 900m; the pod asks for 300m more")
}
