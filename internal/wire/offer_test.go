package wire

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// randomOffer returns an offer of a few values, so that two of them often agree
// in some.
func randomOffer(t testing.TB, r *rand.Rand) Offer {
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
	o := Offer{
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
	if !o.Available {
		return Offer{Message: o.Message}
	}
	return o
}

func TestAnOfferAndItsChangesComeToTheSame(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	told := Offer{}
	heard, err := Offer{}.Apply(OfferSnapshot(told))
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
		if heard, err = heard.Apply(m); err != nil {
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
	offer := Offer{Available: true, Resources: peering.Resources{}, NodeLabels: map[string]string{}, Duration: time.Hour}
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

func TestOffersThatAreRefused(t *testing.T) {
	t.Parallel()
	full := fullOffer(t)
	for name, tc := range map[string]struct {
		to    Offer
		m     *ententev1.WatchOfferResponse
		field string
	}{
		"no offer":                      {m: &ententev1.WatchOfferResponse{Snapshot: true}, field: "offer"},
		"a change before an offer":      {m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Available: true}}, field: "snapshot"},
		"a change of nothing available": {to: Offer{Message: "no"}, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{}}, field: "snapshot"},
		"a negative amount":             {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "-1"}}}}, field: "offer.resources"},
		"changes that pile up": {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{
			Resources: &ententev1.ResourceList{Amounts: many2(64)},
		}}, field: "offer.resources"},
		"more removed than there can be": {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{}, Removed: many(65)}, field: "removed"},
		"more architectures than exist":  {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Architectures: many(17)}}, field: "offer.architectures"},
		"an architecture with a newline": {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Architectures: []string{"amd64\n"}}}, field: "offer.architectures"},
		"more storage classes than told": {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{StorageClasses: many(65)}}, field: "offer.storage_classes"},
		"a label that no node has":       {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{NodeLabels: map[string]string{"": ""}}}, field: "offer.node_labels"},
		"a price without a currency":     {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Price: &ententev1.PriceList{PerHour: map[string]string{"cpu": "1"}}}}, field: "offer.price"},
		"a duration below zero":          {to: full, m: &ententev1.WatchOfferResponse{Offer: &ententev1.Offer{Duration: durationpb.New(-1)}}, field: "offer.duration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := tc.to.Apply(tc.m)
			refused(t, err, tc.field)
		})
	}
}

func TestWhatIsNotAvailableIsNothing(t *testing.T) {
	t.Parallel()
	m := OfferSnapshot(fullOffer(t))
	m.Offer.Available, m.Offer.Message = false, "no\x1b[2J"
	got, err := fullOffer(t).Apply(m)
	if err != nil || got.Available || len(got.Resources) > 0 || got.Message != "no [2J" {
		t.Errorf("heard %+v, %v", got, err)
	}
}
