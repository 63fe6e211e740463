package wire

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// randomOffer returns an offer of a few values, so that two of them often agree
// in some.
func randomOffer(t testing.TB, r *rand.Rand) peering.Offer {
	t.Helper()
	maybe := func(list ...string) []string {
		var out []string
		for _, s := range list {
			if r.IntN(2) == 0 {
				out = append(out, s)
			}
		}
		return out
	}
	o := peering.Offer{
		Available: r.IntN(4) > 0, Message: []string{"", "soon", "never"}[r.IntN(3)], Resources: peering.Resources{},
		Architectures: maybe("amd64", "arm64"), StorageClasses: maybe("fast", "slow"), Duration: time.Duration(r.IntN(3)) * time.Hour,
	}
	for _, name := range maybe("cpu", "memory", "pods", "nvidia.com/gpu") {
		o.Resources[name] = peering.Whole(r.Int64N(3))
	}
	for _, name := range maybe("a", "b") {
		if o.NodeLabels == nil {
			o.NodeLabels = map[string]string{}
		}
		o.NodeLabels[name] = "x"
	}
	for _, name := range maybe("cpu", "memory") {
		o.Price.Currency = "EUR"
		if o.Price.PerHour == nil {
			o.Price.PerHour = map[string]peering.Decimal{}
		}
		o.Price.PerHour[name] = decimal(t, fmt.Sprint(r.IntN(2)))
	}
	for _, name := range maybe("a/db", "a/web", "a-b/web", "b/db") {
		s := service(t, name)
		for range r.IntN(2) {
			s.Ports = append(s.Ports, peering.ServicePort{Protocol: "TCP", Port: int32(1 + r.IntN(2))})
		}
		o.Services = append(o.Services, s)
	}
	if !o.Available {
		return peering.Offer{Message: o.Message, Services: o.Services}
	}
	return o
}

// service returns a service by namespace/name, without ports.
func service(t testing.TB, key string) peering.OfferedService {
	t.Helper()
	namespace, name, ok := strings.Cut(key, "/")
	if !ok {
		t.Fatal(key)
	}
	return peering.OfferedService{Namespace: namespace, Name: name, Type: peering.ServiceHeadless}
}

// servicesOf returns so many services with so many ports each.
func servicesOf(services, ports int) []peering.OfferedService {
	var out []peering.OfferedService
	for i := range services {
		s := peering.OfferedService{Namespace: "shop", Name: fmt.Sprintf("s-%04d", i), Type: peering.ServiceClusterSetIP}
		for p := range ports {
			s.Ports = append(s.Ports, peering.ServicePort{Name: fmt.Sprintf("p-%d", p), Protocol: "TCP", Port: int32(80 + p)})
		}
		out = append(out, s)
	}
	return out
}

func TestOffersCrossUnchanged(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var sent *peering.Offer
	var received peering.Offer
	same := 0
	for range 5000 {
		next := randomOffer(t, r)
		if sent != nil && r.IntN(3) == 0 { // the same services
			next.Services = sent.Services
		}
		m := OfferTo(next, sent)
		if m.GetServicesUnchanged() {
			same++
			if len(m.GetOffer().GetServices()) > 0 {
				t.Fatalf("services that did not change are sent: %v", m)
			}
		}
		var err error
		if received, err = OfferFrom(m, received); err != nil {
			t.Fatalf("%v\nof %+v", err, next)
		}
		if next.Compare(received, 0) != peering.Unchanged {
			t.Fatalf("received\n%+v\nof\n%+v", received, next)
		}
		sent = &next
	}
	if same == 0 {
		t.Error("services never stayed the same")
	}
}

// However many services there are, a change of something else does not send them again.
func TestServicesThatDoNotChangeAreNotSentAgain(t *testing.T) {
	t.Parallel()
	offer := peering.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(4)}, Duration: time.Hour, Services: servicesOf(200, 3)}
	next := offer
	next.Resources = peering.Resources{"cpu": peering.Whole(3)}
	first, later := OfferTo(offer, nil), OfferTo(next, &offer)
	if whole, change := proto.Size(first), proto.Size(later); change > 50 || whole < 7000 {
		t.Errorf("the first message has %d bytes, the next %d", whole, change)
	}
}

