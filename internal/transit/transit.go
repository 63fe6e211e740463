// Package transit decides which peers of this cluster reach each other's pods through it, and
// through which peers its own pods reach others. It is pure: values in, values out.
//
// Packets pass between two peers only while all three clusters agree: this one names each of
// the two for the other, and each of the two names the other for this one.
package transit

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// State is whether packets pass between a peer and a third cluster.
type State struct {
	// Third is the third cluster's ID, Name its name here, if it is a peer.
	Third, Name string
	// Through says that this cluster is an end, and the peer the one in between.
	Through bool
	// Missing says why packets do not pass; empty if they do.
	Missing string
}

// States returns the state of each third cluster that a peer's spec.transit names.
func States(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) []State {
	var out []State
	if peer.Spec.Transit == nil {
		return nil
	}
	for _, id := range sorted(peer.Spec.Transit.PassTo) {
		s, third := State{Third: id}, find(id, all)
		if third != nil {
			s.Name = third.Name
		}
		s.Missing = missing(peer, third, id)
		out = append(out, s)
	}
	for _, id := range sorted(peer.Spec.Transit.Through) {
		s := State{Third: id, Through: true}
		if third := find(id, all); third != nil {
			s.Name = third.Name
		}
		if n := peer.Status.Network; n == nil || !slices.ContainsFunc(n.Transit, func(t v1alpha1.TransitAddresses) bool { return t.ClusterID == id }) {
			s.Missing = "the peer has announced no address there: it and the third cluster have to agree, and the peer has to run pods in both"
		}
		out = append(out, s)
	}
	return out
}

// Gap is a third cluster that has pods of the same namespaces of this cluster as a peer, while no packets
// pass between it and the peer, as this cluster names neither for the other.
type Gap struct {
	// Third is the name of the third cluster here, ThirdID its ID.
	Third, ThirdID string
	// Namespaces are this cluster's, sorted.
	Namespaces []string
}

// Gaps returns the gaps between a peer and other peers.
func Gaps(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster, offloaded []v1alpha1.NamespaceOffloading) []Gap {
	if peer.Name == "" || !trusted(peer) {
		return nil
	}
	var out []Gap
	for i := range all {
		third := &all[i]
		if third.Name == peer.Name || !trusted(third) || passes(peer, third) || passes(third, peer) {
			continue
		}
		g := Gap{Third: third.Name, ThirdID: third.Spec.ClusterID}
		for j := range offloaded {
			if at := offloaded[j].Status.Clusters; runsAt(at, peer.Name) && runsAt(at, third.Name) {
				g.Namespaces = append(g.Namespaces, offloaded[j].Namespace)
			}
		}
		if g.Namespaces = sorted(g.Namespaces); len(g.Namespaces) > 0 {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b Gap) int { return strings.Compare(a.Third, b.Third) })
	return out
}

// passes reports whether this cluster names one peer for another.
func passes(peer, third *v1alpha1.ForeignCluster) bool {
	return peer.Spec.Transit != nil && slices.Contains(peer.Spec.Transit.PassTo, third.Spec.ClusterID)
}

// runsAt reports whether a namespace may have pods at a provider.
func runsAt(clusters []v1alpha1.NamespaceInCluster, provider string) bool {
	return slices.ContainsFunc(clusters, func(c v1alpha1.NamespaceInCluster) bool {
		return c.ForeignCluster == provider && (c.State == v1alpha1.OffloadingReady || c.State == v1alpha1.OffloadingTerminating)
	})
}

// missing returns why packets do not pass between two peers of this cluster; empty if they do.
func missing(peer, third *v1alpha1.ForeignCluster, id string) string {
	switch {
	case id == peer.Spec.ClusterID:
		return "it is the peer itself"
	case third == nil:
		return "it is not a peer of this cluster"
	case !trusted(peer):
		return "the peer is not trusted"
	case !trusted(third):
		return fmt.Sprintf("%s is not trusted", third.Name)
	case !passes(third, peer):
		return fmt.Sprintf("spec.transit.passTo of %s here does not name the peer", third.Name)
	case !agrees(peer, id):
		return "the peer does not agree: its spec.transit.through for this cluster has to name the other"
	case !agrees(third, peer.Spec.ClusterID):
		return fmt.Sprintf("%s does not agree: its spec.transit.through for this cluster has to name the peer", third.Name)
	}
	return ""
}

func trusted(fc *v1alpha1.ForeignCluster) bool {
	return fc.Spec.TrustBundle != "" && fc.Spec.Decision != v1alpha1.DecisionDenied && fc.DeletionTimestamp.IsZero()
}

func agrees(fc *v1alpha1.ForeignCluster, third string) bool {
	return fc.Status.Network != nil && slices.Contains(fc.Status.Network.Through, third)
}

// Agreed returns the IDs of the clusters that a peer reaches through this one.
func Agreed(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) []string {
	var out []string
	for _, s := range States(peer, all) {
		if !s.Through && s.Missing == "" {
			out = append(out, s.Third)
		}
	}
	return out
}

// Through returns the IDs of the clusters that this one agrees to reach through a peer.
func Through(peer *v1alpha1.ForeignCluster) []string {
	if peer.Spec.Transit == nil {
		return nil
	}
	return sorted(peer.Spec.Transit.Through)
}

