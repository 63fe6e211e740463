package lab

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustPlan(t *testing.T, o Options) Plan {
	t.Helper()
	p, err := NewPlan(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nodeSpecs are those of the first cluster's nodes.
func nodeSpecs(t *testing.T, o Options) []nodeSpec {
	t.Helper()
	p := mustPlan(t, o)
	var all []nodeSpec
	for _, n := range p.Clusters[0].Nodes {
		all = append(all, nodeSpec{Lab: p.Options.Name, Cluster: p.Clusters[0], Node: n, Options: p.Options})
	}
	return all
}

// argument is the value of one argument of a node's process.
func argument(s nodeSpec, process, name string) string {
	for _, p := range s.processes() {
		for _, a := range p.Args {
			if v, ok := strings.CutPrefix(a, name+"="); ok && p.Name == process {
				return v
			}
		}
	}
	return ""
}

func number(a netip.Addr) int {
	b := a.As4()
	return int(binary.BigEndian.Uint32(b[:]))
}

func TestPoolBlocksAreInterleavedAndNoPodCIDR(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, maxNodes} {
		for _, ipam := range []IPAM{PoolIPAM, SharedPoolIPAM} {
			if nodes == 1 && ipam == SharedPoolIPAM {
				continue
			}
			c := mustPlan(t, Options{Clusters: 2, Nodes: nodes, IPAM: ipam, CIDRs: DistinctCIDRs}).Clusters[1]
			owner, misleading := map[netip.Prefix]string{}, 0
			for _, n := range c.Nodes {
				if len(n.Blocks) != 2 {
					t.Fatalf("%d nodes: %s has blocks %v", nodes, n.Name, n.Blocks)
				}
				if apart := number(n.Blocks[0].Addr()) - number(n.Blocks[1].Addr()); nodes > 1 && apart <= blockSize {
					t.Errorf("%d nodes: blocks %v of %s are next to each other", nodes, n.Blocks, n.Name)
				}
				for _, b := range n.Blocks {
					for other, who := range owner {
						if b.Overlaps(other) {
							t.Errorf("%d nodes: %s of %s overlaps %s of %s", nodes, b, n.Name, other, who)
						}
					}
					owner[b] = n.Name
					if !c.PodCIDR.Overlaps(b) || b.Bits() != blockBits || b != b.Masked() || n.PodCIDR.Overlaps(b) {
						t.Errorf("%d nodes: block %s of %s with podCIDR %s is misplaced", nodes, b, n.Name, n.PodCIDR)
					}
					for _, other := range c.Nodes {
						if other.PodCIDR.Overlaps(b) {
							misleading++
						}
					}
				}
			}
			if want := min(1, nodes-1); misleading != want {
				t.Errorf("%d nodes: %d blocks lie in the podCIDR of another node, want %d", nodes, misleading, want)
			}
			for _, n := range c.Nodes {
				if want := map[IPAM]int{SharedPoolIPAM: 2}[ipam]; len(n.Borrowed) != want {
					t.Errorf("%s borrows %v", n.Name, n.Borrowed)
				}
				for _, a := range n.Borrowed {
					if lender := owner[netip.PrefixFrom(a, blockBits).Masked()]; lender == "" || lender == n.Name || n.PodCIDR.Contains(a) {
						t.Errorf("%s borrows %s from %q", n.Name, a, lender)
					}
				}
			}
		}
	}
}

// ranges are the addresses that a node's host-local gives to pods, range by range.
func ranges(t *testing.T, s nodeSpec) [][]netip.Addr {
	t.Helper()
	b, err := json.Marshal(s.cniConfig())
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet               netip.Prefix
					RangeStart, RangeEnd netip.Addr
				}
			}
		}
	}
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Plugins) == 0 || len(config.Plugins[0].IPAM.Ranges) != 1 { // a pod has one address of each
		t.Fatalf("configuration is %s", b)
	}
	var all [][]netip.Addr
	for _, r := range config.Plugins[0].IPAM.Ranges[0] {
		var some []netip.Addr
		a := r.RangeStart
		if !a.IsValid() {
			a = r.Subnet.Addr().Next().Next() // behind the gateway
		}
		for ; r.Subnet.Contains(a.Next()) && (!r.RangeEnd.IsValid() || !r.RangeEnd.Less(a)); a = a.Next() {
			some = append(some, a)
		}
		all = append(all, some)
	}
	return all
}

