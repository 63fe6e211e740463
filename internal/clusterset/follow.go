package clusterset

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/peering"
)

// Watch hands over what a peer exports to its cluster set, until ctx or the stream ends. synced
// is called once all was handed over, with the names of what there is.
type Watch func(ctx context.Context, peer peering.ClusterID, contract string, changed func(peering.ExportedService), synced func([]peering.ServiceName)) error

// followers watch what peers export. What a peer said outlives its stream.
type followers struct {
	watch Watch
	// changed is called when a peer said something of a Service.
	changed func(peering.ServiceName)

	mu    sync.Mutex
	peers map[peering.ClusterID]*follower
}

type follower struct {
	contract string
	stop     context.CancelFunc
	// synced says that all was said at least once.
	synced bool
	states map[peering.ServiceName]peering.ExportedService
}

// of returns what peers said of a Service, and which have not said yet what they export.
func (f *followers) of(name peering.ServiceName) (said map[peering.ClusterID]peering.ExportedService, waiting map[peering.ClusterID]bool) {
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

// names returns what is said by any.
func (f *followers) names() (out []peering.ServiceName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		out = slices.AppendSeq(out, maps.Keys(p.states))
	}
	return out
}

// set has exactly these peers watched, by these contracts.
func (f *followers) set(want map[peering.ClusterID]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for peer, p := range f.peers {
		if _, ok := want[peer]; !ok {
			p.stop()
			delete(f.peers, peer)
		}
	}
	for peer, contract := range want {
		old := f.peers[peer]
		if old != nil && old.contract == contract {
			continue
		}
		ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // set ends it
		p := &follower{contract: contract, stop: stop, states: map[peering.ServiceName]peering.ExportedService{}}
		if old != nil {
			old.stop()
			p.synced, p.states = old.synced, maps.Clone(old.states)
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
	services.Rewatch(ctx, func(came func()) {
		_ = f.watch(ctx, peer, p.contract, func(s peering.ExportedService) { // why it ended shows when it is tried again
			f.said(p, s)
		}, func(names []peering.ServiceName) {
			came()
			f.synced(p, names)
		})
	})
}

// said keeps what a peer says of a Service.
func (f *followers) said(p *follower, s peering.ExportedService) {
	f.mu.Lock()
	if s.Refusal != "" || s.Export == nil {
		delete(p.states, s.ServiceName)
	} else {
		p.states[s.ServiceName] = s
	}
	f.mu.Unlock()
	f.changed(s.ServiceName)
}

// synced drops what a peer did not say again. What waited for it is to be looked at as well,
// which nobody said.
func (f *followers) synced(p *follower, names []peering.ServiceName) {
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
		f.changed(name)
	}
	if first {
		f.changed(peering.ServiceName{})
	}
}

// stop ends all.
func (f *followers) stop() { f.set(nil) }
