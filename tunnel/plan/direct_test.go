package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestDirectFormKeepsWhatTellsPodsApart(t *testing.T) {
	for alias, want := range map[string]string{
		"198.18.7.0/24": "246.18.7.0/24", "10.242.0.0/16": "250.242.0.0/16", "10.0.0.0/8": "250.0.0.0/8",
		"fdd7:585b:e300::/48": "fcd7:585b:e300::/48", "2001:db8:1::/64": "fc01:db8:1::/64",
	} {
		if got := DirectForm(pfx(alias)); got != pfx(want) {
			t.Errorf("the direct form of %s is %v, want %s", alias, got, want)
		}
	}
}

// direct is a home whose peer tells of its nodes.
func direct() Desired {
	d := home("worker")
	d.Announced = []netip.Prefix{pfx("10.200.2.0/24")}
	d.Peers[0].Gateways[0].Pods = []netip.Prefix{pfx("10.200.7.0/24")}
	d.Peers[0].Nodes = []Gateway{{Node: "z", PublicKey: PublicKey{9}, Endpoints: []string{"198.51.100.9:51820"}, Pods: []netip.Prefix{pfx("10.200.8.0/24"), pfx("10.200.9.7/32")}}}
	return d
}

func TestRemoteNodesRefusesWhatPeersMayNotAnnounce(t *testing.T) {
	other := func(pods ...string) (g Gateway) {
		g = Gateway{Node: "zz", PublicKey: PublicKey{10}}
		for _, p := range pods {
			g.Pods = append(g.Pods, netip.MustParsePrefix(p))
		}
		return g
	}
	for name, tt := range map[string]struct {
		change func(*Peer)
		want   []string // nodes
		says   string
	}{
		"all is well": {func(*Peer) {}, []string{"x", "z"}, ""},
		"pods outside of what it announces for the cluster": {func(q *Peer) { q.Nodes = append(q.Nodes, other("10.201.0.0/24")) }, []string{"x", "z"}, "is not in a prefix of the peer"},
		"all of what it announces for the cluster":          {func(q *Peer) { q.Nodes = append(q.Nodes, other("10.200.0.0/16")) }, []string{"x", "z"}, "overlaps"},
		"pods of another node":                              {func(q *Peer) { q.Nodes = append(q.Nodes, other("10.200.8.128/25")) }, []string{"x", "z"}, "overlaps"},
		"the same pods as another node":                     {func(q *Peer) { q.Nodes = append(q.Nodes, other("10.200.8.0/24")) }, []string{"x", "z"}, "overlaps"},
		"the same pods twice":                               {func(q *Peer) { q.Nodes = append(q.Nodes, other("10.200.5.0/24", "10.200.5.0/25")) }, []string{"x", "z"}, "overlaps"},
		"a prefix with bits beyond its length":              {func(q *Peer) { q.Nodes = append(q.Nodes, other("10.200.5.1/24")) }, []string{"x", "z"}, "is not in a prefix"},
		"one node of the name of another":                   {func(q *Peer) { q.Nodes = append(q.Nodes, q.Nodes[0]) }, []string{"x", "z"}, ""},
		"no prefix at all":                                  {func(q *Peer) { q.Nodes = append(q.Nodes, other()) }, []string{"x", "z"}, ""},
		"no key":                                            {func(q *Peer) { q.Nodes[0].PublicKey = PublicKey{} }, []string{"x"}, "no WireGuard key"},
		"another cluster's overlay address":                 {func(q *Peer) { q.Nodes[0].Overlay = Overlay("home", "gw") }, []string{"x"}, "is not in its cluster's"},
		"an endpoint that is reached through the tunnel":    {func(q *Peer) { q.Nodes[0].Endpoints = []string{"10.242.0.1:51820"} }, []string{"x"}, "through the tunnel"},
		"too many prefixes": {func(q *Peer) {
			q.Nodes[0].Pods = nil
			for i := range MaxDirectPods + 1 {
				q.Nodes[0].Pods = append(q.Nodes[0].Pods, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, 20, byte(i)}), 32))
			}
		}, []string{"x"}, "MaxDirectPods"},
		"too many nodes": {func(q *Peer) {
			for i := range maxRemoteNodes {
				q.Nodes = append(q.Nodes, Gateway{Node: fmt.Sprintf("n%d", i), PublicKey: PublicKey{20, byte(i)}, Pods: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(100 + i), 0}), 24)}})
			}
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := direct()
			tt.change(&d.Peers[0])
			nodes, problems := RemoteNodes(d)
			var got []string
			for _, n := range nodes {
				got = append(got, n.Node)
			}
			if tt.want == nil && len(got) != maxRemoteNodes+1 || tt.want != nil && !slices.Equal(got, tt.want) {
				t.Errorf("got nodes %v, want %v", got, tt.want)
			}
			if tt.says == "" != (len(problems) == 0) || tt.says != "" && !strings.Contains(problems[0].Text, tt.says) {
				t.Errorf("problems %v, want one that says %q", problems, tt.says)
			}
		})
	}
}

