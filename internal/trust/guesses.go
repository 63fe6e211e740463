package trust

import (
	"maps"
	"time"
)

// pace is how often something may happen: burst times at once, and once each pause in the
// long run.
type pace struct {
	burst int
	pause time.Duration
}

// guesses counts events by key, each at a pace. An event can be taken back. Keys whose events
// have all expired are removed, so that a key for all events bounds the number of the others. It
// is not safe for concurrent use.
type guesses map[string]*guess

type guess struct {
	pace
	// level is how many events still count, as of at.
	level float64
	at    time.Time
}

// paced is a key and its pace.
type paced struct {
	key string
	pace
}

// left returns how many events still count.
func (g *guess) left(now time.Time) float64 {
	return max(0, g.level-max(0, now.Sub(g.at).Seconds())/g.pause.Seconds())
}

// wait returns how long it takes until there is room for one more event of each key, 0 if there
// is room now.
func (gs guesses) wait(now time.Time, keys ...paced) (wait time.Duration) {
	for _, k := range keys {
		if g := gs[k.key]; g != nil {
			if over := g.left(now) + 1 - float64(k.burst); over > 0 {
				wait = max(wait, time.Duration(over*float64(k.pause)), time.Second)
			}
		}
	}
	return wait
}

// add counts one event for each key. If a key has too many, it counts none and returns how long
// it takes until there is room, which is positive.
func (gs *guesses) add(now time.Time, keys ...paced) time.Duration {
	if *gs == nil {
		*gs = guesses{}
	}
	maps.DeleteFunc(*gs, func(_ string, g *guess) bool { return g.left(now) == 0 })
	if wait := gs.wait(now, keys...); wait > 0 {
		return wait
	}
	for _, k := range keys {
		g := (*gs)[k.key]
		if g == nil {
			g = &guess{pace: k.pace}
			(*gs)[k.key] = g
		}
		g.level, g.at = g.left(now)+1, now
	}
	return 0
}

// takeBack undoes what add counted for these keys.
func (gs guesses) takeBack(now time.Time, keys ...paced) {
	for _, k := range keys {
		if g := gs[k.key]; g != nil {
			g.level, g.at = max(0, g.left(now)-1), now
		}
	}
}
