package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// offering is an offer that changes, and what a peer received of it.
type offering struct {
	mu       sync.Mutex
	offer    peering.Offer
	changed  chan struct{}
	received peering.Offer
	at       []time.Duration // of each message
	begin    time.Time
}

func (o *offering) current(context.Context) (peering.Offer, <-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.offer, o.changed, nil
}

func (o *offering) set(edit func(*peering.Offer)) {
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
	received, err := wire.OfferFrom(m, o.received)
	if err != nil {
		return err
	}
	o.received = received
	o.at = append(o.at, time.Since(o.begin))
	return nil
}

func cpu(n int64) func(*peering.Offer) {
	return func(o *peering.Offer) { o.Resources["cpu"] = peering.Whole(n) }
}

func TestSmallOfferChangesAreSentLater(t *testing.T) {
	t.Parallel()
	type step struct {
		at   time.Duration
		edit func(*peering.Offer)
	}
	nothing := func(o *peering.Offer) { *o = peering.Offer{Message: "nothing is left"} }
	again := func(o *peering.Offer) {
		*o = peering.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(100)}, Duration: time.Hour}
	}
	// A service that is replaced ten times within a second, and then stays.
	var flapping []step
	for i := range 11 {
		flapping = append(flapping, step{5*time.Second + time.Duration(i)*90*time.Millisecond, func(o *peering.Offer) {
			o.Services = []peering.OfferedService{{Namespace: "shop", Name: fmt.Sprint("cart-", i), Type: peering.ServiceHeadless}}
		}})
	}
	var flood []step
	for i := range 500 {
		flood = append(flood, step{time.Duration(i+1) * 10 * time.Millisecond, cpu(int64(50 + i%50*10))})
	}
	for name, tc := range map[string]struct {
		steps []step
		want  []time.Duration
	}{
		"an offer that stays is sent once":    {nil, []time.Duration{0}},
		"a first change is sent at once":      {[]step{{5 * time.Second, cpu(50)}}, []time.Duration{0, 5 * time.Second}},
		"the next waits for a second":         {[]step{{5 * time.Second, cpu(50)}, {5100 * time.Millisecond, cpu(20)}}, []time.Duration{0, 5 * time.Second, 6 * time.Second}},
		"a small one waits longer":            {[]step{{5 * time.Second, cpu(98)}}, []time.Duration{0, 30 * time.Second}},
		"one that is small no more does not":  {[]step{{5 * time.Second, cpu(98)}, {7 * time.Second, cpu(96)}, {9 * time.Second, cpu(94)}}, []time.Duration{0, 9 * time.Second}},
		"one that is undone is not sent":      {[]step{{5 * time.Second, cpu(98)}, {6 * time.Second, cpu(100)}}, []time.Duration{0}},
		"an offer of nothing is sent at once": {[]step{{5 * time.Second, cpu(50)}, {5001 * time.Millisecond, nothing}}, []time.Duration{0, 5 * time.Second, 5001 * time.Millisecond}},
		"nor that there is something":         {[]step{{5 * time.Second, nothing}, {5001 * time.Millisecond, again}}, []time.Duration{0, 5 * time.Second, 5001 * time.Millisecond}},
		"a change of price is not small": {[]step{{5 * time.Second, func(o *peering.Offer) {
			o.Price = peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": {}}}
		}}}, []time.Duration{0, 5 * time.Second}},
		"a new service is not a small change": {[]step{{5 * time.Second, func(o *peering.Offer) {
			o.Services = []peering.OfferedService{{Namespace: "shop", Name: "cart", Type: peering.ServiceHeadless}}
		}}}, []time.Duration{0, 5 * time.Second}},
		"one that comes and goes all the time is sent once a second": {flapping, []time.Duration{0, 5 * time.Second, 6 * time.Second}},
		"the loss of a device is not a small change":                 {[]step{{5 * time.Second, func(o *peering.Offer) { delete(o.Resources, "gpu") }}}, []time.Duration{0, 5 * time.Second}},
		"a flood of changes is sent once a second":                   {flood, []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &offering{begin: time.Now(), changed: make(chan struct{}), offer: peering.Offer{
					Available: true, Resources: peering.Resources{"cpu": peering.Whole(100), "gpu": peering.Whole(1)}, Duration: time.Hour,
				}}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- sendOffers(ctx, o.current, o.send) }()
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
					t.Fatalf("sent after %v, want %v", o.at, tc.want)
				}
				for i, want := range tc.want {
					if i >= len(o.at) || o.at[i] < want || o.at[i] > want+100*time.Millisecond {
						t.Fatalf("sent after %v, want %v", o.at, tc.want)
					}
				}
				if o.offer.Compare(o.received, 0) != peering.Unchanged {
					t.Errorf("received %+v of %+v", o.received, o.offer)
				}
			})
		})
	}
}

func TestOfferWatchEndsWhereReadingOrSendingFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	o := &offering{changed: make(chan struct{})}
	if err := sendOffers(t.Context(), o.current, func(*ententev1.WatchOfferResponse) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	failing := func(context.Context) (peering.Offer, <-chan struct{}, error) { return peering.Offer{}, nil, broken }
	if err := sendOffers(t.Context(), failing, o.send); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// offersBy is what each peer is offered.
type offersBy map[peering.ClusterID]peering.Offer

func (o offersBy) Offer(_ context.Context, peer peering.ClusterID) (peering.Offer, <-chan struct{}, error) {
	return o[peer], nil, nil
}

// The certificate alone decides which offer a caller gets: a peer cannot read another's, and a
// stranger gets none.
func TestEachPeerReceivesItsOwnOffer(t *testing.T) {
	offers := offersBy{}
	p := newPeerTest(t, func(c *PeerConfig) { c.Offers = offers })
	other, stranger := identitytest.NewSource(t), identitytest.NewSource(t)
	p.trustCaller(t)
	if err := p.bundles.Trust(other.ID(), other.Identity().TrustBundle()); err != nil {
		t.Fatal(err)
	}
	for id, name := range map[peering.ClusterID]string{p.caller.ID(): "cart", other.ID(): "jobs", stranger.ID(): "none"} {
		offers[id] = peering.Offer{Message: "nothing is left", Services: []peering.OfferedService{{Namespace: "shop", Name: name, Type: peering.ServiceHeadless}}}
	}
	receive := func(as *identity.Source) (peering.Offer, error) {
		stream, err := ententev1.NewPeeringServiceClient(p.dial(t, as)).WatchOffer(t.Context(), &ententev1.WatchOfferRequest{})
		if err != nil {
			return peering.Offer{}, err
		}
		m, err := stream.Recv()
		if err != nil {
			return peering.Offer{}, err
		}
		return wire.OfferFrom(m, peering.Offer{})
	}
	for as, want := range map[*identity.Source]string{p.caller: "shop/cart", other: "shop/jobs"} {
		if offer, err := receive(as); err != nil || len(offer.Services) != 1 || offer.Services[0].Key() != want {
			t.Errorf("received %+v, %v, want %s", offer, err, want)
		}
	}
	if offer, err := receive(stranger); wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
		t.Errorf("a stranger received %+v, %v", offer, err)
	}
}
