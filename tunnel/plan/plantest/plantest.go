// Package plantest checks plans in tests: each packet has to arrive at the pod that it was meant for,
// and nowhere else. [World.Check] checks that on anything that carries packets: on layouts, which
// [Simulate] interprets, or on nodes with these layouts in their kernels.
package plantest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Pod is a pod on a node.
type Pod struct {
	Cluster, Node string
	Addr          netip.Addr
	// Open says that all peers may open flows to it.
	Open bool
}

// Node is a node of a cluster, with the prefixes of its pods. One may be inside of another node's.
type Node struct {
	Cluster, Name string
	Pods          []netip.Prefix
	// Own are its own addresses among those of its pods, one of each family at most.
	Own     []netip.Addr
	Gateway bool
	// Announced says that its pods are announced to other clusters, so that they are reached directly.
	Announced bool
}

// World is a set of clusters that peer with each other, all or some. They have the same pod prefix Real, and
// know each other's by Alias, unless Prefixes and Aliases are set.
type World struct {
	Real  netip.Prefix
	Nodes []Node
	Pods  []Pod
	// Alias is the prefix by which a cluster knows the pods of another.
	Alias func(knows, known string) netip.Prefix
	// Prefixes returns the pod prefixes of a cluster, of both families.
	Prefixes func(cluster string) []netip.Prefix
	// Aliases returns by what a cluster knows the addresses of another. A pod without an alias is seen under
	// that of its node's own address of its family, which must have one.
	Aliases func(knows, known string) Aliases
	// Direct returns what a node knows about one of another cluster that it can reach directly, or
	// false if it has no tunnel to it. Nil means that no node has such a tunnel.
	Direct func(from Node, to plan.RemoteNode) (plan.Direct, bool)
	// Apart reports whether two clusters do not peer. Nil means that all do.
	Apart func(a, b string) bool
	// Transit reports whether a cluster lets two others reach each other's pods through it, and these
	// agree. Nil means that none does.
	Transit func(through, a, b string) bool
	// Single returns the prefix of the aliases that a cluster has for single pods of a third cluster,
	// through another, in the order of Pods.
	Single func(knows, through string) netip.Prefix
	// Key and Endpoints are those of a node.
	Key       func(Node) plan.PublicKey
	Endpoints func(Node) []string
}

// Aliases are those by which a cluster knows another: of whole prefixes, or of single addresses inside of
// blocks.
type Aliases struct {
	Mappings []plan.Mapping
	Blocks   []netip.Prefix
}

// TB is the part of testing.TB that a check uses.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Net carries packets.
type Net interface {
	// Open opens a flow from a pod to the address of another. It returns the address that the
	// other pod sees, and an error if the flow is not opened, or arrives elsewhere.
	Open(from, to Pod, at netip.Addr) (seen netip.Addr, err error)
}

// Check opens flows from each pod to each of the other clusters. All flows to open pods must succeed,
// under the aliases that the two clusters have for each other, and all others must fail.
func (w World) Check(t TB, over Net) {
	t.Helper()
	for _, from := range w.Pods {
		for _, to := range w.Pods {
			if from.Cluster == to.Cluster || from.Addr.Is4() != to.Addr.Is4() {
				continue
			}
			if w.apart(from.Cluster, to.Cluster) {
				w.checkTransit(t, over, from, to)
				continue
			}
			at, ok := w.alias(from.Cluster, to.Cluster, to.Addr)
			if !ok && w.Aliases != nil {
				continue // there is no address to send to
			}
			as, ok2 := w.alias(to.Cluster, from.Cluster, from.Addr)
			if own := w.own(from); !ok2 && own.IsValid() {
				as, ok2 = w.alias(to.Cluster, from.Cluster, own)
			}
			if !ok || !ok2 {
				t.Errorf("no aliases for %v and %v", from, to)
				continue
			}
			switch seen, err := over.Open(from, to, at); {
			case to.Open && err != nil:
				t.Errorf("%s/%v to %s/%v by %v: %v", from.Cluster, from.Addr, to.Cluster, to.Addr, at, err)
			case to.Open && seen != as:
				t.Errorf("%s/%v is seen by %s/%v as %v, want %v", from.Cluster, from.Addr, to.Cluster, to.Addr, seen, as)
			case !to.Open && err == nil:
				t.Errorf("%s/%v reaches %s/%v, which is closed", from.Cluster, from.Addr, to.Cluster, to.Addr)
			}
		}
	}
}

