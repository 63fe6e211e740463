// Package aliases allocates addresses of this cluster's alias pool for the addresses
// of its peers. It is pure: values in, values out, and time is an argument.
//
// A prefix of a peer gets an alias of the same length if there is room for it. Otherwise it is known
// address by address: the peer names the addresses that flows
// may come from or go to, and each gets an alias out of blocks that belong to this peer alone.
// So routes and AllowedIPs have a few blocks for any number of addresses.
package aliases

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/entente-dev/entente/internal/cidr"
)

// Input is the input of [Plan] for one peer.
type Input struct {
	// Pool are the prefixes of the alias pool. Taken are those that this cluster uses itself, which no
	// alias may overlap.
	Pool, Taken []netip.Prefix
	// Avoid are prefixes that this cluster's nodes reach by other routes. No new alias is allocated
	// there; existing ones stay.
	Avoid []netip.Prefix
	// Resting are prefixes that other peers had until lately, and JustReleased the last of them. The former are avoided,
	// too, unless a prefix finds no other room, and the latter unless a single address finds none.
	Resting, JustReleased []netip.Prefix
	// Have is the current allocation of the peer, Others the space of each other peer.
	Have   Allocation
	Others []Space
	// Prefixes are those of the peer's pods, Addresses the single addresses that it names.
	Prefixes  []netip.Prefix
	Addresses []netip.Addr
	Now       time.Time
}

// Allocation are the aliases of one peer.
type Allocation struct {
	Prefixes []Alias
	Blocks   []Block
}

// Alias is the alias of a prefix, of the same length.
type Alias struct{ Prefix, Alias netip.Prefix }

// Block is a prefix of aliases of single addresses.
type Block struct {
	// Alias is the prefix.
	Alias netip.Prefix
	// Slots are the addresses to which each address of the prefix belongs, in order.
	Slots []Slot
}

// Slot is an alias of a single address.
type Slot struct {
	// Addr is the address of the peer; the zero Addr means that the alias is free.
	Addr netip.Addr
	// Released is since when the peer no longer names the address; zero while it does.
	Released time.Time
}

// Space is the part of the pool that one peer uses.
type Space struct{ Prefixes, Blocks []netip.Prefix }

// Space returns the part of the pool that is allocated.
func (g Allocation) Space() Space {
	var out Space
	for _, a := range g.Prefixes {
		out.Prefixes = append(out.Prefixes, a.Alias)
	}
	for _, b := range g.Blocks {
		out.Blocks = append(out.Blocks, b.Alias)
	}
	return out
}

// Of returns the alias of an address.
func (g Allocation) Of(a netip.Addr) (netip.Addr, bool) {
	for _, p := range g.Prefixes {
		if alias, ok := cidr.Remap(a, p.Prefix, p.Alias); ok {
			return alias, true
		}
	}
	for _, b := range g.Blocks {
		alias := b.Alias.Masked().Addr()
		for _, s := range b.Slots {
			if s.Addr == a && b.Alias.Contains(alias) {
				return alias, true
			}
			alias = alias.Next()
		}
	}
	return netip.Addr{}, false
}

// Result is the result of [Plan].
type Result struct {
	Allocation
	// ByAddress are the prefixes of the peer without an alias of their own. The addresses in them
	// that the peer names have aliases.
	ByAddress []netip.Prefix
	// Unallocated are the addresses that have no alias because there is no room.
	Unallocated []netip.Addr
	// Refused says which announced prefixes and addresses cannot have an alias at all, and why.
	Refused []string
}

// Plan returns the aliases of a peer. The peer keeps its aliases as long as they are in the pool
// and overlap nothing else: an alias never changes while its address is used. Equal input gives
// equal output, for any order of the lists.
func Plan(in Input) Result {
	out := planBeside(in, in.Resting)
	if len(in.Resting) > 0 && len(out.ByAddress)+len(out.Unallocated) > 0 {
		if again := planBeside(in, in.JustReleased); len(again.ByAddress) < len(out.ByAddress) || len(again.Unallocated) < len(out.Unallocated) {
			out = again
		}
	}
	if len(in.JustReleased) > 0 && len(out.Unallocated) > 0 {
		if again := planBeside(in, nil); len(again.Unallocated) < len(out.Unallocated) {
			out = again
		}
	}
	return out
}

