package preflight

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func route(prefix string, table int, device string) Route {
	return Route{Prefix: netip.MustParsePrefix(prefix), Table: table, Device: device}
}

func rule(priority, table int) RoutingRule {
	return RoutingRule{Priority: priority, Table: table, Suppress: -1}
}

// ordinary is a node on which nothing is wrong, before the fabric has made anything.
func ordinary() (Fabric, Observed) {
	f := Fabric{
		Device: "entente0", Port: 51820, Pool: prefixes("198.18.0.0/15", "fdd7:585b:e300::/40"), Services: prefixes("10.96.0.0/12", "10.96.0.1/32"),
		Pods: prefixes("10.244.0.0/16"), OwnPods: prefixes("10.244.1.0/24"), Announced: []netip.Addr{netip.MustParseAddr("192.0.2.10")},
	}
	o := Observed{
		Tun: true, Forward4: 1, Forward6: 0, Underlay: 1500, Conntrack: 500, ConntrackMax: 262144,
		Links: []Link{
			{Name: "lo", Kind: "device", Addresses: prefixes("127.0.0.1/8"), ReversePath: 1},
			{Name: "eth0", Kind: "device", Addresses: prefixes("192.0.2.10/24"), ReversePath: 1},
			{Name: "cni0", Kind: "bridge", Addresses: prefixes("10.244.1.1/24"), ReversePath: 1},
			{Name: "docker0", Kind: "bridge", Addresses: prefixes("172.17.0.1/16")},
		},
		Chains: []Chain{{Table: "ip filter", Name: "FORWARD", Base: true, Four: true}},
		Rules:  []RoutingRule{rule(0, 255), rule(32766, 254), rule(32767, 253)},
		Routes: []Route{route("0.0.0.0/0", 254, "eth0"), route("10.244.1.0/24", 254, "cni0"), route("10.244.2.0/24", 254, "flannel.1")},
		Pods:   []netip.Addr{netip.MustParseAddr("10.244.1.7")},
	}
	return f, o
}

