package mdns

import (
	"time"

	"github.com/miekg/dns"
)

// A crowd is a full cache, or more packets than are read. Then this host asks for all instances,
// without known answers, and those that do not answer lose their place. So a flood from forged
// addresses keeps out others only while it lasts, and those that it kept out are found afterwards.
type crowd struct {
	// since is when it last asked, and until when answers are due; zero if that is over.
	since, until time.Time
	// again means that since then the cache was full, or packets were not read.
	again bool
	// deaf means that packets were not read, so that a missing answer proves nothing.
	deaf bool
}

// next returns when something is due; zero if nothing is.
func (c crowd) next() time.Time {
	if c.until.IsZero() && c.again {
		return c.since.Add(crowdGap)
	}
	return c.until
}

// noRoom records that something was dropped.
func (l *link) noRoom(now time.Time, deaf bool) {
	l.crowd.again, l.crowd.deaf = true, l.crowd.deaf || deaf
	if l.crowd.until.IsZero() && now.Sub(l.crowd.since) >= crowdGap {
		l.askWhoIsThere(now)
	}
}

// thin does what is due for a crowd.
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

// askWhoIsThere restarts the queries for all instances (RFC 6762 section 5.2).
func (l *link) askWhoIsThere(now time.Time) {
	if len(l.browsed) == 0 {
		l.crowd = crowd{}
		return
	}
	l.crowd = crowd{since: now, until: now.Add(crowdWait)}
	l.beginAgain(now, 0)
}
