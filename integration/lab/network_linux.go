package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nodeNetwork configures the network namespace of a node, from inside: its
// loopback, its uplink eth0, the ways to the pods of the cluster's other nodes
// and the pods' masquerade.
func nodeNetwork(ctx context.Context, s nodeSpec) error {
	if err := linkUp("lo"); err != nil {
		return err
	}
	// Before eth0 is up, so that it has a link-local address then.
	if err := setSysctl("net/ipv6/conf/all/disable_ipv6", "0"); err != nil {
		return err
	}
	lan := s.Cluster.lans()[s.Node.Subnet]
	for _, a := range s.Node.Addresses() {
		if err := linkAddress("eth0", netip.PrefixFrom(a, lan.prefixLike(a).Bits())); err != nil {
			return err
		}
	}
	if err := linkUp("eth0"); err != nil {
		return err
	}
	if err := s.nodeRoutes(lan); err != nil {
		return err
	}
	settings := map[string]string{
		"net/ipv4/ip_forward":                "1",
		"net/bridge/bridge-nf-call-iptables": "1",
	}
	if s.families().has6() {
		settings["net/ipv6/conf/all/forwarding"] = "1"
		settings["net/bridge/bridge-nf-call-ip6tables"] = "1"
	}
	for k, v := range settings {
		if err := setSysctl(k, v); err != nil {
			return err
		}
	}
	if s.Options.CNI == FlannelCNI {
		return nil
	}
	return nft(ctx, s.masquerade())
}

// nodeRoutes are the node's: to elsewhere, to the pods of other nodes, and to addresses
// of its own that no pod has.
func (s nodeSpec) nodeRoutes(lan Segment) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	route := func(to *net.IPNet, via netip.Addr) error {
		r := &netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: to, Gw: via.AsSlice()}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route %v via %v: %w", to, via, err)
		}
		return nil
	}
	for _, g := range lan.gateways() {
		if err := route(nil, g); err != nil {
			return err
		}
	}
	for _, r := range s.routes() {
		if err := route(ipNet(r.To), r.Via); err != nil {
			return err
		}
	}
	for _, p := range s.blackholes() {
		// Behind the route to a pod that has a borrowed address, which for IPv6 has the priority 1024.
		r := &netlink.Route{Dst: ipNet(p), Type: unix.RTN_BLACKHOLE, Priority: 2048}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("blackhole %v: %w", p, err)
		}
	}
	return nil
}

// internet is the part of the network that belongs to no cluster, made in the
// daemon's own namespace: a bridge for each LAN and the router between them.
type internet struct {
	dir string // for the lock of iptables, which is the machine's otherwise
}

func (n internet) create(ctx context.Context, p Plan) error {
	if err := linkUp("lo"); err != nil {
		return err
	}
	settings := map[string]string{
		"net/ipv4/ip_forward": "1",
		// A LAN's own traffic does not pass the router.
		"net/bridge/bridge-nf-call-iptables":  "0",
		"net/bridge/bridge-nf-call-ip6tables": "0",
		"net/bridge/bridge-nf-call-arptables": "0",
		// The router must not announce paths around it to nodes.
		"net/ipv4/conf/all/send_redirects": "0",
	}
	if p.Options.Families.has6() {
		settings["net/ipv6/conf/all/disable_ipv6"] = "0"
		settings["net/ipv6/conf/all/forwarding"] = "1"
	}
	for k, v := range settings {
		if err := setSysctl(k, v); err != nil {
			return err
		}
	}
	for _, s := range p.Segments {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = s.Name
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if p.Options.LAN == SharedLAN {
			// As a plain switch: multicast goes everywhere.
			bridge.MulticastSnooping = new(bool)
		}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make bridge %s: %w", s.Name, err)
		}
		for _, g := range s.gateways() {
			if err := linkAddress(s.Name, netip.PrefixFrom(g, s.prefixLike(g).Bits())); err != nil {
				return err
			}
		}
		if err := linkUp(s.Name); err != nil {
			return err
		}
	}
	for _, c := range p.Clusters {
		if err := linkAddress("lo", netip.PrefixFrom(c.Public, 32)); err != nil {
			return err
		}
	}
	if p.Options.Subnets > 1 && p.Options.CNI == BridgeCNI {
		for _, c := range p.Clusters {
			if err := n.routePods(c); err != nil {
				return fmt.Errorf("route pods of %s: %w", c.Name, err)
			}
		}
	}
	return n.apply(ctx, p, Faults{})
}

