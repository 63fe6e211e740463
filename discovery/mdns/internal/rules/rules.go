// Package rules checks captured packets against the rules of Multicast DNS (RFC 6762). It judges
// any sender by its packets alone, and shares no code with package mdns.
package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A Packet is a captured packet. Each is captured once, at a point that all packets pass.
type Packet struct {
	At time.Time
	// Host is its sender, in either family.
	Host string
	// TTL is that of its IP header; 0 means unknown.
	TTL      int
	From, To netip.AddrPort
	Data     []byte
}

// Slack is the tolerance for times, for real programs and captures.
type Slack struct {
	// Early is how much too early, and Late how much too late, a packet may be.
	Early, Late time.Duration
}

// A Violation is a packet that breaks a rule.
type Violation struct {
	// Rule is a section of RFC 6762 and a word.
	Rule string
	// Host sent it from the address From, After since the first packet.
	Host  string
	From  netip.Addr
	After time.Duration
	What  string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s: %s at %s after %v: %s", v.Rule, v.Host, v.From, v.After.Round(time.Millisecond), v.What)
}

const (
	port = 5353
	// bit is QU in a question, cache-flush in a record.
	bit = 1 << 15
	// announcing is how long after the probe of a name, or the first packet with a record, it may
	// be announced: section 8.3 allows eight announcements, and no program here sends more than
	// four.
	announcing = 8 * time.Second
)

// A sender is the state of one host in one family. Two programs on one host are one sender, so they
// cannot be judged by this package.
type sender struct {
	host string
	from netip.Addr
	// probes are those of a name since it was last claimed, and claimed is when it was first
	// announced.
	probes  map[string][]time.Time
	claimed map[string]time.Time
	// types are those of a name's unique records.
	types map[string]map[uint16]bool
	// sets are the unique records of a name and type.
	sets map[string]map[string]bool
	// first is when a record was first multicast, last when it last was.
	first, last map[string]time.Time
	// repeated is when a name was sent again after it was claimed.
	repeated map[string]time.Time
	// askedFirst and asked are when a question was first and last asked.
	askedFirst, asked map[string]time.Time
	// news is when a new record was last announced.
	news time.Time
}

// A query is a packet with questions, and all known answers that belong to it.
type query struct {
	at    time.Time
	host  string
	from  netip.AddrPort
	to    netip.AddrPort
	msg   *dns.Msg
	known map[string]uint32
	more  bool
}

type checker struct {
	slack   Slack
	start   time.Time
	senders map[place]*sender
	queries []*query
	// multicast has each record that was multicast, with its sender, time and TTL.
	multicast  map[string]multicast
	violations []Violation
}

// A place is a host in one family.
type place struct {
	host string
	ipv4 bool
}

type multicast struct {
	host string
	at   time.Time
	rr   dns.RR
}

// Check returns all violations in a capture, which has to begin before its senders do.
func Check(packets []Packet, slack Slack) []Violation {
	c := &checker{slack: slack, senders: map[place]*sender{}, multicast: map[string]multicast{}}
	for i, p := range packets {
		if i == 0 {
			c.start = p.At
		}
		var m dns.Msg
		if err := m.Unpack(p.Data); err != nil {
			c.fail(p, "18 form", "cannot be read: %v", err)
			continue
		}
		at := place{p.Host, p.From.Addr().Is4()}
		s := c.senders[at]
		if s == nil {
			s = &sender{
				host: p.Host, from: p.From.Addr(),
				probes: map[string][]time.Time{}, claimed: map[string]time.Time{}, types: map[string]map[uint16]bool{},
				first: map[string]time.Time{}, last: map[string]time.Time{}, repeated: map[string]time.Time{},
				sets: map[string]map[string]bool{}, askedFirst: map[string]time.Time{}, asked: map[string]time.Time{},
			}
			c.senders[at] = s
		}
		c.form(p, &m)
		switch {
		case !m.Response:
			c.query(p, s, &m, packets[i+1:])
		case !p.To.Addr().IsMulticast():
			c.unicast(p, &m)
		default:
			c.response(p, s, &m)
		}
	}
	if n := len(packets); n > 0 {
		c.end(packets[n-1].At)
	}
	return c.violations
}

func (c *checker) fail(p Packet, rule, format string, args ...any) {
	c.violations = append(c.violations, Violation{rule, p.Host, p.From.Addr(), p.At.Sub(c.start), fmt.Sprintf(format, args...)})
}

