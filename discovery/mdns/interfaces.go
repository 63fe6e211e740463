package mdns

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// An iface is a network interface that is used here.
type iface struct {
	index int
	name  string
	mtu   int
	// prefixes are its addresses with their networks.
	prefixes []netip.Prefix
}

// virtual returns prefixes of the names of interfaces to containers, virtual machines or tunnels,
// where there are no neighbours.
func virtual() []string {
	return []string{
		"docker", "veth", "cni", "flannel", "cali", "cilium", "lxc", "br-", "virbr", "vnet", "podman", "kube-", "weave",
		"nodelocaldns", "tun", "tap", "wg", "tailscale", "ppp", "entente", "liqo", "dummy", "ifb", "gre", "sit", "vxlan", "geneve",
	}
}

// DefaultInterface selects interfaces of LANs: those whose names are not those of interfaces to
// containers, virtual machines or tunnels.
func DefaultInterface(name string) bool {
	return !slices.ContainsFunc(virtual(), func(p string) bool { return strings.HasPrefix(name, p) })
}

// NamedInterfaces selects the interfaces of a list. A trailing * matches any suffix. An empty list
// means [DefaultInterface].
func NamedInterfaces(list []string) func(name string) bool {
	if len(list) == 0 {
		return DefaultInterface
	}
	return func(name string) bool {
		return slices.ContainsFunc(list, func(p string) bool {
			begin, many := strings.CutSuffix(p, "*")
			return many && strings.HasPrefix(name, begin) || p == name
		})
	}
}

// listInterfaces returns the interfaces that are up, can multicast, have addresses and
// are wanted, in the order of their indexes.
func listInterfaces(want func(name string) bool) ([]iface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []iface
	for _, i := range all {
		const need = net.FlagUp | net.FlagMulticast | net.FlagRunning
		if i.Flags&need != need || i.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0 || !want(i.Name) {
			continue
		}
		list, err := i.Addrs()
		if err != nil {
			continue // it was just removed
		}
		f := iface{index: i.Index, name: i.Name, mtu: i.MTU}
		for _, a := range list {
			if n, ok := a.(*net.IPNet); ok {
				if p, err := netip.ParsePrefix(n.String()); err == nil {
					f.prefixes = append(f.prefixes, p)
				}
			}
		}
		if len(f.prefixes) > 0 {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b iface) int { return cmp.Compare(a.index, b.index) })
	return out[:min(len(out), maxInterfaces)], nil
}

// available returns the families of which the interface has addresses.
func (f iface) available() family {
	var out family
	for _, p := range f.prefixes {
		out |= familyOf(p.Addr())
	}
	return out
}

// published returns the addresses to publish: without IPv6 link-local ones if there are other IPv6
// addresses.
func (f iface) published() []netip.Addr {
	var out, local []netip.Addr
	for _, p := range f.prefixes {
		a := p.Addr().Unmap()
		if a.Is6() && a.IsLinkLocalUnicast() {
			local = append(local, a)
		} else {
			out = append(out, a)
		}
	}
	if !slices.ContainsFunc(out, netip.Addr.Is6) {
		out = append(out, local...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// room is how many bytes of payload fit a packet of the interface (RFC 6762 section 17).
func (f iface) room() int { return max(min(f.mtu, maxPacket), 576) - headersIP }

// onLink reports whether a packet is from a neighbour (RFC 6762 section 11). A packet to the group
// is, whatever its source: routers do not forward it, and links with several prefixes need it. A
// packet to an address of this host may be from anywhere, unless its source is in a prefix of the
// interface.
func (f iface) onLink(from netip.Addr, multicast bool) bool {
	if multicast || from.IsLinkLocalUnicast() {
		return true
	}
	return slices.ContainsFunc(f.prefixes, func(p netip.Prefix) bool { return p.Masked().Contains(from.WithZone("")) })
}
