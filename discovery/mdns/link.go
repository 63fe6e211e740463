package mdns

import (
	"math/rand/v2"
	"net/netip"
	"slices"
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

// A packet is a packet to send.
type packet struct {
	// to is its destination; if invalid, the groups of all families of the link.
	to   netip.AddrPort
	data []byte
}

// A link is Multicast DNS on one network interface, in one or both families.
//
// It is a state machine without I/O: receive, publish, browse, setAddresses and tick take the time
// and return nothing; after each of them, packets returns what to send, and next when to call tick.
type link struct {
	name     string
	families family
	// payload bounds the packets that are sent.
	payload int
	rand    *rand.Rand
	// shared means that other processes have the port, too. Unicast packets to this host may reach
	// one of them, so unicast responses are not requested (RFC 6762 section 15.1).
	shared bool
	// sent has the packets that this process recently sent, on all of its links.
	sent *echoes

	now           time.Time
	addresses     []netip.Addr
	services      []discovery.Service
	hostAddresses map[*claim][]netip.Addr
	claims        []*claim
	conflicts     []time.Time
	throttled     bool
	renames       []rename
	// imitations is when instances with our ID were first received.
	imitations map[string]time.Time
	// gone are the records of the next goodbye.
	gone []record
	// sentAt is when records of ours were last multicast.
	sentAt  map[ident]time.Time
	pending []*pending
	queue   map[ident]*queued

	browsed []name
	// wants are the keys that this link needs, whether or not they are known.
	wants   map[key]name
	queries map[key]*query
	// asks is no later than the time at which the next query is due.
	asks  deadline
	cache cache
	crowd crowd

	// second is when it began to count the received packets, of one source and of all, and the sent
	// unicast packets.
	second   time.Time
	counted  map[netip.Addr]load
	received load
	direct   int

	// dirty means that the found clusters may have changed.
	dirty bool
	out   []packet
	stats Stats
}

// Stats counts what a link dropped.
type Stats struct {
	// Dropped are packets that were too many, too large or malformed,
	Dropped uint64
	// Malformed are malformed records in other packets.
	Malformed uint64
	// Refused are records for which the cache had no room.
	Refused uint64
	// Conflicts is how often another host had, or probed, a name of ours.
	Conflicts uint64
}

func newLink(name string, families family, payload int, r *rand.Rand, sent *echoes) *link {
	return &link{
		name: name, families: families, payload: payload, rand: r, sent: sent,
		sentAt: map[ident]time.Time{}, queue: map[ident]*queued{}, queries: map[key]*query{}, cache: newCache(),
		counted: map[netip.Addr]load{}, imitations: map[string]time.Time{},
	}
}

func (l *link) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(l.rand.Int64N(int64(high-low+1)))
}

// setAddresses sets the addresses of the interface.
func (l *link) setAddresses(now time.Time, list []netip.Addr) {
	l.now = now
	if slices.Equal(l.addresses, list) {
		return
	}
	l.addresses = list
	l.publish(now, l.services)
}

// receive handles a packet from a host on the link, to the group or to this host.
func (l *link) receive(now time.Time, b []byte, from netip.AddrPort, multicast bool) {
	l.now = now
	if l.sent.own(now, l.name, b) {
		return
	}
	if !l.admit(now, from.Addr(), b) {
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
		// Section 6: responses from other ports are not of this protocol.
		if from.Port() == port {
			l.receiveResponse(now, m, from.Addr(), on, multicast)
		}
		return
	}
	if len(m.proposed) > 0 {
		l.compareProbe(now, m.proposed, from.Addr())
	}
	if from.Port() == port && multicast {
		l.suppressQuestions(now, m, on)
		l.cache.countUnanswered(now, m)
	}
	l.receiveQuery(now, m, from, multicast)
	l.answer(now)
}

func (l *link) receiveResponse(now time.Time, m message, from netip.Addr, on family, multicast bool) {
	list := slices.Concat(m.answers, m.additional)
	l.checkAnswers(now, list, from)
	if multicast {
		l.suppressAnswers(m.answers, on)
	}
	// Instances precede their SRV and address records, which are only then wanted.
	order := []uint16{dns.TypePTR, dns.TypeSRV, dns.TypeTXT, dns.TypeA, dns.TypeAAAA}
	changed := false
	for _, typ := range order {
		leads := false
		for _, r := range list {
			if _, ok := l.wants[r.key()]; !ok || r.typ != typ {
				continue
			}
			refused := l.stats.Refused
			leads = l.put(now, r, from) || leads
			l.dirty = l.dirty || refused == l.stats.Refused
			if r.flush && r.ttl > 0 && typ != dns.TypePTR {
				l.cache.flush(now, r.key())
			}
		}
		changed = changed || leads
		if leads && (typ == dns.TypePTR || typ == dns.TypeSRV) {
			l.wants = l.wanted()
		}
	}
	if changed {
		l.updateQueries(now)
	}
}

// A load counts what was received in a second.
type load struct{ packets, records int }

// admit bounds what is read in a second, from all sources and from one.
func (l *link) admit(now time.Time, from netip.Addr, b []byte) bool {
	l.count(now)
	records := recordsIn(b)
	one := load{l.counted[from].packets + 1, l.counted[from].records + records}
	if one.packets > maxSourcePackets || one.records > maxSourceRecords {
		return false
	}
	all := load{l.received.packets + 1, l.received.records + records}
	if all.packets > maxPackets || all.records > maxRecordsRead {
		l.noRoom(now, true)
		return false
	}
	l.received, l.counted[from] = all, one
	return true
}

// count begins a new second.
func (l *link) count(now time.Time) {
	if now.Sub(l.second) >= time.Second {
		l.second, l.received, l.direct = now, load{}, 0
		clear(l.counted)
	}
}

// tick does everything that is due.
func (l *link) tick(now time.Time) {
	l.now = now
	l.confirm(now)
	l.thin(now)
	if l.cache.expire(now, func(key) bool { return true }) {
		l.dirty = true
		l.updateQueries(now)
	}
	l.probe(now)
	l.announce(now)
	l.answer(now)
	l.ask(now)
	l.reckon()
}

// reckon computes when the next entry and the next query are due. Only tick calls it, so that no
// packet causes a scan of all of them.
func (l *link) reckon() {
	l.cache.due, l.asks = deadline{}, deadline{}
	for _, q := range l.queries {
		l.asks.note(q.due)
	}
	for _, set := range l.cache.sets {
		for _, e := range set {
			l.cache.due.note(e.until)
			l.cache.due.note(e.refresh)
			l.cache.due.note(e.poof())
		}
	}
}

// next returns when to call tick, at which it may find that nothing is due; zero means never.
func (l *link) next() time.Time {
	var next deadline
	for _, c := range l.claims {
		next.note(c.due)
	}
	for _, p := range l.pending {
		next.note(p.due)
	}
	for _, q := range l.queue {
		next.note(q.due)
	}
	next.note(l.asks.Time)
	next.note(l.cache.due.Time)
	next.note(l.crowd.next())
	return next.Time
}

// packets returns, once, the packets to send.
func (l *link) packets() []packet {
	out := l.out
	l.out = nil
	return out
}

func (l *link) multicast(b []byte) {
	l.sent.add(l.now, l.name, b, l.families)
	l.out = append(l.out, packet{data: b})
}

// unicast sends to one address, within a limit: a forged query makes us send to its victim.
func (l *link) unicast(now time.Time, to netip.AddrPort, b []byte) {
	l.count(now)
	if l.direct >= maxUnicast {
		l.stats.Dropped++
		return
	}
	l.direct++
	l.out = append(l.out, packet{to: to, data: b})
}
