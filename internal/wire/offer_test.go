package wire

import (
	"fmt"
	"math/rand/v2"
	"slices"
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

func TestAnOfferAndItsChangesComeToTheSame(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	told := peering.Offer{}
	heard, err := ApplyOffer(peering.Offer{}, OfferSnapshot(told))
	if err != nil {
		t.Fatal(err)
	}
	snapshots, changes, same := 0, 0, 0
	for range 5000 {
		next := randomOffer(t, r)
		if r.IntN(3) == 0 { // something small
			next = told
			next.Resources = told.Resources.Clone()
			if told.Available {
				next.Resources["cpu"] = peering.Whole(r.Int64N(5))
			}
		}
		m := OfferChange(told, next)
		switch {
		case m == nil:
			same++
			if OfferChange(heard, next) != nil {
				t.Fatalf("nothing was said of the change from\n%+v to\n%+v", told, next)
			}
			continue
		case m.GetSnapshot():
			snapshots++
		default:
			changes++
		}
		if heard, err = ApplyOffer(heard, m); err != nil {
			t.Fatalf("%v\nof the change from\n%+v to\n%+v", err, told, next)
		}
		if diff := OfferChange(next, heard); diff != nil {
			t.Fatalf("heard\n%+v\nof\n%+v: %v", heard, next, diff)
		}
		told = next
	}
	if snapshots == 0 || changes == 0 || same == 0 {
		t.Errorf("%d snapshots, %d changes, %d times nothing: one of them was not tried", snapshots, changes, same)
	}
}

func TestAChangeIsAsBigAsWhatChanged(t *testing.T) {
	t.Parallel()
	offer := peering.Offer{Available: true, Resources: peering.Resources{}, NodeLabels: map[string]string{}, Duration: time.Hour}
	for i := range 40 {
		offer.Resources[fmt.Sprintf("example.com/device-%d", i)] = peering.Whole(100)
		offer.NodeLabels[fmt.Sprintf("example.com/label-%d", i)] = "some-value"
	}
	next := offer
	next.Resources = offer.Resources.Clone()
	next.Resources["example.com/device-7"] = peering.Whole(99)
	whole, change := proto.Size(OfferSnapshot(next)), proto.Size(OfferChange(offer, next))
	if change > 50 || whole < 2000 {
		t.Errorf("one amount of forty took %d bytes, the whole has %d", change, whole)
	}
}

// However many services there are, and whether or not anything is available, a
// change of one takes few bytes, and a change of something else says nothing of
// them.
func TestServicesAreToldByTheirChanges(t *testing.T) {
	t.Parallel()
	lends := peering.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(4)}, Duration: time.Hour, Services: servicesOf(200, 3)}
	for name, offer := range map[string]peering.Offer{"that lends": lends, "that lends nothing": {Message: "nothing is left", Services: lends.Services}} {
		whole := OfferSnapshot(offer)
		if got := proto.Size(whole); got < 7000 {
			t.Errorf("an offer %s has %d bytes in all", name, got)
		}
		first, err := ApplyOffer(peering.Offer{}, whole)
		if err != nil {
			t.Fatal(err)
		}
		for change, tc := range map[string]struct {
			edit           func(*peering.Offer)
			size           int
			added, removed int
		}{
			"a service that is new":    {func(o *peering.Offer) { o.Services = slices.Insert(o.Services, 100, service(t, "shop/s-0099x")) }, 60, 1, 0},
			"a service that is gone":   {func(o *peering.Offer) { o.Services = slices.Delete(o.Services, 7, 8) }, 50, 0, 1},
			"another port":             {func(o *peering.Offer) { o.Services[9].Ports = slices.Clone(o.Services[9].Ports)[:2] }, 90, 1, 0},
			"another type":             {func(o *peering.Offer) { o.Services[9].Type = peering.ServiceHeadless }, 100, 1, 0},
			"a service after another":  {func(o *peering.Offer) { o.Services[199] = service(t, "shop/t") }, 60, 1, 1},
			"all of them gone":         {func(o *peering.Offer) { o.Services = nil }, 200 * 15, 0, 200},
			"nothing lent any more":    {func(o *peering.Offer) { *o = peering.Offer{Message: "no more", Services: o.Services} }, 20, 0, 0},
			"something lent":           {func(o *peering.Offer) { o.Available, o.Resources = true, peering.Resources{"cpu": peering.Whole(7)} }, 40, 0, 0},
			"another price":            {func(o *peering.Offer) { o.Available, o.Message = true, "soon" }, 40, 0, 0},
			"another word for nothing": {func(o *peering.Offer) { *o = peering.Offer{Message: "not now", Services: o.Services} }, 20, 0, 0},
			"nothing, and one less":    {func(o *peering.Offer) { *o = peering.Offer{Message: "gone", Services: o.Services[1:]} }, 50, 0, 1},
			"two at once, and one less": {func(o *peering.Offer) {
				o.Services = append(o.Services[1:], service(t, "shop/u"), service(t, "shop/v"))
			}, 100, 2, 1},
		} {
			next := offer
			next.Services = slices.Clone(offer.Services)
			tc.edit(&next)
			m := OfferChange(offer, next)
			if m == nil {
				t.Errorf("%s, of an offer %s, is not told", change, name)
				continue
			}
			if got := proto.Size(m); got > tc.size || len(m.GetOffer().GetServices()) != tc.added || len(m.GetRemovedServices()) != tc.removed {
				t.Errorf("%s, of an offer %s, took %d bytes with %d services told and %d taken back", change, name, got, len(m.GetOffer().GetServices()), len(m.GetRemovedServices()))
			}
			heard, err := ApplyOffer(first, m)
			if err != nil {
				t.Fatalf("%s, of an offer %s: %v", change, name, err)
			}
			if diff := OfferChange(next, heard); diff != nil {
				t.Errorf("%s, of an offer %s: what was heard lacks %v", change, name, diff)
			}
		}
		if diff := OfferChange(offer, first); diff != nil {
			t.Errorf("the offer before is changed by %v", diff)
		}
	}
}

