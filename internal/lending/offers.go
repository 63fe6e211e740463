package lending

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Offer returns what this cluster would lend a peer now, and a channel that is
// closed once it may be something else. What nodes, pods and contracts come to is
// computed once for all peers.
func (l *Lender) Offer(ctx context.Context, peer peering.ClusterID) (peering.Offer, <-chan struct{}, error) {
	joined, err := l.joined(ctx, peer)
	if err != nil {
		return peering.Offer{}, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	m, err := l.marketFor(ctx, peer, joined)
	if err != nil {
		return peering.Offer{}, nil, err
	}
	return m.Offer(peer), l.changed, nil
}

// Lends says whether this cluster would lend a peer anything, as was found out last: it
// is asked for states, which wait for nobody. For a peer that it was not asked of before
// that is not known. Changed is called once it is known, and once it is otherwise.
func (l *Lender) Lends(peer peering.ClusterID) peering.Lending {
	l.availableMu.Lock()
	defer l.availableMu.Unlock()
	lends, ok := l.available[peer]
	if !ok {
		if l.available == nil {
			l.available = make(map[peering.ClusterID]peering.Lending)
		}
		l.available[peer] = peering.LendsUnknown
		l.unknown.Notify()
	}
	return lends
}

// updateAvailable finds out again whether there is anything for each peer of which that
// was asked.
func (l *Lender) updateAvailable(ctx context.Context) {
	l.availableMu.Lock()
	was := maps.Clone(l.available)
	l.availableMu.Unlock()
	for peer, before := range was {
		l.mu.Lock()
		m, err := l.marketFor(ctx, peer, nil)
		lends, known := peering.LendsSomething, false
		if err == nil && m.Peers[peer] != nil {
			known = true
			if offer := m.Offer(peer); nothing(&offer) {
				lends = peering.LendsNothing
			}
		}
		l.mu.Unlock()
		if err != nil {
			if ctx.Err() == nil {
				l.log().Warn("cannot tell what is lent", "peer", peer, "err", err)
			}
			return
		}
		l.availableMu.Lock()
		if known {
			l.available[peer] = lends
		} else {
			delete(l.available, peer)
		}
		l.availableMu.Unlock()
		if known && lends != before {
			l.Changed(peer)
		}
	}
}

// Run follows what decides until ctx ends: it has offers told again when they may
// be others, and drops requests that nobody waits for.
func (l *Lender) Run(ctx context.Context) error {
	started := l.Now()
	l.mu.Lock()
	l.wake = notify.New()
	l.mu.Unlock()
	l.availableMu.Lock()
	l.unknown = notify.New()
	l.unknown.Notify() // somebody may have asked before
	l.availableMu.Unlock()
	if l.Informers != nil {
		stop, err := l.follow(ctx, l.wake)
		defer stop()
		if err != nil {
			return err
		}
	}
	lapse, sweep := time.NewTicker(lapsePause), time.NewTicker(sweepPause)
	defer lapse.Stop()
	defer sweep.Stop()
	var took time.Duration
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.unknown:
			l.updateAvailable(ctx)
		case <-sweep.C:
			l.sweep(ctx, started)
		case <-lapse.C:
			l.mu.Lock()
			l.lapse()
			l.mu.Unlock()
		case <-l.wake:
			if !notify.Pause(ctx, max(offerDebounce, min(refreshShare*took, refreshMost), refreshPause-l.Now().Sub(looked))) {
				return nil
			}
			took, looked = l.refresh(ctx), l.Now()
			l.updateAvailable(ctx)
		}
	}
}

