package mdns

import (
	"time"

	"github.com/miekg/dns"
)

// A crowd is a cache that has no room for another, or packets that were too many to be
// read. Then it is asked who is there, as if nobody was known, and who does not answer
// loses its place. So a flood from addresses that nobody has keeps out others no longer
// than it lasts, and those that it kept out are asked for.
type crowd struct {
	// since is when it was asked last, until is when they have to have answered: zero if
	// that is over.
	since, until time.Time
	// again says that there was no room since then, or too much was said.
	again bool
	// deaf says that too much was said to hear everyone: silence proves nothing.
	deaf bool
}

// next returns when there is something to do, zero if there is not.
func (c crowd) next() time.Time {
	if c.until.IsZero() && c.again {
		return c.since.Add(crowdGap)
	}
	return c.until
}

// noRoom is told when something was dropped.
func (l *link) noRoom(now time.Time, deaf bool) {
	l.crowd.again, l.crowd.deaf = true, l.crowd.deaf || deaf
	if l.crowd.until.IsZero() && now.Sub(l.crowd.since) >= crowdGap {
		l.askWhoIsThere(now)
	}
}

// thin does what is due of a crowd.
func (l *link) thin(now time.Time) {
	c := &l.crowd
	if at := c.next(); at.IsZero() || at.After(now) {
		return
	}
	if c.until.IsZero() {
		l.askWhoIsThere(now)
		return
	}
	c.until = time.Time{}
	if c.deaf {
		return
	}
	for _, n := range l.browsed {
		for _, e := range l.cache.sets[key{fold(n), dns.TypePTR}] {
			if e.received.Before(c.since) {
				e.until = earlier(e.until, now)
			}
		}
	}
}

// askWhoIsThere begins to ask for all instances from the beginning (RFC 6762 section 5.2).
func (l *link) askWhoIsThere(now time.Time) {
	if len(l.browsed) == 0 {
		l.crowd = crowd{}
		return
	}
	l.crowd = crowd{since: now, until: now.Add(crowdWait)}
	l.beginAgain(now, 0)
}
