package mdns

import (
	"slices"
	"time"
)

// announce sends what is due of announcements (RFC 6762 section 8.3): all records of
// a name, with the cache-flush bit where they are unique.
func (l *link) announce(now time.Time) {
	var list []record
	for _, c := range l.claims {
		if c.phase != announcing || c.due.After(now) {
			continue
		}
		if c.host != nil && c.host.phase == probing {
			// An instance whose host has no name yet leads nowhere.
			c.due = c.host.due
			continue
		}
		for _, r := range slices.Concat(c.records, c.shared) {
			// What was an answer a moment ago was heard (section 6).
			if now.Sub(l.said[r.ident()]) >= repeatGap && !slices.Contains(list, r) {
				list = append(list, r)
			}
		}
		c.sent++
		c.due = now.Add(announceGap << (c.sent - 1))
		if c.sent == announcements {
			c.phase, c.due = settled, time.Time{}
		}
	}
	l.say(now, list, nil)
}

// say multicasts records of ours and remembers when.
func (l *link) say(now time.Time, answers, additional []record) {
	for _, r := range answers {
		l.said[r.ident()] = now
		delete(l.queue, r.ident())
	}
	for _, r := range additional {
		l.said[r.ident()] = now
	}
	for _, b := range packResponses(l.payload, answers, additional) {
		l.multicast(b)
	}
}
