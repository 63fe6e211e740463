package mdns

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// A family is one of IPv4 and IPv6, or both.
type family uint8

const (
	ipv4Family family = 1 << iota
	ipv6Family
)

func familyOf(a netip.Addr) family {
	if a.Is4() || a.Is4In6() {
		return ipv4Family
	}
	return ipv6Family
}

// A packet is to be sent.
type packet struct {
	// to is where; if it is not valid, to all, in each family of the link.
	to   netip.AddrPort
	data []byte
}

// A link is Multicast DNS on one network interface, in one or both families.
//
// It is a value machine: receive, publish, browse, setAddresses and tick take the time
// and return nothing; packets is what is to be sent after each of them, next when to
// call tick.
type link struct {
	name     string
	families family
	// payload is the most bytes of a packet that is sent.
	payload int
	rand    *rand.Rand
	// shared says that other processes have the port too. Packets to this host's address
	// may reach one of them, so none are asked for (RFC 6762 section 15.1).
	shared bool
	// sent is what this process sent lately, on all of its links.
	sent *echoes

	now           time.Time
	addresses     []netip.Addr
	services      []discovery.Service
	hostAddresses map[*claim][]netip.Addr
	claims        []*claim
	conflicts     []time.Time
	throttled     bool
	renames       []rename
	// gone is what the next goodbye says.
	gone []record
	// said is when records of ours were multicast.
	said    map[ident]time.Time
	pending []*pending
	queue   map[ident]*queued

	browsed []name
	// wants is what is asked for, or known and asked for again.
	wants   map[key]name
	queries map[key]*query
	cache   cache

	second  time.Time
	counted map[netip.Addr]int
	heard   int
	direct  int

	// dirty says that found may have changed.
	dirty bool
	out   []packet
	stats Stats
}

// Stats counts what a link did not take.
type Stats struct {
	// Dropped are packets that were too many, too large or unreadable,
	Dropped uint64
	// Malformed are records in others.
	Malformed uint64
	// Refused are records for which the cache had no room.
	Refused uint64
	// Invalid are instances that are no clusters of a version that is understood.
	Invalid uint64
	// Conflicts is how often another had, or wanted, a name of ours.
	Conflicts uint64
}

func newLink(name string, families family, payload int, r *rand.Rand, sent *echoes) *link {
	return &link{
		name: name, families: families, payload: payload, rand: r, sent: sent,
		said: map[ident]time.Time{}, queue: map[ident]*queued{}, queries: map[key]*query{}, cache: newCache(),
		counted: map[netip.Addr]int{},
	}
}

// between returns a random duration.
func (l *link) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(l.rand.Int64N(int64(high-low+1)))
}

// setAddresses says what addresses the interface has.
func (l *link) setAddresses(now time.Time, list []netip.Addr) {
	l.now = now
	if slices.Equal(l.addresses, list) {
		return
	}
	l.addresses = list
	l.publish(now, l.services)
}

// receive takes a packet that was sent to the group or to this host, by one on the
// link.
func (l *link) receive(now time.Time, b []byte, from netip.AddrPort, multicast bool) {
	l.now = now
	if l.sent.own(now, l.name, b) {
		return
	}
	if !l.admit(now, from.Addr()) {
		l.stats.Dropped++
		return
	}
	m, err := unpack(b)
	if err != nil {
		l.stats.Dropped++
		return
	}
	l.stats.Malformed += uint64(m.malformed)
	on := familyOf(from.Addr())
	if m.response {
		// Section 6: others are not of this protocol.
		if from.Port() == port {
			l.heardResponse(now, m, from.Addr(), on, multicast)
		}
		return
	}
	if len(m.proposed) > 0 {
		l.heardProbe(now, m.proposed)
	}
	if from.Port() == port && multicast {
		l.heardQuestions(now, m, on)
		l.cache.heardUnanswered(now, m)
	}
	l.heardQuery(now, m, from, multicast)
	l.answer(now)
}

func (l *link) heardResponse(now time.Time, m message, from netip.Addr, on family, multicast bool) {
	list := slices.Concat(m.answers, m.additional)
	l.heardAnswers(now, list)
	if multicast {
		l.heardAnswer(m.answers, on)
	}
	// Instances come before where they are, so that one packet says all.
	order := []uint16{dns.TypePTR, dns.TypeSRV, dns.TypeTXT, dns.TypeA, dns.TypeAAAA}
	changed := false
	for _, typ := range order {
		leads := false
		for _, r := range list {
			if _, ok := l.wants[r.key()]; !ok || r.typ != typ {
				continue
			}
			leads = l.put(now, r, from) || leads
			l.dirty = true
			if r.flush && typ != dns.TypePTR {
				l.cache.flush(now, r.key())
			}
		}
		changed = changed || leads
		if leads && (typ == dns.TypePTR || typ == dns.TypeSRV) {
			l.wants = l.wanted()
		}
	}
	if changed {
		l.want(now)
	}
}

// admit bounds the packets of a second, of all and of one.
func (l *link) admit(now time.Time, from netip.Addr) bool {
	if now.Sub(l.second) >= time.Second {
		l.second, l.heard, l.direct = now, 0, 0
		clear(l.counted)
	}
	if l.heard >= maxPackets || l.counted[from] >= maxSourcePackets {
		return false
	}
	l.heard++
	l.counted[from]++
	return true
}

// tick does what is due.
func (l *link) tick(now time.Time) {
	l.now = now
	l.confirm(now)
	if l.cache.expire(now, func(key) bool { return true }) {
		l.dirty = true
		l.want(now)
	}
	l.probe(now)
	l.announce(now)
	l.answer(now)
	l.ask(now)
}

// next returns when tick has something to do; it is zero if never.
func (l *link) next() time.Time {
	var next time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, c := range l.claims {
		at(c.due)
	}
	for _, p := range l.pending {
		at(p.due)
	}
	for _, q := range l.queue {
		at(q.due)
	}
	for _, q := range l.queries {
		at(q.due)
	}
	for _, set := range l.cache.sets {
		for _, e := range set {
			at(e.until)
			at(e.refresh)
			at(e.poof())
		}
	}
	return next
}

// packets returns what is to be sent, once.
func (l *link) packets() []packet {
	out := l.out
	l.out = nil
	return out
}

func (l *link) multicast(b []byte) {
	l.sent.add(l.now, l.name, b, l.families)
	l.out = append(l.out, packet{data: b})
}

// unicast is bounded: who asks in another's name makes us send to that one.
func (l *link) unicast(now time.Time, to netip.AddrPort, b []byte) {
	if now.Sub(l.second) >= time.Second {
		l.second, l.heard, l.direct = now, 0, 0
		clear(l.counted)
	}
	if l.direct >= maxUnicast {
		l.stats.Dropped++
		return
	}
	l.direct++
	l.out = append(l.out, packet{to: to, data: b})
}

func compareQuestions(a, b question) int {
	return cmp.Or(strings.Compare(string(a.name), string(b.name)), cmp.Compare(a.typ, b.typ))
}
