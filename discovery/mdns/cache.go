package mdns

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// A cache has the records of others (RFC 6762 section 10), but only those that this link wants.
type cache struct {
	sets    map[key][]*entry
	sources map[netip.Addr]*source
	entries int
	bytes   int
	// due is no later than the next time at which an entry has to be checked. It may be earlier, as
	// it is not recomputed when an entry is postponed.
	due deadline
	// lost means that an instance was dropped without an answer: it may still exist.
	lost bool
}

// A deadline is the earliest of the times passed to note; zero means none.
type deadline struct{ time.Time }

func (d *deadline) note(t time.Time) {
	if !t.IsZero() && (d.IsZero() || t.Before(d.Time)) {
		d.Time = t
	}
}

// A source counts what the cache has from one address.
type source struct{ entries, instances, bytes int }

// An entry is a record in the cache.
type entry struct {
	record
	id ident
	// from is its first sender, against whose share it counts.
	from netip.Addr
	// senders are the senders of an instance's or a host's record, from included, at most
	// maxSenders: a sender that repeats another's record takes nothing from that one.
	senders []netip.Addr
	// received is when it was last received, until is when it expires.
	received, until time.Time
	// refresh is when to ask again, for the refreshes-th time (section 5.2); zero means never. From
	// early on it may be asked in a packet with others.
	refresh   time.Time
	early     time.Time
	refreshes int
	// asked is when the first of missed questions of others without an answer was asked (section
	// 10.5).
	asked  time.Time
	missed int
	// seenOn are the families on which another host recently asked for it (section 7.3).
	seenOn family
}

func newCache() cache {
	return cache{sets: map[key][]*entry{}, sources: map[netip.Addr]*source{}}
}

// put adds a received record, and reports whether anything changed.
func (l *link) put(now time.Time, r record, from netip.Addr) bool {
	// Longer TTLs than any of the RFC are cut, so that a host that is gone without a goodbye does
	// not stay for years.
	r.ttl = min(r.ttl, ttlOther)
	c, k := &l.cache, r.key()
	id := r.ident()
	at := slices.IndexFunc(c.sets[k], func(e *entry) bool { return e.id == id })
	switch {
	case at >= 0 && r.ttl == 0:
		c.end(c.sets[k][at], now) // a goodbye (section 10.1)
		return true
	case at >= 0:
		l.fresh(now, c.sets[k][at], r)
		c.sets[k][at].addSender(from)
		return false
	case r.ttl == 0:
		return false
	}
	if room, full := c.room(r, from); !room {
		l.stats.Refused++
		if full {
			l.noRoom(now, false)
		}
		return false
	}
	e := &entry{record: r, id: id, from: from}
	e.addSender(from)
	l.fresh(now, e, r)
	c.sets[k] = append(c.sets[k], e)
	c.count(e, 1)
	return true
}

// addSender records a sender of an entry, for the types for which senders are kept.
func (e *entry) addSender(from netip.Addr) {
	if e.typ != dns.TypeSRV && !isAddress(e.typ) || len(e.senders) >= maxSenders {
		return
	}
	if at, there := slices.BinarySearchFunc(e.senders, from, netip.Addr.Compare); !there {
		e.senders = slices.Insert(e.senders, at, from)
	}
}

// fresh restarts the TTL of an entry.
func (l *link) fresh(now time.Time, e *entry, r record) {
	e.ttl, e.flush = r.ttl, r.flush
	e.received, e.until = now, now.Add(r.ttl)
	e.asked, e.missed, e.refreshes = time.Time{}, 0, 0
	l.cache.due.note(e.until)
	l.nextRefresh(e)
}

// nextRefresh schedules the next of four questions before the end, each with a random delay of up
// to 2 % of the TTL, so that not all hosts with a record ask at once (section 5.2).
func (l *link) nextRefresh(e *entry) {
	e.refresh, e.seenOn = time.Time{}, 0
	if at := 80 + 5*e.refreshes; at < 100 { // percent
		e.early = e.received.Add(e.ttl * time.Duration(at) / 100)
		e.refresh = e.early.Add(l.between(0, e.ttl/50))
		e.refreshes++
		l.cache.due.note(e.refresh)
	}
}

