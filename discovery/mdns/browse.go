package mdns

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A query is a question that is asked until it is answered, or, for a browsed name, continuously
// (RFC 6762 section 5.2).
type query struct {
	question
	due time.Time
	gap time.Duration
	// asked is when this host last asked it, and begun when its gaps last began from the first.
	asked, begun time.Time
	// confirm means that it is also asked now, without an effect on due and gap.
	confirm bool
	// seenOn are the families on which another host asked the same, last at seenAt (section 7.3).
	seenOn family
	seenAt time.Time
}

// browse sets the names to browse: those of types and subtypes of services.
func (l *link) browse(now time.Time, names []name) {
	l.now, l.browsed = now, names
	l.updateQueries(now)
}

// wanted returns all keys that this link needs: the instances of services, and the endpoints of
// each. The answers to one question lead to the next.
func (l *link) wanted() map[key]name {
	out := map[key]name{}
	add := func(n name, types ...uint16) {
		for _, t := range types {
			out[key{fold(n), t}] = n
		}
	}
	for _, n := range l.browsed {
		add(n, dns.TypePTR)
		for _, p := range l.cache.sets[key{fold(n), dns.TypePTR}] {
			add(p.target(), dns.TypeSRV, dns.TypeTXT)
			for _, s := range l.cache.sets[key{fold(p.target()), dns.TypeSRV}] {
				add(s.target(), dns.TypeA, dns.TypeAAAA)
			}
		}
	}
	return out
}

// updateQueries begins queries for keys that are not known, and ends those for keys that are. Types
// are queried all the time.
func (l *link) updateQueries(now time.Time) {
	l.wants = l.wanted()
	// If a record expires, those to which it led are no longer wanted.
	for l.cache.expire(now, func(k key) bool { _, ok := l.wants[k]; return ok }) {
		l.wants = l.wanted()
	}
	wanted := l.wants
	known := func(k key) bool {
		if k.typ == dns.TypePTR {
			return false
		}
		// One address of either family is enough for a host.
		return len(l.cache.sets[k]) > 0 || isAddress(k.typ) &&
			len(l.cache.sets[key{k.name, dns.TypeA}])+len(l.cache.sets[key{k.name, dns.TypeAAAA}]) > 0
	}
	for k := range l.queries {
		if _, ok := wanted[k]; !ok || known(k) {
			delete(l.queries, k)
		}
	}
	var first time.Time
	for k, n := range wanted {
		if l.queries[k] != nil || known(k) {
			continue
		}
		if first.IsZero() {
			// All at one time, to share a packet, but after a random delay, as others may begin at the same
			// moment.
			first = now.Add(l.between(queryMin, queryMax))
		}
		l.queries[k] = &query{question: question{name: n, typ: k.typ}, due: first, gap: queryGap, begun: now}
		l.asks.note(first)
	}
	if l.cache.lost {
		l.cache.lost = false
		l.beginAgain(now, crowdGap)
	}
}

// beginAgain restarts the queries for instances from the first gap (section 5.2), except for those
// that began within since.
func (l *link) beginAgain(now time.Time, since time.Duration) {
	for k, q := range l.queries {
		if k.typ != dns.TypePTR || now.Sub(q.begun) < since {
			continue
		}
		q.due, q.gap, q.begun = later(now.Add(l.between(queryMin, queryMax)), q.asked.Add(queryGap)), queryGap, now
		l.asks.note(q.due)
	}
}

// ask sends the questions that are due: new ones, repeated ones, and those for records that expire
// soon.
func (l *link) ask(now time.Time) {
	due := map[key]question{}
	for k, q := range l.queries {
		switch {
		case !q.due.After(now), q.confirm && q.due.Sub(now) <= queryNear:
			q.next(now)
		case q.confirm:
		default:
			continue
		}
		due[k], q.asked, q.confirm = q.question, now, false
	}
	refresh := false
	for _, set := range l.cache.sets {
		refresh = refresh || slices.ContainsFunc(set, func(e *entry) bool { return !e.refresh.IsZero() && !e.refresh.After(now) })
	}
	// One packet asks for all records that may be refreshed by now: a hundred instances do not need
	// a hundred packets.
	for k, set := range l.cache.sets {
		for _, e := range set {
			if refresh && !e.refresh.IsZero() && !e.early.After(now) {
				due[k] = question{name: e.name, typ: e.typ}
				l.nextRefresh(e)
			}
		}
	}
	list := slices.Collect(maps.Values(due))
	slices.SortFunc(list, func(a, b question) int {
		return cmp.Or(strings.Compare(string(a.name), string(b.name)), cmp.Compare(a.typ, b.typ))
	})
	for len(list) > 0 {
		packets, n := packQuery(l.payload, list, func(k key) []record { return l.known(now, k) })
		for _, b := range packets {
			l.multicast(b)
		}
		list = list[max(n, 1):]
	}
}

// known returns the known answers to send with a question (section 7.1), those of this responder
// included, so that no other host expects its answer.
func (l *link) known(now time.Time, k key) []record {
	var since time.Time
	if k.typ == dns.TypePTR && !l.crowd.until.IsZero() {
		since = l.crowd.since
	}
	ours := l.matches(question{name: k.name, typ: k.typ})
	return append(l.cache.known(now, since, k), slices.DeleteFunc(ours, func(r record) bool { return r.typ != k.typ })...)
}

// confirm asks for instances that are about to be forgotten because they did not answer (section
// 10.5): this host may have missed the answers. It is an extra question: other hosts can cause it
// at any rate, and must not delay the regular ones.
func (l *link) confirm(now time.Time) {
	for k, q := range l.queries {
		for _, e := range l.cache.sets[k] {
			if p := e.poof(); !p.IsZero() && !p.After(now) && now.Sub(q.asked) >= queryGap {
				q.confirm = true
			}
		}
	}
}

// next schedules the next question after one that was asked at a time.
func (q *query) next(at time.Time) {
	q.due = at.Add(q.gap)
	q.gap = min(2*q.gap, queryGapMax)
	q.seenOn = 0
}

// suppressQuestions drops scheduled questions that another host asked, if all its known answers are
// known here too: everyone receives its answers (section 7.3).
func (l *link) suppressQuestions(now time.Time, m message, on family) {
	if m.more || len(m.proposed) > 0 {
		return
	}
	for _, asked := range m.questions {
		if asked.unicast || !l.knowsAll(now, asked.key(), m.answers) {
			continue
		}
		if q := l.queries[asked.key()]; q != nil && q.due.Sub(now) <= queryNear {
			if now.Sub(q.seenAt) > queryNear {
				q.seenOn = 0
			}
			q.seenOn, q.seenAt = q.seenOn|on, now
			if q.seenOn&l.families == l.families {
				// The next gap begins when our question was due, as if it had been asked.
				q.next(later(q.due, now))
			}
		}
		for _, e := range l.cache.sets[asked.key()] {
			if e.refresh.IsZero() || e.refresh.Sub(now) > queryNear {
				continue
			}
			if e.seenOn |= on; e.seenOn&l.families == l.families {
				l.nextRefresh(e)
			}
		}
	}
}

// knowsAll reports whether all known answers of another host's query for k would be in ours.
func (l *link) knowsAll(now time.Time, k key, theirs []record) bool {
	theirs = slices.DeleteFunc(slices.Clone(theirs), func(r record) bool { return r.key() != k })
	if len(theirs) == 0 {
		return true
	}
	ours := map[ident]bool{}
	for _, r := range l.known(now, k) {
		ours[r.ident()] = true
	}
	return !slices.ContainsFunc(theirs, func(r record) bool { return !ours[r.ident()] })
}
