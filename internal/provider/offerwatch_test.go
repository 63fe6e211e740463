package provider

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

func TestOfferStatusRoundsAmountsDown(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"0": "0", "7": "7", "12": "12", "123": "120", "1999": "1900", "420m": "420m", "1234m": "1200m", "16Gi": "16Gi", "16383Mi": "16000Mi", "110": "110", "119": "110",
	} {
		q, err := peering.ParseQuantity(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := roundDown(q); got.String() != want || got.Cmp(q) > 0 {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
}

func TestOfferWatchDelaysSmallChanges(t *testing.T) {
	t.Parallel()
	offer := func(cpu int64, change func(*peering.Offer)) peering.Offer {
		o := peering.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(cpu), "memory": peering.Whole(1 << 30)}}
		if change != nil {
			change(&o)
		}
		return o
	}
	for name, tc := range map[string]struct {
		offer peering.Offer
		want  time.Duration
	}{
		"the same":             {offer(100, nil), offerSmall},
		"a little less":        {offer(96, nil), offerSmall},
		"a little more":        {offer(105, nil), offerSmall},
		"five percent less":    {offer(95, nil), offerWrite},
		"nothing":              {peering.Offer{Message: "no"}, offerWrite},
		"another price":        {offer(100, func(o *peering.Offer) { o.Price = perCPU(t, "1") }), offerWrite},
		"another resource":     {offer(100, func(o *peering.Offer) { o.Resources["gpu"] = peering.Whole(1) }), offerWrite},
		"another in its place": {offer(100, func(o *peering.Offer) { delete(o.Resources, "memory"); o.Resources["gpu"] = peering.Whole(1) }), offerWrite},
		"another label":        {offer(100, func(o *peering.Offer) { o.NodeLabels = map[string]string{"a": "b"} }), offerWrite},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := offer(100, nil)
			if got := (offerPace{&kept, now}).wait(tc.offer, now); got != tc.want {
				t.Errorf("it waits %s, want %s", got, tc.want)
			}
		})
	}
	if got := (offerPace{}).wait(offer(1, nil), now); got > 0 {
		t.Errorf("the first waits %s", got)
	}
	if got := (offerPace{at: now}).wait(offer(1, nil), now.Add(time.Second)); got != offerWrite-time.Second {
		t.Errorf("the first of a new stream waits %s", got)
	}
}

func TestOfferWatchKeepsAPeersOffer(t *testing.T) {
	t.Parallel()
	provider := generated(t)
	c := knowing(t, provider)
	sent := make(chan peering.Offer)
	var mu sync.Mutex
	streams, open := 0, 0
	word, changed := peering.OfferingUnknown, func() {}
	// setOffering changes what the peer says of that in its states.
	setOffering := func(l peering.Offering) {
		mu.Lock()
		defer mu.Unlock()
		word = l
		changed()
	}
	opened := func() int {
		mu.Lock()
		defer mu.Unlock()
		return open
	}
	offering := func(peering.ClusterID) peering.Offering {
		mu.Lock()
		defer mu.Unlock()
		return word
	}
	watched := false
	watchOffering := func(_ peering.ClusterID, f func()) func() {
		mu.Lock()
		defer mu.Unlock()
		changed, watched = f, true
		return func() {
			mu.Lock()
			defer mu.Unlock()
			watched = false
		}
	}
	w := &OfferWatch{Budget: &store.WriteBudget{Now: time.Now}, Client: c, Now: time.Now, Log: slog.New(slog.DiscardHandler), Offering: offering, WatchOffering: watchOffering, Watch: func(ctx context.Context, _ peering.ClusterID, changed func(peering.Offer)) error {
		mu.Lock()
		streams++
		open++
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			open--
		}()
		for {
			select {
			case <-ctx.Done():
				return nil
			case o, ok := <-sent:
				if !ok || !o.Available && o.Message == "break" {
					return errors.New("the stream broke")
				}
				changed(o)
			}
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop := w.Follow(ctx, provider.ID())
	offer := func() *v1alpha1.Offer {
		t.Helper()
		var fc v1alpha1.ForeignCluster
		if err := c.Get(t.Context(), client.ObjectKey{Name: "peer"}, &fc); err != nil {
			t.Fatal(err)
		}
		return fc.Status.Offer
	}
	wait := func(what string, ok func(*v1alpha1.Offer) bool) {
		t.Helper()
		if !waittest.Soon(func() bool { return ok(offer()) }) {
			t.Fatalf("%s: it is %+v", what, offer())
		}
	}
	full := peering.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(123)}, Price: perCPU(t, "0.1"), Duration: time.Hour}
	sent <- full
	wait("the first offer", func(o *v1alpha1.Offer) bool {
		return o != nil && o.Available && o.Resources.Cpu().String() == "120" && o.Price.PerHour["cpu"] == "0.1" && o.Duration.Duration == time.Hour
	})
	// What follows fast is written once, and the last of it counts.
	for n := range int64(5) {
		o := full
		o.Resources = peering.Resources{"cpu": peering.Whole(10 * (n + 1))}
		sent <- o
	}
	if o := offer(); o.Resources.Cpu().String() != "120" {
		t.Errorf("it is written again at once: %+v", o)
	}
	wait("the last of several", func(o *v1alpha1.Offer) bool { return o.Resources.Cpu().String() == "50" })
	sent <- peering.Offer{Message: "break"}
	sent <- peering.Offer{Message: "nothing is left"} // to the next stream
	wait("the next stream", func(o *v1alpha1.Offer) bool {
		return !o.Available && o.Message == "nothing is left" && o.Resources == nil
	})
	// The offer of a peer whose states say too that it offers nothing is not watched, until
	// they change; and it is watched as long as the offer itself has something.
	setOffering(peering.OfferingNothing)
	wait("the stream ends", func(*v1alpha1.Offer) bool { return opened() == 0 })
	setOffering(peering.OfferingSomething)
	sent <- full // to the next stream
	wait("what it offers now", func(o *v1alpha1.Offer) bool { return o.Available })
	setOffering(peering.OfferingNothing)
	more := full
	more.Resources = peering.Resources{"cpu": peering.Whole(60)}
	sent <- more // to the same stream
	wait("what it offers after that", func(o *v1alpha1.Offer) bool { return o.Available && o.Resources.Cpu().String() == "60" })
	sent <- peering.Offer{Message: "nothing again"}
	wait("what it offers at last", func(o *v1alpha1.Offer) bool { return o.Message == "nothing again" && opened() == 0 })
	setOffering(peering.OfferingSomething)
	sent <- full
	wait("what it offers in the end", func(o *v1alpha1.Offer) bool { return o.Available })
	stop() // no goroutine goes on
	setOffering(peering.OfferingNothing)
	mu.Lock()
	defer mu.Unlock()
	if streams != 4 || open != 0 || watched {
		t.Errorf("%d streams, %d of them open, watched is %v", streams, open, watched)
	}
}

