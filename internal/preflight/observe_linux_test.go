package preflight

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// fabricVariable makes this test binary an observer, of the namespace in which it runs.
const fabricVariable = "PREFLIGHT_TEST_FABRIC"

func TestMain(m *testing.M) {
	text := os.Getenv(fabricVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var f Fabric
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(Observe(f)); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// node is a network namespace.
type node string

// newNode makes one, with a way out and a pod, and runs a script in it.
func newNode(t *testing.T, script string) node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root makes network namespaces")
	}
	for _, tool := range []string{"ip", "nft", "iptables-nft", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the tool %s: %v", tool, err)
		}
	}
	sum := fnv.New32()
	_, _ = sum.Write([]byte(t.Name()))
	n := node(fmt.Sprintf("pre%d-%x", os.Getpid()%100000, sum.Sum32()))
	if out, err := exec.CommandContext(t.Context(), "ip", "netns", "add", string(n)).CombinedOutput(); err != nil {
		t.Skipf("cannot make network namespaces: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", string(n)).Run() })
	n.run(t, `set -e
ip link set lo up
ip link add eth0 type veth peer name outside; ip link add cni0 type bridge
for l in eth0 outside cni0; do ip link set $l addrgenmode none; done # what comes by itself comes later
ip link set outside up; ip addr add 203.0.113.10/24 dev eth0; ip link set eth0 up
ip route add default via 203.0.113.1
ip addr add 10.244.1.1/24 dev cni0; ip link set cni0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
`+script)
	return n
}

func (n node) run(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", string(n), "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// observe reads the namespace with no more rights than the fabric's container has.
func (n node) observe(t *testing.T, f Fabric, setpriv ...string) Observed {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if setpriv == nil {
		setpriv = []string{"--bounding-set=-all,+net_admin", "--no-new-privs"}
	}
	args := slices.Concat([]string{"netns", "exec", string(n), "setpriv"}, setpriv, []string{self})
	cmd := exec.CommandContext(t.Context(), "ip", args...)
	cmd.Env = append(os.Environ(), fabricVariable+"="+string(text))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("observe: %v\n%s", err, &stderr)
	}
	var o Observed
	if err := json.Unmarshal(out, &o); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return o
}

func realFabric() Fabric {
	f, _ := ordinary()
	return f
}

