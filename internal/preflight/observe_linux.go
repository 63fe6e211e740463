package preflight

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/internal/sysctl"
)

// Observe reads the state of the network namespace of the calling thread. It makes no request
// that would make the kernel load a module. What cannot be read is left out,
// and listed in Unread.
func Observe(f Fabric) Observed {
	o := Observed{
		WireGuard: exists("/sys/module/wireguard"), Tun: exists("/sys/class/misc/tun") || exists("/dev/net/tun"),
		IPv6Off:  ipv6Off(f.Device),
		Legacy:   legacy(),
		Forward4: sysctl.Number("net/ipv4/ip_forward"), Forward6: sysctl.Number("net/ipv6/conf/all/forwarding"),
		Conntrack: sysctl.Number("net/netfilter/nf_conntrack_count"), ConntrackMax: sysctl.Number("net/netfilter/nf_conntrack_max"),
	}
	unread := func(what string, err error) {
		if err != nil {
			o.Unread = append(o.Unread, fmt.Sprintf("%s: %v", what, err))
		}
	}
	var err error
	o.PortInUse, err = portInUse(f.Port)
	unread("UDP sockets", err)
	names := map[int]string{}
	o.Links, err = observeLinks(names)
	unread("interfaces", err)
	o.Rules, err = observeRules()
	unread("routing rules", err)
	unread("routes", o.observeRoutes(&f, names))
	o.Underlay = underlay(f.Device)
	o.Chains, err = observeChains(names)
	if errors.Is(err, errNFTables) {
		o.NFTables = err.Error()
	} else {
		unread("nftables", err)
	}
	return o
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ipv6Off reports whether IPv6 is off on the device, or will be when it is made.
func ipv6Off(device string) bool {
	if !exists("/proc/sys/net/ipv6") {
		return true
	}
	off := sysctl.Number("net/ipv6/conf/" + device + "/disable_ipv6")
	if off < 0 {
		off = sysctl.Number("net/ipv6/conf/default/disable_ipv6")
	}
	return off == 1
}

// legacy reports whether there are filter rules of the iptables that is not built on nftables.
// Reading the rules themselves could make the kernel load modules.
func legacy() bool {
	for _, name := range []string{"/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"} {
		tables, err := os.ReadFile(name)
		if err == nil && slices.Contains(strings.Fields(string(tables)), "filter") {
			return true
		}
	}
	return false
}

// portInUse reports whether a UDP socket has a port, including sockets of the kernel.
func portInUse(port int) (bool, error) {
	for _, name := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
		used, err := portIn(name, port)
		if used || err != nil && !errors.Is(err, os.ErrNotExist) {
			return used, err
		}
	}
	return false, nil
}

func portIn(name string, port int) (bool, error) {
	file, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		_, text, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(text, 16, 16); err == nil && int(n) == port {
			return true, nil
		}
	}
	return false, lines.Err()
}

// retryDump lists again when the kernel reports that the list changed meanwhile.
func retryDump(list func() error) (err error) {
	for range 5 {
		if err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

func observeLinks(names map[int]string) ([]Link, error) {
	var links []netlink.Link
	var addrs []netlink.Addr
	if err := retryDump(func() (err error) { links, err = netlink.LinkList(); return err }); err != nil {
		return nil, err
	}
	if err := retryDump(func() (err error) { addrs, err = netlink.AddrList(nil, netlink.FAMILY_ALL); return err }); err != nil {
		return nil, err
	}
	everywhere := sysctl.Number("net/ipv4/conf/all/rp_filter")
	var out []Link
	for _, link := range links {
		a := link.Attrs()
		names[a.Index] = a.Name
		l := Link{Name: a.Name, Kind: link.Type(), Up: a.Flags&net.FlagUp != 0, ReversePath: max(everywhere, sysctl.Number("net/ipv4/conf/"+a.Name+"/rp_filter"))}
		for _, addr := range addrs {
			if addr.LinkIndex == a.Index {
				l.Addresses = append(l.Addresses, prefixOf(addr.IPNet))
			}
		}
		if isHardware(l) {
			l.Programs = programs(link)
		}
		out = append(out, l)
	}
	return out, nil
}

// programs lists the eBPF programs of the classic kind that traffic control runs on an
// interface. Those of tcx are visible only to processes that may call bpf(2).
func programs(link netlink.Link) []string {
	var out []string
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(link, parent)
		if err != nil {
			continue // there is no such queue
		}
		for _, filter := range filters {
			if p, ok := filter.(*netlink.BpfFilter); ok && len(out) < maxPrograms {
				name, _, _ := strings.Cut(p.Name, ":")
				out = append(out, name)
			}
		}
	}
	return out
}

// prefixOf returns an address with its network; invalid if n is nil or malformed.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}
	}
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}

