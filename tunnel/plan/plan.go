package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/internal/cidr"
)

// Layout is the planned state of a node's kernel: the result of [Plan].
type Layout struct {
	// Overlay is this node's address inside the tunnels.
	Overlay netip.Addr
	// Sources are the addresses for traffic of the node itself, by family.
	Sources []netip.Addr
	// Peers are the peers of the WireGuard device, by public key.
	Peers []WireGuardPeer
	// Routes lead into the device.
	Routes []Route
	// Translations are those for the peers that this node carries.
	Translations []Translation
	// Direct says which pods are reached directly, by peer. Counted are the aliases to and from which
	// traffic is counted.
	Direct  []DirectPeer
	Counted []netip.Prefix
	// Own are the pod prefixes of this node, Home those of the whole cluster,
	// Others those of home nodes that are reached through the device, Remote
	// the aliases of all peers. Sorted, none inside another.
	Own, Home, Others, Remote []netip.Prefix
	// Hosts are the addresses of this cluster that peers know and that are not those of pods. They
	// reach peers only through the node that sent them a packet. Sorted.
	Hosts []netip.Prefix
	// Transit are the addresses of peers that other peers reach through this cluster, or are
	// reached from; Inbound says which reach which. Sorted.
	Transit []netip.Addr
	// Closed are the prefixes to which packets leave the node only through the device: the
	// pool of aliases without the prefixes that others use. Sorted.
	Closed []netip.Prefix
	// Names are the peers' aliases for addresses of this cluster. A packet from the device to one
	// of them was not translated, and is dropped.
	Names []Names
	// Masquerades are the pods of this node that each peer knows, for peers that do not know all.
	Masquerades []Masquerade
	// Inbound are the flows that peers may open.
	Inbound Inbound
	// Ends are the end-to-end probes of each peer. Sorted.
	Ends []Ends
	// Relay says who reaches this node's relay; zero without a relay.
	Relay Relay
	// Contested says that several clusters announce the same key, which none of them has proven, so
	// that the plan changes with [Observed.Turn].
	Contested bool
	// Problems are the parts of the input that were refused.
	Problems []Problem
}

// WireGuardPeer is one peer of the device.
type WireGuardPeer struct {
	PublicKey PublicKey
	// NextKey is the announced key by which that node will replace PublicKey, FormerKey the one that
	// it replaced by PublicKey. The device may have a peer with FormerKey, without AllowedIPs.
	NextKey, FormerKey PublicKey
	PresharedKey       PresharedKey
	Spare              SpareKeys
	// KeyMissing says that the preshared key is not known: a peer in the
	// device keeps its key, and a new one is not added.
	KeyMissing bool
	// Endpoints are the candidates to dial, then Observed, then Relay.
	Endpoints []string
	Observed  []netip.AddrPort
	Relay     netip.AddrPort
	// AllowedIPs are the sources that the peer may use and the destinations that are sent to it.
	AllowedIPs []netip.Prefix
	Keepalive  time.Duration
	// Cluster is the ID of the cluster that the peer belongs to, Node its name
	// there, Overlay its address inside the tunnel, which is probed.
	Cluster, Node string
	Overlay       netip.Addr
	// Remote says that it is a node of another cluster, OnDemand that its tunnel exists only for
	// direct paths.
	Remote, OnDemand bool
	// InBand says that it reaches this node's relay of the peer API.
	InBand bool
	// Carries is announced to it: this node claims the traffic to its cluster.
	Carries bool
	// Agreement is announced to it: what this node accepts from it directly. Direct says that
	// packets are sent to it directly.
	Agreement uint64
	Direct    bool
	// EntryAgreement is announced to it: what this node, a gateway, accepts from it for all of its cluster.
	// Entry says that packets for the pods of its cluster enter that cluster there, past the
	// gateway of this one.
	EntryAgreement uint64
	Entry          bool
}

// Route is one route of the fabric.
type Route struct {
	Prefix netip.Prefix
	// Return routes are used only for packets from the device, Direct ones exist only while the
	// device does.
	Return, Direct bool
	// Source is the address that the node itself sends from. May be zero.
	Source netip.Addr
	// Way is the overlay address of the node to which packets are sent; zero for a route to an
	// overlay address itself.
	Way netip.Addr
	// Entry is the overlay address of a second node to which some of them are sent; zero means none.
	Entry netip.Addr
}