// form checks the form of each packet.
func (c *checker) form(p Packet, m *dns.Msg) {
	if p.TTL != 0 && p.TTL != 255 && p.From.Port() == port {
		c.fail(p, "11 TTL", "an IP TTL of %d", p.TTL)
	}
	records := len(m.Answer) + len(m.Ns) + len(m.Extra)
	headers := 28
	if p.From.Addr().Is6() {
		headers = 48
	}
	if size := len(p.Data) + headers; size > 9000 || size > 1500 && records > 1 {
		c.fail(p, "17 size", "%d bytes with %d records", size, records)
	}
	if m.Opcode != 0 || m.Rcode != 0 {
		c.fail(p, "18 header", "opcode %d, code %d", m.Opcode, m.Rcode)
	}
	if !p.To.Addr().IsMulticast() || p.From.Port() != port {
		return
	}
	if m.Id != 0 {
		c.fail(p, "18 header", "an ID of %d", m.Id)
	}
	if m.Response && (!m.Authoritative || m.Truncated || len(m.Question) > 0 || p.To.Port() != port) {
		c.fail(p, "18 header", "a response with AA %v, TC %v, %d questions, to port %d", m.Authoritative, m.Truncated, len(m.Question), p.To.Port())
	}
}

// key is the name and type of a question.
func key(name string, typ uint16) string {
	return fmt.Sprintf("%s %s", strings.ToLower(name), dns.Type(typ))
}

// ident is a record without its TTL and its cache-flush bit.
func ident(rr dns.RR) string {
	rr = dns.Copy(rr)
	rr.Header().Ttl, rr.Header().Class = 0, dns.ClassINET
	return strings.ToLower(rr.String())
}

// shared reports whether others may have records of this name and type, as for those of service
// types. All others here belong to one host or instance.
func shared(rr dns.RR) bool {
	return rr.Header().Rrtype == dns.TypePTR && strings.HasPrefix(rr.Header().Name, "_")
}

// usual is the TTL that section 10 recommends.
func usual(rr dns.RR) uint32 {
	switch h := rr.Header(); {
	case h.Rrtype == dns.TypeA, h.Rrtype == dns.TypeAAAA, h.Rrtype == dns.TypeSRV, h.Rrtype == dns.TypeNSEC, h.Rrtype == dns.TypePTR && !shared(rr):
		return 120
	}
	return 4500
}

func (c *checker) query(p Packet, s *sender, m *dns.Msg, later []Packet) {
	for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		if rr.Header().Rrtype != dns.TypeOPT && rr.Header().Class&bit != 0 {
			c.fail(p, "10.2 cache-flush", "in a query: %s", rr)
		}
	}
	if len(m.Question) == 0 {
		// These are more known answers of an earlier query.
		for _, q := range c.queries {
			if q.more && q.from == p.From {
				learn(q.known, m.Answer)
				q.more = m.Truncated
			}
		}
		return
	}
	q := &query{at: p.At, host: p.Host, from: p.From, to: p.To, msg: m, known: map[string]uint32{}, more: m.Truncated}
	learn(q.known, m.Answer)
	c.queries = append(c.queries, q)
	c.queries = slices.DeleteFunc(c.queries, func(q *query) bool { return p.At.Sub(q.at) > c.window() })
	if len(m.Ns) > 0 {
		c.probe(p, s, m)
		return
	}
	if p.From.Port() != port || !p.To.Addr().IsMulticast() {
		return
	}
	known := known(q, later)
	for _, asked := range m.Question {
		k := key(asked.Name, asked.Qtype)
		if last, ok := s.asked[k]; ok && p.At.Sub(last) < time.Second-c.slack.Early {
			c.fail(p, "5.2 interval", "%s is asked again after %v", k, p.At.Sub(last))
		}
		s.asked[k] = p.At
		if _, ok := s.askedFirst[k]; !ok {
			s.askedFirst[k] = p.At
		}
		for id, h := range c.multicast {
			if h.host == p.Host || key(h.rr.Header().Name, h.rr.Header().Rrtype) != k || h.at.Before(s.askedFirst[k]) {
				continue
			}
			// If it was sent within the last second it may not have been read yet, and at half its
			// TTL both are allowed.
			ttl, age := time.Duration(h.rr.Header().Ttl)*time.Second, p.At.Sub(h.at)
			if _, ok := known[id]; !ok && age > time.Second && age < ttl/2-5*time.Second {
				c.fail(p, "7.1 known answers", "%s is asked for without %s, which was sent %v ago", k, h.rr, age)
			}
		}
	}
}

func learn(known map[string]uint32, list []dns.RR) {
	for _, rr := range list {
		known[ident(rr)] = rr.Header().Ttl
	}
}

// known returns all known answers of a query, including those in packets that follow it.
func known(q *query, later []Packet) map[string]uint32 {
	out := map[string]uint32{}
	learn(out, q.msg.Answer)
	for _, p := range later {
		if !q.msg.Truncated || p.At.Sub(q.at) > time.Second {
			break
		}
		var m dns.Msg
		if p.From == q.from && m.Unpack(p.Data) == nil && !m.Response && len(m.Question) == 0 {
			learn(out, m.Answer)
		}
	}
	return out
}

