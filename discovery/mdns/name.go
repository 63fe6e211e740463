package mdns

import (
	"strings"

	"github.com/miekg/dns"
)

// A name is a domain name in wire form, without compression: labels of any bytes, each after its
// length, up to the empty one. It has no escapes, so dots, spaces and UTF-8 in an instance's name
// need none (RFC 6762 section 16).
type name string

// maxName bounds a name (RFC 1035 section 3.1).
const maxName = 255

// join prepends labels to a name.
func join(n name, labels ...string) name {
	var b strings.Builder
	for _, l := range labels {
		b.WriteByte(byte(len(l)))
		b.WriteString(l)
	}
	return name(b.String()) + n
}

// first returns the first label, and the name after it.
func (n name) first() (string, name) {
	if len(n) == 0 || int(n[0]) >= len(n) {
		return "", ""
	}
	return string(n[1 : 1+n[0]]), n[1+n[0]:]
}

// fold returns a name with ASCII letters in lower case, in which equal names are equal (section
// 16). A label's length is never a letter.
func fold[S ~string](n S) S {
	var b []byte
	for i := range len(n) {
		if c := n[i]; c >= 'A' && c <= 'Z' {
			if b == nil {
				b = []byte(n)
			}
			b[i] = c + 'a' - 'A'
		}
	}
	if b == nil {
		return n
	}
	return S(b)
}

// unpackName reads the name at off, following compression, and returns where the next field begins.
// The codec refuses loops and invalid pointers.
func unpackName(b []byte, off int) (name, int, error) {
	s, next, err := dns.UnpackDomainName(b, off)
	if err != nil {
		return "", 0, err
	}
	var buf [maxName]byte
	n, err := dns.PackDomainName(s, buf[:], 0, nil, false)
	if err != nil {
		return "", 0, err
	}
	return name(buf[:n]), next, nil
}
