package tunnel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// nodeRoutes returns the routes of the node's main table that the fabric did not make.
func nodeRoutes(device string) ([]plan.NodeRoute, error) {
	links, err := retryDump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	kinds := map[int]string{}
	for _, l := range links {
		if l.Attrs().Name != device && l.Type() != "device" {
			kinds[l.Attrs().Index] = l.Type()
		}
	}
	addresses := map[int][]netip.Addr{}
	have, err := retryDump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, h := range have {
		if a, ok := netip.AddrFromSlice(h.IP); ok {
			addresses[h.LinkIndex] = append(addresses[h.LinkIndex], a.Unmap())
		}
	}
	routes, err := retryDump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of the main table: %w", err)
	}
	uplinks := map[int]bool{}
	for _, r := range routes {
		if isDefault(r) {
			uplinks[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				uplinks[hop.LinkIndex] = true
			}
		}
	}
	var out []plan.NodeRoute
	for _, r := range routes {
		if isDefault(r) || r.Protocol == protocolNumber || r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_BLACKHOLE {
			continue
		}
		out = append(out, plan.NodeRoute{
			Prefix: prefixOf(*r.Dst), Blackhole: r.Type == unix.RTN_BLACKHOLE, Gateway: r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0,
			Kind: kinds[r.LinkIndex], Uplink: uplinks[r.LinkIndex], Addresses: addresses[r.LinkIndex],
		})
	}
	return out, nil
}

func isDefault(r netlink.Route) bool { return r.Dst == nil || prefixOf(*r.Dst).Bits() == 0 }
