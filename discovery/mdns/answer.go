package mdns

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// port is of all senders and receivers of Multicast DNS (RFC 6762 section 3). Who
// asks from another one is a simple resolver (6.7).
const port = 5353

// A pending query is one that we have answers for and have not given yet.
type pending struct {
	from netip.AddrPort
	// due is when the answers are given, early is when they may be if others are given
	// anyway (section 6.4).
	due, early time.Time
	answers    []match
	known      map[ident]time.Duration
	// gap is how long ago a record has to be said before it is multicast again.
	gap time.Duration
	// more says that more of what is known follows (7.2).
	more bool
}

// A match is a record of ours that a question asks for.
type match struct {
	record
	unicast bool
	// heard are the families on which another gave the same answer (7.4).
	heard family
}

// A queued record is to be multicast.
type queued struct {
	record
	due, early time.Time
	// heard are the families on which another gave the same answer (7.4).
	heard family
}

// heardQuery takes the questions of another.
func (l *link) heardQuery(now time.Time, m message, from netip.AddrPort, multicast bool) {
	if from.Port() != port {
		l.answerSimple(m, from)
		return
	}
	// Known answers that belong to an earlier query of the same sender.
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
		// A probe, which has no time to lose.
		p.gap = defendGap
	case m.more:
		p.due = now.Add(l.between(moreMin, moreMax))
		p.early = p.due
	case shared:
		p.early, p.due = now.Add(answerMin), now.Add(l.between(answerMin, answerMax))
	}
	l.pending = append(l.pending, p)
}

// learn adds to what the asking one knows of ours. It is never believed otherwise
// (section 7.1), and what is of others need not be kept.
func (p *pending) learn(ours map[ident]bool, known []record) {
	for _, r := range known {
		if id := r.ident(); ours[id] {
			p.known[id] = r.ttl
		}
	}
}

// ours are all records that are published.
func (l *link) ours() map[ident]bool {
	out := map[ident]bool{}
	for _, c := range l.claims {
		for _, r := range c.all() {
			out[r.ident()] = true
		}
	}
	return out
}

// knows says whether the asking one has a record for at least half of its time
// (section 7.1).
func (p *pending) knows(r record) bool {
	ttl, ok := p.known[r.ident()]
	return ok && ttl >= r.ttl/2
}

// matches returns our records that answer a question: all of a type, or that there
// are none of it (section 6.1). Names that are not ours yet have no answers.
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

// additional returns what goes along with answers (RFC 6763 section 12; RFC 6762
// section 6.2): of an instance its records, of a host its addresses, and that there
// are no others.
func (l *link) additional(answers []record) []record {
	list := slices.Clone(answers)
	add := func(records ...record) {
		for _, r := range records {
			if !slices.Contains(list, r) {
				list = append(list, r)
			}
		}
	}
	for i := 0; i < len(list); i++ { //nolint:intrange // the list grows on the way
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

// answer gives the answers that are due.
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
			said, ever := l.said[m.ident()]
			recent := ever && now.Sub(said) < m.ttl/4
			// QU (section 5.4): only who asked needs it, if the others have it. A probe is
			// answered to everyone as often as is allowed: where processes share the port, a
			// packet to one address reaches only one of them (15.1).
			if m.unicast && recent && (p.gap != defendGap || now.Sub(said) < defendGap) {
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

// owns says whether a record is still published.
func (l *link) owns(r record) bool {
	return slices.ContainsFunc(l.claims, func(c *claim) bool { return c.phase != probing && slices.Contains(c.all(), r) })
}

// enqueue plans to multicast a record, not before it may be repeated.
func (l *link) enqueue(r record, early, due time.Time, gap time.Duration) {
	if said, ok := l.said[r.ident()]; ok {
		early, due = later(early, said.Add(gap)), later(due, said.Add(gap))
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

// flushQueue multicasts what is due, and along with it what may go already: one
// packet with many answers is better than many (section 6.4).
func (l *link) flushQueue(now time.Time) {
	due := false
	for _, q := range l.queue {
		due = due || !q.due.After(now)
	}
	if !due {
		return
	}
	var answers []record
	// Answers that wait only to be spread go along.
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
	// A set that is flushed is said as a whole (section 10.2).
	for _, r := range slices.Clone(answers) {
		for _, other := range l.set(r) {
			if !slices.Contains(answers, other) {
				answers = append(answers, other)
			}
		}
	}
	maps.DeleteFunc(l.queue, func(_ ident, q *queued) bool { return !q.due.After(now) })
	l.say(now, answers, slices.DeleteFunc(l.additional(answers), func(r record) bool {
		said, ever := l.said[r.ident()]
		return ever && now.Sub(said) < repeatGap
	}))
}

// set returns all records of ours with the name and type of a unique one.
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

// heardAnswer takes back answers that another gave (section 7.4), once it was heard
// wherever ours would be.
func (l *link) heardAnswer(list []record, on family) {
	for _, r := range list {
		if q := l.queue[r.ident()]; q != nil && r.ttl >= q.ttl {
			if q.heard |= on; q.heard&l.families == l.families {
				delete(l.queue, r.ident())
			}
		}
		for _, p := range l.pending {
			for i := range p.answers {
				a := &p.answers[i]
				if a.unicast || r.ttl < a.ttl || a.ident() != r.ident() {
					continue
				}
				if a.heard |= on; a.heard&l.families == l.families {
					p.known[r.ident()] = r.ttl
				}
			}
		}
	}
}

// answerSimple answers a resolver that knows nothing of Multicast DNS (section 6.7):
// at once, with its ID and question, with short TTLs, without bits that it does not
// know.
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
