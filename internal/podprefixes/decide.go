package podprefixes

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// Source is where prefixes were learnt, in words for administrators.
type Source string

// The sources, in the order in which they are used.
const (
	// Nodes is the nodes' spec.podCIDRs.
	Nodes Source = "spec.podCIDRs of Nodes"
	// Calico is its IPPools, and CalicoDisabled those from which it gives no more addresses.
	Calico         Source = "IPPools of Calico"
	CalicoDisabled Source = "disabled IPPools of Calico"
	// Cilium is its ConfigMap, its CiliumPodIPPools and its CiliumNodes.
	Cilium Source = "pools and CiliumNodes of Cilium"
	// OVN is the annotations by which OVN-Kubernetes gives nodes prefixes.
	OVN Source = "annotations of OVN-Kubernetes"
	// Kubeadm is networking.podSubnet of kubeadm's ClusterConfiguration.
	Kubeadm Source = "podSubnet of kubeadm"
)

// Input is everything that decides about the prefixes of a cluster's pods.
type Input struct {
	// Nodes are those that are not virtual.
	Nodes []Node
	// Pods are the pods on the pod network that run, or start.
	Pods []Pod
	// Found is what sources say, in the order in which they are used.
	Found []Found
	// Reserved is the prefixes of Services.
	Reserved []netip.Prefix
	// Used is the sources that counted before: they still do, so that prefixes do not come and go with
	// single pods.
	Used []Source
	// Advice is what to set if pods are outside of all of these prefixes.
	Advice string
}

// Node is a node of the cluster.
type Node struct {
	Name string
	// PodCIDRs is its spec.podCIDRs, Addresses is its own addresses.
	PodCIDRs  []netip.Prefix
	Addresses []netip.Addr
}

// Pod is where a pod is.
type Pod struct {
	Node  string
	Addrs []netip.Addr
}

// Found is the prefixes that a source says.
type Found struct {
	Source   Source
	Prefixes []netip.Prefix
}

// Learnt is the prefixes of a cluster's pods besides spec.podCIDRs of its nodes, which always count.
type Learnt struct {
	// Prefixes is sorted, and none is inside another.
	Prefixes []netip.Prefix
	// Sources is where they, and those of the nodes, were learnt.
	Sources []Source
	// LeftOut says which prefixes that a source has do not count, and why.
	LeftOut []string
	// Advice is that of the input, if pods are outside of all prefixes.
	Advice string
}

// Names returns the sources as texts.
func (l Learnt) Names() (out []string) {
	for _, s := range l.Sources {
		out = append(out, string(s))
	}
	return out
}

// Decide returns the prefixes of a cluster's pods besides those of its nodes. As long as each pod has an
// address in its own node's spec.podCIDRs there are no others: the network plugin follows them. A source
// counts if it has the address of a pod that those before it do not explain, or, while no pod and no
// prefix is known, if it is the first that says something. What overlaps Services or the address of a
// node does not count.
func Decide(in Input) Learnt {
	var out Learnt
	taken := slices.Clone(in.Reserved)
	own := map[string]cidr.Set{}
	for _, n := range in.Nodes {
		own[n.Name] = cidr.Of(n.PodCIDRs...)
		for _, a := range n.Addresses {
			taken = append(taken, netip.PrefixFrom(a.WithZone(""), a.BitLen()))
		}
		if len(n.PodCIDRs) > 0 && len(out.Sources) == 0 {
			out.Sources = []Source{Nodes}
		}
	}
	outside := unexplained(in.Pods, own)
	var all []netip.Prefix
	for _, f := range in.Found {
		used, first := slices.Contains(in.Used, f.Source), len(in.Pods)+len(in.Used)+len(out.Sources) == 0
		if !used && !first && len(outside) == 0 {
			continue
		}
		free, left := apart(f, cidr.Of(taken...))
		out.LeftOut = append(out.LeftOut, left...)
		set := cidr.Of(free...)
		if len(set) == 0 || !used && !first && !slices.ContainsFunc(outside, set.Contains) {
			continue
		}
		all, out.Sources = append(all, free...), append(out.Sources, f.Source)
		outside = slices.DeleteFunc(outside, set.Contains)
	}
	out.Prefixes = cidr.Of(all...)
	if len(outside) > 0 {
		out.Advice = in.Advice
	}
	return out
}

// unexplained returns the addresses of pods outside of their own nodes' prefixes.
func unexplained(pods []Pod, own map[string]cidr.Set) (out []netip.Addr) {
	for _, p := range pods {
		set, known := own[p.Node]
		if !known {
			continue // on a virtual node its address is an alias
		}
		for _, a := range p.Addrs {
			if !set.Contains(a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// apart separates what overlaps addresses that are taken, and says why.
func apart(f Found, taken cidr.Set) (free []netip.Prefix, left []string) {
	omitted := 0
	ordered := slices.SortedFunc(slices.Values(f.Prefixes), netip.Prefix.Compare)
	for _, p := range slices.Compact(ordered) { // also those inside of others, which may have to be left out
		other := taken.Overlapping(p)
		switch {
		case !other.IsValid():
			free = append(free, p)
		case len(left) < maxProblems:
			text := other.String()
			if other.IsSingleIP() {
				text = other.Addr().String()
			}
			left = append(left, fmt.Sprintf("%v (%s) is not used as a prefix of pods: %s is in it, which is a node's or one of Services", p, f.Source, text))
		default:
			omitted++
		}
	}
	if omitted > 0 {
		left = append(left, fmt.Sprintf("and %d more prefixes (%s) that overlap nodes or Services", omitted, f.Source))
	}
	return free, left
}