// A peer of a later version may offer what this one has no word for.
func TestServicesOfAKindThatIsNotKnownAreLeftOut(t *testing.T) {
	t.Parallel()
	before := peering.Offer{Available: true, Resources: peering.Resources{}, Services: servicesOf(3, 1)}
	change := servicesTo(servicesOf(3, 1))
	change[0].Type, change[1].Ports[0].Protocol = "ClusterSetName", "QUIC"
	got, err := ApplyOffer(before, &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Services: change}})
	if err != nil || len(got.Services) != 1 || got.Services[0].Name != "s-0002" || len(before.Services) != 3 {
		t.Errorf("heard %+v, %v", got.Services, err)
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
	m := OfferSnapshot(peering.Offer{Services: largest})
	if _, err := ApplyOffer(peering.Offer{}, m); err != nil {
		t.Errorf("%d services are refused: %v", len(largest), err)
	}
	if got := proto.Size(m); got > peering.MaxServicesSize {
		t.Errorf("%d services that count %d take %d bytes", len(largest), size, got)
	}
	few := peering.Offer{Available: true, Resources: peering.Resources{}, Services: servicesOf(peering.MaxServices, 1)}
	more := servicesTo([]peering.OfferedService{service(t, "other/one")})
	if _, err := ApplyOffer(few, &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Services: more}}); err == nil {
		t.Errorf("%d services and one more are taken", peering.MaxServices)
	}
	if got, err := ApplyOffer(few, &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Services: more}, RemovedServices: []string{"shop/s-0000"}}); err != nil || len(got.Services) != peering.MaxServices {
		t.Errorf("one in another's place: %d, %v", len(got.Services), err)
	}
}

