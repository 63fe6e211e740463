package mdns

import (
	"encoding/binary"
	"maps"
	"time"

	"github.com/miekg/dns"
)

// A packer writes a packet, with all names compressed (RFC 6762 section 18.14; the codec does not
// compress those in SRV).
type packer struct {
	b     []byte
	names map[name]int
	count [4]int
	limit int
}

// The sections of a packet.
const (
	inQuestions = iota
	inAnswers
	inProposed
	inAdditional
)

func newPacker(limit int) *packer {
	return &packer{b: make([]byte, headerSize, 512), names: map[name]int{}, limit: limit}
}

func (p *packer) empty() bool { return p.count == [4]int{} }

func (p *packer) question(q question) bool {
	return p.try(inQuestions, func() {
		p.name(q.name)
		p.uint16(q.typ)
		p.uint16(classOf(q.unicast))
	})
}

// record writes r with its remaining TTL.
func (p *packer) record(section int, r record) bool {
	return p.try(section, func() {
		p.name(r.name)
		p.uint16(r.typ)
		p.uint16(classOf(r.flush))
		p.b = binary.BigEndian.AppendUint32(p.b, uint32(r.ttl/time.Second))
		at := len(p.b)
		p.uint16(0)
		if front := nameAt(r.typ); front >= 0 {
			n, after := splitName(r.data[front:])
			p.b = append(p.b, r.data[:front]...)
			p.name(n)
			p.b = append(p.b, after...)
		} else {
			p.b = append(p.b, r.data...)
		}
		binary.BigEndian.PutUint16(p.b[at:], uint16(len(p.b)-at-2))
	})
}

// splitName splits data after the name with which it begins.
func splitName(s string) (name, string) {
	n := 0
	for n < len(s) && s[n] != 0 {
		n += 1 + int(s[n])
	}
	n = min(n+1, len(s))
	return name(s[:n]), s[n:]
}

// try calls write, and undoes it if the packet is too large then. A single record may be as large
// as the largest packet (section 17).
func (p *packer) try(section int, write func()) bool {
	before, alone := len(p.b), p.empty()
	write()
	if len(p.b) > p.limit && (!alone || len(p.b) > maxPacket-headersIP) {
		p.b = p.b[:before]
		maps.DeleteFunc(p.names, func(_ name, at int) bool { return at >= before })
		return false
	}
	p.count[section]++
	return true
}

func (p *packer) name(n name) {
	for len(n) > 1 {
		if at, ok := p.names[n]; ok {
			p.uint16(0xc000 | uint16(at))
			return
		}
		if len(p.b) < 1<<14 {
			p.names[n] = len(p.b)
		}
		_, rest := n.first()
		p.b = append(p.b, n[:len(n)-len(rest)]...)
		n = rest
	}
	p.b = append(p.b, 0)
}

func (p *packer) uint16(v uint16) { p.b = binary.BigEndian.AppendUint16(p.b, v) }

// bytes returns the packet with a header.
func (p *packer) bytes(id uint16, flags int) []byte {
	binary.BigEndian.PutUint16(p.b, id)
	binary.BigEndian.PutUint16(p.b[2:], uint16(flags))
	for i, n := range p.count {
		binary.BigEndian.PutUint16(p.b[4+2*i:], uint16(n))
	}
	return p.b
}

func classOf(top bool) uint16 {
	if top {
		return dns.ClassINET | bitClass
	}
	return dns.ClassINET
}

// packResponses returns packets with all answers, and those additional records that fit into them
// (section 17).
func packResponses(limit int, answers, additional []record) [][]byte {
	var out [][]byte
	p := newPacker(limit)
	for _, r := range answers {
		if p.record(inAnswers, r) {
			continue
		}
		out = append(out, p.bytes(0, bitResponse|bitAuthoritative))
		p = newPacker(limit)
		p.record(inAnswers, r)
	}
	for _, r := range additional {
		p.record(inAdditional, r)
	}
	if !p.empty() {
		out = append(out, p.bytes(0, bitResponse|bitAuthoritative))
	}
	return out
}

// packQuery returns a query with the known answers (section 7.1), which continue in further packets
// if they do not fit into the first (7.2). It takes as many questions as fit into half a packet,
// and returns how many those are.
func packQuery(limit int, questions []question, known func(key) []record) ([][]byte, int) {
	p := newPacker(limit)
	asked := 0
	for _, q := range questions[:min(len(questions), maxQuestions)] {
		if asked > 0 && len(p.b) > limit/2 || !p.question(q) {
			break
		}
		asked++
	}
	var out [][]byte
	for _, q := range questions[:asked] {
		for _, r := range known(q.key()) {
			r.flush = false // section 10.2: never in a query
			if p.record(inAnswers, r) {
				continue
			}
			out = append(out, p.bytes(0, bitTruncated))
			p = newPacker(limit)
			p.record(inAnswers, r)
		}
	}
	return append(out, p.bytes(0, 0)), asked
}

// packProbes returns probes for names: a question of type ANY for each, and the proposed records
// (section 8.1).
func packProbes(limit int, names []*claim, unicast bool) [][]byte {
	var out [][]byte
	for len(names) > 0 {
		n := 0
		var b []byte
		for n < len(names) {
			p := newPacker(limit)
			ok := true
			for _, c := range names[:n+1] {
				ok = ok && p.question(question{c.name, dns.TypeANY, unicast})
			}
			for _, c := range names[:n+1] {
				for _, r := range c.records {
					// The cache-flush bit is for responses only (10.2).
					r.flush = false
					ok = ok && p.record(inProposed, r)
				}
			}
			if !ok && n > 0 {
				break
			}
			n++
			b = p.bytes(0, 0)
		}
		out = append(out, b)
		names = names[n:]
	}
	return out
}

// headersIP is the size of the IPv6 and UDP headers.
const headersIP = 40 + 8