func TestFindingsNameTheCauseAndTheRemedy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(f *Fabric, o *Observed)
		want   string // "Severity Reason", empty for none
		text   string // part of the message and the remedy
	}{
		"an ordinary node": {func(*Fabric, *Observed) {}, "", ""},
		"a node of which nothing but settings could be read": {func(_ *Fabric, o *Observed) {
			*o = Observed{Tun: true, Forward4: -1, Forward6: -1, Conntrack: -1, ConntrackMax: -1, Unread: []string{"routes: EPERM"}}
		}, "Warning CheckIncomplete", "routes: EPERM"},

		"no nftables":                {func(_ *Fabric, o *Observed) { o.NFTables = "operation not permitted" }, "Error NFTablesUnavailable", "not permitted"},
		"the fabric's table is gone": {func(f *Fabric, _ *Observed) { f.Unfiltered = "no packets pass between this node and other clusters" }, "Error NFTablesUnavailable", "no packets pass"},

		"no TUN, with WireGuard in the kernel":    {func(_ *Fabric, o *Observed) { o.Tun, o.WireGuard = false, true }, "", ""},
		"no TUN, with a device of an earlier run": {func(f *Fabric, o *Observed) { o.Tun, f.HasDevice = false, true }, "", ""},
		"no TUN and no WireGuard":                 {func(_ *Fabric, o *Observed) { o.Tun = false }, "Error TunMissing", "modprobe tun"},

		"no IPv6": {func(_ *Fabric, o *Observed) { o.IPv6Off = true }, "Error IPv6Disabled", "disable_ipv6=0"},

		"no forwarding of IPv4":                 {func(_ *Fabric, o *Observed) { o.Forward4 = 0 }, "Error ForwardingDisabled", "net.ipv4.ip_forward=1"},
		"no forwarding of IPv6 where pods have": {func(f *Fabric, _ *Observed) { f.OwnPods = prefixes("fd00:1::/64") }, "Error ForwardingDisabled", "net.ipv6.conf.all.forwarding=1"},

		"the port is taken":                       {func(_ *Fabric, o *Observed) { o.PortInUse = true }, "Error PortTaken", "sport = :51820"},
		"the port is the fabric's own":            {func(f *Fabric, o *Observed) { ownDevice(f, o, true) }, "", ""},
		"the device cannot come up for it":        {func(f *Fabric, o *Observed) { ownDevice(f, o, false) }, "Error PortTaken", ""},
		"the port is taken where Calico encrypts": {calicoEncrypts, "Error PortTaken", "Calico (wireguard.cali)"},
		"Calico encrypts on another port":         {func(f *Fabric, o *Observed) { calicoEncrypts(f, o); o.PortInUse = false }, "", ""},

		"an alias overlaps Services":              {func(f *Fabric, _ *Observed) { f.Services = prefixes("198.18.0.0/16") }, "Error ServiceOverlap", "198.18.0.0/16"},
		"the API server's Service is in an alias": {func(f *Fabric, _ *Observed) { f.Aliases = prefixes("10.96.0.0/16") }, "Error ServiceOverlap", "10.96.0.1 with 10.96.0.0/16"},

		"a VPN routes part of the pool": {func(_ *Fabric, o *Observed) { o.Routes = append(o.Routes, route("198.18.4.0/24", 254, "tun0")) }, "Warning RouteOverlap", "198.18.4.0/24 is routed to tun0"},
		"the pool is in a route of the cloud's network": {func(f *Fabric, o *Observed) {
			f.Pool, o.Routes = prefixes("10.250.0.0/16"), append(o.Routes, route("10.248.0.0/14", 254, "eth0"))
		}, "Warning RouteOverlap", "10.248.0.0/14 is routed to eth0"},
		"a route of IPv6 overlaps the pool":  {func(_ *Fabric, o *Observed) { o.Routes = append(o.Routes, route("fdd7:585b:e3ff::/48", 52, "wt0")) }, "Warning RouteOverlap", "wt0"},
		"a node's address is in the pool":    {func(_ *Fabric, o *Observed) { o.Links[1].Addresses = prefixes("198.19.0.5/24") }, "Error RouteOverlap", "198.19.0.5 is an address of eth0"},
		"a VPN has two halves for a default": {func(_ *Fabric, o *Observed) { o.Routes = append(o.Routes, route("128.0.0.0/1", 254, "tun0")) }, "", ""},

		"pods are where no prefix is": {func(_ *Fabric, o *Observed) { o.Pods = append(o.Pods, netip.MustParseAddr("10.0.3.4")) }, "Warning PodsOutsidePrefixes", "10.0.3.4; known are 10.244.0.0/16"},
		"pods are where no source says": {func(f *Fabric, o *Observed) {
			f.PodSources, o.Pods = []string{"IPPools of Calico"}, append(o.Pods, netip.MustParseAddr("10.0.3.4"))
		}, "Warning PodsOutsidePrefixes", "known are 10.244.0.0/16, by IPPools of Calico"},
		"pods outside, in a cloud":     {func(f *Fabric, _ *Observed) { f.Pods, f.OwnPods, f.PodAdvice = nil, nil, "set the subnets" }, "Warning PodsOutsidePrefixes", "set the subnets"},
		"pods, and no prefix is known": {func(f *Fabric, _ *Observed) { f.Pods, f.OwnPods = nil, nil }, "Warning PodsOutsidePrefixes", "none is known"},

		"rules of the older iptables": {func(_ *Fabric, o *Observed) { o.Legacy = true }, "Info ForwardDropped", "iptables-legacy -S FORWARD"},

		"Cilium": {func(_ *Fabric, o *Observed) { o.Links = append(o.Links, Link{Name: "cilium_host", Kind: "veth"}) }, "Info HostRoutingByEBPF", "Host Routing: BPF"},
		"Cilium with programs where packets enter": {func(_ *Fabric, o *Observed) {
			o.Links[1].Programs = []string{"cil_from_netdev-eth0"}
			o.Links = append(o.Links, Link{Name: "cilium_host", Kind: "veth"})
		}, "Warning HostRoutingByEBPF", "cil_from_netdev-eth0 on eth0"},
		"Cilium with netkit": {func(_ *Fabric, o *Observed) {
			o.Links = append(o.Links, Link{Name: "cilium_host", Kind: "veth"}, Link{Name: "lxc12", Kind: "netkit"})
		}, "Error HostRoutingByEBPF", "bpf.hostLegacyRouting=true"},
		"Cilium that routes by eBPF, by its settings": {func(f *Fabric, o *Observed) {
			f.CiliumRouting, f.CiliumSettings = RoutingBPF, "enable-bpf-masquerade=true"
			o.Links = append(o.Links, Link{Name: "cilium_host", Kind: "veth"})
		}, "Warning HostRoutingByEBPF", "cilium-config (enable-bpf-masquerade=true)"},
		"Cilium that leaves routing to the kernel, by its settings": {func(f *Fabric, o *Observed) {
			f.CiliumRouting, f.CiliumSettings = RoutingLegacy, "kube-proxy-replacement=false"
			o.Links[1].Programs = []string{"cil_from_netdev-eth0"}
			o.Links = append(o.Links, Link{Name: "cilium_host", Kind: "veth"})
		}, "", ""},
		"Cilium with netkit, whatever its settings": {func(f *Fabric, o *Observed) {
			f.CiliumRouting = RoutingLegacy
			o.Links = append(o.Links, Link{Name: "cilium_host", Kind: "veth"}, Link{Name: "lxc12", Kind: "netkit"})
		}, "Error HostRoutingByEBPF", "bpf.datapathMode=veth"},
		"settings that Cilium left on another node": {func(f *Fabric, _ *Observed) { f.CiliumRouting = RoutingBPF }, "", ""},
		"Calico with eBPF":                          {func(_ *Fabric, o *Observed) { o.Links = append(o.Links, Link{Name: "bpfin.cali", Kind: "veth"}) }, "Warning HostRoutingByEBPF", "linuxDataplane"},
		"Calico with eBPF by its programs":          {func(_ *Fabric, o *Observed) { o.Links[1].Programs = []string{"cali_tc_preamble"} }, "Warning HostRoutingByEBPF", "linuxDataplane"},
		"Calico with iptables":                      {func(_ *Fabric, o *Observed) { o.Links = append(o.Links, Link{Name: "cali0123", Kind: "veth"}) }, "", ""},
		"programs of a monitoring tool":             {func(_ *Fabric, o *Observed) { o.Links[1].Programs = []string{"count_packets"} }, "", ""},

		"a second interface is announced, strict": {func(f *Fabric, o *Observed) { second(f, o, 1) }, "Warning StrictReversePath", "net.ipv4.conf.eth1/100.rp_filter=2"},
		"a second interface is announced, loose":  {func(f *Fabric, o *Observed) { second(f, o, 2) }, "", ""},
		"a second interface is not announced":     {func(f *Fabric, o *Observed) { second(f, o, 1); f.Announced = f.Announced[:1] }, "", ""},

		"a network that passes too little": {func(_ *Fabric, o *Observed) { o.Underlay = 1359 }, "Warning UnderlayMTUTooSmall", "1359"},
		"a network that just passes it":    {func(_ *Fabric, o *Observed) { o.Underlay = 1360 }, "", ""},

		"flows at the limit":            {func(_ *Fabric, o *Observed) { o.Conntrack = 235930 }, "Warning ConntrackNearlyFull", "262144"},
		"flows just below the limit":    {func(_ *Fabric, o *Observed) { o.Conntrack = 235929 }, "", ""},
		"connection tracking is absent": {func(_ *Fabric, o *Observed) { o.Conntrack, o.ConntrackMax = -1, -1 }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, o := ordinary()
			tc.change(&f, &o)
			wantFinding(t, Check(f, o), tc.want, tc.text)
		})
	}
}

