package market

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Supply is what this cluster's nodes and pods come to, before anything of it is
// lent.
type Supply struct {
	// nodes are those that take pods.
	nodes []nodeSupply
	// used is what the offloaded pods of each contract request, wherever they are.
	used map[string]corev1.ResourceList
}

// nodeSupply is a node that takes pods.
type nodeSupply struct {
	labels map[string]string
	// free is what this cluster's own pods leave of it. It may be below zero.
	free corev1.ResourceList
	// offloaded is what offloaded pods request of it, by contract.
	offloaded map[string]corev1.ResourceList
}

// NewSupply sorts out what there is. Virtual nodes are not ours to lend. Nodes
// that take no pods count for nothing: cordoned ones, those that are not ready,
// and those with a taint that keeps offloaded pods away, which tolerate none of
// theirs.
func NewSupply(nodes []corev1.Node, pods []corev1.Pod) Supply {
	s := Supply{used: map[string]corev1.ResourceList{}}
	index := map[string]int{}
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[v1alpha1.LabelVirtualNode] != "" || !TakesPods(n) {
			continue
		}
		index[n.Name] = len(s.nodes)
		s.nodes = append(s.nodes, nodeSupply{labels: n.Labels, free: n.Status.Allocatable.DeepCopy()})
	}
	for i := range pods {
		p := &pods[i]
		contract := OffloadedBy(p)
		at, here := index[p.Spec.NodeName]
		if (!here && contract == "") || Ended(p) {
			continue
		}
		requests := Requests(p)
		if contract != "" {
			s.used[contract] = add(s.used[contract], requests)
		}
		switch {
		case !here:
		case contract == "":
			sub(s.nodes[at].free, requests)
		default:
			n := &s.nodes[at]
			if n.offloaded == nil {
				n.offloaded = map[string]corev1.ResourceList{}
			}
			n.offloaded[contract] = add(n.offloaded[contract], requests)
		}
	}
	return s
}

// Ended says whether a pod takes nothing any more.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Requests returns what a pod takes. One that is being resized takes the most of
// what it has and what it is to get.
func Requests(p *corev1.Pod) corev1.ResourceList {
	out := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true})
	out[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return out
}

// OffloadedBy returns the contract by which a pod runs here; empty for our own.
func OffloadedBy(p *corev1.Pod) string {
	if p.Labels[v1alpha1.LabelManaged] != v1alpha1.Manager {
		return ""
	}
	return p.Labels[v1alpha1.LabelContract]
}

// TakesPods says whether offloaded pods can come to a node.
func TakesPods(n *corev1.Node) bool {
	if n.Spec.Unschedulable || !n.DeletionTimestamp.IsZero() ||
		slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }) {
		return false
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// free returns what the nodes that are in have free, where the contracts that
// reserve let their pods use what they reserve. The pods of a contract that reserves
// nothing any more take what they request until they are gone. A node that is
// overfull takes nothing from others.
func (s Supply) free(in func(node int) bool, reserves func(contract string) bool) peering.Resources {
	sum := corev1.ResourceList{}
	for i := range s.nodes {
		n := &s.nodes[i]
		if !in(i) {
			continue
		}
		left := n.free
		for contract, requested := range n.offloaded {
			if !reserves(contract) {
				left = left.DeepCopy()
				sub(left, requested)
			}
		}
		for name, amount := range left {
			if amount.Sign() > 0 {
				total := sum[name]
				total.Add(amount)
				sum[name] = total
			}
		}
	}
	return amounts(sum)
}

// matching says which nodes have the labels.
func (s Supply) matching(selector map[string]string) []bool {
	out := make([]bool, len(s.nodes))
	for i := range s.nodes {
		out[i] = hasLabels(s.nodes[i].labels, selector)
	}
	return out
}

func hasLabels(labels, wanted map[string]string) bool {
	for k, v := range wanted {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// common returns the value that a label has on all of the nodes, or nothing.
func (s Supply) common(in []bool, key string) string {
	value, first := "", true
	for i := range s.nodes {
		switch got := s.nodes[i].labels[key]; {
		case in != nil && !in[i]:
		case first:
			value, first = got, false
		case got != value:
			return ""
		}
	}
	return value
}

// architectures returns those of the nodes, sorted.
func (s Supply) architectures() []string {
	seen := map[string]bool{}
	for i := range s.nodes {
		if arch := s.nodes[i].labels[corev1.LabelArchStable]; arch != "" {
			seen[arch] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// amounts returns amounts as values of package peering. What those cannot say is
// left out: one odd device of one node is no reason to lend nothing.
func amounts(list corev1.ResourceList) peering.Resources {
	out := make(peering.Resources, len(list))
	for name, amount := range list {
		q, err := peering.ParseQuantity(amount.String())
		if err == nil && !q.IsZero() {
			out[string(name)] = q
		}
	}
	return out
}

func add(to, amounts corev1.ResourceList) corev1.ResourceList {
	if to == nil {
		return amounts.DeepCopy()
	}
	for name, amount := range amounts {
		sum := to[name]
		sum.Add(amount)
		to[name] = sum
	}
	return to
}

// sub takes amounts away from what is there; what is not there stays so.
func sub(from, amounts corev1.ResourceList) {
	for name, amount := range amounts {
		if left, ok := from[name]; ok {
			left.Sub(amount)
			from[name] = left
		}
	}
}
