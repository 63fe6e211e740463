package peering

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Offer is what a provider offers a peer now. It binds neither side.
type Offer struct {
	// Available reports whether a request would be granted at all. If not, Message says why, and
	// the other fields except NodeLabels, Services and Pools are empty.
	Available bool
	Message   string
	// Resources are the amounts.
	Resources Resources
	// Price is what they cost.
	Price PriceList
	// NodeLabels are labels that all its nodes have.
	NodeLabels map[string]string
	// Architectures are those of its nodes, sorted.
	Architectures []string
	// StorageClasses are those that it has, sorted.
	StorageClasses []string
	// Duration is the longest term of a contract.
	Duration time.Duration
	// Services are those that the peer may import, sorted by namespace and name.
	Services []OfferedService
	// Pools are those that the peer may ask for by name, sorted.
	Pools []OfferedPool
}

// OfferedPool is what a provider offers of one pool of its nodes.
type OfferedPool struct {
	Name string
	// Resources are the amounts. They are empty while nothing is left.
	Resources Resources
	// Price is what they cost, and NodeLabels what a virtual node of it would have.
	Price      PriceList
	NodeLabels map[string]string
}

// Size is how much it counts against MaxPoolsSize.
func (p OfferedPool) Size() int {
	n := len(p.Name)
	for _, m := range []map[string]string{p.Resources.Strings(), p.NodeLabels} {
		for key, value := range m {
			n += len(key) + len(value)
		}
	}
	for key, price := range p.Price.PerHour {
		n += len(key) + len(price.String())
	}
	return n
}

// How an offered service is reached, as in the Multi-Cluster Services API (KEP-1645).
const (
	// ServiceClusterSetIP has one address for all its pods.
	ServiceClusterSetIP = "ClusterSetIP"
	// ServiceHeadless has none: its name resolves to the addresses of its pods.
	ServiceHeadless = "Headless"
)

// OfferedService is a Service that a peer may import.
type OfferedService struct {
	// Namespace and Name are those in the cluster that has it.
	Namespace, Name string
	// Type is ServiceClusterSetIP or ServiceHeadless.
	Type string
	// Ports is what it listens on, in its own order.
	Ports []ServicePort
	// InSet means that it is exported to a cluster set that the peer is in. It is not sent with an
	// offer.
	InSet bool
}

// Key identifies it: namespace/name.
func (s OfferedService) Key() string { return s.Namespace + "/" + s.Name }

// Size is how much it counts against MaxServicesSize.
func (s OfferedService) Size() int {
	n := serviceSize + len(s.Namespace) + len(s.Name)
	for _, p := range s.Ports {
		n += serviceSize + len(p.Name) + len(p.AppProtocol)
	}
	return n
}

// Equal reports whether two are the same in everything.
func (s OfferedService) Equal(o OfferedService) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.Type == o.Type && s.InSet == o.InSet && slices.Equal(s.Ports, o.Ports)
}

// CompareServices orders services by namespace and name.
func CompareServices(a, b OfferedService) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// SameServices reports whether two sorted lists of services are the same in everything.
func SameServices(a, b []OfferedService) bool { return slices.EqualFunc(a, b, OfferedService.Equal) }

// Change is how much an offer changed.
type Change uint8

// The changes.
const (
	// Unchanged: not at all.
	Unchanged Change = iota
	// ChangedLittle: only in amounts, and in each by little.
	ChangedLittle
	// Changed: in any other way.
	Changed
)

// Compare returns how much two offers differ, whichever is newer. A little means less than
// percent of the larger amount.
func (o Offer) Compare(other Offer, percent int) Change {
	if o.Available != other.Available || o.Message != other.Message || o.Duration != other.Duration || !o.Price.Equal(other.Price) ||
		!maps.Equal(o.NodeLabels, other.NodeLabels) || !slices.Equal(o.Architectures, other.Architectures) ||
		!slices.Equal(o.StorageClasses, other.StorageClasses) || !SameServices(o.Services, other.Services) ||
		len(o.Pools) != len(other.Pools) {
		return Changed
	}
	out := compareAmounts(o.Resources, other.Resources, percent)
	for i, p := range o.Pools {
		q := other.Pools[i]
		if p.Name != q.Name || !p.Price.Equal(q.Price) || !maps.Equal(p.NodeLabels, q.NodeLabels) {
			return Changed
		}
		out = max(out, compareAmounts(p.Resources, q.Resources, percent))
	}
	return out
}

func compareAmounts(a, b Resources, percent int) Change {
	if len(a) != len(b) {
		return Changed
	}
	out := Unchanged
	for name, less := range a {
		more, ok := b[name]
		if !ok {
			return Changed
		}
		if more.Cmp(less) < 0 {
			less, more = more, less
		}
		switch {
		case more.Cmp(less) == 0:
		case more.Sub(less).Cmp(more.Percent(percent)) >= 0:
			return Changed
		default:
			out = ChangedLittle
		}
	}
	return out
}
