package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// Packets between a pod here and a pod of a peer can go directly, from the node of the one to
// the node of the other, past the carriers.
//
// WireGuard accepts a source from one peer of the device only, and the aliases of a cluster's
// pods belong to its carrier. Were they moved to the node of the pod, both nodes would have to do
// so in the same moment, and each packet in between would be dropped. So between the nodes of two
// pods packets have other addresses: the aliases in their direct form. A node accepts both forms all
// the time, each node decides by itself which way it sends, and no packet is lost when it changes
// the way.
//
// A node sends directly once the other has announced that it accepts the packets, by a digest of
// the pods that each of the two has, so that both mean the same pods.

// DirectBits4 and DirectByte6 make the direct form of an address: the first four bits of an IPv4
// address are set (240.0.0.0/4, which is not in use), the first byte of an IPv6 address is 0xfc (the
// half of the unique local addresses that RFC 4193 left undefined). The prefixes of aliases are always
// longer than the part that this changes.
const (
	DirectBits4 = 0xf0
	DirectByte6 = 0xfc
)

// DirectForm returns the direct form of an alias.
func DirectForm(alias netip.Prefix) netip.Prefix {
	b := alias.Masked().Addr().AsSlice()
	if len(b) == 4 {
		b[0] |= DirectBits4
	} else {
		b[0] = DirectByte6
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, alias.Bits())
}

// RemoteNode is a node of a peer with pods that can be reached directly.
type RemoteNode struct {
	// Cluster is the ID of the peer.
	Cluster string
	Gateway
	// IsGateway says that it is one of the peer's gateways.
	IsGateway bool
	// Aliases are those of its pods. Those of two nodes do not overlap. Sorted.
	Aliases []netip.Prefix
}

// Direct is a node of a peer to which this node has a tunnel.
type Direct struct {
	RemoteNode
	// Use says that packets pass the tunnel.
	Use bool
	// Received is the agreement that the other node announced last. Inherited says that it has not
	// announced one yet, and that packets were sent to it directly before this process began.
	Received  uint64
	Inherited bool
	// EntryReceived is what it announced last that it accepts for all of its cluster, and Bound
	// the prefixes in entry form that the device sends to it. Sorted.
	EntryReceived uint64
	Bound         []netip.Prefix
	// Leaving says that the tunnel is about to be given up, which is announced to the other node first.
	Leaving bool
}

// DirectPeer says which pods of a peer this node reaches directly, and for which of its own pods.
type DirectPeer struct {
	Cluster string
	// Remote are the aliases of the peer.
	Remote []netip.Prefix
	// Local are the prefixes of this node's pods that were announced to peers, with the peer's aliases
	// for them. Other pods neither send nor receive directly.
	Local []Mapping
	// Open are the aliases of pods to which this node sends directly. Sorted.
	Open []netip.Prefix
	// Enter are the aliases of pods whose packets, unless they go directly, this node sends to a
	// gateway of the peer. Sorted.
	Enter []netip.Prefix
	// Entry are the prefixes of this cluster for which this node takes packets from nodes of the
	// peer, with the peer's aliases for them.
	Entry []Mapping
}

// RemoteNodes returns the nodes of all peers that can be reached directly, in the order of the
// peers and of their own names. Announcements are checked: a node with a prefix that is
// outside of the peer's own, or overlaps that of a node before it, is left out, and its pods are
// reached through carriers.
func RemoteNodes(d Desired) (nodes []RemoteNode, problems []Problem) {
	var aliases cidr.Set // of the peers before
	room := maxDirectPrefixes
	for _, q := range d.Peers[:min(len(d.Peers), MaxPeers)] {
		// The plan leaves these aliases out, too, and reports why.
		q.Remote = slices.DeleteFunc(slices.Clone(q.Remote), func(m Mapping) bool { return aliases.Overlaps(m.Alias) })
		aliases = aliases.With(q.Aliases()...)
		var taken cidr.Set
		var refused []error
		for _, n := range announcedNodes(q) {
			var err error
			n.Aliases, err = q.directAliases(n.Gateway, taken)
			switch {
			case err != nil:
				refused = append(refused, fmt.Errorf("%s: %w", n.Node, err))
				continue
			case len(n.Aliases) > room:
				refused = append(refused, fmt.Errorf("%s: the limit of %d prefixes of all peers' nodes is reached (maxDirectPrefixes)", n.Node, maxDirectPrefixes))
				continue
			}
			room -= len(n.Aliases)
			taken = taken.With(n.Aliases...)
			nodes = append(nodes, n)
		}
		if len(refused) > 0 {
			problems = append(problems, Problem{Peer: q.ClusterID, Text: fmt.Sprintf(
				"%d of its nodes are reached through gateways only, because of what it announces of them: %v", len(refused), refused[0])})
		}
	}
	return nodes, problems
}

