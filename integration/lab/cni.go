package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Paths inside a node's root.
const (
	cniConfigFile  = "/etc/cni/net.d/10-lab.conflist"
	flannelConfig  = "/etc/kube-flannel/net-conf.json"
	flannelSubnet  = "/run/flannel/subnet.env"
	flannelKubeCfg = nodeConfig + "/flannel.kubeconfig"
)

// cniConfig is the node's CNI configuration, unless its plugin writes that itself.
func (s nodeSpec) cniConfig() m {
	if len(s.Node.Blocks) > 0 {
		return cniList(s.pointToPoint())
	}
	var ranges [][]m
	for _, p := range s.Node.PodCIDRs() {
		ranges = append(ranges, []m{{"subnet": p.String()}})
	}
	return cniList(bridge(ranges))
}

func cniList(main m) m {
	return m{
		"cniVersion": "1.0.0",
		"name":       "lab",
		"plugins":    []m{main, {"type": "portmap", "backend": "nftables", "capabilities": m{"portMappings": true}}},
	}
}

func bridge(ranges [][]m) m {
	return m{
		"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
		"ipMasq": false, // masquerade() or flannel does it for all nodes' pods alike
		"ipam":   hostLocal(ranges),
	}
}

// hostLocal gives a pod an address of each set of ranges.
func hostLocal(ranges [][]m) m {
	return m{"type": "host-local", "ranges": ranges, "dataDir": "/run/cni/networks"}
}

// pointToPoint gives each pod a route of its own, as there is no bridge that could have
// several prefixes. host-local goes round its ranges from first to last: the first block
// has two addresses left, then come those that are borrowed, then the other block. So few
// pods are enough to have some of each.
func (s nodeSpec) pointToPoint() m {
	var ranges [][]m
	var routes []m
	for _, p := range s.Cluster.PodCIDRs() {
		own := NodePlan{Blocks: within(s.Node.Blocks, p), Borrowed: slices.DeleteFunc(slices.Clone(s.Node.Borrowed), func(a netip.Addr) bool { return !p.Contains(a) })}
		ranges = append(ranges, own.ranges())
		routes = append(routes, m{"dst": netip.PrefixFrom(unspecified(p.Addr()), 0).String()})
	}
	ipam := hostLocal(ranges)
	ipam["routes"] = routes
	return m{"type": "ptp", "ipam": ipam}
}

// ranges are host-local's for blocks of one family.
func (n NodePlan) ranges() []m {
	first := n.Blocks[0]
	start := first.Addr().Next().Next() // the first address is the pods' gateway
	ranges := []m{{"subnet": first.String(), "rangeStart": start.String(), "rangeEnd": start.Next().String()}}
	if k := len(n.Borrowed); k > 0 {
		owner := netip.PrefixFrom(n.Borrowed[0], first.Bits()).Masked()
		ranges = append(ranges, m{
			"subnet": owner.String(), "rangeStart": n.Borrowed[0].String(), "rangeEnd": n.Borrowed[k-1].String(),
			"gateway": gatewayOf(n.Borrowed).String(), // that of the block is an address of its owner
		})
	}
	for _, b := range n.Blocks[1:] {
		ranges = append(ranges, m{"subnet": b.String()})
	}
	return ranges
}

// within are those of the prefixes that lie in p.
func within(prefixes []netip.Prefix, p netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(q netip.Prefix) bool { return !p.Overlaps(q) })
}

// unspecified is the unspecified address in the family of a.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// masquerade is the rule set that gives pods the node's address when they talk to anything that is
// not a pod of their cluster, as network plugins do: also through interfaces that are added later.
func (s nodeSpec) masquerade() string {
	var b strings.Builder
	for _, p := range s.Cluster.PodCIDRs() {
		family, multicast := "ip", "224.0.0.0/4"
		if p.Addr().Is6() {
			family, multicast = "ip6", "ff00::/8"
		}
		fmt.Fprintf(&b, `table %[1]s lab-node {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    %[1]s saddr %[2]s %[1]s daddr != %[2]s %[1]s daddr != %[3]s masquerade
  }
}
`, family, p, multicast)
	}
	return b.String()
}

