package mdns

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A query is a question that is asked until it is answered, or for as long as
// somebody wants to know who comes (RFC 6762 section 5.2).
type query struct {
	question
	due time.Time
	gap time.Duration
	// asked is when this host asked it last, begun is when the first gap was last the next.
	asked, begun time.Time
	// confirm says that it is asked now, too, without an effect on due and gap.
	confirm bool
	// heard are the families on which another asked the same, at heardAt (section 7.3).
	heard   family
	heardAt time.Time
}

// browse sets which names are browsed: those of types and subtypes of services.
func (l *link) browse(now time.Time, names []name) {
	l.now, l.browsed = now, names
	l.want(now)
}

// wanted returns all that this link wants to know: who offers a service, and of each
// where it is. The answers to one question lead to the next.
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

// want begins to ask for what is not known, and ends to ask for what is. Types are
// asked for all the time.
func (l *link) want(now time.Time) {
	l.wants = l.wanted()
	// What led to a record may be gone, and then what that led to.
	for l.cache.expire(now, func(k key) bool { _, ok := l.wants[k]; return ok }) {
		l.wants = l.wanted()
	}
	wanted := l.wants
	known := func(k key) bool {
		if k.typ == dns.TypePTR {
			return false
		}
		// A host needs one address of any kind.
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
			// Together, to share a packet; not at once, as others may begin at the same time.
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

// beginAgain asks for all instances as if for the first time (section 5.2), where that was
// not done within the time that is given.
func (l *link) beginAgain(now time.Time, since time.Duration) {
	for k, q := range l.queries {
		if k.typ != dns.TypePTR || now.Sub(q.begun) < since {
			continue
		}
		q.due, q.gap, q.begun = later(now.Add(l.between(queryMin, queryMax)), q.asked.Add(queryGap)), queryGap, now
		l.asks.note(q.due)
	}
}

// ask sends the questions that are due: new ones, those that are asked again, and
// those for records that end soon.
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
	// One packet for all that may be asked again by now: a hundred instances need not a
	// hundred of them.
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

// known returns what is known along with a question (section 7.1), of others and of
// this responder: those that hear the question expect no answer then.
func (l *link) known(now time.Time, k key) []record {
	var since time.Time
	if k.typ == dns.TypePTR && !l.crowd.until.IsZero() {
		since = l.crowd.since
	}
	ours := l.matches(question{name: k.name, typ: k.typ})
	return append(l.cache.known(now, since, k), slices.DeleteFunc(ours, func(r record) bool { return r.typ != k.typ })...)
}

// confirm asks for instances that are about to be forgotten because nobody answered
// for them (section 10.5): it may have been this host that did not hear it. That is one
// question more: others decide how often, and shall not put off those that come anyway.
func (l *link) confirm(now time.Time) {
	for k, q := range l.queries {
		for _, e := range l.cache.sets[k] {
			if p := e.poof(); !p.IsZero() && !p.After(now) && now.Sub(q.asked) >= queryGap {
				q.confirm = true
			}
		}
	}
}

// next plans the next question after one that was asked at a time.
func (q *query) next(at time.Time) {
	q.due = at.Add(q.gap)
	q.gap = min(2*q.gap, queryGapMax)
	q.heard = 0
}

// heardQuestions leaves out questions of ours that another asked, if the answers that
// it knows are known here too: what it is told, all are (section 7.3).
func (l *link) heardQuestions(now time.Time, m message, on family) {
	if m.more || len(m.proposed) > 0 {
		return
	}
	for _, asked := range m.questions {
		if asked.unicast || !l.knowsAll(now, asked.key(), m.answers) {
			continue
		}
		if q := l.queries[asked.key()]; q != nil && q.due.Sub(now) <= queryNear {
			if now.Sub(q.heardAt) > queryNear {
				q.heard = 0
			}
			q.heard, q.heardAt = q.heard|on, now
			if q.heard&l.families == l.families {
				// As if ours had been asked when it was due: the next gap begins no sooner.
				q.next(later(q.due, now))
			}
		}
		for _, e := range l.cache.sets[asked.key()] {
			if e.refresh.IsZero() || e.refresh.Sub(now) > queryNear {
				continue
			}
			if e.heard |= on; e.heard&l.families == l.families {
				l.nextRefresh(e)
			}
		}
	}
}

// knowsAll says whether all known answers of another's query for k would be in ours.
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
