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

// Watch hands over what a peer says of Services, until ctx or the stream ends. Of a cluster set synced is
// called once all was handed over, with the names of what there is.
type Watch func(ctx context.Context, peer peering.ClusterID, what Wanted, changed func(peering.ExportedService), synced func([]peering.ServiceName)) error

// Wanted is what is imported from a peer.
type Wanted struct {
	Contract string
	// Names is sorted; nil is all that it exports to its cluster set.
	Names []peering.ServiceName
}

// add adds a name, if it is not there, as long as there is room for more.
func (w *Wanted) add(n peering.ServiceName) {
	i, found := slices.BinarySearchFunc(w.Names, n, peering.CompareServiceNames)
	if !found && len(w.Names) < peering.MaxServices {
		w.Names = slices.Insert(w.Names, i, n)
	}
}

// has says whether a Service is among what is wanted.
func (w Wanted) has(n peering.ServiceName) bool {
	_, found := slices.BinarySearchFunc(w.Names, n, peering.CompareServiceNames)
	return found || w.Names == nil
}

// Followers watch what is imported, one peer each. What a peer said outlives its stream.
type Followers struct {
	Watch Watch
	// Changed is called when a peer said something of a Service; of none is that all was said once.
	Changed func(peer peering.ClusterID, name peering.ServiceName)

	mu    sync.Mutex
	peers map[peering.ClusterID]*follower
}

type follower struct {
	Wanted
	stop context.CancelFunc
	// synced says that all was said at least once.
	synced bool
	states map[peering.ServiceName]peering.ExportedService
}

// said returns what a peer said of a Service last; nil is nothing.
func (f *Followers) said(peer peering.ClusterID, name peering.ServiceName) *peering.ExportedService {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.peers[peer]; p != nil {
		if s, ok := p.states[name]; ok {
			return &s
		}
	}
	return nil
}

// Of returns what peers said of a Service, and which have not said yet what they export.
func (f *Followers) Of(name peering.ServiceName) (said map[peering.ClusterID]peering.ExportedService, waiting map[peering.ClusterID]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	said, waiting = map[peering.ClusterID]peering.ExportedService{}, map[peering.ClusterID]bool{}
	for peer, p := range f.peers {
		if s, ok := p.states[name]; ok {
			said[peer] = s
		} else if !p.synced {
			waiting[peer] = true
		}
	}
	return said, waiting
}

// Names returns what is said by any.
func (f *Followers) Names() (out []peering.ServiceName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		out = slices.AppendSeq(out, maps.Keys(p.states))
	}
	return out
}

// Set has exactly this watched.
func (f *Followers) Set(want map[peering.ClusterID]Wanted) {
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
		p := &follower{Wanted: w, stop: stop, states: map[peering.ServiceName]peering.ExportedService{}}
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

// Stop ends all.
func (f *Followers) Stop() { f.Set(nil) }

// run watches until ctx ends.
func (f *Followers) run(ctx context.Context, peer peering.ClusterID, p *follower) {
	rewatch(ctx, func(came func()) {
		_ = f.Watch(ctx, peer, p.Wanted, func(s peering.ExportedService) { // why it ended shows when it is tried again
			if p.Names != nil {
				came()
			}
			f.hear(peer, p, s)
		}, func(names []peering.ServiceName) {
			came()
			f.sync(peer, p, names)
		})
	})
}

// hear keeps what a peer says of a Service. What it refuses is not in its cluster set.
func (f *Followers) hear(peer peering.ClusterID, p *follower, s peering.ExportedService) {
	f.mu.Lock()
	if p.Names == nil && (s.Refusal != "" || s.Export == nil) {
		delete(p.states, s.ServiceName)
	} else {
		p.states[s.ServiceName] = s
	}
	f.mu.Unlock()
	f.Changed(peer, s.ServiceName)
}

// sync drops what a peer did not say again. What waited for it is to be reconciled as well.
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

// rewatch has a peer watched again each time that watch returns, until ctx ends. The pause before that
// grows until watch calls came.
func rewatch(ctx context.Context, watch func(came func())) {
	for again := watchAgainMin; ; again = min(2*again, watchAgainMax) {
		watch(func() { again = watchAgainMin })
		if !notify.Pause(ctx, again) {
			return
		}
	}
}

// Queue has a reconciler look at objects again. It implements source.Source.
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

// Later has an object looked at after a pause, once for all that is said meanwhile.
func (q *Queue) Later(r reconcile.Request, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.to != nil {
		q.to.AddAfter(r, pause)
	}
}
