package gateways

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// largest returns the largest prefixes of a node's pods, as many as may be announced to peers, and a
// problem for those that are left out.
func largest(pods []netip.Prefix) (announced []string, problem string) {
	sorted := slices.SortedStableFunc(slices.Values(pods), func(a, b netip.Prefix) int {
		return cmp.Compare(a.Bits()-a.Addr().BitLen(), b.Bits()-b.Addr().BitLen())
	})
	if left := len(sorted) - peering.MaxNodePods; left > 0 {
		sorted = sorted[:peering.MaxNodePods]
		problem = fmt.Sprintf("%d of %d pod prefixes of this node are announced to peers, the largest: pods in the other %d are reached through gateways; larger blocks of the network plugin are fewer",
			peering.MaxNodePods, len(pods), left)
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	return wire.Texts(sorted), problem
}

// beyond returns the gateways with a key that are not announced to other clusters because there are too
// many: all but the first by name.
func beyond(gateways []machine) []string {
	var names []string
	for _, g := range gateways {
		if g.fabric.Status.PublicKey != "" {
			names = append(names, g.fabric.Name)
		}
	}
	slices.Sort(names)
	return names[min(len(names), peering.MaxGateways):]
}

// noRoomForGateway and noRoomForNode return why a node is not announced to other clusters.
func noRoomForGateway(gateways int) string {
	return fmt.Sprintf("%d of %d gateways are announced to peers, the first by name, and this one is not, so that it carries nothing for them; label fewer nodes entente.dev/gateway=true",
		peering.MaxGateways, gateways)
}

func noRoomForNode(nodes int) string {
	return fmt.Sprintf("%d of %d nodes that are not gateways are announced to peers, the first by name: pods on this one are reached through gateways", peering.MaxNodes, nodes)
}
