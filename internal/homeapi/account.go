package homeapi

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/peering"
)

// account limits the connections and requests of one pod, or of all pods at one provider. Its
// owner's lock guards it.
type account struct {
	streams, maxStreams   int
	requests, maxRequests int
	opens, asks           *rate.Limiter
	// last is when its last connection ended.
	last time.Time
}

func accountOfPod() *account {
	return &account{
		maxStreams: maxStreamsOfPod, maxRequests: maxRequestsOfPod,
		opens: rate.NewLimiter(openRateOfPod, openBurstOfPod), asks: rate.NewLimiter(requestRateOfPod, requestBurstOfPod),
	}
}

func accountOfPeer() *account {
	return &account{
		maxStreams: maxStreamsOfPeer, maxRequests: maxRequestsOfPeer,
		opens: rate.NewLimiter(openRateOfPeer, openBurstOfPeer), asks: rate.NewLimiter(requestRateOfPeer, requestBurstOfPeer),
	}
}

// over reports whether the account can be removed.
func (a *account) over(now time.Time) bool {
	return a.streams == 0 && a.requests == 0 && now.Sub(a.last) > accountLife
}

// open counts a connection, unless that would be too many.
func (a *account) open(now time.Time) error {
	if a.streams >= a.maxStreams {
		return tooMany("has %d connections to its home's API open, the limit", a.maxStreams)
	}
	if !a.opens.AllowN(now, 1) {
		return tooMany("opens more than %v connections a second to its home's API", a.opens.Limit())
	}
	a.streams++
	return nil
}

func (a *account) close(now time.Time) {
	a.streams--
	a.last = now
}

// begin counts a request, unless that would be too many.
func (a *account) begin(now time.Time) error {
	if a.requests >= a.maxRequests {
		return tooMany("has %d requests to its home's API open, the limit", a.maxRequests)
	}
	if !a.asks.AllowN(now, 1) {
		return tooMany("sends more than %v requests a second to its home's API", a.asks.Limit())
	}
	a.requests++
	return nil
}

func (a *account) end() { a.requests-- }

func tooMany(format string, limit any) error {
	err := peering.Errorf(peering.ReasonTooManyCalls, "the pod, or its provider for all pods there, "+format, limit)
	err.RetryAfter = time.Second
	return err
}