func TestOffersThatAreRefused(t *testing.T) {
	t.Parallel()
	full := fullOffer(t)
	for name, tc := range map[string]refusedOffer{
		"no offer":                      {m: &ententev1.WatchOfferResponse{Snapshot: true}, field: "offer"},
		"a change before an offer":      {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Available: true}}, field: "snapshot"},
		"a change of nothing available": {to: peering.Offer{Message: "no"}, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{}}, field: "snapshot"},
		"a negative amount":             {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "-1"}}}}, field: "offer.resources"},
		"changes that pile up": {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{
			Resources: &ententev1.ResourceList{Amounts: many2(64)},
		}}, field: "offer.resources"},
		"more removed than there can be":      {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{}, Removed: many(65)}, field: "removed"},
		"more architectures than exist":       {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Architectures: many(17)}}, field: "offer.architectures"},
		"an architecture with a newline":      {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Architectures: []string{"amd64\n"}}}, field: "offer.architectures"},
		"more storage classes than told":      {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{StorageClasses: many(65)}}, field: "offer.storage_classes"},
		"a label that no node has":            {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{NodeLabels: map[string]string{"": ""}}}, field: "offer.node_labels"},
		"a price without a currency":          {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Price: &ententev1.PriceList{PerHour: map[string]string{"cpu": "1"}}}}, field: "offer.price"},
		"more services than told":             refusedServices(full, "offer.services", servicesTo(servicesOf(peering.MaxServices+1, 0))...),
		"services that are too large in all":  refusedServices(full, "offer.services", servicesTo(servicesOf(peering.MaxServices, 4))...),
		"more services taken back than told":  {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{}, RemovedServices: many(peering.MaxServices + 1)}, field: "removed_services"},
		"a service twice":                     refusedServices(full, "offer.services[1]", append(servicesTo(servicesOf(1, 1)), servicesTo(servicesOf(1, 1))...)...),
		"a service without a namespace":       refusedServices(full, "offer.services[0].namespace", &ententev1.OfferedService{Name: "a", Type: peering.ServiceHeadless}),
		"a service without a name":            refusedServices(full, "offer.services[0].name", &ententev1.OfferedService{Namespace: "a", Type: peering.ServiceHeadless}),
		"a service without a type":            refusedServices(full, "offer.services[0].type", &ententev1.OfferedService{Namespace: "a", Name: "a"}),
		"a namespace that draws":              refusedServices(full, "offer.services[0].namespace", &ententev1.OfferedService{Namespace: "a\x1b[2J", Name: "a", Type: peering.ServiceHeadless}),
		"a name with a slash":                 refusedServices(full, "offer.services[0].name", &ententev1.OfferedService{Namespace: "a", Name: "b/c", Type: peering.ServiceHeadless}),
		"a name that is too long":             refusedServices(full, "offer.services[0].name", &ententev1.OfferedService{Namespace: "a", Name: strings.Repeat("a", 64), Type: peering.ServiceHeadless}),
		"more ports than a service has":       refusedServices(full, "offer.services[0].ports", servicesTo(servicesOf(1, peering.MaxServicePorts+1))...),
		"a million ports":                     refusedServices(full, "offer.services[0].ports", &ententev1.OfferedService{Namespace: "a", Name: "a", Type: peering.ServiceHeadless, Ports: make([]*ententev1.OfferedServicePort, 1_000_000)}),
		"a port twice":                        refusedPort(full, "offer.services[0].ports[1].name", &ententev1.OfferedServicePort{Protocol: "TCP", Port: 1}, &ententev1.OfferedServicePort{Protocol: "UDP", Port: 1}),
		"a port's name with a newline":        refusedPort(full, "offer.services[0].ports[0].name", &ententev1.OfferedServicePort{Name: "a\n", Protocol: "TCP", Port: 1}),
		"a port without a protocol":           refusedPort(full, "offer.services[0].ports[0].protocol", &ententev1.OfferedServicePort{Port: 1}),
		"an application protocol with spaces": refusedPort(full, "offer.services[0].ports[0].app_protocol", &ententev1.OfferedServicePort{Protocol: "TCP", AppProtocol: "a b", Port: 1}),
		"an application protocol too long":    refusedPort(full, "offer.services[0].ports[0].app_protocol", &ententev1.OfferedServicePort{Protocol: "TCP", AppProtocol: strings.Repeat("a", 318), Port: 1}),
		"port 0":                              refusedPort(full, "offer.services[0].ports[0].port", &ententev1.OfferedServicePort{Protocol: "TCP"}),
		"port 65536":                          refusedPort(full, "offer.services[0].ports[0].port", &ententev1.OfferedServicePort{Protocol: "TCP", Port: 65536}),
		"a port that looks like another":      refusedPort(full, "offer.services[0].ports[0].port", &ententev1.OfferedServicePort{Protocol: "TCP", Port: 1<<32 - 1}),
		"a duration below zero":               {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Duration: durationpb.New(-1)}}, field: "offer.duration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ApplyOffer(tc.to, tc.m)
			refused(t, err, tc.field)
		})
	}
}

type refusedOffer struct {
	to    peering.Offer
	m     *ententev1.WatchOfferResponse
	field string
}

func refusedServices(to peering.Offer, field string, services ...*ententev1.OfferedService) refusedOffer {
	return refusedOffer{to: to, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Services: services}}, field: field}
}

func refusedPort(to peering.Offer, field string, ports ...*ententev1.OfferedServicePort) refusedOffer {
	return refusedServices(to, field, &ententev1.OfferedService{Namespace: "a", Name: "a", Type: peering.ServiceHeadless, Ports: ports})
}

func TestWhatIsNotAvailableIsNothing(t *testing.T) {
	t.Parallel()
	m := OfferSnapshot(fullOffer(t))
	m.Offer.Available, m.Offer.Message = false, "no\x1b[2J"
	got, err := ApplyOffer(fullOffer(t), m)
	if err != nil || got.Available || len(got.Resources) > 0 || got.Message != "no [2J" {
		t.Errorf("heard %+v, %v", got, err)
	}
}