// Concerned returns the names of the peers that may exchange packets with a peer through this one, and of those
// with which this one may do so through it, or with it through them, as the peer's own words say and as those say that
// are in force. The former may be of before a change: those with which it no longer does are concerned, too.
func Concerned(of *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) []string {
	var out []string
	id, named := of.Spec.ClusterID, []string(nil)
	if t := of.Spec.Transit; t != nil {
		named = slices.Concat(t.PassTo, t.Through)
	}
	for i := range all {
		fc := &all[i]
		if t := fc.Spec.Transit; slices.Contains(named, fc.Spec.ClusterID) || t != nil && (slices.Contains(t.PassTo, id) || slices.Contains(t.Through, id)) ||
			slices.ContainsFunc(all, func(home v1alpha1.ForeignCluster) bool {
				return home.Spec.ClusterID == id && slices.Contains(Through(&home), fc.Spec.ClusterID)
			}) {
			out = append(out, fc.Name)
		}
	}
	return out
}

// Accepted returns the addresses of third clusters that a peer announces, as far as this cluster agrees
// to reach these clusters through it.
func Accepted(network *v1alpha1.PeerNetwork, through []string) []netip.Addr {
	return Addresses(slices.DeleteFunc(slices.Clone(network.Transit), func(t v1alpha1.TransitAddresses) bool { return !slices.Contains(through, t.ClusterID) }))
}

// Addresses returns all addresses of a list.
func Addresses(list []v1alpha1.TransitAddresses) []netip.Addr {
	var out []netip.Addr
	for _, t := range list {
		for _, text := range t.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				out = append(out, a)
			}
		}
	}
	return out
}

// List lists addresses by their cluster, sorted, each once, at most most in all, of which each cluster has its share. It
// returns how many are left out.
func List(by map[string][]netip.Addr, most int) (out []v1alpha1.TransitAddresses, left int) {
	var sizes []int
	for _, id := range slices.Sorted(maps.Keys(by)) {
		addrs := slices.Clone(by[id])
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrs = slices.Compact(addrs)
		if len(addrs) == 0 || len(out) == peering.MaxTransit {
			left += len(addrs)
			continue
		}
		t := v1alpha1.TransitAddresses{ClusterID: id}
		for _, a := range addrs {
			t.Addresses = append(t.Addresses, a.String())
		}
		out, sizes = append(out, t), append(sizes, len(addrs))
	}
	for i, n := range shares(sizes, most) {
		left += sizes[i] - n
		out[i].Addresses = out[i].Addresses[:n]
	}
	return slices.DeleteFunc(out, func(t v1alpha1.TransitAddresses) bool { return len(t.Addresses) == 0 }), left
}

// shares divides room among clusters that need so much each: one that does not get all that it needs gets at least as
// much as any other. Of equal ones the last has what does not divide evenly.
func shares(need []int, room int) []int {
	order := make([]int, len(need))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(need[a], need[b]) })
	out := make([]int, len(need))
	for i, at := range order {
		out[at] = min(need[at], max(room, 0)/(len(order)-i))
		room -= out[at]
	}
	return out
}

// ToWire writes a list as it is announced to a peer.
func ToWire(list []v1alpha1.TransitAddresses) []peering.TransitAddresses {
	var out []peering.TransitAddresses
	for _, t := range list {
		addrs := Addresses([]v1alpha1.TransitAddresses{t})
		slices.SortFunc(addrs, netip.Addr.Compare)
		third := peering.TransitAddresses{Cluster: peering.ClusterID(t.ClusterID), Addresses: slices.Compact(addrs)}
		for _, ns := range t.Namespaces {
			third.Namespaces = append(third.Namespaces, peering.TransitNamespace{Name: ns.Name, Pods: Pods(ns)})
		}
		out = append(out, third)
	}
	return out
}

// FromWire reads the list that a peer announces.
func FromWire(list []peering.TransitAddresses) []v1alpha1.TransitAddresses {
	var out []v1alpha1.TransitAddresses
	for _, t := range list {
		if len(t.Addresses) == 0 {
			continue
		}
		third := v1alpha1.TransitAddresses{ClusterID: string(t.Cluster)}
		for _, a := range t.Addresses {
			third.Addresses = append(third.Addresses, a.String())
		}
		for _, ns := range t.Namespaces {
			third.Namespaces = append(third.Namespaces, namespaceOf(ns.Name, ns.Pods))
		}
		out = append(out, third)
	}
	return out
}

// Common returns the addresses that are in both of two lists, of the same cluster.
func Common(one, other []v1alpha1.TransitAddresses) []v1alpha1.TransitAddresses {
	in := map[string]map[string]bool{}
	for _, t := range other {
		in[t.ClusterID] = map[string]bool{}
		for _, a := range t.Addresses {
			in[t.ClusterID][a] = true
		}
	}
	var out []v1alpha1.TransitAddresses
	for _, t := range one {
		t.Addresses = slices.DeleteFunc(slices.Clone(t.Addresses), func(a string) bool { return !in[t.ClusterID][a] })
		if len(t.Addresses) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// Texts writes IDs as text, sorted, each once.
func Texts(ids []peering.ClusterID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, string(id))
	}
	return sorted(out)
}

// IDs is the reverse of Texts.
func IDs(texts []string) []peering.ClusterID {
	var out []peering.ClusterID
	for _, text := range texts {
		out = append(out, peering.ClusterID(text))
	}
	return out
}

func sorted(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
