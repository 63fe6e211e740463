package preflight

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The priorities and tables of the fabric's own rules: see package tunnel.
const (
	fabricProtocol = 141
	fabricPriority = 141
	tableMain      = 254
)

// RoutingRule is a routing rule.
type RoutingRule struct {
	Six      bool
	Priority int
	// Protocol is the number of the program that made it.
	Protocol int
	// Not inverts the selectors.
	Not bool
	// Source and Destination are invalid if the rule is for all addresses.
	Source, Destination netip.Prefix
	// In and Out are interfaces; empty means any.
	In, Out string
	// Mark and Mask are the mark that packets must have; a zero mask means any.
	Mark, Mask uint32
	// Narrow says that it has other selectors, such as a port or a user.
	Narrow bool
	// Table is where the route is looked up; zero if the rule has another action.
	Table int
	// Refuses says that it drops or rejects packets instead of looking up a route.
	Refuses bool
	// Suppress is the length of prefixes up to which routes are ignored; -1 means none.
	Suppress int
}

// String is the rule as `ip rule` shows it.
func (r RoutingRule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:", r.Priority)
	if r.Not {
		b.WriteString(" not")
	}
	from := "all"
	if r.Source.IsValid() {
		from = r.Source.String()
	}
	b.WriteString(" from " + from)
	if r.Destination.IsValid() {
		b.WriteString(" to " + r.Destination.String())
	}
	if r.Mask != 0 {
		fmt.Fprintf(&b, " fwmark %#x", r.Mark)
	}
	if r.In != "" {
		b.WriteString(" iif " + r.In)
	}
	switch {
	case r.Refuses:
		b.WriteString(" to no table")
	case r.Table == tableMain:
		b.WriteString(" lookup main")
	default:
		fmt.Fprintf(&b, " lookup %d", r.Table)
	}
	if r.Suppress >= 0 {
		fmt.Fprintf(&b, " suppress_prefixlength %d", r.Suppress)
	}
	return b.String()
}

// Route is a route to an interface, or one that refuses packets.
type Route struct {
	Prefix netip.Prefix
	Table  int
	// Device is the interface; empty for none or several.
	Device string
	// Local says that the addresses are the node's own.
	Local bool
	// Refuses says that packets end here: a blackhole, or one with an error.
	Refuses bool
}

// isDefault reports whether the route is a default route, or one of the
// two halves that VPNs use in its place.
func (r Route) isDefault() bool { return r.Prefix.Bits() <= 1 }

// takes reports whether a rule takes packets of pods to a prefix before they come to
// those of the fabric: all of them, or some.
func (r RoutingRule) takes(f *Fabric, o *Observed, to netip.Prefix) (all, part bool) {
	if r.Priority == 0 || r.Priority >= fabricPriority || r.Protocol == fabricProtocol || r.Six != to.Addr().Is6() || r.Out != "" {
		return false, false
	}
	sources := only(f.podPrefixes(), r.Six)
	for _, a := range o.Pods {
		sources = append(sources, netip.PrefixFrom(a, a.BitLen()))
	}
	narrow := r.Narrow || r.In != "" || r.Source.IsValid() || (r.Destination.IsValid() && !covers(r.Destination, to))
	if !r.Not {
		// Packets of pods have no mark unless a program sets one.
		if r.Mask != 0 || r.In == "lo" || (r.Destination.IsValid() && !r.Destination.Overlaps(to)) ||
			(r.Source.IsValid() && len(sources) > 0 && !overlapsAny(sources, r.Source)) {
			return false, false
		}
	} else {
		switch {
		case r.Mask != 0:
			narrow = false // packets without a mark
		case r.Destination.IsValid() && covers(r.Destination, to):
			return false, false
		default:
			narrow = true
		}
	}
	if r.Refuses {
		return !narrow, true
	}
	for _, route := range o.Routes {
		if route.Table != r.Table || route.Local || route.Prefix.Addr().Is6() != r.Six || route.Prefix.Bits() <= r.Suppress || !route.Prefix.Overlaps(to) {
			continue
		}
		part = true
		all = all || !narrow && covers(route.Prefix, to)
	}
	return all, part
}

