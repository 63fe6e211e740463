package market

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Tally keeps what pods take of each node and by each contract, as pods come,
// change and go: to count tens of thousands anew for each of them takes too long
// while peers wait for an answer. What it says equals supplyOf.
type Tally struct {
	mu    sync.Mutex
	pods  map[types.NamespacedName]podShare
	nodes map[string]*nodeTally
	used  map[string]*sum
}

// podShare is what a pod that did not end takes.
type podShare struct {
	node, contract string
	requests       corev1.ResourceList
}

// nodeTally is what pods take of one node: this cluster's own, and those of each
// contract.
type nodeTally struct {
	own  sum
	lent map[string]*sum
}

// sum is what a number of pods takes. The amounts are exact, so what is added and
// taken away again leaves nothing.
type sum struct {
	amounts corev1.ResourceList
	pods    int
}

func (s *sum) add(amounts corev1.ResourceList) {
	s.amounts, s.pods = add(s.amounts, amounts), s.pods+1
}

func (s *sum) sub(amounts corev1.ResourceList) {
	sub(s.amounts, amounts)
	if s.pods--; s.pods == 0 {
		s.amounts = nil
	}
}

// NewTally counts no pods yet.
func NewTally() *Tally {
	return &Tally{pods: map[types.NamespacedName]podShare{}, nodes: map[string]*nodeTally{}, used: map[string]*sum{}}
}

// Handler has the tally follow an informer. changed is called when it says
// something else.
func (t *Tally) Handler(changed func()) toolscache.ResourceEventHandler {
	set := func(object any) {
		if p, ok := object.(*corev1.Pod); ok && t.Set(p) {
			changed()
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, after any) { set(after) },
		DeleteFunc: func(object any) {
			if name, err := toolscache.DeletionHandlingObjectToName(object); err == nil && t.remove(name.AsNamespacedName()) {
				changed()
			}
		},
	}
}

// Set counts a pod as it is now, and says whether that differs from before.
func (t *Tally) Set(p *corev1.Pod) bool {
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	share := podShare{node: p.Spec.NodeName, contract: OffloadedBy(p)}
	if ended(p) || share.node == "" && share.contract == "" {
		return t.remove(name)
	}
	share.requests = Requests(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	was, known := t.pods[name]
	if known && was.node == share.node && was.contract == share.contract && equality.Semantic.DeepEqual(was.requests, share.requests) {
		return false
	}
	if known {
		t.drop(was)
	}
	t.pods[name] = share
	t.take(share)
	return true
}

// remove counts a pod no longer, and says whether it counted.
func (t *Tally) remove(name types.NamespacedName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, known := t.pods[name]
	if known {
		delete(t.pods, name)
		t.drop(was)
	}
	return known
}

// take and drop are called with the lock held.
func (t *Tally) take(s podShare) {
	for _, to := range t.sums(s) {
		to.add(s.requests)
	}
}

func (t *Tally) drop(s podShare) {
	for _, from := range t.sums(s) {
		from.sub(s.requests)
	}
	if u := t.used[s.contract]; u != nil && u.pods == 0 {
		delete(t.used, s.contract)
	}
	n := t.nodes[s.node]
	if n == nil {
		return
	}
	if lent := n.lent[s.contract]; lent != nil && lent.pods == 0 {
		delete(n.lent, s.contract)
	}
	if n.own.pods == 0 && len(n.lent) == 0 {
		delete(t.nodes, s.node)
	}
}

// sums returns the sums of which a pod is a part.
func (t *Tally) sums(s podShare) []*sum {
	var out []*sum
	if s.contract != "" {
		out = append(out, at(t.used, s.contract))
	}
	if s.node == "" {
		return out
	}
	n := t.nodes[s.node]
	if n == nil {
		n = &nodeTally{lent: map[string]*sum{}}
		t.nodes[s.node] = n
	}
	if s.contract == "" {
		return append(out, &n.own)
	}
	return append(out, at(n.lent, s.contract))
}

func at(sums map[string]*sum, key string) *sum {
	s := sums[key]
	if s == nil {
		s = &sum{}
		sums[key] = s
	}
	return s
}

// Supply is supplyOf the nodes and the pods that are counted.
func (t *Tally) Supply(nodes []corev1.Node) Supply {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Supply{used: make(map[string]corev1.ResourceList, len(t.used))}
	for contract, used := range t.used {
		s.used[contract] = used.amounts.DeepCopy()
	}
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[v1alpha1.LabelVirtualNode] != "" || !TakesPods(n) {
			continue
		}
		out := nodeSupply{labels: n.Labels, free: n.Status.Allocatable.DeepCopy()}
		if counted := t.nodes[n.Name]; counted != nil {
			sub(out.free, counted.own.amounts)
			for contract, lent := range counted.lent {
				if out.lent == nil {
					out.lent = make(map[string]corev1.ResourceList, len(counted.lent))
				}
				out.lent[contract] = lent.amounts.DeepCopy()
			}
		}
		s.nodes = append(s.nodes, out)
	}
	return s
}
