package mdns

import (
	"net/netip"
	"slices"
	"time"
)

// probe sends the probes that are due (RFC 6762 section 8.1). Names that are due at the same time
// share packets.
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

// compareProbe compares another host's probe with ours for the same name (section 8.2). The later
// records win; if they are not ours, we wait and try again, and then find that the other has the
// name. Equal ones do not conflict.
func (l *link) compareProbe(now time.Time, proposed []record, from netip.Addr) {
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

// waitMax is how many times the pause doubles while another node of this cluster has the name.
const waitMax = 6

// waitPatience is how long a claim waits for a name before it changes it: another node goes on for
// a minute at most.
const waitPatience = 10 * time.Minute

// wait makes a claim try again later under the same name: first after a second, then after twice
// that each time, up to about a minute. A name that another node of this cluster has will become
// free. That the other is of this cluster is not authenticated: an impostor can force a rename
// after a while, as can any host on the LAN that answers all probes.
func (c *claim) wait(now time.Time) {
	if c.waiting.IsZero() {
		c.waiting = now
	}
	c.sent, c.due = 0, now.Add(probeDefer<<min(c.waits, waitMax))
	c.waits++
}

// waitedOut reports whether a claim has waited for longer than a handover takes.
func (c *claim) waitedOut(now time.Time) bool {
	return !c.waiting.IsZero() && now.Sub(c.waiting) >= waitPatience
}

// released makes a waiting claim try again, after the other's goodbye.
func (c *claim) released(now time.Time) {
	if c.phase == probing && c.waits > 0 {
		c.due, c.waits = earlier(c.due, now.Add(probeDelay)), 1
	}
}

// conflict counts a conflict, and returns the pause before the next try (section 8.1): many in a
// short time are an error, or an attack.
func (l *link) conflict(now time.Time) time.Duration {
	l.conflicts = slices.DeleteFunc(l.conflicts, func(t time.Time) bool { return now.Sub(t) > conflictWindow })
	// Once the limit is reached, it stays slow until there are no conflicts.
	l.throttled = l.throttled && len(l.conflicts) > 0 || len(l.conflicts) >= conflictCount-1
	l.conflicts = append(l.conflicts, now)
	l.conflicts = l.conflicts[max(0, len(l.conflicts)-conflictCount):]
	l.stats.Conflicts++
	if l.throttled {
		return conflictPause
	}
	return l.between(0, probeDelay)
}
