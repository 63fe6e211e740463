package lab

import (
	"fmt"
	"net/netip"
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
	return cniList(bridge([]m{{"subnet": s.Node.PodCIDR.String()}}))
}

func cniList(main m) m {
	return m{
		"cniVersion": "1.0.0",
		"name":       "lab",
		"plugins":    []m{main, {"type": "portmap", "backend": "nftables", "capabilities": m{"portMappings": true}}},
	}
}

func bridge(ranges []m) m {
	return m{
		"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
		"ipMasq": false, // masquerade() or flannel does it for all nodes' pods alike
		"ipam":   hostLocal(ranges),
	}
}

func hostLocal(ranges []m) m {
	return m{"type": "host-local", "ranges": [][]m{ranges}, "dataDir": "/run/cni/networks"}
}

// pointToPoint gives each pod a /32 route, as there is no bridge that could have several
// prefixes. host-local goes round its ranges from first to last: the first block has two
// addresses left, then come those that are borrowed, then the other block. So few pods
// are enough to have some of each.
func (s nodeSpec) pointToPoint() m {
	n := s.Node
	first := n.Blocks[0]
	start := first.Addr().Next().Next() // the first address is the pods' gateway
	ranges := []m{{"subnet": first.String(), "rangeStart": start.String(), "rangeEnd": start.Next().String()}}
	if k := len(n.Borrowed); k > 0 {
		lender := netip.PrefixFrom(n.Borrowed[0], first.Bits()).Masked()
		ranges = append(ranges, m{"subnet": lender.String(), "rangeStart": n.Borrowed[0].String(), "rangeEnd": n.Borrowed[k-1].String()})
	}
	for _, b := range n.Blocks[1:] {
		ranges = append(ranges, m{"subnet": b.String()})
	}
	ipam := hostLocal(ranges)
	ipam["routes"] = []m{{"dst": "0.0.0.0/0"}}
	return m{"type": "ptp", "ipam": ipam}
}

// masquerade is the rule set that gives pods the node's address when they speak
// to anything that is not a pod of their cluster, as network plugins do: also
// through interfaces that somebody adds later.
func (s nodeSpec) masquerade() string {
	return fmt.Sprintf(`table ip lab-node {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr %[1]s ip daddr != %[1]s ip daddr != 224.0.0.0/4 masquerade
  }
}
`, s.Cluster.PodCIDR)
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
		via := n.Address
		if n.Subnet != s.Node.Subnet {
			via = s.Cluster.lans()[s.Node.Subnet].Gateway
		}
		for _, p := range n.Pods() {
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
	b := bridge([]m{{"subnet": subnet.Masked().String()}})
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
