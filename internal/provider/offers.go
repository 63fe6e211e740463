package provider

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

// Offer returns what this cluster offers a peer now, and a channel that is closed
// when the offer may have changed. Nodes, pods and contracts are summed up once for
// all peers.
func (p *Provider) Offer(ctx context.Context, peer peering.ClusterID) (peering.Offer, <-chan struct{}, error) {
	joined, err := p.joined(ctx, peer)
	if err != nil {
		return peering.Offer{}, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	m, err := p.marketFor(ctx, peer, joined)
	if err != nil {
		return peering.Offer{}, nil, err
	}
	return m.Offer(peer), p.changed, nil
}

// Offering returns whether this cluster offers a peer anything, by the last offer that was
// computed: states are written without waiting for a new one. It is unknown when a peer
// is asked about for the first time. Changed is called once it is known, and when it changes.
func (p *Provider) Offering(peer peering.ClusterID) peering.Offering {
	p.offeringsMu.Lock()
	defer p.offeringsMu.Unlock()
	offering, ok := p.offerings[peer]
	if !ok {
		if p.offerings == nil {
			p.offerings = make(map[peering.ClusterID]peering.Offering)
		}
		p.offerings[peer] = peering.OfferingUnknown
		p.unknown.Notify()
	}
	return offering
}

// updateOfferings computes again, for each peer that Offering was asked about, whether it
// is offered anything.
func (p *Provider) updateOfferings(ctx context.Context) {
	p.offeringsMu.Lock()
	was := maps.Clone(p.offerings)
	p.offeringsMu.Unlock()
	for peer, before := range was {
		p.mu.Lock()
		m, err := p.marketFor(ctx, peer, nil)
		offering, known := peering.OfferingSomething, false
		if err == nil && m.Peers[peer] != nil {
			known = true
			if offer := m.Offer(peer); offersNothing(&offer) {
				offering = peering.OfferingNothing
			}
		}
		p.mu.Unlock()
		if err != nil {
			if ctx.Err() == nil {
				p.log().Warn("cannot compute what a peer is offered", "peer", peer, "err", err)
			}
			return
		}
		p.offeringsMu.Lock()
		if known {
			p.offerings[peer] = offering
		} else {
			delete(p.offerings, peer)
		}
		p.offeringsMu.Unlock()
		if known && offering != before {
			p.Changed(peer)
		}
	}
}

// Run watches what decisions depend on until ctx ends: it announces when offers may have
// changed, and drops abandoned requests.
func (p *Provider) Run(ctx context.Context) error {
	started := p.Now()
	p.mu.Lock()
	p.wake = notify.New()
	p.mu.Unlock()
	p.offeringsMu.Lock()
	p.unknown = notify.New()
	p.unknown.Notify() // Offering may have been called before
	p.offeringsMu.Unlock()
	if p.Informers != nil {
		stop, err := p.follow(ctx, p.wake)
		defer stop()
		if err != nil {
			return err
		}
	}
	lapse, sweep := time.NewTicker(lapsePause), time.NewTicker(sweepPause)
	defer lapse.Stop()
	defer sweep.Stop()
	var took time.Duration
	var refreshed time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.unknown:
			p.updateOfferings(ctx)
		case <-sweep.C:
			p.sweep(ctx, started)
		case <-lapse.C:
			p.mu.Lock()
			p.lapse()
			p.mu.Unlock()
		case <-p.wake:
			if !notify.Pause(ctx, max(offerDebounce, min(refreshShare*took, refreshMost), refreshPause-p.Now().Sub(refreshed))) {
				return nil
			}
			took, refreshed = p.refresh(ctx), p.Now()
			p.updateOfferings(ctx)
		}
	}
}

// refresh reads again what changed, announces that offers may have changed, and returns how
// long that took.
func (p *Provider) refresh(ctx context.Context) time.Duration {
	begin := p.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.supplyStale.Swap(false) {
		p.snapshot.supply, p.snapshot.market = nil, nil
	}
	if _, err := p.market(ctx); err != nil && ctx.Err() == nil {
		p.log().Warn("cannot read what can be offered", "err", err) // the next request reads it again
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	return p.Now().Sub(begin)
}

// follow makes informers report changes of what decisions depend on.
func (p *Provider) follow(ctx context.Context, wake notify.Channel) (stop func(), err error) {
	var stops []func()
	stop = func() {
		p.following.Store(false)
		for _, f := range stops {
			f()
		}
	}
	supply := func() { p.supplyStale.Store(true); wake.Notify() }
	terms := func() { p.stale.Store(true); wake.Notify() }
	services := func() {
		if p.exporting.Load() {
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
		end, err := kube.OnChange(ctx, p.Informers, kind.object, kind.differs, kind.changed)
		if err != nil {
			return stop, fmt.Errorf("watch what can be offered: %w", err)
		}
		stops = append(stops, end)
	}
	p.mu.Lock()
	p.snapshot = snapshot{} // earlier changes were not followed
	p.mu.Unlock()
	p.following.Store(true)
	return stop, nil
}

// differing compares two objects of a kind; objects of another kind differ.
func differing[T any](before, after any, differ func(a, b T) bool) bool {
	a, okA := before.(T)
	b, okB := after.(T)
	return !okA || !okB || differ(a, b)
}

// A pod's status changes as it runs. Only its requests, node and contract count.
func podDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Pod) bool {
		return market.Ended(a) != market.Ended(b) || a.Spec.NodeName != b.Spec.NodeName || market.OffloadedBy(a) != market.OffloadedBy(b) ||
			!equality.Semantic.DeepEqual(market.Requests(a), market.Requests(b))
	})
}

// A node writes its status every few seconds. Only what can be offered of it counts.
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
		return a.Generation != b.Generation || a.Status.Source != b.Status.Source || !maps.Equal(a.Labels, b.Labels) ||
			len(a.Status.Requests) != len(b.Status.Requests)
	})
}

func generationDiffers(before, after any) bool {
	return differing(before, after, func(a, b client.Object) bool { return a.GetGeneration() != b.GetGeneration() })
}

// serviceDiffers reports whether what may be exported of a Service changed.
func serviceDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Service) bool {
		return market.NeverExported(a) != market.NeverExported(b) || !maps.Equal(a.Labels, b.Labels) || !market.OfferedService(a).Equal(market.OfferedService(b))
	})
}

// namespaceDiffers reports whether a namespace was closed or opened, or its labels changed.
func namespaceDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Namespace) bool {
		return market.Closed(a, "") != market.Closed(b, "") || !maps.Equal(a.Labels, b.Labels)
	})
}

// ExportsChanged makes the exported Services be computed again: a ServiceExport was created
// or deleted.
func (p *Provider) ExportsChanged() {
	if p.exporting.Load() {
		p.stale.Store(true)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wake.Notify()
	}
}
