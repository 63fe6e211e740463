package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"
)

// Limits of a lab: the address plan has room for no more, and a machine that
// could run more of them is not what the lab is for.
const (
	maxClusters  = 16
	maxNodes     = 32
	maxFakeNodes = 5000
	maxSubnets   = 2
)

// DefaultName is the name of the lab, and the prefix of its clusters' names,
// when none is given.
const DefaultName = "lab"

// CIDRs says whether the clusters of a lab have the same pod and service
// prefixes.
type CIDRs string

const (
	// SameCIDRs gives each cluster the same prefixes: the normal case between unrelated clusters.
	SameCIDRs CIDRs = "same"
	// DistinctCIDRs gives each cluster prefixes of its own.
	DistinctCIDRs CIDRs = "distinct"
)

// LAN says which network the nodes of a lab's clusters are on.
type LAN string

const (
	// SeparateLANs gives each cluster a LAN of its own, with a router between them.
	SeparateLANs LAN = "separate"
	// SharedLAN puts the nodes of all clusters on one LAN, as in an office: what one
	// multicasts all others hear. A second LAN is there for nodes that move.
	SharedLAN LAN = "shared"
)

// CNI is the network plugin of the nodes.
type CNI string

const (
	// BridgeCNI is the plugins bridge and host-local: the lab routes between nodes, and
	// masquerades.
	BridgeCNI CNI = "bridge"
	// FlannelCNI is flannel with its backend vxlan, which masquerades itself.
	FlannelCNI CNI = "flannel"
)

// IPAM says from where pods have their addresses.
type IPAM string

const (
	// NodeIPAM gives pods addresses of their node's podCIDR.
	NodeIPAM IPAM = "node"
	// PoolIPAM gives them addresses of blocks of 64 outside of podCIDRs, two per node, as Calico does: the node has a
	// blackhole route for each block of its own, and a route to each block of another node.
	PoolIPAM IPAM = "pool"
	// SharedPoolIPAM is PoolIPAM, and each node also has two single addresses out of a
	// block of the next node: other nodes have a /32 route to each.
	SharedPoolIPAM IPAM = "shared-pool"
)

// Proxy is the mode of kube-proxy.
type Proxy string

const (
	// NFTablesProxy is kube-proxy's mode nftables.
	NFTablesProxy Proxy = "nftables"
	// IPTablesProxy is kube-proxy's mode iptables. Flannel then uses iptables, too.
	IPTablesProxy Proxy = "iptables"
)

// Options say what lab is wanted.
type Options struct {
	// Name of the lab; default DefaultName. Lower-case letters and digits,
	// at most 12.
	Name string `json:"name"`
	// Clusters is the number of clusters, named NAME-1, NAME-2, …; default 2.
	Clusters int `json:"clusters"`
	// Kubernetes is the minor version of all components of the clusters: 1.37, 1.34, 1.33 or 1.32;
	// default the newest.
	Kubernetes string `json:"kubernetes"`
	// Nodes is the number of nodes of each cluster, named CLUSTER-1, …;
	// default 1. The first one runs the control plane, and pods too.
	Nodes int `json:"nodes"`
	// CIDRs is same or distinct; default same.
	CIDRs CIDRs `json:"cidrs"`
	// Families is ipv4, ipv6 or dual, or a list of them; default ipv4.
	Families Families `json:"families"`
	// LAN is separate or shared; default separate.
	LAN LAN `json:"lan"`
	// Subnets is the number of networks that the nodes of a cluster are on in turn, 1
	// or 2, with the router between them; default 1.
	Subnets int `json:"subnets"`
	// CNI is bridge or flannel; default bridge.
	CNI CNI `json:"cni"`
	// IPAM is node, pool or shared-pool; default node.
	IPAM IPAM `json:"ipam"`
	// NoNodeCIDRs leaves spec.podCIDRs of nodes empty: with the IPAM node, as Cilium's
	// cluster-pool does, which keeps the prefixes of nodes elsewhere.
	NoNodeCIDRs bool `json:"noNodeCIDRs"`
	// Proxy is nftables or iptables; default nftables.
	Proxy Proxy `json:"proxy"`
	// Light leaves kubelets and networks out: etcd, API server, controller
	// manager and scheduler on loopback ports.
	Light bool `json:"light"`
	// FakeNodes is the number of nodes in each cluster that only pretend to
	// run pods, for scale.
	FakeNodes int `json:"fakeNodes"`
	// CheckKubelets makes the API servers check who answers as a kubelet, by the
	// cluster's authority, as hardened clusters do and kubeadm does not.
	CheckKubelets bool `json:"checkKubelets"`
}

