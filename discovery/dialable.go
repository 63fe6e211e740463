package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// refusal is a range of addresses that must not be dialled, and a description of it.
type refusal struct {
	prefix netip.Prefix
	what   string
}

// refusals are the ranges that [Dialable] refuses. Not among them are:
//
//   - private addresses (RFC 1918, RFC 4193) and shared ones (RFC 6598): clusters of a
//     LAN or a VPN have them. Administrators of services there configure them as forbidden.
//   - documentation (RFC 5737, RFC 3849): nothing listens there, so refusing them
//     protects nothing, and labs use them.
func refusals() []refusal {
	return []refusal{
		{netip.MustParsePrefix("0.0.0.0/8"), "of this host (RFC 1122)"},
		{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
		{netip.MustParsePrefix("169.254.0.0/16"), "link-local, where clouds keep instance metadata"},
		{netip.MustParsePrefix("192.0.0.0/24"), "of IETF protocols, where a cloud keeps instance metadata (RFC 6890)"},
		{netip.MustParsePrefix("100.100.100.200/32"), "instance metadata of a cloud"},
		{netip.MustParsePrefix("168.63.129.16/32"), "the host agent of a cloud"},
		// Aliases of peers' pods are from this range: a connection there would reach the pod of
		// another peer. Otherwise it is for benchmarks.
		{netip.MustParsePrefix("198.18.0.0/15"), "of aliases and benchmarks (RFC 2544)"},
		{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
		{netip.MustParsePrefix("240.0.0.0/4"), "reserved or broadcast"},

		{netip.MustParsePrefix("::1/128"), "loopback"},
		{netip.MustParsePrefix("::/96"), "unspecified, or IPv4-compatible (RFC 4291)"},
		{netip.MustParsePrefix("fe80::/10"), "link-local"},
		{netip.MustParsePrefix("ff00::/8"), "multicast"},
		{netip.MustParsePrefix("fd00:ec2::/32"), "instance metadata of a cloud"},
		{netip.MustParsePrefix("fd20:ce::254/128"), "instance metadata of a cloud"},
	}
}

// Dialable returns why an address from a DNS answer must not be dialled: it leads to this host,
// this network segment or a cloud's metadata, which trust connections from here (server-side
// request forgery). forbidden are further prefixes that the caller reserves for itself, such as
// those of its API server and its Services.
//
// An IPv6 address that carries an IPv4 address (mapped, NAT64, SIIT, 6to4, Teredo,
// ISATAP) is refused for either.
//
// Dial exactly the address that was checked, never its name, which may have another address a
// moment later (DNS rebinding).
func Dialable(addr netip.Addr, forbidden ...netip.Prefix) error {
	if !addr.IsValid() {
		return errors.New("no address")
	}
	if addr.Zone() != "" {
		return fmt.Errorf("address %s has a zone, which has no meaning on other hosts", addr)
	}
	for _, a := range append([]netip.Addr{addr.Unmap()}, embedded(addr.Unmap())...) {
		inside := ""
		if a != addr {
			inside = fmt.Sprintf(" (inside %s)", addr)
		}
		for _, r := range refusals() {
			if r.prefix.Contains(a) {
				return fmt.Errorf("address %s%s is %s", a, inside, r.what)
			}
		}
		if i := slices.IndexFunc(forbidden, func(p netip.Prefix) bool { return unmapPrefix(p).Contains(a) }); i >= 0 {
			return fmt.Errorf("address %s%s is in %s, which is forbidden here", a, inside, forbidden[i])
		}
	}
	return nil
}

// DialableEndpoints returns those of endpoints, as ADDRESS:PORT, that [Dialable] does not
// refuse.
func DialableEndpoints(endpoints []string, forbidden ...netip.Prefix) []string {
	return slices.DeleteFunc(slices.Clone(endpoints), func(e string) bool {
		addr, err := netip.ParseAddrPort(e)
		return err != nil || Dialable(addr.Addr(), forbidden...) != nil
	})
}

// unmapPrefix returns the IPv4 prefix of an IPv4-mapped one.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// embedded returns the IPv4 addresses that translators and tunnels would extract from an IPv6
// address.
func embedded(addr netip.Addr) (list []netip.Addr) {
	if !addr.Is6() {
		return nil
	}
	b := addr.As16()
	v4 := func(a, b, c, d byte) { list = append(list, netip.AddrFrom4([4]byte{a, b, c, d})) }
	in := func(prefix string) bool { return netip.MustParsePrefix(prefix).Contains(addr) }
	switch {
	case in("64:ff9b::/96"), in("::ffff:0:0:0/96"): // NAT64 (RFC 6052), SIIT (RFC 2765)
		v4(b[12], b[13], b[14], b[15])
	case in("64:ff9b:1::/48"): // RFC 8215, with a prefix of any length of RFC 6052
		v4(b[12], b[13], b[14], b[15])
		v4(b[6], b[7], b[9], b[10])
		v4(b[7], b[9], b[10], b[11])
		v4(b[9], b[10], b[11], b[12])
	case in("2002::/16"): // 6to4 (RFC 3056)
		v4(b[2], b[3], b[4], b[5])
	case in("2001::/32"): // Teredo (RFC 4380): server, and client inverted
		v4(b[4], b[5], b[6], b[7])
		v4(^b[12], ^b[13], ^b[14], ^b[15])
	}
	// ISATAP (RFC 5214), below any prefix.
	if b[8]&^0x03 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		v4(b[12], b[13], b[14], b[15])
	}
	return list
}
