// Package allow decides what a peer may reach in this cluster: what a Tunnel opens, and which hosts other than pods
// may be among it.
package allow

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/wire"
)

// Exposed is what one peer may reach in this cluster because of one contract, for one offloaded namespace.
type Exposed struct {
	// Contract is the contract's ID, Namespace the offloaded namespace; see v1alpha1.Exposure.
	Contract, Namespace string
	// AnySource allows all of the peer's prefixes as sources.
	AnySource bool
	// Third is the ID of another peer if To is addresses of it, as this cluster knows them; Known is more of its
	// addresses for which the peer needs aliases.
	Third string
	Known []netip.Addr
	// Home is the ID of another peer if both From and To are its pods; see v1alpha1.Exposure. Such an exposure is
	// listed as a whole or not at all. Until is when it ends by itself.
	Home  string
	Until metav1.Time
	// From is addresses of the peer as this cluster knows them.
	From []netip.Addr
	// To is the allowed destinations.
	To []Destination
	// Opened is more of them, by the other namespace that opens them to this one. They come after what all namespaces
	// have of their own.
	Opened map[string][]Destination
	// Unknown: the contract may expose more than this agent knows since its start, in any namespace: what is open
	// for it stays open.
	Unknown bool
}

// Destination is a port of an address of this cluster.
type Destination struct {
	Addr netip.Addr
	// Port is the port; the zero value means every port of every protocol.
	Port v1alpha1.DestinationPort
}

// Plan returns what a Tunnel opens, always the same for the same set, and a text about what was left closed because
// it exceeds the limits, if anything. current is what it opens now.
func Plan(exposed []Exposed, current []v1alpha1.Exposure) ([]v1alpha1.Exposure, string) {
	sorted, shut := withOpened(merged(slices.Concat(exposed, kept(exposed, current))))
	var out []v1alpha1.Exposure
	room, closed := MaxExposed, 0
	for _, e := range sorted {
		if e.Home != "" {
			continue
		}
		x, to := exposureOf(e)
		if len(to) == 0 || !x.AnySource && len(x.From) == 0 {
			continue
		}
		if len(out) == MaxExposures {
			closed++
			continue
		}
		before := len(x.From) + sizeOf(to)
		x.From = cut(x.From, &room)
		for _, d := range to {
			d.Ports = d.Ports[:min(len(d.Ports), maxPorts)]
			room -= len(d.Ports)
			if d.Addresses = cut(d.Addresses, &room); len(d.Addresses) > 0 {
				x.To = append(x.To, d)
			}
		}
		if len(x.From)+sizeOf(x.To) < before {
			closed++
		}
		if len(x.To) > 0 {
			out = append(out, x)
		}
	}
	out = append(out, direct(sorted, out, current, room)...)
	if closed > 0 {
		shut = append(shut, fmt.Sprintf("%d of %d namespaces have more open to the peer than a tunnel can list (%d namespaces, %d addresses and ports, %d ports of an address): the rest is closed; "+
			"offload fewer namespaces or smaller Services to it", closed, len(sorted), MaxExposures, MaxExposed, maxPorts))
	}
	return out, strings.Join(shut, "; ")
}