// What is wrong on a real node is found with NET_ADMIN alone, and nothing else is.
func TestFindingsOnARealNode(t *testing.T) {
	t.Parallel()
	const kubeProxy = `
iptables-nft -N KUBE-FORWARD
iptables-nft -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
iptables-nft -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
iptables-nft -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
iptables-nft -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
`
	// nft is a closed chain of nftables with rules, and another one.
	nft := func(rules string) string {
		return "nft add table inet fw; nft add chain inet fw u; nft 'add chain inet fw f { type filter hook forward priority 0; policy drop; " + rules + "; }'"
	}
	const firewalld = `
nft add table inet firewalld; for c in filter_FORWARD_ZONES filter_FWD_public filter_FWD_public_allow trusted; do nft add chain inet firewalld $c; done
nft add rule inet firewalld trusted accept
nft 'add chain inet firewalld filter_FWD_public { jump filter_FWD_public_allow; reject with icmpx type admin-prohibited; }'
nft 'add chain inet firewalld filter_FWD_public_allow { oifname "eth0" accept; }'
nft 'add chain inet firewalld filter_FORWARD_ZONES { iifname "eth0" goto filter_FWD_public; goto filter_FWD_public; }'
nft 'add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; policy accept; ct state { established, related } accept; ct status dnat accept; iifname "lo" accept; ct state invalid drop; ip6 daddr { ::/96, ::ffff:0.0.0.0/96 } reject with icmpv6 type addr-unreachable; jump filter_FORWARD_ZONES; `
	for i, tc := range []struct {
		name, script string
		change       func(*Fabric)
		want, text   string
	}{
		{"an ordinary node", kubeProxy, nil, "", ""},
		{"no forwarding", "echo 0 > /proc/sys/net/ipv4/ip_forward", nil, "Error ForwardingDisabled", ""},
		{"no IPv6", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6", nil, "Error IPv6Disabled", ""},
		{"no IPv6 but on the device", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; ip tuntap add entente0 mode tun; echo 0 > /proc/sys/net/ipv6/conf/entente0/disable_ipv6", nil, "", ""},
		{"a small network", "ip link set eth0 mtu 1300", nil, "Warning UnderlayMTUTooSmall", "1300"},
		{"a small route", "ip route change default via 203.0.113.1 mtu 1300", nil, "Warning UnderlayMTUTooSmall", "1300"},
		{"a route to the pool", "ip route add 198.19.0.0/24 via 203.0.113.9", nil, "Warning RouteOverlap", "198.19.0.0/24 is routed to eth0"},
		{"a route of ours", "ip route add 198.19.0.0/24 via 203.0.113.9 proto 141 table 14100; ip route add unreachable 198.19.0.0/24 metric 4000000000 proto 141 table 14100", nil, "", ""},
		{"a blackhole for the pool, since the node started", "ip route add blackhole 198.18.0.0/15 metric 4000000000", nil, "", ""},
		{"a blackhole for a part of the pool", "ip route add blackhole 198.18.64.0/26", nil, "Warning RouteOverlap", "198.18.64.0/26 is routed"},
		{"an address in the pool", "ip addr add 198.19.0.1/24 dev cni0", nil, "Error RouteOverlap", "198.19.0.1 is an address of cni0"},
		{"a VPN's rule", "ip route add default dev eth0 table 7120; ip rule add not fwmark 0x1bd00 lookup 7120 priority 110", nil, "Error AliasesDiverted", "110: not from all fwmark 0x1bd00 lookup 7120"},
		{"a rule for the main table", "ip rule add lookup main suppress_prefixlength 0 priority 105; ip rule add from 203.0.113.10 lookup main priority 106", nil, "", ""},
		{"a rule that refuses", "ip rule add iif cni0 blackhole priority 20", nil, "Warning AliasesDiverted", "20: from all iif cni0 to no table"},
		{"the AWS plugin's rules", "ip rule add to 10.244.1.7 lookup main priority 512; ip rule add fwmark 0x80/0x80 lookup main priority 1024", nil, "", ""},
		{"a pod outside, as with Calico", "ip link add cali123 type veth peer name pod; ip link set cali123 up; ip route add 10.0.3.4 dev cali123", nil, "Warning PodsOutsidePrefixes", "10.0.3.4"},
		{"a pod inside", "ip link add cali123 type veth peer name pod; ip link set cali123 up; ip route add 10.244.1.4 dev cali123", nil, "", ""},
		{
			"a second interface", "ip link add eth1 type veth peer name other; ip link set other up; ip link set eth1 up; ip addr add 10.0.0.10/24 dev eth1; echo 1 > /proc/sys/net/ipv4/conf/eth1/rp_filter",
			func(f *Fabric) { f.Announced = append(f.Announced, netip.MustParseAddr("10.0.0.10")) }, "Warning StrictReversePath", "10.0.0.10 on eth1",
		},
		{
			"a second interface, and all are loose", "ip link add eth1 type veth peer name other; ip link set other up; ip link set eth1 up; ip addr add 10.0.0.10/24 dev eth1; echo 1 > /proc/sys/net/ipv4/conf/eth1/rp_filter; echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter",
			func(f *Fabric) { f.Announced = append(f.Announced, netip.MustParseAddr("10.0.0.10")) }, "", "",
		},
		{"Docker closed the chain", kubeProxy + "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT", nil, "Error ForwardDropped", "chain FORWARD of table ip filter drops connections from pods into the tunnel, connections from the tunnel to pods"},
		{"Docker closed it, and flannel opened it", kubeProxy + "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -s 10.244.0.0/16 -j ACCEPT; iptables-nft -A FORWARD -d 10.244.0.0/16 -j ACCEPT", nil, "", ""},
		{"Docker closed it, and the remedy was applied", kubeProxy + "iptables-nft -P FORWARD DROP; iptables-nft -I FORWARD -i entente0 -j ACCEPT; iptables-nft -I FORWARD -o entente0 -j ACCEPT", nil, "", ""},
		{"Docker closed it, and opened it to half of the pods", kubeProxy + "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -s 10.244.1.0/25 -j ACCEPT; iptables-nft -A FORWARD -d 10.244.1.0/25 -j ACCEPT", nil, "", ""},
		{"Docker closed it, and opened it to more than these pods", kubeProxy + "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -s 10.244.0.0/23 -j ACCEPT; iptables-nft -A FORWARD -d 10.244.0.0/23 -j ACCEPT", nil, "", ""},
		{"Docker closed it, and opened it to others' pods", kubeProxy + "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -s 10.244.2.0/23 -j ACCEPT; iptables-nft -A FORWARD -d 10.244.2.0/24 -j ACCEPT", nil, "Error ForwardDropped", ""},
		{"Docker closed it, and Calico opened it by interface", kubeProxy + "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -i cali+ -j ACCEPT; iptables-nft -A FORWARD -o cali+ -j ACCEPT; ip link add cali123 type veth peer name pod; ip link set cali123 up; ip route add 10.0.3.4 dev cali123", func(f *Fabric) { f.Pods = append(f.Pods, netip.MustParsePrefix("10.0.0.0/16")) }, "", ""},
		{"a chain that ends in a reject", kubeProxy + "iptables-nft -A FORWARD -j REJECT", nil, "Error ForwardDropped", "connections from the tunnel to pods"},
		{"rules of nftables", "nft -f - <<EOF\ntable inet fw {\n set lan { type ifname; elements = { \"br0\" } }\n chain f { type filter hook forward priority 0; policy drop; ct state established,related accept; iifname @lan accept\n iifname \"entente0\" accept; ip6 saddr fd00::/8 accept; meta nfproto ipv4 ip saddr 10.244.0.0/16 ip daddr 198.18.0.0/15 accept; }\n}\nEOF", nil, "", ""},
		{"rules of nftables that close", "nft -f - <<EOF\ntable inet fw {\n chain f { type filter hook forward priority 0; policy drop; ct state established,related accept; meta l4proto icmp accept\n ip6 saddr fd00::/8 accept; iif lo accept; ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 accept; ct status dnat accept; jump u; }\n chain u { tcp dport 22 iifname \"br0\" accept; }\n}\nEOF", nil, "Error ForwardDropped", "chain f of table inet fw"},
		{"a set of states and a set of interfaces", nft("ct state { established, related } accept; iifname { \"br0\", \"lo\" } accept; oifname != { \"br0\", \"entente0\" } accept"), nil, "Error ForwardDropped", "drops connections from pods into the tunnel"},
		{"a set of interfaces with the device", nft("iifname { \"br0\", \"entente0\" } accept; oifname { \"br0\", \"entente0\" } accept"), nil, "", ""},
		{"a map of states", nft("ct state vmap { established : accept, related : accept, invalid : drop }; iifname \"entente0\" accept"), nil, "Error ForwardDropped", "drops connections from pods into the tunnel"},
		{"a map of interfaces that leads on", nft("iifname vmap { \"br0\" : drop, \"entente0\" : jump u, \"cni0\" : goto u }") + "; nft add rule inet fw u accept", nil, "", ""},
		{"a map of interfaces that leads to a drop", nft("iifname vmap { \"br0\" : accept, \"entente0\" : jump u, \"cni0\" : goto u }") + "; nft add rule inet fw u drop", nil, "Error ForwardDropped", ""},
		{"a set with a name", nft("accept") + "; nft flush chain inet fw f; nft 'add set inet fw trusted { type ifname; elements = { \"br0\" } }'; nft add rule inet fw f iifname @trusted accept; nft add rule inet fw f oifname @trusted accept", nil, "", ""},
		{"a set of networks", nft("ip saddr { 10.1.0.0/16, 10.2.0.0/16 } accept; ip daddr { 10.1.0.0/16, 10.2.0.0/16 } accept"), nil, "", ""},
		{"a map of networks", nft("ip saddr vmap { 10.1.0.0/16 : accept, 10.2.0.0/16 : drop }"), nil, "", ""},
		{"what firewalld makes of it", firewalld + "reject with icmpx type admin-prohibited; }'", nil, "Error ForwardDropped", "chain filter_FORWARD of table inet firewalld drops connections from pods into the tunnel, connections from the tunnel to pods"},
		{"firewalld with both interfaces trusted", firewalld + "reject with icmpx type admin-prohibited; }'; nft insert rule inet firewalld filter_FORWARD_ZONES iifname entente0 goto trusted; nft insert rule inet firewalld filter_FORWARD_ZONES iifname cni0 goto trusted", nil, "", ""},
		{"the fabric's own table", "nft -f - <<EOF\ntable inet entente {\n chain f { type filter hook forward priority 0; policy drop; }\n}\nEOF", nil, "", ""},
	} {
		t.Run(fmt.Sprintf("%s %d", tc.name, i), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, tc.script)
			f := realFabric()
			if tc.change != nil {
				tc.change(&f)
			}
			wantFinding(t, Check(f, n.observe(t, f)), tc.want, tc.text)
		})
	}
}

