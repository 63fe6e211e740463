package session

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// bucket is a token bucket. It is full at its first use.
type bucket struct {
	tokens float64
	at     time.Time
}

// take says whether one more is within rate a second and burst at once.
func (b *bucket) take(now time.Time, rate, burst float64) bool {
	if b.at.IsZero() {
		b.tokens, b.at = burst, now
	}
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.tokens, b.at = min(burst, b.tokens+d*rate), now
	}
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// limiter bounds, for each address and over all, how many connections come in a
// second and how many are in their handshake.
type limiter struct {
	mu     sync.Mutex
	busy   int
	byAddr map[netip.Prefix]*source
	// swept is when forget last ran.
	swept time.Time
	// rest counts addresses beyond maxAddresses as one.
	rest source
	// warnings bounds the log lines that strangers can cause.
	warnings bucket
}

// mayWarn says whether a warning that a stranger causes may go to the log.
func (l *limiter) mayWarn(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.warnings.take(now, warnRate, warnBurst)
}

type source struct {
	rate bucket
	busy int
}

// admit says whether a connection may begin its handshake; done ends it.
func (l *limiter) admit(addr net.Addr, now time.Time) (done func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.source(prefixOf(addr), now)
	if !s.rate.take(now, acceptRate, acceptBurst) || l.busy >= maxHandshakes || s.busy >= maxHandshakesPerIP {
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
	if l.byAddr == nil {
		l.byAddr = map[netip.Prefix]*source{}
	}
	if len(l.byAddr) >= maxAddresses && now.Sub(l.swept) >= time.Second {
		l.swept = now
		l.forget(now)
	}
	if len(l.byAddr) >= maxAddresses {
		return &l.rest
	}
	s := &source{}
	l.byAddr[p] = s
	return s
}

// forget drops addresses whose bucket is full again: they count from anew.
func (l *limiter) forget(now time.Time) {
	for p, s := range l.byAddr {
		if s.busy == 0 && now.Sub(s.rate.at).Seconds()*acceptRate >= acceptBurst {
			delete(l.byAddr, p)
		}
	}
}

// prefixOf is what counts as one source: an IPv4 address or an IPv6 /64.
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