func observeRules() ([]RoutingRule, error) {
	var out []RoutingRule
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		var rules []netlink.Rule
		if err := retryDump(func() (err error) { rules, err = netlink.RuleList(family); return err }); err != nil {
			if family == netlink.FAMILY_V6 && errors.Is(err, unix.EAFNOSUPPORT) {
				continue
			}
			return nil, err
		}
		for _, r := range rules {
			rule := RoutingRule{
				Six: family == netlink.FAMILY_V6, Priority: max(r.Priority, 0), Protocol: int(r.Protocol), Not: r.Invert,
				Source: prefixOf(r.Src), Destination: prefixOf(r.Dst), In: r.IifName, Out: r.OifName, Mark: r.Mark, Table: r.Table,
				Narrow: r.Tos != 0 || r.TunID != 0 || r.Dport != nil || r.Sport != nil || r.IPProto != 0 || r.UIDRange != nil || r.Flow > 0,
				// The library does not read the action of a rule without a table.
				Refuses:  r.Table == unix.RT_TABLE_UNSPEC && r.Goto < 0,
				Suppress: r.SuppressPrefixlen,
			}
			if r.Mask != nil {
				rule.Mask = *r.Mask
			}
			out = append(out, rule)
		}
	}
	return out, nil
}

// observeRoutes keeps the relevant routes: defaults, those that overlap aliases, those
// inside pods' prefixes, and those to single pods.
func (o *Observed) observeRoutes(f *Fabric, names map[int]string) error {
	reach, near := f.reach(), slices.Concat(f.OwnPods, f.Pods)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := retryDump(func() error {
			o.Routes = slices.DeleteFunc(o.Routes, func(r Route) bool { return r.Prefix.Addr().Is6() == (family == netlink.FAMILY_V6) })
			o.Pods = slices.DeleteFunc(o.Pods, func(a netip.Addr) bool { return a.Is6() == (family == netlink.FAMILY_V6) })
			return netlink.RouteListFilteredIter(family, &netlink.Route{}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
				route, ok := routeOf(r, family, names)
				if !ok {
					return true
				}
				pod := route.Table == tableMain && !route.Local && route.Prefix.IsSingleIP() && toPods(route.Device)
				if pod && len(o.Pods) < maxRoutes {
					o.Pods = append(o.Pods, route.Prefix.Addr())
				}
				if len(o.Routes) < maxRoutes && (pod || route.isDefault() || overlapsAny(reach, route.Prefix) || slices.ContainsFunc(near, func(p netip.Prefix) bool { return covers(p, route.Prefix) })) {
					o.Routes = append(o.Routes, route)
				}
				return true
			})
		})
		if err != nil && !(family == netlink.FAMILY_V6 && errors.Is(err, unix.EAFNOSUPPORT)) {
			return err
		}
	}
	return nil
}

// routeOf returns a route, and false for one of the fabric or one that neither leads to an interface nor
// refuses packets.
func routeOf(r netlink.Route, family int, names map[int]string) (Route, bool) {
	switch r.Type {
	case unix.RTN_UNICAST, unix.RTN_LOCAL, unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT:
	default:
		return Route{}, false
	}
	if r.Protocol == fabricProtocol {
		return Route{}, false
	}
	out := Route{
		Prefix: prefixOf(r.Dst), Table: r.Table, Device: names[r.LinkIndex], Local: r.Type == unix.RTN_LOCAL,
		Refuses: r.Type != unix.RTN_LOCAL && r.Type != unix.RTN_UNICAST,
	}
	if !out.Prefix.IsValid() {
		any4, any6 := netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		out.Prefix = map[int]netip.Prefix{netlink.FAMILY_V4: any4, netlink.FAMILY_V6: any6}[family]
	}
	return out, true
}

// toPods reports whether an interface leads to one pod, by the names that network plugins use:
// Calico, AWS, Azure, Google and Cilium, and those that keep the kernel's name.
func toPods(name string) bool {
	return slices.ContainsFunc([]string{"cali", "eni", "azv", "gke", "lxc", "veth"}, func(s string) bool { return strings.HasPrefix(name, s) })
}

// underlay returns the MTU of the way to other clusters, the larger one of both families.
func underlay(device string) int {
	most := 0
	// Addresses for documentation: only their routes are looked up.
	for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
		found, err := netlink.RouteGet(net.ParseIP(to))
		if err != nil || len(found) == 0 {
			continue
		}
		link, err := netlink.LinkByIndex(found[0].LinkIndex)
		if err != nil || link.Attrs().Flags&net.FlagLoopback != 0 || link.Attrs().Name == device {
			continue
		}
		mtu := link.Attrs().MTU
		if found[0].MTU > 0 {
			mtu = found[0].MTU
		}
		most = max(most, mtu)
	}
	return most
}
