package mdns

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// port is the port of all senders and receivers of Multicast DNS (RFC 6762 section 3). A query from
// another port is from a simple resolver (6.7).
const port = 5353

// A pending query waits for answers of ours.
type pending struct {
	from netip.AddrPort
	// due is when the answers are sent, and early when they may be if a packet is sent anyway
	// (section 6.4).
	due, early time.Time
	answers    []match
	known      map[ident]time.Duration
	// gap is the shortest pause before a record is multicast again.
	gap time.Duration
	// more means that more known answers follow (7.2).
	more bool
}

// A match is a record of ours that answers a question.
type match struct {
	record
	unicast bool
	// seenOn are the families on which another host sent the same answer (7.4).
	seenOn family
}

// A queued record is to be multicast.
type queued struct {
	record
	due, early time.Time
	// seenOn are the families on which another host sent the same answer (7.4).
	seenOn family
}

// receiveQuery handles the query of another host.
func (l *link) receiveQuery(now time.Time, m message, from netip.AddrPort, multicast bool) {
	if from.Port() != port {
		l.answerSimple(m, from)
		return
	}
	// These known answers belong to an earlier query of the same sender.
	if len(m.questions) == 0 {
		for _, p := range l.pending {
			if p.from == from && p.more {
				p.learn(l.ours(), m.answers)
				if p.more = m.more; m.more {
					p.due = later(p.due, now.Add(l.between(moreMin, moreMax)))
				}
			}
		}
		return
	}
	p := &pending{from: from, gap: repeatGap, more: m.more, known: map[ident]time.Duration{}}
	shared := false
	for _, q := range m.questions {
		for _, r := range l.matches(q) {
			p.answers = append(p.answers, match{record: r, unicast: q.unicast || !multicast})
			shared = shared || !r.flush
		}
	}
	if len(p.answers) == 0 {
		return
	}
	if len(l.pending) >= maxPending {
		l.stats.Dropped++
		return
	}
	p.learn(l.ours(), m.answers)
	p.early, p.due = now, now
	switch {
	case len(m.proposed) > 0:
		// A probe needs its answer at once.
		p.gap = defendGap
	case m.more:
		p.due = now.Add(l.between(moreMin, moreMax))
		p.early = p.due
	case shared:
		p.early, p.due = now.Add(answerMin), now.Add(l.between(answerMin, answerMax))
	}
	l.pending = append(l.pending, p)
}

// learn adds the known answers of a query that are records of ours. They are never used for
// anything else (section 7.1), so others need not be kept.
func (p *pending) learn(ours map[ident]bool, known []record) {
	for _, r := range known {
		if id := r.ident(); ours[id] {
			p.known[id] = r.ttl
		}
	}
}

// ours returns all published records.
func (l *link) ours() map[ident]bool {
	out := map[ident]bool{}
	for _, c := range l.claims {
		for _, r := range c.all() {
			out[r.ident()] = true
		}
	}
	return out
}

// knows reports whether the querier has a record with at least half of its TTL (section 7.1).
func (p *pending) knows(r record) bool {
	ttl, ok := p.known[r.ident()]
	return ok && ttl >= r.ttl/2
}

// matches returns our records that answer a question: all of a type, or the NSEC that there are
// none (section 6.1). Names that are not ours yet have no answers.
func (l *link) matches(q question) []record {
	var out []record
	for _, c := range l.claims {
		if c.phase == probing || c.host != nil && c.host.phase == probing {
			continue
		}
		found := false
		for _, r := range slices.Concat(c.records, c.shared) {
			if fold(r.name) == fold(q.name) && (q.typ == r.typ || q.typ == dns.TypeANY) && !slices.Contains(out, r) {
				out = append(out, r)
				found = true
			}
		}
		if !found && fold(c.name) == fold(q.name) {
			out = append(out, c.negative)
		}
	}
	return out
}

// additional returns the additional records for answers (RFC 6763 section 12; RFC 6762 section
// 6.2): the records of an instance, the addresses of a host, and the NSEC that there are no others.
func (l *link) additional(answers []record) []record {
	list := slices.Clone(answers)
	add := func(records ...record) {
		for _, r := range records {
			if !slices.Contains(list, r) {
				list = append(list, r)
			}
		}
	}
	for i := 0; i < len(list); i++ { //nolint:intrange // the loop appends to the list
		r := list[i]
		for _, c := range l.claims {
			switch {
			case c.phase == probing:
			case (r.typ == dns.TypePTR || r.typ == dns.TypeSRV) && fold(r.target()) == fold(c.name):
				add(c.records...)
			case isAddress(r.typ) && fold(r.name) == fold(c.name):
				add(c.records...)
				add(c.negative)
			}
		}
	}
	return list[len(answers):]
}

