package mdns

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// An iface is a network interface as it is used here.
type iface struct {
	index int
	name  string
	mtu   int
	// prefixes are its addresses with their networks.
	prefixes []netip.Prefix
}

// virtual are beginnings of names of interfaces that lead to containers, virtual
// machines or tunnels: nobody there is a neighbour.
func virtual() []string {
	return []string{
		"docker", "veth", "cni", "flannel", "cali", "cilium", "lxc", "br-", "virbr", "vnet", "podman", "kube-", "weave",
		"nodelocaldns", "tun", "tap", "wg", "tailscale", "ppp", "entente", "liqo", "dummy", "ifb", "gre", "sit", "vxlan", "geneve",
	}
}

// DefaultInterface takes interfaces of a LAN: those whose names do not say that they
// lead to containers, virtual machines or tunnels.
func DefaultInterface(name string) bool {
	return !slices.ContainsFunc(virtual(), func(p string) bool { return strings.HasPrefix(name, p) })
}

// NamedInterfaces takes the interfaces of a list. A name that ends in * stands for all
// that begin so. An empty list is [DefaultInterface].
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
			continue // it has just gone
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

// available are the families that the interface has addresses of.
func (f iface) available() family {
	var out family
	for _, p := range f.prefixes {
		out |= familyOf(p.Addr())
	}
	return out
}

// published are what is published of the interface: of IPv6, link-local ones are left
// out if there are others.
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

// room is the most bytes of a packet that fits the interface (RFC 6762 section 17).
func (f iface) room() int { return max(min(f.mtu, maxPacket), 576) - headersIP }

// onLink says whether a packet is from a neighbour (RFC 6762 section 11). What was
// sent to the group is, whatever its source: routers do not forward it, and networks
// with several prefixes on one link need it. What was sent to an address of this host
// may have come from anywhere, unless its source is of a prefix of the interface.
func (f iface) onLink(from netip.Addr, multicast bool) bool {
	if multicast || from.IsLinkLocalUnicast() {
		return true
	}
	return slices.ContainsFunc(f.prefixes, func(p netip.Prefix) bool { return p.Masked().Contains(from.WithZone("")) })
}
