package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

const (
	// protocolNumber marks our routes and rules.
	protocolNumber = 141
	// aliasTable has the routes to aliases and overlay addresses, for all
	// packets; returnTable those to the pods of other home nodes, for
	// packets that come out of the device. namesTable has the aliases by which peers call this cluster's
	// addresses: packets from the device are translated before they are routed, so
	// they get there only while the translation is missing, and end there.
	aliasTable  = 14100
	returnTable = 14101
	namesTable  = 14102
	// returnPriority, aliasPriority and namesPriority are those of our rules: behind the
	// local table and the rules that CNIs put right behind it, before the main
	// table and the rules by which CNIs send pods' traffic elsewhere. An alias by which a peer calls
	// this cluster may also be the alias of a peer here: so names come last.
	returnPriority = 140
	aliasPriority  = 141
	namesPriority  = 142
	// routeMetric is that of the routes into the device, lastMetric that of
	// the unreachable routes that take over when the device is gone.
	routeMetric = 100
	lastMetric  = 4000000000
)

// routeKey is the part of a route that the fabric compares.
type routeKey struct {
	prefix netip.Prefix
	table  int
	kind   int
	metric int
	link   int
	mtu    int
	source netip.Addr
}

// desiredRoutes lists the routes of a layout, without a device only the
// unreachable ones. sizes is, by overlay address, the size of packets that pass.
func desiredRoutes(l plan.Layout, link int, sizes map[netip.Addr]int) []routeKey {
	var want []routeKey
	for _, r := range l.Routes {
		table := aliasTable
		if r.Return {
			table = returnTable
		}
		if link != 0 {
			mtu := sizes[r.Way]
			if size := sizes[r.Entry]; size > 0 && (mtu == 0 || size < mtu) {
				mtu = size
			}
			if r.Prefix.Addr().Is6() && mtu > 0 {
				mtu = max(mtu, probe.MinMTU) // the status reports a smaller path MTU
			}
			want = append(want, routeKey{prefix: r.Prefix, table: table, kind: unix.RTN_UNICAST, metric: routeMetric, link: link, mtu: mtu, source: r.Source})
		}
		if !r.Return && !r.Direct { // the whole alias has one
			want = append(want, routeKey{prefix: r.Prefix, table: table, kind: unix.RTN_UNREACHABLE, metric: lastMetric})
		}
	}
	for _, c := range l.Closed {
		want = append(want, routeKey{prefix: c, table: aliasTable, kind: unix.RTN_UNREACHABLE, metric: lastMetric})
	}
	for _, n := range l.Names {
		for _, p := range n.Prefixes {
			want = append(want, routeKey{prefix: p, table: namesTable, kind: unix.RTN_UNREACHABLE, metric: lastMetric})
		}
	}
	return want
}

// lastMTUs returns, by overlay address, the MTU of the routes in the kernel: what was
// known when this process began.
func lastMTUs(l plan.Layout, have []routeKey) map[netip.Addr]int {
	sizes := make(map[netip.Prefix]int, len(have))
	for _, h := range have {
		if was, ok := sizes[h.prefix]; h.mtu > 0 && (!ok || h.mtu < was) {
			sizes[h.prefix] = h.mtu
		}
	}
	out := map[netip.Addr]int{}
	for _, r := range l.Routes {
		if mtu, ok := sizes[r.Prefix]; ok && r.Way.IsValid() {
			if was, ok := out[r.Way]; !ok || mtu < was {
				out[r.Way] = mtu
			}
		}
	}
	return out
}

// ensureRoutes makes the routes with our protocol number the desired ones.
// If one cannot be added the others are added nevertheless.
func ensureRoutes(want, have []routeKey) (changed bool, err error) {
	var errs []error
	had, desired, placed := map[routeKey]bool{}, map[routeKey]bool{}, map[routeKey]bool{}
	for _, h := range have {
		had[h] = true
	}
	for _, w := range want {
		desired[w], placed[w.place()] = true, true
	}
	for _, w := range want {
		if had[w] {
			continue
		}
		changed, had[w] = true, true
		if err := netlink.RouteReplace(w.route()); err != nil {
			errs = append(errs, fmt.Errorf("add route to %v: %w", w.prefix, err))
		}
	}
	for _, h := range have {
		if desired[h] || placed[h.place()] {
			continue
		}
		changed = true
		if err := netlink.RouteDel(h.route()); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route to %v: %w", h.prefix, err))
		}
	}
	return changed, errors.Join(errs...)
}

// place is the key by which the kernel has one route: prefix, table and metric. A route that is
// added replaces the one in its place.
func (k routeKey) place() routeKey {
	return routeKey{prefix: k.prefix, table: k.table, metric: k.metric}
}

func ourRoutes() ([]routeKey, error) {
	var keys []routeKey
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retryDump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Protocol: protocolNumber}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			k := routeKey{table: r.Table, kind: r.Type, metric: r.Priority, link: r.LinkIndex, mtu: r.MTU}
			if r.Dst != nil {
				k.prefix = prefixOf(*r.Dst)
			}
			if r.Type != unix.RTN_UNICAST {
				k.link = 0 // IPv6 shows the loopback interface here
			}
			if a, ok := netip.AddrFromSlice(r.Src); ok {
				k.source = a.Unmap()
			}
			keys = append(keys, k)
		}
	}
	return keys, nil
}

func (k routeKey) route() *netlink.Route {
	dst := ipNet(k.prefix)
	r := &netlink.Route{Dst: &dst, Table: k.table, Type: k.kind, Priority: k.metric, LinkIndex: k.link, MTU: k.mtu, Protocol: protocolNumber}
	if k.kind == unix.RTN_UNICAST && k.prefix.Addr().Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	if k.source.IsValid() {
		r.Src = net.IP(k.source.AsSlice())
	}
	return r
}

// ruleKey is the part of a routing rule that the fabric compares.
type ruleKey struct {
	family, priority, table int
	iif                     string
}

func desiredRules(device string) []ruleKey {
	var want []ruleKey
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		want = append(want,
			ruleKey{family: family, priority: returnPriority, table: returnTable, iif: device},
			ruleKey{family: family, priority: aliasPriority, table: aliasTable},
			ruleKey{family: family, priority: namesPriority, table: namesTable, iif: device})
	}
	return want
}

// ensureRules makes the rules with our protocol number the desired ones,
// each once.
func ensureRules(want, have []ruleKey) (changed bool, err error) {
	var errs []error
	for _, w := range want {
		if slices.Contains(have, w) {
			continue
		}
		changed = true
		if err := netlink.RuleAdd(w.rule()); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add routing rule %d: %w", w.priority, err))
		}
	}
	seen := map[ruleKey]bool{}
	for _, h := range have {
		if slices.Contains(want, h) && !seen[h] {
			seen[h] = true
			continue
		}
		changed = true
		if err := netlink.RuleDel(h.rule()); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove routing rule %d: %w", h.priority, err))
		}
	}
	return changed, errors.Join(errs...)
}

func ourRules() ([]ruleKey, error) {
	var keys []ruleKey
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := retryDump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		for _, r := range rules {
			if r.Protocol == protocolNumber {
				keys = append(keys, ruleKey{family: family, priority: r.Priority, table: r.Table, iif: r.IifName})
			}
		}
	}
	return keys, nil
}

func (k ruleKey) rule() *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.IifName, r.Protocol = k.family, k.priority, k.table, k.iif, protocolNumber
	return r
}

// retryDump lists again when the kernel reports that the list changed meanwhile.
func retryDump[T any](list func() ([]T, error)) (out []T, err error) {
	for range 5 {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}