// announcedNodes returns the nodes of a peer that have prefixes, by name; of two with the same name the
// first.
func announcedNodes(q Peer) []RemoteNode {
	var out []RemoteNode
	gateways := q.Gateways[:min(len(q.Gateways), maxGateways)]
	for i, g := range slices.Concat(gateways, q.Nodes[:min(len(q.Nodes), maxRemoteNodes)]) {
		if len(g.Pods) > 0 {
			out = append(out, RemoteNode{Cluster: q.ClusterID, Gateway: g, IsGateway: i < len(gateways)})
		}
	}
	slices.SortStableFunc(out, func(a, b RemoteNode) int { return cmp.Compare(a.Node, b.Node) })
	return slices.CompactFunc(out, func(a, b RemoteNode) bool { return a.Node == b.Node })
}

// directAliases are the aliases of a node's pods. An error says what is wrong with the node.
func (q Peer) directAliases(n Gateway, taken cidr.Set) ([]netip.Prefix, error) {
	if len(n.Pods) > MaxDirectPods {
		return nil, fmt.Errorf("%d prefixes, the limit is %d (MaxDirectPods)", len(n.Pods), MaxDirectPods)
	}
	if n.PublicKey.IsZero() {
		return nil, errors.New("it has no WireGuard key")
	}
	if overlay, own := GatewayOverlay(q, n), overlayPrefix(q.ClusterID); !own.Contains(overlay) {
		return nil, fmt.Errorf("overlay address %v is not in its cluster's %v", overlay, own)
	}
	var all []netip.Prefix
	for _, m := range q.Remote {
		all = append(all, m.Alias)
	}
	if err := checkEndpoints(n.Endpoints, cidr.Of(all...)); err != nil {
		return nil, err
	}
	var out cidr.Set
	for _, pods := range n.Pods {
		alias, ok := within(pods, q.Remote)
		switch {
		case !ok:
			return nil, fmt.Errorf("%v is not in a prefix of the peer that has an alias here", pods)
		case taken.Overlaps(alias) || out.Overlaps(alias):
			return nil, fmt.Errorf("%v overlaps a prefix of its own or of a node before it", pods)
		}
		out = out.With(alias)
	}
	return out, nil
}

// within returns the alias of a prefix inside a mapped one, and false if it is in none.
func within(p netip.Prefix, mappings []Mapping) (netip.Prefix, bool) {
	if !p.IsValid() || p != p.Masked() {
		return netip.Prefix{}, false
	}
	for _, m := range mappings {
		if m.Real.IsValid() && cidr.Cover(m.Real, p) {
			a, ok := Remap(p.Addr(), m.Real, m.Alias)
			return netip.PrefixFrom(a, p.Bits()), ok
		}
	}
	return netip.Prefix{}, false
}

