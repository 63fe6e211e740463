package controller

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// plain makes a supply comparable: amounts as text, without what is nothing.
func plain(s supply) map[string]string {
	out := map[string]string{}
	put := func(what string, list corev1.ResourceList) {
		for name, q := range list {
			if !q.IsZero() {
				out[what+" "+string(name)] = q.String()
			}
		}
	}
	for contract, used := range s.used {
		put("used "+contract, used)
	}
	for i, n := range s.nodes {
		put(fmt.Sprintf("%d free", i), n.free)
		for contract, lent := range n.lent {
			put(fmt.Sprintf("%d lent %s", i, contract), lent)
		}
	}
	return out
}

// randomPod is one of a few pods, as it may be at some moment.
func randomPod(r *rand.Rand, name string) corev1.Pod {
	on := []string{"", "n0", "n1", "n2", "gone"}[r.IntN(5)]
	return aPod(on, func(p *corev1.Pod) {
		p.Namespace, p.Name = "shop", name
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(r.Int64N(5000), resource.DecimalSI),
		}
		if r.IntN(2) == 0 {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = *resource.NewQuantity(r.Int64N(1<<33), resource.BinarySI)
		}
		if r.IntN(4) == 0 {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = *resource.NewQuantity(r.Int64N(3), resource.DecimalSI)
		}
		if contract := r.IntN(4); contract > 0 {
			p.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelContract: fmt.Sprint("c-", contract)}
		}
		p.Status.Phase = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}[r.IntN(5)]
	})
}

// Whatever happens to pods, and in whatever order it is told, what was counted
// piece by piece is what counting anew gives, and says so when it is another.
func TestTheTallyIsWhatCountingAnewGives(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{
		aNode("n0"), aNode("n1", func(n *corev1.Node) { n.Status.Allocatable["example.com/gpu"] = resource.MustParse("4") }),
		aNode("n2", func(n *corev1.Node) { n.Spec.Unschedulable = true }), aNode("n3"),
	}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 7))
		counts, changed := newTally(), false
		handler := counts.handler(func() { changed = true })
		pods := map[string]corev1.Pod{}
		anew := func() map[string]string {
			var list []corev1.Pod
			for _, p := range pods {
				list = append(list, p)
			}
			return plain(supplyOf(nodes, list))
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
					stale := randomPod(r, name)
					handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "shop/" + name, Obj: &stale})
				}
			case known && event == 1:
				handler.OnUpdate(&was, &was)
			case known:
				now := randomPod(r, name)
				pods[name] = now
				handler.OnUpdate(&was, &now)
			default:
				now := randomPod(r, name)
				pods[name] = now
				handler.OnAdd(&now, r.IntN(2) == 0)
			}
			if r.IntN(8) == 0 { // a node comes or goes by itself
				nodes[3].Spec.Unschedulable = !nodes[3].Spec.Unschedulable
				before = anew()
			}
			after := anew()
			if diff := cmp.Diff(after, plain(counts.supply(nodes))); diff != "" {
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
	pod := aPod("n")
	for name, tc := range map[string]struct {
		before, after *corev1.Pod
		want          bool
	}{
		"its address":           {&pod, with(&pod, func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }), false},
		"that it begins to run": {&pod, with(&pod, phase(corev1.PodRunning)), false},
		"that it ends":          {&pod, with(&pod, phase(corev1.PodFailed)), true},
		"that it is placed":     {with(&pod, func(p *corev1.Pod) { p.Spec.NodeName = "" }), &pod, true},
		"that it is resized": {&pod, with(&pod, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		}), true},
	} {
		counts := newTally()
		counts.set(tc.before)
		if got := counts.set(tc.after); got != tc.want {
			t.Errorf("%s: a change is %v, want %v", name, got, tc.want)
		}
	}
}

// BenchmarkTally is what one pod's change costs in a cluster of 1000 nodes and
// 20,000 pods; BenchmarkCountAnew what counting them anew does.
func BenchmarkTally(b *testing.B) {
	_, lists := large(b, 1000, 20_000, 0)
	counts := newTally()
	for i := range lists.pods {
		counts.set(&lists.pods[i])
	}
	for b.Loop() {
		p := &lists.pods[7]
		counts.set(p)
		counts.supply(lists.nodes)
	}
}

func BenchmarkCountAnew(b *testing.B) {
	_, lists := large(b, 1000, 20_000, 0)
	for b.Loop() {
		supplyOf(lists.nodes, lists.pods)
	}
}
