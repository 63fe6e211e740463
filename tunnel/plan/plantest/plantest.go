// Package plantest has the question that a plan is there to answer, for tests: does each packet
// arrive at the pod that it was meant for, and nowhere else? [World.Check] asks it of whatever
// carries packets: of layouts, which [Simulate] interprets, or of nodes that have them in force.
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

// Node is a node of a cluster, with the prefix of its pods.
type Node struct {
	Cluster, Name string
	Pods          netip.Prefix
	Gateway       bool
}

// World is clusters that all peer with each other and have the same pod prefix.
type World struct {
	Real  netip.Prefix
	Nodes []Node
	Pods  []Pod
	// Alias is the prefix by which a cluster knows the pods of another.
	Alias func(knows, known string) netip.Prefix
	// Key and Endpoints are those of a node.
	Key       func(Node) plan.PublicKey
	Endpoints func(Node) []string
}

// TB is what a check needs of a test.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Net carries packets.
type Net interface {
	// Open opens a flow from a pod to the address of another. It returns the address that the
	// other pod sees, and an error if the flow does not come about, or anywhere else.
	Open(from, to Pod, at netip.Addr) (seen netip.Addr, err error)
}

// Check opens flows from each pod to each of the other clusters: each flow to an open pod comes
// about, under the addresses that the two clusters have for each other, and no other.
func (w World) Check(t TB, over Net) {
	t.Helper()
	for _, from := range w.Pods {
		for _, to := range w.Pods {
			if from.Cluster == to.Cluster {
				continue
			}
			at, ok := plan.Remap(to.Addr, w.Real, w.Alias(from.Cluster, to.Cluster))
			as, ok2 := plan.Remap(from.Addr, w.Real, w.Alias(to.Cluster, from.Cluster))
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

// Desired is the desired state of a node.
func (w World) Desired(self Node) plan.Desired {
	d := plan.Desired{ClusterID: self.Cluster, Node: self.Name}
	var order []string
	peers := map[string]*plan.Peer{}
	for _, n := range w.Nodes {
		if n.Cluster == self.Cluster {
			d.Nodes = append(d.Nodes, plan.Node{Name: n.Name, PublicKey: w.Key(n), Endpoints: w.Endpoints(n), PodCIDRs: []netip.Prefix{n.Pods}, Gateway: n.Gateway})
			continue
		}
		q := peers[n.Cluster]
		if q == nil {
			q = &plan.Peer{
				ClusterID: n.Cluster, PresharedKey: plan.PresharedKey{1, 2, 3},
				Local:  []plan.Mapping{{Real: w.Real, Alias: w.Alias(n.Cluster, self.Cluster)}},
				Remote: []plan.Mapping{{Real: w.Real, Alias: w.Alias(self.Cluster, n.Cluster)}},
			}
			peers[n.Cluster], order = q, append(order, n.Cluster)
		}
		if n.Gateway {
			q.Gateways = append(q.Gateways, plan.Gateway{Node: n.Name, PublicKey: w.Key(n), Endpoints: w.Endpoints(n)})
		}
	}
	for _, id := range order {
		q := peers[id]
		for _, p := range w.Pods {
			if p.Cluster == self.Cluster && p.Open {
				q.Inbound = append(q.Inbound, plan.Exposure{Name: p.Addr.String(), AnySource: true, Destinations: []plan.Destination{{Addr: p.Addr}}})
			}
		}
		d.Peers = append(d.Peers, *q)
	}
	return d
}

// Simulation carries packets as the layouts of all nodes say.
type Simulation struct {
	world   World
	layouts map[plan.PublicKey]plan.Layout
}

// Simulate plans all nodes of a world.
func Simulate(w World) (*Simulation, error) {
	s := &Simulation{world: w, layouts: map[plan.PublicKey]plan.Layout{}}
	for _, n := range w.Nodes {
		l, err := plan.Plan(w.Desired(n), plan.Observed{})
		if err != nil {
			return nil, err
		}
		s.layouts[w.Key(n)] = l
	}
	return s, nil
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
	case back != from.Addr || by != at:
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
	for range 4 { // from a node to its carrier, to the other's, to the node of the pod
		l := s.layouts[at]
		if t := translation(l, to); t != nil { // leaving
			ok := false
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
		if t := translation(l, source); t != nil { // entering
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
		default:
			return arrived, source, errors.New("no transit")
		}
	}
	return arrived, source, errors.New("it goes round in circles")
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
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

// allowed is the peer of a device that an address belongs to: WireGuard's cryptokey routing.
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
