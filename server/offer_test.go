package server

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// offering is an offer that changes, and who is told of it.
type offering struct {
	mu      sync.Mutex
	offer   wire.Offer
	changed chan struct{}
	heard   wire.Offer
	at      []time.Duration // of each message
	kinds   []string
	begin   time.Time
}

func (o *offering) current(context.Context) (wire.Offer, <-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.offer, o.changed, nil
}

func (o *offering) set(edit func(*wire.Offer)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.offer.Resources = o.offer.Resources.Clone()
	edit(&o.offer)
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *offering) send(m *ententev1.WatchOfferResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	heard, err := o.heard.Apply(m)
	if err != nil {
		return err
	}
	o.heard = heard
	o.at = append(o.at, time.Since(o.begin))
	kind := "change"
	if m.GetSnapshot() {
		kind = "whole"
	}
	o.kinds = append(o.kinds, kind)
	return nil
}

func cpu(n int64) func(*wire.Offer) {
	return func(o *wire.Offer) { o.Resources["cpu"] = peering.Whole(n) }
}

func TestOffersAreToldAsOftenAsTheyMatter(t *testing.T) {
	t.Parallel()
	type step struct {
		at   time.Duration
		edit func(*wire.Offer)
	}
	nothing := func(o *wire.Offer) { *o = wire.Offer{Message: "nothing is left"} }
	again := func(o *wire.Offer) {
		*o = wire.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(100)}, Duration: time.Hour}
	}
	var flood []step
	for i := range 500 {
		flood = append(flood, step{time.Duration(i+1) * 10 * time.Millisecond, cpu(int64(50 + i%50*10))})
	}
	for name, tc := range map[string]struct {
		steps []step
		want  []time.Duration
		last  string
	}{
		"an offer that stays is told once":       {nil, []time.Duration{0}, "whole"},
		"a first change is told at once":         {[]step{{5 * time.Second, cpu(50)}}, []time.Duration{0, 5 * time.Second}, "change"},
		"the next waits for a second":            {[]step{{5 * time.Second, cpu(50)}, {5100 * time.Millisecond, cpu(20)}}, []time.Duration{0, 5 * time.Second, 6 * time.Second}, "change"},
		"a small one waits longer":               {[]step{{5 * time.Second, cpu(98)}}, []time.Duration{0, 30 * time.Second}, "change"},
		"one that is small no more does not":     {[]step{{5 * time.Second, cpu(98)}, {7 * time.Second, cpu(96)}, {9 * time.Second, cpu(94)}}, []time.Duration{0, 9 * time.Second}, "change"},
		"one that is undone is not told":         {[]step{{5 * time.Second, cpu(98)}, {6 * time.Second, cpu(100)}}, []time.Duration{0}, "whole"},
		"that there is nothing waits for nobody": {[]step{{5 * time.Second, cpu(50)}, {5001 * time.Millisecond, nothing}}, []time.Duration{0, 5 * time.Second, 5001 * time.Millisecond}, "whole"},
		"nor that there is something":            {[]step{{5 * time.Second, nothing}, {5001 * time.Millisecond, again}}, []time.Duration{0, 5 * time.Second, 5001 * time.Millisecond}, "whole"},
		"a price is no small thing": {[]step{{5 * time.Second, func(o *wire.Offer) {
			o.Price = peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": {}}}
		}}}, []time.Duration{0, 5 * time.Second}, "change"},
		"a device that goes is no small thing":     {[]step{{5 * time.Second, func(o *wire.Offer) { delete(o.Resources, "gpu") }}}, []time.Duration{0, 5 * time.Second}, "change"},
		"a flood of changes is told once a second": {flood, []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second}, "change"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &offering{begin: time.Now(), changed: make(chan struct{}), offer: wire.Offer{
					Available: true, Resources: peering.Resources{"cpu": peering.Whole(100), "gpu": peering.Whole(1)}, Duration: time.Hour,
				}}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- tellOffers(ctx, o.current, o.send) }()
				for _, s := range tc.steps {
					time.Sleep(s.at - time.Since(o.begin))
					o.set(s.edit)
				}
				time.Sleep(5 * time.Minute)
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("it ended with %v", err)
				}
				if len(o.at) > len(tc.want) {
					t.Fatalf("told after %v, want %v", o.at, tc.want)
				}
				for i, want := range tc.want {
					if i >= len(o.at) || o.at[i] < want || o.at[i] > want+100*time.Millisecond {
						t.Fatalf("told after %v, want %v", o.at, tc.want)
					}
				}
				if diff := wire.OfferChange(o.offer, o.heard); diff != nil {
					t.Errorf("what was heard lacks %v", diff)
				}
				if got := o.kinds[len(o.kinds)-1]; o.kinds[0] != "whole" || got != tc.last {
					t.Errorf("told by %v", o.kinds)
				}
			})
		})
	}
}

func TestAnOfferThatCannotBeToldEndsTheWatch(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	o := &offering{changed: make(chan struct{})}
	if err := tellOffers(t.Context(), o.current, func(*ententev1.WatchOfferResponse) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	failing := func(context.Context) (wire.Offer, <-chan struct{}, error) { return wire.Offer{}, nil, broken }
	if err := tellOffers(t.Context(), failing, o.send); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// A message of a change is about as big as what changed, however large the
// offer.
func TestWatchingAnOfferTakesFewBytes(t *testing.T) {
	t.Parallel()
	offer := wire.Offer{Available: true, Resources: peering.Resources{}, Duration: time.Hour, NodeLabels: map[string]string{}}
	for _, name := range []string{"cpu", "memory", "pods", "ephemeral-storage", "nvidia.com/gpu"} {
		offer.Resources[name] = peering.Whole(1 << 40)
		offer.NodeLabels["example.com/"+name] = "a value of some length"
	}
	next := offer
	next.Resources = offer.Resources.Clone()
	next.Resources["cpu"] = peering.Whole(7)
	if whole, change := proto.Size(wire.OfferSnapshot(next)), proto.Size(wire.OfferChange(offer, next)); change > 20 || whole < 10*change {
		t.Errorf("%d bytes of %d", change, whole)
	}
}
