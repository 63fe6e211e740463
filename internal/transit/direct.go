package transit

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Where two ends peer with each other, pods of the cluster in between reach each other directly: it names the pods'
// own addresses to both ends, each end says to the other which of them it runs, opens them to those that the other one
// runs, and says so, and then the other end's Services lead there.

// Direct returns the IDs of the clusters that this one reaches through a peer, and with which it peers itself.
func Direct(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) []string {
	var out []string
	for _, id := range Through(peer) {
		if third := find(id, all); third != nil && trusted(third) && third.Status.Network != nil {
			out = append(out, id)
		}
	}
	return out
}

// AgreedDirect returns those of the clusters which a peer reaches through this one that peer with it, as both say.
func AgreedDirect(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) []string {
	says := func(fc *v1alpha1.ForeignCluster, id string) bool {
		return fc.Status.Network != nil && slices.Contains(fc.Status.Network.Direct, id)
	}
	return slices.DeleteFunc(Agreed(peer, all), func(id string) bool {
		third := find(id, all)
		return third == nil || !says(peer, id) || !says(third, peer.Spec.ClusterID)
	})
}

// Homes returns the peers through which this cluster reaches another peer, and whose pods there are named so
// that those that they have here may be opened to them.
func Homes(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) []*v1alpha1.ForeignCluster {
	return slices.DeleteFunc(reaching(peer, all), func(home *v1alpha1.ForeignCluster) bool {
		return len(NamespacesIn(home, peer.Spec.ClusterID)) == 0
	})
}

// reaching returns the peers through which this cluster reaches another peer.
func reaching(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) []*v1alpha1.ForeignCluster {
	var out []*v1alpha1.ForeignCluster
	if !trusted(peer) {
		return nil
	}
	for i := range all {
		if home := &all[i]; home.Name != peer.Name && trusted(home) && slices.Contains(Through(home), peer.Spec.ClusterID) {
			out = append(out, home)
		}
	}
	return out
}

// NamespacesIn returns the namespaces of a peer whose pods in a third cluster it names.
func NamespacesIn(home *v1alpha1.ForeignCluster, third string) []v1alpha1.TransitNamespace {
	if home.Status.Network == nil {
		return nil
	}
	for _, t := range home.Status.Network.Transit {
		if t.ClusterID == third {
			return t.Namespaces
		}
	}
	return nil
}

// Names returns the names of namespaces.
func Names(in []v1alpha1.TransitNamespace) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = in[i].Name
	}
	return out
}

// Pods returns the pods of a namespace, sorted by their addresses in the cluster in between.
func Pods(ns v1alpha1.TransitNamespace) []peering.TransitPod {
	var out []peering.TransitPod
	for i, text := range ns.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil || i >= len(ns.PodAddresses) {
			continue
		}
		if there, err := netip.ParseAddr(ns.PodAddresses[i]); err == nil && there.Is4() == a.Is4() {
			out = append(out, peering.TransitPod{Address: a, There: there})
		}
	}
	return sortPods(out)
}

func sortPods(pods []peering.TransitPod) []peering.TransitPod {
	slices.SortStableFunc(pods, func(a, b peering.TransitPod) int { return a.Address.Compare(b.Address) })
	return slices.CompactFunc(pods, func(a, b peering.TransitPod) bool { return a.Address == b.Address })
}

// namespaceOf is the reverse of Pods.
func namespaceOf(name string, pods []peering.TransitPod) v1alpha1.TransitNamespace {
	ns := v1alpha1.TransitNamespace{Name: name}
	for _, p := range pods {
		ns.Addresses, ns.PodAddresses = append(ns.Addresses, p.Address.String()), append(ns.PodAddresses, p.There.String())
	}
	return ns
}

