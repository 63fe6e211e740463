package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// Ends are the end-to-end probes between this node and one peer: between this node's own addresses
// among its pods' and those of the peer's nodes.
type Ends struct {
	Cluster string
	// Way is the overlay address of the node that packets to it are sent to.
	Way netip.Addr
	// Sources are this node's own addresses that have an alias at the peer. This node probes from
	// them, and the peer's nodes may probe only them.
	Sources []netip.Addr
	// Probers are the addresses of the peer's nodes that may probe Sources, by the aliases
	// under which we know them. Sorted.
	Probers []netip.Addr
	// Targets are those that this node probes. Sorted.
	Targets []EndTarget
}

// EndTarget is an address of a node of a peer, by its alias.
type EndTarget struct {
	Node string
	Addr netip.Addr
}

// ends plans the end-to-end probes of a peer, in families in which both ends have an
// address that the other knows. Addresses outside of the peer's aliases are left out.
func (p *planner) ends(q Peer, aliases []netip.Prefix, way netip.Addr) {
	out := Ends{Cluster: q.ClusterID, Way: way}
	for _, s := range p.out.Sources {
		if len(q.Probed) > 0 && slices.ContainsFunc(q.Local, func(m Mapping) bool { return m.Real.Contains(s) }) {
			out.Sources = append(out.Sources, s)
		}
	}
	theirs, taken := cidr.Set(aliases), map[netip.Addr]bool{}
	fits := func(a netip.Addr) bool {
		return theirs.Contains(a) && !taken[a] && slices.ContainsFunc(out.Sources, func(s netip.Addr) bool { return s.BitLen() == a.BitLen() })
	}
	var nodes []Probed
	for _, n := range q.Probed[:min(len(q.Probed), maxProbed)] {
		addrs := map[int]netip.Addr{} // by length: one of each family
		for _, a := range n.Addrs {
			if _, has := addrs[a.BitLen()]; !has && fits(a) {
				addrs[a.BitLen()], taken[a] = a, true
				out.Probers = append(out.Probers, a)
			}
		}
		if len(addrs) > 0 {
			nodes = append(nodes, Probed{Node: n.Node, Addrs: out.Probers[len(out.Probers)-len(addrs):]})
		}
	}
	if len(nodes) == 0 {
		return
	}
	// Each node of this cluster probes others, so that together they probe all.
	rank := func(n Probed) uint64 { return Rank(p.d.ClusterID+"/"+p.d.Node, q.ClusterID, n.Node) }
	slices.SortStableFunc(nodes, func(a, b Probed) int { return cmp.Compare(rank(b), rank(a)) })
	for _, n := range nodes[:min(len(nodes), maxEnds)] {
		for _, a := range n.Addrs {
			out.Targets = append(out.Targets, EndTarget{Node: n.Node, Addr: a})
		}
	}
	slices.SortFunc(out.Targets, func(a, b EndTarget) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.Addr.Compare(b.Addr)) })
	out.Probers = sortedAddrs(out.Probers)
	p.out.Ends = append(p.out.Ends, out)
}