func diverted(f *Fabric, o *Observed) *Finding {
	var bad []string
	severity := Warning
	for _, r := range o.Rules {
		for _, to := range f.reach() {
			all, part := r.takes(f, o, to)
			if all {
				severity = Error
			}
			if text := r.String(); part && !slices.Contains(bad, text) {
				bad = append(bad, text)
			}
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return found(AliasesDiverted, severity,
		fmt.Sprintf("routing rules of others come before the fabric's, at priority %d, and take packets to peers elsewhere: %s", fabricPriority, some(bad)),
		fmt.Sprintf("have the program that makes them (a VPN, another network plugin) place them behind priority %d, or leave the prefixes of network.aliasPool out of them", fabricPriority))
}

func routes(f *Fabric, o *Observed) *Finding {
	var bad []string
	severity := Warning
	reach := f.reach()
	for _, l := range o.Links {
		for _, a := range l.Addresses {
			if l.Name != f.Device && overlapsAny(reach, netip.PrefixFrom(a.Addr(), a.Addr().BitLen())) {
				severity = Error
				bad = append(bad, fmt.Sprintf("%s is an address of %s", a.Addr(), l.Name))
			}
		}
	}
	for _, r := range o.Routes {
		if !r.elsewhere(f, reach) {
			continue
		}
		text := r.Prefix.String() + " is routed"
		if r.Device != "" {
			text += " to " + r.Device
		}
		bad = append(bad, text)
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return found(RouteOverlap, severity, "the alias pool overlaps what this node reaches otherwise, and takes its packets: "+some(bad),
		"set network.aliasPool in the chart's values to prefixes that neither this cluster nor its networks use")
}

// elsewhere reports whether a route leads packets to some prefixes another way than the fabric's.
func (r Route) elsewhere(f *Fabric, to []netip.Prefix) bool {
	// A route that refuses packets to the whole pool is for nodes whose fabric has not started.
	guard := r.Refuses && r.Table == tableMain && slices.Contains(to, r.Prefix)
	return !guard && !r.isDefault() && !r.Local && r.Device != f.Device && overlapsAny(to, r.Prefix)
}

// Overlaps returns the parts of the alias pool that a node reaches by other routes, where no new alias
// should be allocated: at most 16, the widest first. Routes that cover a whole prefix of the pool are left
// out, as they would leave no aliases at all.
func Overlaps(f Fabric, o Observed) []netip.Prefix {
	var out []netip.Prefix
	add := func(p netip.Prefix) {
		if slices.ContainsFunc(f.Pool, func(pool netip.Prefix) bool { return p != pool && covers(pool, p) }) {
			out = append(out, p)
		}
	}
	for _, l := range o.Links {
		for _, a := range l.Addresses {
			if l.Name != f.Device {
				add(a.Masked())
			}
		}
	}
	for _, r := range o.Routes {
		if r.elsewhere(&f, f.Pool) {
			add(r.Prefix.Masked())
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Compare(b)) })
	out = slices.Compact(out)
	return out[:min(len(out), maxOverlaps)]
}

// reversePath checks rp_filter on interfaces other than that of the default route. Packets of the
// tunnels enter a node in two ways. Those from the device pass the strict check:
// the way back to their sources leads into the device, by the fabric's rules.
// WireGuard's own packets enter at the interface that was dialled, and pass only if their answers leave
// by it.
func reversePath(f *Fabric, o *Observed) *Finding {
	var out string
	for _, r := range o.Routes {
		if r.Table == tableMain && r.isDefault() && r.Prefix.Addr().Is4() && r.Device != "" {
			out = r.Device
			break
		}
	}
	if out == "" {
		return nil
	}
	var bad, names []string
	for _, l := range o.Links {
		if l.Name == out || l.ReversePath != 1 {
			continue
		}
		for _, a := range l.Addresses {
			if a.Addr().Is4() && slices.Contains(f.Announced, a.Addr()) {
				bad = append(bad, fmt.Sprintf("%s on %s", a.Addr(), l.Name))
				names = append(names, fmt.Sprintf("net.ipv4.conf.%s.rp_filter=2", strings.ReplaceAll(l.Name, ".", "/")))
			}
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return found(StrictReversePath, Warning,
		fmt.Sprintf("peers may dial this node at %s, and answers leave by %s: with rp_filter=1 the kernel drops what they send there, unless they are in the same network", some(bad), out),
		"set "+some(names)+", which takes a packet that any interface could answer")
}

// hostRouting checks for programs that route packets of pods past nftables, where addresses
// are translated.
func hostRouting(f *Fabric, o *Observed) *Finding {
	const past = " Packets of pods then do not pass nftables, where the fabric translates addresses, and peers drop them."
	var cilium, netkit, calico bool
	var attached string
	for _, l := range o.Links {
		switch {
		case l.Name == "cilium_host":
			cilium = true
		case l.Kind == "netkit":
			netkit = true
		case l.Name == "bpfin.cali" || l.Name == "bpfout.cali":
			calico = true
		}
		for _, p := range l.Programs {
			calico = calico || strings.HasPrefix(p, "cali")
			if attached == "" && strings.HasPrefix(p, "cil_") {
				attached = p + " on " + l.Name
			}
		}
	}
	const remedy = "set bpf.hostLegacyRouting=true in Cilium's values and restart its agents (kubectl -n kube-system rollout restart daemonset/cilium)"
	switch {
	case cilium && netkit:
		return found(HostRoutingByEBPF, Error, "Cilium connects pods by netkit devices, which it does only where it routes by eBPF."+past, remedy+", with bpf.datapathMode=veth")
	case calico:
		return found(HostRoutingByEBPF, Warning, "Calico runs its eBPF data plane here, which may route by eBPF."+past,
			"use Calico's iptables or nftables data plane (linuxDataplane in its Installation), or see whether pods reach peers before you rely on it")
	case cilium && f.CiliumRouting == RoutingLegacy:
		return nil
	case cilium && f.CiliumRouting == RoutingBPF:
		return found(HostRoutingByEBPF, Warning, "Cilium routes by eBPF, by its ConfigMap kube-system/cilium-config ("+f.CiliumSettings+"), unless a CiliumNodeConfig says otherwise for this node."+past,
			remedy)
	case cilium && attached != "":
		return found(HostRoutingByEBPF, Warning, "Cilium runs "+attached+" and may route by eBPF: whether it does, `cilium-dbg status` says in its pods (Host Routing: BPF)."+past,
			"if it does, "+remedy)
	case cilium:
		return found(HostRoutingByEBPF, Info, "Cilium runs here; whether it routes by eBPF cannot be seen from the node, `cilium-dbg status` says it in its pods (Host Routing: BPF)."+past,
			"if it does, "+remedy)
	}
	return nil
}

// isHardware reports whether an interface leads out of the node rather than to pods.
func isHardware(l Link) bool {
	switch l.Kind {
	case "", "device", "bond", "vlan", "team", "bridge":
		return !strings.HasPrefix(l.Name, "cilium_") && !strings.HasPrefix(l.Name, "lxc")
	}
	return false
}
