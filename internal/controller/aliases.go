package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// planAliases assigns aliases to a peer's prefixes and addresses, one peer at a time. lacks says which of them have
// none, and why.
func (r *Peers) planAliases(ctx context.Context, fc *v1alpha1.ForeignCluster, local []netip.Prefix) (lacks string, err error) {
	r.recall(fc.UID, func(m *peerMemory) {
		in := aliases.Input{Pool: r.AliasPool, Have: m.aliases, Now: r.Now()}
		if !m.planned {
			in.Have = stored.Allocation(fc.Status.Aliases, fc.Status.AliasBlocks)
		}
		if in.Taken, in.Avoid, err = r.taken(ctx, local); err != nil {
			return
		}
		if in.Others, err = r.spaces(ctx, fc); err != nil {
			return
		}
		in.Resting, in.JustReleased = r.released.OfOthers(fc.Spec.ClusterID, in.Now)
		result := planFor(in, fc.Status.Network, transit.Through(fc))
		r.replaceAliases(m, fc, result.Allocation)
		m.planned = true
		fc.Status.Aliases, fc.Status.AliasBlocks = stored.Status(result.Allocation)
		lacks = strings.Join(lacksOf(result, in.Pool), "; ")
	})
	return lacks, err
}

// replaceAliases replaces the aliases of a peer in memory. Those that it had go to no other peer for a while. The
// caller holds the lock.
func (r *Peers) replaceAliases(m *peerMemory, fc *v1alpha1.ForeignCluster, next aliases.Allocation) {
	had, has := m.aliases.Space(), next.Space()
	r.released.Add(fc.Spec.ClusterID, union(stored.Pool(fc.Status), slices.Concat(had.Prefixes, had.Blocks)), slices.Concat(has.Prefixes, has.Blocks), r.Now())
	m.aliases = next
}

// planFor plans aliases for the network that a peer announces. through is the third clusters of which it may name addresses.
func planFor(in aliases.Input, network *v1alpha1.PeerNetwork, through []string) aliases.Result {
	for _, text := range network.Prefixes {
		p, _ := netip.ParsePrefix(text) // what cannot be read is refused as the zero prefix
		in.Prefixes = append(in.Prefixes, p)
	}
	in.Addresses = slices.Concat(kube.Addrs(network.Addresses), transit.Accepted(network, through))
	return aliases.Plan(in)
}

// lacksOf lists what a peer announced that has no alias, and what to do.
func lacksOf(r aliases.Result, pool []netip.Prefix) []string {
	out := someTexts(r.Refused)
	for _, p := range r.ByAddress {
		same := func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }
		if !slices.ContainsFunc(pool, same) {
			out = append(out, fmt.Sprintf("no alias for the peer's prefix %v: network.aliasPool has no prefix of its family", p))
		}
	}
	if n := len(r.Unallocated); n > 0 {
		out = append(out, fmt.Sprintf("%d addresses of the peer have no alias, %v among them: it has its share of the alias pool, or %d; widen network.aliasPool, or offload less to and from it",
			n, r.Unallocated[0], peering.MaxAddresses))
	}
	return out
}

// someTexts returns the first texts of a list, and how many more there are.
func someTexts(texts []string) []string {
	const most = 3
	if len(texts) <= most {
		return texts
	}
	return append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more of the kind", len(texts)-most))
}

// taken returns the prefixes of this cluster that no alias may overlap, and those in other use by its nodes, in
// which no new alias is assigned.
func (r *Peers) taken(ctx context.Context, local []netip.Prefix) (taken, avoid []netip.Prefix, err error) {
	reserved, err := r.Reserved.now(ctx)
	if err != nil {
		return nil, nil, err
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list nodes: %w", err)
	}
	var addrs []netip.Prefix
	for i := range nodes.Items {
		addrs = append(addrs, nodeAddresses(&nodes.Items[i])...)
	}
	var fabric v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &fabric, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	for i := range fabric.Items {
		if found := fabric.Items[i].Status.Preflight; found != nil {
			avoid = append(avoid, kube.Prefixes(found.Overlaps)...)
		}
	}
	return slices.Concat(local, reserved, nodeNetworks(addrs)), cidr.Of(avoid...), nil
}

// spaces returns the part of the alias pool that each other peer has: what was assigned to it last, and what is
// stored, which may still be announced to it. The caller holds the lock.
func (r *Peers) spaces(ctx context.Context, fc *v1alpha1.ForeignCluster) ([]aliases.Space, error) {
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	var out []aliases.Space
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID == fc.UID {
			continue
		}
		space := stored.Space(other.Status)
		if m := r.memory[other.UID]; m != nil && m.planned {
			given := m.aliases.Space()
			space.Prefixes, space.Blocks = union(space.Prefixes, given.Prefixes), union(space.Blocks, given.Blocks)
		}
		if len(space.Prefixes)+len(space.Blocks) > 0 {
			out = append(out, space)
		}
	}
	return out, nil
}

// union appends the elements of b that a lacks.
func union[T comparable](a, b []T) []T {
	for _, p := range b {
		if !slices.Contains(a, p) {
			a = append(a, p)
		}
	}
	return a
}

// ownAddresses returns, in order, the addresses of this cluster that a peer has to know one by one, and how many
// more there are than can be announced to it: the addresses that it may reach, and those of nodes, by which it
// knows what has no alias. covered is the prefixes for which it has an alias. If there are too many, nodes come
// first, then addresses for which the peer has an alias.
func ownAddresses(allow []v1alpha1.Exposure, nodes []v1alpha1.FabricNode, network *v1alpha1.PeerNetwork) (out []netip.Addr, left int) {
	var covered []netip.Prefix
	for _, a := range network.Aliases {
		if p, err := netip.ParsePrefix(a.Prefix); err == nil {
			covered = append(covered, p)
		}
	}
	rank := map[netip.Addr]int{}
	add := func(texts []string, order int) {
		for _, a := range kube.Addrs(texts) {
			before, had := rank[a]
			if (!had || order < before) && aliases.Usable(a) && !slices.ContainsFunc(covered, func(p netip.Prefix) bool { return p.Contains(a) }) {
				rank[a] = order
			}
		}
	}
	for i := range nodes {
		add(nodes[i].Status.PodNetworkAddresses, 0)
	}
	known := sets.New[string]()
	for _, b := range network.AliasBlocks {
		known.Insert(b.Addresses...)
	}
	for _, e := range allow {
		if e.DestinationPeerID != "" {
			continue
		}
		for _, d := range e.To {
			for _, text := range d.Addresses {
				add([]string{text}, map[bool]int{true: 1, false: 2}[known.Has(text)])
			}
		}
	}
	out = slices.SortedFunc(maps.Keys(rank), func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(rank[a], rank[b]), a.Compare(b)) })
	if left = len(out) - peering.MaxAddresses; left > 0 {
		out = out[:peering.MaxAddresses]
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, max(left, 0)
}
