package lab

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlanRefusesWhatCannotBe(t *testing.T) {
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
	want := Options{Name: "lab", Clusters: 2, Nodes: 1, CIDRs: SameCIDRs}
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
	for _, cidrs := range []CIDRs{SameCIDRs, DistinctCIDRs} {
		p, err := NewPlan(Options{Clusters: maxClusters, Nodes: maxNodes, CIDRs: cidrs})
		if err != nil {
			t.Fatal(err)
		}
		addresses, names := map[netip.Addr]string{}, map[string]bool{}
		take := func(a netip.Addr, who string) {
			if other, ok := addresses[a]; ok {
				t.Errorf("%s: %s and %s are both %s", cidrs, who, other, a)
			}
			addresses[a] = who
		}
		for i, c := range p.Clusters {
			take(c.Gateway, c.Name+" gateway")
			take(c.Public, c.Name+" public")
			if c.PodCIDR.Overlaps(c.ServiceCIDR) || c.LAN.Overlaps(c.PodCIDR) || c.LAN.Overlaps(c.ServiceCIDR) {
				t.Errorf("%s: prefixes of %s overlap", cidrs, c.Name)
			}
			if !c.ServiceCIDR.Contains(c.DNSService) || !c.ServiceCIDR.Contains(c.APIService) {
				t.Errorf("%s: services of %s are outside of %s", cidrs, c.Name, c.ServiceCIDR)
			}
			for _, other := range p.Clusters[:i] {
				if c.LAN.Overlaps(other.LAN) || c.LAN.Contains(other.Public) {
					t.Errorf("%s: LANs of %s and %s overlap", cidrs, c.Name, other.Name)
				}
				if cidrs == DistinctCIDRs && (c.PodCIDR.Overlaps(other.PodCIDR) || c.ServiceCIDR.Overlaps(other.ServiceCIDR) || c.PodCIDR.Overlaps(other.ServiceCIDR)) {
					t.Errorf("prefixes of %s and %s overlap", c.Name, other.Name)
				}
			}
			pods := map[netip.Prefix]bool{}
			for _, n := range c.Nodes {
				take(n.Address, n.Name)
				if !c.LAN.Contains(n.Address) || !c.PodCIDR.Overlaps(n.PodCIDR) || pods[n.PodCIDR] {
					t.Errorf("%s: node %s is misplaced: %s, %s", cidrs, n.Name, n.Address, n.PodCIDR)
				}
				pods[n.PodCIDR] = true
				if len(n.Uplink) > 15 || names[n.Uplink] {
					t.Errorf("%s: link %q of %s is too long or not its own", cidrs, n.Uplink, n.Name)
				}
				names[n.Uplink] = true
				if n.Control != (n.Index == 1) {
					t.Errorf("node %s: control is %v", n.Name, n.Control)
				}
			}
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
