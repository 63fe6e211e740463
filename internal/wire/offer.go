package wire

import (
	"maps"
	"slices"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// OfferSnapshot writes a whole offer, its services included: the first message of
// a watch.
func OfferSnapshot(o peering.Offer) *ententev1.WatchOfferResponse {
	m := offerSnapshot(o)
	m.Offer.Services = servicesTo(o.Services)
	return m
}

// offerSnapshot writes a whole offer but for its services.
func offerSnapshot(o peering.Offer) *ententev1.WatchOfferResponse {
	m := &ententev1.Offer{
		Available: o.Available, Message: peering.Text(o.Message, peering.MaxMessageLen),
		Price: PriceListTo(o.Price), NodeLabels: o.NodeLabels,
		Architectures: o.Architectures, StorageClasses: o.StorageClasses, Duration: writeDuration(o.Duration),
	}
	if len(o.Resources) > 0 {
		m.Resources = ResourcesTo(o.Resources)
	}
	return &ententev1.WatchOfferResponse{Snapshot: true, Offer: m}
}

// OfferChange writes what of an offer changed, and returns nil if nothing did.
// What a change cannot say, because a field that is not set says nothing, is said
// by the whole offer: that there is none, or that a list is empty now. Services are
// said by their changes in any case.
func OfferChange(told, now peering.Offer) *ententev1.WatchOfferResponse {
	m := &ententev1.Offer{}
	var removed []string
	for _, name := range told.Resources.Names() {
		if _, ok := now.Resources[name]; !ok {
			removed = append(removed, name)
		}
	}
	other := peering.Resources{}
	for name, amount := range now.Resources {
		if was, ok := told.Resources[name]; !ok || was.String() != amount.String() {
			other[name] = amount
		}
	}
	if len(other) > 0 {
		m.Resources = ResourcesTo(other)
	}
	services, removedServices := servicesChange(told.Services, now.Services)
	changed := len(removed)+len(other)+len(services)+len(removedServices) > 0
	whole := !told.Available || !now.Available
	field := func(same, empty bool, set func()) {
		if !same {
			changed, whole = true, whole || empty
			set()
		}
	}
	field(told.Available == now.Available, true, func() {})
	field(told.Message == now.Message, now.Message == "", func() { m.Message = peering.Text(now.Message, peering.MaxMessageLen) })
	field(told.Price.Equal(now.Price), len(now.Price.PerHour) == 0, func() { m.Price = PriceListTo(now.Price) })
	field(maps.Equal(told.NodeLabels, now.NodeLabels), len(now.NodeLabels) == 0, func() { m.NodeLabels = now.NodeLabels })
	field(slices.Equal(told.Architectures, now.Architectures), len(now.Architectures) == 0, func() { m.Architectures = now.Architectures })
	field(slices.Equal(told.StorageClasses, now.StorageClasses), len(now.StorageClasses) == 0, func() { m.StorageClasses = now.StorageClasses })
	field(told.Duration == now.Duration, now.Duration == 0, func() { m.Duration = writeDuration(now.Duration) })
	if !changed {
		return nil
	}
	out := &ententev1.WatchOfferResponse{Offer: m, Removed: removed}
	if whole {
		out = offerSnapshot(now)
	}
	out.Offer.Services, out.RemovedServices = servicesTo(services), removedServices
	return out
}

// ApplyOffer returns the offer after a message of WatchOffer. A change needs an offer
// that it changes, so the first message has to be a whole offer, and one that
// follows an offer of nothing. The receiver is left as it is.
func ApplyOffer(o peering.Offer, m *ententev1.WatchOfferResponse) (peering.Offer, error) {
	if m.GetOffer() == nil {
		return peering.Offer{}, invalid("offer", "is required")
	}
	said, err := offerFrom(m.GetOffer())
	if err != nil {
		return peering.Offer{}, err
	}
	if said.Services, err = servicesApply(o.Services, m); err != nil {
		return peering.Offer{}, err
	}
	if m.GetSnapshot() && !said.Available {
		return peering.Offer{Message: said.Message, Services: said.Services}, nil
	}
	if m.GetSnapshot() {
		return said, nil
	}
	if !o.Available {
		return peering.Offer{}, invalid("snapshot", "want the whole offer before a change of it")
	}
	if len(m.GetRemoved()) > peering.MaxResources {
		return peering.Offer{}, invalid("removed", "want at most %d", peering.MaxResources)
	}
	o.Resources, o.Services = o.Resources.Clone(), said.Services
	for _, name := range m.GetRemoved() {
		delete(o.Resources, name)
	}
	maps.Copy(o.Resources, said.Resources)
	if len(o.Resources) > peering.MaxResources {
		return peering.Offer{}, invalid("offer.resources", "comes to %d resources, want at most %d", len(o.Resources), peering.MaxResources)
	}
	if said.Message != "" {
		o.Message = said.Message
	}
	if m.GetOffer().GetPrice() != nil {
		o.Price = said.Price
	}
	if said.NodeLabels != nil {
		o.NodeLabels = said.NodeLabels
	}
	if said.Architectures != nil {
		o.Architectures = said.Architectures
	}
	if said.StorageClasses != nil {
		o.StorageClasses = said.StorageClasses
	}
	if said.Duration != 0 {
		o.Duration = said.Duration
	}
	return o, nil
}

// offerFrom reads what a message says of an offer, but for services.
func offerFrom(m *ententev1.Offer) (peering.Offer, error) {
	o := peering.Offer{Available: m.GetAvailable(), Message: peering.Text(m.GetMessage(), peering.MaxMessageLen)}
	var err error
	if o.Resources, err = ResourcesFrom("offer.resources", m.GetResources()); err != nil {
		return peering.Offer{}, err
	}
	if o.Price, err = PriceListFrom("offer.price", m.GetPrice()); err != nil {
		return peering.Offer{}, err
	}
	if o.NodeLabels, err = readLabels("offer.node_labels", m.GetNodeLabels(), peering.CheckNodeLabels); err != nil {
		return peering.Offer{}, err
	}
	if o.Architectures, err = readNames("offer.architectures", m.GetArchitectures(), peering.MaxArchitectures); err != nil {
		return peering.Offer{}, err
	}
	if o.StorageClasses, err = readNames("offer.storage_classes", m.GetStorageClasses(), peering.MaxStorageClasses); err != nil {
		return peering.Offer{}, err
	}
	if o.Duration, err = readDuration("offer.duration", m.GetDuration()); err != nil {
		return peering.Offer{}, err
	}
	return o, nil
}