// planDirect is the plan in which there are tunnels to all nodes that a peer tells of, which tell
// what they are told.
func planDirect(t interface{ Fatal(...any) }, d Desired, o Observed) Layout {
	nodes, _ := RemoteNodes(d)
	for _, n := range nodes {
		o.Direct = append(o.Direct, Direct{RemoteNode: n, Use: true})
	}
	l, err := Plan(d, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range o.Direct {
		for _, w := range l.Peers {
			if w.Cluster == n.Cluster && w.Node == n.Node {
				o.Direct[i].Told = w.Agreement
			}
		}
	}
	if l, err = Plan(d, o); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPlanBindsANodeToItsOwnPods(t *testing.T) {
	l := planDirect(t, direct(), Observed{})
	z := slices.IndexFunc(l.Peers, func(w WireGuardPeer) bool { return w.Node == "z" })
	if z < 0 {
		t.Fatal("there is no tunnel to the node")
	}
	want := []netip.Prefix{pfx("250.242.8.0/24"), pfx("250.242.9.7/32"), host(Overlay("away", "z"))}
	if got := l.Peers[z].AllowedIPs; !slices.Equal(got, want) {
		t.Errorf("the node may send as %v, want %v", got, want)
	}
	if len(l.Direct) != 1 || len(l.Direct[0].Open) != 3 || !slices.Equal(l.Direct[0].Local, []Mapping{{pfx("10.200.2.0/24"), pfx("10.241.2.0/24")}}) {
		t.Errorf("directly: %+v", l.Direct)
	}
}

func TestPlanGoesThroughCarriersWhereNotAllIsWell(t *testing.T) {
	for name, change := range map[string]func(*Desired, *Observed){
		"peers were told nothing of this node":       func(d *Desired, _ *Observed) { d.Announced = nil },
		"a pod that peers were told of is elsewhere": func(d *Desired, _ *Observed) { d.Announced = append(d.Announced, pfx("10.200.1.0/24")) },
		"a pod of another node is among them":        func(d *Desired, _ *Observed) { d.Nodes[0].PodCIDRs = append(d.Nodes[0].PodCIDRs, pfx("10.200.2.9/32")) },
		"aliases are of 240.0.0.0/4": func(d *Desired, _ *Observed) {
			d.Peers[0].Remote[0].Alias = pfx("250.242.0.0/16")
		},
		"the peer calls the pods nothing": func(d *Desired, _ *Observed) { d.Peers[0].Local[0].Real = pfx("10.199.0.0/16") },
	} {
		t.Run(name, func(t *testing.T) {
			d, o := direct(), Observed{}
			change(&d, &o)
			l := planDirect(t, d, o)
			for _, x := range l.Direct {
				if len(x.Open) > 0 {
					t.Errorf("packets go directly: %+v", x)
				}
			}
			for _, w := range l.Peers {
				if w.Agreement != 0 {
					t.Errorf("%s is told that it may send directly", w.Node)
				}
			}
		})
	}
}

// A node of one peer cannot be made to look like one of another, or like this cluster's.
func TestPlanGivesAKeyToOneNode(t *testing.T) {
	for name, change := range map[string]func(*Desired){
		"the key of a home node":      func(d *Desired) { d.Peers[0].Nodes[0].PublicKey = PublicKey{1} },
		"the key of this node":        func(d *Desired) { d.Peers[0].Nodes[0].PublicKey = PublicKey{2} },
		"the key of another's node":   func(d *Desired) { d.Peers[0].Nodes[0].PublicKey = d.Peers[0].Gateways[0].PublicKey },
		"the overlay of another node": func(d *Desired) { d.Peers[0].Nodes[0].Overlay = Overlay("away", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			d := direct()
			change(&d)
			l := planDirect(t, d, Observed{})
			for _, w := range l.Peers {
				if w.Node == "z" {
					t.Errorf("it is a peer of the device: %+v", w)
				}
			}
			if !slices.ContainsFunc(l.Problems, func(p Problem) bool { return strings.Contains(p.Text, "node z is reached through gateways only") }) {
				t.Errorf("problems: %v", l.Problems)
			}
		})
	}
}

// packet is one on its way between pods of two clusters.
type packet struct{ source, dest netip.Addr }

// network is the nodes of two clusters with their layouts, by key.
type network map[PublicKey]*networkNode

type networkNode struct {
	cluster, name string
	key           PublicKey
	layout        Layout
}

// leave is what a node does to a packet before it is encrypted.
func (n *networkNode) leave(p packet) packet {
	for _, d := range n.layout.Direct {
		for _, m := range d.Local {
			if m.Real.Contains(p.source) && slices.ContainsFunc(d.Open, contains(p.dest)) {
				return packet{formOf(move(p.source, m.Real, m.Alias)), formOf(p.dest)}
			}
		}
	}
	for _, t := range n.layout.Translations {
		for _, m := range t.Local {
			if m.Real.Contains(p.source) && slices.ContainsFunc(t.Remote, contains(p.dest)) {
				return packet{move(p.source, m.Real, m.Alias), p.dest}
			}
		}
	}
	return p
}

// enter undoes that on the other side. False if it drops the packet.
func (n *networkNode) enter(p packet) (packet, bool) {
	for _, d := range n.layout.Direct {
		for _, a := range d.Remote {
			form := DirectForm(a)
			if !form.Contains(p.source) {
				continue
			}
			for _, m := range d.Local {
				if f := DirectForm(m.Alias); f.Contains(p.dest) {
					return packet{move(p.source, form, a), move(p.dest, f, m.Real)}, true
				}
			}
			return p, false
		}
	}
	for _, t := range n.layout.Translations {
		if !slices.ContainsFunc(t.Remote, contains(p.source)) {
			continue
		}
		for _, m := range t.Local {
			if m.Alias.Contains(p.dest) {
				return packet{p.source, move(p.dest, m.Alias, m.Real)}, true
			}
		}
		return p, false
	}
	return p, true
}

// owner is the peer of the device that an address belongs to: by the longest prefix.
func (n *networkNode) owner(a netip.Addr) (key PublicKey, found bool) {
	best := -1
	for _, w := range n.layout.Peers {
		for _, p := range w.AllowedIPs {
			if p.Contains(a) && p.Bits() > best {
				key, best, found = w.PublicKey, p.Bits(), true
			}
		}
	}
	return key, found
}

// walk sends a packet from a pod and returns where it arrives and through how many tunnels.
func (w network) walk(from *networkNode, p packet) (at *networkNode, arrived packet, tunnels int, why string) {
	at = from
	for tunnels = 1; tunnels <= 4; tunnels++ {
		p = at.leave(p)
		key, ok := at.owner(p.dest)
		if !ok {
			return at, p, tunnels, "no peer of the device has the destination"
		}
		to := w[key]
		if sender, ok := to.owner(p.source); !ok || sender != at.key {
			return to, p, tunnels, "the cipher drops it"
		}
		if p, ok = to.enter(p); !ok {
			return to, p, tunnels, "the firewall drops it"
		}
		if at = to; slices.ContainsFunc(at.layout.Own, contains(p.dest)) && !slices.ContainsFunc(at.layout.Remote, contains(p.dest)) {
			return at, p, tunnels, ""
		}
	}
	return at, p, tunnels, "it goes around in circles"
}

func formOf(a netip.Addr) netip.Addr { return DirectForm(host(a)).Addr() }

func move(a netip.Addr, from, to netip.Prefix) netip.Addr {
	out, _ := Remap(a, from, to)
	return out
}

// TestPacketsArriveWhicheverWayTheyGo has two clusters whose nodes each choose by themselves which
// others they send to directly, of those that have told them that they accept it, and wants each
// packet to arrive at the pod that was meant, from the alias of the pod that sent it.
func TestPacketsArriveWhicheverWayTheyGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type side struct {
			id           string
			nodes        []Node
			alias        netip.Prefix // of its pods at the other
			told         map[string][]netip.Prefix
			announcement []Gateway
		}
		real := pfx("10.200.0.0/16")
		sides := [2]*side{{id: "aaaa", alias: pfx("198.18.0.0/16")}, {id: "bbbb", alias: pfx("198.19.0.0/16")}}
		for s, c := range sides {
			for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
				n := Node{Name: fmt.Sprintf("%s%d", c.id[:1], i), PublicKey: PublicKey{byte(s + 1), byte(i)}, Endpoints: []string{"192.0.2.1:1"}, Gateway: i == 0 || rapid.Bool().Draw(t, "gateway")}
				n.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i), 0}), 24)}
				if j := rapid.IntRange(0, 4).Draw(t, "borrows"); j < i { // an address of another's block
					n.PodCIDRs = append(n.PodCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(j), byte(100 + i)}), 32))
				}
				c.nodes = append(c.nodes, n)
			}
			c.told = DirectPods(c.nodes, []netip.Prefix{real}, MaxDirectPods)
			for _, n := range c.nodes {
				if rapid.IntRange(0, 3).Draw(t, "announced") > 0 {
					c.announcement = append(c.announcement, Gateway{Node: n.Name, PublicKey: n.PublicKey, Pods: c.told[n.Name]})
				} else {
					delete(c.told, n.Name)
					c.announcement = append(c.announcement, Gateway{Node: n.Name, PublicKey: n.PublicKey})
				}
			}
		}
		w, desired, observed := network{}, map[PublicKey]Desired{}, map[PublicKey]*Observed{}
		plan := func(n *networkNode) {
			l, err := Plan(desired[n.key], *observed[n.key])
			if err != nil || len(l.Problems) > 0 && !strings.Contains(l.Problems[0].Text, "no address of its own") {
				t.Fatal(err, l.Problems)
			}
			n.layout = l
		}
		for s, c := range sides {
			other := sides[1-s]
			for i, n := range c.nodes {
				q := Peer{ClusterID: other.id, Local: []Mapping{{real, c.alias}}, Remote: []Mapping{{real, other.alias}}}
				for j, g := range other.announcement {
					if other.nodes[j].Gateway {
						q.Gateways = append(q.Gateways, g)
					} else {
						q.Nodes = append(q.Nodes, g)
					}
				}
				d := Desired{ClusterID: c.id, Node: n.Name, Nodes: c.nodes, Announced: c.told[n.Name], Peers: []Peer{q}}
				o := &Observed{Carriers: map[string]Carrier{other.id: {Home: c.nodes[0].Name, Peer: other.nodes[0].Name, Claims: i == 0}}}
				remotes, problems := RemoteNodes(d)
				if len(problems) > 0 {
					t.Fatal(problems)
				}
				for _, r := range remotes {
					wanted := r.IsGateway && n.Gateway || rapid.Bool().Draw(t, "wanted")
					if wanted {
						o.Direct = append(o.Direct, Direct{RemoteNode: r, Use: rapid.Bool().Draw(t, "use"), Leaving: rapid.IntRange(0, 3).Draw(t, "leaving") == 0})
					}
				}
				node := &networkNode{cluster: c.id, name: n.Name, key: n.PublicKey}
				w[n.PublicKey], desired[n.PublicKey], observed[n.PublicKey] = node, d, o
			}
		}
		for range 2 { // each tells the others, who hear of it
			for _, n := range w {
				plan(n)
			}
			for key, o := range observed {
				for i := range o.Direct {
					for _, v := range w[o.Direct[i].PublicKey].layout.Peers {
						if v.PublicKey == key {
							o.Direct[i].Told = v.Agreement
						}
					}
				}
			}
		}
		for s, c := range sides {
			other := sides[1-s]
			for _, from := range c.nodes {
				for _, to := range other.nodes {
					for _, src := range from.PodCIDRs {
						for _, dst := range to.PodCIDRs {
							p := packet{src.Addr().Next(), move(dst.Addr().Next(), real, other.alias)}
							if src.Bits() == 32 {
								p.source = src.Addr()
							}
							if dst.Bits() == 32 {
								p.dest = move(dst.Addr(), real, other.alias)
							}
							open := slices.ContainsFunc(w[from.PublicKey].layout.Direct, func(d DirectPeer) bool {
								return slices.ContainsFunc(d.Open, contains(p.dest)) && slices.ContainsFunc(d.Local, func(m Mapping) bool { return m.Real.Contains(p.source) })
							})
							at, got, tunnels, why := w.walk(w[from.PublicKey], p)
							want := packet{move(p.source, real, c.alias), move(p.dest, other.alias, real)}
							if why != "" || at.name != to.Name || got != want {
								t.Fatalf("a packet from %v on %s to %v on %s: at %s as %v: %s", p.source, from.Name, p.dest, to.Name, at.name, got, why)
							}
							if open && tunnels != 1 {
								t.Fatalf("a packet from %s to %s went through %d tunnels", from.Name, to.Name, tunnels)
							}
						}
					}
				}
			}
		}
	})
}
