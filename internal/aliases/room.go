package aliases

import (
	"math"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// room is what of the pool's prefixes of one family is free, and who may have it.
type room struct {
	// free is the free parts, as large as they can be, none inside another.
	free []netip.Prefix
	// left is how many addresses these have, of size in all.
	left, size float64
	// kept is how many of these other peers find in any case, and share the same of this
	// peer, which has mine in blocks.
	kept, share, mine float64
	// wholes is how many all peers' prefixes have.
	wholes float64
}

// newRoom returns the room of a family: what is in the pool and overlaps nothing that is
// busy.
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

// keep notes what others have: each of keptPeers finds its share, whatever it has of it by
// now.
func (r *room) keep(others []Space, six bool) {
	var lacks []float64 // what others with single addresses have less than their share
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

// takeWhole takes an alias for a prefix of so many bits.
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

// takeBlock takes a block, a smaller one where there is no room for a large one.
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

// take takes a prefix of so many bits from the smallest free part that has it, the lowest
// of several, so that small ones do not break up what large ones need.
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
