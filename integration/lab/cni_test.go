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

// blockNumber says which block of its family's an address is in, of those that begin with
// the same bytes but the last two.
func blockNumber(a netip.Addr) int {
	b := a.AsSlice()
	return int(binary.BigEndian.Uint16(b[len(b)-2:])) / blockSize
}

func TestPoolBlocksAreInterleavedAndOutsideThePodCIDR(t *testing.T) {
	for _, families := range []Families{IPv4Only, IPv6Only, DualStack} {
		for _, nodes := range []int{1, 2, 3, maxNodes} {
			for _, ipam := range []IPAM{PoolIPAM, SharedPoolIPAM} {
				if nodes == 1 && ipam == SharedPoolIPAM {
					continue
				}
				c := mustPlan(t, Options{Clusters: 2, Nodes: nodes, IPAM: ipam, CIDRs: DistinctCIDRs, Families: families}).Clusters[1]
				for _, p := range c.PodCIDRs() {
					t.Run(fmt.Sprintf("%s, %d nodes, %s, %s", families, nodes, ipam, p), func(t *testing.T) { checkBlocks(t, c, p, ipam == SharedPoolIPAM) })
				}
			}
		}
	}
}

// checkBlocks checks the blocks of a cluster's nodes within the pods' prefix of a family.
func checkBlocks(t *testing.T, c ClusterPlan, pods netip.Prefix, shared bool) {
	nodes := len(c.Nodes)
	owner, misleading := map[netip.Prefix]string{}, 0
	for _, n := range c.Nodes {
		own := within(n.Blocks, pods)
		if len(own) != 2 {
			t.Fatalf("%s has blocks %v", n.Name, own)
		}
		if apart := blockNumber(own[0].Addr()) - blockNumber(own[1].Addr()); nodes > 1 && (apart == 1 || apart == -1) {
			t.Errorf("blocks %v of %s are next to each other", own, n.Name)
		}
		for _, b := range own {
			for other, who := range owner {
				if b.Overlaps(other) {
					t.Errorf("%s of %s overlaps %s of %s", b, n.Name, other, who)
				}
			}
			owner[b] = n.Name
			if !pods.Overlaps(b) || b.Addr().BitLen()-b.Bits() != blockHostBits || b != b.Masked() || slices.ContainsFunc(n.PodCIDRs(), b.Overlaps) {
				t.Errorf("block %s of %s with podCIDRs %s is misplaced", b, n.Name, n.PodCIDRs())
			}
			for _, other := range c.Nodes {
				if slices.ContainsFunc(other.PodCIDRs(), b.Overlaps) {
					misleading++
				}
			}
		}
	}
	if want := min(1, nodes-1); misleading != want {
		t.Errorf("%d blocks lie in the podCIDR of another node, want %d", misleading, want)
	}
	for _, n := range c.Nodes {
		borrowed := slices.DeleteFunc(slices.Clone(n.Borrowed), func(a netip.Addr) bool { return !pods.Contains(a) })
		if want := map[bool]int{true: 2}[shared]; len(borrowed) != want {
			t.Errorf("%s borrows %v", n.Name, borrowed)
		}
		for _, a := range borrowed {
			other := owner[netip.PrefixFrom(a, a.BitLen()-blockHostBits).Masked()]
			if other == "" || other == n.Name || slices.ContainsFunc(n.PodCIDRs(), func(p netip.Prefix) bool { return p.Contains(a) }) {
				t.Errorf("%s borrows %s from %q", n.Name, a, other)
			}
		}
	}
}

// mostOfRange limits how many addresses of a range are listed, as a /64 has too many.
const mostOfRange = 300

// ranges are the addresses that a node's host-local gives to pods, family by family and
// range by range.
func ranges(t *testing.T, s nodeSpec) [][][]netip.Addr {
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
	if len(config.Plugins) == 0 || len(config.Plugins[0].IPAM.Ranges) != len(s.Cluster.PodCIDRs()) { // a pod has one address of each
		t.Fatalf("configuration is %s", b)
	}
	var all [][][]netip.Addr
	for _, set := range config.Plugins[0].IPAM.Ranges {
		var family [][]netip.Addr
		for _, r := range set {
			var some []netip.Addr
			a := r.RangeStart
			if !a.IsValid() {
				a = r.Subnet.Addr().Next().Next() // behind the gateway
			}
			broadcast := func() bool { return a.Is4() && !r.Subnet.Contains(a.Next()) }
			for ; len(some) < mostOfRange && r.Subnet.Contains(a) && !broadcast() && (!r.RangeEnd.IsValid() || !r.RangeEnd.Less(a)); a = a.Next() {
				some = append(some, a)
			}
			family = append(family, some)
		}
		all = append(all, family)
	}
	return all
}

