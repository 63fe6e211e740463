package direct

import (
	"sync"
	"time"

	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// Openings knows which addresses peers have opened to pods of other clusters, with a pause for those that come again; see
// transit.Damp. The zero value knows none.
type Openings struct {
	// Changed is called after an address of a peer that had come again began to count. Nil does nothing.
	Changed func(peer peering.ClusterID)

	mu sync.Mutex
	of map[peering.ClusterID]*openings
}

// openings is those of one peer.
type openings struct {
	flaps map[transit.Opening]transit.Flap
	// due is when the next begins to count, and timer calls Changed then.
	due   time.Time
	timer *time.Timer
}

// See records what a peer has opened now.
func (o *Openings) See(peer peering.ClusterID, open map[transit.Opening]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.of[peer]
	if p == nil {
		if len(open) == 0 {
			return
		}
		if o.of == nil {
			o.of = map[peering.ClusterID]*openings{}
		}
		p = &openings{}
		o.of[peer] = p
	}
	p.flaps = transit.Damp(p.flaps, open, time.Now())
	if len(p.flaps) == 0 {
		p.stop()
		delete(o.of, peer)
		return
	}
	o.schedule(peer, p)
}

// Forget forgets a peer.
func (o *Openings) Forget(peer peering.ClusterID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.of[peer]; p != nil {
		p.stop()
		delete(o.of, peer)
	}
}

// Count reports whether an address that a peer opened counts as open.
func (o *Openings) Count(peer peering.ClusterID, opening transit.Opening) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.of[peer]
	return p != nil && p.flaps[opening].Counts(time.Now())
}

// schedule sets a peer's timer to when the next address begins to count. The caller holds the lock.
func (o *Openings) schedule(peer peering.ClusterID, p *openings) {
	due := transit.Due(p.flaps, time.Now())
	if due.Equal(p.due) {
		return
	}
	p.stop()
	if p.due = due; due.IsZero() || o.Changed == nil {
		return
	}
	p.timer = time.AfterFunc(time.Until(due), func() {
		o.mu.Lock()
		if o.of[peer] == p {
			o.schedule(peer, p)
		}
		o.mu.Unlock()
		o.Changed(peer)
	})
}

func (p *openings) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}
