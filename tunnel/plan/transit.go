package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// transit adds the flows that peers may open, once all aliases are known: a peer may reach
// addresses of another one through this cluster.
func (p *planner) transit() {
	known := map[string]cidr.Set{}
	for _, q := range p.peers {
		known[q.ClusterID] = cidr.Of(q.Aliases()...)
	}
	for i := range p.peers {
		q := &p.peers[i]
		q.Transit = p.fitTransit(*q, known)
		p.open(*q, known[q.ClusterID].Joined())
		at := slices.IndexFunc(p.out.Translations, func(t Translation) bool { return t.Cluster == q.ClusterID })
		for _, t := range q.Transit {
			p.out.Transit = append(p.out.Transit, t.Real.Addr())
			if at >= 0 {
				p.out.Translations[at].Local = append(p.out.Translations[at].Local, t.Mapping)
			}
		}
	}
}

// fitTransit returns the addresses of other peers for which a peer has an alias, if they belong to the
// peers that the transit names, and the aliases are a bijection together with those of our own
// addresses.
func (p *planner) fitTransit(q Peer, known map[string]cidr.Set) []Transit {
	var taken []netip.Prefix
	for _, m := range q.Local {
		taken = append(taken, m.Alias)
	}
	local := cidr.Of(taken...)
	var out []Transit
	var left leftOut
	real, alias := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, t := range q.Transit {
		err := checkMapping(t.Mapping)
		switch {
		case err != nil:
		case !t.Real.IsSingleIP() || !t.Alias.IsSingleIP():
			err = fmt.Errorf("%v is not a single address", t.Real)
		case len(out) >= maxAddresses:
			err = fmt.Errorf("the limit is %d addresses (maxAddresses)", maxAddresses)
		case t.Cluster == q.ClusterID:
			err = fmt.Errorf("%v is the peer's own", t.Real.Addr())
		case !known[t.Cluster].Contains(t.Real.Addr()):
			err = fmt.Errorf("%v is not an alias of cluster %s", t.Real.Addr(), t.Cluster)
		case real[t.Real.Addr()] || alias[t.Alias.Addr()] || local.Contains(t.Alias.Addr()):
			err = fmt.Errorf("%v or its alias %v is listed twice", t.Real.Addr(), t.Alias.Addr())
		}
		if err != nil {
			left.add(1, "%w", err)
			continue
		}
		real[t.Real.Addr()], alias[t.Alias.Addr()] = true, true
		out = append(out, t)
	}
	p.reportLeftOut(q.ClusterID, "an address of another peer", left)
	return out
}