// The kernel's own sockets, as those of WireGuard and of VXLAN, have ports, too.
func TestAPortThatIsTakenIsSeen(t *testing.T) {
	t.Parallel()
	n := newNode(t, "ip link add vx type vxlan id 7 dstport 8472 local 203.0.113.10; ip link set vx up")
	for port, taken := range map[int]bool{8472: true, 51820: false} {
		f := realFabric()
		f.Port = port
		o := n.observe(t, f)
		if o.PortInUse != taken {
			t.Errorf("port %d: taken %v, want %v", port, o.PortInUse, taken)
		}
	}
}

// The library passes over expressions that it does not know, which may load a register
// again.
func TestARegisterIsReadOnce(t *testing.T) {
	t.Parallel()
	device := append([]byte("entente0"), make([]byte, 8)...)
	none := func(string) []nftables.SetElement { return nil }
	for name, first := range map[string]expr.Any{
		"after a comparison": &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: device}, "after a lookup": &expr.Lookup{SourceRegister: 1, SetName: "__set0"},
	} {
		got := filterRules(nftables.TableFamilyIPv4, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, first, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: device}, &expr.Verdict{Kind: expr.VerdictDrop},
		}, nil, none)
		if len(got) != 1 || len(got[0].Tests) != 2 || got[0].Tests[1].Key != Other || got[0].Verdict != Drop {
			t.Errorf("%s: %+v, want a test of which nothing is known", name, got)
		}
	}
}

