// Package stored converts aliases from and to the status of a ForeignCluster.
package stored

import (
	"cmp"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases"
)

// Space returns the part of the alias pool that a peer uses, by its status.
func Space(s v1alpha1.ForeignClusterStatus) aliases.Space {
	var out aliases.Space
	for _, a := range s.Aliases {
		if p, err := netip.ParsePrefix(a.Alias); err == nil {
			out.Prefixes = append(out.Prefixes, p)
		}
	}
	for _, b := range s.AliasBlocks {
		if p, err := netip.ParsePrefix(b.Alias); err == nil {
			out.Blocks = append(out.Blocks, p)
		}
	}
	return out
}

// Pool returns all prefixes of the alias pool that a peer uses, by its status.
func Pool(s v1alpha1.ForeignClusterStatus) []netip.Prefix {
	space := Space(s)
	return slices.Concat(space.Prefixes, space.Blocks)
}

// Allocation reads the aliases of a status. Malformed ones are left out.
func Allocation(prefixes []v1alpha1.PrefixAlias, blocks []v1alpha1.AliasBlock) aliases.Allocation {
	var out aliases.Allocation
	for _, a := range prefixes {
		prefix, err := netip.ParsePrefix(a.Prefix)
		alias, aliasErr := netip.ParsePrefix(a.Alias)
		if err == nil && aliasErr == nil {
			out.Prefixes = append(out.Prefixes, aliases.Alias{Prefix: prefix, Alias: alias})
		}
	}
	for _, b := range blocks {
		alias, err := netip.ParsePrefix(b.Alias)
		if err != nil {
			continue
		}
		block := aliases.Block{Alias: alias, Slots: make([]aliases.Slot, len(b.Addresses))}
		for i, text := range b.Addresses {
			block.Slots[i].Addr, _ = netip.ParseAddr(text)
		}
		for _, r := range b.Released {
			if int(r.Index) < len(block.Slots) && r.Index >= 0 {
				block.Slots[r.Index].Released = r.Time.Time
			}
		}
		out.Blocks = append(out.Blocks, block)
	}
	return out
}

// Status writes an allocation to a status.
func Status(g aliases.Allocation) (prefixes []v1alpha1.PrefixAlias, blocks []v1alpha1.AliasBlock) {
	for _, a := range g.Prefixes {
		prefixes = append(prefixes, v1alpha1.PrefixAlias{Prefix: a.Prefix.String(), Alias: a.Alias.String()})
	}
	slices.SortFunc(prefixes, func(a, b v1alpha1.PrefixAlias) int { return cmp.Compare(a.Prefix, b.Prefix) })
	for _, b := range g.Blocks {
		block := v1alpha1.AliasBlock{Alias: b.Alias.String(), Addresses: make([]string, len(b.Slots))}
		for i, s := range b.Slots {
			if s.Addr.IsValid() {
				block.Addresses[i] = s.Addr.String()
			}
			if !s.Released.IsZero() {
				block.Released = append(block.Released, v1alpha1.ReleasedAlias{Index: int32(i), Time: metav1.NewTime(s.Released)})
			}
		}
		blocks = append(blocks, block)
	}
	return prefixes, blocks
}
