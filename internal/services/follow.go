package services

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// Watch calls changed for each state of a Service that a peer sends, until ctx or the stream ends. For a cluster
// set, synced is called after the complete list, with its names.
type Watch func(ctx context.Context, peer peering.ClusterID, what Subscription, changed func(peering.ExportedService), synced func([]peering.ServiceName)) error

// Subscription is what is imported from a peer.
type Subscription struct {
	Contract string
	// Names is sorted; nil means all that it exports to its cluster set.
	Names []peering.ServiceName
}

// add adds a name, unless it is there already or the limit is reached.
func (w *Subscription) add(n peering.ServiceName) {
	i, found := slices.BinarySearchFunc(w.Names, n, peering.CompareServiceNames)
	if !found && len(w.Names) < peering.MaxServices {
		w.Names = slices.Insert(w.Names, i, n)
	}
}

// has reports whether a Service is in the subscription.
func (w Subscription) has(n peering.ServiceName) bool {
	_, found := slices.BinarySearchFunc(w.Names, n, peering.CompareServiceNames)
	return found || w.Names == nil
}

// Followers watch what is imported, one stream for each peer. What a peer sent outlives its stream.
type Followers struct {
	Watch Watch
	// Changed is called when a peer sent a state of a Service, or with an empty name when the first list is
	// complete.
	Changed func(peer peering.ClusterID, name peering.ServiceName)

	mu    sync.Mutex
	peers map[peering.ClusterID]*follower
}

type follower struct {
	Subscription
	stop context.CancelFunc
	// synced: a complete list was received at least once.
	synced bool
	states map[peering.ServiceName]peering.ExportedService
}

// last returns the last state that a peer sent of a Service; nil if there is none.
func (f *Followers) last(peer peering.ClusterID, name peering.ServiceName) *peering.ExportedService {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.peers[peer]; p != nil {
		if s, ok := p.states[name]; ok {
			return &s
		}
	}
	return nil
}

// Of returns the last states of a Service, by peer, and the peers that have not sent their exports yet.
func (f *Followers) Of(name peering.ServiceName) (last map[peering.ClusterID]peering.ExportedService, waiting map[peering.ClusterID]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last, waiting = map[peering.ClusterID]peering.ExportedService{}, map[peering.ClusterID]bool{}
	for peer, p := range f.peers {
		if s, ok := p.states[name]; ok {
			last[peer] = s
		} else if !p.synced {
			waiting[peer] = true
		}
	}
	return last, waiting
}

// Names returns the Services that any peer exports.
func (f *Followers) Names() (out []peering.ServiceName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		out = slices.AppendSeq(out, maps.Keys(p.states))
	}
	return out
}

// Set replaces the subscriptions.
func (f *Followers) Set(want map[peering.ClusterID]Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for peer, p := range f.peers {
		if _, ok := want[peer]; !ok {
			p.stop()
			delete(f.peers, peer)
		}
	}
	for peer, w := range want {
		old := f.peers[peer]
		if old != nil && old.Contract == w.Contract && slices.Equal(old.Names, w.Names) {
			continue
		}
		ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // Set ends it
		p := &follower{Subscription: w, stop: stop, states: map[peering.ServiceName]peering.ExportedService{}}
		if old != nil {
			old.stop()
			p.synced = old.synced
			for n, s := range old.states {
				if w.has(n) {
					p.states[n] = s
				}
			}
		}
		if f.peers == nil {
			f.peers = map[peering.ClusterID]*follower{}
		}
		f.peers[peer] = p
		go f.run(ctx, peer, p) // ends with ctx
	}
}

// Stop ends all subscriptions.
func (f *Followers) Stop() { f.Set(nil) }

// run watches until ctx ends.
func (f *Followers) run(ctx context.Context, peer peering.ClusterID, p *follower) {
	rewatch(ctx, func(came func()) {
		_ = f.Watch(ctx, peer, p.Subscription, func(s peering.ExportedService) { // why it ended shows when it is tried again
			if p.Names != nil {
				came()
			}
			f.receive(peer, p, s)
		}, func(names []peering.ServiceName) {
			came()
			f.sync(peer, p, names)
		})
	})
}

// receive stores the state of a Service that a peer sends. A Service that it refuses is not in its cluster set.
func (f *Followers) receive(peer peering.ClusterID, p *follower, s peering.ExportedService) {
	f.mu.Lock()
	if p.Names == nil && (s.Refusal != "" || s.Export == nil) {
		delete(p.states, s.ServiceName)
	} else {
		p.states[s.ServiceName] = s
	}
	f.mu.Unlock()
	f.Changed(peer, s.ServiceName)
}

// sync drops the Services that a peer did not send again. Those that waited for it have to be reconciled, too.
func (f *Followers) sync(peer peering.ClusterID, p *follower, names []peering.ServiceName) {
	f.mu.Lock()
	first := !p.synced
	p.synced = true
	var gone []peering.ServiceName
	for name := range p.states {
		if _, found := slices.BinarySearchFunc(names, name, peering.CompareServiceNames); !found {
			delete(p.states, name)
			gone = append(gone, name)
		}
	}
	f.mu.Unlock()
	for _, name := range gone {
		f.Changed(peer, name)
	}
	if first {
		f.Changed(peer, peering.ServiceName{})
	}
}

// rewatch calls watch again each time that it returns, until ctx ends. The pause before that grows until watch
// calls came.
func rewatch(ctx context.Context, watch func(came func())) {
	for again := watchAgainMin; ; again = min(2*again, watchAgainMax) {
		watch(func() { again = watchAgainMin })
		if !notify.Pause(ctx, again) {
			return
		}
	}
}

// Queue lets callers enqueue objects for a reconciler. It implements source.Source.
type Queue struct {
	mu sync.Mutex
	to workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// Start implements source.Source.
func (q *Queue) Start(_ context.Context, to workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.to = to
	return nil
}

// Later enqueues an object after a pause, once for all changes meanwhile.
func (q *Queue) Later(r reconcile.Request, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.to != nil {
		q.to.AddAfter(r, pause)
	}
}
