package session

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter bounds, for each address and in all, how many connections come in a second and how many
// are in their handshake.
type limiter struct {
	// known reports whether a trusted peer was last connected from an address.
	known func(netip.Prefix) bool

	mu sync.Mutex
	// open are the handshakes under way, the oldest first.
	open   []*handshake
	byAddr map[netip.Prefix]*source
	// swept is when forget last ran.
	swept time.Time
	// rest counts addresses beyond maxAddresses as one.
	rest *source
}

func newLimiter(known func(netip.Prefix) bool) *limiter {
	return &limiter{known: known, byAddr: map[netip.Prefix]*source{}, rest: newSource()}
}

type source struct {
	rate *rate.Limiter
	busy int
}

func newSource() *source { return &source{rate: rate.NewLimiter(acceptRate, acceptBurst)} }

// handshake is a connection in its handshake.
type handshake struct {
	l      *limiter
	source *source
	from   netip.Prefix
	// trusted means that it comes from where a trusted peer was last connected, or proved to be of a trusted peer.
	trusted bool
	// cut closes the connection.
	cut func()
}

// admit returns the handshake that a connection may begin, or nil. cut closes the connection: it is called to
// make room for another one. done has to be called when the handshake ended.
func (l *limiter) admit(addr net.Addr, now time.Time, cut func()) *handshake {
	from := prefixOf(addr)
	h := &handshake{l: l, from: from, trusted: l.known(from), cut: cut}
	l.mu.Lock()
	h.source = l.source(h, now)
	if !h.source.rate.AllowN(now, 1) || h.source.busy >= maxHandshakesPerIP {
		l.mu.Unlock()
		return nil
	}
	var victim *handshake
	if len(l.open) >= maxHandshakes {
		victim = l.victim()
		l.remove(victim)
	}
	l.open = append(l.open, h)
	h.source.busy++
	l.mu.Unlock()
	if victim != nil {
		victim.cut()
	}
	return h
}

// victim returns the handshake to cut for another one. Those of trusted peers stay as long as they are at
// most half of all. The caller holds the lock.
func (l *limiter) victim() *handshake {
	others := slices.DeleteFunc(slices.Clone(l.open), func(h *handshake) bool { return h.trusted })
	if len(others) < maxHandshakes/2 {
		others = l.open
	}
	return others[oldestOfBusiest(others, func(h *handshake) netip.Prefix { return h.from })]
}

// remove ends the counting of a handshake. The caller holds the lock.
func (l *limiter) remove(h *handshake) {
	if i := slices.Index(l.open, h); i >= 0 {
		l.open = slices.Delete(l.open, i, i+1)
		h.source.busy--
	}
}

// done records that the handshake ended.
func (h *handshake) done() {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	h.l.remove(h)
}

// trust records that it proved to be of a trusted peer.
func (h *handshake) trust() {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	h.trusted = true
}

// oldestOfBusiest returns the index of what is closed to make room: of the network that has most of all, and there of the
// address that has most, the first. So whoever has few keeps them, unless the others come from as many networks
// as there are places.
func oldestOfBusiest[T any](all []T, from func(T) netip.Prefix) (index int) {
	networks, addresses := map[netip.Prefix]int{}, map[netip.Prefix]int{}
	for _, x := range all {
		networks[networkOf(from(x))]++
		addresses[from(x)]++
	}
	most, mostOfAddress := 0, 0
	for i, x := range all {
		n, a := networks[networkOf(from(x))], addresses[from(x)]
		if n > most || n == most && a > mostOfAddress {
			index, most, mostOfAddress = i, n, a
		}
	}
	return index
}

// source returns the source of a handshake. The caller holds the lock.
func (l *limiter) source(h *handshake, now time.Time) *source {
	if s := l.byAddr[h.from]; s != nil {
		return s
	}
	if len(l.byAddr) >= maxAddresses && now.Sub(l.swept) >= time.Second {
		l.swept = now
		l.forget(now)
	}
	if len(l.byAddr) >= maxAddresses && !h.trusted {
		return l.rest
	}
	s := newSource()
	l.byAddr[h.from] = s
	return s
}

// forget drops addresses whose bucket is full again.
func (l *limiter) forget(now time.Time) {
	maps.DeleteFunc(l.byAddr, func(_ netip.Prefix, s *source) bool { return s.busy == 0 && s.rate.TokensAt(now) >= acceptBurst })
}

// prefixOf returns the source that an address counts as: an IPv4 address or an IPv6 /64.
func prefixOf(addr net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := ap.Addr().Unmap().WithZone(""), 64
	if ip.Is4() {
		bits = 32
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// networkOf returns the network of a source: the /24 of an IPv4 address, or the IPv6 /48.
func networkOf(p netip.Prefix) netip.Prefix {
	bits := 48
	if p.Addr().Is4() {
		bits = 24
	}
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}