// answer sends the answers that are due.
func (l *link) answer(now time.Time) {
	l.pending = slices.DeleteFunc(l.pending, func(p *pending) bool {
		if p.due.After(now) {
			return false
		}
		var direct []record
		for _, m := range p.answers {
			if p.knows(m.record) || !l.owns(m.record) {
				continue
			}
			last, ever := l.sentAt[m.ident()]
			recent := ever && now.Sub(last) < m.ttl/4
			// QU (section 5.4): only the querier needs it, if the others have it. A probe is
			// answered by multicast as often as is allowed: if processes share the port, a unicast
			// packet reaches only one of them (15.1).
			if m.unicast && recent && (p.gap != defendGap || now.Sub(last) < defendGap) {
				direct = append(direct, m.record)
				continue
			}
			l.enqueue(m.record, p.due, p.due, p.gap)
		}
		for _, b := range packResponses(l.payload, direct, slices.DeleteFunc(l.additional(direct), p.knows)) {
			l.unicast(now, p.from, b)
		}
		return true
	})
	l.flushQueue(now)
}

// owns reports whether a record is still published.
func (l *link) owns(r record) bool {
	return slices.ContainsFunc(l.claims, func(c *claim) bool { return c.phase != probing && slices.Contains(c.all(), r) })
}

// enqueue schedules the multicast of a record, not before it may be repeated.
func (l *link) enqueue(r record, early, due time.Time, gap time.Duration) {
	if last, ok := l.sentAt[r.ident()]; ok {
		early, due = later(early, last.Add(gap)), later(due, last.Add(gap))
	}
	q := l.queue[r.ident()]
	if q == nil {
		l.queue[r.ident()] = &queued{record: r, due: due, early: early}
		return
	}
	if due.Before(q.due) {
		q.due, q.early = due, early
	}
}

// flushQueue multicasts the records that are due, together with those that may be sent already: one
// packet with many answers is better than many packets (section 6.4).
func (l *link) flushQueue(now time.Time) {
	due := false
	for _, q := range l.queue {
		due = due || !q.due.After(now)
	}
	if !due {
		return
	}
	var answers []record
	// Answers that only wait for their random delay are sent as well.
	for _, p := range l.pending {
		if p.more || p.early.After(now) {
			continue
		}
		p.answers = slices.DeleteFunc(p.answers, func(m match) bool {
			if m.unicast || p.knows(m.record) || !l.owns(m.record) {
				return false
			}
			l.enqueue(m.record, p.early, p.due, p.gap)
			return true
		})
	}
	for _, c := range l.claims {
		for _, r := range c.all() {
			if q := l.queue[r.ident()]; q != nil && !q.early.After(now) && !slices.Contains(answers, r) {
				answers = append(answers, r)
			}
		}
	}
	// A set with the cache-flush bit is sent as a whole (section 10.2).
	for _, r := range slices.Clone(answers) {
		for _, other := range l.set(r) {
			if !slices.Contains(answers, other) {
				answers = append(answers, other)
			}
		}
	}
	maps.DeleteFunc(l.queue, func(_ ident, q *queued) bool { return !q.due.After(now) })
	l.send(now, answers, slices.DeleteFunc(l.additional(answers), func(r record) bool {
		last, ever := l.sentAt[r.ident()]
		return ever && now.Sub(last) < repeatGap
	}))
}

// set returns all our records with the name and type of a unique one.
func (l *link) set(r record) []record {
	var out []record
	for _, c := range l.claims {
		for _, other := range c.records {
			if r.flush && other.key() == r.key() {
				out = append(out, other)
			}
		}
	}
	return out
}

// suppressAnswers drops scheduled answers that another host has sent (section 7.4), once it did so
// in all families in which we would.
func (l *link) suppressAnswers(list []record, on family) {
	for _, r := range list {
		if q := l.queue[r.ident()]; q != nil && r.ttl >= q.ttl {
			if q.seenOn |= on; q.seenOn&l.families == l.families {
				delete(l.queue, r.ident())
			}
		}
		for _, p := range l.pending {
			for i := range p.answers {
				a := &p.answers[i]
				if a.unicast || r.ttl < a.ttl || a.ident() != r.ident() {
					continue
				}
				if a.seenOn |= on; a.seenOn&l.families == l.families {
					p.known[r.ident()] = r.ttl
				}
			}
		}
	}
}

// answerSimple answers a resolver without support for Multicast DNS (section 6.7): at once, with
// its ID and question, with short TTLs, without the bits that it does not know.
func (l *link) answerSimple(m message, from netip.AddrPort) {
	var answers []record
	p := newPacker(l.payload)
	for _, q := range m.questions {
		found := l.matches(q)
		if len(found) == 0 || !p.question(question{q.name, q.typ, false}) {
			continue
		}
		answers = append(answers, found...)
	}
	if len(answers) == 0 {
		return
	}
	flags := bitResponse | bitAuthoritative
	write := func(section int, list []record) {
		for _, r := range list {
			r.ttl, r.flush = min(r.ttl, ttlLegacy), false
			if !p.record(section, r) && section == inAnswers {
				flags |= bitTruncated
			}
		}
	}
	write(inAnswers, answers)
	write(inAdditional, l.additional(answers))
	l.unicast(l.now, from, p.bytes(m.id, flags))
}
