package fabric

import (
	"fmt"
	"slices"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/probe"
)

// endOf returns the status of the end-to-end probes of a peer. It changes only with their state.
func endOf(e tunnel.EndStatus) v1alpha1.FabricEndToEnd {
	out := v1alpha1.FabricEndToEnd{PeerID: e.Cluster, State: "Unknown"}
	at := fmt.Sprintf("node %s of the peer (%v here)", e.Node, e.Addr)
	since := e.Since.UTC().Format(time.RFC3339)
	switch e.State {
	case probe.EndUnknown:
		return out
	case probe.EndUp:
		out.State = "Up"
		return out
	case probe.EndLargeLost:
		out.State = "LargePacketsLost"
		out.Message = fmt.Sprintf("large packets from pods to %s are lost since %s, though small ones pass: look at the MTU of the networks between the nodes of each of the two clusters, and whether ICMP errors pass there", at, since)
	case probe.EndBlocked:
		out.State = "Blocked"
		out.Message = fmt.Sprintf("packets of pods reach %s, which does not forward them to its pods since %s: the peer's administrator has to set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1 there", at, since)
	case probe.EndDown:
		out.State = "Down"
		out.Message = fmt.Sprintf("packets of pods to %s are lost since %s: if the paths of this node are up, look at the fabric and the firewall of that node, and at the tunnel between it and its own gateways", at, since)
	}
	switch more := e.Bad - 1; {
	case more == 1:
		out.Message += "; the way to 1 more node of the peer does not pass all packets either"
	case more > 1:
		out.Message += fmt.Sprintf("; the ways to %d more nodes of the peer do not pass all packets either", more)
	}
	out.Node, out.Message = e.Node, peering.Text(out.Message, peering.MaxMessageLen)
	return out
}

// isAnnounced reports whether a node is announced to peers: among the gateways, or among the other nodes
// that can be announced, it must be one of the first by name.
func isAnnounced(nodes []v1alpha1.FabricNode, name string) bool {
	var names []string
	self := slices.IndexFunc(nodes, func(n v1alpha1.FabricNode) bool { return n.Name == name })
	if self < 0 {
		return false
	}
	most := peering.MaxNodes
	if nodes[self].Spec.Gateway {
		most = peering.MaxGateways
	}
	for i := range nodes {
		n := &nodes[i]
		if n.Spec.Gateway == nodes[self].Spec.Gateway && (n.Spec.Gateway || len(n.Spec.AnnouncedPodCIDRs) > 0) && n.Status.PublicKey != "" && n.Status.OverlayAddress != "" {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	at := slices.Index(names, name)
	return at >= 0 && at < most
}
