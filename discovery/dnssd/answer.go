package dnssd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// question is a name, in the form of [canonical], and a type.
type question struct {
	name  string
	qtype uint16
}

func (q question) String() string { return show(q.name) + " " + dns.TypeToString[q.qtype] }

// headerSize is the length of a message's header (RFC 1035 section 4.1.1).
const headerSize = 12

// parse parses a message, with no more records than the limits allow; leftOut is how many records
// of the answer it left out. If there are any, it does not read the following sections.
func parse(raw []byte) (m *dns.Msg, leftOut int, err error) {
	if len(raw) < headerSize {
		return nil, 0, errors.New("message without a header")
	}
	count := func(i int) int { return int(binary.BigEndian.Uint16(raw[4+2*i:])) }
	if n := count(0); n > 1 {
		return nil, 0, fmt.Errorf("message with %d questions", n)
	}
	// Header and question only: the counts of the other sections are set to 0.
	m = new(dns.Msg)
	head := append([]byte(nil), raw[:headerSize]...)
	clear(head[6:])
	off := headerSize
	if count(0) == 1 {
		if _, off, err = dns.UnpackDomainName(raw, off); err != nil || off+4 > len(raw) {
			return nil, 0, errors.New("message with a malformed question")
		}
		off += 4
		head = append(head, raw[headerSize:off]...)
	}
	if err := m.Unpack(head); err != nil {
		return nil, 0, fmt.Errorf("message with a malformed question: %w", err)
	}
	for i, section := range []struct {
		to  *[]dns.RR
		max int
	}{{&m.Answer, maxAnswerRecords}, {&m.Ns, maxAuthorityRecords}, {&m.Extra, maxExtraRecords}} {
		n := count(1 + i)
		for range min(n, section.max) {
			if off >= len(raw) {
				return nil, 0, errors.New("message that ends within a record")
			}
			var rr dns.RR
			if rr, off, err = dns.UnpackRR(raw, off); err != nil {
				return nil, 0, fmt.Errorf("message with a malformed record: %w", err)
			}
			*section.to = append(*section.to, rr)
		}
		if n > section.max {
			if i == 0 {
				leftOut = n - section.max
			}
			break
		}
	}
	return m, leftOut, nil
}

// answers reports whether a message is the reply to a query.
func answers(reply, query *dns.Msg) bool {
	if !reply.Response || reply.Id != query.Id || reply.Opcode != query.Opcode || len(query.Question) != 1 {
		return false
	}
	if len(reply.Question) == 0 {
		// Some servers leave the question out when they do not understand the query.
		return reply.Rcode == dns.RcodeFormatError || reply.Rcode == dns.RcodeNotImplemented
	}
	a, b := reply.Question[0], query.Question[0]
	return len(reply.Question) == 1 && a.Qtype == b.Qtype && a.Qclass == b.Qclass && canonical(a.Name) == canonical(b.Name)
}

// Reply is a resolver's reply to one question.
type Reply struct {
	Msg *dns.Msg
	// LeftOut is how many records of the answer were beyond the limit.
	LeftOut int
}

// An answer is the answer to a question.
type answer struct {
	// records are those of the question's type; there may be none.
	records []dns.RR
	// ttl is how long it is valid, within the limits.
	ttl           time.Duration
	authenticated bool
	leftOut       int
	// alias is the target of the last CNAME, if the reply ends there.
	alias string
	// extra has answers to questions that are likely to follow.
	extra map[question]answer
}