// planBeside plans with some more prefixes that are avoided.
func planBeside(in Input, resting []netip.Prefix) Result {
	in.Avoid = slices.Concat(in.Avoid, resting)
	p := planner{in: in, rooms: map[bool]*room{}}
	prefixes := p.valid()
	p.keepExisting(prefixes)
	p.wholes(prefixes)
	p.addresses()
	slices.SortFunc(p.out.Prefixes, func(a, b Alias) int { return a.Prefix.Compare(b.Prefix) })
	slices.SortFunc(p.out.Blocks, func(a, b Block) int { return a.Alias.Compare(b.Alias) })
	return p.out
}

type planner struct {
	in    Input
	out   Result
	busy  cidr.Set       // prefixes of others
	rooms map[bool]*room // by whether IPv6, made when needed
	slots map[netip.Addr]*Slot
}

// room returns the room of a family. Most plans need only existing aliases, and
// no room.
func (p *planner) room(six bool) *room {
	if r := p.rooms[six]; r != nil {
		return r
	}
	own := p.out.Space()
	r := newRoom(p.in.Pool, slices.Concat(p.busy, p.in.Avoid, own.Prefixes, own.Blocks), six)
	r.keep(p.in.Others, six)
	for _, a := range own.Prefixes {
		if a.Addr().Is6() == six {
			r.wholes += cidr.Size(a)
		}
	}
	for _, b := range own.Blocks {
		if b.Addr().Is6() == six {
			r.mine += cidr.Size(b)
		}
	}
	p.rooms[six] = r
	return r
}

// valid returns the peer's prefixes, each once, without those that cannot have an alias.
func (p *planner) valid() []netip.Prefix {
	sorted := slices.Clone(p.in.Prefixes)
	slices.SortFunc(sorted, netip.Prefix.Compare)
	return slices.DeleteFunc(slices.Compact(sorted), func(q netip.Prefix) bool {
		if !q.IsValid() || q != q.Masked() {
			p.out.Refused = append(p.out.Refused, fmt.Sprintf("the peer announces %q, which is not a prefix", q))
			return true
		}
		return false
	})
}

// keepExisting keeps the existing aliases of the peer that are still valid: first prefixes, then blocks.
func (p *planner) keepExisting(prefixes []netip.Prefix) {
	p.busy = append(p.busy, p.in.Taken...)
	for _, o := range p.in.Others {
		p.busy = append(append(p.busy, o.Prefixes...), o.Blocks...)
	}
	p.busy = cidr.Of(p.busy...)
	var own []netip.Prefix
	keeps := func(alias netip.Prefix) bool {
		if !alias.IsValid() || alias != alias.Masked() || p.busy.Overlaps(alias) || slices.ContainsFunc(own, alias.Overlaps) ||
			!slices.ContainsFunc(p.in.Pool, func(q netip.Prefix) bool { return q.Bits() <= alias.Bits() && q.Overlaps(alias) }) {
			return false
		}
		own = append(own, alias)
		return true
	}
	for _, a := range p.in.Have.Prefixes {
		named := slices.Contains(prefixes, a.Prefix) && !slices.ContainsFunc(p.out.Prefixes, func(b Alias) bool { return b.Prefix == a.Prefix })
		if named && a.Alias.Bits() == a.Prefix.Bits() && a.Alias.Addr().BitLen() == a.Prefix.Addr().BitLen() && keeps(a.Alias) {
			p.out.Prefixes = append(p.out.Prefixes, a)
		}
	}
	for _, b := range p.in.Have.Blocks {
		host := b.Alias.Addr().BitLen() - b.Alias.Bits()
		if host > blockBits || len(p.out.Blocks) >= maxBlocks || len(b.Slots) != 1<<max(host, 0) || !keeps(b.Alias) {
			continue
		}
		p.out.Blocks = append(p.out.Blocks, Block{Alias: b.Alias, Slots: slices.Clone(b.Slots)})
	}
	p.slots = map[netip.Addr]*Slot{}
	for i := range p.out.Blocks {
		b := &p.out.Blocks[i]
		for j := range b.Slots {
			s := &b.Slots[j]
			if a := s.Addr; p.slots[a] != nil || !a.IsValid() || a.BitLen() != b.Alias.Addr().BitLen() {
				*s = Slot{} // free, or malformed
				continue
			}
			p.slots[s.Addr] = s
		}
	}
}

