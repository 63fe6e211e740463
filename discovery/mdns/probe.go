package mdns

import (
	"net/netip"
	"slices"
	"time"
)

// probe sends what is due of probes (RFC 6762 section 8.1). Names that are due at the
// same time share packets.
func (l *link) probe(now time.Time) {
	var due []*claim
	for _, c := range l.claims {
		if c.phase != probing || c.due.After(now) {
			continue
		}
		if c.sent == probes {
			c.phase, c.sent, c.due, c.waits, c.waiting = announcing, 0, now, 0, time.Time{}
			continue
		}
		c.sent++
		c.due = now.Add(probeGap)
		due = append(due, c)
	}
	for _, b := range packProbes(l.payload, due, !l.shared) {
		l.multicast(b)
	}
}

// heardProbe compares another's probe with ours for the same name (section 8.2). The
// one whose records come later wins; if it is not us, we wait and try again, and
// find then that the other has the name. Equal ones are no conflict.
func (l *link) heardProbe(now time.Time, proposed []record, from netip.Addr) {
	for _, c := range l.claims {
		if c.phase != probing || c.sent == 0 {
			continue
		}
		theirs := slices.DeleteFunc(slices.Clone(proposed), func(r record) bool { return fold(r.name) != fold(c.name) })
		if len(theirs) > 0 && compareSets(c.records, theirs) < 0 {
			l.contested(now, c, from)
			c.sent, c.due = 0, now.Add(probeDefer)
		}
	}
}

// waitMax is how many times the wait for a name of this cluster's own doubles.
const waitMax = 6

// waitPatience is after how long of waiting for a name it is changed: another node goes on
// for a minute at most.
const waitPatience = 10 * time.Minute

// wait has a claim try again later, under the name that it has: first after a second,
// then after twice that each time, up to about a minute. A name that the same cluster
// has from another node is not taken, and becomes free. Nothing proves that it is the
// same cluster: who pretends to be it has it called otherwise after a while, as anybody on
// the LAN who answers all probes can.
func (c *claim) wait(now time.Time) {
	if c.waiting.IsZero() {
		c.waiting = now
	}
	c.sent, c.due = 0, now.Add(probeDefer<<min(c.waits, waitMax))
	c.waits++
}

// waitedOut says whether a claim waited for as long as it takes to hand a name over.
func (c *claim) waitedOut(now time.Time) bool {
	return !c.waiting.IsZero() && now.Sub(c.waiting) >= waitPatience
}

// released has a claim that waits try again: the other said goodbye.
func (c *claim) released(now time.Time) {
	if c.phase == probing && c.waits > 0 {
		c.due, c.waits = earlier(c.due, now.Add(probeDelay)), 1
	}
}

// conflict is counted; it returns how long to wait before the next try (section
// 8.1): many in a short time are an error, or an attack.
func (l *link) conflict(now time.Time) time.Duration {
	l.conflicts = slices.DeleteFunc(l.conflicts, func(t time.Time) bool { return now.Sub(t) > conflictWindow })
	// Once there were as many, it stays slow until there are none.
	l.throttled = l.throttled && len(l.conflicts) > 0 || len(l.conflicts) >= conflictCount-1
	l.conflicts = append(l.conflicts, now)
	l.conflicts = l.conflicts[max(0, len(l.conflicts)-conflictCount):]
	l.stats.Conflicts++
	if l.throttled {
		return conflictPause
	}
	return l.between(0, probeDelay)
}