// podRoute is a way to pods of another node, from a node or the router between subnets.
type podRoute struct {
	To  netip.Prefix
	Via netip.Addr
}

// routes are the ways to the pods of the cluster's other nodes: the node itself, or the
// router if it is on another subnet.
func (s nodeSpec) routes() []podRoute {
	if s.Options.CNI == FlannelCNI {
		return nil // it makes its own
	}
	var all []podRoute
	for _, n := range s.Cluster.Nodes {
		if n.Name == s.Node.Name {
			continue
		}
		for _, p := range n.reached() {
			via := n.addressLike(p.Addr())
			if n.Subnet != s.Node.Subnet {
				via = s.Cluster.lans()[s.Node.Subnet].gatewayLike(p.Addr())
			}
			all = append(all, podRoute{To: p, Via: via})
		}
	}
	return all
}

// blackholes are the prefixes of the node's own pods that are not on a bridge: what is
// sent to an address that no pod has ends here.
func (s nodeSpec) blackholes() []netip.Prefix {
	if len(s.Node.Blocks) == 0 {
		return nil
	}
	return s.Node.Pods()
}

// flannelNetwork is flannel's own configuration. Its network is the cluster's.
func (s nodeSpec) flannelNetwork() m {
	return m{
		"Network":        s.Cluster.PodCIDR.String(),
		"EnableNFTables": s.Options.Proxy != IPTablesProxy,
		"Backend":        m{"Type": "vxlan"},
	}
}

func (s nodeSpec) flannel() process {
	return process{
		Name: "flannel",
		Args: []string{
			nodeBin + "/flannel/flannel", "--kubeconfig-file=" + flannelKubeCfg, "--net-config-path=" + flannelConfig,
			"--iface=eth0", "--subnet-file=" + flannelSubnet,
		},
		Env:   []string{"NODE_NAME=" + s.Node.Name},
		After: []condition{{Ready: flannelKubeCfg, Path: "/api/v1/nodes/" + s.Node.Name}},
	}
}

// flannelCNI is the CNI configuration that flannel's own plugin makes of the file that
// flannel writes when its network is up.
func flannelCNI(subnetEnv string) (m, error) {
	env := map[string]string{}
	for line := range strings.Lines(subnetEnv) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[k] = v
		}
	}
	network, err := netip.ParsePrefix(env["FLANNEL_NETWORK"])
	if err != nil {
		return nil, fmt.Errorf("FLANNEL_NETWORK: %w", err)
	}
	subnet, err := netip.ParsePrefix(env["FLANNEL_SUBNET"]) // the gateway's address in it
	if err != nil {
		return nil, fmt.Errorf("FLANNEL_SUBNET: %w", err)
	}
	mtu, err := strconv.Atoi(env["FLANNEL_MTU"])
	if err != nil {
		return nil, fmt.Errorf("FLANNEL_MTU: %w", err)
	}
	b := bridge([][]m{{{"subnet": subnet.Masked().String()}}})
	b["mtu"] = mtu
	b["ipam"].(m)["routes"] = []m{{"dst": network.String()}}
	return cniList(b), nil
}

// flannelObjects are the rights of flannel's user, as its own manifest has them.
func flannelObjects() []object {
	const rbac, name = "/apis/rbac.authorization.k8s.io/v1/", "flannel"
	return []object{
		{rbac + "clusterroles/" + name, m{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": m{"name": name},
			"rules": []m{
				{"apiGroups": []string{""}, "resources": []string{"nodes"}, "verbs": []string{"get", "list", "watch"}},
				{"apiGroups": []string{""}, "resources": []string{"nodes/status"}, "verbs": []string{"patch"}},
			},
		}},
		{rbac + "clusterrolebindings/" + name, m{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": m{"name": name},
			"roleRef":  m{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []m{{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}},
		}},
	}
}
