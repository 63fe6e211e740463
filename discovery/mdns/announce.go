package mdns

import (
	"slices"
	"time"
)

// announce sends the announcements that are due (RFC 6762 section 8.3): all records of a name, with
// the cache-flush bit on unique ones.
func (l *link) announce(now time.Time) {
	var list []record
	for _, c := range l.claims {
		if c.phase != announcing || c.due.After(now) {
			continue
		}
		if c.host != nil && c.host.phase == probing {
			// An instance cannot be announced before its host has a name.
			c.due = c.host.due
			continue
		}
		for _, r := range slices.Concat(c.records, c.shared) {
			// A record that was just sent as an answer is not repeated (section 6).
			if now.Sub(l.sentAt[r.ident()]) >= repeatGap && !slices.Contains(list, r) {
				list = append(list, r)
			}
		}
		c.sent++
		c.due = now.Add(announceGap << (c.sent - 1))
		if c.sent == announcements {
			c.phase, c.due = settled, time.Time{}
		}
	}
	l.send(now, list, nil)
}

// send multicasts records of ours, and records when.
func (l *link) send(now time.Time, answers, additional []record) {
	for _, r := range answers {
		l.sentAt[r.ident()] = now
		delete(l.queue, r.ident())
	}
	for _, r := range additional {
		l.sentAt[r.ident()] = now
	}
	for _, b := range packResponses(l.payload, answers, additional) {
		l.multicast(b)
	}
}