// Translation is the rewriting of our addresses for one peer.
type Translation struct {
	Cluster string
	// Remote are the aliases of the peer.
	Remote []netip.Prefix
	// Local are our prefixes and single addresses, and addresses of other peers that the peer
	// reaches through this cluster, with the peer's aliases.
	Local []Mapping
}

// Masquerade says which pods of this node a peer knows. Packets of other pods to it get the
// node's own address as their source, which the peer knows.
type Masquerade struct {
	Cluster string
	// Remote are the aliases of the peer, of one family.
	Remote []netip.Prefix
	// Known are the pods' addresses for which it has aliases. Sorted, none inside another.
	Known []netip.Prefix
}

// Names are a peer's aliases for addresses of this cluster, except those that are also addresses of
// this cluster. Sorted.
type Names struct {
	Cluster  string
	Prefixes []netip.Prefix
}

// Problem says what is wrong, where, and what to do next.
type Problem struct {
	// Peer is the ID of the cluster that has the problem; empty for this node.
	Peer string
	// Text is a sentence for people, without secrets.
	Text string
}

// Plan decides on the state of the kernel. It is a pure function. An error means that the
// home cluster's own part is invalid and nothing should be changed; an invalid peer or node
// is left out and reported in Layout.Problems.
func Plan(d Desired, o Observed) (Layout, error) {
	p := planner{d: d, o: o, keys: map[PublicKey]string{}, homeKeys: homeKeys(d.Nodes), overlays: map[netip.Addr]string{}, clusters: map[string]bool{}}
	if err := p.home(); err != nil {
		return Layout{}, fmt.Errorf("plan fabric of node %s: %w", d.Node, err)
	}
	p.owners = ownersOf(d.Peers[:min(len(d.Peers), MaxPeers)], o)
	p.out.Contested = p.owners.contested()
	for i := range d.Peers {
		if i >= MaxPeers {
			p.problem(d.Peers[i].ClusterID, "left out: limit of %d peers reached (MaxPeers): end a peering", MaxPeers)
			continue
		}
		peer := d.Peers[i]
		if err := p.check(peer); err != nil {
			p.problem(peer.ClusterID, "left out: %v", err)
			continue
		}
		p.peer(p.fit(peer))
	}
	p.transit()
	p.directs()
	return p.finish(), nil
}

// Leads reports whether traffic to aliases of peers goes to a WireGuard peer.
func (l Layout) Leads(w WireGuardPeer) bool {
	return slices.ContainsFunc(w.AllowedIPs, func(a netip.Prefix) bool { return cidr.Set(l.Remote).Overlaps(a) })
}

// planner is the state of a plan that is being made.
type planner struct {
	d        Desired
	o        Observed
	self     Node
	out      Layout
	keys     map[PublicKey]string  // the node that has a key
	homeKeys map[PublicKey]string  // the node of this cluster that uses a key, or will use it next
	owners   owners                // of the keys that peers announce
	overlays map[netip.Addr]string // the node that has an overlay address
	clusters map[string]bool
	peers    []Peer         // their parts that can be used
	homeNet  cidr.Set       // prefixes that no alias may overlap
	aliases  cidr.Set       // those of all peers
	podNet   cidr.Set       // prefixes of pods
	owned    []netip.Prefix // the pods' prefixes of all nodes, sorted
	nodes    map[string]*WireGuardPeer
	remote   []*WireGuardPeer
}

func (p *planner) problem(peer, format string, args ...any) {
	p.out.Problems = append(p.out.Problems, Problem{Peer: peer, Text: fmt.Sprintf(format, args...)})
}

