package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlanRefusesImpossibleLabs(t *testing.T) {
	for name, o := range map[string]Options{
		"a name with a dash, which separates names":   {Name: "a-b"},
		"a name that begins with a digit":             {Name: "1a"},
		"a name that would leave its folder":          {Name: "../x"},
		"a name longer than interface names allow":    {Name: "abcdefghijklm"},
		"fewer than no clusters":                      {Clusters: -1},
		"more clusters than the address plan has":     {Clusters: maxClusters + 1},
		"more nodes than the address plan has":        {Nodes: maxNodes + 1},
		"more fake nodes than the limit":              {FakeNodes: maxFakeNodes + 1},
		"prefixes that are neither same nor distinct": {CIDRs: "other"},
		"a LAN that is neither separate nor shared":   {LAN: "other"},
		"a LAN shared by no nodes":                    {LAN: SharedLAN, Light: true},
		"more subnets than the address plan has":      {Nodes: 4, Subnets: maxSubnets + 1},
		"fewer than no subnets":                       {Subnets: -1},
		"a subnet without a node":                     {Subnets: 2},
		"subnets of a shared LAN":                     {Nodes: 2, Subnets: 2, LAN: SharedLAN},
		"a version of Kubernetes that is not built":   {Kubernetes: "1.31"},
		"a CNI that is not known":                     {CNI: "other"},
		"an IPAM that is not known":                   {IPAM: "other"},
		"a proxy that is not known":                   {Proxy: "ipvs"},
		"flannel with a pool":                         {CNI: FlannelCNI, IPAM: PoolIPAM},
		"flannel without podCIDRs":                    {CNI: FlannelCNI, NoNodeCIDRs: true},
		"a pool shared by one node":                   {IPAM: SharedPoolIPAM},
		"a CNI of no nodes":                           {CNI: FlannelCNI, Light: true},
		"families that are not known":                 {Families: "ipx"},
		"families of which one is not known":          {Families: "ipv4,"},
		"families of no nodes":                        {Families: DualStack, Light: true},
		"IPv6 on a shared LAN":                        {Families: DualStack, LAN: SharedLAN},
		"IPv6 with flannel":                           {Families: IPv6Only, CNI: FlannelCNI},
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := NewPlan(o); err == nil {
				t.Errorf("planned %+v", p.Options)
			}
		})
	}
}

