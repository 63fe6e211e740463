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
	// offerRecheck is after how long the offer of a peer with nothing to offer is watched again.
	// offerRetry is how long to wait after a stream of offers ended, at first; offerRetryMax
	// at most.
	offerRecheck  = 10 * time.Minute
	offerRetry    = time.Second
	offerRetryMax = time.Minute
	// offerWrite is the least time between two writes of one peer's offer, offerSmall
	// that before a write of small changes only.
	offerWrite = 2 * time.Second
	offerSmall = 30 * time.Second
	// offerSmallPercent is by how much of the larger amount a small change differs at
	// most.
	offerSmallPercent = 5
	// offerDigits is how many digits of an amount are stored.
	offerDigits = 2
)

// OfferWatch writes into each ForeignCluster what the peer offers this cluster.
type OfferWatch struct {
	Client client.Client
	// Watch calls changed with a peer's offer, at first and whenever it changes, until ctx or
	// the stream ends.
	Watch func(ctx context.Context, peer peering.ClusterID, changed func(peering.Offer)) error
	// Offering returns whether the peer says in its states that it offers anything.
	Offering func(peer peering.ClusterID) peering.Offering
	// WatchOffering calls changed whenever Offering of the peer changes, until stop. changed
	// neither blocks nor calls WatchOffering.
	WatchOffering func(peer peering.ClusterID, changed func()) (stop func())
	Now           func() time.Time
	Log           *slog.Logger
	// Budget bounds the writes that a peer's offers cause. Required.
	Budget *store.WriteBudget
}

// Follow writes a peer's offer until ctx ends: call it when a session with the peer
// begins. It returns at once; stop ends it and waits. The last offer outlives the
// session. The offer of a peer with nothing to offer is not watched, which saves the
// provider of many consumers a stream and a gRPC connection each, and the consumer a
// goroutine.
func (w *OfferWatch) Follow(ctx context.Context, peer peering.ClusterID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	f := &offerFollower{watch: w, ctx: ctx, peer: peer, offering: make(chan struct{}, 1)}
	unwatch := w.WatchOffering(peer, f.changed)
	f.restart()
	return func() {
		cancel()
		unwatch()
		f.mu.Lock()
		if f.recheck != nil {
			f.recheck.Stop()
		}
		f.mu.Unlock()
		f.running.Wait()
	}
}

// offerFollower follows the offer of one peer. It has a goroutine while it watches.
type offerFollower struct {
	watch *OfferWatch
	ctx   context.Context //nolint:containedctx // that of Follow, which outlives the call
	peer  peering.ClusterID
	// offering receives a value when Offering of the peer changes.
	offering chan struct{}
	running  sync.WaitGroup
	// pace is over all streams, so that opening them again gains a peer nothing. Only
	// run uses it.
	pace offerPace

	mu      sync.Mutex
	active  bool        // run has a goroutine
	force   bool        // watch whatever the peer's states say
	recheck *time.Timer // watches a peer with nothing to offer again
}

// restart watches whatever the peer's states say: the reason why there is nothing is part of the
// offer, and may have changed.
func (f *offerFollower) restart() { f.start(true) }

// changed watches if the peer's states say that it offers something.
func (f *offerFollower) changed() { f.start(false) }

func (f *offerFollower) start(force bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return
	}
	f.force = f.force || force
	if f.active {
		select {
		case f.offering <- struct{}{}:
		default:
		}
		return
	}
	if f.recheck != nil {
		f.recheck.Stop() // idle sets it again
	}
	f.active = true
	f.running.Go(f.run)
}

// run watches until the peer offers nothing.
func (f *offerFollower) run() {
	for {
		f.mu.Lock()
		select {
		case <-f.offering: // the state is read below
		default:
		}
		force := f.force
		f.force = false
		f.mu.Unlock()
		if f.ctx.Err() == nil && (force || f.watch.Offering(f.peer) != peering.OfferingNothing) {
			f.pace.written = nil
			f.follow()
			continue
		}
		if f.idle() {
			return
		}
	}
}

// idle reports whether run can end, since nothing changed meanwhile, and then schedules
// the next watch.
func (f *offerFollower) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() == nil {
		if len(f.offering) > 0 || f.force {
			return false
		}
		f.recheck = time.AfterFunc(offerRecheck, f.restart)
	}
	f.active = false
	return true
}

// follow writes the peer's offer until ctx ends, or until both the offer and the peer's
// states say that there is nothing.
func (f *offerFollower) follow() {
	w, pace := f.watch, &f.pace
	ctx, cancel := context.WithCancel(f.ctx)
	offers := make(chan peering.Offer, 1)
	go func() { // ends with ctx: Watch does
		defer close(offers)
		w.receive(ctx, f.peer, offers)
	}()
	defer func() {
		cancel()
		for range offers { // until receive ended
		}
	}()
	var timer <-chan time.Time
	var newest *peering.Offer
	for {
		if newest == nil && offersNothing(pace.written) && w.Offering(f.peer) == peering.OfferingNothing {
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
		err := w.write(ctx, f.peer, *newest)
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
			w.Log.Warn("cannot write a peer's offer", "peer", f.peer, "err", err)
			timer = time.After(offerSmall)
			continue
		}
		pace.written, pace.at = newest, w.Now()
		newest = nil
	}
}

// errNotYet says that the cache lacks a peer that just joined.
var errNotYet = errors.New("the peer is not known yet")

// offersNothing reports whether an offer is known and empty.
func offersNothing(o *peering.Offer) bool {
	return o != nil && !o.Available && len(o.Services) == 0 && !slices.ContainsFunc(o.Pools, func(p peering.OfferedPool) bool { return len(p.Resources) > 0 })
}

// receive puts the newest offer into a channel of one slot.
func (w *OfferWatch) receive(ctx context.Context, peer peering.ClusterID, offers chan peering.Offer) {
	for again := offerRetry; ; again = min(2*again, offerRetryMax) {
		err := w.Watch(ctx, peer, func(o peering.Offer) {
			again = offerRetry
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

// offerPace limits how often a peer's offer is written, to protect this cluster's API server
// from a peer whose offer changes often.
type offerPace struct {
	written *peering.Offer
	at      time.Time
}

// wait returns how long to wait until an offer may be written.
func (p offerPace) wait(o peering.Offer, now time.Time) time.Duration {
	if p.written == nil {
		return p.at.Add(offerWrite).Sub(now)
	}
	pause := offerWrite
	if p.written.Compare(o, offerSmallPercent) != peering.Changed {
		pause = offerSmall
	}
	return p.at.Add(pause).Sub(now)
}

// write writes an offer into the peer's ForeignCluster, if it changed.
func (w *OfferWatch) write(ctx context.Context, peer peering.ClusterID, o peering.Offer) error {
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

// offerStatus converts an offer for the custom resource, with amounts rounded down.
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

// offeredAmounts returns amounts rounded down, or nil without any.
func offeredAmounts(amounts peering.Resources) (corev1.ResourceList, error) {
	if len(amounts) == 0 {
		return nil, nil //nolint:nilnil // the resource omits it
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
