package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/peering"
)

// endsOf returns the addresses from which a node probes paths end to end, at most one of each family.
func endsOf(n *v1alpha1.FabricNode) []netip.Addr {
	var out []netip.Addr
	for _, a := range kube.Addrs(n.Status.PodNetworkAddresses) {
		if len(out) < peering.MaxSources && !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// dropUnreadyProbes removes from the network, as announced, the nodes that respond to end-to-end probes but are not
// Ready: they may be switched off, and their pods go elsewhere.
func (s *States) dropUnreadyProbes(ctx context.Context, network *peering.Network) error {
	var nodes corev1.NodeList
	if err := s.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	away := map[string]bool{}
	for i := range nodes.Items {
		away[nodes.Items[i].Name] = slices.ContainsFunc(nodes.Items[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		})
	}
	for _, list := range [][]peering.Gateway{network.Gateways, network.Nodes} {
		for i := range list {
			if away[list[i].Name] {
				list[i].Sources = nil
			}
		}
	}
	return nil
}

// probed returns the nodes of a peer that probe paths end to end, with their addresses as this cluster knows them.
// Addresses without an alias are left out.
func probed(fc *v1alpha1.ForeignCluster) []v1alpha1.ProbedNode {
	given := stored.Allocation(fc.Status.Aliases, fc.Status.AliasBlocks)
	var out []v1alpha1.ProbedNode
	named := map[string]bool{}
	for _, g := range slices.Concat(fc.Status.Network.Gateways, fc.Status.Network.Nodes) {
		var aliases []string
		for _, a := range kube.Addrs(g.ProbeAddresses) {
			if alias, ok := given.Of(a); ok {
				aliases = append(aliases, alias.String())
			}
		}
		if len(aliases) > 0 && !named[g.Name] {
			named[g.Name] = true
			out = append(out, v1alpha1.ProbedNode{Node: g.Name, Addresses: aliases})
		}
	}
	return out
}