// room reports whether another record fits, and if not, whether the cache is full, or only the
// share of its sender. Known records stay: no sender takes the place of another, and the second
// half of the cache is for addresses with few records.
func (c *cache) room(r record, from netip.Addr) (ok, full bool) {
	set, s := c.sets[r.key()], c.sources[from]
	if s == nil {
		s = &source{}
	}
	most, instance := maxSet, r.typ == dns.TypePTR
	if instance {
		most = maxInstances
	}
	bytes := c.bytes + r.size()
	switch {
	case s.entries >= maxSourceEntries, instance && s.instances >= maxSourceInstances:
		return false, false
	case len(set) >= most, c.entries >= maxEntries, bytes > maxBytes:
		return false, true
	case instance && len(set) >= maxInstances/2 && s.instances >= maxCrowded,
		c.entries >= maxEntries/2 && s.entries >= maxCrowdedEntries,
		bytes > maxBytes/2 && s.bytes+r.size() > maxCrowdedBytes:
		return false, true
	}
	return true, false
}

func (c *cache) count(e *entry, n int) {
	s := c.sources[e.from]
	if s == nil {
		s = &source{}
		c.sources[e.from] = s
	}
	s.entries += n
	if e.typ == dns.TypePTR {
		s.instances += n
	}
	if s.entries == 0 {
		delete(c.sources, e.from)
	}
	s.bytes += n * e.size()
	c.entries += n
	c.bytes += n * e.size()
}

// flush expires the entries of a name and type that were not received within the last second, after
// a unique one was (section 10.2). They stay for one more second, in which other valid ones can be
// received.
func (c *cache) flush(now time.Time, k key) {
	for _, e := range c.sets[k] {
		if now.Sub(e.received) > grace {
			c.end(e, now)
		}
	}
}

// end makes an entry expire in a second.
func (c *cache) end(e *entry, now time.Time) {
	e.until, e.refresh = earlier(e.until, now.Add(grace)), time.Time{}
	c.due.note(e.until)
}

// countUnanswered counts questions of others for entries that they do not know (section 10.5).
func (c *cache) countUnanswered(now time.Time, m message) {
	if m.more {
		return
	}
	known := map[ident]bool{}
	for _, r := range m.answers {
		known[r.ident()] = true
	}
	for _, q := range m.questions {
		if q.unicast {
			continue
		}
		for _, e := range c.sets[q.key()] {
			if known[e.id] {
				continue
			}
			if e.missed == 0 || now.Sub(e.asked) > 2*poofWindow {
				e.asked, e.missed = now, 0
			}
			e.missed++
			c.due.note(e.poof())
		}
	}
}

// poof is when an entry expires because questions for it had no answer (section 10.5); zero means never.
func (e *entry) poof() time.Time {
	if e.missed < poofCount {
		return time.Time{}
	}
	return e.asked.Add(poofWindow)
}

// expire drops entries that have expired, or that keep no longer wants, and reports whether there
// were any.
func (c *cache) expire(now time.Time, keep func(key) bool) bool {
	before := c.entries
	for k, set := range c.sets {
		kept := slices.DeleteFunc(set, func(e *entry) bool {
			p := e.poof()
			ended := !e.until.After(now) || !p.IsZero() && !p.After(now)
			if !ended && keep(k) {
				return false
			}
			c.lost = c.lost || ended && k.typ == dns.TypePTR
			c.count(e, -1)
			return true
		})
		if c.sets[k] = kept; len(kept) == 0 {
			delete(c.sets, k)
		}
	}
	return c.entries != before
}

// known returns the known answers to send with a question: entries with more than half of their TTL
// left (section 7.1) that were received after since.
func (c *cache) known(now, since time.Time, k key) []record {
	var out []record
	for _, e := range c.sets[k] {
		if left := e.until.Sub(now); left > e.ttl/2 && !e.received.Before(since) {
			r := e.record
			r.ttl = left
			out = append(out, r)
		}
	}
	return out
}

func earlier(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{a, b}, time.Time.Compare) }

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }
