package usage

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Tally is what pods on nodes use, updated as they come and go: to sum up thousands whenever one changes would take
// longer than everything else that follows from the change. The zero value has no pods; it is safe for concurrent use.
type Tally struct {
	mu    sync.Mutex
	pods  map[types.NamespacedName]*corev1.Pod
	nodes map[string]*nodeTally
}

// nodeTally is what the pods of a node that Of was called for use, with these limits.
type nodeTally struct {
	limits *v1alpha1.LimitRange
	used   map[corev1.ResourceName]*amount
	left   int
}

// amount is how much a number of pods use.
type amount struct {
	resource.Quantity
	pods int
}

// Set counts a pod as it is now. The caller must not change it afterwards.
func (t *Tally) Set(p *corev1.Pod) {
	t.replace(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, p)
}

// Drop forgets a pod.
func (t *Tally) Drop(p *corev1.Pod) {
	t.replace(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, nil)
}

func (t *Tally) replace(key types.NamespacedName, is *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Subtract what was added, not what the last update of a deleted pod contains.
	if was := t.pods[key]; was != nil {
		t.nodes[was.Spec.NodeName].add(was, -1)
	}
	if is == nil || is.Spec.NodeName == "" {
		delete(t.pods, key)
		return
	}
	if t.pods == nil {
		t.pods = make(map[types.NamespacedName]*corev1.Pod)
	}
	t.pods[key] = is
	t.nodes[is.Spec.NodeName].add(is, 1)
}

// Of returns what OfPods returns of the pods on a node.
func (t *Tally) Of(node string, limits *v1alpha1.LimitRange) (used corev1.ResourceList, left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.nodes[node]
	if n == nil || !equality.Semantic.DeepEqual(n.limits, limits) {
		n = &nodeTally{limits: limits.DeepCopy(), used: make(map[corev1.ResourceName]*amount)}
		for _, p := range t.pods {
			if p.Spec.NodeName == node {
				n.add(p, 1)
			}
		}
		if t.nodes == nil {
			t.nodes = make(map[string]*nodeTally)
		}
		t.nodes[node] = n
	}
	used = make(corev1.ResourceList, len(n.used))
	for name, a := range n.used {
		used[name] = a.DeepCopy()
	}
	return used, n.left
}

// Forget stops counting a node until Of is called for it again.
func (t *Tally) Forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.nodes, node)
}

// add adds a pod, or subtracts it. A nil nodeTally is a node that is not counted.
func (n *nodeTally) add(p *corev1.Pod, times int) {
	if n == nil {
		return
	}
	needs, left := ofPod(p, n.limits)
	if left {
		n.left += times
	}
	for name, need := range needs {
		a := n.used[name]
		if a == nil {
			a = &amount{}
			n.used[name] = a
		}
		if times > 0 {
			a.Add(need)
		} else {
			a.Sub(need)
		}
		if a.pods += times; a.pods == 0 {
			delete(n.used, name)
		}
	}
}
