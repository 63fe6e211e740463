package mdns

import (
	"slices"
	"time"

	"github.com/miekg/dns"
)

// A rename is a name that had to be changed because another has it.
type rename struct{ from, to string }

// heardAnswers looks in another's response for what is said of our names: records
// that are not ours are a conflict (RFC 6762 section 9), and ours with less of a TTL
// are put right (6.6).
func (l *link) heardAnswers(now time.Time, heard []record) {
	for _, c := range slices.Clone(l.claims) {
		clash := false
		for _, r := range heard {
			if fold(r.name) != fold(c.name) || r.ttl == 0 || r.typ == dns.TypeNSEC {
				continue
			}
			ours := slices.ContainsFunc(c.records, func(own record) bool { return own.ident() == r.ident() })
			// A name that is only wanted is taken if it has any records; one that we have is
			// contested by other data of a type that we have, too.
			if !ours && (c.phase == probing && c.sent > 0 || c.phase != probing && slices.Contains(typesOf(c.records), r.typ)) {
				clash = true
			}
		}
		switch {
		case !clash:
			l.rescue(now, c, heard)
		case c.phase == probing:
			l.rename(now, c)
		default:
			// Section 9: both begin again, and who comes second there gives in.
			c.phase, c.sent, c.due = probing, 0, now.Add(l.conflict(now))
			for _, r := range slices.Concat(c.records, c.shared) {
				delete(l.queue, r.ident())
			}
		}
	}
}

// rename gives a claim the next name and lets it begin again.
func (l *link) rename(now time.Time, c *claim) {
	from := c.label
	for ok := true; ok; ok = l.taken(c) {
		c.nextLabel()
	}
	l.renames = append(l.renames, rename{from, c.label})
	c.records, c.shared = nil, nil
	l.rebuild(now, c)
	c.phase, c.sent, c.due = probing, 0, now.Add(l.conflict(now))
	for _, other := range l.claims {
		if other.host == c {
			l.rebuild(now, other)
		}
	}
	l.sayGoodbye()
	l.prune()
}

// rescue announces records of ours that another says with less than half their TTL,
// or goodbye to (section 6.6).
func (l *link) rescue(now time.Time, c *claim, heard []record) {
	if c.phase == probing {
		return
	}
	for _, own := range slices.Concat(c.records, c.shared) {
		for _, r := range heard {
			if r.ttl < own.ttl/2 && r.ident() == own.ident() {
				l.enqueue(own, now, now, repeatGap)
			}
		}
	}
}
