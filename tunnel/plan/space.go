package plan

import (
	"net/netip"
	"slices"
)

// space is a set of addresses: prefixes, sorted, none inside another.
type space []netip.Prefix

// overlap returns a prefix of the set that overlaps another one; not valid if none does.
func (s space) overlap(p netip.Prefix) netip.Prefix {
	at, _ := slices.BinarySearchFunc(s, p, func(e, p netip.Prefix) int { return e.Addr().Compare(p.Addr()) })
	for _, i := range []int{at - 1, at} {
		if i >= 0 && i < len(s) && s[i].Overlaps(p) {
			return s[i]
		}
	}
	return netip.Prefix{}
}

// contains says whether an address is in the set, covers whether all of a prefix is in one
// prefix of it.
func (s space) contains(a netip.Addr) bool {
	return a.IsValid() && s.overlap(netip.PrefixFrom(a, a.BitLen())).IsValid()
}

func (s space) covers(p netip.Prefix) bool {
	q := s.overlap(p)
	return q.IsValid() && q.Bits() <= p.Bits()
}

// with returns the set with more prefixes.
func (s space) with(more ...netip.Prefix) space {
	var missing []netip.Prefix
	for _, p := range more {
		if p.IsValid() && !s.covers(p) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return s
	}
	return minimal(slices.Concat(s, missing))
}

// joined returns as few prefixes as hold the same addresses, sorted.
func joined(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range minimal(prefixes) {
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