func (c *checker) probe(p Packet, s *sender, m *dns.Msg) {
	for _, asked := range m.Question {
		name := strings.ToLower(asked.Name)
		if asked.Qtype != dns.TypeANY {
			c.fail(p, "8.1 probe", "asks for %s", dns.Type(asked.Qtype))
		}
		if !slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return strings.EqualFold(rr.Header().Name, name) }) {
			c.fail(p, "8.1 probe", "proposes nothing for %s", name)
		}
		s.probes[name] = append(s.probes[name], p.At)
		delete(s.claimed, name)
		delete(s.repeated, name)
	}
}

func (c *checker) response(p Packet, s *sender, m *dns.Msg) {
	if p.From.Port() != port {
		c.fail(p, "6 port", "a response from port %d", p.From.Port())
	}
	// Announcements come first: the rest of a packet depends on them.
	all := slices.Concat(m.Answer, m.Extra)
	for _, rr := range all {
		c.claim(p, s, rr)
		if s.first[ident(rr)].IsZero() || rr.Header().Ttl == 0 {
			// A change is announced with all records of the name (8.4).
			s.news = p.At
		}
	}
	for _, rr := range all {
		if rr.Header().Ttl != 0 {
			c.repeat(p, s, rr)
		}
	}
	for _, rr := range m.Answer {
		if rr.Header().Ttl != 0 {
			c.asked(p, s, rr)
		}
	}
	for _, rr := range all {
		id := ident(rr)
		if rr.Header().Ttl == 0 {
			c.goodbye(s, rr)
			delete(c.multicast, id)
			continue
		}
		if s.first[id].IsZero() {
			s.first[id] = p.At
		}
		if !shared(rr) {
			s.replace(rr, all)
		}
		s.last[id] = p.At
		if rr.Header().Rrtype != dns.TypeNSEC {
			c.multicast[id] = multicast{p.Host, p.At, rr}
		}
		if !shared(rr) {
			// Earlier records of this name and type that are not in the packet are flushed.
			for other, h := range c.multicast {
				if h.host == p.Host && h.at.Before(p.At.Add(-time.Second)) && key(h.rr.Header().Name, h.rr.Header().Rrtype) == key(rr.Header().Name, rr.Header().Rrtype) {
					delete(c.multicast, other)
				}
			}
		}
	}
}

// replace forgets the records of the name and type of a unique record that are not in the packet:
// sending one again is an announcement.
func (s *sender) replace(rr dns.RR, all []dns.RR) {
	k := key(rr.Header().Name, rr.Header().Rrtype)
	if s.sets[k] == nil {
		s.sets[k] = map[string]bool{}
	}
	for other := range s.sets[k] {
		if !slices.ContainsFunc(all, func(r dns.RR) bool { return ident(r) == other }) {
			delete(s.sets[k], other)
			delete(s.first, other)
		}
	}
	s.sets[k][ident(rr)] = true
}

// claim checks that a name was probed before it is used, and checks its records.
func (c *checker) claim(p Packet, s *sender, rr dns.RR) {
	h := rr.Header()
	name := strings.ToLower(h.Name)
	if flush := h.Class&bit != 0; flush == shared(rr) {
		c.fail(p, "10.2 cache-flush", "%v: %s", flush, rr)
	}
	if h.Ttl != 0 && h.Ttl != usual(rr) {
		c.fail(p, "10 TTL", "%s", rr)
	}
	if h.Ttl == 0 || shared(rr) || h.Rrtype == dns.TypeNSEC {
		return
	}
	if s.types[name] == nil {
		s.types[name] = map[uint16]bool{}
	}
	s.types[name][h.Rrtype] = true
	if at, ok := s.claimed[name]; ok {
		if _, again := s.repeated[name]; !again && p.At.After(at) {
			s.repeated[name] = p.At
		}
		return
	}
	probes := s.probes[name]
	delete(s.probes, name)
	s.claimed[name], s.news = p.At, p.At
	if len(probes) < 3 {
		c.fail(p, "8.1 probe", "%s after %d probes", rr, len(probes))
		return
	}
	times := append(slices.Clone(probes[len(probes)-3:]), p.At)
	for i := range 3 {
		if d := times[i+1].Sub(times[i]); d < 250*time.Millisecond-c.slack.Early || d > 250*time.Millisecond+c.slack.Late {
			c.fail(p, "8.1 probe", "%s: gap %d of its probes is %v", name, i+1, d)
		}
	}
}

