package mdns

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A key is the name, folded, and the type of a question or record. The class is always IN.
type key struct {
	name name
	typ  uint16
}

// An ident identifies a record: it has everything but its TTL.
type ident struct {
	key
	data string
}

// A record is a resource record of class IN.
type record struct {
	name name
	typ  uint16
	// flush is the cache-flush bit (RFC 6762 section 10.2): the record is unique, and its sender
	// has all records of that name and type.
	flush bool
	ttl   time.Duration
	// data is in wire form, with names uncompressed and in their original case.
	data string
}

func (r record) key() key { return key{fold(r.name), r.typ} }

func (r record) ident() ident {
	data := r.data
	switch r.typ {
	case dns.TypePTR, dns.TypeCNAME, dns.TypeNSEC:
		data = fold(data)
	case dns.TypeSRV:
		data = data[:6] + fold(data[6:])
	}
	return ident{r.key(), data}
}

// size is how much the record counts in a cache.
func (r record) size() int { return len(r.name) + len(r.data) }

func ptr(from, to name) record {
	return record{name: from, typ: dns.TypePTR, ttl: ttlOther, data: string(to)}
}

func srv(n, target name, port uint16) record {
	// Priority and weight are 0, as there is one host.
	data := string(binary.BigEndian.AppendUint16(make([]byte, 4), port)) + string(target)
	return record{name: n, typ: dns.TypeSRV, flush: true, ttl: ttlHost, data: data}
}

// A TXT record without strings has one empty string (RFC 6763 section 6.1).
func txt(n name, list []string) record {
	var b strings.Builder
	for _, s := range list {
		s = s[:min(len(s), 255)]
		b.WriteByte(byte(len(s)))
		b.WriteString(s)
	}
	if b.Len() == 0 {
		b.WriteByte(0)
	}
	return record{name: n, typ: dns.TypeTXT, flush: true, ttl: ttlOther, data: b.String()}
}

func address(n name, a netip.Addr) record {
	r := record{name: n, typ: dns.TypeAAAA, flush: true, ttl: ttlHost, data: string(a.AsSlice())}
	if a.Is4() {
		r.typ = dns.TypeA
	}
	return r
}

// nsec returns the record that a name has these types and no others, in the limited form of section
// 6.1: one block, and the next name is the name itself.
func nsec(n name, ttl time.Duration, types []uint16) record {
	var bits [32]byte
	last := 0
	for _, t := range types {
		bits[t/8] |= 0x80 >> (t % 8)
		last = max(last, int(t/8))
	}
	data := string(n) + string([]byte{0, byte(last + 1)}) + string(bits[:last+1])
	return record{name: n, typ: dns.TypeNSEC, flush: true, ttl: ttl, data: data}
}

func (r record) target() name {
	switch r.typ {
	case dns.TypePTR:
		return name(r.data)
	case dns.TypeSRV:
		return name(r.data[6:])
	}
	return ""
}

func (r record) port() uint16 { return binary.BigEndian.Uint16([]byte(r.data[4:6])) }

// addr returns the address in an A or AAAA record.
func (r record) addr() netip.Addr {
	a, _ := netip.AddrFromSlice([]byte(r.data))
	return a
}

// texts returns the strings of a TXT record.
func (r record) texts() []string {
	var out []string
	for rest := r.data; rest != ""; {
		n := int(rest[0]) + 1
		out = append(out, rest[1:n])
		rest = rest[n:]
	}
	return out
}

// checkData reports whether data without a name is valid for a type that this package reads.
func checkData(typ uint16, data string) bool {
	switch typ {
	case dns.TypeA:
		return len(data) == 4
	case dns.TypeAAAA:
		return len(data) == 16
	case dns.TypeTXT:
		for rest := data; rest != ""; rest = rest[1+int(rest[0]):] {
			if int(rest[0]) >= len(rest) {
				return false
			}
		}
	}
	return true
}

// compareSets compares two sets of records in the order of section 8.2: by type, then by data as
// bytes; the first difference decides, and of two sets with a common beginning the longer one is
// later. All are of class IN.
func compareSets(a, b []record) int {
	order := func(a, b record) int {
		return cmp.Or(cmp.Compare(a.typ, b.typ), strings.Compare(a.data, b.data))
	}
	sorted := func(list []record) []record { return slices.SortedFunc(slices.Values(list), order) }
	return slices.CompareFunc(sorted(a), sorted(b), order)
}
