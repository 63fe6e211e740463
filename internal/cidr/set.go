// Package cidr calculates with sets of addresses that are written as prefixes. It is pure
// and imports only the standard library.
package cidr

import (
	"math"
	"net"
	"net/netip"
	"slices"
)

// Set is a set of addresses: prefixes, masked and sorted, none inside another. Of makes one.
type Set []netip.Prefix

// Of returns the set of the addresses in prefixes; what is not valid is left out.
func Of(prefixes ...netip.Prefix) Set {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			sorted = append(sorted, p.Masked())
		}
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	var out Set
	for _, p := range sorted {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// Overlapping returns a prefix of the set that overlaps another one; not valid if none does.
func (s Set) Overlapping(p netip.Prefix) netip.Prefix {
	at := s.from(p.Addr())
	for _, i := range []int{at - 1, at} {
		if i >= 0 && i < len(s) && s[i].Overlaps(p) {
			return s[i]
		}
	}
	return netip.Prefix{}
}

// Overlaps reports whether the set and a prefix have an address in common.
func (s Set) Overlaps(p netip.Prefix) bool { return s.Overlapping(p).IsValid() }

// Contains reports whether an address is in the set.
func (s Set) Contains(a netip.Addr) bool {
	return a.IsValid() && s.Overlaps(netip.PrefixFrom(a, a.BitLen()))
}

// Covers reports whether one prefix of the set holds all addresses of another.
func (s Set) Covers(p netip.Prefix) bool {
	q := s.Overlapping(p)
	return q.IsValid() && q.Bits() <= p.Bits()
}

// With returns the set with more prefixes.
func (s Set) With(more ...netip.Prefix) Set {
	missing := slices.DeleteFunc(slices.Clone(more), func(p netip.Prefix) bool { return !p.IsValid() || s.Covers(p) })
	if len(missing) == 0 {
		return s
	}
	return Of(slices.Concat(s, missing)...)
}

// Joined returns as few prefixes as hold the same addresses.
func (s Set) Joined() Set {
	var out Set
	for _, p := range s {
		for n := len(out); n > 0 && out[n-1].Bits() == p.Bits() && p.Bits() > 0; n = len(out) {
			whole := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
			if out[n-1].Addr() != whole.Addr() || out[n-1].Addr().BitLen() != p.Addr().BitLen() {
				break
			}
			out, p = out[:n-1], whole
		}
		out = append(out, p)
	}
	return out
}

// Except returns prefixes that hold the addresses of the set, but for those in longer ones of
// others, which are sorted: as routes go, the longer prefix wins.
func (s Set) Except(others []netip.Prefix) Set {
	var out Set
	for _, p := range s {
		var holes []netip.Prefix
		for i := Set(others).from(p.Addr()); i < len(others) && p.Contains(others[i].Addr()); i++ {
			if others[i].Bits() > p.Bits() {
				holes = append(holes, others[i])
			}
		}
		out = Of(holes...).AppendFree(out, p)
	}
	return out
}

// AppendFree appends the parts of a prefix that are not in the set, sorted and as large as
// they can be.
func (s Set) AppendFree(out []netip.Prefix, p netip.Prefix) []netip.Prefix {
	// Of what overlaps p, one prefix holds it, or all begin in it.
	from := s.from(p.Addr())
	if from > 0 && s[from-1].Overlaps(p) {
		return out
	}
	to := from
	for to < len(s) && p.Contains(s[to].Addr()) {
		to++
	}
	switch {
	case from == to:
		return append(out, p)
	case s[from].Bits() <= p.Bits():
		return out
	}
	lower, upper := Halves(p)
	return s[from:to].AppendFree(s[from:to].AppendFree(out, lower), upper)
}

// from is the index of the first prefix that begins at an address or after it.
func (s Set) from(a netip.Addr) int {
	at, _ := slices.BinarySearchFunc(s, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return at
}

// Cover reports whether a holds all addresses of b.
func Cover(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) }

// Halves returns the two halves of a prefix of more than one address.
func Halves(p netip.Prefix) (lower, upper netip.Prefix) {
	at := p.Addr().AsSlice()
	at[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	up, _ := netip.AddrFromSlice(at)
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(up, p.Bits()+1)
}

// Size returns how many addresses a prefix has, as far as a float64 is exact.
func Size(p netip.Prefix) float64 { return math.Exp2(float64(p.Addr().BitLen() - p.Bits())) }

// Remap moves an address from one prefix to another of the same family and length and keeps the host
// part. False if it is not inside from, or the two do not fit together.
func Remap(addr netip.Addr, from, to netip.Prefix) (netip.Addr, bool) {
	if !from.IsValid() || !to.IsValid() || !addr.IsValid() || addr.Zone() != "" ||
		from.Bits() != to.Bits() || from.Addr().BitLen() != to.Addr().BitLen() || !from.Contains(addr) {
		return netip.Addr{}, false
	}
	host, network := addr.AsSlice(), to.Masked().Addr().AsSlice()
	mask := net.CIDRMask(to.Bits(), to.Addr().BitLen())
	for i := range host {
		host[i] = host[i]&^mask[i] | network[i]
	}
	out, ok := netip.AddrFromSlice(host)
	return out, ok
}

// MayHaveFamily reports whether what has its addresses in these prefixes may have one of an address's family. Without
// prefixes nothing is known of it.
func MayHaveFamily(prefixes []netip.Prefix, addr netip.Addr) bool {
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() })
}
