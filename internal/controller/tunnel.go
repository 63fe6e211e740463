package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/transit"
)

// PlanTunnel returns what the fabric has to do for a peer, except for what is open, and a text that says what is
// left out or waited for. The spec is nil while there is nothing to do. local is this cluster's pod prefixes, own
// its addresses that the peer has to know one by one, passed those of third clusters that it may know, current the
// Tunnel as it is, if there is one. It needs the announcements of both sides: the peer's gateways and prefixes, the
// aliases it uses for this cluster's, and those that this cluster uses for the peer's. What has no alias is left
// out, and does not block the rest.
func PlanTunnel(fc *v1alpha1.ForeignCluster, local []netip.Prefix, own []netip.Addr, passed []v1alpha1.TransitAddresses, current *v1alpha1.TunnelSpec) (*v1alpha1.TunnelSpec, string) {
	network := fc.Status.Network
	if network == nil || len(network.Gateways) == 0 {
		return nil, "waiting for the peer to name its gateways: its fabric is not up yet, or its agent has not connected since the contract was signed"
	}
	if len(local) == 0 || len(network.Prefixes) == 0 {
		return nil, "a side has no pod prefixes: set cluster.podCIDRs in the chart's values there, as neither nodes' spec.podCIDRs nor its network plugin say any"
	}
	spec := &v1alpha1.TunnelSpec{ForeignCluster: fc.Name, PeerID: fc.Spec.ClusterID, Gateways: network.Gateways, Nodes: network.Nodes}
	some := false
	for _, prefix := range local {
		alias, ok := aliasOf(network.Aliases, prefix.String())
		if !ok && current != nil {
			// The peer's previous alias, unless it uses that for another prefix now.
			before, had := aliasOf(current.Local, prefix.String())
			if ok = had && !overlapsAny(network, before); ok {
				alias = before
			}
		}
		// A prefix without alias is known address by address, but its place has to be known all the same.
		spec.Local = append(spec.Local, v1alpha1.PrefixAlias{Prefix: prefix.String(), Alias: alias})
		some = some || ok
	}
	var unnamed []netip.Addr
	third := transit.Addresses(passed) // a peer that does not agree gives them no alias
	spec.LocalAliasBlocks, unnamed = localBlocks(network, slices.Concat(own, third))
	spec.Transit = passed
	for _, prefix := range network.Prefixes {
		alias, _ := aliasOf(fc.Status.Aliases, prefix)
		spec.Remote = append(spec.Remote, v1alpha1.PrefixAlias{Prefix: prefix, Alias: alias})
	}
	for _, b := range fc.Status.AliasBlocks {
		spec.RemoteAliasBlocks = append(spec.RemoteAliasBlocks, b.Alias)
	}
	spec.ProbedNodes = probed(fc)
	unnamed = slices.DeleteFunc(unnamed, func(a netip.Addr) bool {
		return slices.Contains(third, a) || slices.ContainsFunc(spec.Local, func(l v1alpha1.PrefixAlias) bool { return l.Alias != "" && contains(l.Prefix, a) })
	})
	if len(unnamed) == 0 {
		return spec, ""
	}
	waits := fmt.Sprintf("waiting for the peer to choose aliases for %d addresses of this cluster, %v among them: it may have no room for more", len(unnamed), unnamed[0])
	if !some && len(spec.LocalAliasBlocks) == 0 {
		return nil, waits
	}
	return spec, waits
}

// localBlocks returns the peer's aliases of addresses of this cluster: those that it has to know one by one, and no
// others. unnamed is those for which it has no alias. Of blocks that overlap the first counts.
func localBlocks(network *v1alpha1.PeerNetwork, own []netip.Addr) (out []v1alpha1.AliasBlock, unnamed []netip.Addr) {
	missing := make(map[string]bool, len(own))
	for _, a := range own {
		missing[a.String()] = true
	}
	var taken []netip.Prefix
	for _, a := range network.Aliases {
		if p, err := netip.ParsePrefix(a.Alias); err == nil {
			taken = append(taken, p)
		}
	}
	for _, b := range network.AliasBlocks {
		p, err := netip.ParsePrefix(b.Alias)
		if err != nil || slices.ContainsFunc(taken, p.Overlaps) {
			continue
		}
		taken = append(taken, p)
		block, some := v1alpha1.AliasBlock{Alias: b.Alias, Addresses: make([]string, len(b.Addresses))}, false
		for i, a := range b.Addresses {
			if missing[a] {
				block.Addresses[i], some = a, true
				delete(missing, a)
			}
		}
		if some {
			out = append(out, block)
		}
	}
	for _, a := range own {
		if missing[a.String()] {
			unnamed = append(unnamed, a)
		}
	}
	return out, unnamed
}

// contains reports whether an address is in a prefix, as text.
func contains(prefix string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(prefix)
	return err == nil && p.Contains(a)
}

// overlapsAny reports whether an alias, as text, overlaps one that a peer uses.
func overlapsAny(network *v1alpha1.PeerNetwork, alias string) bool {
	p, err := netip.ParsePrefix(alias)
	overlaps := func(text string) bool {
		q, err := netip.ParsePrefix(text)
		return err == nil && q.Overlaps(p)
	}
	return err != nil || slices.ContainsFunc(network.Aliases, func(a v1alpha1.PrefixAlias) bool { return overlaps(a.Alias) }) ||
		slices.ContainsFunc(network.AliasBlocks, func(b v1alpha1.AliasBlock) bool { return overlaps(b.Alias) })
}

func aliasOf(aliases []v1alpha1.PrefixAlias, prefix string) (string, bool) {
	for _, a := range aliases {
		if a.Prefix == prefix && a.Alias != "" {
			return a.Alias, true
		}
	}
	return "", false
}

// nodeNetworks guesses the networks of nodes with these addresses: each address with its neighbours, and the range
// from the first to the last of a family if they are close.
func nodeNetworks(addrs []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	all := map[bool]netip.Prefix{}
	for _, p := range addrs {
		six := p.Addr().Is6()
		near, far := nodeNet4, nodeNetMost4
		if six {
			near, far = nodeNet6, nodeNetMost6
		}
		out = append(out, netip.PrefixFrom(p.Addr(), near).Masked())
		cover, ok := all[six]
		if !ok {
			cover = p
		}
		for cover.Bits() > far && !cover.Contains(p.Addr()) {
			cover = netip.PrefixFrom(cover.Addr(), cover.Bits()-1).Masked()
		}
		all[six] = cover
	}
	return slices.AppendSeq(out, maps.Values(all))
}