// checkTransit opens flows between pods of two clusters that do not peer, through each third one.
func (w World) checkTransit(t TB, over Net, from, to Pod) {
	t.Helper()
	for _, through := range w.clusters() {
		if w.apart(through, from.Cluster) || w.apart(through, to.Cluster) || through == from.Cluster || through == to.Cluster {
			continue
		}
		allowed := w.Transit != nil && w.Transit(through, from.Cluster, to.Cluster)
		if w.Single == nil {
			continue
		}
		at, as := w.single(from.Cluster, through, to), w.single(to.Cluster, through, from)
		switch seen, err := over.Open(from, to, at); {
		case to.Open && allowed && err != nil:
			t.Errorf("%s/%v to %s/%v through %s by %v: %v", from.Cluster, from.Addr, to.Cluster, to.Addr, through, at, err)
		case to.Open && allowed && seen != as:
			t.Errorf("%s/%v is seen by %s/%v through %s as %v, want %v", from.Cluster, from.Addr, to.Cluster, to.Addr, through, seen, as)
		case !(to.Open && allowed) && err == nil:
			t.Errorf("%s/%v reaches %s/%v through %s, which is closed", from.Cluster, from.Addr, to.Cluster, to.Addr, through)
		}
	}
}

// aliases is by what a cluster knows another.
func (w World) aliases(knows, known string) Aliases {
	if w.Aliases != nil {
		return w.Aliases(knows, known)
	}
	return Aliases{Mappings: []plan.Mapping{{Real: w.Real, Alias: w.Alias(knows, known)}}}
}

// alias is the alias by which a cluster knows an address of another, and false if it has none.
func (w World) alias(knows, known string, a netip.Addr) (netip.Addr, bool) {
	return remap(a, w.aliases(knows, known).Mappings, false)
}

// prefixes are those of a cluster's pods.
func (w World) prefixes(cluster string) []netip.Prefix {
	if w.Prefixes != nil {
		return w.Prefixes(cluster)
	}
	return []netip.Prefix{w.Real}
}

// own is the own address of a pod's node, of the pod's family; invalid if it has none.
func (w World) own(p Pod) netip.Addr {
	for _, n := range w.Nodes {
		if n.Cluster == p.Cluster && n.Name == p.Node {
			return ofFamily(n.Own, p.Addr)
		}
	}
	return netip.Addr{}
}