// DirectPods returns, by the name of each node, the prefixes of its pods to announce to peers, so
// that they reach these pods directly: those inside the prefixes that peers know, without those of
// other nodes, and the largest most of them.
func DirectPods(nodes []Node, known []netip.Prefix, most int) map[string][]netip.Prefix {
	nodes, _ = ownPods(nodes)
	var all []netip.Prefix
	for _, n := range nodes {
		all = append(all, n.PodCIDRs...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	out := map[string][]netip.Prefix{}
	for _, n := range nodes {
		pods := slices.DeleteFunc(cidr.Of(n.PodCIDRs...).Except(all), func(p netip.Prefix) bool {
			return !slices.ContainsFunc(known, func(k netip.Prefix) bool { return cidr.Cover(k, p) })
		})
		slices.SortStableFunc(pods, func(a, b netip.Prefix) int { return (a.Bits() - a.Addr().BitLen()) - (b.Bits() - b.Addr().BitLen()) })
		pods = pods[:min(len(pods), most)]
		slices.SortFunc(pods, netip.Prefix.Compare)
		if len(pods) > 0 {
			out[n.Name] = pods
		}
	}
	return out
}

// agreement is what two nodes of different clusters announce to each other: a digest of the pods that
// each has, by the aliases of the other. The digests are equal only if both mean the same pods. They are
// never zero, which means that nothing is accepted directly.
func agreement(cluster string, pods []netip.Prefix, other string, others []netip.Prefix) uint64 {
	if cluster > other {
		cluster, pods, other, others = other, others, cluster, pods
	}
	h := sha256.New()
	h.Write([]byte("entente direct\x00" + cluster + "\x00" + other + "\x00"))
	for _, list := range [][]netip.Prefix{pods, others} {
		h.Write(prefixBytes(list))
	}
	return max(binary.BigEndian.Uint64(h.Sum(nil)), 1)
}

// prefixBytes is a list of prefixes, in any order, as part of a digest.
func prefixBytes(list []netip.Prefix) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(list)))
	for _, p := range slices.SortedFunc(slices.Values(list), netip.Prefix.Compare) {
		b = append(append(b, p.Addr().AsSlice()...), byte(p.Addr().BitLen()), byte(p.Bits()))
	}
	return b
}

// directs plans what is reached directly. It runs after all peers, since a direct form must not be in
// use as another address.
func (p *planner) directs() {
	if !p.hasAnnounced() {
		return
	}
	p.out.Counted = p.o.Counted
	byPeer := map[string][]Direct{}
	for _, d := range p.o.Direct {
		byPeer[d.Cluster] = append(byPeer[d.Cluster], d)
	}
	used := slices.Concat(p.homeNet, p.out.Remote)
	for _, q := range p.peers {
		if len(byPeer[q.ClusterID]) > 0 {
			used = p.direct(q, byPeer[q.ClusterID], used)
		}
	}
}

// hasAnnounced reports whether all pods that were announced to peers are on this node.
func (p *planner) hasAnnounced() bool {
	own := cidr.Of(p.out.Own...).Except(p.owned)
	for _, a := range p.d.Announced {
		if checkPrefix(a) != nil || !covered(a.Masked(), own) {
			return false
		}
	}
	return len(p.d.Announced) > 0
}

// covered reports whether all addresses of a prefix are in some of others.
func covered(p netip.Prefix, in []netip.Prefix) bool {
	var inside []netip.Prefix
	for _, q := range in {
		switch {
		case cidr.Cover(q, p):
			return true
		case cidr.Cover(p, q):
			inside = append(inside, q)
		}
	}
	if len(inside) == 0 {
		return false
	}
	lower, upper := cidr.Halves(p)
	return covered(lower, inside) && covered(upper, inside)
}