// direct returns exposures to pods of other peers, as far as they fit beside what is open already. What does not fit
// is reached through the pods' home. An address that is a source already stays what it is: a home that names another
// cluster's pods gets nothing, and adds no combinations of exposures. What is open now comes first, so no other home
// takes its sources.
func direct(sorted []Exposed, open, current []v1alpha1.Exposure, room int) (out []v1alpha1.Exposure) {
	type place struct{ contract, home, namespace string }
	stands := sets.New[place]()
	for _, x := range current {
		stands.Insert(place{x.Contract, x.HomePeerID, x.Namespace})
	}
	sources, share := map[string]place{}, map[string]int{} // by whose pods the sources are
	for _, x := range open {
		for _, from := range x.From {
			sources[from] = place{}
		}
	}
	isNew := func(e Exposed) bool { return !stands.Has(place{e.Contract, e.Home, e.Namespace}) }
	for _, e := range slices.Concat(slices.DeleteFunc(slices.Clone(sorted), isNew), slices.DeleteFunc(slices.Clone(sorted), func(e Exposed) bool { return !isNew(e) })) {
		x, to := exposureOf(e)
		pods, size := place{home: e.Home, namespace: e.Namespace}, len(x.From)+sizeOf(to)
		if e.Home == "" || len(x.From) == 0 || len(to) == 0 || len(open)+len(out) == MaxExposures ||
			size > min(room, maxDirect-share[e.Home]) ||
			slices.ContainsFunc(x.From, func(from string) bool { of, taken := sources[from]; return taken && of != pods }) ||
			slices.ContainsFunc(to, func(d v1alpha1.Destination) bool { return d.AnyPort || len(d.Ports) > maxPorts }) {
			continue
		}
		for _, from := range x.From {
			sources[from] = pods
		}
		room, share[e.Home] = room-size, share[e.Home]+size
		x.To = to
		out = append(out, x)
	}
	slices.SortStableFunc(out, func(a, b v1alpha1.Exposure) int { // as all of them are once they stand
		return cmp.Or(cmp.Compare(a.Contract, b.Contract), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.HomePeerID, b.HomePeerID))
	})
	return out
}

// exposureOf returns an exposure without its destinations, and these.
func exposureOf(e Exposed) (v1alpha1.Exposure, []v1alpha1.Destination) {
	x := v1alpha1.Exposure{Contract: e.Contract, Namespace: e.Namespace, DestinationPeerID: e.Third, HomePeerID: e.Home, AnySource: e.AnySource}
	if !e.Until.IsZero() {
		x.Until = e.Until.DeepCopy()
	}
	if !e.AnySource {
		x.From = addresses(e.From)
	}
	open := map[Destination]bool{}
	for _, d := range e.To {
		open[d] = true
	}
	return x, destinations(open)
}

// kept returns what is open now for contracts that are not known completely.
func kept(exposed []Exposed, current []v1alpha1.Exposure) []Exposed {
	var out []Exposed
	for _, s := range current {
		if !slices.ContainsFunc(exposed, func(e Exposed) bool { return e.Unknown && e.Contract == s.Contract }) {
			continue
		}
		e := Exposed{Contract: s.Contract, Namespace: s.Namespace, Third: s.DestinationPeerID, AnySource: s.AnySource, From: kube.Addrs(s.From), Home: s.HomePeerID}
		if s.Until != nil {
			e.Until = *s.Until
		}
		e.To = slices.Collect(maps.Keys(openOf(s.To)))
		out = append(out, e)
	}
	return out
}

// merged returns one Exposed for each namespace of each contract, sorted.
func merged(list []Exposed) []Exposed {
	sorted := slices.SortedStableFunc(slices.Values(list), compareExposed)
	var out []Exposed
	for _, e := range sorted {
		if n := len(out); n > 0 && compareExposed(out[n-1], e) == 0 {
			last := &out[n-1]
			last.AnySource = last.AnySource || e.AnySource
			last.From, last.To, last.Known = slices.Concat(last.From, e.From), slices.Concat(last.To, e.To), slices.Concat(last.Known, e.Known)
			last.Opened = together(last.Opened, e.Opened)
			continue
		}
		out = append(out, e)
	}
	return out
}

func compareExposed(a, b Exposed) int {
	return cmp.Or(cmp.Compare(a.Contract, b.Contract), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Third, b.Third), cmp.Compare(a.Home, b.Home))
}

// cut returns as much of a list as there is room for, and reduces the room.
func cut(list []string, room *int) []string {
	list = list[:min(len(list), max(*room, 0))]
	*room -= len(list)
	return list
}

func sizeOf(to []v1alpha1.Destination) int {
	n := 0
	for _, d := range to {
		n += len(d.Addresses) + len(d.Ports)
	}
	return n
}

