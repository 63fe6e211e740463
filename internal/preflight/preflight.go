// Package preflight finds what keeps the fabric's packets from passing on a node: settings,
// firewalls, routes and programs that are not the fabric's own. [Observe] reads them, [Check]
// decides. Neither changes anything, and neither needs more than NET_ADMIN in the node's
// network namespace.
package preflight

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Reason is the kind of a finding. It is part of the API: docs/troubleshooting.md explains each.
// internal/gateways has a list of those that keep the packets of pods from passing.
type Reason string

// The reasons, in the order in which findings of one severity are reported.
const (
	NFTablesUnavailable Reason = "NFTablesUnavailable"
	TunMissing          Reason = "TunMissing"
	IPv6Disabled        Reason = "IPv6Disabled"
	ForwardingDisabled  Reason = "ForwardingDisabled"
	PortTaken           Reason = "PortTaken"
	ForwardDropped      Reason = "ForwardDropped"
	AliasesDiverted     Reason = "AliasesDiverted"
	ServiceOverlap      Reason = "ServiceOverlap"
	RouteOverlap        Reason = "RouteOverlap"
	PodsOutsidePrefixes Reason = "PodsOutsidePrefixes"
	HostRoutingByEBPF   Reason = "HostRoutingByEBPF"
	StrictReversePath   Reason = "StrictReversePath"
	UnderlayMTUTooSmall Reason = "UnderlayMTUTooSmall"
	ConntrackNearlyFull Reason = "ConntrackNearlyFull"
	CheckIncomplete     Reason = "CheckIncomplete"
)

// Severity is how bad a finding is.
type Severity string

// The severities, worst first.
const (
	// Error: packets of pods do not pass, or are misrouted.
	Error Severity = "Error"
	// Warning: some may not pass.
	Warning Severity = "Warning"
	// Info: the node cannot decide it, and an administrator should check.
	Info Severity = "Info"
)

// Finding is a problem. There is at most one for each reason.
type Finding struct {
	Reason   Reason
	Severity Severity
	// Message says what is wrong and where, Remedy what to do. Neither is longer than maxText
	// bytes, or has numbers that change all the time.
	Message, Remedy string
}

// Routing is how Cilium forwards packets of pods, by its configuration. Empty means that this is not known.
type Routing string

// The ways: by eBPF, past nftables, or as the kernel routes other packets.
const (
	RoutingBPF    Routing = "BPF"
	RoutingLegacy Routing = "Legacy"
)

// Fabric is the configuration of the fabric on the node.
type Fabric struct {
	// Device is the name of the WireGuard device, Port its UDP port.
	Device string
	Port   int
	// HasDevice says that the device exists, Listening that it has the port, once it is up.
	HasDevice, Listening bool
	// Pool are the prefixes of the alias pool, Aliases those in use.
	Pool, Aliases []netip.Prefix
	// Services are the known prefixes of Services.
	Services []netip.Prefix
	// Pods are the known prefixes of this cluster's pods, OwnPods those of this node's.
	Pods, OwnPods []netip.Prefix
	// PodSources says where those of the cluster were learnt.
	PodSources []string
	// PodAdvice is what to set if pods are outside of these; empty if nothing particular is known.
	PodAdvice string
	// CiliumRouting is how Cilium routes by its configuration, CiliumSettings the settings that say so.
	CiliumRouting  Routing
	CiliumSettings string
	// Unfiltered is why the fabric lets no packets of other clusters pass: it has no nftables table, and
	// cannot write it. Empty means that it has.
	Unfiltered string
	// Announced are the addresses of this node at which peers may dial it.
	Announced []netip.Addr
}

// reach returns the prefixes of destinations at peers.
func (f *Fabric) reach() []netip.Prefix {
	out := slices.Clone(f.Pool)
	for _, a := range f.Aliases {
		if !slices.ContainsFunc(out, func(p netip.Prefix) bool { return covers(p, a) }) {
			out = append(out, a)
		}
	}
	return out
}

// podPrefixes returns the prefixes of this node's pods, or those of all pods if it has none of its own.
func (f *Fabric) podPrefixes() []netip.Prefix {
	if len(f.OwnPods) > 0 {
		return f.OwnPods
	}
	return f.Pods
}

