package plan

import (
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// NodeRoute is a route of the node's main table that the fabric did not make.
type NodeRoute struct {
	Prefix netip.Prefix
	// Blackhole says that packets that match no longer prefix end here.
	Blackhole bool
	// Gateway says that the route has a next hop.
	Gateway bool
	// Kind is the kind of its link, as `ip -d link` calls it; empty for hardware.
	Kind string
	// Uplink says that a default route of the node leaves by its link.
	Uplink bool
	// Addresses are those of its link.
	Addresses []netip.Addr
}

// Routed returns the prefixes of routes, except blackholes.
func Routed(routes []NodeRoute) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range routes {
		if !r.Blackhole {
			out = append(out, r.Prefix)
		}
	}
	return out
}

// podLink reports whether network plugins use links of a kind for pods. Hardware,
// VLANs and tunnels lead to other machines.
func podLink(kind string) bool {
	return slices.Contains([]string{"veth", "bridge", "openvswitch", "dummy"}, kind)
}

// here reports whether the addresses of a route's prefix are those of pods on this node: network
// plugins set blocks of the node apart with blackholes (Calico), give the node an address in
// them (Cilium, OVN-Kubernetes), or have them on a bridge or one link per pod (bridge, ptp,
// kindnet, the plugins of clouds).
func (r NodeRoute) here() bool {
	switch {
	case r.Blackhole:
		return true
	case r.Uplink || !podLink(r.Kind):
		return false
	case r.Gateway:
		return slices.ContainsFunc(r.Addresses, r.Prefix.Contains)
	}
	return true
}

// PodsOf returns the prefixes of the pods of a node, sorted, none inside another, and how many are
// left out beyond MaxNodePrefixes. They are those of the node's routes inside the cluster's pod
// prefixes, and its spec.podCIDRs where pods may be in them. Network plugins with their own address
// management do not use spec.podCIDRs; then the routes show other prefixes.
func PodsOf(cidrs, cluster []netip.Prefix, routes []NodeRoute) (pods []netip.Prefix, left int) {
	inside := slices.Concat(cidrs, cluster)
	for _, r := range routes {
		if r.here() && slices.ContainsFunc(inside, func(p netip.Prefix) bool { return cidr.Cover(p, r.Prefix) }) {
			pods = append(pods, r.Prefix)
		}
	}
	for _, c := range cidrs {
		same := func(p netip.Prefix) bool { return p.Addr().Is4() == c.Addr().Is4() }
		if !slices.ContainsFunc(pods, same) || slices.ContainsFunc(pods, c.Overlaps) {
			pods = append(pods, c)
		}
	}
	pods = cidr.Of(pods...)
	if len(pods) <= MaxNodePrefixes {
		return pods, 0
	}
	// Blocks have more pods than single addresses.
	slices.SortStableFunc(pods, func(a, b netip.Prefix) int { return (a.Bits() - a.Addr().BitLen()) - (b.Bits() - b.Addr().BitLen()) })
	left = len(pods) - MaxNodePrefixes
	return cidr.Of(pods[:MaxNodePrefixes]...), left
}