func ofFamily(list []netip.Addr, of netip.Addr) netip.Addr {
	for _, a := range list {
		if a.Is4() == of.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (w World) apart(a, b string) bool { return w.Apart != nil && w.Apart(a, b) }

// clusters are those of the nodes, sorted.
func (w World) clusters() (out []string) {
	for _, n := range w.Nodes {
		out = append(out, n.Cluster)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// single is the alias by which a cluster knows a pod of a third one through another.
func (w World) single(knows, through string, p Pod) netip.Addr {
	a := w.Single(knows, through).Addr()
	for range slices.Index(w.Pods, p) {
		a = a.Next()
	}
	return a
}

// transit adds to a peer the clusters that it reaches through a cluster, and those that this one reaches through it.
func (w World) transit(self string, q *plan.Peer) {
	if w.Single != nil {
		q.RemoteBlocks = append(q.RemoteBlocks, w.Single(self, q.ClusterID))
	}
	if w.Transit == nil {
		return
	}
	host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	as := func(p Pod) netip.Addr {
		a, _ := plan.Remap(p.Addr, w.Real, w.Alias(self, p.Cluster))
		return a
	}
	for _, third := range w.clusters() {
		if third == self || third == q.ClusterID || w.apart(self, third) || !w.apart(q.ClusterID, third) || !w.Transit(self, q.ClusterID, third) {
			continue
		}
		e := plan.Exposure{Name: "transit to " + third, Third: third}
		for _, p := range w.Pods {
			switch p.Cluster {
			case q.ClusterID:
				e.Sources = append(e.Sources, as(p))
			case third:
				q.Transit = append(q.Transit, plan.Transit{Cluster: third, Mapping: plan.Mapping{Real: host(as(p)), Alias: host(w.single(q.ClusterID, self, p))}})
				if p.Open {
					e.Destinations = append(e.Destinations, plan.Destination{Addr: as(p)})
				}
			}
		}
		q.Inbound = append(q.Inbound, e)
	}
}

// Desired is the desired state of a node.
func (w World) Desired(self Node) plan.Desired {
	d := plan.Desired{ClusterID: self.Cluster, Node: self.Name, Announced: w.announced(self.Cluster)[self.Name]}
	var order []string
	peers := map[string]*plan.Peer{}
	for _, n := range w.Nodes {
		if n.Cluster == self.Cluster {
			d.Nodes = append(d.Nodes, plan.Node{Name: n.Name, PublicKey: w.Key(n), Endpoints: w.Endpoints(n), PodCIDRs: n.Pods, Gateway: n.Gateway})
			continue
		}
		if w.apart(self.Cluster, n.Cluster) {
			continue
		}
		q := peers[n.Cluster]
		if q == nil {
			q = &plan.Peer{ClusterID: n.Cluster, PresharedKey: plan.PresharedKey{1, 2, 3}, Local: w.aliases(n.Cluster, self.Cluster).Mappings}
			known := w.aliases(self.Cluster, n.Cluster)
			q.RemoteBlocks = known.Blocks
			for _, m := range known.Mappings {
				if !m.Real.IsSingleIP() {
					q.Remote = append(q.Remote, m)
				}
			}
			peers[n.Cluster], order = q, append(order, n.Cluster)
		}
		g := plan.Gateway{Node: n.Name, PublicKey: w.Key(n), Endpoints: w.Endpoints(n), Pods: w.announced(n.Cluster)[n.Name]}
		if n.Gateway {
			q.Gateways = append(q.Gateways, g)
		} else {
			q.Nodes = append(q.Nodes, g)
		}
	}
	for _, id := range order {
		q := peers[id]
		for _, p := range w.Pods {
			if p.Cluster == self.Cluster && p.Open {
				q.Inbound = append(q.Inbound, plan.Exposure{Name: p.Addr.String(), AnySource: true, Destinations: []plan.Destination{{Addr: p.Addr}}})
			}
		}
		w.transit(self.Cluster, q)
		d.Peers = append(d.Peers, *q)
	}
	return d
}

// announced returns the prefixes of pods on the nodes of a cluster that are announced to others.
func (w World) announced(cluster string) map[string][]netip.Prefix {
	var nodes []plan.Node
	for _, n := range w.Nodes {
		if n.Cluster == cluster {
			nodes = append(nodes, plan.Node{Name: n.Name, PodCIDRs: n.Pods})
		}
	}
	pods := plan.DirectPods(nodes, w.prefixes(cluster), plan.MaxDirectPods)
	for _, n := range w.Nodes {
		if n.Cluster == cluster && !n.Announced {
			delete(pods, n.Name)
		}
	}
	return pods
}

// Simulation carries packets by the layouts of all nodes.
type Simulation struct {
	world   World
	layouts map[plan.PublicKey]plan.Layout
	// Direct is how many packets went directly, Entered how many to a gateway of the other cluster.
	Direct, Entered int
}

// Simulate plans all nodes of a world, three times: in between each receives the announcements of the others,
// and binds in its device what was planned.
func Simulate(w World) (*Simulation, error) {
	s := &Simulation{world: w, layouts: map[plan.PublicKey]plan.Layout{}}
	for range 3 {
		layouts := map[plan.PublicKey]plan.Layout{}
		for _, n := range w.Nodes {
			d := w.Desired(n)
			l, err := plan.Plan(d, plan.Observed{Direct: s.directs(n, d), Carriers: carriers(d), Sources: n.Own})
			if err != nil {
				return nil, err
			}
			layouts[w.Key(n)] = l
		}
		s.layouts = layouts
	}
	return s, nil
}

// carriers has each node announce that it carries, if it does.
func carriers(d plan.Desired) map[string]plan.Carrier {
	out := map[string]plan.Carrier{}
	for _, q := range d.Peers {
		out[q.ClusterID] = plan.Carrier{Claims: true}
	}
	return out
}

// directs returns the nodes to which one has tunnels, with the agreements that they announced last.
func (s *Simulation) directs(self Node, d plan.Desired) []plan.Direct {
	if s.world.Direct == nil {
		return nil
	}
	var out []plan.Direct
	known, _ := plan.RemoteNodes(d)
	for _, n := range known {
		direct, ok := s.world.Direct(self, n)
		if !ok {
			continue
		}
		for _, p := range s.layouts[n.PublicKey].Peers {
			if p.PublicKey == s.world.Key(self) {
				direct.Received, direct.EntryReceived = p.Agreement, p.EntryAgreement
			}
		}
		for _, p := range s.layouts[s.world.Key(self)].Peers {
			if p.PublicKey == n.PublicKey {
				direct.Bound = slices.DeleteFunc(slices.Clone(p.AllowedIPs), func(a netip.Prefix) bool { return !plan.IsEntryForm(a) })
			}
		}
		direct.RemoteNode = n
		out = append(out, direct)
	}
	return out
}

// Open implements [Net]: a packet there, and the answer.
func (s *Simulation) Open(from, to Pod, at netip.Addr) (netip.Addr, error) {
	arrived, seen, err := s.send(from, at, false)
	if err != nil {
		return netip.Addr{}, err
	}
	if arrived != to.Addr || s.nodeOf(to) == nil {
		return netip.Addr{}, fmt.Errorf("the packet arrives at %v", arrived)
	}
	back, by, err := s.send(to, seen, true)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("the answer: %w", err)
	case back != s.masquerade(s.layouts[s.world.Key(*s.nodeOf(from))], from.Addr, at) || by != at:
		return netip.Addr{}, fmt.Errorf("the answer arrives at %v from %v", back, by)
	}
	return seen, nil
}

func (s *Simulation) nodeOf(p Pod) *Node {
	for i, n := range s.world.Nodes {
		if n.Cluster == p.Cluster && n.Name == p.Node {
			return &s.world.Nodes[i]
		}
	}
	return nil
}

// send follows a packet from a pod, and returns the pod's address where it arrives, and its
// source there.
func (s *Simulation) send(from Pod, to netip.Addr, answer bool) (arrived, source netip.Addr, err error) {
	at, source := s.world.Key(*s.nodeOf(from)), from.Addr
	if !answer {
		source = s.masquerade(s.layouts[at], source, to)
	}
	for range 6 { // from a node to its carrier, to the other's, perhaps to that of a third and its other gateway, to the node of the pod
		l := s.layouts[at]
		if src, dst, ok := directly(l, source, to); ok {
			s.Direct++
			source, to = src, dst
		} else if src, dst, ok := toEntry(l, source, to); ok {
			s.Entered++
			source, to = src, dst
		} else if t := translation(l, to); t != nil { // leaving
			var ok bool
			if source, ok = remap(source, t.Local, false); !ok {
				return arrived, source, errors.New("the peer has no alias of the source")
			}
		}
		next, ok := allowed(l, to)
		if !ok {
			return arrived, source, fmt.Errorf("no way to %v", to)
		}
		if back, ok := allowed(s.layouts[next], source); !ok || back != at {
			return arrived, source, fmt.Errorf("the cipher drops %v", source)
		}
		at, l = next, s.layouts[next]
		if source, to, err = entered(l, source, to); err != nil {
			return arrived, source, err
		}
		if src, dst, direct, err := undo(l, source, to); err != nil {
			return arrived, source, err
		} else if direct {
			source, to = src, dst
		} else if t := translation(l, source); t != nil { // entering
			if to, ok = remap(to, t.Local, true); !ok {
				return arrived, source, errors.New("it is not for this cluster")
			}
		}
		switch {
		case contains(l.Own, to):
			if !answer && !open(l.Inbound, source, to) {
				return arrived, source, errors.New("not exposed")
			}
			return to, source, nil
		case contains(l.Remote, source) && contains(l.Others, to), contains(l.Others, source) && contains(l.Remote, to):
		case slices.Contains(l.Transit, source) && slices.Contains(l.Transit, to) && (answer || open(plan.Inbound{Sources: l.Inbound.Sources, Open: l.Inbound.Open}, source, to)):
		default:
			return arrived, source, errors.New("no transit")
		}
	}
	return arrived, source, errors.New("it goes round in circles")
}

// masquerade returns the source of a packet that leaves a pod's node for an alias.
func (s *Simulation) masquerade(l plan.Layout, source, to netip.Addr) netip.Addr {
	for _, m := range l.Masquerades {
		if contains(m.Remote, to) && !contains(m.Known, source) {
			return ofFamily(l.Sources, source)
		}
	}
	return source
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// directly returns the addresses of a packet as a node sends it directly.
func directly(l plan.Layout, source, to netip.Addr) (src, dst netip.Addr, ok bool) {
	for _, d := range l.Direct {
		if own, known := remap(source, d.Local, false); known && contains(d.Open, to) {
			return formOf(own), formOf(to), true
		}
	}
	return source, to, false
}

// toEntry returns the addresses of a packet as a node sends it to a gateway of the other cluster.
func toEntry(l plan.Layout, source, to netip.Addr) (src, dst netip.Addr, ok bool) {
	for _, d := range l.Direct {
		if own, known := remap(source, d.Local, false); known && contains(d.Enter, to) {
			return formOf(own), plan.EntryForm(netip.PrefixFrom(to, to.BitLen())).Addr(), true
		}
	}
	return source, to, false
}

// entered returns the addresses of a packet that enters the cluster at a node.
func entered(l plan.Layout, source, to netip.Addr) (src, dst netip.Addr, err error) {
	for _, d := range l.Direct {
		for _, alias := range d.Remote {
			src, ok := plan.Remap(source, plan.DirectForm(alias), alias)
			if !ok || len(d.Entry) == 0 || !plan.IsEntryForm(netip.PrefixFrom(to, to.BitLen())) {
				continue
			}
			for _, m := range d.Entry {
				if dst, ok := plan.Remap(to, plan.EntryForm(m.Alias), m.Alias); ok {
					return src, dst, nil
				}
			}
			return src, to, errors.New("it does not enter here")
		}
	}
	return source, to, nil
}

// undo returns the addresses of a packet as a node delivers it that received it directly.
func undo(l plan.Layout, source, to netip.Addr) (src, dst netip.Addr, direct bool, err error) {
	for _, d := range l.Direct {
		for _, alias := range d.Remote {
			if src, ok := plan.Remap(source, plan.DirectForm(alias), alias); ok {
				var local []plan.Mapping
				for _, m := range d.Local {
					local = append(local, plan.Mapping{Real: m.Real, Alias: plan.DirectForm(m.Alias)})
				}
				if dst, ok = remap(to, local, true); !ok {
					err = errors.New("it is not for this node")
				}
				return src, dst, true, err
			}
		}
	}
	return source, to, false, nil
}

func formOf(a netip.Addr) netip.Addr {
	return plan.DirectForm(netip.PrefixFrom(a, a.BitLen())).Addr()
}

func translation(l plan.Layout, alias netip.Addr) *plan.Translation {
	for i, t := range l.Translations {
		if contains(t.Remote, alias) {
			return &l.Translations[i]
		}
	}
	return nil
}

func remap(a netip.Addr, local []plan.Mapping, entering bool) (netip.Addr, bool) {
	for _, m := range local {
		from, to := m.Real, m.Alias
		if entering {
			from, to = to, from
		}
		if b, ok := plan.Remap(a, from, to); ok {
			return b, true
		}
	}
	return a, false
}

// allowed returns the peer of a device that has an address: WireGuard's cryptokey routing.
func allowed(l plan.Layout, a netip.Addr) (key plan.PublicKey, ok bool) {
	longest := -1
	for _, p := range l.Peers {
		for _, allowed := range p.AllowedIPs {
			if allowed.Contains(a) && allowed.Bits() > longest {
				key, ok, longest = p.PublicKey, true, allowed.Bits()
			}
		}
	}
	return key, ok
}

func open(in plan.Inbound, source, to netip.Addr) bool {
	classes := map[plan.Class]bool{}
	for _, p := range in.Prefixes {
		classes[p.Class] = classes[p.Class] || p.Prefix.Contains(source)
	}
	for _, s := range in.Sources {
		classes[s.Class] = classes[s.Class] || s.Source == source
	}
	return slices.ContainsFunc(in.Open, func(o plan.Opening) bool { return classes[o.Class] && o.Addr == to })
}