func TestNodesNeverGiveThePodsOfTwoTheSameAddress(t *testing.T) {
	for _, tt := range []struct {
		o     Options
		sizes []int
	}{
		{Options{Nodes: 3}, []int{253}},
		{Options{Nodes: 3, IPAM: PoolIPAM}, []int{2, 61}},
		{Options{Nodes: 1, IPAM: PoolIPAM}, []int{2, 61}},
		{Options{Nodes: 3, IPAM: SharedPoolIPAM}, []int{2, 2, 61}},
		{Options{Nodes: 2, IPAM: SharedPoolIPAM}, []int{2, 2, 61}},
	} {
		given := map[netip.Addr]string{}
		for _, s := range nodeSpecs(t, tt.o) {
			var sizes []int
			for _, r := range ranges(t, s) {
				sizes = append(sizes, len(r))
				for _, a := range r {
					if other, ok := given[a]; ok {
						t.Errorf("%+v: %s and %s both give %s", tt.o, s.Node.Name, other, a)
					}
					given[a] = s.Node.Name
					if !slices.ContainsFunc(s.Node.Pods(), func(p netip.Prefix) bool { return p.Contains(a) }) {
						t.Errorf("%+v: %s gives %s, which is in none of %v", tt.o, s.Node.Name, a, s.Node.Pods())
					}
				}
			}
			if !cmp.Equal(sizes, tt.sizes) {
				t.Errorf("%+v: %s has ranges of %v addresses, want %v", tt.o, s.Node.Name, sizes, tt.sizes)
			}
		}
	}
}

func TestRoutesOfNodesLeadToThePodsOfOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		o          Options
		routes     []string
		blackholes []string
	}{
		"bridge": {Options{Nodes: 2}, []string{"10.200.1.0/24 172.30.1.12"}, nil},
		"pool": {
			Options{Nodes: 2, IPAM: PoolIPAM},
			[]string{"10.200.2.128/26 172.30.1.12", "10.200.2.0/26 172.30.1.12"},
			[]string{"10.200.2.64/26", "10.200.1.192/26"},
		},
		"shared pool": {
			Options{Nodes: 2, IPAM: SharedPoolIPAM},
			[]string{"10.200.2.128/26 172.30.1.12", "10.200.2.0/26 172.30.1.12", "10.200.2.124/32 172.30.1.12", "10.200.2.125/32 172.30.1.12"},
			[]string{"10.200.2.64/26", "10.200.1.192/26", "10.200.2.188/32", "10.200.2.189/32"},
		},
		"subnets": {
			Options{Nodes: 3, Subnets: 2},
			[]string{"10.200.1.0/24 172.30.1.1", "10.200.2.0/24 172.30.1.13"},
			nil,
		},
		"flannel, which makes its own": {Options{Nodes: 2, CNI: FlannelCNI}, nil, nil},
	} {
		s := nodeSpecs(t, tt.o)[0]
		var routes, blackholes []string
		for _, r := range s.routes() {
			routes = append(routes, fmt.Sprint(r.To, " ", r.Via))
		}
		for _, p := range s.blackholes() {
			blackholes = append(blackholes, p.String())
		}
		if d := cmp.Diff(tt.routes, routes); d != "" {
			t.Errorf("%s: routes (-want +got):\n%s", name, d)
		}
		if d := cmp.Diff(tt.blackholes, blackholes); d != "" {
			t.Errorf("%s: blackholes (-want +got):\n%s", name, d)
		}
	}
}

