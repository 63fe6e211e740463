package lab

import (
	"fmt"
	"net/netip"
	"regexp"
	"time"
)

// Limits of a lab: the address plan has room for no more, and a machine that
// could run more of them is not what the lab is for.
const (
	maxClusters  = 16
	maxNodes     = 32
	maxFakeNodes = 5000
)

// DefaultName is the name of the lab, and the prefix of its clusters' names,
// when none is given.
const DefaultName = "lab"

// CIDRs says whether the clusters of a lab have the same pod and service
// prefixes.
type CIDRs string

const (
	// SameCIDRs gives each cluster the same prefixes: the normal case between
	// clusters that know nothing of each other.
	SameCIDRs CIDRs = "same"
	// DistinctCIDRs gives each cluster prefixes of its own.
	DistinctCIDRs CIDRs = "distinct"
)

// Options say what lab is wanted.
type Options struct {
	// Name of the lab; default DefaultName. Lower-case letters and digits,
	// at most 12.
	Name string `json:"name"`
	// Clusters is the number of clusters, named NAME-1, NAME-2, …; default 2.
	Clusters int `json:"clusters"`
	// Nodes is the number of nodes of each cluster, named CLUSTER-1, …;
	// default 1. The first one runs the control plane, and pods too.
	Nodes int `json:"nodes"`
	// CIDRs is same or distinct; default same.
	CIDRs CIDRs `json:"cidrs"`
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

// withDefaults fills what was left out and refuses what cannot be.
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
	}
	if o.Light {
		o.Nodes = 1
	}
	return o, nil
}

// Plan is every name and address of a lab, a function of its Options.
type Plan struct {
	Options  Options       `json:"options"`
	Clusters []ClusterPlan `json:"clusters"`
}

// ClusterPlan is one cluster's share of the Plan.
type ClusterPlan struct {
	Name  string `json:"name"`
	Index int    `json:"index"` // from 1
	// LAN is the prefix that the cluster's nodes share; LANName the bridge
	// that carries it in the internet's namespace.
	LAN     netip.Prefix `json:"lan"`
	LANName string       `json:"lanName"`
	// Gateway is the router's address in the LAN.
	Gateway netip.Addr `json:"gateway"`
	// Public is the address under which the cluster appears behind NAT.
	Public netip.Addr `json:"public"`

	PodCIDR     netip.Prefix `json:"podCIDR"`
	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	// APIService and DNSService are the addresses of the Services kubernetes
	// and kube-dns.
	APIService netip.Addr `json:"apiService"`
	DNSService netip.Addr `json:"dnsService"`

	Nodes []NodePlan `json:"nodes"`
}

// NodePlan is one node's share of the Plan.
type NodePlan struct {
	Name    string       `json:"name"`
	Index   int          `json:"index"` // from 1
	Address netip.Addr   `json:"address"`
	PodCIDR netip.Prefix `json:"podCIDR"`
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
	p := Plan{Options: o}
	for i := 1; i <= o.Clusters; i++ {
		p.Clusters = append(p.Clusters, planCluster(o, i))
	}
	return p, nil
}

func planCluster(o Options, i int) ClusterPlan {
	own := byte(0)
	if o.CIDRs == DistinctCIDRs {
		own = byte(i)
	}
	b := byte(i)
	c := ClusterPlan{
		Name:        fmt.Sprintf("%s-%d", o.Name, i),
		Index:       i,
		LAN:         netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, b, 0}), 24),
		LANName:     fmt.Sprintf("lan%d", i),
		Gateway:     netip.AddrFrom4([4]byte{172, 30, b, 1}),
		Public:      netip.AddrFrom4([4]byte{172, 31, 0, b}),
		PodCIDR:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200 + own, 0, 0}), 16),
		ServiceCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96 + own, 0, 0}), 16),
		APIService:  netip.AddrFrom4([4]byte{10, 96 + own, 0, 1}),
		DNSService:  netip.AddrFrom4([4]byte{10, 96 + own, 0, 10}),
	}
	if o.Light {
		return c
	}
	for n := 1; n <= o.Nodes; n++ {
		name := fmt.Sprintf("%s-%d", c.Name, n)
		c.Nodes = append(c.Nodes, NodePlan{
			Name:    name,
			Index:   n,
			Address: netip.AddrFrom4([4]byte{172, 30, b, byte(10 + n)}),
			PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200 + own, byte(n - 1), 0}), 24),
			Control: n == 1,
			Cgroup:  "/" + cgroupMark(o.Name) + name,
			Uplink:  fmt.Sprintf("n%d-%d", i, n),
		})
	}
	return c
}

// cgroupMark begins the name of each cgroup of the lab called name.
func cgroupMark(name string) string { return "entente-lab." + name + "." }

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

// Node finds a node by its name; a cluster's name stands for its first node.
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

// preferredPort is the port on which cluster number i of a lab is reached from
// the machine if nothing else has it: the same one each time, so that windows
// left open in a browser or a shell go on working.
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
