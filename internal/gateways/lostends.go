package gateways

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// LostEnds returns a text about the nodes that lose packets of pods to a peer, by their end-to-end
// probes; empty if no node does. It ignores nodes whose fabrics are silent or gone, and those that are
// not Ready: they are not announced to peers, so their probes are not answered.
func (n Nodes) LostEnds(peer string) string {
	var first *v1alpha1.FabricNode
	var worst v1alpha1.FabricEndToEnd
	lost := 0
	for i := range n.Fabric {
		node := &n.Fabric[i]
		at := slices.IndexFunc(node.Status.EndToEnd, func(e v1alpha1.FabricEndToEnd) bool { return e.PeerID == peer })
		if at < 0 || Silent(node, n.Now) || n.Gone(node) || n.health(node.Name).NotReady {
			continue
		}
		e := node.Status.EndToEnd[at]
		if e.State != "Down" && e.State != "Blocked" && e.State != "LargePacketsLost" {
			continue
		}
		lost++
		if first == nil || worst.State == "LargePacketsLost" && e.State != worst.State {
			first, worst = node, e
		}
	}
	if first == nil {
		return ""
	}
	text := fmt.Sprintf("by the probes of node %s, %s", first.Name, worst.Message)
	switch {
	case lost == 2:
		text += "; the same on 1 more node of this cluster"
	case lost > 2:
		text += fmt.Sprintf("; the same on %d more nodes of this cluster", lost-1)
	}
	return text
}

// PodsOutside returns a text if pods of this cluster have addresses outside of its pod prefixes, by the
// address of the agent's own pod: network plugins that ignore spec.podCIDRs of nodes give all
// pods such addresses. It is empty if the agent's pod has the address of its node.
func PodsOutside(own netip.Addr, local []netip.Prefix, nodes []v1alpha1.FabricNode) string {
	if !own.IsValid() || len(local) == 0 || slices.ContainsFunc(local, func(p netip.Prefix) bool { return p.Contains(own) }) {
		return ""
	}
	for i := range nodes {
		for _, e := range nodes[i].Status.Endpoints {
			if at, err := netip.ParseAddrPort(e); err == nil && at.Addr().Unmap() == own {
				return ""
			}
		}
	}
	var texts []string
	for _, p := range local {
		texts = append(texts, p.String())
	}
	known, remedy := Some(texts), "set cluster.podCIDRs in the chart's values to all prefixes from which the network plugin gives addresses"
	if len(nodes) > 0 {
		if sources := nodes[0].Spec.ClusterPodCIDRSources; len(sources) > 0 {
			known += ", by " + Some(slices.Clone(sources))
		}
		remedy = cmp.Or(nodes[0].Spec.ClusterPodCIDRAdvice, remedy)
	}
	return fmt.Sprintf("pods of this cluster, such as the agent's at %s, are outside of its pod prefixes (%s), so no peer reaches them: %s", own, known, remedy)
}
