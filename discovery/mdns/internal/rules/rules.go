// Package rules holds packets that were captured against the rules of Multicast DNS
// (RFC 6762). It judges whoever sent them, by what is on the wire alone, and shares no
// code with what it judges.
package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A Packet is one that was captured, once, where all packets pass.
type Packet struct {
	At time.Time
	// Host is who sent it, in either family.
	Host string
	// TTL is that of its IP header; 0 if it is not known.
	TTL      int
	From, To netip.AddrPort
	Data     []byte
}

// Slack is what times may differ by where programs and captures are real.
type Slack struct {
	// Early is how much sooner something may come than it may, Late how much later.
	Early, Late time.Duration
}

// A Violation is a packet that breaks a rule.
type Violation struct {
	// Rule is a section of RFC 6762 and a word.
	Rule string
	// Host is who sent it from which address, After is when since the first packet.
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
	// announcing is how long after a name was probed, or a record first said, it is
	// announced: at most eight times says section 8.3, and nobody here does more than four.
	announcing = 8 * time.Second
)

// A sender is what is known of one host in one family. Two programs on one host are one
// sender, so they cannot be judged by this.
type sender struct {
	host string
	from netip.Addr
	// probes are those of a name since it was last claimed, claimed is when its first
	// announcement was.
	probes  map[string][]time.Time
	claimed map[string]time.Time
	// types are those of the unique records that a name has.
	types map[string]map[uint16]bool
	// sets are the unique records of a name and type.
	sets map[string]map[string]bool
	// first is when a record was first said, said when last, by multicast.
	first, said map[string]time.Time
	// repeated is when a name was said again after it was claimed.
	repeated map[string]time.Time
	// asked is when a question was asked first and last.
	askedFirst, asked map[string]time.Time
	// news is when something was last announced that was not said before.
	news time.Time
}

// A query is a packet with questions and all known answers that belong to it.
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
	// heard is each record that was multicast, by whom and when, with its TTL.
	heard      map[string]heard
	violations []Violation
}

// A place is a host's end of one family.
type place struct {
	host string
	ipv4 bool
}

type heard struct {
	host string
	at   time.Time
	rr   dns.RR
}

// Check returns all violations in a capture, which has to begin before its senders do.
func Check(packets []Packet, slack Slack) []Violation {
	c := &checker{slack: slack, senders: map[place]*sender{}, heard: map[string]heard{}}
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
				first: map[string]time.Time{}, said: map[string]time.Time{}, repeated: map[string]time.Time{},
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

// form is what each packet has to have.
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

// key is what a question asks for.
func key(name string, typ uint16) string {
	return fmt.Sprintf("%s %s", strings.ToLower(name), dns.Type(typ))
}

// ident is a record without its TTL and its cache-flush bit.
func ident(rr dns.RR) string {
	rr = dns.Copy(rr)
	rr.Header().Ttl, rr.Header().Class = 0, dns.ClassINET
	return strings.ToLower(rr.String())
}

// shared says whether others may have records of this name and type: those of types of
// services. All others here are of one host or instance.
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
		// More known answers of a query before.
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
		for id, h := range c.heard {
			if h.host == p.Host || key(h.rr.Header().Name, h.rr.Header().Rrtype) != k || h.at.Before(s.askedFirst[k]) {
				continue
			}
			// Within the last second it may not have been read yet, and at half its time it may
			// be said or not.
			ttl, age := time.Duration(h.rr.Header().Ttl)*time.Second, p.At.Sub(h.at)
			if _, ok := known[id]; !ok && age > time.Second && age < ttl/2-5*time.Second {
				c.fail(p, "7.1 known answers", "%s is asked for without %s, which was said %v ago", k, h.rr, age)
			}
		}
	}
}

func learn(known map[string]uint32, list []dns.RR) {
	for _, rr := range list {
		known[ident(rr)] = rr.Header().Ttl
	}
}

// known is all known answers of a query, also those in packets that follow it.
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
	// Announcements first: what a packet says is judged by all of it.
	all := slices.Concat(m.Answer, m.Extra)
	for _, rr := range all {
		c.claim(p, s, rr)
		if s.first[ident(rr)].IsZero() || rr.Header().Ttl == 0 {
			// A change is announced, with all that the name has (8.4).
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
			delete(c.heard, id)
			continue
		}
		if s.first[id].IsZero() {
			s.first[id] = p.At
		}
		if !shared(rr) {
			s.replace(rr, all)
		}
		s.said[id] = p.At
		if rr.Header().Rrtype != dns.TypeNSEC {
			c.heard[id] = heard{p.Host, p.At, rr}
		}
		if !shared(rr) {
			// What was said before under this name and type, and not now, is flushed.
			for other, h := range c.heard {
				if h.host == p.Host && h.at.Before(p.At.Add(-time.Second)) && key(h.rr.Header().Name, h.rr.Header().Rrtype) == key(rr.Header().Name, rr.Header().Rrtype) {
					delete(c.heard, other)
				}
			}
		}
	}
}

// replace forgets what was said under the name and type of a unique record, and is not in
// the packet: to say it again is news.
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

// claim looks whether a name was probed before it is used, and what its records are like.
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

// repeat looks whether a record is said too often (section 6).
func (c *checker) repeat(p Packet, s *sender, rr dns.RR) {
	last, ok := s.said[ident(rr)]
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

// window is how long ago a question may be that is answered now: it waits for more known
// answers for up to 500 ms (7.2), 120 ms to share a packet, and a second (6) if the record
// was just said.
func (c *checker) window() time.Duration { return 1620*time.Millisecond + c.slack.Late }

// asked looks whether somebody wanted to know what is said, and did not know it.
func (c *checker) asked(p Packet, s *sender, rr dns.RR) {
	id := ident(rr)
	if p.At.Sub(s.news) < announcing {
		return
	}
	var asking []*query
	knowing := 0
	for _, q := range c.queries {
		if !slices.ContainsFunc(q.msg.Question, func(k dns.Question) bool {
			// NSEC says that there is nothing of the type (6.1).
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
	// Somebody else said it with less than half of its time (6.6).
	h, said := c.heard[id]
	rescued := said && h.host != p.Host && p.At.Sub(h.at) < c.window() && h.rr.Header().Ttl < usual(rr)/2
	switch {
	case len(asking) > 0 || rescued:
	case knowing > 0:
		c.fail(p, "7.1 known answers", "%s is said to those who know it", rr)
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

// goodbye forgets what was said. A name that has nothing left has to be probed again.
func (c *checker) goodbye(s *sender, rr dns.RR) {
	id, name := ident(rr), strings.ToLower(rr.Header().Name)
	delete(s.said, id)
	delete(s.first, id)
	if !shared(rr) {
		delete(s.types[name], rr.Header().Rrtype)
		if len(s.types[name]) == 0 {
			delete(s.claimed, name)
			delete(s.repeated, name)
		}
	}
}

// unicast looks at an answer to one address.
func (c *checker) unicast(p Packet, m *dns.Msg) {
	i := slices.IndexFunc(c.queries, func(q *query) bool {
		return q.from == p.To && q.msg.Id == m.Id && (p.To.Port() != port || !q.to.Addr().IsMulticast() ||
			slices.ContainsFunc(q.msg.Question, func(k dns.Question) bool { return k.Qclass&bit != 0 }))
	})
	if i < 0 {
		c.fail(p, "5.4 unicast", "to %s, who did not ask for it with ID %d", p.To, m.Id)
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

// end looks for what did not come: the second announcement.
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