// The kernel says the same of packets that come from elsewhere, as the finding does; and it
// takes those of a tunnel's device, even for pods of another node that the network plugin has another
// way to, because of the fabric's own rules.
func TestAStrictReversePathIsFound(t *testing.T) {
	t.Parallel()
	n := newNode(t, `
ip link add eth1 type veth peer name other; ip link set other up; ip link set eth1 up; ip addr add 10.0.0.10/24 dev eth1
ip tuntap add entente0 mode tun; ip link set entente0 up
ip route add 10.244.2.0/24 via 203.0.113.2
ip route add 198.18.0.0/16 dev entente0 table 14100 proto 141; ip route add 10.244.2.0/24 dev entente0 table 14101 proto 141
ip rule add iif entente0 lookup 14101 priority 140 protocol 141; ip rule add lookup 14100 priority 141 protocol 141
`)
	for _, tc := range []struct {
		all, from, to, in string
		passes            bool
	}{
		{"1", "198.51.100.7", "10.0.0.10", "eth1", false},
		{"1", "10.0.0.7", "10.0.0.10", "eth1", true},
		{"2", "198.51.100.7", "10.0.0.10", "eth1", true},
		{"1", "198.18.3.4", "10.244.1.7", "entente0", true},
		{"1", "10.244.2.7", "198.18.3.4", "entente0", true},
	} {
		out := n.run(t, fmt.Sprintf("echo %s > /proc/sys/net/ipv4/conf/all/rp_filter; ip route get %s from %s iif %s >/dev/null 2>&1 && echo passes || echo dropped", tc.all, tc.to, tc.from, tc.in))
		if got := strings.TrimSpace(out) == "passes"; got != tc.passes {
			t.Errorf("rp_filter=%s: from %s to %s by %s: passes %v, want %v", tc.all, tc.from, tc.to, tc.in, got, tc.passes)
		}
	}
}

func TestRulesOfTheOlderIptablesAreSeen(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	if n.run(t, "iptables-legacy -P FORWARD DROP 2>/dev/null || echo none") != "" {
		t.Skip("needs iptables-legacy, and a kernel that has it")
	}
	f := realFabric()
	wantFinding(t, Check(f, n.observe(t, f)), "Info ForwardDropped", "")
}

func TestObservingChangesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, "iptables-nft -P FORWARD DROP; ip rule add not fwmark 0x1 lookup 7120 priority 110")
	const everything = "ip -oneline link; ip -4 addr; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list ruleset; cat /proc/modules; cd /proc/sys/net; grep -r . ipv4/conf ipv6/conf ipv4/ip_forward 2>/dev/null | grep -v stable_secret"
	before := n.run(t, everything)
	n.observe(t, realFabric())
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(n.run(t, everything), "\n")); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// Without NET_ADMIN that is reported.
func TestANodeThatMayNotBeReadIsReported(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	o := n.observe(t, realFabric(), "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--reuid=65534", "--clear-groups")
	f := realFabric()
	got := Check(f, o)
	if len(got) == 0 || got[0].Reason != NFTablesUnavailable {
		t.Errorf("found %+v, want NFTablesUnavailable", got)
	}
}
