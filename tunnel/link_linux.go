package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// errNoDevice says that there is no device yet.
var errNoDevice = errors.New("the kernel has no WireGuard and the tunnel process has created no device yet: check the log of container wireguard of this pod")

// ensureLink finds the device, or creates one if the kernel can.
func ensureLink(name string, noKernel bool) (netlink.Link, Backend, error) {
	link, err := netlink.LinkByName(name)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		if noKernel {
			return nil, "", errNoDevice
		}
		if err := userspace.AddKernelDevice(name); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				return nil, "", errNoDevice
			}
			return nil, "", err
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, "", fmt.Errorf("find interface %s: %w", name, err)
	}
	switch link.Type() {
	case "wireguard":
		return link, BackendKernel, nil
	case "tuntap", "tun":
		return link, BackendUserspace, nil
	default:
		return nil, "", fmt.Errorf("interface %s exists and is of type %s, not ours: remove it or configure another name", name, link.Type())
	}
}

// ensureUp sets MTU and state.
func ensureUp(link netlink.Link, mtu int) (changed bool, err error) {
	a := link.Attrs()
	if a.MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return false, fmt.Errorf("set MTU %d of %s: %w", mtu, a.Name, err)
		}
		changed = true
	}
	if a.Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return changed, fmt.Errorf("set %s up: %w", a.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// ensureAddresses makes the overlay address the only one of the device, besides
// link-local ones.
func ensureAddresses(link netlink.Link, overlay netip.Addr) (changed bool, err error) {
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	want := netlink.Addr{IPNet: &net.IPNet{IP: overlay.AsSlice(), Mask: net.CIDRMask(128, 128)}, Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE}
	found := false
	for _, a := range have {
		if a.IPNet.String() == want.IPNet.String() {
			found = true
			continue
		}
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return changed, fmt.Errorf("remove address %v from %s: %w", a.IPNet, link.Attrs().Name, err)
		}
		changed = true
	}
	if found {
		return changed, nil
	}
	if err := netlink.AddrAdd(link, &want); err != nil && !errors.Is(err, unix.EEXIST) {
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			err = fmt.Errorf("%w: IPv6 is off on this node; set net.ipv6.conf.all.disable_ipv6=0 (only the tunnel's own addresses are IPv6, the network need not be)", err)
		}
		return changed, fmt.Errorf("add overlay address to %s: %w", link.Attrs().Name, err)
	}
	return true, nil
}

// ownAddresses are addresses of the node inside its pods' prefixes, the first
// of each family, on other interfaces than the tunnel's.
func ownAddresses(have []nodeAddress, pods []netip.Prefix) []netip.Addr {
	var inside []netip.Addr
	for _, a := range have {
		if !a.device && !a.IsLinkLocalUnicast() && !a.IsLoopback() &&
			slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(a.Addr) }) {
			inside = append(inside, a.Addr)
		}
	}
	slices.SortFunc(inside, netip.Addr.Compare)
	var first []netip.Addr
	for _, a := range inside {
		if !slices.ContainsFunc(first, func(f netip.Addr) bool { return f.BitLen() == a.BitLen() }) {
			first = append(first, a)
		}
	}
	return first
}

// routeMTU returns the MTU of the route to an address; zero if there is no route.
func routeMTU(to netip.Addr) int {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0
	}
	if routes[0].MTU != 0 {
		return routes[0].MTU
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil || link.Attrs().Flags&net.FlagLoopback != 0 {
		return 0
	}
	return link.Attrs().MTU
}

// deviceMTU returns the MTU of a device above an underlay of IPv4 or IPv6.
func deviceMTU(underlay int) int { return min(max(underlay-wireGuardOverhead, probe.MinMTU), maxMTU) }

// Clean removes all that the fabric made in this network namespace:
// routes and rules by their protocol number, the nftables table and the device by their names. The
// fabric and the tunnel process must have ended, or they make it again. It returns nil if there is
// nothing to remove.
func Clean(cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("clean: %w", err)
	}
	have, routes := ourRoutes()
	if routes == nil {
		_, routes = ensureRoutes(nil, have)
	}
	rules, policy := ourRules()
	if policy == nil {
		_, policy = ensureRules(nil, rules)
	}
	if err := errors.Join(routes, policy, removeLink(cfg.Device), firewall.Remove()); err != nil {
		return fmt.Errorf("clean: %w", err)
	}
	return nil
}

// removeLink deletes the device, if its type is one that the fabric makes.
func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	if t := link.Type(); t != "wireguard" && t != "tuntap" && t != "tun" {
		return fmt.Errorf("interface %s is of type %s, not ours: not removed", name, t)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.As(err, &missing) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}
