package plan

import (
	"crypto/sha256"
	"net"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// Remap moves an address from one prefix to another of the same family and
// length and keeps the host part: 10.200.3.7 from 10.200.0.0/16 to
// 10.241.0.0/16 is 10.241.3.7. The fabric does the same to packets. It returns false if
// the address is not inside from or the two prefixes do not fit together.
func Remap(addr netip.Addr, from, to netip.Prefix) (netip.Addr, bool) {
	return cidr.Remap(addr, from, to)
}

// prefixMask is the network mask, in network byte order.
func prefixMask(p netip.Prefix) []byte { return net.CIDRMask(p.Bits(), p.Addr().BitLen()) }

// Overlay returns the address of a node inside the tunnels. All nodes compute the
// same: an IPv6 unique local address (RFC 4193) whose first 64 bits come
// from the cluster ID (fd, then 56 bits of SHA-256 in place of the random
// global ID and the subnet) and whose last 64 bits come from both names.
func Overlay(clusterID, node string) netip.Addr {
	addr := overlayPrefix(clusterID).Addr().As16()
	sum := sha256.Sum256([]byte("entente overlay node\x00" + clusterID + "\x00" + node))
	copy(addr[8:], sum[:8])
	return netip.AddrFrom16(addr)
}

// overlayPrefix is the /64 of the overlay addresses of all nodes of a cluster.
// Addresses that a peer announces outside of its own are refused.
func overlayPrefix(clusterID string) netip.Prefix {
	sum := sha256.Sum256([]byte("entente overlay cluster\x00" + clusterID))
	var a [16]byte
	a[0] = 0xfd
	copy(a[1:8], sum[:7])
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// Aggregate returns at most most prefixes that cover all of prefixes, sorted, and how
// many are left uncovered because they cannot be widened. Few prefixes
// are returned unchanged. Otherwise those of a family are widened, by coverStep bits at a
// time, so that one more prefix seldom changes the others. A widened one overlaps none
// in avoid.
func Aggregate(prefixes []netip.Prefix, most int, avoid []netip.Prefix) (out []netip.Prefix, left int) {
	out = cidr.Of(prefixes...)
	for widen := coverStep; len(out) > most && widen <= coverMost; widen += coverStep {
		out = cidr.Of(widened(cidr.Of(prefixes...), widen, most/2, avoid)...)
	}
	if len(out) <= most {
		return out, 0
	}
	out = out[:most]
	for _, p := range prefixes {
		if !slices.ContainsFunc(out, func(q netip.Prefix) bool { return q.Overlaps(p) }) {
			left++
		}
	}
	return out, left
}

// widened returns prefixes widened by some bits where the result is valid and overlaps none in avoid;
// those of a family with few prefixes stay.
func widened(prefixes []netip.Prefix, widen, few int, avoid []netip.Prefix) []netip.Prefix {
	count := map[int]int{}
	for _, p := range prefixes {
		count[p.Addr().BitLen()]++
	}
	out := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		wide := netip.PrefixFrom(p.Addr(), max(p.Bits()-widen, 0)).Masked()
		if count[p.Addr().BitLen()] > few && checkPrefix(wide) == nil && !slices.ContainsFunc(avoid, wide.Overlaps) {
			p = wide
		}
		out = append(out, p)
	}
	return out
}

// After returns the first address after a prefix; it is invalid at the end of the address space.
func After(p netip.Prefix) netip.Addr {
	last := p.Masked().Addr().AsSlice()
	for i, m := range prefixMask(p) {
		last[i] |= ^m
	}
	addr, _ := netip.AddrFromSlice(last)
	return addr.Next()
}
