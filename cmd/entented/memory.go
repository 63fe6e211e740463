package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/entente-dev/entente/internal/notify"
)

// collectAt is GOGC of the agent, unless that is set. Its data of a peer is small and
// lives long, and the data of a join is soon garbage: with a quarter of the usual headroom
// the agent needs an eighth less memory than with half of it. That costs processor time
// during joins, but next to none in an idle agent.
const collectAt = 25

// Under load, up to headroom may become garbage between two collections, whatever the live heap: each
// collection scans all of it, so an agent with a small heap, collected in proportion to that, spent
// two fifths of its time on collections, and one with a large heap must not need much more than that.
// At rest it is what becomes garbage in headroomFor, so that an agent with many idle peers does not
// keep garbage for them. It is computed again each headroomEach.
const (
	headroom     = 64 << 20
	headroomFor  = 5 * time.Second
	headroomEach = time.Second
	// headroomStays is the part of a rate that is left a period later, if less is allocated by then.
	headroomStays = 0.9
	// leastLive is the assumed size of a heap that is nearly empty.
	leastLive = 3 << 20
)

// collection is GOGC for a heap with so many live bytes and an allocation rate in bytes a second.
func collection(live uint64, rate float64) int {
	kept := float64(max(live, leastLive))
	return max(collectAt, int(min(headroom, rate*headroomFor.Seconds())*100/kept))
}

// keepHeadroom adjusts GOGC until ctx ends. GOMEMLIMIT stays the limit.
func keepHeadroom(ctx context.Context) {
	tick := time.NewTicker(headroomEach)
	defer tick.Stop()
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	is, rate, before := 0, 0.0, uint64(0)
	for {
		metrics.Read(heap)
		allocated := heap[1].Value.Uint64()
		rate = max(rate*headroomStays, float64(allocated-before)/headroomEach.Seconds())
		before = allocated
		if want := collection(heap[0].Value.Uint64(), rate); want > is+is/4 || want < is-is/4 {
			debug.SetGCPercent(want)
			is = want
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// trimEach is how often the agent returns unused memory to the system: Go keeps
// a tenth of what it once needed, which after many joins is as much as some peers take.
const trimEach = 2 * time.Minute

// trim returns memory until ctx ends.
func trim(ctx context.Context) {
	notify.Each(ctx, trimEach, debug.FreeOSMemory)
}
