package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/peering"
)

// endsOf returns the addresses of a node from which it probes ways end to end, one of each family at
// most.
func endsOf(n *v1alpha1.FabricNode) []netip.Addr {
	var out []netip.Addr
	for _, a := range kube.Addrs(n.Status.Sources) {
		if len(out) < peering.MaxSources && !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// tellEnds leaves out where nodes answer end-to-end probes that are not Ready: they may be switched off, and their
// pods go elsewhere.
func (s *States) tellEnds(ctx context.Context, network *peering.Network) error {
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

// probed returns the nodes of a peer that probe ways end to end, with their addresses as this cluster
// knows them. Addresses without an alias are left out.
func probed(fc *v1alpha1.ForeignCluster) []v1alpha1.ProbedNode {
	single := map[string]string{}
	for _, b := range fc.Status.Blocks {
		p, err := netip.ParsePrefix(b.Alias)
		if err != nil {
			continue
		}
		alias := p.Masked().Addr()
		for _, a := range b.Addresses {
			if a != "" && p.Contains(alias) {
				single[a] = alias.String()
			}
			alias = alias.Next()
		}
	}
	given := givenOf(fc.Status.Aliases, nil).Prefixes
	var out []v1alpha1.ProbedNode
	named := map[string]bool{}
	for _, g := range slices.Concat(fc.Status.Network.Gateways, fc.Status.Network.Nodes) {
		var aliases []string
		for _, a := range kube.Addrs(g.Sources) {
			alias := single[a.String()]
			for _, p := range given {
				if to, ok := cidr.Remap(a, p.Prefix, p.Alias); ok {
					alias = to.String()
				}
			}
			if alias != "" {
				aliases = append(aliases, alias)
			}
		}
		if len(aliases) > 0 && !named[g.Name] {
			named[g.Name] = true
			out = append(out, v1alpha1.ProbedNode{Node: g.Name, Addresses: aliases})
		}
	}
	return out
}

// lostEnds says which nodes lose packets of pods to a peer, by their end-to-end probes; empty if none
// does. Nodes whose fabrics are silent say nothing.
func lostEnds(nodes []v1alpha1.FabricNode, peer string, now time.Time) string {
	var first *v1alpha1.FabricNode
	var worst v1alpha1.FabricEndToEnd
	lost := 0
	for i := range nodes {
		n := &nodes[i]
		at := slices.IndexFunc(n.Status.EndToEnd, func(e v1alpha1.FabricEndToEnd) bool { return e.PeerID == peer })
		if at < 0 || gateways.Silent(n, now) {
			continue
		}
		e := n.Status.EndToEnd[at]
		if e.State != "Down" && e.State != "Blocked" && e.State != "LargePacketsLost" {
			continue
		}
		lost++
		if first == nil || worst.State == "LargePacketsLost" && e.State != worst.State {
			first, worst = n, e
		}
	}
	if first == nil {
		return ""
	}
	text := fmt.Sprintf("by the probes of node %s %s", first.Name, worst.Message)
	if lost > 1 {
		text += fmt.Sprintf("; %d more nodes see such", lost-1)
	}
	return text
}