// Observed is the state of the node. The zero value means that nothing was read.
type Observed struct {
	// Unread lists what could not be read, with the reasons.
	Unread []string
	// NFTables is why nftables cannot be used; empty means that it can.
	NFTables string
	// WireGuard says that the kernel has WireGuard, Tun that TUN devices can be made.
	WireGuard, Tun bool
	// IPv6Off says that the fabric's device cannot have an IPv6 address.
	IPv6Off bool
	// Forward4 and Forward6 are the settings for all interfaces; -1 means unknown.
	Forward4, Forward6 int
	// PortInUse says that a UDP socket has the fabric's port.
	PortInUse bool
	// Links are the interfaces.
	Links []Link
	// Chains are the filter chains that forwarded packets pass, and those that they lead to,
	// except the fabric's own.
	Chains []Chain
	// Legacy says that there are rules of the older iptables, which are not in Chains.
	Legacy bool
	// Rules are the routing rules, Routes the relevant routes, except the fabric's own.
	Rules  []RoutingRule
	Routes []Route
	// Underlay is the MTU of the way to other clusters; zero means unknown.
	Underlay int
	// Conntrack is how many flows are tracked, ConntrackMax how many can be.
	Conntrack, ConntrackMax int
	// Pods are addresses of pods on this node; empty means unknown.
	Pods []netip.Addr
}

// Link is a network interface.
type Link struct {
	Name string
	// Kind is the kind as `ip -details link` shows it; empty for hardware.
	Kind string
	Up   bool
	// Addresses are its addresses with their networks.
	Addresses []netip.Prefix
	// ReversePath is the setting of rp_filter in force: the larger one of this interface's
	// and that of all.
	ReversePath int
	// Programs are the eBPF programs that traffic control runs on it, if it leads out of the
	// node.
	Programs []string
}

// Check returns what is wrong, worst first.
func Check(f Fabric, o Observed) []Finding {
	var out []Finding
	for _, check := range []func(*Fabric, *Observed) *Finding{
		netfilter, tun, ipv6, forwarding, port, forward, diverted, services, routes, pods, hostRouting, reversePath, mtu, conntrack, unread,
	} {
		if found := check(&f, &o); found != nil {
			found.Message, found.Remedy = cut(found.Message), cut(found.Remedy)
			out = append(out, *found)
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(rank(a.Severity), rank(b.Severity)) })
	return out
}

func rank(s Severity) int { return slices.Index([]Severity{Error, Warning, Info}, s) }

func found(reason Reason, severity Severity, message, remedy string) *Finding {
	return &Finding{Reason: reason, Severity: severity, Message: message, Remedy: remedy}
}

// cut limits the length of a text.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText-3], "") + "..."
}

// some lists the first items, and how many more there are.
func some(items []string) string {
	items = slices.Compact(slices.Clone(items))
	if n := len(items) - maxListed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:maxListed], ", "), n)
	}
	return strings.Join(items, ", ")
}

func covers(p, q netip.Prefix) bool { return p.Bits() <= q.Bits() && p.Overlaps(q) }

func overlapsAny(list []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(list, p.Overlaps)
}

// only returns the prefixes of a family.
func only(prefixes []netip.Prefix, six bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != six })
}

func netfilter(f *Fabric, o *Observed) *Finding {
	message := f.Unfiltered
	if o.NFTables != "" {
		message = "nftables cannot be used: " + o.NFTables
	}
	if message == "" {
		return nil
	}
	return found(NFTablesUnavailable, Error, message,
		"give the container the capability NET_ADMIN, and the node a kernel of 5.10 or later with the modules nf_tables, nft_nat, nft_masq and nft_ct (modprobe), and check that no other program owns or deletes the table inet entente (nft list tables)")
}

func tun(f *Fabric, o *Observed) *Finding {
	if f.HasDevice || o.WireGuard || o.Tun {
		return nil
	}
	return found(TunMissing, Error, "the kernel of this node has no WireGuard, and there is no /dev/net/tun for the one in user space",
		"load one of the modules on the node and have it loaded at each start: modprobe wireguard, or modprobe tun")
}

func ipv6(_ *Fabric, o *Observed) *Finding {
	if !o.IPv6Off {
		return nil
	}
	return found(IPv6Disabled, Error, "IPv6 is off on this node; the tunnels' own addresses are IPv6, whatever the network is",
		"set net.ipv6.conf.all.disable_ipv6=0 and net.ipv6.conf.default.disable_ipv6=0, and take ipv6.disable=1 off the kernel's command line")
}

func forwarding(f *Fabric, o *Observed) *Finding {
	var off []string
	if o.Forward4 == 0 {
		off = append(off, "net.ipv4.ip_forward=1")
	}
	if o.Forward6 == 0 && len(only(f.podPrefixes(), true)) > 0 {
		off = append(off, "net.ipv6.conf.all.forwarding=1")
	}
	if len(off) == 0 {
		return nil
	}
	return found(ForwardingDisabled, Error, "this node does not forward packets between interfaces", "set "+strings.Join(off, " and ")+" in a file of /etc/sysctl.d")
}