func calicoEncrypts(_ *Fabric, o *Observed) {
	o.PortInUse = true
	o.Links = append(o.Links, Link{Name: "entente0", Kind: "wireguard"}, Link{Name: "wireguard.cali", Kind: "wireguard"})
}

// ownDevice makes the port the one of the fabric's device.
func ownDevice(f *Fabric, o *Observed, up bool) {
	o.PortInUse, f.HasDevice, f.Listening = true, true, true
	o.Links = append(o.Links, Link{Name: "entente0", Kind: "wireguard", Up: up})
}

// second gives the node another interface, at which it is announced.
func second(f *Fabric, o *Observed, reversePath int) {
	f.Announced = append(f.Announced, netip.MustParseAddr("10.0.0.10"))
	o.Links = append(o.Links, Link{Name: "eth1.100", Kind: "vlan", Addresses: prefixes("10.0.0.10/24"), ReversePath: reversePath})
}

func wantFinding(t *testing.T, got []Finding, want, text string) {
	t.Helper()
	if want == "" {
		if len(got) > 0 {
			t.Errorf("found %+v, want nothing", got)
		}
		return
	}
	if len(got) != 1 || string(got[0].Severity)+" "+string(got[0].Reason) != want {
		t.Fatalf("found %+v, want %s", got, want)
	}
	if !strings.Contains(got[0].Message+got[0].Remedy, text) {
		t.Errorf("%s\n%s\nlacks %q", got[0].Message, got[0].Remedy, text)
	}
}

