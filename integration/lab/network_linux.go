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
	if err := linkAddress("eth0", netip.PrefixFrom(s.Node.Address, s.Cluster.LAN.Bits())); err != nil {
		return err
	}
	if s.Node.Address6.IsValid() {
		if err := linkAddress("eth0", netip.PrefixFrom(s.Node.Address6, s.Cluster.LAN6.Bits())); err != nil {
			return err
		}
	}
	if err := linkUp("eth0"); err != nil {
		return err
	}
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
	if err := route(nil, s.Cluster.Gateway); err != nil {
		return err
	}
	for _, n := range s.Cluster.Nodes {
		if n.Name == s.Node.Name {
			continue
		}
		if err := route(ipNet(n.PodCIDR), n.Address); err != nil {
			return err
		}
	}
	for k, v := range map[string]string{
		"net/ipv4/ip_forward":                "1",
		"net/bridge/bridge-nf-call-iptables": "1",
	} {
		if err := setSysctl(k, v); err != nil {
			return err
		}
	}
	return nft(ctx, s.masquerade())
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
	for k, v := range map[string]string{
		"net/ipv4/ip_forward": "1",
		// A LAN's own traffic does not pass the router.
		"net/bridge/bridge-nf-call-iptables":  "0",
		"net/bridge/bridge-nf-call-ip6tables": "0",
		"net/bridge/bridge-nf-call-arptables": "0",
		// The router must not tell nodes of ways around it.
		"net/ipv4/conf/all/send_redirects": "0",
	} {
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
		if err := linkAddress(s.Name, netip.PrefixFrom(s.Gateway, s.Prefix.Bits())); err != nil {
			return err
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
	return n.apply(ctx, p, Faults{})
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
	return n.run(ctx, delayRules(p, f), "iptables-restore", "--table", "mangle")
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
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.AddrReplace(l, &netlink.Addr{IPNet: ipNet(p)})
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
