package netpolicy

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/entente-dev/entente/internal/cidr"
)

// private is the addresses that are not on the Internet: their meaning differs in each cluster, or on each node.
// The last is an Internet address that serves the virtual machines of a cloud.
func private() cidr.Set {
	var out []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
		// Of IPv6 only 2000::/3 is on the Internet (public); in the last two prefixes here an IPv4 address is
		// embedded.
		"2001:db8::/32", "2001::/32", "2002::/16",
	} {
		out = append(out, netip.MustParsePrefix(text))
	}
	return cidr.Of(out...)
}

// global is the part of IPv6 that is on the Internet.
func global() netip.Prefix { return netip.MustParsePrefix("2000::/3") }

// public returns the part of a block that is on the Internet, as far as one prefix contains it.
func public(block netip.Prefix) (netip.Prefix, bool) {
	if block.Addr().Is6() {
		var some bool
		if block, some = meet(block, global()); !some {
			return block, false
		}
	}
	return block, !private().Covers(block)
}

// meet returns the intersection of two prefixes: one contains the other, or it is empty.
func meet(a, b netip.Prefix) (netip.Prefix, bool) {
	switch {
	case !a.Overlaps(b):
		return netip.Prefix{}, false
	case a.Bits() >= b.Bits():
		return a, true
	}
	return b, true
}

// Mapping is addresses of a consumer and their aliases here.
type Mapping struct{ Real, Alias netip.Prefix }

// remap returns the alias of a part of a mapping's addresses.
func (m Mapping) remap(p netip.Prefix) netip.Prefix {
	from, to := p.Masked().Addr().AsSlice(), m.Alias.Masked().Addr().AsSlice()
	for i := range from {
		mask := byte(0xff)
		switch bits := m.Alias.Bits() - 8*i; {
		case bits >= 8:
			mask = 0
		case bits > 0:
			mask >>= bits
		}
		to[i] |= from[i] & mask
	}
	a, _ := netip.AddrFromSlice(to)
	return netip.PrefixFrom(a, p.Bits())
}

// sound reports whether a mapping maps all of one prefix to all of another.
func (m Mapping) sound() bool {
	return m.Real.IsValid() && m.Alias.IsValid() && m.Real.Bits() == m.Alias.Bits() && m.Real.Addr().BitLen() == m.Alias.Addr().BitLen()
}

// single reports whether it maps one address.
func (m Mapping) single() bool { return m.Real.IsSingleIP() }

// translated returns the translation of a consumer's block: prefixes, and blocks with exceptions.
func translated(block netip.Prefix, except []netip.Prefix, mappings []Mapping) (whole []netip.Prefix, parts []networkingv1.IPBlock) {
	holes := cidr.Of(except...)
	for _, m := range mappings {
		piece, some := meet(block, m.Real)
		if !some || holes.Covers(piece) {
			continue
		}
		var gone []string
		for _, h := range holes {
			if piece.Contains(h.Addr()) {
				gone = append(gone, m.remap(h).String())
			}
		}
		if len(gone) == 0 {
			whole = append(whole, m.remap(piece))
			continue
		}
		parts = append(parts, networkingv1.IPBlock{CIDR: m.remap(piece).String(), Except: gone})
	}
	return whole, parts
}

// sameEverywhere returns the part of a block that means the same everywhere, without what is in closed.
func sameEverywhere(block netip.Prefix, except []netip.Prefix, closed cidr.Set) *networkingv1.IPBlock {
	block, some := public(block)
	if !some {
		return nil
	}
	holes := cidr.Of(slices.Concat(except, private(), closed)...)
	if holes.Covers(block) {
		return nil
	}
	out := &networkingv1.IPBlock{CIDR: block.String()}
	for _, h := range holes {
		if block.Contains(h.Addr()) {
			out.Except = append(out.Except, h.String())
		}
	}
	return out
}

// CountBlocks returns how many ranges of addresses a NetworkPolicy names.
func CountBlocks(spec *networkingv1.NetworkPolicySpec) (n int) {
	count := func(peers []networkingv1.NetworkPolicyPeer) {
		for i := range peers {
			if b := peers[i].IPBlock; b != nil {
				n += 1 + len(b.Except)
			}
		}
	}
	for i := range spec.Ingress {
		count(spec.Ingress[i].From)
	}
	for i := range spec.Egress {
		count(spec.Egress[i].To)
	}
	return n
}
