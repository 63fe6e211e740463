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

// guesses counts, by key, what may happen at a pace and can be taken back. What has worn
// off is forgotten, so that a key for all bounds how many others there are. It is not safe
// for concurrent use.
type guesses map[string]*guess

type guess struct {
	pace
	// level is how many count still, as of at.
	level float64
	at    time.Time
}

// paced is a key and its pace.
type paced struct {
	key string
	pace
}

// left is how many count still.
func (g *guess) left(now time.Time) float64 {
	return max(0, g.level-max(0, now.Sub(g.at).Seconds())/g.pause.Seconds())
}

// wait returns after how long there is room for one more of each key, 0 is now.
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

// add counts one for each key, or, where one of them has too many, counts none and returns
// after how long there is room, which is positive.
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

// takeBack uncounts what add counted for these keys.
func (gs guesses) takeBack(now time.Time, keys ...paced) {
	for _, k := range keys {
		if g := gs[k.key]; g != nil {
			g.level, g.at = max(0, g.left(now)-1), now
		}
	}
}
