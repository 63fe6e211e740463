package rules

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var (
	group = netip.MustParseAddrPort("224.0.0.251:5353")
	us    = netip.MustParseAddrPort("10.0.0.1:5353")
	them  = netip.MustParseAddrPort("10.0.0.2:5353")
	plain = netip.MustParseAddrPort("10.0.0.3:4000")
)

func rr(t *testing.T, s string) dns.RR {
	t.Helper()
	text, flush := strings.CutPrefix(s, "!")
	r, err := dns.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	if flush {
		r.Header().Class |= bit
	}
	return r
}

// A step is a packet in words.
type step struct {
	at       time.Duration
	from, to netip.AddrPort
	// ask are questions, "name type"; a QU one ends in " QU".
	ask []string
	// answer, propose, more are records; those with the cache-flush bit begin with "!".
	answer, propose, more []string
	response              bool
	id                    uint16
	ttl                   int
}

const (
	srv  = "!a._x._tcp.local. 120 IN SRV 0 0 1 h.local."
	ptr  = "_x._tcp.local. 4500 IN PTR a._x._tcp.local."
	host = "!h.local. 120 IN A 10.0.0.1"
)

const ms = time.Millisecond

// lawful is a name that is probed, announced twice, and asked for later.
func lawful() []step {
	probe := func(at time.Duration) step {
		return step{at: at, from: us, ask: []string{"a._x._tcp.local. ANY QU", "h.local. ANY QU"}, propose: []string{srv[1:], host[1:]}}
	}
	say := func(at time.Duration) step {
		return step{at: at, from: us, response: true, answer: []string{srv, ptr, host}}
	}
	return []step{
		probe(0), probe(250 * ms), probe(500 * ms), say(750 * ms), say(1750 * ms),
		{at: 20 * time.Second, from: them, ask: []string{"_x._tcp.local. PTR"}},
		{at: 20050 * ms, from: us, response: true, answer: []string{ptr}, more: []string{srv, host}},
		{at: 23 * time.Second, from: them, ask: []string{"_x._tcp.local. PTR"}, answer: []string{ptr}},
		{at: 24 * time.Second, from: plain, to: us, id: 7, ask: []string{"a._x._tcp.local. SRV"}},
		{at: 24 * time.Second, from: us, to: plain, id: 7, response: true, ask: []string{"a._x._tcp.local. SRV"}, answer: []string{"a._x._tcp.local. 10 IN SRV 0 0 1 h.local."}},
		{at: 25 * time.Second, from: us, response: true, answer: []string{"!a._x._tcp.local. 0 IN SRV 0 0 1 h.local.", "_x._tcp.local. 0 IN PTR a._x._tcp.local."}},
	}
}

func packets(t *testing.T, steps []step) []Packet {
	t.Helper()
	var out []Packet
	for _, s := range steps {
		m := dns.Msg{MsgHdr: dns.MsgHdr{Id: s.id, Response: s.response, Authoritative: s.response}}
		for _, q := range s.ask {
			q, qu := strings.CutSuffix(q, " QU")
			name, typ, _ := strings.Cut(q, " ")
			k := dns.Question{Name: name, Qtype: dns.StringToType[typ], Qclass: dns.ClassINET}
			if qu {
				k.Qclass |= bit
			}
			m.Question = append(m.Question, k)
		}
		for _, list := range []struct {
			to   *[]dns.RR
			from []string
		}{{&m.Answer, s.answer}, {&m.Ns, s.propose}, {&m.Extra, s.more}} {
			for _, text := range list.from {
				*list.to = append(*list.to, rr(t, text))
			}
		}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		p := Packet{At: time.Unix(0, 0).Add(s.at), TTL: 255, Host: s.from.Addr().String(), From: s.from, To: group, Data: b}
		if s.to.IsValid() {
			p.To = s.to
		}
		if s.ttl != 0 {
			p.TTL = s.ttl
		}
		out = append(out, p)
	}
	return out
}

func TestLawfulTrafficHasNoViolation(t *testing.T) {
	t.Parallel()
	for _, v := range Check(packets(t, lawful()), Slack{}) {
		t.Error(v)
	}
}

