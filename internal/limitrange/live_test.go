package limitrange

import (
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/charttest"
)

// Kubernetes itself applies a LimitRange to pods, or refuses them.
func TestLimitRangesAreThoseOfKubernetesOnARealAPIServer(t *testing.T) {
	server := charttest.StartAPIServer(t)
	owner, err := kubernetes.NewForConfig(server.Owner)
	if err != nil {
		t.Fatal(err)
	}
	const space = "ranges"
	if _, err := owner.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bounds := &api.LimitRange{
		Container: &api.ContainerLimitRange{
			DefaultRequest: limited("cpu=200m memory=64Mi"), Default: limited("cpu=500m memory=128Mi"),
			Min: limited("cpu=100m"), Max: limited("cpu=1 memory=256Mi"),
		},
		Pod: &api.PodLimitRange{Min: limited("memory=80Mi"), Max: limited("cpu=1500m memory=512Mi")},
	}
	if _, err := owner.CoreV1().LimitRanges(space).Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "bounds"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
			{
				Type: corev1.LimitTypeContainer, DefaultRequest: corev1.ResourceList(bounds.Container.DefaultRequest), Default: corev1.ResourceList(bounds.Container.Default),
				Min: corev1.ResourceList(bounds.Container.Min), Max: corev1.ResourceList(bounds.Container.Max),
			},
			{Type: corev1.LimitTypePod, Min: corev1.ResourceList(bounds.Pod.Min), Max: corev1.ResourceList(bounds.Pod.Max)},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	taken, refused := 0, 0
	for range 300 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: space}}
		pod.Spec.InitContainers, pod.Spec.Containers = randomContainers(r, "i", r.IntN(2)), randomContainers(r, "c", 1+r.IntN(2))
		pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = "default", new(false)
		own := pod.DeepCopy()
		Fill(&own.Spec, bounds)
		problem := Check(&own.Spec, bounds)
		got, err := owner.CoreV1().Pods(space).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case apierrors.IsInvalid(err):
			// A default limit below the request: Kubernetes takes no such pod, and here it is the request.
			continue
		case (err != nil) != (problem != nil):
			t.Errorf("%s\nKubernetes says %v, and we %v", describe(pod), err, problem)
		case err != nil:
			refused++
			continue
		default:
			taken++
		}
		if err != nil {
			continue
		}
		ours := slices.Concat(own.Spec.InitContainers, own.Spec.Containers)
		for i, c := range slices.Concat(got.Spec.InitContainers, got.Spec.Containers) {
			if !equality.Semantic.DeepEqual(c.Resources, ours[i].Resources) {
				t.Errorf("%s\ncontainer %s has %v, and %v of Kubernetes", describe(pod), c.Name, ours[i].Resources, c.Resources)
			}
		}
	}
	if taken < 20 || refused < 20 {
		t.Errorf("%d pods were taken and %d refused: too few for a result", taken, refused)
	}
}

func randomContainers(r *rand.Rand, name string, n int) (out []corev1.Container) {
	amount := func(list *corev1.ResourceList, resourceName corev1.ResourceName, texts ...string) {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		if text := texts[r.IntN(len(texts))]; text != "" {
			(*list)[resourceName] = resource.MustParse(text)
		}
	}
	for i := range n {
		c := corev1.Container{Name: name + string(rune('a'+i)), Image: "i"}
		amount(&c.Resources.Requests, "cpu", "", "", "50m", "100m", "500m")
		amount(&c.Resources.Requests, "memory", "", "", "16Mi", "128Mi")
		amount(&c.Resources.Limits, "cpu", "", "", "500m", "1", "2")
		amount(&c.Resources.Limits, "memory", "", "", "128Mi", "256Mi", "1Gi")
		if name == "i" && r.IntN(2) == 0 {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		out = append(out, c)
	}
	return out
}

func describe(p *corev1.Pod) (out string) {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			text := c.Name
			if c.RestartPolicy != nil {
				text += " (sidecar)"
			}
			for name, q := range c.Resources.Requests {
				text += " " + string(name) + ">=" + q.String()
			}
			for name, q := range c.Resources.Limits {
				text += " " + string(name) + "<=" + q.String()
			}
			out += text + "; "
		}
	}
	return out
}