// home adds the nodes of the home cluster.
func (p *planner) home() error {
	d := p.d
	if d.ClusterID == "" || d.Node == "" {
		return errors.New("cluster ID and node name are required")
	}
	if len(d.Nodes) > maxNodes {
		return fmt.Errorf("%d nodes, the limit is %d (maxNodes)", len(d.Nodes), maxNodes)
	}
	self := slices.IndexFunc(d.Nodes, func(n Node) bool { return n.Name == d.Node })
	if self < 0 {
		return errors.New("the node is not among the nodes of the cluster")
	}
	for i, r := range d.Reserved {
		if !r.IsValid() {
			return fmt.Errorf("reserved prefix %d, of the address %s, is invalid", i+1, r.Addr())
		}
	}
	p.out.Overlay = Overlay(d.ClusterID, d.Node)
	p.overlays[p.out.Overlay] = "this node"
	p.nodes = map[string]*WireGuardPeer{}

	p.pods()
	p.self = p.d.Nodes[self]
	if !p.self.PublicKey.IsZero() {
		p.keys[p.self.PublicKey] = "this node"
	}
	for _, n := range p.d.Nodes {
		p.owned = append(p.owned, n.PodCIDRs...)
	}
	slices.SortFunc(p.owned, netip.Prefix.Compare)
	p.homeNet, p.podNet = p.homeNet.With(d.Reserved...).With(p.owned...), p.podNet.With(d.Pods...).With(p.owned...)
	p.out.Home = append(p.out.Home, p.owned...)
	p.out.Own = append(p.out.Own, p.self.PodCIDRs...)
	for _, n := range p.d.Nodes {
		if n.Name != d.Node && !n.PublicKey.IsZero() {
			p.node(n)
		}
	}
	p.out.Sources = append(p.out.Sources, p.o.Sources...)
	return nil
}

// pods checks the prefixes of the nodes' pods.
func (p *planner) pods() {
	nodes, problems := ownPods(p.d.Nodes)
	p.d.Nodes = nodes
	for _, text := range problems {
		p.problem("", "%s", text)
	}
}

// ownPods leaves each prefix of pods to one node, and reports those that are left out. One prefix may be
// inside another node's: single addresses out of another node's block are common. Two nodes with
// the same prefix are an error of the network or of one of them: then only the pods in that prefix on
// the second node are not reached.
func ownPods(of []Node) (nodes []Node, problems []string) {
	nodes = slices.Clone(of)
	owner := map[netip.Prefix]string{}
	for i, n := range nodes {
		var own []netip.Prefix
		for _, c := range n.PodCIDRs {
			if err := checkPrefix(c); err != nil {
				problems = append(problems, fmt.Sprintf("pod prefix of node %s is left out: %v", n.Name, err))
				continue
			}
			c = c.Masked()
			if who, dup := owner[c]; dup {
				if who != n.Name { // not one node that lists it twice
					problems = append(problems, fmt.Sprintf("nodes %s and %s both have pods in %v: it is left to %s; see which of them routes it there", who, n.Name, c, who))
				}
				continue
			}
			owner[c] = n.Name
			own = append(own, c)
		}
		nodes[i].PodCIDRs = own
	}
	return nodes, problems
}

// node makes another home node a peer of the device, when one of the two may
// carry a peer for the other.
func (p *planner) node(n Node) {
	if len(p.d.Peers) == 0 || !p.self.Gateway && !n.Gateway {
		return
	}
	overlay := Overlay(p.d.ClusterID, n.Name)
	if who, dup := p.keys[n.PublicKey]; dup {
		p.problem("", "node %s announces the same WireGuard key as %s: delete its announcement, its fabric will write a new one", n.Name, who)
		return
	}
	if who, dup := p.overlays[overlay]; dup {
		p.problem("", "node %s has the same overlay address as %s: rename one", n.Name, who)
		return
	}
	if err := checkEndpoints(n.Endpoints, nil); err != nil {
		p.problem("", "node %s is left out: %v", n.Name, err)
		return
	}
	use, next, former := p.keysInUse(overlay, n.PublicKey, n.NextKey, p.homeKeys[n.NextKey] == n.Name)
	p.keys[n.PublicKey], p.keys[use], p.overlays[overlay] = "node "+n.Name, "node "+n.Name, "node "+n.Name
	w := &WireGuardPeer{
		PublicKey: use, NextKey: next, FormerKey: former, Endpoints: slices.Clone(n.Endpoints), Keepalive: keepalive,
		Cluster: p.d.ClusterID, Node: n.Name, Overlay: overlay,
		AllowedIPs: append([]netip.Prefix{host(overlay)}, n.PodCIDRs...),
	}
	p.nodes[n.Name] = w
	p.out.Routes = append(p.out.Routes, Route{Prefix: host(overlay), Source: p.out.Overlay})
	// This node's own prefixes inside of them are routed by its network plugin. Prefixes of other nodes
	// are left out as well, so that no two nodes have the same route.
	for _, c := range cidr.Of(n.PodCIDRs...).Except(p.owned) {
		p.out.Others = append(p.out.Others, c)
		p.out.Routes = append(p.out.Routes, Route{Prefix: c, Return: true, Way: overlay})
	}
}

