package market

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/entente-dev/entente/internal/fixture"
)

// Whatever happens to pods, and in whatever order it is told, what was counted
// piece by piece is what counting anew gives, and says so when it is another.
func TestTheTallyIsWhatCountingAnewGives(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{
		fixture.Node("n0"), fixture.Node("n1", func(n *corev1.Node) { n.Status.Allocatable["example.com/gpu"] = resource.MustParse("4") }),
		fixture.Node("n2", func(n *corev1.Node) { n.Spec.Unschedulable = true }), fixture.Node("n3"),
	}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 7))
		counts, changed := NewTally(), false
		handler := counts.Handler(func() { changed = true })
		pods := map[string]corev1.Pod{}
		anew := func() map[string]string {
			var list []corev1.Pod
			for _, p := range pods {
				list = append(list, p)
			}
			return plain(NewSupply(nodes, list))
		}
		before := anew()
		for step := range 200 {
			name := fmt.Sprint("p", r.IntN(12))
			was, known := pods[name]
			switch event := r.IntN(5); {
			case known && event == 0:
				delete(pods, name)
				if r.IntN(2) == 0 {
					handler.OnDelete(&was)
				} else { // it went while nobody watched
					stale := fixture.RandomPod(r, name)
					handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "shop/" + name, Obj: &stale})
				}
			case known && event == 1:
				handler.OnUpdate(&was, &was)
			case known:
				now := fixture.RandomPod(r, name)
				pods[name] = now
				handler.OnUpdate(&was, &now)
			default:
				now := fixture.RandomPod(r, name)
				pods[name] = now
				handler.OnAdd(&now, r.IntN(2) == 0)
			}
			if r.IntN(8) == 0 { // a node comes or goes by itself
				nodes[3].Spec.Unschedulable = !nodes[3].Spec.Unschedulable
				before = anew()
			}
			after := anew()
			if diff := cmp.Diff(after, plain(counts.Supply(nodes))); diff != "" {
				t.Fatalf("seed %d, step %d: the tally (-anew +tally):\n%s", seed, step, diff)
			}
			if !changed && !cmp.Equal(before, after) {
				t.Fatalf("seed %d, step %d: nobody is told of the change", seed, step)
			}
			before, changed = after, false
		}
		for name := range pods {
			handler.OnDelete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}})
		}
		if len(counts.pods)+len(counts.nodes)+len(counts.used) != 0 {
			t.Fatalf("seed %d: of no pods %+v is left", seed, counts)
		}
	}
}

func TestWhatOfAPodCountsAsAChange(t *testing.T) {
	t.Parallel()
	pod := fixture.Pod("n")
	for name, tc := range map[string]struct {
		before, after *corev1.Pod
		want          bool
	}{
		"its address":           {&pod, with(&pod, func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }), false},
		"that it begins to run": {&pod, with(&pod, fixture.Phase(corev1.PodRunning)), false},
		"that it ends":          {&pod, with(&pod, fixture.Phase(corev1.PodFailed)), true},
		"that it is placed":     {with(&pod, func(p *corev1.Pod) { p.Spec.NodeName = "" }), &pod, true},
		"that it is resized": {&pod, with(&pod, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		}), true},
	} {
		counts := NewTally()
		counts.Set(tc.before)
		if got := counts.Set(tc.after); got != tc.want {
			t.Errorf("%s: a change is %v, want %v", name, got, tc.want)
		}
	}
}
