package middleware

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/peering"
)

// Limiter bounds, for each key, how many calls begin a second and how many run at once. It tracks
// MaxTracked keys: a key without calls and with a full bucket makes room for another.
type Limiter struct {
	rate  rate.Limit
	burst int
	calls int
	now   func() time.Time

	mu    sync.Mutex
	keys  map[string]*quota
	swept time.Time
}

type quota struct {
	bucket *rate.Limiter
	calls  int
	seen   time.Time
}

// NewLimiter returns a Limiter that admits, for each key, so many calls a second, after a
// burst, and so many at once.
func NewLimiter(perSecond float64, burst, calls int, now func() time.Time) *Limiter {
	return &Limiter{rate: rate.Limit(perSecond), burst: burst, calls: calls, now: now, keys: make(map[string]*quota)}
}

// Enter admits a call, or says when to try again. leave has to be called when
// the call is over.
func (l *Limiter) Enter(key string) (leave func(), err error) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.keys[key]
	if q == nil {
		if len(l.keys) >= MaxTracked && !l.makeRoom(now) {
			return nil, &peering.Error{Reason: peering.ReasonRateLimited, Message: "too many callers", RetryAfter: time.Second}
		}
		q = &quota{bucket: rate.NewLimiter(l.rate, l.burst)}
		l.keys[key] = q
	}
	q.seen = now
	if q.calls >= l.calls {
		return nil, &peering.Error{Reason: peering.ReasonTooManyCalls, Message: "too many calls at once", RetryAfter: time.Second}
	}
	if r := q.bucket.ReserveN(now, 1); r.DelayFrom(now) > 0 {
		wait := r.DelayFrom(now)
		r.CancelAt(now)
		return nil, &peering.Error{Reason: peering.ReasonRateLimited, Message: "too many calls a second", RetryAfter: max(wait, 100*time.Millisecond)}
	}
	q.calls++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		q.calls--
	}, nil
}

// makeRoom forgets keys without calls and with full buckets, and reports whether there is room.
// It scans them once a second at most, so that a flood of addresses costs little.
func (l *Limiter) makeRoom(now time.Time) bool {
	if now.Sub(l.swept) < time.Second {
		return false
	}
	l.swept = now
	refill := time.Duration(float64(l.burst) / float64(l.rate) * float64(time.Second))
	maps.DeleteFunc(l.keys, func(_ string, q *quota) bool { return q.calls == 0 && now.Sub(q.seen) >= refill })
	return len(l.keys) < MaxTracked
}

// AddressKey is the key of an address in limits: an IPv4 address, or the /64 of an
// IPv6 address, which is the least that one holder has (RFC 6177).
func AddressKey(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return "unknown"
	}
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}
