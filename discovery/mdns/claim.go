package mdns

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// phase is the phase of a claim (RFC 6762 section 8).
type phase int

const (
	probing phase = iota
	announcing
	settled
)

// A claim is a name that this responder wants for itself: of a host, or of an instance of a
// service. Other names, those of types, are shared.
type claim struct {
	// service is nil for a host.
	service *discovery.Service
	host    *claim
	// asked is the configured label, and label the current one after conflicts.
	asked, label string
	name         name
	// records are all records of the name, which are unique; shared are records of other names that
	// point to it.
	records, shared []record
	// negative is the NSEC with the types that the name has (section 6.1).
	negative record

	phase phase
	// sent is how many probes or announcements were sent in this phase, and due is when the next
	// one is.
	sent int
	due  time.Time
	// contest is the conflict with another host that has the name, too; its From is invalid without one.
	contest Conflict
	// waits is how often it waited for the same cluster's other responder.
	waits int
	// waiting is when it began to, however often the other has sent a goodbye since.
	waiting time.Time
}

// all returns all records of the claim.
func (c *claim) all() []record { return slices.Concat(c.records, c.shared, []record{c.negative}) }

// Names in wire form, with a length before each label.
const (
	local       name = "\x05local\x00"
	serviceName name = "\x08_entente\x04_tcp" + local
	automatic   name = "\x0a_automatic\x04_sub" + serviceName
	// RFC 6763 section 9.
	metaName name = "\x09_services\x07_dns-sd\x04_udp" + local
)

// publish replaces the published services. For a service that stays, only changes are announced;
// for one that is removed, a goodbye is sent.
func (l *link) publish(now time.Time, services []discovery.Service) {
	l.now, l.dirty = now, true
	var kept []*claim
	old, start := l.claims, now.Add(l.between(0, probeDelay))
	keep := func(service bool, asked string) *claim {
		for _, c := range old {
			if (c.service != nil) == service && fold(c.asked) == fold(asked) && !slices.Contains(kept, c) {
				return c
			}
		}
		return &claim{asked: asked, label: asked, due: start}
	}
	hosts := map[string]*claim{}
	// A host has the addresses of all services on it.
	of := map[*claim][]netip.Addr{}
	for _, s := range services {
		addrs := l.addressesOf(s)
		if len(addrs) == 0 {
			continue
		}
		h := hosts[fold(s.Host)]
		if h == nil {
			h = keep(false, s.Host)
			hosts[fold(s.Host)] = h
			kept = append(kept, h)
		}
		of[h] = append(of[h], addrs...)
	}
	l.services, l.hostAddresses = services, of
	for _, s := range services {
		h := hosts[fold(s.Host)]
		if h == nil {
			continue
		}
		c := keep(true, s.Instance)
		c.service, c.host = &s, h
		kept = append(kept, c)
	}
	l.claims = kept
	for _, c := range old {
		if !slices.Contains(kept, c) {
			l.goodbye(c, c.records, c.shared)
		}
	}
	for _, c := range kept {
		for l.taken(c) {
			c.nextLabel()
		}
		l.rebuild(now, c)
	}
	l.sayGoodbye()
	l.prune()
}

func (l *link) addressesOf(s discovery.Service) []netip.Addr {
	if len(s.Addresses) > 0 {
		return s.Addresses
	}
	return l.addresses
}

// taken reports whether another claim of this link has the label.
func (l *link) taken(c *claim) bool {
	return slices.ContainsFunc(l.claims, func(other *claim) bool {
		return other != c && other.name != "" && (other.service == nil) == (c.service == nil) && fold(other.label) == fold(c.label)
	})
}

func (c *claim) nextLabel() {
	if c.service == nil {
		c.label = discovery.RenameHost(c.label)
	} else {
		c.label = discovery.Rename(c.label)
	}
}

// rebuild builds the records of a claim. If they changed, a goodbye is sent for those that are
// gone, and the rest is announced (section 8.4).
func (l *link) rebuild(now time.Time, c *claim) {
	oldUnique, oldShared := c.records, c.shared
	if c.service == nil {
		c.name = join(local, c.label)
		c.records = nil
		for _, a := range l.hostAddresses[c] {
			r := address(c.name, a.Unmap().WithZone(""))
			if !slices.Contains(c.records, r) {
				c.records = append(c.records, r)
			}
		}
		c.negative = nsec(c.name, ttlHost, typesOf(c.records))
	} else {
		c.name = join(serviceName, c.label)
		c.records = []record{srv(c.name, c.host.name, c.service.Port), txt(c.name, c.service.Text.Strings())}
		c.shared = []record{ptr(serviceName, c.name), ptr(metaName, serviceName)}
		if c.service.Automatic {
			c.shared = append(c.shared, ptr(automatic, c.name))
		}
		c.negative = nsec(c.name, ttlHost, typesOf(c.records))
	}
	if oldUnique == nil || slices.Equal(oldUnique, c.records) && slices.Equal(oldShared, c.shared) {
		return
	}
	// A unique record that changed needs no goodbye: the cache-flush bit of its successor does
	// that.
	types := typesOf(c.records)
	goneUnique := slices.DeleteFunc(slices.Clone(oldUnique), func(r record) bool {
		return fold(r.name) == fold(c.name) && slices.Contains(types, r.typ)
	})
	goneShared := slices.DeleteFunc(slices.Clone(oldShared), func(r record) bool { return slices.Contains(c.shared, r) })
	l.goodbye(c, goneUnique, goneShared)
	if c.phase != probing {
		c.phase, c.sent, c.due = announcing, 0, now
	}
}

func typesOf(list []record) []uint16 {
	var out []uint16
	for _, r := range list {
		if !slices.Contains(out, r.typ) {
			out = append(out, r.typ)
		}
	}
	slices.Sort(out)
	return out
}

// goodbye collects records to send with a TTL of 0 (section 10.1), if they were sent before. The
// pointer to the type of the services stays: others may have some.
func (l *link) goodbye(c *claim, lists ...[]record) {
	if c.phase == probing {
		return
	}
	for _, r := range slices.Concat(lists...) {
		if _, ok := l.sentAt[r.ident()]; !ok || fold(r.name) == fold(metaName) {
			continue
		}
		r.ttl = 0
		l.gone = append(l.gone, r)
	}
}

func (l *link) sayGoodbye() {
	for _, b := range packResponses(l.payload, l.gone, nil) {
		l.multicast(b)
	}
	l.gone = nil
}

// restart claims all names again from the beginning: the interface was down, or is on another
// network now (section 8).
func (l *link) restart(now time.Time) {
	l.now, l.dirty = now, true
	start := now.Add(l.between(0, probeDelay))
	for _, c := range l.claims {
		c.phase, c.sent, c.due = probing, 0, start
	}
	l.cache = newCache()
	l.queries = map[key]*query{}
	l.sentAt = map[ident]time.Time{}
	l.pending, l.queue = nil, map[ident]*queued{}
	l.updateQueries(now)
}

// prune forgets when records that are no longer published were sent.
func (l *link) prune() {
	ours := l.ours()
	maps.DeleteFunc(l.sentAt, func(id ident, _ time.Time) bool { return !ours[id] })
	maps.DeleteFunc(l.queue, func(id ident, _ *queued) bool { return !ours[id] })
}

// isAddress reports whether a type is that of addresses.
func isAddress(typ uint16) bool { return typ == dns.TypeA || typ == dns.TypeAAAA }
