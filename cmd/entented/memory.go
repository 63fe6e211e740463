package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// collectAt is GOGC of the agent, unless that is set. What it keeps for a peer is
// small and lives long, and what a join needs is soon garbage: a quarter of the usual
// headroom takes an eighth off what half of it does. It costs joins processor time,
// but one that rests next to nothing.
const collectAt = 25

// headroom is how many bytes may become garbage at least between two collections: an agent
// that keeps little would collect every few MiB, which under load was two fifths of what it did.
// headroomEach is how often collections are set to that.
const (
	headroom     = 32 << 20
	headroomEach = 5 * time.Second
)

// collection is GOGC of a heap of which so many bytes live.
func collection(live uint64) int {
	return max(collectAt, int(headroom*100/max(live, headroom/10)))
}

// keepHeadroom sets how often Go collects until ctx ends. GOMEMLIMIT stays the bound.
func keepHeadroom(ctx context.Context) {
	tick := time.NewTicker(headroomEach)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	is := 0
	for {
		metrics.Read(live)
		if want := collection(live[0].Value.Uint64()); want > is+is/10 || want < is-is/10 {
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
	tick := time.NewTicker(trimEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			debug.FreeOSMemory()
		}
	}
}