// Each rule can be broken, and that is seen.
func TestEachViolationIsSeen(t *testing.T) {
	t.Parallel()
	at := func(list []step, d time.Duration) int {
		return slices.IndexFunc(list, func(s step) bool { return s.at == d })
	}
	for name, tt := range map[string]struct {
		rule  string
		spoil func([]step) []step
	}{
		"two probes":              {"8.1 probe", func(l []step) []step { return l[1:] }},
		"probes too soon":         {"8.1 probe", func(l []step) []step { l[1].at = 200 * ms; return l }},
		"announced too soon":      {"8.1 probe", func(l []step) []step { l[3].at = 600 * ms; return l }},
		"a probe without records": {"8.1 probe", func(l []step) []step { l[0].propose = l[0].propose[:1]; return l }},
		"a probe for one type":    {"8.1 probe", func(l []step) []step { l[0].ask[0] = "a._x._tcp.local. SRV"; return l }},
		"announced once":          {"8.3 announcement", func(l []step) []step { return slices.Delete(l, 4, 5) }},
		"announced again late":    {"8.3 announcement", func(l []step) []step { l[4].at = 2500 * ms; return l }},
		"announced again soon":    {"6 repeated", func(l []step) []step { l[4].at = 1500 * ms; return l }},
		"another IP TTL":          {"11 TTL", func(l []step) []step { l[0].ttl = 1; return l }},
		"an ID":                   {"18 header", func(l []step) []step { l[3].id = 4; return l }},
		"a question in a reply":   {"18 header", func(l []step) []step { l[3].ask = l[5].ask; return l }},
		"a shared one flushes":    {"10.2 cache-flush", func(l []step) []step { l[3].answer[1] = "!" + ptr; return l }},
		"a unique one does not":   {"10.2 cache-flush", func(l []step) []step { l[3].answer[0] = srv[1:]; return l }},
		"cache-flush in a query":  {"10.2 cache-flush", func(l []step) []step { l[0].propose[0] = srv; return l }},
		"an odd TTL":              {"10 TTL", func(l []step) []step { l[3].answer[1] = strings.Replace(ptr, "4500", "60", 1); return l }},
		"from another port": {"6 port", func(l []step) []step {
			l[3].from = netip.AddrPortFrom(us.Addr(), 4000)
			return l
		}},
		"an answer to a host that knows it": {"7.1 known answers", func(l []step) []step {
			i := at(l, 23*time.Second)
			return slices.Insert(l, i+1, step{at: 23100 * ms, from: us, response: true, answer: []string{ptr}})
		}},
		"a question without known answers": {"7.1 known answers", func(l []step) []step { l[at(l, 23*time.Second)].answer = nil; return l }},
		"an answer without a question": {"6 unasked", func(l []step) []step {
			return slices.Insert(l, at(l, 20*time.Second), step{at: 15 * time.Second, from: us, response: true, answer: []string{ptr}})
		}},
		"a shared answer at once": {"6 shared", func(l []step) []step { l[at(l, 20050*ms)].at = 20001 * ms; return l }},
		"a question twice a second": {"5.2 interval", func(l []step) []step {
			l[at(l, 23*time.Second)].at = 20900 * ms
			return l
		}},
		"a simple resolver with a long TTL":                   {"6.7 simple", func(l []step) []step { l[9].answer = []string{srv[1:]}; return l }},
		"a simple resolver with flush":                        {"6.7 simple", func(l []step) []step { l[9].answer[0] = "!" + l[9].answer[0]; return l }},
		"an answer to a simple resolver without its question": {"6.7 simple", func(l []step) []step { l[9].ask = nil; return l }},
		"a simple resolver's ID":                              {"5.4 unicast", func(l []step) []step { l[9].id = 8; return l }},
		"a unicast answer without a request": {"5.4 unicast", func(l []step) []step {
			i := at(l, 20050*ms)
			l[i].to = them
			return l
		}},
		"a name after its goodbye": {"8.1 probe", func(l []step) []step {
			return append(l, step{at: 26 * time.Second, from: us, response: true, answer: []string{srv}})
		}},
		"large packets": {"17 size", func(l []step) []step {
			for range 30 {
				l[3].more = append(l[3].more, `!a._x._tcp.local. 4500 IN TXT "`+strings.Repeat("x", 100)+`"`)
			}
			return l
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Check(packets(t, tt.spoil(lawful())), Slack{})
			if !slices.ContainsFunc(got, func(v Violation) bool { return v.Rule == tt.rule }) {
				t.Errorf("not seen as %s, but as %v", tt.rule, got)
			}
		})
	}
	if got := Check([]Packet{{From: us, To: group, TTL: 255, Data: []byte{1}}}, Slack{}); len(got) != 1 || got[0].Rule != "18 form" {
		t.Errorf("what cannot be read: %v", got)
	}
}