func TestRoutingRulesOfOthersAreReportedIfTheyTakePacketsToPeers(t *testing.T) {
	t.Parallel()
	everything := route("0.0.0.0/0", 7120, "wt0")
	for name, tc := range map[string]struct {
		rule  RoutingRule
		route Route
		want  string
	}{
		"all packets to a VPN":                {rule(105, 7120), everything, "Error AliasesDiverted"},
		"all packets, behind the fabric":      {rule(512, 7120), everything, ""},
		"at the same priority":                {rule(141, 7120), everything, ""},
		"to a table without a way":            {rule(105, 7120), route("10.0.0.0/8", 7120, "wt0"), ""},
		"to a table with a way to some":       {rule(105, 7120), route("198.18.2.0/24", 7120, "wt0"), "Warning AliasesDiverted"},
		"to the main table":                   {rule(99, 254), route("0.0.0.0/0", 254, "eth0"), "Error AliasesDiverted"},
		"to the main table but its default":   {RoutingRule{Priority: 99, Table: 254, Suppress: 0}, route("0.0.0.0/0", 254, "eth0"), ""},
		"the local table, as Cilium moves it": {rule(100, 255), everything, ""},
		"the fabric's own":                    {RoutingRule{Priority: 140, Table: 7120, Protocol: fabricProtocol, Suppress: -1}, everything, ""},
		"with a mark, as Cilium's":            {RoutingRule{Priority: 9, Table: 7120, Mark: 0x200, Mask: 0xf00, Suppress: -1}, everything, ""},
		"without a mark, as NetBird's":        {RoutingRule{Priority: 110, Table: 7120, Not: true, Mark: 0x1bd00, Mask: 0xffffffff, Suppress: -1}, everything, "Error AliasesDiverted"},
		"without a mark, to pods, as Calico's": {
			RoutingRule{Priority: 99, Table: 1, Not: true, Mark: 0x100000, Mask: 0x100000, Suppress: -1}, route("10.244.2.0/26", 1, "wireguard.cali"), "",
		},
		"from some pods":                         {RoutingRule{Priority: 50, Table: 7120, Source: netip.MustParsePrefix("10.244.1.9/32"), Suppress: -1}, everything, "Warning AliasesDiverted"},
		"from a pod outside, as Cilium's on AWS": {RoutingRule{Priority: 111, Table: 7120, Source: netip.MustParsePrefix("10.0.3.4/32"), Suppress: -1}, everything, "Warning AliasesDiverted"},
		"from such a pod to its network": {
			RoutingRule{Priority: 111, Table: 7120, Source: netip.MustParsePrefix("10.0.3.4/32"), Destination: netip.MustParsePrefix("10.0.0.0/16"), Suppress: -1}, everything, "",
		},
		"from an address of no pod":   {RoutingRule{Priority: 50, Table: 7120, Source: netip.MustParsePrefix("192.0.2.10/32"), Suppress: -1}, everything, ""},
		"from one interface":          {RoutingRule{Priority: 50, Table: 7120, In: "cni0", Suppress: -1}, everything, "Warning AliasesDiverted"},
		"from the node itself":        {RoutingRule{Priority: 50, Table: 7120, In: "lo", Suppress: -1}, everything, ""},
		"to the pool":                 {RoutingRule{Priority: 50, Table: 7120, Destination: netip.MustParsePrefix("198.18.0.0/15"), Suppress: -1}, everything, "Error AliasesDiverted"},
		"to all but the pool":         {RoutingRule{Priority: 50, Table: 7120, Not: true, Destination: netip.MustParsePrefix("198.18.0.0/15"), Suppress: -1}, everything, ""},
		"to another network":          {RoutingRule{Priority: 50, Table: 7120, Destination: netip.MustParsePrefix("10.0.0.0/8"), Suppress: -1}, everything, ""},
		"of one user":                 {RoutingRule{Priority: 50, Table: 7120, Narrow: true, Suppress: -1}, everything, "Warning AliasesDiverted"},
		"to nowhere":                  {RoutingRule{Priority: 50, Refuses: true, Suppress: -1}, everything, "Error AliasesDiverted"},
		"of IPv6, with a way of IPv6": {RoutingRule{Six: true, Priority: 50, Table: 7120, Suppress: -1}, route("::/0", 7120, "wt0"), "Error AliasesDiverted"},
		"of IPv6, with a way of IPv4": {RoutingRule{Six: true, Priority: 50, Table: 7120, Suppress: -1}, everything, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, o := ordinary()
			o.Rules, o.Routes = append(o.Rules, tc.rule), append(o.Routes, tc.route)
			f.Pods, o.Pods = append(f.Pods, netip.MustParsePrefix("10.0.0.0/16")), append(o.Pods, netip.MustParseAddr("10.0.3.4"))
			got := slices.DeleteFunc(Check(f, o), func(f Finding) bool { return f.Reason == RouteOverlap }) // of the way itself
			wantFinding(t, got, tc.want, tc.rule.String())
		})
	}
}

