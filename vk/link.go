package vk

import "time"

// link is what is known of the way to the provider.
type link struct {
	up   bool
	ever bool // it was up since this process started
	// lost is since when the provider has not answered: it is not up, or it is silent.
	lost time.Time
	// silent says that it is up, but the provider owes an answer.
	silent bool
}

// answers says whether the provider can be reached, as far as is known.
func (l *link) answers() bool { return l.up && !l.silent }

// set notes the link's state and says whether that is news.
func (l *link) set(up bool, now time.Time) bool {
	if l.up == up {
		return false
	}
	if !up && !l.silent {
		l.lost = now
	}
	l.up, l.silent = up, false
	l.ever = l.ever || up
	return true
}

// owes notes since when the provider has owed an answer, zero if it owes none, and
// says whether that is news.
func (l *link) owes(since time.Time) bool {
	if silent := !since.IsZero(); l.up && silent != l.silent {
		l.silent, l.lost = silent, since
		return true
	}
	return false
}

// shown says whether the node is shown as connected, and until when that holds
// by itself; zero is for good. wasReady is whether the node was Ready before
// this process started.
func (l link) shown(now, started time.Time, wasReady bool, startGrace, lossGrace time.Duration) (up bool, until time.Time) {
	switch {
	case l.answers():
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

// podsLostAt is when the pods of a provider that does not answer are no longer
// ready. They stay so for longer while the tunnel to them passes traffic: then they
// most likely serve, and only their state is not known.
func (l link) podsLostAt(started time.Time, startGrace time.Duration, tunnel bool) time.Time {
	grace := podLossGrace
	if tunnel {
		grace = podLossGraceTunnel
	}
	if !l.ever {
		return started.Add(max(grace, startGrace))
	}
	return l.lost.Add(grace)
}
