package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestDirectFormKeepsTheHostPart(t *testing.T) {
	for alias, want := range map[string]string{
		"198.18.7.0/24": "246.18.7.0/24", "10.242.0.0/16": "250.242.0.0/16", "10.0.0.0/8": "250.0.0.0/8",
		"fdd7:585b:e300::/48": "fcd7:585b:e300::/48", "2001:db8:1::/64": "fc01:db8:1::/64",
	} {
		if got := DirectForm(pfx(alias)); got != pfx(want) {
			t.Errorf("the direct form of %s is %v, want %s", alias, got, want)
		}
	}
}

// direct is a home whose peer announces its nodes.
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
		"an alias of a peer before it": {func(q *Peer) {
			q.Remote = append(q.Remote, Mapping{Real: pfx("10.201.0.0/16"), Alias: pfx("10.250.0.0/16")})
			q.Nodes = append(q.Nodes, other("10.201.0.0/24"))
		}, []string{"x", "z"}, "is not in a prefix of the peer"},
	} {
		t.Run(name, func(t *testing.T) {
			d := direct()
			tt.change(&d.Peers[0])
			d.Peers = append([]Peer{{ClusterID: "before", Remote: []Mapping{{Real: pfx("10.200.0.0/16"), Alias: pfx("10.250.0.0/16")}}}}, d.Peers...)
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

func TestOtherNodesAreNotTakenForGateways(t *testing.T) {
	d := direct()
	q := &d.Peers[0]
	q.Gateways = manyGateways(maxGateways + 1)
	nodes, _ := RemoteNodes(d)
	for _, n := range nodes {
		if n.Node == "z" && n.IsGateway {
			t.Errorf("node z of %d gateways and %d nodes is a gateway", len(q.Gateways), len(q.Nodes))
		}
	}
	if !slices.ContainsFunc(nodes, func(n RemoteNode) bool { return n.Node == "z" }) {
		t.Errorf("z is not in %v", nodes)
	}
}

// planDirect is the plan in which there are tunnels to all nodes that a peer announces, which announce
// the agreements that they receive.
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
				o.Direct[i].Received = w.Agreement
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
		"nothing of this node was announced":  func(d *Desired, _ *Observed) { d.Announced = nil },
		"an announced pod is on another node": func(d *Desired, _ *Observed) { d.Announced = append(d.Announced, pfx("10.200.1.0/24")) },
		"a pod of another node is among them": func(d *Desired, _ *Observed) { d.Nodes[0].PodCIDRs = append(d.Nodes[0].PodCIDRs, pfx("10.200.2.9/32")) },
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
					t.Errorf("%s gets an agreement, and so may send directly", w.Node)
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

// BenchmarkRemoteNodes reads what 250 peers announce of 64 nodes each, which is done when something
// of it changes.
func BenchmarkRemoteNodes(b *testing.B) {
	d := Desired{ClusterID: "home", Node: "gw"}
	for i := range 250 {
		alias := netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i), 0, 0}), 16)
		q := Peer{ClusterID: fmt.Sprint("peer", i), Remote: []Mapping{{pfx("10.200.0.0/16"), alias}}}
		for n := range maxRemoteNodes {
			q.Nodes = append(q.Nodes, Gateway{
				Node: fmt.Sprint("n", n), PublicKey: PublicKey{byte(i), byte(n), 1}, Endpoints: []string{"192.0.2.1:51820"},
				Pods: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(n), 0}), 24)},
			})
		}
		d.Peers = append(d.Peers, q)
	}
	for b.Loop() {
		if nodes, problems := RemoteNodes(d); len(nodes) != 16000 || len(problems) > 0 {
			b.Fatalf("%d nodes, %v", len(nodes), problems)
		}
	}
}