var labName = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)

// withDefaults fills in defaults and refuses impossible options.
func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Clusters == 0 {
		o.Clusters = 2
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.CIDRs == "" {
		o.CIDRs = SameCIDRs
	}
	if o.Families == "" {
		o.Families = IPv4Only
	}
	if o.LAN == "" {
		o.LAN = SeparateLANs
	}
	if o.Subnets == 0 {
		o.Subnets = 1
	}
	if o.CNI == "" {
		o.CNI = BridgeCNI
	}
	if o.IPAM == "" {
		o.IPAM = NodeIPAM
	}
	if o.Proxy == "" {
		o.Proxy = NFTablesProxy
	}
	if err := o.checkNetwork(); err != nil {
		return o, err
	}
	if _, err := kubeOf(o.Kubernetes); err != nil {
		return o, err
	}
	switch {
	case !labName.MatchString(o.Name):
		return o, fmt.Errorf("lab name %q: want a lower-case letter and at most 11 more lower-case letters and digits", o.Name)
	case o.Clusters < 1 || o.Clusters > maxClusters:
		return o, fmt.Errorf("%d clusters: want 1 to %d", o.Clusters, maxClusters)
	case o.Nodes < 1 || o.Nodes > maxNodes:
		return o, fmt.Errorf("%d nodes: want 1 to %d", o.Nodes, maxNodes)
	case o.FakeNodes < 0 || o.FakeNodes > maxFakeNodes:
		return o, fmt.Errorf("%d fake nodes: want 0 to %d", o.FakeNodes, maxFakeNodes)
	case o.CIDRs != SameCIDRs && o.CIDRs != DistinctCIDRs:
		return o, fmt.Errorf("CIDRs %q: want %s or %s", o.CIDRs, SameCIDRs, DistinctCIDRs)
	case o.LAN != SeparateLANs && o.LAN != SharedLAN:
		return o, fmt.Errorf("LAN %q: want %s or %s", o.LAN, SeparateLANs, SharedLAN)
	case o.Light && o.LAN == SharedLAN:
		return o, errors.New("a light lab has no nodes, and so no LAN that they share")
	}
	if o.Light {
		o.Nodes = 1
	}
	return o, nil
}

// checkNetwork refuses networks of nodes that cannot be.
func (o Options) checkNetwork() error {
	switch {
	case o.Subnets < 1 || o.Subnets > maxSubnets:
		return fmt.Errorf("%d subnets: want 1 to %d", o.Subnets, maxSubnets)
	case o.CNI != BridgeCNI && o.CNI != FlannelCNI:
		return fmt.Errorf("CNI %q: want %s or %s", o.CNI, BridgeCNI, FlannelCNI)
	case o.IPAM != NodeIPAM && o.IPAM != PoolIPAM && o.IPAM != SharedPoolIPAM:
		return fmt.Errorf("IPAM %q: want %s, %s or %s", o.IPAM, NodeIPAM, PoolIPAM, SharedPoolIPAM)
	case o.Proxy != NFTablesProxy && o.Proxy != IPTablesProxy:
		return fmt.Errorf("proxy %q: want %s or %s", o.Proxy, NFTablesProxy, IPTablesProxy)
	case !o.Families.valid():
		return fmt.Errorf("families %q: want %s, %s or %s, or several of them with commas between", o.Families, IPv4Only, IPv6Only, DualStack)
	case o.Light && (o.Subnets != 1 || o.CNI != BridgeCNI || o.IPAM != NodeIPAM || o.NoNodeCIDRs || o.Proxy != NFTablesProxy || o.Families != IPv4Only):
		return errors.New("a light lab has no nodes whose network could be another")
	case o.Subnets > o.Nodes:
		return fmt.Errorf("%d subnets: want as many nodes, have %d", o.Subnets, o.Nodes)
	case o.Subnets > 1 && o.LAN == SharedLAN:
		return errors.New("several subnets: the clusters share a LAN, so each has one network only")
	case o.Families.has6() && o.LAN == SharedLAN:
		return errors.New("IPv6 is not routed between the LANs of a shared lab: want separate LANs")
	case o.Families.has6() && o.CNI == FlannelCNI:
		return errors.New("flannel runs with IPv4 alone here: want CNI bridge")
	case o.CNI == FlannelCNI && (o.IPAM != NodeIPAM || o.NoNodeCIDRs):
		return errors.New("flannel gives pods addresses of their node's podCIDR: want IPAM node and node CIDRs")
	case o.IPAM == SharedPoolIPAM && o.Nodes < 2:
		return errors.New("a shared pool: want 2 nodes or more, so that one can borrow from the next")
	}
	return nil
}

