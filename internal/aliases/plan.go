// Package aliases decides under which addresses of this cluster's alias pool it knows those
// of its peers. It is pure: values in, values out, and time is an argument.
//
// A prefix of a peer has an alias as long as itself where there is room for that. One that
// has none is known address by address: the peer names those of its addresses that flows
// may come from or go to, and each gets an alias out of blocks that are this peer's alone.
// So routes and the cipher's lists know a few blocks, however many addresses there are.
package aliases

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/entente-dev/entente/internal/cidr"
)

// Input is what decides about the aliases of one peer.
type Input struct {
	// Pool is where aliases come from. Taken is what this cluster uses itself, which no
	// alias may overlap.
	Pool, Taken []netip.Prefix
	// Avoid is what this cluster's nodes reach otherwise. No new alias is given there; one that
	// stands stays.
	Avoid []netip.Prefix
	// Have is what the peer has, Others what each other peer has.
	Have   Given
	Others []Space
	// Prefixes is what the peer's pods are in, Addresses those of its addresses that it
	// names one by one.
	Prefixes  []netip.Prefix
	Addresses []netip.Addr
	Now       time.Time
}

// Given is the aliases of one peer.
type Given struct {
	Prefixes []Alias
	Blocks   []Block
}

// Alias is what a prefix is known as: one of the same length.
type Alias struct{ Prefix, Alias netip.Prefix }

// Block is aliases of single addresses, which follow each other.
type Block struct {
	// Alias is the prefix that they fill.
	Alias netip.Prefix
	// Slots is what each address of it stands for, in their order.
	Slots []Slot
}

// Slot is an alias of a single address.
type Slot struct {
	// Addr is what it stands for; the zero Addr is nothing.
	Addr netip.Addr
	// Released is since when the peer does not name it any more; zero while it does.
	Released time.Time
}

// Space is what one peer has of the pool.
type Space struct{ Prefixes, Blocks []netip.Prefix }

// Space returns what of the pool is given.
func (g Given) Space() Space {
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
func (g Given) Of(a netip.Addr) (netip.Addr, bool) {
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

// Result is what is decided.
type Result struct {
	Given
	// ByAddress is the prefixes of the peer that have no alias of their own: those of
	// their addresses that it names have.
	ByAddress []netip.Prefix
	// Unnamed is the addresses that have no alias, for there is no room.
	Unnamed []netip.Addr
	// Refused is what of the peer's word cannot have an alias at all, and why.
	Refused []string
}

// Plan returns the aliases of a peer. What it has it keeps, as long as that is in the pool
// and nothing else is there: an alias never changes while its address is used. Equal input gives
// equal output, in whatever order lists are.
func Plan(in Input) Result {
	p := planner{in: in, rooms: map[bool]*room{}}
	prefixes := p.valid()
	p.standing(prefixes)
	p.wholes(prefixes)
	p.addresses()
	slices.SortFunc(p.out.Prefixes, func(a, b Alias) int { return a.Prefix.Compare(b.Prefix) })
	slices.SortFunc(p.out.Blocks, func(a, b Block) int { return a.Alias.Compare(b.Alias) })
	return p.out
}

type planner struct {
	in    Input
	out   Result
	busy  cidr.Set       // what others have
	rooms map[bool]*room // by whether IPv6, as far as they were asked for
	slots map[netip.Addr]*Slot
}

// room returns the room of a family. Most plans find all that they need in what stands, and
// ask for none.
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

// valid returns the peer's prefixes, each once, but for those that can have no alias.
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

// standing keeps what the peer has and can keep: first prefixes, then blocks.
func (p *planner) standing(prefixes []netip.Prefix) {
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
				*s = Slot{} // free, or what nobody here wrote
				continue
			}
			p.slots[s.Addr] = s
		}
	}
}

// wholes gives aliases to prefixes that have none. One of which single addresses have
// aliases stays so: they would change.
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

// addresses gives aliases to the addresses that the peer names and that no prefix covers.
func (p *planner) addresses() {
	wanted := map[netip.Addr]bool{}
	for _, a := range p.in.Addresses {
		switch {
		case !Usable(a):
			p.out.Refused = append(p.out.Refused, fmt.Sprintf("the peer names %v, which is not the address of a host in a network", a))
		case !slices.ContainsFunc(p.out.Prefixes, func(b Alias) bool { return b.Prefix.Contains(a) }):
			wanted[a] = true
		}
	}
	var missing []netip.Addr
	for a := range wanted {
		if s := p.slots[a]; s != nil {
			s.Released = time.Time{}
		} else {
			missing = append(missing, a)
		}
	}
	slices.SortFunc(missing, netip.Addr.Compare)
	for a, s := range p.slots {
		switch {
		case wanted[a]:
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

// fill gives free slots to addresses: those of blocks that are there, then of new ones, then
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
			p.out.Unnamed = append(p.out.Unnamed, a)
			continue
		}
		*(*list)[six][0] = Slot{Addr: a}
		(*list)[six] = (*list)[six][1:]
	}
	for _, b := range more {
		p.out.Blocks = append(p.out.Blocks, *b)
	}
}

// released returns the slots that have been released for so long, by family, the longest
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

// Usable says that an address can be that of a host in a network, which can have an alias.
func Usable(a netip.Addr) bool {
	if !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" {
		return false
	}
	first := a.AsSlice()[0]
	return !a.Is4() || first != 0 && first < 240 // 0.0.0.0/8 is "this network", 240.0.0.0/4 reserved
}