func TestFirewallsAreReportedIfTheyCertainlyDropPackets(t *testing.T) {
	t.Parallel()
	accept := func(tests ...Test) FilterRule { return FilterRule{Tests: tests, Verdict: Accept} }
	in, out := func(name string) Test { return Test{Key: In, Name: name} }, func(name string) Test { return Test{Key: Out, Name: name} }
	from, to := func(p string) Test { return Test{Key: Source, Prefix: netip.MustParsePrefix(p)} }, func(p string) Test { return Test{Key: Destination, Prefix: netip.MustParsePrefix(p)} }
	answers := accept(Test{Key: State, Bits: stateEstablished | 4})
	mark := accept(Test{Key: Never})
	device := []FilterRule{accept(in("entente0")), accept(out("entente0"))}
	const (
		none      = ""
		every     = "drops connections from pods into the tunnel, connections from the tunnel to pods, answers from pods into the tunnel, answers from the tunnel to pods"
		begun     = "drops connections from pods into the tunnel, connections from the tunnel to pods"
		fromPeers = "drops connections from the tunnel to pods"
	)
	for name, tc := range map[string]struct {
		open  bool
		rules []FilterRule
		more  []Chain
		want  string
	}{
		"a closed chain":                              {want: every},
		"an open chain":                               {open: true, want: none},
		"closed but for answers, as with Docker":      {rules: []FilterRule{answers, accept(in("docker0"))}, want: begun},
		"closed but for kube-proxy's packets":         {rules: []FilterRule{mark, answers}, want: begun},
		"closed but for the device":                   {rules: device, want: none},
		"closed but for the device by its beginning":  {rules: []FilterRule{accept(in("entente*")), accept(out("entente*"))}, want: none},
		"closed but for pods, as with flannel":        {rules: []FilterRule{accept(from("10.244.0.0/16")), accept(to("10.244.0.0/16"))}, want: none},
		"closed but for single pods, as with bridges": {rules: []FilterRule{answers, accept(from("10.244.1.7/32"))}, want: fromPeers},
		"closed but for pods of other nodes":          {rules: []FilterRule{accept(from("10.244.2.0/24"))}, want: every},
		"closed but for what is marked":               {rules: []FilterRule{accept(Test{Key: Other})}, want: none},
		"closed but for UDP":                          {rules: []FilterRule{accept(Test{Key: Protocol, Bits: 17})}, want: every},
		"closed but for TCP":                          {rules: []FilterRule{accept(Test{Key: Protocol, Bits: 6})}, want: none},
		"closed but for all other interfaces":         {rules: []FilterRule{accept(Test{Key: In, Name: "entente0", Not: true}, Test{Key: Out, Name: "entente0", Not: true})}, want: every},
		"a rule that drops all, as with firewalld":    {open: true, rules: []FilterRule{answers, {Verdict: Drop}}, want: begun},
		"a rule that drops what is invalid":           {open: true, rules: []FilterRule{{Tests: []Test{{Key: State, Bits: 1}}, Verdict: Drop}}, want: none},
		"a rule that may drop":                        {open: true, rules: []FilterRule{{Tests: []Test{{Key: Other}}, Verdict: Drop}}, want: none},
		"a map that decides":                          {rules: []FilterRule{{Verdict: Undecided}}, want: none},
		"a return of a base chain, which is its end":  {rules: []FilterRule{{Verdict: Return}, accept()}, want: every},
		"a chain that lets pass": {
			rules: []FilterRule{{Verdict: Jump, Target: "user"}},
			more:  []Chain{{Table: "ip filter", Name: "user", Rules: device}}, want: none,
		},
		"a chain of the same name in another table": {
			rules: []FilterRule{{Verdict: Jump, Target: "user"}},
			more:  []Chain{{Table: "ip filter", Name: "user"}, {Table: "ip mangle", Name: "user", Rules: device}}, want: every,
		},
		"a chain that drops before others let pass": {
			rules: append([]FilterRule{{Verdict: Jump, Target: "user"}}, device...),
			more:  []Chain{{Table: "ip filter", Name: "user", Rules: []FilterRule{{Verdict: Drop}}}}, want: every,
		},
		"a chain that returns before it lets pass": {
			rules: []FilterRule{{Verdict: Jump, Target: "user"}},
			more:  []Chain{{Table: "ip filter", Name: "user", Rules: append([]FilterRule{{Verdict: Return}}, device...)}}, want: every,
		},
		"a chain that is gone to and ends": {
			rules: append([]FilterRule{{Verdict: Goto, Target: "user"}}, device...),
			more:  []Chain{{Table: "ip filter", Name: "user"}}, want: every,
		},
		"a chain that was not read":         {rules: []FilterRule{{Verdict: Jump, Target: "user"}}, want: none},
		"a chain that jumps to itself":      {rules: []FilterRule{{Verdict: Jump, Target: "FORWARD"}}, want: none},
		"a chain of IPv6":                   {rules: device, more: []Chain{{Table: "ip6 filter", Name: "FORWARD", Base: true, Drop: true, Six: true}}, want: none},
		"closed but for interfaces of pods": {rules: []FilterRule{accept(in("cni*")), accept(out("cni0"))}, want: none},
		"a second firewall, with a lid":     {rules: device, more: []Chain{{Table: "inet mine", Name: "f", Base: true, Drop: true, Four: true, Six: true, Rules: []FilterRule{answers}}}, want: begun},
		"rules for IPv6 in both": {
			rules: device, more: []Chain{{Table: "inet mine", Name: "f", Base: true, Four: true, Six: true, Rules: []FilterRule{{Tests: []Test{{Key: Family, Bits: familySix}}, Verdict: Drop}}}}, want: none,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, o := ordinary()
			o.Chains = append([]Chain{{Table: "ip filter", Name: "FORWARD", Base: true, Drop: !tc.open, Four: true, Rules: tc.rules}}, tc.more...)
			if tc.want == "" {
				wantFinding(t, Check(f, o), "", "")
				return
			}
			wantFinding(t, Check(f, o), "Error ForwardDropped", tc.want)
		})
	}
}

