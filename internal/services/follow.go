package services

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// Watch hands over how Services of a peer are, until ctx or the stream ends.
type Watch func(ctx context.Context, peer peering.ClusterID, contract string, names []peering.ServiceName, changed func(peering.ExportedService)) error

// wanted is what is imported from a peer.
type wanted struct {
	contract string
	// names is sorted.
	names []peering.ServiceName
}

// add adds a name, if it is not there, as long as there is room for more.
func (w *wanted) add(n peering.ServiceName) {
	i, found := slices.BinarySearchFunc(w.names, n, peering.CompareServiceNames)
	if !found && len(w.names) < peering.MaxServices {
		w.names = slices.Insert(w.names, i, n)
	}
}

func (w wanted) equal(o wanted) bool {
	return w.contract == o.contract && slices.Equal(w.names, o.names)
}

// followers watch what is imported, one peer each. What a peer said outlives its stream.
type followers struct {
	watch Watch
	// changed is called when a peer said something of a Service.
	changed func(peer peering.ClusterID, name peering.ServiceName)

	mu    sync.Mutex
	peers map[peering.ClusterID]*follower
}

type follower struct {
	wanted
	stop   context.CancelFunc
	states map[peering.ServiceName]*peering.ExportedService
}

// said returns what a peer said of a Service last; nil is nothing.
func (f *followers) said(peer peering.ClusterID, name peering.ServiceName) *peering.ExportedService {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.peers[peer]; p != nil {
		return p.states[name]
	}
	return nil
}

// set has exactly this watched.
func (f *followers) set(want map[peering.ClusterID]wanted) {
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
		if old != nil && old.equal(w) {
			continue
		}
		ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // set ends it
		p := &follower{wanted: w, stop: stop, states: map[peering.ServiceName]*peering.ExportedService{}}
		if old != nil {
			old.stop()
			for _, n := range w.names {
				if s := old.states[n]; s != nil {
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

// run watches until ctx ends.
func (f *followers) run(ctx context.Context, peer peering.ClusterID, p *follower) {
	Rewatch(ctx, func(came func()) {
		_ = f.watch(ctx, peer, p.contract, p.names, func(s peering.ExportedService) { // why it ended shows when it is tried again
			came()
			f.mu.Lock()
			p.states[s.ServiceName] = &s
			f.mu.Unlock()
			f.changed(peer, s.ServiceName)
		})
	})
}

// Rewatch has a peer watched again each time that watch returns, until ctx ends. The pause before that
// grows until watch calls came.
func Rewatch(ctx context.Context, watch func(came func())) {
	for again := watchAgainMin; ; again = min(2*again, watchAgainMax) {
		watch(func() { again = watchAgainMin })
		if !notify.Pause(ctx, again) {
			return
		}
	}
}

// stop ends all.
func (f *followers) stop() { f.set(nil) }

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
