package vk

import "time"

// link is what is known of the way to the provider.
type link struct {
	up   bool
	ever bool      // it was up since this process started
	lost time.Time // when it went down
}

// set notes the link's state and says whether that is news.
func (l *link) set(up bool, now time.Time) bool {
	if l.up == up {
		return false
	}
	l.up = up
	if up {
		l.ever = true
	} else {
		l.lost = now
	}
	return true
}

// shown says whether the node is shown as connected, and until when that holds
// by itself; zero is for good. wasReady is whether the node was Ready before
// this process started.
func (l link) shown(now, started time.Time, wasReady bool, startGrace, lossGrace time.Duration) (up bool, until time.Time) {
	switch {
	case l.up:
		return true, time.Time{}
	case l.ever:
		until = l.lost.Add(lossGrace)
	case wasReady:
		until = started.Add(startGrace)
	}
	if now.Before(until) {
		return true, until
	}
	return false, time.Time{}
}
