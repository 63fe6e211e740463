package aliases

import (
	"math"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// room is the free part of the pool's prefixes of one family, and how much of it a peer may use.
type room struct {
	// free are the free prefixes, as large as possible, none inside another.
	free []netip.Prefix
	// left is how many addresses these have, size how many the pool has.
	left, size float64
	// kept is how many addresses are reserved for other peers, share how many for this
	// peer, which uses mine of them in blocks.
	kept, share, mine float64
	// wholes is how many addresses the aliases of all peers' prefixes have.
	wholes float64
}

// newRoom returns the room of a family: the parts of the pool that overlap no busy prefix.
func newRoom(pool, busy []netip.Prefix, six bool) *room {
	r := &room{}
	taken := cidr.Of(busy...)
	for _, p := range cidr.Of(pool...) {
		if p.Addr().Is6() != six {
			continue
		}
		r.size += cidr.Size(p)
		r.free = taken.AppendFree(r.free, p)
	}
	for _, p := range r.free {
		r.left += cidr.Size(p)
	}
	r.share = math.Floor(r.size / keptPart / keptPeers)
	return r
}

// keep reserves the shares of other peers, as far as they do not use them yet.
func (r *room) keep(others []Space, six bool) {
	var lacks []float64 // the unused parts of the shares of others with single addresses
	for _, o := range others {
		have := 0.0
		for _, p := range o.Blocks {
			if p.Addr().Is6() == six {
				have += cidr.Size(p)
			}
		}
		for _, p := range o.Prefixes {
			if p.Addr().Is6() == six {
				r.wholes += cidr.Size(p)
			}
		}
		if have > 0 {
			lacks = append(lacks, max(0, r.share-have))
		}
	}
	slices.Sort(lacks)
	for _, l := range lacks[max(0, len(lacks)-keptPeers+1):] {
		r.kept += l
	}
	r.kept += r.share * float64(max(0, keptPeers-1-len(lacks)))
}

// takeWhole allocates an alias for a prefix of bits bits.
func (r *room) takeWhole(bits, addrBits int) (netip.Prefix, bool) {
	size := math.Exp2(float64(addrBits - bits))
	if r.wholes+size > r.size/wholePart || r.left-size < r.kept+max(0, r.share-r.mine) {
		return netip.Prefix{}, false
	}
	p, ok := r.take(bits)
	if ok {
		r.wholes += size
	}
	return p, ok
}

// takeBlock allocates a block, a smaller one if there is no room for a large one.
func (r *room) takeBlock(addrBits, most int) (netip.Prefix, bool) {
	for host := blockBits; host >= 0; host -= 2 {
		size := math.Exp2(float64(host))
		if int(size) > most || r.left-size < r.kept && r.mine+size > r.share {
			continue
		}
		if p, ok := r.take(addrBits - host); ok {
			r.mine += size
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// take allocates a prefix of bits bits from the smallest free prefix with room for it, the lowest
// of several, so that small prefixes do not break up room for large ones.
func (r *room) take(bits int) (netip.Prefix, bool) {
	at := -1
	for i, p := range r.free {
		if p.Bits() <= bits && (at < 0 || p.Bits() > r.free[at].Bits()) {
			at = i
		}
	}
	if at < 0 {
		return netip.Prefix{}, false
	}
	p := r.free[at]
	var rest []netip.Prefix
	for p.Bits() < bits {
		lower, upper := cidr.Halves(p)
		p, rest = lower, append(rest, upper)
	}
	slices.Reverse(rest)
	r.free = slices.Replace(r.free, at, at+1, rest...)
	r.left -= cidr.Size(p)
	return p, true
}