// Which interface leads to pods is not guessed.
func TestWherePodsAre(t *testing.T) {
	t.Parallel()
	pod, away := []netip.Addr{netip.MustParseAddr("10.244.1.7")}, route("0.0.0.0/0", tableMain, "eth0")
	for name, tc := range map[string]struct {
		pods   []netip.Addr
		routes []Route
		where  string
		link   string
	}{
		"a network of pods":                   {nil, []Route{away, route("10.244.1.0/24", tableMain, "cni0")}, "10.244.1.0/24", "cni0"},
		"a pod in a network":                  {pod, []Route{away, route("10.244.1.0/24", tableMain, "cni0")}, "10.244.1.7/32", "cni0"},
		"a pod with a route":                  {pod, []Route{away, route("10.244.1.0/24", tableMain, "cni0"), route("10.244.1.7/32", tableMain, "cali1")}, "10.244.1.7/32", "cali1"},
		"pods with routes":                    {nil, []Route{away, route("10.244.1.7/32", tableMain, "cali1")}, "10.244.1.0/24", "cali1"},
		"a pod with no route but the default": {pod, []Route{away}, "10.244.1.7/32", ""},
		"pods of all nodes by one route":      {nil, []Route{away, route("10.244.0.0/16", tableMain, "flannel.1")}, "10.244.1.0/24", ""},
		"a route of another table":            {nil, []Route{away, route("10.244.1.0/24", 7120, "wt0")}, "10.244.1.0/24", ""},
	} {
		f, o := ordinary()
		o.Pods, o.Routes = tc.pods, tc.routes
		if where, link := podOf(&f, &o, false); where.String() != tc.where || link != tc.link {
			t.Errorf("%s: %s by %q, want %s by %q", name, where, link, tc.where, tc.link)
		}
	}
}