// direct plans which pods of a peer are reached directly. No direct form may overlap used; direct
// returns used with the direct forms of this peer added.
func (p *planner) direct(q Peer, nodes []Direct, used []netip.Prefix) []netip.Prefix {
	out := DirectPeer{Cluster: q.ClusterID}
	var pods []netip.Prefix // of this node, as the peer calls them
	for _, a := range p.d.Announced {
		if alias, ok := within(a.Masked(), q.Local); ok {
			out.Local = append(out.Local, Mapping{Real: a.Masked(), Alias: alias})
			pods = append(pods, alias)
		}
	}
	for _, m := range q.Remote {
		alias := m.Alias.Masked()
		for _, form := range []netip.Prefix{DirectForm(alias), EntryForm(alias)} {
			if i := slices.IndexFunc(used, form.Overlaps); i >= 0 {
				p.problem(q.ClusterID, "its pods are reached through gateways only: the direct form of its alias %v is %v, which overlaps %v: take aliases from another pool", alias, form, used[i])
				return used
			}
			used = append(used, form)
		}
		out.Remote = append(out.Remote, alias)
	}
	if len(out.Local) == 0 {
		return used
	}
	carrier := p.carrier(q)
	out.Entry = p.entry(q, carrier)
	var gateways []entrance
	for _, d := range nodes {
		if slices.ContainsFunc(d.Aliases, func(a netip.Prefix) bool { return !covered(a, out.Remote) }) {
			continue // an alias that was left out
		}
		w := p.directPeer(q, d)
		if w == nil {
			continue
		}
		for _, a := range d.Aliases {
			w.AllowedIPs = append(w.AllowedIPs, DirectForm(a))
		}
		if !d.Leaving {
			w.Agreement = agreement(p.d.ClusterID, pods, q.ClusterID, d.Aliases)
			if len(out.Entry) > 0 && carrier.Claims {
				w.EntryAgreement = entryAgreement(p.d.ClusterID, out.Entry, q.ClusterID, d.Aliases)
			}
			if d.IsGateway {
				gateways = append(gateways, entrance{d, w})
			}
		}
		if w.Direct = d.Use && w.Agreement != 0 && (d.Received == w.Agreement || d.Inherited); w.Direct {
			out.Open = append(out.Open, d.Aliases...)
			for _, a := range d.Aliases {
				p.out.Routes = append(p.out.Routes, Route{Prefix: a, Source: p.source(a), Way: w.Overlay, Direct: true})
			}
		}
	}
	if carrier.Home != p.d.Node { // which sends to a gateway of the peer in any case
		out.Enter = p.enter(q, pods, gateways)
	}
	slices.SortFunc(out.Open, netip.Prefix.Compare)
	p.out.Direct = append(p.out.Direct, out)
	return used
}

// directPeer returns the WireGuard peer for a node: that of a gateway that has one already, or a new one.
// It returns nil if the node announces the key or the overlay address of another.
func (p *planner) directPeer(q Peer, d Direct) *WireGuardPeer {
	for _, w := range p.remote {
		if w.Cluster == q.ClusterID && w.Node == d.Node {
			return w
		}
	}
	if d.IsGateway && p.self.Gateway {
		return nil // it was left out, which was reported
	}
	overlay := GatewayOverlay(q, d.Gateway)
	who := "node " + d.Node + " of " + q.ClusterID
	if owner := p.owners.of(d.PublicKey); owner != q.ClusterID {
		p.problem(q.ClusterID, "node %s is reached through gateways only: cluster %s announces the same WireGuard key", d.Node, owner)
		return nil
	}
	for _, has := range []string{p.has(d.PublicKey), p.overlays[overlay]} {
		if has != "" {
			p.problem(q.ClusterID, "node %s is reached through gateways only: it announces the WireGuard key or the overlay address of %s", d.Node, has)
			return nil
		}
	}
	use, next, former := p.keysInUse(overlay, d.PublicKey, d.NextKey, p.free(q.ClusterID, overlay, d.NextKey))
	p.keys[d.PublicKey], p.keys[use], p.overlays[overlay] = who, who, who
	w := &WireGuardPeer{
		PublicKey: use, NextKey: next, FormerKey: former, PresharedKey: q.PresharedKey, Spare: q.Spare, KeyMissing: q.KeyMissing, Endpoints: slices.Clone(d.Endpoints), Keepalive: keepalive,
		Cluster: q.ClusterID, Node: d.Node, Overlay: overlay, Remote: true, OnDemand: true,
		AllowedIPs: []netip.Prefix{host(overlay)},
	}
	p.remote = append(p.remote, w)
	p.out.Routes = append(p.out.Routes, Route{Prefix: host(overlay), Source: p.out.Overlay})
	return w
}
