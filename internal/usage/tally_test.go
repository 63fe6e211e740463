package usage

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
)

// Whatever came and went, and whenever it is asked for, the tally is what all pods add up to.
func TestTheTallyIsWhatAllPodsAddUpTo(t *testing.T) {
	t.Parallel()
	given := &v1alpha1.LimitRange{Container: &v1alpha1.ContainerLimitRange{
		DefaultRequest: v1alpha1.LimitedResources(amountsIn("memory=64Mi", "example.com/gpu=1")),
	}}
	for seed := range uint64(20) {
		r, have := rand.New(rand.NewPCG(seed, 7)), map[string]*corev1.Pod{}
		var tally Tally
		for step := range 500 {
			name := fmt.Sprint("pod-", r.IntN(12))
			if r.IntN(4) == 0 {
				// The watch may report a deleted pod in a state that it never reported before.
				last := fixture.RandomPod(r, name)
				tally.Drop(&last)
				delete(have, name)
			} else {
				p := fixture.RandomPod(r, name)
				if r.IntN(3) > 0 {
					p.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue}}
				}
				if r.IntN(8) == 0 {
					p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: new(true)}}
				}
				tally.Set(&p)
				have[name] = &p
			}
			if r.IntN(10) == 0 {
				tally.Forget("n1")
			}
			for _, node := range []string{"n0", "n1", "nowhere"} {
				var limits *v1alpha1.LimitRange
				if r.IntN(5) == 0 {
					limits = given
				}
				var pods []corev1.Pod
				for _, p := range have {
					if p.Spec.NodeName == node {
						pods = append(pods, *p)
					}
				}
				want, left := OfPods(pods, limits)
				if got, n := tally.Of(node, limits); n != left || !equality.Semantic.DeepEqual(got, want) {
					t.Fatalf("seed %d, step %d, node %s: %d pods are left, want %d (-want +got)\n%s", seed, step, node, n, left, cmp.Diff(want, got))
				}
			}
		}
	}
}

func BenchmarkTallyOf5000Pods(b *testing.B) {
	var tally Tally
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		p := fixture.RandomPod(r, fmt.Sprint("pod-", i))
		p.Spec.NodeName = "n0"
		p.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue}}
		tally.Set(&p)
	}
	tally.Of("n0", nil)
	b.ReportAllocs()
	for i := range b.N {
		p := fixture.RandomPod(r, fmt.Sprint("pod-", i%5000))
		p.Spec.NodeName = "n0"
		tally.Set(&p)
		tally.Of("n0", nil)
	}
}