// Plan is every name and address of a lab, a function of its Options.
type Plan struct {
	Options  Options       `json:"options"`
	Segments []Segment     `json:"segments"`
	Clusters []ClusterPlan `json:"clusters"`
}

// Segment is a LAN: a bridge in the internet's namespace, where the router has the
// addresses Gateway and Gateway6, of the families that it routes.
type Segment struct {
	Name    string       `json:"name"`
	Prefix  netip.Prefix `json:"prefix,omitzero"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
	// Prefix6 is a unique local prefix (RFC 4193); unset if nodes have link-local
	// addresses only.
	Prefix6  netip.Prefix `json:"prefix6,omitzero"`
	Gateway6 netip.Addr   `json:"gateway6,omitzero"`
}

// ClusterPlan is one cluster's share of the Plan.
type ClusterPlan struct {
	Name  string `json:"name"`
	Index int    `json:"index"` // from 1
	// LAN is the prefix that the cluster's nodes share, perhaps with those of others;
	// LANName the bridge that carries it in the internet's namespace.
	LAN     netip.Prefix `json:"lan,omitzero"`
	LANName string       `json:"lanName"`
	LAN6    netip.Prefix `json:"lan6,omitzero"`
	// Gateway and Gateway6 are the router's addresses in the LAN.
	Gateway  netip.Addr `json:"gateway,omitzero"`
	Gateway6 netip.Addr `json:"gateway6,omitzero"`
	// More are the further networks that the cluster's nodes are on.
	More []Segment `json:"more,omitempty"`
	// Public is the IPv4 address under which the cluster appears behind NAT.
	Public netip.Addr `json:"public"`

	// PodCIDR and ServiceCIDR are of the first family, PodCIDR6 and ServiceCIDR6 are set
	// for dual-stack clusters.
	PodCIDR      netip.Prefix `json:"podCIDR"`
	ServiceCIDR  netip.Prefix `json:"serviceCIDR"`
	PodCIDR6     netip.Prefix `json:"podCIDR6,omitzero"`
	ServiceCIDR6 netip.Prefix `json:"serviceCIDR6,omitzero"`
	// APIService and DNSService are the addresses of the Services kubernetes
	// and kube-dns; DNSService6 is the latter's second one in a dual-stack cluster.
	APIService  netip.Addr `json:"apiService"`
	DNSService  netip.Addr `json:"dnsService"`
	DNSService6 netip.Addr `json:"dnsService6,omitzero"`

	Nodes []NodePlan `json:"nodes"`
}

// NodePlan is one node's share of the Plan.
type NodePlan struct {
	Name  string `json:"name"`
	Index int    `json:"index"` // from 1
	// Address is of the first family.
	Address netip.Addr `json:"address"`
	// Address6 is the address in the LAN's IPv6 prefix, if it has one.
	Address6 netip.Addr `json:"address6,omitzero"`
	// Subnet is the network that the node is on: 0 is the cluster's LAN, others are
	// its More.
	Subnet int `json:"subnet,omitempty"`
	// PodCIDR is the node's spec.podCIDR, unless nodes have none there; PodCIDR6 is the
	// second one of its spec.podCIDRs in a dual-stack cluster.
	PodCIDR  netip.Prefix `json:"podCIDR"`
	PodCIDR6 netip.Prefix `json:"podCIDR6,omitzero"`
	// Blocks are the prefixes out of which the node's pods have their addresses, if not
	// those. Borrowed are single addresses out of a block of another node.
	Blocks   []netip.Prefix `json:"blocks,omitempty"`
	Borrowed []netip.Addr   `json:"borrowed,omitempty"`
	// Control is set for the node that runs etcd and the control plane.
	Control bool `json:"control"`
	// Cgroup is the node's cgroup, from each hierarchy's root.
	Cgroup string `json:"cgroup"`
	// Uplink is the internet's end of the node's eth0.
	Uplink string `json:"uplink"`
}

// NewPlan fills in o's defaults and works out the names and addresses of a lab.
func NewPlan(o Options) (Plan, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Options: o, Segments: planSegments(o)}
	for i := 1; i <= o.Clusters; i++ {
		on := p.Segments[:1]
		if o.LAN == SeparateLANs {
			on = p.Segments[(i-1)*o.Subnets : i*o.Subnets]
		}
		p.Clusters = append(p.Clusters, planCluster(o, i, on))
	}
	return p, nil
}

// planSegments are the LANs of each cluster, or one for all and another one to move to.
func planSegments(o Options) []Segment {
	if o.LAN == SharedLAN {
		return []Segment{sharedSegment(1), sharedSegment(2)}
	}
	var all []Segment
	for i := 1; i <= o.Clusters; i++ {
		families := o.Families.of(i)
		for j, suffix := range []string{"", "b"}[:o.Subnets] {
			b := byte(i + 128*j)
			s := Segment{Name: fmt.Sprintf("lan%d%s", i, suffix)}
			if families.has4() {
				s.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, b, 0}), 24)
				s.Gateway = numbered(s.Prefix, 1)
			}
			if families.has6() {
				s.Prefix6 = prefix6(lans6, b, 64)
				s.Gateway6 = numbered(s.Prefix6, 1)
			}
			all = append(all, s)
		}
	}
	return all
}

// sharedSegment is number i of a lab with a shared LAN: 172.30.0.0/16 is the first,
// 172.29.0.0/16 the second one.
func sharedSegment(i int) Segment {
	b := byte(31 - i)
	return Segment{
		Name:    fmt.Sprintf("lan%d", i),
		Prefix:  netip.PrefixFrom(netip.AddrFrom4([4]byte{172, b, 0, 0}), 16),
		Gateway: netip.AddrFrom4([4]byte{172, b, 0, 1}),
		Prefix6: prefix6(sharedLANs6, byte(i), 64),
	}
}

// address is that of machine n of a group: of a cluster's nodes, or of the hosts,
// whose group is 0.
func (s Segment) address(group, n int) (v4, v6 netip.Addr) {
	if s.Prefix.IsValid() {
		a := s.Prefix.Addr().As4()
		if s.Prefix.Bits() < 24 {
			a[2] = byte(group)
		}
		a[3] = byte(n)
		v4 = netip.AddrFrom4(a)
	}
	if s.Prefix6.IsValid() {
		b := s.Prefix6.Addr().As16()
		b[13], b[15] = byte(group), byte(n)
		v6 = netip.AddrFrom16(b)
	}
	return v4, v6
}

// planCluster is cluster number i, whose nodes are on these LANs in turn.
func planCluster(o Options, i int, lans []Segment) ClusterPlan {
	on := lans[0]
	c := ClusterPlan{
		Name:     fmt.Sprintf("%s-%d", o.Name, i),
		Index:    i,
		LAN:      on.Prefix,
		LANName:  on.Name,
		LAN6:     on.Prefix6,
		Gateway:  on.Gateway,
		Gateway6: on.Gateway6,
		More:     slices.Clone(lans[1:]),
		Public:   netip.AddrFrom4([4]byte{172, 31, 0, byte(i)}),
	}
	c.planPrefixes(o)
	if o.Light {
		return c
	}
	for n := 1; n <= o.Nodes; n++ {
		name := fmt.Sprintf("%s-%d", c.Name, n)
		subnet := (n - 1) % o.Subnets
		v4, v6 := lans[subnet].address(i, 10+n)
		c.Nodes = append(c.Nodes, NodePlan{
			Name:     name,
			Index:    n,
			Address:  given(v4, v6)[0],
			Address6: v6,
			Subnet:   subnet,
			PodCIDR:  nodePods(c.PodCIDR, n),
			PodCIDR6: nodePods(c.PodCIDR6, n),
			Control:  n == 1,
			Cgroup:   "/" + cgroupMark(o.Name) + name,
			Uplink:   fmt.Sprintf("n%d-%d", i, n),
		})
	}
	if o.IPAM != NodeIPAM {
		for _, p := range c.PodCIDRs() {
			c.planBlocks(p, o.IPAM == SharedPoolIPAM)
		}
	}
	return c
}

// planPrefixes gives the cluster its prefixes of pods and Services.
func (c *ClusterPlan) planPrefixes(o Options) {
	own, families := byte(0), o.Families.of(c.Index)
	if o.CIDRs == DistinctCIDRs {
		own = byte(c.Index)
	}
	if families.has4() {
		c.PodCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200 + own, 0, 0}), 16)
		c.ServiceCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96 + own, 0, 0}), 16)
		c.APIService, c.DNSService = numbered(c.ServiceCIDR, 1), numbered(c.ServiceCIDR, 10)
	}
	if !families.has6() {
		return
	}
	pods, services := prefix6(pods6+uint16(own), 0, 56), prefix6(services6+uint16(own), 0, 112)
	if families.has4() {
		c.PodCIDR6, c.ServiceCIDR6, c.DNSService6 = pods, services, numbered(services, 10)
		return
	}
	c.PodCIDR, c.ServiceCIDR = pods, services
	c.APIService, c.DNSService = numbered(services, 1), numbered(services, 10)
}

// nodePods is the share of node number n of the pods' prefix p: a /24 or a /64.
func nodePods(p netip.Prefix, n int) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	if p.Addr().Is6() {
		a := p.Addr().As16()
		a[7] = byte(n - 1)
		return netip.PrefixFrom(netip.AddrFrom16(a), 64)
	}
	a := p.Addr().As4()
	a[2] = byte(n - 1)
	return netip.PrefixFrom(netip.AddrFrom4(a), 24)
}

// Calico's default size of a block: a /26 or a /122.
const (
	blockHostBits = 6
	blockSize     = 1 << blockHostBits
)

// planBlocks gives the nodes blocks of the pods' prefix p alternately, so that those of one node
// are not next to each other. The second block of the first node lies in the podCIDR of the last
// node: podCIDRs mislead, as they can with Calico. The other blocks lie in none.
func (c *ClusterPlan) planBlocks(p netip.Prefix, shared bool) {
	nodes := len(c.Nodes)
	last, within := nodePods(p, nodes), min(1, nodes-1) // no pod's address is in its own node's podCIDR
	first := func(k int) int { return nodes - within + k%nodes }
	for k := range c.Nodes {
		n := &c.Nodes[k]
		n.Blocks = append(n.Blocks, blockAfter(last, first(k)), blockAfter(last, k-within))
		if shared {
			owner := blockAfter(last, first(k+1))
			n.Borrowed = append(n.Borrowed, numbered(owner, blockSize-4), numbered(owner, blockSize-3))
		}
	}
}

// blockAfter is number i of the blocks that come after a node's prefix; -1 is the last one
// within it.
func blockAfter(p netip.Prefix, i int) netip.Prefix {
	b := p.Addr().AsSlice()
	n, own := len(b), p.Bits()/8
	if i < 0 {
		for k := own; k < n; k++ {
			b[k] = 0xff
		}
	} else {
		b[own-1]++
		b[n-2] += byte(i * blockSize >> 8)
		b[n-1] = byte(i * blockSize)
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, 8*n-blockHostBits).Masked()
}

// Pods are the prefixes out of which the pods of the node have their addresses.
func (n NodePlan) Pods() []netip.Prefix {
	if len(n.Blocks) == 0 {
		return n.PodCIDRs()
	}
	all := slices.Clone(n.Blocks)
	for _, a := range n.Borrowed {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// reached are the prefixes to the node: those of its pods, and the gateways of pods with borrowed addresses.
func (n NodePlan) reached() []netip.Prefix {
	all := n.Pods()
	for i, a := range n.Borrowed {
		if i == len(n.Borrowed)-1 || n.Borrowed[i+1].Is4() != a.Is4() {
			gateway := gatewayOf(n.Borrowed[:i+1])
			all = append(all, netip.PrefixFrom(gateway, gateway.BitLen()))
		}
	}
	return all
}

// gatewayOf is the address of a node that its pods with borrowed addresses have as their gateway: the next one, which has to be
// in their block, and which the block's owner leaves to it.
func gatewayOf(borrowed []netip.Addr) netip.Addr { return borrowed[len(borrowed)-1].Next() }

// lans are the networks that the cluster's nodes are on, by NodePlan.Subnet.
func (c ClusterPlan) lans() []Segment {
	return append([]Segment{{Name: c.LANName, Prefix: c.LAN, Prefix6: c.LAN6, Gateway: c.Gateway, Gateway6: c.Gateway6}}, c.More...)
}

// cgroupMark begins the name of each cgroup of the lab called name.
func cgroupMark(name string) string { return "entente-lab." + name + "." }

// own are the prefixes out of which the cluster's nodes have their addresses, and no
// others have.
func (p Plan) own(c ClusterPlan) []netip.Prefix {
	var all []netip.Prefix
	if p.Options.LAN != SharedLAN {
		for _, s := range c.lans() {
			all = append(all, s.prefixes()...)
		}
		return all
	}
	for _, s := range p.Segments {
		v4, v6 := s.address(c.Index, 0)
		all = append(all, netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 112))
	}
	return all
}

// readdressed is the plan in which a node has another IPv4 address. The address also
// says which LAN the node is on.
func (p Plan) readdressed(node string, to netip.Addr) (Plan, error) {
	c, n, err := p.Node(node)
	switch {
	case err != nil:
		return p, err
	case p.Options.LAN != SharedLAN:
		return p, fmt.Errorf("lab %s has no shared LAN on which a node could have another address", p.Options.Name)
	case len(c.Nodes) > 1:
		return p, fmt.Errorf("the other nodes of %s know %s by its address: only the node of a cluster of one can have another", c.Name, n.Name)
	}
	var on *Segment
	for i, s := range p.Segments {
		least, _ := s.address(c.Index, 1)
		most, _ := s.address(c.Index, 254)
		if !to.Less(least) && !most.Less(to) {
			on = &p.Segments[i]
		}
	}
	if on == nil {
		return p, fmt.Errorf("address %s is none for %s: want one of %s", to, n.Name, p.own4(c))
	}
	n.Address, n.Address6 = on.address(c.Index, int(to.As4()[3]))
	c.LAN, c.LANName, c.LAN6, c.Gateway = on.Prefix, on.Name, on.Prefix6, on.Gateway
	c.Nodes = []NodePlan{n}
	p.Clusters = slices.Clone(p.Clusters)
	p.Clusters[c.Index-1] = c
	return p, nil
}

// Control is the node that runs the control plane.
func (c ClusterPlan) Control() NodePlan { return c.Nodes[0] }

// Cluster finds a cluster by its name, or by its number alone.
func (p Plan) Cluster(name string) (ClusterPlan, error) {
	for _, c := range p.Clusters {
		if c.Name == name || fmt.Sprint(c.Index) == name {
			return c, nil
		}
	}
	return ClusterPlan{}, fmt.Errorf("no cluster %q in lab %s", name, p.Options.Name)
}

// Node finds a node by its name; a cluster's name means its first node.
func (p Plan) Node(name string) (ClusterPlan, NodePlan, error) {
	for _, c := range p.Clusters {
		for _, n := range c.Nodes {
			if n.Name == name || (c.Name == name && n.Control) {
				return c, n, nil
			}
		}
	}
	return ClusterPlan{}, NodePlan{}, fmt.Errorf("no node %q in lab %s", name, p.Options.Name)
}

// took rounds a duration for people.
func took(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }

// preferredPort is the port on which cluster number i of a lab is reached from the machine if it is
// free: the same one each time, so that windows left open in a browser or a shell keep working.
func preferredPort(lab string, i int) uint16 {
	h := uint16(0)
	if lab != DefaultName {
		for _, r := range lab {
			h = h*31 + uint16(r)
		}
		h = 1 + h%99
	}
	return 16440 + h*(maxClusters+1) + uint16(i)
}
