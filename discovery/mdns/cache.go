package mdns

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// A cache has what others said (RFC 6762 section 10), of what was asked for only:
// what nobody here wants to know takes no room.
type cache struct {
	sets    map[key][]*entry
	sources map[netip.Addr]*source
	entries int
	bytes   int
	// due is not after the time at which an entry is next to be looked at. It may be before:
	// what is put off is not looked for again until then.
	due deadline
	// lost says that an instance ended: it may be there, and nobody heard it.
	lost bool
}

// A deadline is the earliest of times that were noted; zero means none.
type deadline struct{ time.Time }

func (d *deadline) note(t time.Time) {
	if !t.IsZero() && (d.IsZero() || t.Before(d.Time)) {
		d.Time = t
	}
}

// A source is what the cache has from one address.
type source struct{ entries, instances, bytes int }

// An entry is a record in the cache.
type entry struct {
	record
	id ident
	// from is who said it first: it counts against that one's share.
	from netip.Addr
	// said is the senders of records of an instance or a host, from among them, at most
	// maxSayers: a sender that repeats what another one sent takes nothing from that one.
	said []netip.Addr
	// received is when it was said last, until is when it ends.
	received, until time.Time
	// refresh is when to ask again, the refreshes-th time (section 5.2). Zero: never. It may
	// be asked along with others from early on.
	refresh   time.Time
	early     time.Time
	refreshes int
	// asked is since when others asked for it without an answer, missed is how often
	// (section 10.5).
	asked  time.Time
	missed int
	// heard are the families on which another asked for it lately (section 7.3).
	heard family
}

func newCache() cache {
	return cache{sets: map[key][]*entry{}, sources: map[netip.Addr]*source{}}
}

// put takes a record that was heard. It says whether anything changed.
func (l *link) put(now time.Time, r record, from netip.Addr) bool {
	// A TTL that is longer than anybody's is not believed: who is gone without notice
	// shall not be here for years.
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
		c.sets[k][at].say(from)
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
	e.say(from)
	l.fresh(now, e, r)
	c.sets[k] = append(c.sets[k], e)
	c.count(e, 1)
	return true
}

// say notes who says an entry, where that is of interest.
func (e *entry) say(from netip.Addr) {
	if e.typ != dns.TypeSRV && !isAddress(e.typ) || len(e.said) >= maxSayers {
		return
	}
	if at, there := slices.BinarySearchFunc(e.said, from, netip.Addr.Compare); !there {
		e.said = slices.Insert(e.said, at, from)
	}
}

// fresh starts the time of an entry again.
func (l *link) fresh(now time.Time, e *entry, r record) {
	e.ttl, e.flush = r.ttl, r.flush
	e.received, e.until = now, now.Add(r.ttl)
	e.asked, e.missed, e.refreshes = time.Time{}, 0, 0
	l.cache.due.note(e.until)
	l.nextRefresh(e)
}

// nextRefresh plans the next of four questions before the end, each with up to 2 % of
// the TTL of its own, so that not all who know a record ask at once (section 5.2).
func (l *link) nextRefresh(e *entry) {
	e.refresh, e.heard = time.Time{}, 0
	if at := 80 + 5*e.refreshes; at < 100 { // percent
		e.early = e.received.Add(e.ttl * time.Duration(at) / 100)
		e.refresh = e.early.Add(l.between(0, e.ttl/50))
		e.refreshes++
		l.cache.due.note(e.refresh)
	}
}

// room says whether another record has a place, and if not, whether the cache is full, or
// only the share of the address that it is from. What is known stays: nobody takes a place
// from another, but the second half is for addresses that have little.
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

// flush ends those of a name and type that were not said within the last second, if
// a unique one was (section 10.2). They have a second left, in which others that are
// valid can be said.
func (c *cache) flush(now time.Time, k key) {
	for _, e := range c.sets[k] {
		if now.Sub(e.received) > grace {
			c.end(e, now)
		}
	}
}

// end leaves an entry a second.
func (c *cache) end(e *entry, now time.Time) {
	e.until, e.refresh = earlier(e.until, now.Add(grace)), time.Time{}
	c.due.note(e.until)
}

// heardUnanswered counts questions of others for what the cache has and they do not
// know (section 10.5).
func (c *cache) heardUnanswered(now time.Time, m message) {
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

// poof is when an entry ends because nobody answers for it: zero if not at all.
func (e *entry) poof() time.Time {
	if e.missed < poofCount {
		return time.Time{}
	}
	return e.asked.Add(poofWindow)
}

// expire drops what has ended, and what keep does not want any more. It says whether
// there was any.
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

// known returns what to say that is known along with a question: what has more than
// half of its time left (section 7.1), and was heard since then.
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
