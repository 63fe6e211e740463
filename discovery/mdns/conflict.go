package mdns

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// A Conflict is a name of a service that is published here, or its cluster ID, which another
// responder announces, too.
type Conflict struct {
	// Where is the network interface, Name what the other announces: an instance or a host.
	Where, Name string
	// ID says that it is our cluster ID that it announces, under a name that is not ours
	// and with other endpoints.
	ID bool
	// Renamed is the name that is published instead; it is empty while there is none.
	Renamed string
	// From is the address from which it was said first, which nothing proves. Since is when
	// that was, Last when it was said last.
	From        netip.Addr
	Since, Last time.Time
}

// conflictRests is after how long without a conflict the next one is another.
const conflictRests = 3 * time.Minute

// contested notes that another says a name of ours.
func (l *link) contested(now time.Time, c *claim, from netip.Addr) {
	if now.Sub(c.contest.Last) >= conflictRests {
		c.contest.From, c.contest.Since = from, now
	}
	c.contest.Last, l.dirty = now, true
}

// contests returns what others announce that is ours: claims that were contested, and
// instances with our ID. Those are found, and listed by the time since when.
func (l *link) contests(found []discovery.Found) []Conflict {
	var out []Conflict
	for _, c := range l.claims {
		if !c.contest.From.IsValid() {
			continue
		}
		one := c.contest
		one.Where, one.Name = l.name, c.asked
		if c.label != c.asked {
			one.Renamed = c.label
		}
		out = append(out, one)
	}
	there := map[string]bool{}
	for _, f := range found {
		if len(f.From) == 0 || len(there) == maxImitations {
			continue
		}
		if l.imitations[f.Instance].IsZero() {
			l.imitations[f.Instance] = l.now
		}
		there[f.Instance] = true
		out = append(out, Conflict{Where: l.name, Name: f.Instance, ID: true, From: f.From[0], Since: l.imitations[f.Instance], Last: f.Seen})
	}
	maps.DeleteFunc(l.imitations, func(instance string, _ time.Time) bool { return !there[instance] })
	return out
}

// imitates says whether an instance has the ID of one that is published here, and leads
// elsewhere: another node of the same cluster says the same endpoints.
func (l *link) imitates(f discovery.Found) bool {
	for _, s := range l.services {
		if s.Text.ID != f.ID {
			continue
		}
		for _, e := range f.Endpoints {
			addr, err := netip.ParseAddrPort(e)
			if err != nil || addr.Port() != s.Port || !slices.Contains(l.addressesOf(s), addr.Addr()) {
				return true
			}
		}
	}
	return false
}

// A rename is a name that had to be changed because another has it.
type rename struct{ from, to string }

// heardAnswers looks in another's response for what is said of our names: records
// that are not ours are a conflict (RFC 6762 section 9), and ours with less of a TTL
// are put right (6.6).
func (l *link) heardAnswers(now time.Time, heard []record, from netip.Addr) {
	same := l.sameCluster(heard)
	for _, c := range slices.Clone(l.claims) {
		clash := false
		for _, r := range heard {
			if fold(r.name) != fold(c.name) || r.typ == dns.TypeNSEC {
				continue
			}
			if r.ttl == 0 {
				c.released(now)
				continue
			}
			ours := slices.ContainsFunc(c.records, func(own record) bool { return own.ident() == r.ident() })
			// A name that is only wanted is taken if it has any records; one that we have is
			// contested by other data of a type that we have, too.
			if !ours && (c.phase == probing && c.sent > 0 || c.phase != probing && slices.Contains(typesOf(c.records), r.typ)) {
				clash = true
			}
		}
		if clash {
			l.contested(now, c, from)
		}
		switch {
		case !clash:
			l.rescue(now, c, heard)
		case c.phase == probing && (same[fold(c.name)] || c.waits > 0) && !c.waitedOut(now):
			// Later answers may be of the host alone, which do not say whose it is.
			c.wait(now)
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

// sameCluster returns the names of ours that another responder has for a service with
// our cluster ID: this cluster itself, from another node or before a restart, with
// other addresses or another revision. Names are folded.
func (l *link) sameCluster(heard []record) map[name]bool {
	out := map[name]bool{}
	for _, c := range l.claims {
		if c.service == nil {
			continue
		}
		n, heard := fold(c.name), heard
		for _, typ := range []uint16{dns.TypeTXT, dns.TypeSRV} {
			for _, e := range l.cache.sets[key{n, typ}] {
				heard = append(slices.Clip(heard), e.record)
			}
		}
		for _, r := range heard {
			if r.typ != dns.TypeTXT || fold(r.name) != n {
				continue
			}
			if text, err := discovery.ParseText(r.texts()); err == nil && text.ID == c.service.Text.ID {
				out[n] = true
			}
		}
		for _, r := range heard {
			if out[n] && r.typ == dns.TypeSRV && fold(r.name) == n {
				out[fold(r.target())] = true
			}
		}
	}
	return out
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