// read returns the answer in a reply. Additional records are used if their names are in the domain,
// for which the domain's servers are responsible, and only if the answer is not authenticated, as
// additional records never are (RFC 4035 section 3.2.3).
func read(q question, r Reply, domain string) (answer, error) {
	m := r.Msg
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return answer{}, fmt.Errorf("%s: the resolver returned %s", q, rcodeText(m.Rcode))
	}
	a := answer{authenticated: m.AuthenticatedData, leftOut: r.LeftOut}
	name, ttl := q.name, uint32(maxTTL/time.Second)
	seen := map[string]bool{}
	for {
		if seen[name] || len(seen) > maxAliases {
			return answer{}, fmt.Errorf("%s: a chain of more than %d aliases, or a loop", q, maxAliases)
		}
		seen[name] = true
		var next string
		for _, rr := range m.Answer {
			h := rr.Header()
			if h.Class != dns.ClassINET || canonical(h.Name) != name {
				continue
			}
			if h.Rrtype == q.qtype {
				a.records = append(a.records, rr)
				ttl = min(ttl, ttlOf(h))
			} else if c, ok := rr.(*dns.CNAME); ok {
				next = canonical(c.Target)
				ttl = min(ttl, ttlOf(h))
			}
		}
		if len(a.records) > 0 || next == "" {
			break
		}
		name = next
	}
	a.ttl = clamp(time.Duration(ttl)*time.Second, maxTTL)
	if len(a.records) == 0 {
		soa := soaOf(m)
		if name != q.name && m.Rcode == dns.RcodeSuccess && soa == nil {
			a.alias = name
			return a, nil
		}
		// RFC 2308 section 5. Without an SOA, the lower bound applies.
		negative := uint32(0)
		if soa != nil {
			negative = min(ttlOf(&soa.Hdr), soa.Minttl, ttl)
		}
		a.ttl = clamp(time.Duration(negative)*time.Second, maxNegativeTTL)
	}
	if !a.authenticated {
		a.extra = extra(m.Extra, domain)
	}
	return a, nil
}

func extra(records []dns.RR, domain string) map[question]answer {
	out := map[question]answer{}
	for _, rr := range records {
		h := rr.Header()
		switch h.Rrtype {
		case dns.TypeSRV, dns.TypeTXT, dns.TypeA, dns.TypeAAAA:
		default:
			continue
		}
		name := canonical(h.Name)
		if h.Class != dns.ClassINET || !dns.IsSubDomain(domain, name) {
			continue
		}
		q := question{name, h.Rrtype}
		a, ok := out[q]
		ttl := clamp(time.Duration(ttlOf(h))*time.Second, maxTTL)
		if !ok || ttl < a.ttl {
			a.ttl = ttl
		}
		a.records = append(a.records, rr)
		out[q] = a
	}
	return out
}

// soaOf returns the SOA of a negative answer.
func soaOf(m *dns.Msg) *dns.SOA {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok && soa.Hdr.Class == dns.ClassINET {
			return soa
		}
	}
	return nil
}

// ttlOf returns a TTL; one with the highest bit set counts as 0 (RFC 2181 section 8).
func ttlOf(h *dns.RR_Header) uint32 {
	if h.Ttl > 1<<31-1 {
		return 0
	}
	return h.Ttl
}

func clamp(ttl, most time.Duration) time.Duration { return min(max(ttl, minTTL), most) }

func rcodeText(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return fmt.Sprintf("RCODE %d", rcode)
}

// textOf returns the strings of a TXT record as bytes.
func textOf(rr *dns.TXT) []string {
	out := make([]string, len(rr.Txt))
	for i, s := range rr.Txt {
		out[i] = unescape(s)
	}
	return out
}

// key returns the data of a record, with names in lower case: equal records of a set have equal
// keys.
func key(rr dns.RR) string {
	switch rr := rr.(type) {
	case *dns.PTR:
		return canonical(rr.Ptr)
	case *dns.SRV:
		return fmt.Sprintf("%d %d %d %s", rr.Priority, rr.Weight, rr.Port, canonical(rr.Target))
	case *dns.A:
		return rr.A.String()
	case *dns.AAAA:
		return rr.AAAA.String()
	case *dns.TXT:
		return strings.Join(textOf(rr), "\x00")
	}
	return rr.String()
}