// A peer of a later version may offer what this one has no word for.
func TestServicesOfAKindThatIsNotKnownAreLeftOut(t *testing.T) {
	t.Parallel()
	services := servicesTo(servicesOf(3, 1))
	services[0].Type, services[1].Ports[0].Protocol = "ClusterSetName", "QUIC"
	got, err := OfferFrom(&ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Services: services}}, peering.Offer{})
	if err != nil || len(got.Services) != 1 || got.Services[0].Name != "s-0002" {
		t.Errorf("received %+v, %v", got.Services, err)
	}
}

func TestServicesAreBounded(t *testing.T) {
	t.Parallel()
	var largest []peering.OfferedService
	size := 0
	for i, s := range servicesOf(peering.MaxServices, 3) {
		s.Namespace = strings.Repeat("n", 20)
		if size += s.Size(); size > peering.MaxServicesSize {
			break
		}
		largest = append(largest, s)
		if i == 0 && s.Size() < 3*64 {
			t.Errorf("a service counts %d", s.Size())
		}
	}
	m := OfferTo(peering.Offer{Services: largest}, nil)
	if _, err := OfferFrom(m, peering.Offer{}); err != nil {
		t.Errorf("%d services are refused: %v", len(largest), err)
	}
	if got := proto.Size(m); got > peering.MaxServicesSize {
		t.Errorf("%d services that count %d take %d bytes", len(largest), size, got)
	}
}

func TestOffersThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]refusedOffer{
		"no offer":          {m: &ententev1.WatchOfferResponse{ServicesUnchanged: true}, field: "offer"},
		"a negative amount": {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "-1"}}}}, field: "offer.resources"},
		"more resources than there can be": {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{
			Resources: &ententev1.ResourceList{Amounts: many2(65)},
		}}, field: "offer.resources"},
		"more architectures than exist":       {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Architectures: many(17)}}, field: "offer.architectures"},
		"an architecture with a newline":      {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Architectures: []string{"amd64\n"}}}, field: "offer.architectures"},
		"more storage classes than allowed":   {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{StorageClasses: many(65)}}, field: "offer.storage_classes"},
		"a label that no node has":            {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{NodeLabels: map[string]string{"": ""}}}, field: "offer.node_labels"},
		"a price without a currency":          {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Price: &ententev1.PriceList{PerHour: map[string]string{"cpu": "1"}}}}, field: "offer.price"},
		"more services than allowed":          refusedServices("offer.services", servicesTo(servicesOf(peering.MaxServices+1, 0))...),
		"services that are too large in all":  refusedServices("offer.services", servicesTo(servicesOf(peering.MaxServices, 4))...),
		"a service twice":                     refusedServices("offer.services[1]", append(servicesTo(servicesOf(1, 1)), servicesTo(servicesOf(1, 1))...)...),
		"a service without a namespace":       refusedServices("offer.services[0].namespace", &ententev1.OfferedService{Name: "a", Type: peering.ServiceHeadless}),
		"a service without a name":            refusedServices("offer.services[0].name", &ententev1.OfferedService{Namespace: "a", Type: peering.ServiceHeadless}),
		"a service without a type":            refusedServices("offer.services[0].type", &ententev1.OfferedService{Namespace: "a", Name: "a"}),
		"a namespace that draws":              refusedServices("offer.services[0].namespace", &ententev1.OfferedService{Namespace: "a\x1b[2J", Name: "a", Type: peering.ServiceHeadless}),
		"a name with a slash":                 refusedServices("offer.services[0].name", &ententev1.OfferedService{Namespace: "a", Name: "b/c", Type: peering.ServiceHeadless}),
		"a name that is too long":             refusedServices("offer.services[0].name", &ententev1.OfferedService{Namespace: "a", Name: strings.Repeat("a", 64), Type: peering.ServiceHeadless}),
		"more ports than a service has":       refusedServices("offer.services[0].ports", servicesTo(servicesOf(1, peering.MaxServicePorts+1))...),
		"a million ports":                     refusedServices("offer.services[0].ports", &ententev1.OfferedService{Namespace: "a", Name: "a", Type: peering.ServiceHeadless, Ports: make([]*ententev1.OfferedServicePort, 1_000_000)}),
		"a port twice":                        refusedPort("offer.services[0].ports[1].name", &ententev1.OfferedServicePort{Protocol: "TCP", Port: 1}, &ententev1.OfferedServicePort{Protocol: "UDP", Port: 1}),
		"a port's name with a newline":        refusedPort("offer.services[0].ports[0].name", &ententev1.OfferedServicePort{Name: "a\n", Protocol: "TCP", Port: 1}),
		"a port without a protocol":           refusedPort("offer.services[0].ports[0].protocol", &ententev1.OfferedServicePort{Port: 1}),
		"an application protocol with spaces": refusedPort("offer.services[0].ports[0].app_protocol", &ententev1.OfferedServicePort{Protocol: "TCP", AppProtocol: "a b", Port: 1}),
		"an application protocol too long":    refusedPort("offer.services[0].ports[0].app_protocol", &ententev1.OfferedServicePort{Protocol: "TCP", AppProtocol: strings.Repeat("a", 318), Port: 1}),
		"port 0":                              refusedPort("offer.services[0].ports[0].port", &ententev1.OfferedServicePort{Protocol: "TCP"}),
		"port 65536":                          refusedPort("offer.services[0].ports[0].port", &ententev1.OfferedServicePort{Protocol: "TCP", Port: 65536}),
		"a port that looks like another":      refusedPort("offer.services[0].ports[0].port", &ententev1.OfferedServicePort{Protocol: "TCP", Port: 1<<32 - 1}),
		"more pools than there may be":        refusedPools("offer.pools", make([]*ententev1.OfferedPool, peering.MaxPools+1)...),
		"pools that are too large in all":     refusedPools("offer.pools", largePools()...),
		"a pool twice":                        refusedPools("offer.pools", &ententev1.OfferedPool{Name: "a"}, &ententev1.OfferedPool{Name: "b"}, &ententev1.OfferedPool{Name: "a"}),
		"a pool without a name":               refusedPools("offer.pools[0].name", &ententev1.OfferedPool{}),
		"a pool that draws":                   refusedPools("offer.pools[0].name", &ententev1.OfferedPool{Name: "a\x1b[2J"}),
		"a pool of less than nothing":         refusedPools("offer.pools[0].resources", &ententev1.OfferedPool{Name: "a", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "-1"}}}),
		"a pool of more resources than are":   refusedPools("offer.pools[0].resources", &ententev1.OfferedPool{Name: "a", Resources: &ententev1.ResourceList{Amounts: many2(65)}}),
		"a pool at a price in no currency":    refusedPools("offer.pools[0].price", &ententev1.OfferedPool{Name: "a", Price: &ententev1.PriceList{PerHour: map[string]string{"cpu": "1"}}}),
		"a pool with a label of no node":      refusedPools("offer.pools[0].node_labels", &ententev1.OfferedPool{Name: "a", NodeLabels: map[string]string{"": ""}}),
		"a duration below zero":               {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Duration: durationpb.New(-1)}}, field: "offer.duration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := OfferFrom(tc.m, peering.Offer{})
			refused(t, err, tc.field)
		})
	}
}

