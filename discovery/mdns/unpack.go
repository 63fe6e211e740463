package mdns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

const (
	headerSize = 12

	// The bits of a header (RFC 6762 section 18).
	bitResponse      = 1 << 15
	bitAuthoritative = 1 << 10
	bitTruncated     = 1 << 9
	bitsOpcode       = 0xf << 11
	bitsRcode        = 0xf

	// The top bit of a class is QU in a question, cache-flush in a record (18.12, 18.13).
	bitClass = 1 << 15
)

// A question is a question of a query.
type question struct {
	name name
	typ  uint16
	// unicast is QU (section 5.4).
	unicast bool
}

func (q question) key() key { return key{fold(q.name), q.typ} }

// A message is a decoded packet.
type message struct {
	id                uint16
	response, more    bool
	questions         []question
	answers, proposed []record
	additional        []record
	malformed         int
}

var errIgnored = errors.New("opcode or code of an error")

// recordsIn returns how many questions and records a packet announces, at most as many as fit into
// it: they count against the limits before it is read.
func recordsIn(b []byte) int {
	n := 0
	for at := 4; at < headerSize && len(b) >= headerSize; at += 2 {
		n += int(binary.BigEndian.Uint16(b[at:]))
	}
	const least = 1 + 4 // a question of the root, which is the shortest
	return max(0, min(n, maxRecords, (len(b)-headerSize)/least))
}

// unpack decodes a packet. It fails for one to ignore. Records of other classes and malformed ones
// are left out and counted, without an effect on the others.
func unpack(b []byte) (message, error) {
	if len(b) < headerSize || len(b) > maxPacket {
		return message{}, fmt.Errorf("packet of %d bytes", len(b))
	}
	field := func(i int) int { return int(binary.BigEndian.Uint16(b[2*i:])) }
	flags := field(1)
	if flags&(bitsOpcode|bitsRcode) != 0 {
		return message{}, errIgnored
	}
	counts := [4]int{field(2), field(3), field(4), field(5)}
	if n := counts[0] + counts[1] + counts[2] + counts[3]; n > maxRecords {
		return message{}, fmt.Errorf("packet of %d records", n)
	}
	m := message{id: uint16(field(0)), response: flags&bitResponse != 0, more: flags&bitTruncated != 0}
	off := headerSize
	asked := map[question]bool{}
	for range counts[0] {
		n, next, err := unpackName(b, off)
		if err != nil {
			return message{}, fmt.Errorf("question: %w", err)
		}
		if next+4 > len(b) {
			return message{}, errors.New("question ends early")
		}
		typ, class := binary.BigEndian.Uint16(b[next:]), binary.BigEndian.Uint16(b[next+2:])
		q := question{n, typ, class&bitClass != 0}
		// Repeated questions must not make us do more.
		if c := class &^ bitClass; (c == dns.ClassINET || c == dns.ClassANY) && !asked[q] {
			asked[q] = true
			m.questions = append(m.questions, q)
		}
		off = next + 4
	}
	for i, section := range []*[]record{&m.answers, &m.proposed, &m.additional} {
		for range counts[1+i] {
			r, ok, next, err := unpackRecord(b, off)
			if err != nil {
				return message{}, err
			}
			if ok {
				*section = append(*section, r)
			} else {
				m.malformed++
			}
			off = next
		}
	}
	return m, nil
}

// unpackRecord reads the record at off. ok is false if it is of another class, or its data is
// malformed; after an error, the rest of the packet cannot be read.
func unpackRecord(b []byte, off int) (r record, ok bool, next int, err error) {
	n, at, err := unpackName(b, off)
	if err != nil {
		return record{}, false, 0, fmt.Errorf("record: %w", err)
	}
	if at+10 > len(b) {
		return record{}, false, 0, errors.New("record ends early")
	}
	typ, class := binary.BigEndian.Uint16(b[at:]), binary.BigEndian.Uint16(b[at+2:])
	seconds := binary.BigEndian.Uint32(b[at+4:])
	if seconds > 1<<31-1 {
		seconds = 0 // RFC 2181 section 8
	}
	start := at + 10
	end := start + int(binary.BigEndian.Uint16(b[at+8:]))
	if end > len(b) {
		return record{}, false, 0, errors.New("record ends early")
	}
	r = record{name: n, typ: typ, flush: class&bitClass != 0, ttl: time.Duration(seconds) * time.Second}
	if class&^bitClass != dns.ClassINET {
		return r, false, end, nil
	}
	r.data, ok = unpackData(b, start, end, typ)
	return r, ok && checkData(typ, r.data), end, nil
}

// unpackData returns the data between start and end with its name, if the type has
// one, without compression (section 18.14).
func unpackData(b []byte, start, end int, typ uint16) (string, bool) {
	front := nameAt(typ)
	if front < 0 {
		return string(b[start:end]), true
	}
	if start+front >= end {
		return "", false
	}
	n, next, err := unpackName(b[:end], start+front)
	if err != nil || next > end || typ != dns.TypeNSEC && next != end {
		return "", false
	}
	return string(b[start:start+front]) + string(n) + string(b[next:end]), true
}

// nameAt returns the offset of the name in the data of a type, or -1 if it has none that may be
// compressed.
func nameAt(typ uint16) int {
	switch typ {
	case dns.TypePTR, dns.TypeCNAME, dns.TypeNSEC:
		return 0
	case dns.TypeSRV:
		return 6
	}
	return -1
}