func TestNodeCIDRsAreSetUnlessNoneAreWanted(t *testing.T) {
	for _, none := range []bool{false, true} {
		s := nodeSpecs(t, Options{NoNodeCIDRs: none})[0]
		if got := argument(s, "kube-controller-manager", "--allocate-node-cidrs"); (got == "true") == none {
			t.Errorf("without: %t; --allocate-node-cidrs is %q", none, got)
		}
		spec := nodeObject(s.Node, !none)["spec"].(m)
		if _, has := spec["podCIDRs"]; has == none {
			t.Errorf("without: %t; the node's spec is %v", none, spec)
		}
	}
}

func TestProxyModeIsAsWanted(t *testing.T) {
	for o, want := range map[Options]string{{}: "nftables", {Proxy: NFTablesProxy}: "nftables", {Proxy: IPTablesProxy}: "iptables"} {
		s := nodeSpecs(t, o)[0]
		config := s.proxyConfig()
		if got := fmt.Sprint(config["mode"]); got != want || config[want] == nil {
			t.Errorf("%s: kube-proxy's configuration is %v", want, config)
		}
		if s.flannelNetwork()["EnableNFTables"] != (want == "nftables") {
			t.Errorf("%s: flannel's configuration is %v", want, s.flannelNetwork())
		}
	}
}

func TestFlannelConfiguresANodeOnlyWhereItRuns(t *testing.T) {
	for _, cni := range []CNI{BridgeCNI, FlannelCNI} {
		s := nodeSpecs(t, Options{CNI: cni})[0]
		pki, root := t.TempDir(), t.TempDir()
		if err := writePKI(pki, s.Cluster); err != nil {
			t.Fatal(err)
		}
		if err := s.prepare(root, pki); err != nil {
			t.Fatal(err)
		}
		for file, of := range map[string]CNI{cniConfigFile: BridgeCNI, flannelConfig: FlannelCNI, flannelKubeCfg: FlannelCNI} {
			if _, err := os.Stat(filepath.Join(root, file)); (err == nil) != (of == cni) {
				t.Errorf("%s: %s: %v", cni, file, err)
			}
		}
		if got := argument(s, "flannel", "--iface"); (got == "eth0") != (cni == FlannelCNI) {
			t.Errorf("%s: flannel is on %q", cni, got)
		}
	}
}

func TestFlannelCNIConfigurationIsMadeOfWhatFlannelWrites(t *testing.T) {
	const env = "FLANNEL_NETWORK=10.200.0.0/16\nFLANNEL_SUBNET=10.200.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	got, err := flannelCNI(env)
	if err != nil {
		t.Fatal(err)
	}
	want := bridge([]m{{"subnet": "10.200.3.0/24"}})
	want["mtu"] = 1450
	want["ipam"].(m)["routes"] = []m{{"dst": "10.200.0.0/16"}}
	if d := cmp.Diff(cniList(want), got); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
	for _, missing := range []string{"FLANNEL_NETWORK", "FLANNEL_SUBNET", "FLANNEL_MTU"} {
		if got, err := flannelCNI(strings.Replace(env, missing, "X", 1)); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: %v, %v", missing, got, err)
		}
	}
}

func TestComponentsAreBuiltOnlyForWhatRunsThem(t *testing.T) {
	base := []string{"kube", "node", "coredns", "image"}
	for _, tt := range []struct {
		o    Options
		more []string
	}{
		{Options{}, nil},
		{Options{Subnets: 2, Nodes: 2, Proxy: IPTablesProxy, NoNodeCIDRs: true}, nil},
		{Options{IPAM: PoolIPAM}, []string{"ptp"}},
		{Options{IPAM: SharedPoolIPAM, Nodes: 2}, []string{"ptp"}},
		{Options{CNI: FlannelCNI}, []string{"flannel"}},
	} {
		var names []string
		for _, c := range needed(mustPlan(t, tt.o).Options) {
			names = append(names, c.name)
		}
		if d := cmp.Diff(append(slices.Clone(base), tt.more...), names); d != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.o, d)
		}
	}
}