func TestNodesNeverAssignAnAddressTwice(t *testing.T) {
	const many = mostOfRange
	for _, tt := range []struct {
		o     Options
		sizes [][]int
	}{
		{Options{Nodes: 3}, [][]int{{253}}},
		{Options{Nodes: 3, IPAM: PoolIPAM}, [][]int{{2, 61}}},
		{Options{Nodes: 1, IPAM: PoolIPAM}, [][]int{{2, 61}}},
		{Options{Nodes: 3, IPAM: SharedPoolIPAM}, [][]int{{2, 2, 61}}},
		{Options{Nodes: 2, IPAM: SharedPoolIPAM}, [][]int{{2, 2, 61}}},
		{Options{Nodes: 3, Families: IPv6Only}, [][]int{{many}}},
		{Options{Nodes: 3, Families: DualStack}, [][]int{{253}, {many}}},
		{Options{Nodes: 3, Families: IPv6Only, IPAM: PoolIPAM}, [][]int{{2, 62}}},
		{Options{Nodes: 2, Families: DualStack, IPAM: SharedPoolIPAM}, [][]int{{2, 2, 61}, {2, 2, 62}}},
	} {
		given := map[netip.Addr]string{}
		for _, s := range nodeSpecs(t, tt.o) {
			var sizes [][]int
			for _, family := range ranges(t, s) {
				var own []int
				for _, r := range family {
					own = append(own, len(r))
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
				sizes = append(sizes, own)
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
			[]string{"10.200.2.128/26 172.30.1.12", "10.200.2.0/26 172.30.1.12", "10.200.2.124/32 172.30.1.12", "10.200.2.125/32 172.30.1.12", "10.200.2.126/32 172.30.1.12"},
			[]string{"10.200.2.64/26", "10.200.1.192/26", "10.200.2.188/32", "10.200.2.189/32"},
		},
		"subnets": {
			Options{Nodes: 3, Subnets: 2},
			[]string{"10.200.1.0/24 172.30.1.1", "10.200.2.0/24 172.30.1.13"},
			nil,
		},
		"dual-stack": {
			Options{Nodes: 2, Families: DualStack},
			[]string{"10.200.1.0/24 172.30.1.12", "fd6c:6162:200:1::/64 fd6c:6162:1:1::1:c"},
			nil,
		},
		"IPv6 and subnets": {
			Options{Nodes: 3, Subnets: 2, Families: IPv6Only},
			[]string{"fd6c:6162:200:1::/64 fd6c:6162:1:1::1", "fd6c:6162:200:2::/64 fd6c:6162:1:1::1:d"},
			nil,
		},
		"dual-stack pool": {
			Options{Nodes: 2, IPAM: PoolIPAM, Families: DualStack},
			[]string{
				"10.200.2.128/26 172.30.1.12", "10.200.2.0/26 172.30.1.12",
				"fd6c:6162:200:2::80/122 fd6c:6162:1:1::1:c", "fd6c:6162:200:2::/122 fd6c:6162:1:1::1:c",
			},
			[]string{"10.200.2.64/26", "10.200.1.192/26", "fd6c:6162:200:2::40/122", "fd6c:6162:200:1:ffff:ffff:ffff:ffc0/122"},
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

func TestNodeCIDRsAreSetUnlessTurnedOff(t *testing.T) {
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

func TestComponentsAreConfiguredForBothFamilies(t *testing.T) {
	for families, want := range map[Families][]string{
		IPv4Only:  {"172.30.1.11", "10.96.0.0/16", "10.200.0.0/16", "24", "", "0.0.0.0"},
		IPv6Only:  {"fd6c:6162:1:1::1:b", "fd6c:6162:96::/112", "fd6c:6162:200::/56", "64", "", "::"},
		DualStack: {"172.30.1.11,fd6c:6162:1:1::1:b", "10.96.0.0/16,fd6c:6162:96::/112", "10.200.0.0/16,fd6c:6162:200::/56", "", "64", "::"},
	} {
		s := nodeSpecs(t, Options{Families: families})[0]
		got := []string{
			argument(s, "kubelet", "--node-ip"), argument(s, "kube-apiserver", "--service-cluster-ip-range"),
			argument(s, "kube-controller-manager", "--cluster-cidr"), argument(s, "kube-controller-manager", "--node-cidr-mask-size"),
			argument(s, "kube-controller-manager", "--node-cidr-mask-size-ipv6"), argument(s, "kube-apiserver", "--bind-address"),
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", families, d)
		}
		if got := s.kubeletConfig()["address"]; got != want[5] {
			t.Errorf("%s: the kubelet listens on %v", families, got)
		}
		if got := s.proxyConfig()["clusterCIDR"]; got != want[2] {
			t.Errorf("%s: kube-proxy takes %v for pods", families, got)
		}
		if got := strings.Count(s.masquerade(), "masquerade"); got != len(s.Cluster.PodCIDRs()) {
			t.Errorf("%s: pods are masqueraded by\n%s", families, s.masquerade())
		}
	}
}

func TestProxyModeIsConfigured(t *testing.T) {
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

func TestFlannelCNIConfigurationFollowsFlannelsFile(t *testing.T) {
	const env = "FLANNEL_NETWORK=10.200.0.0/16\nFLANNEL_SUBNET=10.200.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	got, err := flannelCNI(env)
	if err != nil {
		t.Fatal(err)
	}
	want := bridge([][]m{{{"subnet": "10.200.3.0/24"}}})
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

func TestComponentsAreBuiltOnlyWhereTheyRun(t *testing.T) {
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
