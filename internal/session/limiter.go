package session

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter bounds, for each address and in all, how many connections come in a second and how many
// are in their handshake.
type limiter struct {
	mu     sync.Mutex
	busy   int
	byAddr map[netip.Prefix]*source
	// swept is when forget last ran.
	swept time.Time
	// rest counts addresses beyond maxAddresses as one.
	rest *source
	// warnings bounds the log lines that strangers can cause.
	warnings *rate.Limiter
}

func newLimiter() limiter {
	return limiter{byAddr: map[netip.Prefix]*source{}, rest: newSource(), warnings: rate.NewLimiter(warnRate, warnBurst)}
}

type source struct {
	rate *rate.Limiter
	busy int
}

func newSource() *source { return &source{rate: rate.NewLimiter(acceptRate, acceptBurst)} }

// admit reports whether a connection may begin its handshake. done has to be called when the
// handshake ended.
func (l *limiter) admit(addr net.Addr, now time.Time) (done func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.source(prefixOf(addr), now)
	if !s.rate.AllowN(now, 1) || l.busy >= maxHandshakes || s.busy >= maxHandshakesPerIP {
		return nil, false
	}
	l.busy++
	s.busy++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.busy--
		s.busy--
	}), true
}

func (l *limiter) source(p netip.Prefix, now time.Time) *source {
	if s := l.byAddr[p]; s != nil {
		return s
	}
	if len(l.byAddr) >= maxAddresses && now.Sub(l.swept) >= time.Second {
		l.swept = now
		l.forget(now)
	}
	if len(l.byAddr) >= maxAddresses {
		return l.rest
	}
	s := newSource()
	l.byAddr[p] = s
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