func TestPlanDefaultsToTwoClustersWithTheSamePrefixes(t *testing.T) {
	p, err := NewPlan(Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := Options{Name: "lab", Clusters: 2, Nodes: 1, CIDRs: SameCIDRs, Families: IPv4Only, LAN: SeparateLANs, Subnets: 1, CNI: BridgeCNI, IPAM: NodeIPAM, Proxy: NFTablesProxy}
	if d := cmp.Diff(want, p.Options); d != "" {
		t.Errorf("options (-want +got):\n%s", d)
	}
	a, b := p.Clusters[0], p.Clusters[1]
	if a.PodCIDR != b.PodCIDR || a.ServiceCIDR != b.ServiceCIDR {
		t.Errorf("prefixes differ: %v %v, %v %v", a.PodCIDR, b.PodCIDR, a.ServiceCIDR, b.ServiceCIDR)
	}
	if a.Name != "lab-1" || b.Name != "lab-2" || a.Nodes[0].Name != "lab-1-1" {
		t.Errorf("names are %s, %s, %s", a.Name, b.Name, a.Nodes[0].Name)
	}
	if got := a.Nodes[0].Address.String(); got != "172.30.1.11" {
		t.Errorf("first node's address is %s", got)
	}
}

// The largest plan has room for everything: nothing overlaps that must not.
func TestAddressesOfTheLargestPlanDoNotOverlap(t *testing.T) {
	for _, families := range []Families{IPv4Only, IPv6Only, DualStack} {
		for _, cidrs := range []CIDRs{SameCIDRs, DistinctCIDRs} {
			t.Run(fmt.Sprintf("%s, %s", families, cidrs), func(t *testing.T) {
				p := mustPlan(t, Options{Clusters: maxClusters, Nodes: maxNodes, CIDRs: cidrs, Families: families})
				checkPlan(t, p, cidrs == DistinctCIDRs)
			})
		}
	}
}

func overlap(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
}

func checkPlan(t *testing.T, p Plan, distinct bool) {
	families := map[Families]int{DualStack: 2}[p.Options.Families]
	families = max(1, families)
	addresses, names := map[netip.Addr]string{}, map[string]bool{}
	take := func(a netip.Addr, who string) {
		if other, ok := addresses[a]; ok {
			t.Errorf("%s and %s are both %s", who, other, a)
		}
		addresses[a] = who
	}
	for i, c := range p.Clusters {
		lan := c.lans()[0]
		own := slices.Concat(c.PodCIDRs(), c.ServiceCIDRs())
		if len(lan.gateways()) != families || len(c.PodCIDRs()) != families || len(c.ServiceCIDRs()) != families {
			t.Errorf("%s has not one prefix for each family: %+v", c.Name, c)
		}
		for _, g := range lan.gateways() {
			take(g, c.Name+" gateway")
		}
		take(c.Public, c.Name+" public")
		if overlap(c.PodCIDRs(), c.ServiceCIDRs()) || overlap(lan.prefixes(), own) {
			t.Errorf("prefixes of %s overlap", c.Name)
		}
		if !c.ServiceCIDR.Contains(c.DNSService) || !c.ServiceCIDR.Contains(c.APIService) || families == 2 && !c.ServiceCIDR6.Contains(c.DNSService6) {
			t.Errorf("services of %s are outside of %s", c.Name, c.ServiceCIDRs())
		}
		for _, other := range p.Clusters[:i] {
			if overlap(lan.prefixes(), other.lans()[0].prefixes()) || c.LAN.Contains(other.Public) {
				t.Errorf("LANs of %s and %s overlap", c.Name, other.Name)
			}
			if others := slices.Concat(other.PodCIDRs(), other.ServiceCIDRs()); distinct == overlap(own, others) {
				t.Errorf("prefixes of %s and %s: %s and %s", c.Name, other.Name, own, others)
			}
		}
		pods := map[netip.Prefix]bool{}
		for _, n := range c.Nodes {
			if len(n.Addresses()) != families || len(n.PodCIDRs()) != families {
				t.Errorf("%s has not one address and prefix for each family: %+v", n.Name, n)
			}
			for _, a := range n.Addresses() {
				take(a, n.Name)
				if !lan.prefixLike(a).Contains(a) {
					t.Errorf("%s is at %s, which is not on %+v", n.Name, a, lan)
				}
			}
			for _, p := range n.PodCIDRs() {
				if !slices.ContainsFunc(c.PodCIDRs(), func(all netip.Prefix) bool { return all.Overlaps(p) && all.Bits() < p.Bits() }) || pods[p] {
					t.Errorf("pods of %s are misplaced: %s", n.Name, p)
				}
				pods[p] = true
			}
			if len(n.Uplink) > 15 || names[n.Uplink] {
				t.Errorf("link %q of %s is too long or not its own", n.Uplink, n.Name)
			}
			names[n.Uplink] = true
			if n.Control != (n.Index == 1) {
				t.Errorf("node %s: control is %v", n.Name, n.Control)
			}
		}
	}
}

func TestNodesAlternateBetweenSubnets(t *testing.T) {
	for _, families := range []Families{IPv4Only, IPv6Only, DualStack} {
		t.Run(string(families), func(t *testing.T) {
			checkSubnets(t, mustPlan(t, Options{Clusters: maxClusters, Nodes: maxNodes, Subnets: maxSubnets, Families: families}))
		})
	}
}

func checkSubnets(t *testing.T, p Plan) {
	if len(p.Segments) != maxClusters*maxSubnets {
		t.Fatalf("the LANs are %+v", p.Segments)
	}
	for i, s := range p.Segments {
		for _, other := range p.Segments[:i] {
			if overlap(s.prefixes(), other.prefixes()) || s.Name == other.Name {
				t.Errorf("%+v overlaps %+v", s, other)
			}
		}
	}
	addresses := map[netip.Addr]bool{}
	for i, c := range p.Clusters {
		lans := c.lans()
		if d := cmp.Diff(p.Segments[i*maxSubnets:][:maxSubnets], lans, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Errorf("LANs of %s (-want +got):\n%s", c.Name, d)
		}
		var own []netip.Prefix
		for k, n := range c.Nodes {
			lan := lans[n.Subnet]
			for _, a := range n.Addresses() {
				if n.Subnet != k%maxSubnets || !lan.prefixLike(a).Contains(a) || a == lan.gatewayLike(a) || addresses[a] {
					t.Errorf("%s is misplaced: %s in %+v", n.Name, a, lan)
				}
				addresses[a] = true
			}
		}
		for _, s := range lans {
			own = append(own, s.prefixes()...)
			if s.Prefix.Contains(c.Public) {
				t.Errorf("%s has the public address of %s", s.Prefix, c.Name)
			}
		}
		if !slices.Equal(own, p.own(c)) {
			t.Errorf("%s has %v, want %v", c.Name, p.own(c), own)
		}
	}
}

// On a shared LAN all nodes are in one prefix, and each cluster's are in one of its own
// within that.
func TestASharedLANHasRoomForTheLargestPlan(t *testing.T) {
	p, err := NewPlan(Options{Clusters: maxClusters, Nodes: maxNodes, LAN: SharedLAN})
	if err != nil {
		t.Fatal(err)
	}
	lan, other := p.Segments[0], p.Segments[1]
	if len(p.Segments) != 2 || lan.Prefix.Overlaps(other.Prefix) || lan.Prefix6.Overlaps(other.Prefix6) || lan.Name == other.Name {
		t.Errorf("the LANs are %+v", p.Segments)
	}
	if !lan.Prefix6.Addr().IsPrivate() {
		t.Errorf("%s is not a unique local prefix", lan.Prefix6)
	}
	taken := map[netip.Addr]string{lan.Gateway: "the router"}
	take := func(who string, addresses ...netip.Addr) {
		for _, a := range addresses {
			if before, ok := taken[a]; ok {
				t.Errorf("%s and %s are both %s", who, before, a)
			}
			taken[a] = who
			if !lan.Prefix.Contains(a) && !lan.Prefix6.Contains(a) {
				t.Errorf("%s of %s is not on the LAN", a, who)
			}
		}
	}
	for i := 1; i <= maxHosts; i++ {
		a, b := lan.address(0, 10+i)
		take("a host", a, b)
	}
	for i, c := range p.Clusters {
		if c.LAN != lan.Prefix || c.LANName != lan.Name || c.Gateway != lan.Gateway || lan.Prefix.Contains(c.Public) {
			t.Errorf("%s is misplaced: %+v", c.Name, c)
		}
		if c.PodCIDR != p.Clusters[0].PodCIDR || c.ServiceCIDR != p.Clusters[0].ServiceCIDR {
			t.Errorf("%s has prefixes of its own: %s, %s", c.Name, c.PodCIDR, c.ServiceCIDR)
		}
		for _, n := range c.Nodes {
			take(n.Name, n.Address, n.Address6)
			in := 0
			for _, o := range p.own(c) {
				if o.Contains(n.Address) || o.Contains(n.Address6) {
					in++
				}
			}
			if in != 2 {
				t.Errorf("%s is not in the prefixes of %s: %v", n.Name, c.Name, p.own(c))
			}
		}
		for _, d := range p.Clusters[:i] {
			for _, a := range p.own(c) {
				for _, b := range p.own(d) {
					if a.Overlaps(b) {
						t.Errorf("%s of %s overlaps %s of %s", a, c.Name, b, d.Name)
					}
				}
			}
		}
	}
}

func TestANodeOfASharedLANIsGivenAnotherAddress(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 2, LAN: SharedLAN})
	if err != nil {
		t.Fatal(err)
	}
	before := p.Clusters[1]
	for _, tt := range []struct {
		to, to6, lan, gateway string
	}{
		{"172.30.2.77", "fd6c:6162:0:1::2:0:4d", "lan1", "172.30.0.1"},
		{"172.29.2.11", "fd6c:6162:0:2::2:0:b", "lan2", "172.29.0.1"},
	} {
		q, err := p.readdressed("lab-2", netip.MustParseAddr(tt.to))
		if err != nil {
			t.Fatal(err)
		}
		c, n, err := q.Node("lab-2-1")
		if err != nil {
			t.Fatal(err)
		}
		if n.Address.String() != tt.to || c.LANName != tt.lan || c.Gateway.String() != tt.gateway || !c.LAN.Contains(n.Address) || !c.LAN6.Contains(n.Address6) {
			t.Errorf("%s: node is %+v of %+v", tt.to, n, c)
		}
		if d := cmp.Diff(p.Clusters[0], q.Clusters[0], cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
			t.Errorf("the other cluster changed:\n%s", d)
		}
		if p.Clusters[1].Nodes[0].Address != before.Nodes[0].Address || p.Clusters[1].LANName != "lan1" {
			t.Error("the former plan changed")
		}
	}
	several, err := NewPlan(Options{Nodes: 2, LAN: SharedLAN})
	if err != nil {
		t.Fatal(err)
	}
	separate, err := NewPlan(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		p        Plan
		node, to string
	}{
		"an address of another cluster":    {p, "lab-2", "172.30.1.77"},
		"the network's own":                {p, "lab-2", "172.30.2.0"},
		"the broadcast":                    {p, "lab-2", "172.30.2.255"},
		"the router's":                     {p, "lab-2", "172.30.0.1"},
		"an address of nowhere":            {p, "lab-2", "10.0.0.1"},
		"IPv6":                             {p, "lab-2", "fd6c:6162:0:1::2:0:4d"},
		"IPv4 in IPv6":                     {p, "lab-2", "::ffff:172.30.2.77"},
		"no node":                          {p, "lab-3", "172.30.2.77"},
		"a node that others know":          {several, "lab-1-1", "172.30.1.77"},
		"a node of which others are aware": {several, "lab-1-2", "172.30.1.77"},
		"no shared LAN":                    {separate, "lab-1", "172.30.1.77"},
	} {
		if q, err := tt.p.readdressed(tt.node, netip.MustParseAddr(tt.to)); err == nil {
			t.Errorf("%s was accepted: %+v", name, q.Clusters)
		}
	}
}

func TestClustersAndNodesAreFoundByName(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 2, Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"lab-2": "lab-2", "2": "lab-2", "lab-3": "", "": "", "lab-2-1": ""} {
		if c, err := p.Cluster(name); c.Name != want || (err == nil) != (want != "") {
			t.Errorf("cluster %q is %q, %v", name, c.Name, err)
		}
	}
	for name, want := range map[string]string{"lab-2-2": "lab-2-2", "lab-2": "lab-2-1", "lab-2-3": "", "": ""} {
		if _, n, err := p.Node(name); n.Name != want || (err == nil) != (want != "") {
			t.Errorf("node %q is %q, %v", name, n.Name, err)
		}
	}
}

func TestPreferredPortsOfLabsWithDifferentNamesRarelyMeet(t *testing.T) {
	for i := 1; i < maxClusters; i++ {
		if preferredPort("lab", i) == preferredPort("lab", i+1) {
			t.Errorf("clusters %d and %d want the same port", i, i+1)
		}
	}
	for _, name := range []string{"lab", "a", "zzzzzzzzzzzz", "demo"} {
		if p := preferredPort(name, maxClusters); p < 16440 || p >= lightPortFirst+1000 {
			t.Errorf("%s: port %d is out of place", name, p)
		}
	}
}
