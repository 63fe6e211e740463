package controller

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// PlanTunnel returns what the fabric has to do for a peer, all but what is open,
// and what is left out of it or waited for. It is nil while there is nothing to
// do. local is this cluster's pod prefixes, standing the Tunnel as it is, if there
// is one. It needs both sides' word: the peer's gateways and prefixes, the aliases
// it uses for this cluster's, and the aliases this cluster uses for the peer's. A
// prefix without an alias is left out, and keeps no other from its way.
func PlanTunnel(fc *v1alpha1.ForeignCluster, local []netip.Prefix, standing *v1alpha1.TunnelSpec) (*v1alpha1.TunnelSpec, string) {
	network := fc.Status.Network
	if network == nil || len(network.Gateways) == 0 {
		return nil, "waiting for the peer to name its gateways: its fabric is not up yet, or its agent has not connected since the contract was signed"
	}
	spec := &v1alpha1.TunnelSpec{
		ForeignCluster: fc.Name,
		PeerID:         fc.Spec.ClusterID,
		Gateways:       network.Gateways,
		Nodes:          network.Nodes,
	}
	var left []string
	unnamed := 0
	for _, prefix := range local {
		alias, ok := aliasOf(network.Aliases, prefix.String())
		if !ok && standing != nil {
			// What the peer called it before, unless it calls another one so now.
			before, had := aliasOf(standing.Local, prefix.String())
			alias, ok = before, had && !overlapsAny(network.Aliases, before)
		}
		if !ok {
			if unnamed++; unnamed == 1 {
				left = append(left, fmt.Sprintf("waiting for the peer to choose an alias for this cluster's prefix %s", prefix))
			}
			continue
		}
		spec.Local = append(spec.Local, v1alpha1.PrefixAlias{Prefix: prefix.String(), Alias: alias})
	}
	if unnamed > 1 {
		left[0] += fmt.Sprintf(" and %d others", unnamed-1)
	}
	for _, prefix := range network.Prefixes {
		alias, ok := aliasOf(fc.Status.Aliases, prefix)
		if !ok {
			left = append(left, fmt.Sprintf("no alias is left in this cluster for the peer's prefix %s: widen --alias-pool", prefix))
			continue
		}
		spec.Remote = append(spec.Remote, v1alpha1.PrefixAlias{Prefix: prefix, Alias: alias})
	}
	waits := strings.Join(left, "; ")
	switch {
	case len(local) == 0 || len(network.Prefixes) == 0:
		return nil, "a side has no pod prefixes: set --pod-cidr where nodes have no spec.podCIDR"
	case len(spec.Local) == 0 || len(spec.Remote) == 0:
		return nil, waits
	}
	return spec, waits
}

// overlapsAny says whether an alias, as text, overlaps one of the list.
func overlapsAny(aliases []v1alpha1.PrefixAlias, alias string) bool {
	p, err := netip.ParsePrefix(alias)
	return err != nil || slices.ContainsFunc(aliases, func(a v1alpha1.PrefixAlias) bool {
		q, err := netip.ParsePrefix(a.Alias)
		return err == nil && q.Overlaps(p)
	})
}

func aliasOf(aliases []v1alpha1.PrefixAlias, prefix string) (string, bool) {
	for _, a := range aliases {
		if a.Prefix == prefix {
			return a.Alias, true
		}
	}
	return "", false
}

// PlanAliases returns the aliases for a peer's prefixes: those that stand stay,
// others are allocated, and those of prefixes that are gone go. taken is what
// this cluster uses itself or gave to other peers. An error says which prefixes
// have no alias; all others have.
//
// Aliases come from the pool alone, even where the peer's own prefix is free
// here: what a peer announces becomes routes on every node, and a peer that
// announced somebody else's addresses would be sent what is meant for them.
func PlanAliases(have []v1alpha1.PrefixAlias, prefixes []string, pool, taken []netip.Prefix,
	allocate func(taken []netip.Prefix, wanted netip.Prefix) (netip.Prefix, error),
) ([]v1alpha1.PrefixAlias, error) {
	taken = slices.Clone(taken)
	var out []v1alpha1.PrefixAlias
	var lacks []error
	var missing []netip.Prefix
	room := map[bool]float64{false: share(pool, false), true: share(pool, true)} // by whether IPv6
	take := func(p netip.Prefix) bool {
		six, size := p.Addr().Is6(), sizeOfPrefix(p)
		if size > room[six] {
			return false
		}
		room[six] -= size
		return true
	}
	for _, text := range prefixes {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix != prefix.Masked() {
			lacks = append(lacks, fmt.Errorf("the peer announces %q, which is not a prefix", text))
			continue
		}
		alias, ok := aliasOf(have, text)
		kept, err := netip.ParsePrefix(alias)
		inPool := func(p netip.Prefix) bool { return p.Bits() <= kept.Bits() && p.Overlaps(kept) }
		if !ok || err != nil || kept.Bits() != prefix.Bits() || !slices.ContainsFunc(pool, inPool) || slices.ContainsFunc(taken, kept.Overlaps) || !take(prefix) {
			missing = append(missing, prefix)
			continue
		}
		taken = append(taken, kept)
		out = append(out, v1alpha1.PrefixAlias{Prefix: text, Alias: alias})
	}
	for _, prefix := range missing {
		if !take(prefix) {
			lacks = append(lacks, fmt.Errorf("alias for the peer's prefix %s: a peer can have one part in %d of the alias pool of a family: widen --alias-pool, or have the peer announce less", prefix, aliasShare))
			continue
		}
		alias, err := allocate(taken, prefix)
		if err != nil {
			lacks = append(lacks, fmt.Errorf("alias for the peer's prefix %s: %w", prefix, err))
			continue
		}
		taken = append(taken, alias)
		out = append(out, v1alpha1.PrefixAlias{Prefix: prefix.String(), Alias: alias.String()})
	}
	slices.SortFunc(out, func(a, b v1alpha1.PrefixAlias) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return out, errors.Join(lacks...)
}

// share is how much of the pool one peer can have of a family.
func share(pool []netip.Prefix, six bool) float64 {
	all := 0.0
	for _, p := range pool {
		if p.Addr().Is6() == six {
			all += sizeOfPrefix(p)
		}
	}
	return all / aliasShare
}

// sizeOfPrefix is how many addresses a prefix has.
func sizeOfPrefix(p netip.Prefix) float64 {
	return math.Exp2(float64(p.Addr().BitLen() - p.Bits()))
}

// nodeNetworks returns the networks that nodes with these addresses are in, as far as
// can be told: each address with its neighbours, and all from the first to the last of
// a family where they are close.
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
	for _, cover := range all {
		out = append(out, cover)
	}
	return out
}
