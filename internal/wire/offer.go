package wire

import (
	"cmp"
	"slices"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// OfferTo writes an offer. Services that equal those of sent, the offer of the message before,
// are left out. sent is nil for the first message.
func OfferTo(o peering.Offer, sent *peering.Offer) *ententev1.WatchOfferResponse {
	m := &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{
		Available: o.Available, Message: peering.Text(o.Message, peering.MaxMessageLen),
		Price: PriceListTo(o.Price), NodeLabels: o.NodeLabels,
		Architectures: o.Architectures, StorageClasses: o.StorageClasses, Duration: writeDuration(o.Duration),
	}}
	for _, p := range o.Pools {
		pool := &ententev1.OfferedPool{Name: p.Name, Price: PriceListTo(p.Price), NodeLabels: p.NodeLabels}
		if len(p.Resources) > 0 {
			pool.Resources = ResourcesTo(p.Resources)
		}
		m.Offer.Pools = append(m.Offer.Pools, pool)
	}
	if len(o.Resources) > 0 {
		m.Offer.Resources = ResourcesTo(o.Resources)
	}
	if sent != nil && peering.SameServices(o.Services, sent.Services) {
		m.ServicesUnchanged = true
	} else {
		m.Offer.Services = servicesTo(o.Services)
	}
	return m
}

// OfferFrom reads a message of WatchOffer. last is the offer of the message before, empty for the
// first one. Of an offer of nothing it keeps the message, the nodes' labels, the services and the pools.
func OfferFrom(m *ententev1.WatchOfferResponse, last peering.Offer) (peering.Offer, error) {
	if m.GetOffer() == nil {
		return peering.Offer{}, invalid("offer", "is required")
	}
	o, err := offerFrom(m.GetOffer())
	if err != nil {
		return peering.Offer{}, err
	}
	o.Services = last.Services
	if !m.GetServicesUnchanged() {
		if o.Services, err = servicesFrom("offer.services", m.GetOffer().GetServices()); err != nil {
			return peering.Offer{}, err
		}
	}
	if !o.Available {
		return peering.Offer{Message: o.Message, NodeLabels: o.NodeLabels, Services: o.Services, Pools: o.Pools}, nil
	}
	return o, nil
}

// offerFrom reads an offer without its services.
func offerFrom(m *ententev1.Offer) (peering.Offer, error) {
	o := peering.Offer{Available: m.GetAvailable(), Message: peering.Text(m.GetMessage(), peering.MaxMessageLen)}
	var err error
	keep(&err, &o.Resources)(ResourcesFrom("offer.resources", m.GetResources()))
	keep(&err, &o.Price)(PriceListFrom("offer.price", m.GetPrice()))
	keep(&err, &o.NodeLabels)(readLabels("offer.node_labels", m.GetNodeLabels(), peering.CheckNodeLabels))
	keep(&err, &o.Architectures)(readNames("offer.architectures", m.GetArchitectures(), peering.MaxArchitectures))
	keep(&err, &o.StorageClasses)(readNames("offer.storage_classes", m.GetStorageClasses(), peering.MaxStorageClasses))
	keep(&err, &o.Duration)(readDuration("offer.duration", m.GetDuration()))
	keep(&err, &o.Pools)(poolsFrom("offer.pools", m.GetPools()))
	return read(o, err)
}

// poolsFrom reads the pools of an offer, and sorts them by name.
func poolsFrom(field string, list []*ententev1.OfferedPool) ([]peering.OfferedPool, error) {
	pools, err := readAll(field, list, peering.MaxPools, poolFrom)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(pools, func(a, b peering.OfferedPool) int { return cmp.Compare(a.Name, b.Name) })
	size := 0
	for i, p := range pools {
		if size += p.Size(); size > peering.MaxPoolsSize {
			return nil, invalid(field, "are larger than %d bytes", peering.MaxPoolsSize)
		}
		if i > 0 && pools[i-1].Name == p.Name {
			return nil, invalid(field, "have %s twice", p.Name)
		}
	}
	return pools, nil
}

func poolFrom(field string, m *ententev1.OfferedPool) (peering.OfferedPool, error) {
	var p peering.OfferedPool
	var err error
	if m.GetName() == "" {
		err = invalid(field+".name", "is required")
	}
	keep(&err, &p.Name)(readPool(field+".name", m.GetName()))
	keep(&err, &p.Resources)(ResourcesFrom(field+".resources", m.GetResources()))
	keep(&err, &p.Price)(PriceListFrom(field+".price", m.GetPrice()))
	keep(&err, &p.NodeLabels)(readLabels(field+".node_labels", m.GetNodeLabels(), peering.CheckNodeLabels))
	return read(p, err)
}
