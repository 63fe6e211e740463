package offload

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// testTolerations runs pods of a contract on nodes with taints: they have the provider's tolerations, and
// of their consumer's only those for unreachable nodes.
func testTolerations(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=2,pods=20")
	k, _ := c.contract(id)
	gpu, granted := corev1.Toleration{Key: "gpu", Operator: "Exists", Effect: "NoSchedule"}, corev1.Toleration{Key: "dedicated", Operator: "Equal", Value: "granted"}
	k.NodeSelector, k.Tolerations = map[string]string{"kind": "gpu"}, []corev1.Toleration{gpu, granted}
	c.set(id, &k)
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	// tolerates wants a pod to be made with these tolerations, besides those that an API server adds.
	tolerates := func(pod string, want ...corev1.Toleration) {
		t.Helper()
		got := &corev1.Pod{}
		eventually(t, "pod "+pod+" is made", func() bool { return c.get(t, name+"-aaaaaaaa", pod, got) })
		has := slices.DeleteFunc(slices.Clone(got.Spec.Tolerations), func(t corev1.Toleration) bool {
			return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
		})
		if !slices.Equal(has, want) {
			t.Errorf("pod %s tolerates %+v, want %+v", pod, has, want)
		}
	}
	own := `"tolerations":[{"operator":"Exists"},{"key":"mine","operator":"Exists"},{"key":"gpu","operator":"Exists","effect":"NoExecute"},` +
		`{"key":"entente.dev/virtual-node","operator":"Exists"},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}]`
	first := classed(podObject(name, "first", "100m"), own)
	apply(t, p, id, first)
	tolerates("first", gpu, granted)

	// The policy changes: a pod that is here stays as it is, also when it is applied again.
	k.Tolerations = []corev1.Toleration{gpu}
	c.set(id, &k)
	image := first
	image.JSON = []byte(strings.Replace(string(first.JSON), `"image":"i"`, `"image":"i2"`, 1))
	apply(t, p, id, image, classed(podObject(name, "second", "100m"), own))
	tolerates("second", gpu)
	eventually(t, "the first pod has its new image", func() bool {
		pod := &corev1.Pod{}
		return c.get(t, name+"-aaaaaaaa", "first", pod) && pod.Spec.Containers[0].Image == "i2"
	})
	tolerates("first", gpu, granted)

	// Another contract on the same namespace has none.
	other, _ := c.fresh("cpu=1,pods=5")
	apply(t, p, other, namespaceObject(name, "Suffixed"), classed(podObject(name, "other", "100m"), own))
	tolerates("other")
}