func port(f *Fabric, o *Observed) *Finding {
	up := slices.ContainsFunc(o.Links, func(l Link) bool { return l.Name == f.Device && l.Up })
	if !o.PortInUse || f.Listening && up {
		return nil
	}
	message := fmt.Sprintf("UDP port %d, on which WireGuard is to listen, is taken", f.Port)
	var others []string
	for _, l := range o.Links {
		if l.Name == f.Device {
			continue
		}
		if owner := wireGuardOf(l); owner != "" {
			others = append(others, owner)
		}
	}
	if len(others) > 0 {
		message += "; other tunnels on this node: " + some(others)
	}
	return found(PortTaken, Error, message,
		fmt.Sprintf("see who has it on the node (ss -ulpn 'sport = :%d'; the kernel's own have no process), and set fabric.wireguardPort in the chart's values to a free port", f.Port))
}

// wireGuardOf returns the program to which an interface of WireGuard belongs; empty if the interface is
// another.
func wireGuardOf(l Link) string {
	for name, owner := range map[string]string{
		"wireguard.cali": "Calico", "wg-v6.cali": "Calico", "flannel-wg": "flannel", "flannel-wg-v6": "flannel",
		"kubespan": "KubeSpan of Talos Linux", "kilo0": "Kilo", "cilium_wg0": "Cilium", "tailscale0": "Tailscale", "wt0": "NetBird",
	} {
		if l.Name == name {
			return owner + " (" + name + ")"
		}
	}
	if l.Kind == "wireguard" {
		return l.Name
	}
	return ""
}

func services(f *Fabric, _ *Observed) *Finding {
	var bad []string
	for _, s := range f.Services {
		for _, a := range f.reach() {
			if a.Overlaps(s) {
				bad = append(bad, fmt.Sprintf("%s with %s", prefixText(s), a))
			}
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return found(ServiceOverlap, Error, "Services of this cluster have addresses among the aliases of peers: "+some(bad)+"; packets for one may go to the other",
		"set network.aliasPool in the chart's values to prefixes that nothing here uses, and cluster.serviceCIDRs to the prefixes of Services")
}

// prefixText returns a prefix as text, or its address if it has only one.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func pods(f *Fabric, o *Observed) *Finding {
	var outside []string
	for _, a := range o.Pods {
		if !slices.ContainsFunc(f.Pods, func(p netip.Prefix) bool { return p.Contains(a) }) &&
			!slices.ContainsFunc(f.OwnPods, func(p netip.Prefix) bool { return p.Contains(a) }) {
			outside = append(outside, a.String())
		}
	}
	if len(outside) == 0 {
		return nil
	}
	slices.Sort(outside)
	known := "none is known"
	if len(f.Pods) > 0 {
		var texts []string
		for _, p := range f.Pods {
			texts = append(texts, p.String())
		}
		known = "known are " + some(texts)
	}
	if len(f.PodSources) > 0 {
		known += ", by " + some(slices.Clone(f.PodSources))
	}
	return found(PodsOutsidePrefixes, Warning, "pods of this node are outside of the prefixes of this cluster's pods, so no peer can reach them: "+some(outside)+"; "+known,
		cmp.Or(f.PodAdvice, "set cluster.podCIDRs in the chart's values to all prefixes from which the network plugin gives addresses"))
}

func mtu(_ *Fabric, o *Observed) *Finding {
	if o.Underlay == 0 || o.Underlay >= leastUnderlay {
		return nil
	}
	return found(UnderlayMTUTooSmall, Warning,
		fmt.Sprintf("the way to other clusters passes packets of %d bytes; IPv6 of pods needs %d: packets of 1280 bytes and 80 around them", o.Underlay, leastUnderlay),
		fmt.Sprintf("raise the MTU of the node's network to %d or more; where it is a tunnel itself, have that one carry less around each packet", leastUnderlay))
}

func conntrack(_ *Fabric, o *Observed) *Finding {
	if o.ConntrackMax <= 0 || o.Conntrack*100 < o.ConntrackMax*conntrackPercent {
		return nil
	}
	return found(ConntrackNearlyFull, Warning,
		fmt.Sprintf("more than %d %% of the %d flows that this node can track are in use; when all are, new connections are dropped", conntrackPercent, o.ConntrackMax),
		"raise net.netfilter.nf_conntrack_max (kube-proxy: conntrack.maxPerCore), and find out who opens so many connections: conntrack -S")
}

func unread(_ *Fabric, o *Observed) *Finding {
	if len(o.Unread) == 0 {
		return nil
	}
	return found(CheckIncomplete, Warning, "not all of the node's network could be read, so more may be wrong: "+some(o.Unread),
		"see the log of the container node of this node's pod of DaemonSet entente-fabric")
}