// repeat checks that a record is not sent too often (section 6).
func (c *checker) repeat(p Packet, s *sender, rr dns.RR) {
	last, ok := s.last[ident(rr)]
	if !ok {
		return
	}
	gap := time.Second
	for _, q := range c.queries {
		if len(q.msg.Ns) > 0 && q.host != p.Host && slices.ContainsFunc(q.msg.Question, func(k dns.Question) bool { return strings.EqualFold(k.Name, rr.Header().Name) }) {
			gap = 250 * time.Millisecond
		}
	}
	if d := p.At.Sub(last); d < gap-c.slack.Early {
		c.fail(p, "6 repeated", "%s after %v", rr, d)
	}
}

// window is how old a question may be when it is answered: an answer waits up to 500 ms for more
// known answers (7.2), 120 ms to share a packet, and a second (6) if the record was just sent.
func (c *checker) window() time.Duration { return 1620*time.Millisecond + c.slack.Late }

// asked checks that a record answers a question, and was not among its known answers.
func (c *checker) asked(p Packet, s *sender, rr dns.RR) {
	id := ident(rr)
	if p.At.Sub(s.news) < announcing {
		return
	}
	var asking []*query
	knowing := 0
	for _, q := range c.queries {
		if !slices.ContainsFunc(q.msg.Question, func(k dns.Question) bool {
			// An NSEC says that there are no records of the type (6.1).
			typ := rr.Header().Rrtype
			return strings.EqualFold(k.Name, rr.Header().Name) && (k.Qtype == typ || k.Qtype == dns.TypeANY || typ == dns.TypeNSEC)
		}) {
			continue
		}
		if ttl, ok := q.known[id]; ok && ttl >= usual(rr)/2 {
			knowing++
			continue
		}
		asking = append(asking, q)
	}
	// Another host sent it with less than half of its TTL (6.6).
	h, ok := c.multicast[id]
	rescued := ok && h.host != p.Host && p.At.Sub(h.at) < c.window() && h.rr.Header().Ttl < usual(rr)/2
	switch {
	case len(asking) > 0 || rescued:
	case knowing > 0:
		c.fail(p, "7.1 known answers", "%s is sent to a host that knows it", rr)
		return
	default:
		c.fail(p, "6 unasked", "%s", rr)
		return
	}
	if shared(rr) && len(asking) > 0 && !rescued {
		if d := p.At.Sub(asking[0].at); d < 20*time.Millisecond-c.slack.Early {
			c.fail(p, "6 shared", "%s after %v", rr, d)
		}
	}
}

// goodbye forgets a record. A name without records has to be probed again.
func (c *checker) goodbye(s *sender, rr dns.RR) {
	id, name := ident(rr), strings.ToLower(rr.Header().Name)
	delete(s.last, id)
	delete(s.first, id)
	if !shared(rr) {
		delete(s.types[name], rr.Header().Rrtype)
		if len(s.types[name]) == 0 {
			delete(s.claimed, name)
			delete(s.repeated, name)
		}
	}
}

// unicast checks an answer to one address.
func (c *checker) unicast(p Packet, m *dns.Msg) {
	i := slices.IndexFunc(c.queries, func(q *query) bool {
		return q.from == p.To && q.msg.Id == m.Id && (p.To.Port() != port || !q.to.Addr().IsMulticast() ||
			slices.ContainsFunc(q.msg.Question, func(k dns.Question) bool { return k.Qclass&bit != 0 }))
	})
	if i < 0 {
		c.fail(p, "5.4 unicast", "to %s, which did not ask for it with ID %d", p.To, m.Id)
		return
	}
	if p.To.Port() == port {
		return
	}
	q := c.queries[i]
	if len(m.Question) != 1 || len(q.msg.Question) != 1 || key(m.Question[0].Name, m.Question[0].Qtype) != key(q.msg.Question[0].Name, q.msg.Question[0].Qtype) {
		c.fail(p, "6.7 simple", "the question is %v", m.Question)
	}
	for _, rr := range slices.Concat(m.Answer, m.Extra) {
		if rr.Header().Rrtype != dns.TypeOPT && (rr.Header().Class&bit != 0 || rr.Header().Ttl > 10) {
			c.fail(p, "6.7 simple", "%s", rr)
		}
	}
}

// end checks that no second announcement is missing.
func (c *checker) end(now time.Time) {
	for _, s := range c.senders {
		for name, at := range s.claimed {
			p := Packet{At: at, Host: s.host, From: netip.AddrPortFrom(s.from, port)}
			again, ok := s.repeated[name]
			switch latest := at.Add(1250*time.Millisecond + c.slack.Late); {
			case !ok && now.After(latest):
				c.fail(p, "8.3 announcement", "%s is announced once", name)
			case ok && (again.Sub(at) < time.Second-c.slack.Early || again.After(latest)):
				c.fail(p, "8.3 announcement", "%s is announced again after %v", name, again.Sub(at))
			}
		}
	}
}