// refresh looks again at what changed, tells that offers may be others, and returns how
// long that took.
func (l *Lender) refresh(ctx context.Context) time.Duration {
	begin := l.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.supplyStale.Swap(false) {
		l.view.supply, l.view.market = nil, nil
	}
	if _, err := l.market(ctx); err != nil && ctx.Err() == nil {
		l.log().Warn("cannot look at what can be lent", "err", err) // who asks next looks again
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return l.Now().Sub(begin)
}

// follow has informers say when something that decides changed.
func (l *Lender) follow(ctx context.Context, wake notify.Channel) (stop func(), err error) {
	var stops []func()
	stop = func() {
		l.following.Store(false)
		for _, f := range stops {
			f()
		}
	}
	supply := func() { l.supplyStale.Store(true); wake.Notify() }
	terms := func() { l.stale.Store(true); wake.Notify() }
	services := func() {
		if l.exporting.Load() {
			terms()
		}
	}
	for _, kind := range []struct {
		object  client.Object
		differs func(before, after any) bool
		changed func()
	}{
		{&corev1.Pod{}, podDiffers, supply},
		{&corev1.Node{}, nodeDiffers, supply},
		{&v1alpha1.Contract{}, contractDiffers, terms},
		{&v1alpha1.ForeignCluster{}, peerDiffers, terms},
		{&v1alpha1.PeeringPolicy{}, generationDiffers, terms},
		{&corev1.Service{}, serviceDiffers, services},
		{&corev1.Namespace{}, namespaceDiffers, services},
	} {
		end, err := kube.OnChange(ctx, l.Informers, kind.object, kind.differs, kind.changed)
		if err != nil {
			return stop, fmt.Errorf("follow what can be lent: %w", err)
		}
		stops = append(stops, end)
	}
	l.mu.Lock()
	l.view = view{} // what came before nobody followed
	l.mu.Unlock()
	l.following.Store(true)
	return stop, nil
}

// differing compares two objects of a kind; what is of another kind differs.
func differing[T any](before, after any, differ func(a, b T) bool) bool {
	a, okA := before.(T)
	b, okB := after.(T)
	return !okA || !okB || differ(a, b)
}

// A pod's status changes as it runs. Only what it takes, where and for whom counts.
func podDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Pod) bool {
		return market.Ended(a) != market.Ended(b) || a.Spec.NodeName != b.Spec.NodeName || market.OffloadedBy(a) != market.OffloadedBy(b) ||
			!equality.Semantic.DeepEqual(market.Requests(a), market.Requests(b))
	})
}

// A node writes its status every few seconds. Only what is lent of it counts.
func nodeDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Node) bool {
		return market.TakesPods(a) != market.TakesPods(b) || !slices.Equal(market.Taints(a), market.Taints(b)) || !maps.Equal(a.Labels, b.Labels) ||
			!equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable)
	})
}

func contractDiffers(before, after any) bool {
	return differing(before, after, func(a, b *v1alpha1.Contract) bool {
		return a.Generation != b.Generation || a.Spec.Revision != b.Spec.Revision || store.Closed(a) != store.Closed(b)
	})
}

func peerDiffers(before, after any) bool {
	return differing(before, after, func(a, b *v1alpha1.ForeignCluster) bool {
		return a.Generation != b.Generation || a.Status.Found != b.Status.Found || !maps.Equal(a.Labels, b.Labels) ||
			len(a.Status.Requests) != len(b.Status.Requests)
	})
}

func generationDiffers(before, after any) bool {
	return differing(before, after, func(a, b client.Object) bool { return a.GetGeneration() != b.GetGeneration() })
}

// serviceDiffers says whether what may be told of a Service changed.
func serviceDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Service) bool {
		return market.Withheld(a) != market.Withheld(b) || !maps.Equal(a.Labels, b.Labels) || !market.OfferedService(a).Equal(market.OfferedService(b))
	})
}

// namespaceDiffers says whether a namespace was closed or opened, or may be shared otherwise.
func namespaceDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Namespace) bool {
		return market.Closed(a, "") != market.Closed(b, "") || !maps.Equal(a.Labels, b.Labels)
	})
}

// ExportsChanged has what peers are told of Services found out again: a ServiceExport came
// or went.
func (l *Lender) ExportsChanged() {
	if l.exporting.Load() {
		l.stale.Store(true)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wake.Notify()
	}
}
