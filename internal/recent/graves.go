package recent

import (
	"sync"

	"github.com/entente-dev/entente/peering"
)

// Graves remembers the UIDs of pods that were here and are gone, as far as this process saw it: an apply that was
// on its way does not run one of them again.
type Graves struct {
	mu    sync.Mutex
	peers map[peering.ClusterID]*graveyard
	n     int // of all peers
}

// graveyard is the pods of one peer, the oldest first.
type graveyard struct {
	uids  map[string]struct{}
	order []string
}

// Add remembers a pod that is gone.
func (g *Graves) Add(peer peering.ClusterID, uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.peers == nil {
		g.peers = make(map[peering.ClusterID]*graveyard)
	}
	y := g.peers[peer]
	if y == nil {
		y = &graveyard{uids: make(map[string]struct{})}
		g.peers[peer] = y
	}
	if _, ok := y.uids[uid]; ok {
		return
	}
	y.uids[uid] = struct{}{}
	y.order = append(y.order, uid)
	if g.n++; g.n > maxGraves {
		g.forget()
	}
}

// forget forgets the oldest pod of the peer with the most. The caller holds the lock.
func (g *Graves) forget() {
	var most peering.ClusterID
	for peer, y := range g.peers {
		if m := g.peers[most]; m == nil || len(y.order) > len(m.order) {
			most = peer
		}
	}
	y := g.peers[most]
	delete(y.uids, y.order[0])
	y.order = y.order[1:]
	g.n--
	if len(y.order) == 0 {
		delete(g.peers, most)
	}
}

// Has reports whether a pod is gone.
func (g *Graves) Has(peer peering.ClusterID, uid string) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if y := g.peers[peer]; y != nil {
		_, ok = y.uids[uid]
	}
	return ok
}
