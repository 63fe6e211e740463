package agent

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/tunnel"
)

// Desired returns what a node's fabric should do. It is nil as long as the agent
// has not told the node which cluster this is. psks are the preshared keys by
// cluster ID; a peer without one is left out, for a tunnel without it would be
// weaker than was agreed.
func Desired(name string, own []netip.Prefix, nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel, psks map[string][]byte) *tunnel.Desired {
	desired := &tunnel.Desired{Node: name}
	via := ""
	for i := range nodes {
		n := &nodes[i]
		if n.Name == name {
			desired.ClusterID = n.Spec.ClusterID
		}
		if n.Spec.Gateway && (via == "" || n.Name < via) {
			via = n.Name
		}
	}
	if desired.ClusterID == "" {
		return nil
	}
	for i := range nodes {
		n := &nodes[i]
		node := tunnel.Node{Name: n.Name, Endpoints: n.Status.Endpoints, Gateway: n.Spec.Gateway}
		if key, err := tunnel.ParsePublicKey(n.Status.PublicKey); err == nil {
			node.PublicKey = key
		}
		node.PodCIDRs = prefixes(n.Status.PodCIDRs)
		if n.Name == name {
			node.PodCIDRs = own
		}
		desired.Nodes = append(desired.Nodes, node)
	}
	// The order in which peers came to be trusted decides which of two that
	// claim the same address has it.
	ordered := slices.SortedFunc(slices.Values(tunnels), func(a, b v1alpha1.Tunnel) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for i := range ordered {
		psk, ok := psks[ordered[i].Spec.PeerID]
		if !ok || len(psk) != len(tunnel.PresharedKey{}) {
			continue
		}
		desired.Peers = append(desired.Peers, peerOf(&ordered[i].Spec, via, tunnel.PresharedKey(psk)))
	}
	return desired
}

func peerOf(spec *v1alpha1.TunnelSpec, via string, psk tunnel.PresharedKey) tunnel.Peer {
	peer := tunnel.Peer{ClusterID: spec.PeerID, Via: via, PresharedKey: psk}
	for _, g := range spec.Gateways {
		key, err := tunnel.ParsePublicKey(g.PublicKey)
		overlay, overlayErr := netip.ParseAddr(g.Overlay)
		if err != nil || overlayErr != nil {
			continue // the agent writes none such
		}
		peer.Gateways = append(peer.Gateways, tunnel.Gateway{Node: g.Name, PublicKey: key, Endpoints: g.Endpoints, Overlay: overlay})
	}
	peer.Local, peer.Remote = mappings(spec.Local), mappings(spec.Remote)
	for _, e := range spec.Allow {
		sources := make([]netip.Prefix, 0, len(e.From))
		for _, from := range e.From {
			if a, err := netip.ParseAddr(from); err == nil {
				sources = append(sources, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		// A provider decides who has which of its addresses, so naming each
		// source keeps honest neighbours apart but stops no hostile peer; past
		// the limit all of the peer's pods count as sources.
		if len(e.From) == 0 || len(sources)*len(e.To) > maxPairs {
			sources = sources[:0]
			for _, m := range peer.Remote {
				sources = append(sources, m.Alias)
			}
		}
		for _, to := range e.To {
			a, err := netip.ParseAddr(to)
			if err != nil {
				continue
			}
			for _, source := range sources {
				if source.Addr().Is4() == a.Is4() {
					peer.Inbound = append(peer.Inbound, tunnel.Pair{Source: source, Destination: netip.PrefixFrom(a, a.BitLen())})
				}
			}
		}
	}
	return peer
}

// maxPairs is how many pairs of source and destination an Exposure makes at
// most.
const maxPairs = 10_000

func mappings(aliases []v1alpha1.PrefixAlias) []tunnel.Mapping {
	var out []tunnel.Mapping
	for _, a := range aliases {
		prefix, err := netip.ParsePrefix(a.Prefix)
		alias, aliasErr := netip.ParsePrefix(a.Alias)
		if err == nil && aliasErr == nil {
			out = append(out, tunnel.Mapping{Real: prefix, Alias: alias})
		}
	}
	return out
}

func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func podCIDRs(n *corev1.Node) []netip.Prefix { return prefixes(n.Spec.PodCIDRs) }

// NodeStatus returns what a FabricNode says of a fabric: all but the time.
func NodeStatus(s tunnel.Status, own *corev1.Node) v1alpha1.FabricNodeStatus {
	status := v1alpha1.FabricNodeStatus{
		Endpoints: nodeEndpoints(own, s.ListenPort), PodCIDRs: own.Spec.PodCIDRs, Backend: string(s.Backend),
	}
	if s.PublicKey != (tunnel.PublicKey{}) {
		status.PublicKey = s.PublicKey.String()
	}
	if s.Overlay.IsValid() {
		status.Overlay = s.Overlay.String()
	}
	told := map[string]string{}
	for _, p := range s.Problems {
		if len(status.Problems) < 32 {
			status.Problems = append(status.Problems, p.Text)
		}
		if told[p.Peer] == "" {
			told[p.Peer] = p.Text
		}
	}
	for _, p := range s.Peers {
		if !p.Active {
			continue
		}
		status.Paths = append(status.Paths, pathOf(p, told[p.Cluster]))
	}
	slices.SortFunc(status.Paths, func(a, b v1alpha1.FabricPath) int { return cmp.Compare(a.PeerID, b.PeerID) })
	status.Paths = slices.CompactFunc(status.Paths, func(a, b v1alpha1.FabricPath) bool { return a.PeerID == b.PeerID })
	return status
}

func pathOf(p tunnel.PeerStatus, problem string) v1alpha1.FabricPath {
	path := v1alpha1.FabricPath{PeerID: p.Cluster, Endpoint: p.Endpoint.String(), Message: problem}
	if !p.Endpoint.IsValid() {
		path.Endpoint = ""
	}
	switch p.State {
	case tunnel.PathUp:
		path.State = "Up"
		// Coarse, so that the status does not change with each probe.
		path.RoundTripMicroseconds = coarse(p.RTT).Microseconds()
	case tunnel.PathDown:
		path.State = "Down"
		if path.Message == "" {
			path.Message = fmt.Sprintf("probes to gateway %s at UDP %s were lost since %s: check that the port is open both ways", p.Node, path.Endpoint, p.Since.UTC().Format(time.RFC3339))
		}
	default:
		path.State = "Unknown"
		if path.Message == "" {
			path.Message = fmt.Sprintf("no probe to gateway %s at UDP %s was answered yet", p.Node, path.Endpoint)
		}
	}
	return path
}

// coarse rounds a round trip up to a power of two microseconds: enough to tell a
// LAN from an ocean.
func coarse(d time.Duration) time.Duration {
	step := time.Microsecond
	for step < d {
		step *= 2
	}
	return step
}

func nodeEndpoints(n *corev1.Node, port int) []string {
	if port == 0 {
		return nil
	}
	var out []string
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && net.ParseIP(a.Address) != nil {
				out = append(out, net.JoinHostPort(a.Address, strconv.Itoa(port)))
			}
		}
	}
	if len(out) > 8 {
		out = out[:8]
	}
	return out
}
