package provider

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

const (
	// offerAnew is after how long a peer is listened to again that has nothing to offer.
	// offerAgain is how long to wait before an offer is watched again whose stream
	// ended, at first and at most.
	offerAnew     = 10 * time.Minute
	offerAgain    = time.Second
	offerAgainMax = time.Minute
	// offerWrite is the least time between two writes of one peer's offer, offerSmall
	// that between two that tell of small changes only.
	offerWrite = 2 * time.Second
	offerSmall = 30 * time.Second
	// offerSmallPercent is by how much of the larger an amount changes that is a small
	// change.
	offerSmallPercent = 5
	// offerDigits is how many digits of an amount are kept.
	offerDigits = 2
)

// OfferWatch keeps in each ForeignCluster what the peer offers this cluster.
type OfferWatch struct {
	Client client.Client
	// Watch hands over a peer's offer, at first and whenever it changes, until ctx or
	// the stream ends.
	Watch func(ctx context.Context, peer peering.ClusterID, changed func(peering.Offer)) error
	// Offering returns whether the peer says in its states that it offers anything.
	Offering func(peer peering.ClusterID) peering.Offering
	// WatchOffering has changed called when it says something else, until stop. changed
	// does not wait, and calls nothing of this.
	WatchOffering func(peer peering.ClusterID, changed func()) (stop func())
	Now           func() time.Time
	Log           *slog.Logger
	// Budget bounds what peers have written here by what they say. Required.
	Budget *store.WriteBudget
}

// Follow keeps a peer's offer until ctx ends: call it when a session with the peer
// begins. It returns at once; stop ends it and waits. An offer outlives the session, as
// the last that was heard. A peer that has nothing to offer is not listened to: a
// consumer of many costs its provider a stream less, and a connection of gRPC's with
// it, and itself a goroutine.
func (w *OfferWatch) Follow(ctx context.Context, peer peering.ClusterID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	f := &offerFollower{watch: w, ctx: ctx, peer: peer, offering: make(chan struct{}, 1)}
	unwatch := w.WatchOffering(peer, f.changed)
	f.relisten()
	return func() {
		cancel()
		unwatch()
		f.mu.Lock()
		if f.again != nil {
			f.again.Stop()
		}
		f.mu.Unlock()
		f.listening.Wait()
	}
}

// offerFollower follows the offer of one peer. It has a goroutine while it listens.
type offerFollower struct {
	watch *OfferWatch
	ctx   context.Context //nolint:containedctx // that of Follow, which outlives the call
	peer  peering.ClusterID
	// offering is poked when the peer says something else of whether it offers anything.
	offering  chan struct{}
	listening sync.WaitGroup
	// pace is over all streams, so that opening them again gains a peer nothing. It
	// belongs to who listens.
	pace offerPace

	mu     sync.Mutex
	busy   bool        // there is a goroutine
	anyway bool        // it is to listen whatever the peer says
	again  *time.Timer // listens to who has nothing
}

// relisten listens whatever the peer says: why there is nothing is part of the offer, and
// may be another reason by now.
func (f *offerFollower) relisten() { f.listen(true) }

// changed listens if the peer says that there is something.
func (f *offerFollower) changed() { f.listen(false) }

func (f *offerFollower) listen(anyway bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return
	}
	f.anyway = f.anyway || anyway
	if f.busy {
		select {
		case f.offering <- struct{}{}:
		default:
		}
		return
	}
	if f.again != nil {
		f.again.Stop() // it is set again when there is nothing to hear
	}
	f.busy = true
	f.listening.Go(f.run)
}

// run listens until there is nothing to hear.
func (f *offerFollower) run() {
	for {
		f.mu.Lock()
		select {
		case <-f.offering: // what was said is looked at now
		default:
		}
		anyway := f.anyway
		f.anyway = false
		f.mu.Unlock()
		if f.ctx.Err() == nil && (anyway || f.watch.Offering(f.peer) != peering.OfferingNothing) {
			f.pace.kept = nil
			f.follow()
			continue
		}
		if f.rests() {
			return
		}
	}
}

// rests says whether nothing came up since it was looked whether to listen, and then
// has it looked again in time.
func (f *offerFollower) rests() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() == nil {
		if len(f.offering) > 0 || f.anyway {
			return false
		}
		f.again = time.AfterFunc(offerAnew, f.relisten)
	}
	f.busy = false
	return true
}

// follow watches the peer's offer until ctx ends, or until it says in its offer and in
// its states that there is nothing.
func (f *offerFollower) follow() {
	w, pace := f.watch, &f.pace
	ctx, cancel := context.WithCancel(f.ctx)
	offers := make(chan peering.Offer, 1)
	go func() { // ends with ctx: Watch does
		defer close(offers)
		w.listen(ctx, f.peer, offers)
	}()
	defer func() {
		cancel()
		for range offers { // until listen ended
		}
	}()
	var timer <-chan time.Time
	var newest *peering.Offer
	for {
		if newest == nil && nothing(pace.kept) && w.Offering(f.peer) == peering.OfferingNothing {
			return
		}
		select {
		case offer, ok := <-offers:
			if !ok {
				return
			}
			newest = &offer
		case <-f.offering:
			continue
		case <-timer:
		}
		timer = nil
		if newest == nil {
			continue
		}
		if wait := pace.wait(*newest, w.Now()); wait > 0 {
			timer = time.After(wait)
			continue
		}
		err := w.keep(ctx, f.peer, *newest)
		if errors.Is(err, errNotYet) {
			timer = time.After(offerWrite)
			continue
		}
		if later, ok := errors.AsType[*store.LaterError](err); ok {
			timer = time.After(later.After)
			continue
		}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			w.Log.Warn("cannot keep a peer's offer", "peer", f.peer, "err", err)
			timer = time.After(offerSmall)
			continue
		}
		pace.kept, pace.at = newest, w.Now()
		newest = nil
	}
}

