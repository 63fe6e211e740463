package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/entente-dev/entente/internal/cidr"
)

func prefixesOf(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, pfx(text))
	}
	return out
}

// The routes are those that the network plugins make.
func TestWherePodsAre(t *testing.T) {
	veth := func(address string) NodeRoute { return NodeRoute{Prefix: pfx(address), Kind: "veth"} }
	for name, tt := range map[string]struct {
		cidrs, cluster []netip.Prefix
		routes         []NodeRoute
		want           []netip.Prefix
	}{
		"nothing is known": {},
		"no pod was there": {cidrs: prefixesOf("10.1.2.0/24", "fd00:1::/64"), want: prefixesOf("10.1.2.0/24", "fd00:1::/64")},
		"a bridge":         {cidrs: prefixesOf("10.1.2.0/24"), routes: []NodeRoute{{Prefix: pfx("10.1.2.0/24"), Kind: "bridge"}}, want: prefixesOf("10.1.2.0/24")},
		"kindnet":          {cidrs: prefixesOf("10.1.2.0/24"), routes: []NodeRoute{veth("10.1.2.7/32"), {Prefix: pfx("10.1.3.0/24"), Gateway: true}}, want: prefixesOf("10.1.2.0/24")},
		"flannel over VXLAN": {cidrs: prefixesOf("10.1.2.0/24"), cluster: prefixesOf("10.1.0.0/16"), routes: []NodeRoute{
			{Prefix: pfx("10.1.2.0/24"), Kind: "bridge"}, {Prefix: pfx("10.1.3.0/24"), Kind: "vxlan", Gateway: true, Addresses: []netip.Addr{netip.MustParseAddr("10.1.2.0")}},
		}, want: prefixesOf("10.1.2.0/24")},
		"Calico: blocks, one of them in the podCIDR of another node, and one borrowed address": {
			cidrs: prefixesOf("10.1.2.0/24"), cluster: prefixesOf("10.1.0.0/16"), routes: []NodeRoute{
				{Prefix: pfx("10.1.70.64/26"), Blackhole: true},
				veth("10.1.70.65/32"),
				{Prefix: pfx("10.1.3.0/26"), Blackhole: true},
				veth("10.1.90.9/32"),
				{Prefix: pfx("10.1.80.0/26"), Gateway: true, Kind: "vxlan"},
			}, want: prefixesOf("10.1.3.0/26", "10.1.70.64/26", "10.1.90.9/32"),
		},
		"Cilium with a pool of its own, in tunnels": {
			cidrs: prefixesOf("10.244.1.0/24"), cluster: prefixesOf("10.0.0.0/8"), routes: []NodeRoute{
				{Prefix: pfx("10.0.1.0/24"), Gateway: true, Kind: "veth", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.55")}},
				{Prefix: pfx("10.0.2.0/24"), Gateway: true, Kind: "veth", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.55")}},
				veth("10.0.1.55/32"),
			}, want: prefixesOf("10.0.1.0/24"),
		},
		"addresses of the nodes' own network": {
			cluster: prefixesOf("10.0.0.0/16"), routes: []NodeRoute{
				{Prefix: pfx("10.0.4.0/24"), Uplink: true}, {Prefix: pfx("10.0.5.0/24")}, veth("10.0.4.17/32"), veth("10.0.4.90/32"),
			}, want: prefixesOf("10.0.4.17/32", "10.0.4.90/32"),
		},
		"a bridge that is the node's own way out": {cluster: prefixesOf("10.0.0.0/16"), routes: []NodeRoute{{Prefix: pfx("10.0.4.0/24"), Kind: "bridge", Uplink: true}}},
		"a route of another program":              {cluster: prefixesOf("10.1.0.0/16"), routes: []NodeRoute{{Prefix: pfx("172.17.0.0/16"), Kind: "bridge"}, {Prefix: pfx("10.0.0.0/8"), Blackhole: true}}},
		"one family has blocks, the other podCIDRs": {
			cidrs: prefixesOf("10.1.2.0/24", "fd00:1::/64"), cluster: prefixesOf("10.1.0.0/16"), routes: []NodeRoute{{Prefix: pfx("10.1.7.0/26"), Blackhole: true}},
			want: prefixesOf("10.1.7.0/26", "fd00:1::/64"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, left := PodsOf(tt.cidrs, tt.cluster, tt.routes)
			if !slices.Equal(got, tt.want) || left != 0 {
				t.Errorf("got %v and %d left, want %v", got, left, tt.want)
			}
		})
	}
}

// Too many are left out and counted, and blocks stay.
func TestPodPrefixesAreBounded(t *testing.T) {
	routes := []NodeRoute{{Prefix: pfx("10.1.200.0/26"), Blackhole: true}, {Prefix: pfx("10.1.2.0/26"), Blackhole: true}}
	for i := range 300 {
		routes = append(routes, NodeRoute{Prefix: pfx(fmt.Sprintf("10.1.%d.%d/32", 100+i/100, 1+i%100)), Kind: "veth"})
	}
	got, left := PodsOf(nil, prefixesOf("10.1.0.0/16"), routes)
	if len(got) != MaxNodePrefixes || left != 302-MaxNodePrefixes {
		t.Errorf("%d prefixes and %d left", len(got), left)
	}
	for _, block := range prefixesOf("10.1.200.0/26", "10.1.2.0/26") {
		if !slices.Contains(got, block) {
			t.Errorf("%v was left out, and single addresses were not", block)
		}
	}
}

// On each node, each address belongs to the node with the longest prefix that holds it: the way
// back to it, what is sent from it, and whether it is the node's own. Peers' plans are not asked.
func TestEachAddressBelongsToTheNodeWithTheLongestPrefix(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) // the same worlds each time
	for range 3000 {
		d := home("gw")
		d.Nodes = nil
		given := map[netip.Prefix]bool{}
		names := []string{"gw", "n1", "n2", "n3"}
		for i, name := range names {
			n := Node{Name: name, PublicKey: PublicKey{200, byte(i)}, Gateway: i < 2}
			for range 1 + random.IntN(4) {
				at := netip.AddrFrom4([4]byte{10, 200, 0, byte(random.IntN(64))})
				if p := netip.PrefixFrom(at, 26+random.IntN(7)).Masked(); !given[p] {
					n.PodCIDRs, given[p] = append(n.PodCIDRs, p), true
				}
			}
			n.PodCIDRs = cidr.Of(n.PodCIDRs...) // as nodes announce them
			d.Nodes = append(d.Nodes, n)
		}
		owner := func(a netip.Addr) string {
			who, bits := "", -1
			for _, n := range d.Nodes {
				for _, p := range n.PodCIDRs {
					if p.Contains(a) && p.Bits() > bits {
						who, bits = n.Name, p.Bits()
					}
				}
			}
			return who
		}
		for i, name := range names[:2] {
			if d.Node = name; len(d.Nodes[i].PodCIDRs) == 0 {
				continue // all of the cluster's may be its own then
			}
			plan, err := Plan(d, Observed{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 64 {
				a := netip.AddrFrom4([4]byte{10, 200, 0, byte(i)})
				want := owner(a)
				if got := returnsTo(plan, a, name); got != want {
					t.Fatalf("on %s, %v returns to %q, want %q: %+v", name, a, got, want, d.Nodes)
				}
			}
		}
	}
}

// returnsTo is the node that a plan sends packets for an address to, by its routes and by the
// longest prefix of the WireGuard peers; node itself where it leaves its own to the network
// plugin. Empty means that it leaves unknown ones to the plugin.
func returnsTo(l Layout, a netip.Addr, node string) string {
	holds := func(prefixes []netip.Prefix) bool {
		return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	routed := slices.DeleteFunc(slices.Clone(l.Routes), func(r Route) bool { return !r.Return || !r.Prefix.Contains(a) })
	switch {
	case len(routed) > 1:
		return "two nodes"
	case (len(routed) == 1) != holds(l.Others):
		return "a route that the firewall does not know"
	case len(routed) == 0 && holds(l.Own):
		return node
	case len(routed) == 0:
		return ""
	}
	who, bits := "", -1
	for _, w := range l.Peers {
		for _, p := range w.AllowedIPs {
			if !w.Remote && p.Contains(a) && p.Bits() > bits {
				who, bits = w.Node, p.Bits()
			}
		}
	}
	if Overlay("home", who) != routed[0].Way {
		return "a way to another node than WireGuard's"
	}
	return who
}

// Two nodes with the same prefix cost each other that one, and nothing else.
func TestTwoNodesWithTheSamePods(t *testing.T) {
	d := home("gw")
	same := d.Nodes[0].PodCIDRs[0]
	d.Nodes[1].PodCIDRs = append(slices.Clone(d.Nodes[1].PodCIDRs), same)
	plan, err := Plan(d, Observed{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(plan.Problems, func(p Problem) bool { return p.Peer == "" && strings.Contains(p.Text, same.String()) })
	if i < 0 || !strings.Contains(plan.Problems[i].Text, d.Nodes[0].Name) || !strings.Contains(plan.Problems[i].Text, d.Nodes[1].Name) {
		t.Errorf("it is not reported: %+v", plan.Problems)
	}
	before, err := Plan(home("gw"), Observed{})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(plan.Routes, plan.Peers, plan.Own, plan.Others) != fmt.Sprint(before.Routes, before.Peers, before.Own, before.Others) {
		t.Error("the plan is another one")
	}
}

// The pool of aliases is closed, except the parts that are in use.
func TestThePoolIsClosed(t *testing.T) {
	for name, tt := range map[string]struct{ pool, reserved, routed, want []netip.Prefix }{
		"none":                  {},
		"not in use":            {pool: prefixesOf("198.18.0.0/15", "fdd7:585b:e300::/40"), routed: prefixesOf("10.0.0.0/8"), want: prefixesOf("198.18.0.0/15", "fdd7:585b:e300::/40")},
		"a part is in use":      {pool: prefixesOf("198.18.0.0/15"), routed: prefixesOf("198.19.0.0/16"), want: prefixesOf("198.18.0.0/16")},
		"a part is a service's": {pool: prefixesOf("198.18.0.0/15"), reserved: prefixesOf("198.18.0.0/16"), want: prefixesOf("198.19.0.0/16")},
		"all is in use":         {pool: prefixesOf("10.242.0.0/16"), routed: prefixesOf("10.0.0.0/8")},
		"the same":              {pool: prefixesOf("10.242.0.0/16"), routed: prefixesOf("10.242.0.0/16")},
		"everything":            {pool: prefixesOf("0.0.0.0/0")},
		"pods are in it":        {pool: prefixesOf("10.200.0.0/15"), want: prefixesOf("10.201.0.0/16")},
	} {
		t.Run(name, func(t *testing.T) {
			d := home("gw")
			d.Pool, d.Reserved = tt.pool, tt.reserved
			plan, err := Plan(d, Observed{Routed: tt.routed})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(plan.Closed, tt.want) {
				t.Errorf("closed are %v, want %v", plan.Closed, tt.want)
			}
		})
	}
}

func TestAliasesOfPodsEndOnTheNodeUnlessTheClusterHasTheAddress(t *testing.T) {
	for name, tt := range map[string]struct {
		local []Mapping
		want  []netip.Prefix
	}{
		"aliases":                              {[]Mapping{{pfx("10.200.0.0/16"), pfx("10.241.0.0/16")}}, []netip.Prefix{pfx("10.241.0.0/16")}},
		"a prefix that is not translated":      {[]Mapping{{pfx("10.200.0.0/16"), pfx("10.200.0.0/16")}}, nil},
		"an alias that is the Services'":       {[]Mapping{{pfx("10.200.0.0/16"), pfx("10.96.0.0/16")}}, nil},
		"an alias with pods of this one in it": {[]Mapping{{pfx("10.200.1.0/24"), pfx("10.200.2.0/24")}}, nil},
		"an alias around the Services'":        {[]Mapping{{pfx("10.200.0.0/15"), pfx("10.96.0.0/15")}}, []netip.Prefix{pfx("10.97.0.0/16")}},
		"also the alias of a peer":             {[]Mapping{{pfx("10.200.0.0/16"), pfx("10.242.0.0/16")}}, []netip.Prefix{pfx("10.242.0.0/16")}},
		"single addresses": {
			[]Mapping{{pfx("10.200.1.4/32"), pfx("198.18.0.0/32")}, {pfx("10.200.1.9/32"), pfx("198.18.0.1/32")}}, []netip.Prefix{pfx("198.18.0.0/31")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := home("worker")
			d.Peers[0].Local = tt.local
			got, err := Plan(d, Observed{})
			if err != nil {
				t.Fatal(err)
			}
			var names []netip.Prefix
			for _, n := range got.Names {
				names = append(names, n.Prefixes...)
			}
			if !slices.Equal(names, tt.want) {
				t.Errorf("names are %v, want %v", names, tt.want)
			}
		})
	}
}

// The prefixes of nodes are known before the cluster's, which an agent announces.
func TestAPodThatAPeerKnowsByItsAddressIsNotAHost(t *testing.T) {
	t.Parallel()
	d := home("worker")
	d.Peers[0].Local = []Mapping{{pfx("10.200.2.9/32"), pfx("10.241.0.1/32")}, {pfx("192.0.2.9/32"), pfx("10.241.0.2/32")}}
	l, err := Plan(d, Observed{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(l.Hosts, []netip.Prefix{pfx("192.0.2.9/32")}) {
		t.Errorf("hosts are %v", l.Hosts)
	}
}