type refusedOffer struct {
	m     *ententev1.WatchOfferResponse
	field string
}

func refusedServices(field string, services ...*ententev1.OfferedService) refusedOffer {
	return refusedOffer{m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Services: services}}, field: field}
}

func refusedPools(field string, pools ...*ententev1.OfferedPool) refusedOffer {
	return refusedOffer{m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Pools: pools}}, field: field}
}

// largePools is pools each of which is small enough, and all together are not.
func largePools() []*ententev1.OfferedPool {
	labels := map[string]string{}
	for i := range peering.MaxNodeLabels {
		labels[fmt.Sprintf("%s/%d", strings.Repeat("a", 60), i)] = strings.Repeat("b", 63)
	}
	var out []*ententev1.OfferedPool
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		out = append(out, &ententev1.OfferedPool{Name: name, NodeLabels: labels})
	}
	return out
}

func refusedPort(field string, ports ...*ententev1.OfferedServicePort) refusedOffer {
	return refusedServices(field, &ententev1.OfferedService{Namespace: "a", Name: "a", Type: peering.ServiceHeadless, Ports: ports})
}

func TestAnUnavailableOfferHasLabelsAndNoResources(t *testing.T) {
	t.Parallel()
	m := OfferTo(fullOffer(t), nil)
	m.Offer.Available, m.Offer.Message = false, "no\x1b[2J"
	got, err := OfferFrom(m, fullOffer(t))
	if err != nil || got.Available || len(got.Resources) > 0 || got.Message != "no [2J" || !maps.Equal(got.NodeLabels, fullOffer(t).NodeLabels) || len(got.NodeLabels) == 0 {
		t.Errorf("received %+v, %v", got, err)
	}
}