// GatewayOverlay returns the address inside the tunnel of a gateway of a peer.
func GatewayOverlay(q Peer, g Gateway) netip.Addr {
	if g.Overlay.IsValid() {
		return g.Overlay
	}
	return Overlay(q.ClusterID, g.Node)
}

// HasOverlay reports whether the address inside the tunnel that the peer announces for one of its nodes is one of
// its own cluster's. Others are refused: they are those of nodes of other clusters.
func (q Peer) HasOverlay(g Gateway) bool {
	return overlayPrefix(q.ClusterID).Contains(GatewayOverlay(q, g))
}

// Aliases returns the prefixes of all aliases of the peer here.
func (q Peer) Aliases() []netip.Prefix {
	out := slices.Clone(q.RemoteBlocks)
	for _, m := range q.Remote {
		out = append(out, m.Alias.Masked())
	}
	return out
}

// peer adds the parts of a peer that can be used.
func (p *planner) peer(q Peer) {
	p.clusters[q.ClusterID] = true
	p.peers = append(p.peers, q)
	aliases := cidr.Of(q.Aliases()...).Joined()
	p.aliases = p.aliases.With(aliases...)
	p.out.Remote = append(p.out.Remote, aliases...)
	var ours []netip.Prefix
	for _, m := range q.Local {
		ours = append(ours, m.Real)
		if !m.Real.IsSingleIP() || p.podNet.Covers(m.Real) {
			p.out.Home = append(p.out.Home, m.Real)
		} else {
			p.out.Hosts = append(p.out.Hosts, m.Real)
		}
	}
	p.homeNet = p.homeNet.With(ours...)
	carrier := p.carrier(q)
	way := p.way(q, carrier)
	for _, a := range aliases {
		p.out.Routes = append(p.out.Routes, Route{Prefix: a, Source: p.source(a), Way: way})
	}
	p.sourceless(q, aliases)
	p.ends(q, aliases, way)
	if p.self.Gateway {
		p.gateways(q, carrier, aliases)
	}
	if carrier.Home == p.d.Node {
		p.out.Translations = append(p.out.Translations, Translation{Cluster: q.ClusterID, Remote: aliases, Local: slices.Clone(q.Local)})
		return
	}
	via, known := p.nodes[carrier.Home]
	switch {
	case carrier.Home == "":
		p.problem(q.ClusterID, "no node of this cluster is a gateway that has announced a WireGuard key: check the fabric of the gateways")
	case !known:
		p.problem(q.ClusterID, "gateway %q, which carries its traffic, has not announced a WireGuard key: check the fabric of that node", carrier.Home)
	default:
		via.AllowedIPs = append(via.AllowedIPs, aliases...)
	}
}

// sourceless reports the aliases to which the node itself has no address to send from.
func (p *planner) sourceless(q Peer, aliases []netip.Prefix) {
	for _, bits := range []int{32, 128} {
		i := slices.IndexFunc(aliases, func(a netip.Prefix) bool { return a.Addr().BitLen() == bits })
		if i >= 0 && !p.source(aliases[i]).IsValid() {
			p.problem(q.ClusterID, "node %s has no address of its own among its pods' (%v), so the node itself, NodePorts on it, and pods that the peer has no alias for, do not reach %v; other pods do. It comes with the CNI's bridge or its first pod", p.d.Node, p.self.PodCIDRs, aliases[i])
		}
	}
}

// carrier returns the gateways that carry a peer: the best of each side where nothing else is known.
func (p *planner) carrier(q Peer) Carrier {
	t := p.o.Carriers[q.ClusterID]
	if t.Home == "" {
		t.Home = best(p.d.Nodes, func(n Node) (string, bool) {
			_, known := p.nodes[n.Name]
			return n.Name, n.Gateway && (known || n.Name == p.d.Node)
		}, p.d.ClusterID, q.ClusterID)
	}
	if !slices.ContainsFunc(q.Gateways, func(g Gateway) bool { return g.Node == t.Peer }) {
		t.Peer = best(q.Gateways, func(g Gateway) (string, bool) { return g.Node, true }, q.ClusterID, p.d.ClusterID)
	}
	return t
}