// routePods adds routes to a cluster's pods to the router, only for packets from its nodes: other
// clusters may have the same prefixes.
func (n internet) routePods(c ClusterPlan) error {
	const tables = 1000 // more than any that has a name
	var links []int
	for _, s := range c.lans() {
		link, err := netlink.LinkByName(s.Name)
		if err != nil {
			return err
		}
		links = append(links, link.Attrs().Index)
		for _, p := range c.PodCIDRs() {
			rule := netlink.NewRule()
			rule.IifName, rule.Table, rule.Family = s.Name, tables+c.Index, netlink.FAMILY_V4
			if p.Addr().Is6() {
				rule.Family = netlink.FAMILY_V6
			}
			if err := netlink.RuleAdd(rule); err != nil {
				return fmt.Errorf("rule for %s: %w", s.Name, err)
			}
		}
	}
	for _, node := range c.Nodes {
		for _, p := range node.reached() {
			via := node.addressLike(p.Addr())
			r := &netlink.Route{LinkIndex: links[node.Subnet], Dst: ipNet(p), Gw: via.AsSlice(), Table: tables + c.Index}
			if err := netlink.RouteReplace(r); err != nil {
				return fmt.Errorf("route %v via %v: %w", p, via, err)
			}
		}
	}
	return nil
}

// attach gives the process pid, a node's first or a host's, its eth0.
func (n internet) attach(lan, uplink string, pid int) error {
	bridge, err := netlink.LinkByName(lan)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", lan, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = uplink
	attrs.MasterIndex = bridge.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make link %s: %w", uplink, err)
	}
	return linkUp(uplink)
}

// detach removes the link of a node or a host if it is still there: the kernel takes
// a moment to remove it along with the namespace.
func (n internet) detach(uplink string) error {
	link, err := netlink.LinkByName(uplink)
	if err != nil {
		if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
			return nil
		}
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		var gone netlink.LinkNotFoundError
		if _, again := netlink.LinkByName(uplink); errors.As(again, &gone) {
			return nil
		}
		return fmt.Errorf("remove link %s: %w", uplink, err)
	}
	return nil
}

// apply replaces the router's rules by those for f.
func (n internet) apply(ctx context.Context, p Plan, f Faults) error {
	if err := nft(ctx, routerRules(p, f)); err != nil {
		return err
	}
	restores := []string{"iptables-restore"}
	if p.Options.Families.has6() {
		restores = append(restores, "ip6tables-restore")
	}
	for _, restore := range restores {
		if err := n.run(ctx, delayRules(p, f), restore, "--table", "mangle"); err != nil {
			return err
		}
	}
	return nil
}

// forget drops the router's memory of connections, as a router does that is
// switched off and on: what translation they had goes with it.
func (n internet) forget(ctx context.Context) error {
	return n.run(ctx, "", "conntrack", "--flush")
}

func (n internet) run(ctx context.Context, stdin, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(n.dir, "xtables.lock"))
	cmd.Stdin = strings.NewReader(stdin)
	return runQuiet(cmd)
}

// nft applies a rule set, all or nothing.
func nft(ctx context.Context, rules string) error {
	cmd := exec.CommandContext(ctx, "nft", "--file", "-")
	cmd.Stdin = strings.NewReader(rules)
	return runQuiet(cmd)
}

func linkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}

func linkAddress(name string, p netip.Prefix) error {
	flags := 0
	if p.Addr().Is6() {
		flags = unix.IFA_F_NODAD
	}
	l, err := netlink.LinkByName(name)
	if err == nil {
		// The plan makes the address unique: no need to wait for duplicate address detection.
		err = netlink.AddrReplace(l, &netlink.Addr{IPNet: ipNet(p), Flags: flags})
	}
	if err != nil {
		return fmt.Errorf("give link %s address %s: %w", name, p, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// setSysctl writes a setting of this network namespace, if the kernel has it.
func setSysctl(key, value string) error {
	err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644)
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