// errNotYet says that the cache does not show a peer that just joined.
var errNotYet = errors.New("the peer is not known yet")

// nothing says that an offer is known and there is nothing in it.
func nothing(o *peering.Offer) bool {
	return o != nil && !o.Available && len(o.Services) == 0 && !slices.ContainsFunc(o.Pools, func(p peering.OfferedPool) bool { return len(p.Resources) > 0 })
}

// listen keeps the newest offer in a channel of one slot.
func (w *OfferWatch) listen(ctx context.Context, peer peering.ClusterID, offers chan peering.Offer) {
	for again := offerAgain; ; again = min(2*again, offerAgainMax) {
		err := w.Watch(ctx, peer, func(o peering.Offer) {
			again = offerAgain
			select {
			case <-offers:
			default:
			}
			offers <- o
		})
		if ctx.Err() != nil {
			return
		}
		w.Log.Debug("a peer's offer cannot be watched", "peer", peer, "again", again, "err", err)
		if !notify.Pause(ctx, again) {
			return
		}
	}
}

// offerPace says when a peer's offer may be written: whatever the peer says and
// however often, this cluster's API server is not the one to bear it.
type offerPace struct {
	kept *peering.Offer
	at   time.Time
}

// wait is how long to wait until an offer may be written.
func (p offerPace) wait(o peering.Offer, now time.Time) time.Duration {
	if p.kept == nil {
		return p.at.Add(offerWrite).Sub(now)
	}
	pause := offerWrite
	if p.kept.Compare(o, offerSmallPercent) != peering.Changed {
		pause = offerSmall
	}
	return p.at.Add(pause).Sub(now)
}

// keep writes an offer into the peer's ForeignCluster, if it is another one.
func (w *OfferWatch) keep(ctx context.Context, peer peering.ClusterID, o peering.Offer) error {
	fc, err := store.Cached(ctx, w.Client, peer)
	if err != nil {
		return err
	}
	if fc == nil {
		return errNotYet
	}
	offer, err := offerStatus(o)
	if err != nil {
		return err
	}
	if was := fc.Status.Offer; was != nil {
		offer.ObservedAt = was.ObservedAt
		if equality.Semantic.DeepEqual(was, offer) {
			return nil
		}
	}
	before := fc.DeepCopy()
	offer.ObservedAt = metav1.NewTime(w.Now())
	fc.Status.Offer = offer
	if err := w.Budget.Take(peer, fc); err != nil {
		return err
	}
	return client.IgnoreNotFound(store.PatchStatus(ctx, w.Client, before, fc))
}

// offerStatus returns an offer as custom resources have it, with amounts rounded
// down.
func offerStatus(o peering.Offer) (*v1alpha1.Offer, error) {
	resources, err := offeredAmounts(o.Resources)
	if err != nil {
		return nil, err
	}
	out := &v1alpha1.Offer{
		Available: o.Available, Message: o.Message, Resources: resources, Price: store.PricesOf(o.Price),
		NodeLabels: o.NodeLabels, Architectures: o.Architectures, StorageClasses: o.StorageClasses,
	}
	for _, p := range o.Pools {
		pool := v1alpha1.OfferedPool{Name: p.Name, Price: store.PricesOf(p.Price), NodeLabels: p.NodeLabels}
		if pool.Resources, err = offeredAmounts(p.Resources); err != nil {
			return nil, err
		}
		out.Pools = append(out.Pools, pool)
	}
	for _, s := range o.Services {
		service := v1alpha1.OfferedService{Namespace: s.Namespace, Name: s.Name, Type: v1alpha1.OfferedServiceType(s.Type)}
		for _, p := range s.Ports {
			service.Ports = append(service.Ports, v1alpha1.OfferedServicePort{
				Name: p.Name, Protocol: corev1.Protocol(p.Protocol), AppProtocol: p.AppProtocol, Port: p.Port,
			})
		}
		out.Services = append(out.Services, service)
	}
	if o.Duration > 0 {
		out.Duration = &metav1.Duration{Duration: o.Duration}
	}
	return out, nil
}

// offeredAmounts returns amounts rounded down; none are nil.
func offeredAmounts(amounts peering.Resources) (corev1.ResourceList, error) {
	if len(amounts) == 0 {
		return nil, nil //nolint:nilnil // none is absent in the resource
	}
	rounded := peering.Resources{}
	for name, amount := range amounts {
		rounded[name] = roundDown(amount)
	}
	return store.ResourceList(rounded)
}

// roundDown keeps the first digits of an amount, in the unit in which it is
// written.
func roundDown(q peering.Quantity) peering.Quantity {
	text := q.String()
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	digits := []byte(text[:end])
	for i := offerDigits; i < len(digits); i++ {
		digits[i] = '0'
	}
	out, err := peering.ParseQuantity(string(digits) + text[end:])
	if err != nil {
		return q
	}
	return out
}
