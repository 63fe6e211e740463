package market

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Supply sums up this cluster's nodes and pods, before anything of it is
// reserved.
type Supply struct {
	// nodes are those that take pods which tolerate their taints.
	nodes []nodeSupply
	// used is what the offloaded pods of each contract request, wherever they are.
	used map[string]corev1.ResourceList
}

// nodeSupply is a node that takes pods.
type nodeSupply struct {
	labels map[string]string
	// taints keep pods off that do not tolerate them.
	taints []corev1.Taint
	// free is what this cluster's own pods leave of it. It may be below zero.
	free corev1.ResourceList
	// offloaded is what offloaded pods request of it, by contract.
	offloaded map[string]corev1.ResourceList
}

// NewSupply sums up nodes and pods. Virtual nodes belong to other clusters and do not count.
// Nor do nodes that take no pods: cordoned ones, and those that are not ready. A node
// with a taint counts only for contracts whose pods tolerate it.
func NewSupply(nodes []corev1.Node, pods []corev1.Pod) Supply {
	s := Supply{used: map[string]corev1.ResourceList{}}
	index := map[string]int{}
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[v1alpha1.LabelVirtualNode] != "" || !TakesPods(n) {
			continue
		}
		index[n.Name] = len(s.nodes)
		s.nodes = append(s.nodes, nodeSupply{labels: n.Labels, taints: Taints(n), free: n.Status.Allocatable.DeepCopy()})
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

// Ended reports whether a pod no longer takes resources.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Requests returns what a pod takes. One that is being resized takes the most of
// what it has and what it is to get.
func Requests(p *corev1.Pod) corev1.ResourceList {
	if s := &p.Spec; len(s.Containers) == 1 && len(s.InitContainers)+len(s.Overhead)+len(p.Status.ContainerStatuses) == 0 && s.Resources == nil {
		out := make(corev1.ResourceList, len(s.Containers[0].Resources.Requests)+1) // all pods are summed up again and again
		maps.Copy(out, s.Containers[0].Resources.Requests)
		out[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
		return out
	}
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

// TakesPods reports whether pods that tolerate a node's taints can come to it.
func TakesPods(n *corev1.Node) bool {
	if n.Spec.Unschedulable || !n.DeletionTimestamp.IsZero() {
		return false
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Taints returns the taints of a node that keep pods off that do not tolerate them.
func Taints(n *corev1.Node) []corev1.Taint {
	var out []corev1.Taint
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	return out
}

// open reports whether pods with these tolerations can come to the node.
func (n *nodeSupply) open(tolerations []corev1.Toleration) bool {
	return !slices.ContainsFunc(n.taints, func(taint corev1.Taint) bool {
		return !slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Logger{}, &taint, false) })
	})
}

// free returns what the nodes that are in have free. Pods of contracts with a reservation use
// what is reserved, so their requests count as free. Pods of a contract whose reservation
// is gone take what they request until they are gone. A node whose requests exceed its
// capacity takes nothing from others.
func (s Supply) free(in []bool, reserves func(contract string) bool) peering.Resources {
	sum := corev1.ResourceList{}
	for i := range s.nodes {
		n := &s.nodes[i]
		if !in[i] {
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

// matching returns which nodes have the labels, and take pods with the tolerations.
func (s Supply) matching(selector map[string]string, tolerations []corev1.Toleration) []bool {
	out := make([]bool, len(s.nodes))
	for i := range s.nodes {
		out[i] = hasLabels(s.nodes[i].labels, selector) && s.nodes[i].open(tolerations)
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
		case !in[i]:
		case first:
			value, first = got, false
		case got != value:
			return ""
		}
	}
	return value
}

// architectures returns those of the nodes, sorted.
func (s Supply) architectures(in []bool) []string {
	seen := map[string]bool{}
	for i := range s.nodes {
		if arch := s.nodes[i].labels[corev1.LabelArchStable]; in[i] && arch != "" {
			seen[arch] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// amounts returns amounts as values of package peering, without those that it cannot
// represent: an odd device of one node must not keep the rest from being offered.
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

// sub subtracts amounts from those that are there; others are ignored.
func sub(from, amounts corev1.ResourceList) {
	for name, amount := range amounts {
		if left, ok := from[name]; ok {
			left.Sub(amount)
			from[name] = left
		}
	}
}