// best returns the name of the gateway of a cluster with the highest rank; empty without a gateway.
func best[T any](nodes []T, name func(T) (string, bool), cluster, other string) string {
	found := ""
	for _, n := range nodes {
		if node, can := name(n); can && (found == "" || Rank(cluster, other, node) > Rank(cluster, other, found)) {
			found = node
		}
	}
	return found
}

// way returns the overlay address to which packets for a peer are sent: that of its carrier or, on the
// carrier, of the gateway in use.
func (p *planner) way(q Peer, t Carrier) netip.Addr {
	switch {
	case t.Home == "":
		return netip.Addr{}
	case t.Home != p.d.Node:
		return Overlay(p.d.ClusterID, t.Home)
	}
	if i := slices.IndexFunc(q.Gateways, func(g Gateway) bool { return g.Node == t.Peer }); i >= 0 {
		return GatewayOverlay(q, q.Gateways[i])
	}
	return netip.Addr{}
}

// gateways makes the peer's gateways peers of the device of this node, which is a gateway. They
// are added even if this node does not carry the peer, so that it can take over at once.
func (p *planner) gateways(q Peer, carrier Carrier, aliases []netip.Prefix) {
	if len(q.Gateways) == 0 {
		p.problem(q.ClusterID, "the peer has announced no gateway: check its fabric")
	}
	if q.KeyMissing {
		p.problem(q.ClusterID, "the preshared key of the peer's tunnel cannot be read: an existing tunnel keeps its key, a new one waits; the agent writes the key when the peer is connected")
	}
	// Only a gateway with another's key is left out.
	gateways := slices.DeleteFunc(slices.Clone(q.Gateways), func(g Gateway) bool {
		if owner := p.owners.of(g.PublicKey); owner != q.ClusterID {
			p.problem(q.ClusterID, "gateway %s is left out: cluster %s announces the same WireGuard key; the one that completes a handshake has it", g.Node, owner)
			return true
		}
		if who := p.has(g.PublicKey); who != "" {
			p.problem(q.ClusterID, "gateway %s is left out: it announces the WireGuard key of %s", g.Node, who)
			return true
		}
		return false
	})
	active := carrier.Peer
	if len(gateways) > 0 && !slices.ContainsFunc(gateways, func(g Gateway) bool { return g.Node == active }) {
		active = gateways[0].Node // the one in use was left out
	}
	for _, g := range gateways {
		overlay := GatewayOverlay(q, g)
		who := "gateway " + g.Node + " of " + q.ClusterID
		use, next, former := p.keysInUse(overlay, g.PublicKey, g.NextKey, p.free(q.ClusterID, overlay, g.NextKey))
		p.keys[g.PublicKey], p.keys[use], p.overlays[overlay] = who, who, who
		w := &WireGuardPeer{
			PublicKey: use, NextKey: next, FormerKey: former, PresharedKey: q.PresharedKey, Spare: q.Spare, KeyMissing: q.KeyMissing, Endpoints: slices.Clone(g.Endpoints), Keepalive: keepalive,
			Observed: observed(g, aliases), Relay: g.Relay, Cluster: q.ClusterID, Node: g.Node, Overlay: overlay, Remote: true, InBand: q.InBand, Carries: carrier.Claims,
			AllowedIPs: []netip.Prefix{host(overlay)},
		}
		if carrier.Home == p.d.Node && g.Node == active {
			w.AllowedIPs = append(w.AllowedIPs, aliases...)
		}
		p.remote = append(p.remote, w)
		p.out.Routes = append(p.out.Routes, Route{Prefix: host(overlay), Source: p.out.Overlay})
	}
}

// closed returns the pool without the prefixes that the home cluster or other programs on the node use.
func (p *planner) closed() []netip.Prefix {
	return unused(p.d.Pool, slices.Concat(p.homeNet, p.o.Routed))
}

// names returns a peer's aliases for this cluster's addresses.
func (p *planner) names(q Peer) []netip.Prefix {
	var all []netip.Prefix
	for _, m := range q.Local {
		if m.Alias != m.Real {
			all = append(all, m.Alias)
		}
	}
	for _, t := range q.Transit {
		all = append(all, t.Alias)
	}
	return unused(cidr.Of(all...).Joined(), slices.Clone(p.homeNet))
}

