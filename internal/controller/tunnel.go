package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Exposed is what one peer may reach in this cluster.
type Exposed struct {
	// From is addresses of the peer as this cluster knows them; nil is all of
	// the peer's prefixes.
	From []netip.Addr
	// To is addresses of this cluster.
	To []netip.Addr
}

// PlanTunnel returns what the fabric has to do for a peer, or why there is
// nothing to do yet. local is this cluster's pod prefixes. It needs both sides'
// word: the peer's gateways and prefixes, the aliases it uses for this
// cluster's, and the aliases this cluster uses for the peer's.
func PlanTunnel(fc *v1alpha1.ForeignCluster, local []netip.Prefix, exposed []Exposed) (*v1alpha1.TunnelSpec, string) {
	network := fc.Status.Network
	if network == nil || len(network.Gateways) == 0 {
		return nil, "waiting for the peer to name its gateways: its fabric is not up yet, or its agent has not connected since the contract was signed"
	}
	spec := &v1alpha1.TunnelSpec{
		ForeignCluster: fc.Name,
		PeerID:         fc.Spec.ClusterID,
		Gateways:       network.Gateways,
	}
	for _, prefix := range local {
		alias, ok := aliasOf(network.Aliases, prefix.String())
		if !ok {
			return nil, fmt.Sprintf("waiting for the peer to choose an alias for this cluster's prefix %s", prefix)
		}
		spec.Local = append(spec.Local, v1alpha1.PrefixAlias{Prefix: prefix.String(), Alias: alias})
	}
	for _, prefix := range network.Prefixes {
		alias, ok := aliasOf(fc.Status.Aliases, prefix)
		if !ok {
			return nil, fmt.Sprintf("no alias is left in this cluster for the peer's prefix %s: widen --alias-pool", prefix)
		}
		spec.Remote = append(spec.Remote, v1alpha1.PrefixAlias{Prefix: prefix, Alias: alias})
	}
	if len(spec.Local) == 0 || len(spec.Remote) == 0 {
		return nil, "a side has no pod prefixes: set --pod-cidr where nodes have no spec.podCIDR"
	}
	for _, e := range exposed {
		if len(e.To) == 0 || (e.From != nil && len(e.From) == 0) {
			continue
		}
		spec.Allow = append(spec.Allow, v1alpha1.Exposure{From: addresses(e.From), To: addresses(e.To)})
	}
	return spec, ""
}

func aliasOf(aliases []v1alpha1.PrefixAlias, prefix string) (string, bool) {
	for _, a := range aliases {
		if a.Prefix == prefix {
			return a.Alias, true
		}
	}
	return "", false
}

// addresses returns the addresses as text, sorted, each once, so that the same
// set is always the same object.
func addresses(addrs []netip.Addr) []string {
	if addrs == nil {
		return nil
	}
	sorted := slices.Clone(addrs)
	slices.SortFunc(sorted, netip.Addr.Compare)
	sorted = slices.Compact(sorted)
	out := make([]string, 0, len(sorted))
	for _, a := range sorted {
		out = append(out, a.String())
	}
	return out
}

// PlanAliases returns the aliases for a peer's prefixes: those that stand stay,
// others are allocated, and those of prefixes that are gone go. taken is what
// this cluster uses itself or gave to other peers.
//
// Aliases come from the pool alone, even where the peer's own prefix is free
// here: what a peer announces becomes routes on every node, and a peer that
// announced somebody else's addresses would be sent what is meant for them.
func PlanAliases(have []v1alpha1.PrefixAlias, prefixes []string, pool, taken []netip.Prefix,
	allocate func(taken []netip.Prefix, wanted netip.Prefix) (netip.Prefix, error),
) ([]v1alpha1.PrefixAlias, error) {
	taken = slices.Clone(taken)
	var out []v1alpha1.PrefixAlias
	var missing []netip.Prefix
	for _, text := range prefixes {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix != prefix.Masked() {
			return nil, fmt.Errorf("the peer announces %q, which is not a prefix", text)
		}
		alias, ok := aliasOf(have, text)
		kept, err := netip.ParsePrefix(alias)
		inPool := func(p netip.Prefix) bool { return p.Bits() <= kept.Bits() && p.Overlaps(kept) }
		if !ok || err != nil || kept.Bits() != prefix.Bits() || !slices.ContainsFunc(pool, inPool) || slices.ContainsFunc(taken, kept.Overlaps) {
			missing = append(missing, prefix)
			continue
		}
		taken = append(taken, kept)
		out = append(out, v1alpha1.PrefixAlias{Prefix: text, Alias: alias})
	}
	for _, prefix := range missing {
		alias, err := allocate(taken, prefix)
		if err != nil {
			return nil, fmt.Errorf("alias for the peer's prefix %s: %w", prefix, err)
		}
		taken = append(taken, alias)
		out = append(out, v1alpha1.PrefixAlias{Prefix: prefix.String(), Alias: alias.String()})
	}
	slices.SortFunc(out, func(a, b v1alpha1.PrefixAlias) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return out, nil
}