// AddNamespaces adds the pods that may be reached directly to a list of addresses, by their cluster and namespace: each
// namespace as a whole or not at all, as an end opens nothing to only some of its pods.
func AddNamespaces(list []v1alpha1.TransitAddresses, pods map[string]map[string][]peering.TransitPod) {
	room := peering.MaxDirect
	for i := range list {
		t := &list[i]
		free := map[netip.Addr]bool{}
		for _, a := range Addresses(list[i : i+1]) {
			free[a] = true
		}
		for _, name := range slices.Sorted(maps.Keys(pods[t.ClusterID])) {
			in := sortPods(pods[t.ClusterID][name])
			if len(in) == 0 || len(in) > room || len(t.Namespaces) == peering.MaxDirectNamespaces ||
				slices.ContainsFunc(in, func(p peering.TransitPod) bool { return !free[p.Address] || !p.There.IsValid() }) {
				continue
			}
			for _, p := range in {
				delete(free, p.Address)
			}
			room -= len(in)
			t.Namespaces = append(t.Namespaces, namespaceOf(name, in))
		}
	}
}

// Opened returns the addresses that a Tunnel opens for pods of third clusters, by these.
func Opened(open []v1alpha1.Exposure) []peering.TransitAddresses {
	by := map[string][]netip.Addr{}
	seen := map[netip.Addr]bool{} // each address is that of one home's pod
	for _, e := range open {
		for _, to := range e.To {
			for _, text := range to.Addresses {
				a, err := netip.ParseAddr(text)
				if e.HomePeerID == "" || err != nil || seen[a] {
					continue
				}
				seen[a] = true
				by[e.HomePeerID] = append(by[e.HomePeerID], a)
			}
		}
	}
	list, _ := List(by, peering.MaxDirect)
	return ToWire(list)
}

// Passes reports whether traffic with a peer passes, between all nodes.
func Passes(fc *v1alpha1.ForeignCluster) bool {
	return trusted(fc) && meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionNetwork)
}

// Place is a pod of a peer in a third cluster.
type Place struct {
	Third peering.ClusterID
	There netip.Addr
}

// Places returns where the pods are that a peer names in clusters which this one agrees to reach through it, by their
// addresses at the peer.
func Places(home *v1alpha1.ForeignCluster) map[netip.Addr]Place {
	out := map[netip.Addr]Place{}
	for _, id := range Through(home) {
		for _, ns := range NamespacesIn(home, id) {
			for _, p := range Pods(ns) {
				out[p.Address] = Place{peering.ClusterID(id), p.There}
			}
		}
	}
	return out
}

// RunsFor returns the addresses of pods that a peer says it runs for another one.
func RunsFor(peer *v1alpha1.ForeignCluster, home string) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	if peer.Status.Network != nil {
		for _, t := range peer.Status.Network.Running {
			for _, a := range Addresses([]v1alpha1.TransitAddresses{t}) {
				out[a] = out[a] || t.ClusterID == home
			}
		}
	}
	return out
}

// Sources returns the addresses, as this cluster knows them, of the pods of a peer's namespace in a third cluster, by
// family: of those that the third cluster says it runs for the peer. The peer may not know yet that one is gone, and
// somebody else's pod have its address. A family of which one has no address here is missing: its pods could not all
// open flows.
func Sources(ns v1alpha1.TransitNamespace, runs map[netip.Addr]bool, known func(netip.Addr) (netip.Addr, bool)) map[bool][]netip.Addr {
	out, left := map[bool][]netip.Addr{}, map[bool]bool{}
	for _, p := range Pods(ns) {
		if !runs[p.There] {
			continue
		}
		if a, ok := known(p.There); ok {
			out[a.Is4()] = append(out[a.Is4()], a)
		} else {
			left[p.There.Is4()] = true
		}
	}
	maps.DeleteFunc(out, func(four bool, _ []netip.Addr) bool { return left[four] })
	return out
}

func find(id string, all []v1alpha1.ForeignCluster) *v1alpha1.ForeignCluster {
	if i := slices.IndexFunc(all, func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.ClusterID == id }); i >= 0 {
		return &all[i]
	}
	return nil
}
