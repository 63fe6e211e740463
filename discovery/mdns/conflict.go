package mdns

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// A Conflict is a name, or the cluster ID, of a service that is published here and that another
// responder announces, too.
type Conflict struct {
	// Where is the network interface, and Name the other's instance or host.
	Where, Name string
	// ID means that the other announces our cluster ID, under a name that is not ours and with
	// other endpoints.
	ID bool
	// Renamed is the name that is published instead; "" while there is none.
	Renamed string
	// From is the address from which it was first received, which can be forged. Since is when that
	// was, and Last when it was last received.
	From        netip.Addr
	Since, Last time.Time
}

// conflictRests is the time without a conflict after which the next one is a new one.
const conflictRests = 3 * time.Minute

// contested records that another host sent a name of ours.
func (l *link) contested(now time.Time, c *claim, from netip.Addr) {
	if now.Sub(c.contest.Last) >= conflictRests {
		c.contest.From, c.contest.Since = from, now
	}
	c.contest.Last, l.dirty = now, true
}

// contests returns the conflicts: claims that were contested, and, of found, the instances with our
// ID, with the time since when.
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

// imitates reports whether an instance has the ID of one that is published here, but other
// endpoints: another node of the same cluster announces the same ones.
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

// A rename is a name that had to change because another host has it.
type rename struct{ from, to string }

// checkAnswers checks another host's response for our names: records that are not ours are a
// conflict (RFC 6762 section 9), and ours with a lower TTL are announced again (6.6).
func (l *link) checkAnswers(now time.Time, received []record, from netip.Addr) {
	same := l.sameCluster(received)
	for _, c := range slices.Clone(l.claims) {
		clash := false
		for _, r := range received {
			if fold(r.name) != fold(c.name) || r.typ == dns.TypeNSEC {
				continue
			}
			if r.ttl == 0 {
				c.released(now)
				continue
			}
			ours := slices.ContainsFunc(c.records, func(own record) bool { return own.ident() == r.ident() })
			// A name that we only probe is taken if it has any records; one that we have is
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
			l.rescue(now, c, received)
		case c.phase == probing && (same[fold(c.name)] || c.waits > 0) && !c.waitedOut(now):
			// Later answers may be about the host alone, without the cluster ID.
			c.wait(now)
		case c.phase == probing:
			l.rename(now, c)
		default:
			// Section 9: both begin again with probes, which decide who keeps the name.
			c.phase, c.sent, c.due = probing, 0, now.Add(l.conflict(now))
			for _, r := range slices.Concat(c.records, c.shared) {
				delete(l.queue, r.ident())
			}
		}
	}
}

// sameCluster returns those of our names, folded, that another responder has for a service with our
// cluster ID: this cluster itself, on another node or before a restart, with other addresses or
// another revision.
func (l *link) sameCluster(received []record) map[name]bool {
	out := map[name]bool{}
	for _, c := range l.claims {
		if c.service == nil {
			continue
		}
		n, received := fold(c.name), received
		for _, typ := range []uint16{dns.TypeTXT, dns.TypeSRV} {
			for _, e := range l.cache.sets[key{n, typ}] {
				received = append(slices.Clip(received), e.record)
			}
		}
		for _, r := range received {
			if r.typ != dns.TypeTXT || fold(r.name) != n {
				continue
			}
			if text, err := discovery.ParseText(r.texts()); err == nil && text.ID == c.service.Text.ID {
				out[n] = true
			}
		}
		for _, r := range received {
			if out[n] && r.typ == dns.TypeSRV && fold(r.name) == n {
				out[fold(r.target())] = true
			}
		}
	}
	return out
}

// rename gives a claim the next name, and restarts it.
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

// rescue announces records of ours that another host sent with less than half their TTL, or with a
// goodbye (section 6.6).
func (l *link) rescue(now time.Time, c *claim, received []record) {
	if c.phase == probing {
		return
	}
	for _, own := range slices.Concat(c.records, c.shared) {
		for _, r := range received {
			if r.ttl < own.ttl/2 && r.ident() == own.ident() {
				l.enqueue(own, now, now, repeatGap)
			}
		}
	}
}