func TestOverlapsAreThePartsOfThePoolThatANodeReachesOtherwise(t *testing.T) {
	t.Parallel()
	f, o := ordinary()
	f.Aliases = prefixes("10.9.0.0/24") // of an earlier pool
	o.Links = append(o.Links, Link{Name: "eth1", Addresses: prefixes("198.19.0.5/24")}, Link{Name: f.Device, Addresses: prefixes("198.18.0.1/32")})
	guard := route("198.18.0.0/15", tableMain, "")
	guard.Refuses = true
	o.Routes = append(o.Routes, guard, route("198.18.0.0/14", tableMain, "tun0"), route("0.0.0.0/1", tableMain, "tun0"), route("10.9.0.0/25", tableMain, "eth0"),
		route("198.18.64.0/18", tableMain, "eth0"), route("198.19.0.0/24", tableMain, "eth1"), route("198.18.7.0/24", 14100, f.Device), route("fdd7:585b:e3ff::/48", 52, "wt0"))
	want := fmt.Sprint(prefixes("198.18.64.0/18", "198.19.0.0/24", "fdd7:585b:e3ff::/48"))
	if got := fmt.Sprint(Overlaps(f, o)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i := range 100 {
		o.Routes = append(o.Routes, route(fmt.Sprintf("198.19.%d.0/25", i), tableMain, "eth0"))
	}
	if got := Overlaps(f, o); len(got) != maxOverlaps || got[0] != netip.MustParsePrefix("198.18.64.0/18") {
		t.Errorf("of many it names %v", got)
	}
}

func TestFindingsComeWorstFirstAndAreBounded(t *testing.T) {
	t.Parallel()
	f, o := ordinary()
	o.Forward4, o.Underlay, o.Tun = 0, 1000, false
	o.Links = append(o.Links, Link{Name: "cilium_host"})
	for range 100 {
		o.Unread = append(o.Unread, strings.Repeat("ü", 300)+string(rune('a'+len(o.Unread))))
		o.Routes = append(o.Routes, route("198.18.4.0/24", 254, "tun"+string(rune('a'+len(o.Routes)))))
	}
	var got []string
	for _, f := range Check(f, o) {
		got = append(got, string(f.Severity)+" "+string(f.Reason))
		if len(f.Message) > maxText || len(f.Remedy) > maxText || strings.ToValidUTF8(f.Message, "") != f.Message {
			t.Errorf("%s: %d and %d bytes: %q", f.Reason, len(f.Message), len(f.Remedy), f.Message)
		}
		if f.Reason == RouteOverlap && !strings.Contains(f.Message, "and 95 more") {
			t.Error(f.Message)
		}
	}
	want := []string{"Error TunMissing", "Error ForwardingDisabled", "Warning RouteOverlap", "Warning UnderlayMTUTooSmall", "Warning CheckIncomplete", "Info HostRoutingByEBPF"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// reasons returns all of them, in their order.
func reasons() []Reason {
	return []Reason{
		NFTablesUnavailable, TunMissing, IPv6Disabled, ForwardingDisabled, PortTaken, ForwardDropped, AliasesDiverted, ServiceOverlap,
		RouteOverlap, PodsOutsidePrefixes, HostRoutingByEBPF, StrictReversePath, UnderlayMTUTooSmall, ConntrackNearlyFull, CheckIncomplete,
	}
}

// Each reason has its entry among those of nodes in docs/troubleshooting.md, and there are no others.
func TestEachReasonIsExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, nodes, _ := strings.Cut(string(page), "\n## Nodes\n")
	nodes, _, _ = strings.Cut(nodes, "\n## ")
	var explained []Reason
	for _, m := range regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(nodes, -1) {
		explained = append(explained, Reason(m[1]))
	}
	if !slices.Equal(explained, append(reasons(), "NotChecked")) {
		t.Errorf("docs/troubleshooting.md has the entries %q, want %q and NotChecked", explained, reasons())
	}
}