// destinations groups destinations by the ports that are open: addresses with the same ports are listed together.
func destinations(open map[Destination]bool) []v1alpha1.Destination {
	ports := map[netip.Addr][]v1alpha1.DestinationPort{}
	for d := range open {
		ports[d.Addr] = append(ports[d.Addr], d.Port)
	}
	groups := map[string]*v1alpha1.Destination{}
	for _, a := range slices.SortedFunc(maps.Keys(ports), netip.Addr.Compare) {
		d := v1alpha1.Destination{AnyPort: open[Destination{Addr: a}]}
		if !d.AnyPort {
			d.Ports = slices.SortedFunc(slices.Values(ports[a]), func(a, b v1alpha1.DestinationPort) int {
				return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
			})
		}
		key := fmt.Sprint(d.AnyPort, d.Ports)
		if groups[key] == nil {
			groups[key] = &d
		}
		groups[key].Addresses = append(groups[key].Addresses, a.String())
	}
	var out []v1alpha1.Destination
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		out = append(out, *groups[key])
	}
	return out
}

// addresses returns addresses as text, sorted, without duplicates.
func addresses(addrs []netip.Addr) []string {
	sorted := slices.Clone(addrs)
	slices.SortFunc(sorted, netip.Addr.Compare)
	return wire.Texts(slices.Compact(sorted))
}

// Common returns what both lists of exposures open.
func Common(a, b []v1alpha1.Exposure) []v1alpha1.Exposure {
	type key struct{ contract, namespace, third, home string }
	other := make(map[key]*v1alpha1.Exposure, len(b))
	for i := range b {
		other[key{b[i].Contract, b[i].Namespace, b[i].DestinationPeerID, b[i].HomePeerID}] = &b[i]
	}
	var out []v1alpha1.Exposure
	for _, x := range a {
		y := other[key{x.Contract, x.Namespace, x.DestinationPeerID, x.HomePeerID}]
		if y == nil {
			continue
		}
		common := v1alpha1.Exposure{Contract: x.Contract, Namespace: x.Namespace, DestinationPeerID: x.DestinationPeerID, HomePeerID: x.HomePeerID, Until: earlier(x.Until, y.Until), AnySource: x.AnySource && y.AnySource}
		switch {
		case common.AnySource:
		case x.AnySource:
			common.From = y.From
		case y.AnySource:
			common.From = x.From
		default:
			common.From = both(x.From, y.From)
		}
		if equality.Semantic.DeepEqual(x.To, y.To) {
			common.To = x.To
		} else {
			common.To = destinations(meetOpen(openOf(x.To), openOf(y.To)))
		}
		if len(common.To) > 0 && (common.AnySource || len(common.From) > 0) {
			out = append(out, common)
		}
	}
	return out
}

// earlier returns the earlier of two times; nil means never.
func earlier(a, b *metav1.Time) *metav1.Time {
	if b == nil || a != nil && a.Before(b) {
		return a
	}
	return b
}

// both returns the elements of a list that another has, too.
func both(a, b []string) []string {
	has := sets.New(b...)
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !has.Has(s) })
}

// openOf returns what is open; the zero port means every port.
func openOf(to []v1alpha1.Destination) map[Destination]bool {
	out := map[Destination]bool{}
	for _, d := range to {
		ports := d.Ports
		if d.AnyPort {
			ports = []v1alpha1.DestinationPort{{}}
		}
		for _, a := range kube.Addrs(d.Addresses) {
			for _, p := range ports {
				out[Destination{Addr: a, Port: p}] = true
			}
		}
	}
	return out
}

func meetOpen(a, b map[Destination]bool) map[Destination]bool {
	out := map[Destination]bool{}
	for _, sides := range [][2]map[Destination]bool{{a, b}, {b, a}} {
		for d := range sides[0] {
			if sides[1][d] || sides[1][Destination{Addr: d.Addr}] {
				out[d] = true
			}
		}
	}
	return out
}
