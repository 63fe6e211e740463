package plan

import (
	"net/netip"
	"slices"
)

// Peers announce the keys of their nodes to each other's clusters, the next ones as well. So a peer can announce
// another's key as its own, and of two that announce the same key this cluster cannot see who has it until one of
// them completes a handshake. The keys of the home cluster's nodes are known, and no peer's.

// homeKeys returns, by key, the node of the home cluster that uses it or will use it next. Of two that announce
// the same key the one that uses it has it, else the first one.
func homeKeys(nodes []Node) map[PublicKey]string {
	out := map[PublicKey]string{}
	add := func(key PublicKey, node string) {
		if _, has := out[key]; !has && !key.IsZero() {
			out[key] = node
		}
	}
	for _, n := range nodes {
		add(n.PublicKey, n.Name)
	}
	for _, n := range nodes {
		add(n.NextKey, n.Name)
	}
	return out
}

// owners says which peer has a key of a gateway or of a node with a direct tunnel.
type owners struct {
	// claims are the clusters that announce a key as a current one, in the order of the peers.
	claims map[PublicKey][]string
	// held is the cluster that completed a handshake with a key, or else the one whose node has just replaced its
	// key by it. To announce a key as the next one is not enough: it is not in use.
	held map[PublicKey]string
	turn uint64
}

func ownersOf(peers []Peer, o Observed) owners {
	w := owners{claims: map[PublicKey][]string{}, held: map[PublicKey]string{}, turn: o.Turn}
	for _, q := range peers {
		for _, g := range q.Gateways {
			w.claim(q, g, o)
		}
	}
	for _, d := range o.Direct {
		w.claim(Peer{ClusterID: d.Cluster}, d.Gateway, o)
	}
	return w
}

// claim adds the keys that a peer announces of a node.
func (w owners) claim(q Peer, g Gateway, o Observed) {
	if !q.HasOverlay(g) {
		return // the node is left out
	}
	if by := w.claims[g.PublicKey]; !slices.Contains(by, q.ClusterID) {
		w.claims[g.PublicKey] = append(by, q.ClusterID)
	}
	for _, key := range []PublicKey{g.PublicKey, g.NextKey} {
		if o.Proven[key] == q.ClusterID {
			w.held[key] = q.ClusterID
		}
	}
	if next := g.NextKey; !next.IsZero() && w.held[next] == "" && o.InUse[GatewayOverlay(q, g)] == next {
		w.held[next] = q.ClusterID
	}
}

// of returns the peer that has a key: the one that holds it, else each of those that announce it in turn.
func (w owners) of(key PublicKey) string {
	by := w.claims[key]
	if holder := w.held[key]; holder != "" || len(by) == 0 {
		return holder
	}
	return by[w.turn%uint64(len(by))]
}

// contested reports whether the owners change with the turn.
func (w owners) contested() bool {
	for key, by := range w.claims {
		if len(by) > 1 && w.held[key] == "" {
			return true
		}
	}
	return false
}

// has returns the node that has a key; empty means none.
func (p *planner) has(key PublicKey) string {
	if node, home := p.homeKeys[key]; home && p.keys[key] == "" {
		return "node " + node
	}
	return p.keys[key]
}

// free reports whether a node of a peer can use a key next: no node of this cluster has it, no other one of the
// peer's own, and no other peer holds it. Another peer that only announces it keeps nobody from using it.
func (p *planner) free(cluster string, overlay netip.Addr, next PublicKey) bool {
	if _, home := p.homeKeys[next]; home || slices.Contains(p.owners.claims[next], cluster) {
		return false
	}
	if holder := p.owners.held[next]; holder != "" && holder != cluster {
		return false
	}
	_, taken := p.keys[next]
	return !taken || p.o.InUse[overlay] != next // another node of the peer's announced it as well, and uses it
}

// keysInUse returns which of its two keys a node uses, and the other one: as the next or the former.
// A next key that is not free is ignored.
func (p *planner) keysInUse(overlay netip.Addr, key, next PublicKey, free bool) (use, following, former PublicKey) {
	switch {
	case next.IsZero() || next == key || !free:
		return key, PublicKey{}, PublicKey{}
	case p.o.InUse[overlay] == next:
		return next, PublicKey{}, key
	}
	return key, next, PublicKey{}
}
