package transit

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Space is a namespace of a peer.
type Space struct{ Home, Namespace string }

// Named says since when a peer names pods of a Space, and when it last did.
type Named struct{ First, Last time.Time }

// Running returns the pods that this cluster runs for peers through which it reaches another one, by these: those of
// each namespace of which such a peer names pods there, or lately did, as far as there is room, as a whole or not at all.
// pods returns the addresses of those that run here for a peer, by its namespaces. before is what the last call returned as
// named.
//
// The other peer stores what is said at this cluster's cost. So a namespace stays for namedLasts after it was last named,
// and keeps its room: however often a home changes what it names, little follows. Nobody is opened anything by that
// alone, as the home names to the other peer, too, which pods may be opened there.
func Running(peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster, before map[Space]Named, now time.Time, pods func(home *v1alpha1.ForeignCluster) map[string][]netip.Addr) (running []peering.TransitAddresses, named map[Space]Named) {
	by, taken, named := map[string][][]netip.Addr{}, map[netip.Addr]bool{}, map[Space]Named{}
	var sizes []int
	var homes []string
	for _, home := range slices.SortedFunc(slices.Values(reaching(peer, all)), func(a, b *v1alpha1.ForeignCluster) int {
		return cmp.Compare(a.Spec.ClusterID, b.Spec.ClusterID)
	}) {
		id := home.Spec.ClusterID
		recent := lately(home, peer.Spec.ClusterID, before, now)
		if len(recent) == 0 || len(homes) == peering.MaxTransit {
			continue
		}
		size, in := 0, pods(home)
		for _, s := range slices.SortedFunc(maps.Keys(recent), func(a, b Space) int {
			return cmp.Or(recent[a].First.Compare(recent[b].First), cmp.Compare(a.Namespace, b.Namespace))
		}) {
			addrs, known := in[s.Namespace], before[s]
			if len(addrs) > 0 || !known.First.IsZero() { // a name alone is not remembered
				named[s] = recent[s]
			}
			if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return taken[a] }) {
				continue // of two pods one is gone
			}
			for _, a := range addrs {
				taken[a] = true
			}
			by[id], size = append(by[id], addrs), size+len(addrs)
		}
		homes, sizes = append(homes, id), append(sizes, size)
	}
	whole := map[string][]netip.Addr{}
	for i, room := range shares(sizes, peering.MaxDirect) {
		for _, addrs := range by[homes[i]] {
			if len(addrs) <= room {
				room -= len(addrs)
				whole[homes[i]] = append(whole[homes[i]], addrs...)
			}
		}
	}
	list, _ := List(whole, peering.MaxDirect)
	return ToWire(list), named
}

// lately returns the namespaces of which a peer names pods in a third cluster, and those of which it did less than
// namedLasts ago.
func lately(home *v1alpha1.ForeignCluster, third string, before map[Space]Named, now time.Time) map[Space]Named {
	out := map[Space]Named{}
	for s, n := range before {
		if s.Home == home.Spec.ClusterID && now.Sub(n.Last) < namedLasts {
			out[s] = n
		}
	}
	for _, ns := range NamespacesIn(home, third) {
		s := Space{home.Spec.ClusterID, ns.Name}
		n, known := out[s]
		if n.Last = now; !known {
			n.First = now
		}
		out[s] = n
	}
	return out
}