// However often a peer changes its mind, its empty offer is watched again every 10 min and not
// after each change; and an offer of something is received at once.
func TestOfferWatchPacesAPeerThatChangesItsMind(t *testing.T) {
	t.Parallel()
	provider := generated(t)
	c := knowing(t, provider)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		streams, word, changed := 0, peering.OfferingNothing, func() {}
		w := &OfferWatch{
			Budget: &store.WriteBudget{Now: time.Now},
			Client: c, Now: time.Now, Log: slog.New(slog.DiscardHandler),
			Offering: func(peering.ClusterID) peering.Offering {
				mu.Lock()
				defer mu.Unlock()
				return word
			},
			WatchOffering: func(_ peering.ClusterID, f func()) func() {
				f() // it changes while this side begins to follow
				changed = f
				return func() {}
			},
			Watch: func(ctx context.Context, _ peering.ClusterID, offered func(peering.Offer)) error {
				mu.Lock()
				streams++
				mu.Unlock()
				offered(peering.Offer{Message: "nothing"})
				<-ctx.Done()
				return nil
			},
		}
		setOffering := func(l peering.Offering) {
			mu.Lock()
			defer mu.Unlock()
			word = l
			changed()
		}
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return streams
		}
		stop := w.Follow(t.Context(), provider.ID())
		time.Sleep(10 * time.Second)
		if n := count(); n != 1 {
			t.Errorf("%d streams at first, want 1: why there is nothing is in the offer", n)
		}
		for range 60 {
			setOffering(peering.OfferingSomething)
			time.Sleep(3 * time.Second)
			setOffering(peering.OfferingNothing)
			time.Sleep(3 * time.Second)
		}
		before := count()
		time.Sleep(time.Hour)
		if n := count() - before; n < 5 || n > 6 {
			t.Errorf("%d streams in an hour of rest, want one each %s", n, offerRecheck)
		}
		stop()
	})
}

// knowing is a cluster that knows another.
func knowing(t *testing.T, peer *identity.Identity) client.WithWatch {
	t.Helper()
	return indexed(fake.NewClientBuilder().WithScheme(testScheme(t)).WithStatusSubresource(&v1alpha1.ForeignCluster{}).WithObjects(&v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "peer"},
		Spec:       v1alpha1.ForeignClusterSpec{ClusterID: string(peer.ID()), TrustBundle: peer.TrustBundle().PEM()},
	}))
}

// perCPU is a price list of CPU in euros.
func perCPU(t *testing.T, amount string) peering.PriceList {
	t.Helper()
	d, err := peering.ParseDecimal(amount)
	if err != nil {
		t.Fatal(err)
	}
	return peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": d}}
}