// unused returns the parts of some prefixes that are not used. It masks and sorts used in place.
func unused(prefixes, used []netip.Prefix) []netip.Prefix {
	for i := range used {
		used[i] = used[i].Masked()
	}
	slices.SortFunc(used, netip.Prefix.Compare)
	free := slices.DeleteFunc(slices.Clone(prefixes), func(c netip.Prefix) bool {
		return checkPrefix(c) != nil || slices.ContainsFunc(used, func(u netip.Prefix) bool { return cidr.Cover(u, c) })
	})
	return cidr.Of(free...).Except(used)
}

// source returns the node's own address for its traffic to a prefix.
func (p *planner) source(to netip.Prefix) netip.Addr {
	for _, s := range p.out.Sources {
		if s.BitLen() == to.Addr().BitLen() {
			return s
		}
	}
	return netip.Addr{}
}

// finish sorts, so that equal input gives equal plans.
func (p *planner) finish() Layout {
	out := p.out
	for _, w := range p.nodes {
		out.Peers = append(out.Peers, *w)
	}
	for _, w := range p.remote {
		out.Peers = append(out.Peers, *w)
	}
	for i := range out.Peers {
		for j, a := range out.Peers[i].AllowedIPs {
			out.Peers[i].AllowedIPs[j] = a.Masked()
		}
		slices.SortFunc(out.Peers[i].AllowedIPs, netip.Prefix.Compare)
	}
	slices.SortFunc(out.Peers, func(a, b WireGuardPeer) int { return slices.Compare(a.PublicKey[:], b.PublicKey[:]) })
	for i := range out.Routes {
		out.Routes[i].Prefix = out.Routes[i].Prefix.Masked()
	}
	slices.SortFunc(out.Routes, func(a, b Route) int {
		if a.Return != b.Return {
			return map[bool]int{false: -1, true: 1}[a.Return]
		}
		return a.Prefix.Compare(b.Prefix)
	})
	if len(out.Own) == 0 {
		out.Own = out.Home // the CNI gives nodes no prefixes of their own
	}
	out.Own, out.Home, out.Others, out.Remote = cidr.Of(out.Own...).Except(p.owned), cidr.Of(out.Home...), cidr.Of(out.Others...), cidr.Of(out.Remote...)
	out.Hosts, out.Transit = cidr.Of(out.Hosts...), sortedAddrs(out.Transit)
	slices.SortFunc(out.Direct, func(a, b DirectPeer) int { return strings.Compare(a.Cluster, b.Cluster) })
	for _, q := range p.peers {
		out.Masquerades = append(out.Masquerades, masquerades(q, out.Own)...)
		if names := p.names(q); len(names) > 0 {
			out.Names = append(out.Names, Names{q.ClusterID, names})
		}
	}
	out.Closed = p.closed()
	out.Inbound = out.Inbound.sorted()
	slices.SortFunc(out.Ends, func(a, b Ends) int { return strings.Compare(a.Cluster, b.Cluster) })
	if slices.ContainsFunc(p.remote, func(w *WireGuardPeer) bool { return w.InBand }) {
		out.Relay = Relay{Listen: sortedAddrs(p.d.Relay.Listen), From: sortedAddrs(p.d.Relay.From)}
	}
	return out
}

// masquerades returns, of each family in which a peer does not know all pods of the node, those
// that it knows.
func masquerades(q Peer, own []netip.Prefix) (out []Masquerade) {
	var prefixes, all []netip.Prefix
	here := cidr.Set(own)
	for _, m := range q.Local {
		if !m.Real.IsSingleIP() {
			prefixes = append(prefixes, m.Real)
		}
		if here.Overlaps(m.Real) {
			all = append(all, m.Real)
		}
	}
	wide := cidr.Of(prefixes...)
	for _, bits := range []int{32, 128} {
		of := func(p netip.Prefix) bool { return p.Addr().BitLen() == bits }
		w := Masquerade{Cluster: q.ClusterID, Remote: only(cidr.Of(q.Aliases()...).Joined(), of), Known: only(cidr.Of(all...), of)}
		if len(w.Remote) > 0 && slices.ContainsFunc(own, func(p netip.Prefix) bool { return of(p) && !wide.Covers(p) }) {
			out = append(out, w)
		}
	}
	return out
}

func only(list []netip.Prefix, is func(netip.Prefix) bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return !is(p) })
}

// sortedAddrs are addresses, sorted, each once.
func sortedAddrs(list []netip.Addr) []netip.Addr {
	out := slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !a.IsValid() })
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// host is the prefix of one address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
