package tunnel

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// Remap moves an address from one prefix to another of the same family and
// length and keeps the host part: 10.200.3.7 from 10.200.0.0/16 to
// 10.241.0.0/16 is 10.241.3.7. It is what the fabric does to packets. False if
// the address is not inside from or the two prefixes do not fit together.
func Remap(addr netip.Addr, from, to netip.Prefix) (netip.Addr, bool) {
	if !from.IsValid() || !to.IsValid() || !addr.IsValid() || addr.Zone() != "" ||
		from.Bits() != to.Bits() || from.Addr().BitLen() != to.Addr().BitLen() || !from.Contains(addr) {
		return netip.Addr{}, false
	}
	host, net := addr.AsSlice(), to.Masked().Addr().AsSlice()
	mask := prefixMask(to)
	for i := range host {
		host[i] = host[i]&^mask[i] | net[i]
	}
	out, ok := netip.AddrFromSlice(host)
	return out, ok
}

// prefixMask is the network mask, in network byte order.
func prefixMask(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// Overlay is the address of a node inside the tunnels, the same wherever it is
// computed: an IPv6 unique local address (RFC 4193) whose first 64 bits come
// from the cluster ID (fd, then 56 bits of SHA-256 in place of the random
// global ID and the subnet) and whose last 64 bits come from both names.
func Overlay(clusterID, node string) netip.Addr {
	net := OverlayPrefix(clusterID).Addr().As16()
	sum := sha256.Sum256([]byte("entente overlay node\x00" + clusterID + "\x00" + node))
	copy(net[8:], sum[:8])
	return netip.AddrFrom16(net)
}

// OverlayPrefix is the /64 that the overlay addresses of all nodes of a cluster
// are in. A peer is believed no address outside of its own.
func OverlayPrefix(clusterID string) netip.Prefix {
	sum := sha256.Sum256([]byte("entente overlay cluster\x00" + clusterID))
	var a [16]byte
	a[0] = 0xfd
	copy(a[1:8], sum[:7])
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// ErrNoRoom is returned by [Allocate] when the pool has no free prefix of the
// length that is wanted.
var ErrNoRoom = errors.New("no free prefix of that length in the pool")

// Allocate picks the alias for a prefix of a peer: the same prefix if it
// overlaps nothing in taken, else the first prefix of that length in the pool
// that overlaps nothing in taken. Equal input gives equal output, in whatever
// order taken is. taken must hold everything that the home cluster routes
// itself (pods, services, nodes) and all aliases already given away. A pool of
// the other family, or one smaller than the prefix, has no room.
func Allocate(taken []netip.Prefix, wanted, pool netip.Prefix) (netip.Prefix, error) {
	if !wanted.IsValid() || !pool.IsValid() {
		return netip.Prefix{}, fmt.Errorf("allocate alias for %v from %v: invalid prefix", wanted, pool)
	}
	wanted, pool = wanted.Masked(), pool.Masked()
	busy := make([]netip.Prefix, 0, len(taken))
	free := true
	for _, t := range taken {
		if !t.IsValid() {
			return netip.Prefix{}, fmt.Errorf("allocate alias for %v: invalid prefix among those taken", wanted)
		}
		t = t.Masked()
		free = free && !t.Overlaps(wanted)
		if t.Overlaps(pool) {
			busy = append(busy, t)
		}
	}
	if free {
		return wanted, nil
	}
	if wanted.Addr().BitLen() != pool.Addr().BitLen() || wanted.Bits() < pool.Bits() {
		return netip.Prefix{}, fmt.Errorf("allocate alias for %v from %v: %w", wanted, pool, ErrNoRoom)
	}
	slices.SortFunc(busy, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })

	// Walk the pool upwards; whatever is in the way moves the candidate past
	// its end. Sorted input makes one pass enough: a prefix that began earlier
	// and still covers the candidate is seen before those inside it.
	next := pool.Addr()
	for _, b := range busy {
		candidate := netip.PrefixFrom(next, wanted.Bits())
		if candidate.Overlaps(b) {
			var ok bool
			if next, ok = after(candidate, b); !ok {
				return netip.Prefix{}, fmt.Errorf("allocate alias for %v from %v: %w", wanted, pool, ErrNoRoom)
			}
		}
	}
	if !pool.Contains(next) {
		return netip.Prefix{}, fmt.Errorf("allocate alias for %v from %v: %w", wanted, pool, ErrNoRoom)
	}
	return netip.PrefixFrom(next, wanted.Bits()), nil
}

// after is the first address behind the larger of two overlapping prefixes;
// false at the end of the address space.
func after(a, b netip.Prefix) (netip.Addr, bool) {
	if b.Bits() < a.Bits() {
		a = b
	}
	width := a.Addr().BitLen()
	n := new(big.Int).SetBytes(a.Masked().Addr().AsSlice())
	n.Add(n, new(big.Int).Lsh(big.NewInt(1), uint(width-a.Bits())))
	if n.BitLen() > width {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(n.FillBytes(make([]byte, width/8)))
}

// minimal sorts prefixes and drops those inside another, as interval sets want
// them.
func minimal(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, comparePrefix)
	var out []netip.Prefix
	for _, p := range sorted {
		if n := len(out); n > 0 && out[n-1].Overlaps(p) {
			continue
		}
		out = append(out, p)
	}
	return out
}

// comparePrefix orders by family, address, then length, shortest first.
func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().BitLen() - b.Addr().BitLen(); c != 0 {
		return c
	}
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
