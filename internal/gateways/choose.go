package gateways

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// candidate is the part of a node's state that decides whether it should be a gateway.
type candidate struct {
	name string
	// label is the value of its label v1alpha1.LabelGateway; empty without the label.
	label string
	// gateway says that it is a gateway now.
	gateway bool
	// able says that its fabric has announced a key, works that its Node is Ready and its
	// fabric has reported lately.
	able, works bool
	// external says that it has an ExternalIP, free that no taint or
	// cordon keeps ordinary pods off it.
	external, free bool
}

func candidateOf(n *v1alpha1.FabricNode, node *corev1.Node, now time.Time) candidate {
	return candidate{
		name: n.Name, label: node.Labels[v1alpha1.LabelGateway], gateway: n.Spec.Gateway,
		able: n.Status.PublicKey != "", works: isReady(node) && !Silent(n, now),
		external: slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeExternalIP }),
		free:     isFree(node),
	}
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// isFree reports whether no taint keeps pods off a node. Taints of nodes that are not ready do not count:
// readiness counts by itself, after a while.
func isFree(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable
	})
}

// Silent reports whether a node's fabric has not reported lately.
func Silent(n *v1alpha1.FabricNode, now time.Time) bool {
	return now.Sub(n.Status.ObservedAt.Time) > reportMaxAge
}

// silent returns the names of the nodes whose fabrics are silent, sorted.
func silent(nodes []*v1alpha1.FabricNode, now time.Time) []string {
	var out []string
	for _, n := range nodes {
		if Silent(n, now) {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return out
}

// failures is since when nodes have not been working, by name.
type failures map[string]time.Time

func (f failures) next(nodes []candidate, now time.Time) failures {
	out := failures{}
	for _, n := range nodes {
		if n.works {
			continue
		}
		out[n.name] = now
		if since, known := f[n.name]; known {
			out[n.name] = since
		}
	}
	return out
}

// lasts reports whether a node has not worked for so long that another should be a gateway in its
// place.
func (f failures) lasts(name string, now time.Time) bool {
	since, failing := f[name]
	return failing && now.Sub(since) >= replaceAfter
}

// choose returns which nodes are gateways: those with the label, if there are any; else the
// first most of those without one. Nodes that work come first, then those with an external address, those
// on which pods may run, and those that are gateways already.
func choose(nodes []candidate, failing failures, most int, now time.Time) map[string]bool {
	var selected, able []candidate
	for _, n := range nodes {
		if n.label == "true" {
			selected = append(selected, n)
		}
		if n.label == "" && (n.able || n.gateway) {
			able = append(able, n)
		}
	}
	if len(selected) == 0 {
		slices.SortFunc(able, func(a, b candidate) int {
			worksA, worksB := a.works || a.gateway && !failing.lasts(a.name, now), b.works || b.gateway && !failing.lasts(b.name, now)
			return cmp.Or(
				compareBool(worksB, worksA), compareBool(b.external, a.external), compareBool(b.free, a.free),
				compareBool(b.gateway, a.gateway), cmp.Compare(a.name, b.name))
		})
		selected = able[:min(len(able), most)]
	}
	chosen := map[string]bool{}
	for _, n := range selected {
		chosen[n.name] = true
	}
	return chosen
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