// wholes allocates aliases to prefixes without one. A prefix in which single addresses have
// aliases gets none: these would change.
func (p *planner) wholes(prefixes []netip.Prefix) {
	for _, q := range prefixes {
		if slices.ContainsFunc(p.out.Prefixes, func(a Alias) bool { return a.Prefix == q }) {
			continue
		}
		alias, ok := netip.Prefix{}, false
		if !p.isSplit(q) {
			alias, ok = p.room(q.Addr().Is6()).takeWhole(q.Bits(), q.Addr().BitLen())
		}
		if !ok {
			p.out.ByAddress = append(p.out.ByAddress, q)
			continue
		}
		p.out.Prefixes = append(p.out.Prefixes, Alias{Prefix: q, Alias: alias})
	}
}

func (p *planner) isSplit(q netip.Prefix) bool {
	for a := range p.slots {
		if q.Contains(a) {
			return true
		}
	}
	return false
}

// addresses allocates aliases to the addresses that the peer names outside of prefixes with an alias.
func (p *planner) addresses() {
	named := map[netip.Addr]bool{}
	for _, a := range p.in.Addresses {
		switch {
		case !Usable(a):
			p.out.Refused = append(p.out.Refused, fmt.Sprintf("the peer names %v, which is not the address of a host in a network", a))
		case !slices.ContainsFunc(p.out.Prefixes, func(b Alias) bool { return b.Prefix.Contains(a) }):
			named[a] = true
		}
	}
	var missing []netip.Addr
	for a := range named {
		if s := p.slots[a]; s != nil {
			s.Released = time.Time{}
		} else {
			missing = append(missing, a)
		}
	}
	slices.SortFunc(missing, netip.Addr.Compare)
	for a, s := range p.slots {
		switch {
		case named[a]:
		case s.Released.IsZero():
			s.Released = p.in.Now
		case p.in.Now.Sub(s.Released) >= quarantine:
			delete(p.slots, a)
			*s = Slot{}
		}
	}
	p.fill(missing)
	p.out.Blocks = slices.DeleteFunc(p.out.Blocks, func(b Block) bool {
		return !slices.ContainsFunc(b.Slots, func(s Slot) bool { return s.Addr.IsValid() })
	})
}

// fill allocates free slots to addresses: those of existing blocks, then of new ones, then
// those that were released the longest ago.
func (p *planner) fill(missing []netip.Addr) {
	free := map[bool][]*Slot{}
	add := func(b *Block) {
		for i := range b.Slots {
			if !b.Slots[i].Addr.IsValid() {
				six := b.Alias.Addr().Is6()
				free[six] = append(free[six], &b.Slots[i])
			}
		}
	}
	slices.SortFunc(p.out.Blocks, func(a, b Block) int { return a.Alias.Compare(b.Alias) })
	total := 0
	for i := range p.out.Blocks {
		total += len(p.out.Blocks[i].Slots)
		add(&p.out.Blocks[i])
	}
	var more []*Block
	released := p.released(shortQuarantine)
	for _, a := range missing {
		six := a.Is6()
		if len(free[six]) == 0 && len(p.out.Blocks)+len(more) < maxBlocks {
			if alias, ok := p.room(six).takeBlock(a.BitLen(), maxAddresses-total); ok {
				b := &Block{Alias: alias, Slots: make([]Slot, 1<<(a.BitLen()-alias.Bits()))}
				more, total = append(more, b), total+len(b.Slots)
				add(b)
			}
		}
		list := &free
		if len(free[six]) == 0 {
			list = &released
		}
		if len((*list)[six]) == 0 {
			p.out.Unallocated = append(p.out.Unallocated, a)
			continue
		}
		*(*list)[six][0] = Slot{Addr: a}
		(*list)[six] = (*list)[six][1:]
	}
	for _, b := range more {
		p.out.Blocks = append(p.out.Blocks, *b)
	}
}

// released returns the slots that were released at least least ago, by family, the longest
// ago first.
func (p *planner) released(least time.Duration) map[bool][]*Slot {
	out := map[bool][]*Slot{}
	for a, s := range p.slots {
		if !s.Released.IsZero() && p.in.Now.Sub(s.Released) >= least {
			out[a.Is6()] = append(out[a.Is6()], s)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b *Slot) int { return cmp.Or(a.Released.Compare(b.Released), a.Addr.Compare(b.Addr)) })
	}
	return out
}

// Usable reports whether an address can be that of a host in a network, which can have an alias.
func Usable(a netip.Addr) bool {
	if !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" {
		return false
	}
	first := a.AsSlice()[0]
	return !a.Is4() || first != 0 && first < 240 // 0.0.0.0/8 is "this network", 240.0.0.0/4 reserved
}
