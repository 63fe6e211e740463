package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/entente-dev/entente/internal/notify"
)

// collectAt is GOGC of the agent, unless that is set. What it keeps for a peer is
// small and lives long, and what a join needs is soon garbage: a quarter of the usual
// headroom takes an eighth off what half of it does. It costs joins processor time,
// but one that rests next to nothing.
const collectAt = 25

// While there is much to do, as much as headroom may become garbage between two collections, whatever
// lives: each goes through all that lives, so an agent that keeps little, and collected by that, was
// collecting for two fifths of its time, and one that keeps much must not need much more than that. At
// rest it is as much as becomes garbage in headroomFor, so that an agent with many idle peers does not
// keep garbage for them. It is looked at each headroomEach.
const (
	headroom     = 64 << 20
	headroomFor  = 5 * time.Second
	headroomEach = time.Second
	// headroomStays is what of a rate is left a look later, if less is allocated by then.
	headroomStays = 0.9
	// leastLive is what is reckoned with of a heap that is nearly empty.
	leastLive = 3 << 20
)

// collection is GOGC of a heap of which so many bytes live, and rate bytes are allocated a second.
func collection(live uint64, rate float64) int {
	kept := float64(max(live, leastLive))
	return max(collectAt, int(min(headroom, rate*headroomFor.Seconds())*100/kept))
}

// keepHeadroom sets how often Go collects until ctx ends. GOMEMLIMIT stays the bound.
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

// trimEach is how often the agent gives back what memory it does not need: Go keeps
// a tenth of what it once needed, which after many joins is as much as some peers take.
const trimEach = 2 * time.Minute

// trim gives memory back until ctx ends.
func trim(ctx context.Context) {
	notify.Each(ctx, trimEach, debug.FreeOSMemory)
}
