// Package clock judges whether this node's clock can be relied on to end something for good. It has two witnesses:
// the clock of the API server, and how much time passed since the process began.
package clock

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Clock compares this node's clock with its witnesses. It is safe for concurrent use.
type Clock struct {
	// wall is this node's clock, and elapsed the time since the process began, which nobody sets.
	wall    func() time.Time
	elapsed func() time.Duration

	mu sync.Mutex
	// base is what the clock showed when nothing had elapsed.
	base time.Time
	// set is when the clock was first seen to differ from that; nil if it does not.
	set *time.Duration
	// served is the API server's time in the newest response, and servedAt when that arrived.
	served   time.Time
	servedAt time.Duration
}

// New returns the judge of this node's clock.
func New() *Clock {
	began := time.Now()
	return newClock(time.Now, func() time.Duration { return time.Since(began) })
}

func newClock(wall func() time.Time, elapsed func() time.Duration) *Clock {
	// Round removes the reading of the other clock, by which Sub would calculate.
	return &Clock{wall: wall, elapsed: elapsed, base: wall().Round(0).Add(-elapsed())}
}

// Wrap returns a transport to the API server that notes its time in each response.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper { return witness{c, next} }

type witness struct {
	clock *Clock
	next  http.RoundTripper
}

func (w witness) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	if err == nil {
		w.clock.note(resp.Header.Get("Date"))
	}
	return resp, err
}

// WrappedRoundTripper returns what is wrapped: client-go asks for it.
func (w witness) WrappedRoundTripper() http.RoundTripper { return w.next }

// note records a date of the API server. A malformed one is ignored.
func (c *Clock) note(date string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.judgeStep()
	if t, err := http.ParseTime(date); err == nil {
		c.served, c.servedAt = t, c.elapsed()
	}
}

// Doubt returns why this node's clock cannot be relied on; empty if it can.
func (c *Clock) Doubt() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	step := c.judgeStep()
	if !c.served.IsZero() {
		if ahead := c.wall().Round(0).Sub(c.served.Add(c.elapsed() - c.servedAt)); ahead.Abs() > maxApart {
			return fmt.Sprintf("this node's clock is %s the API server's: set both right, by NTP", apart(ahead))
		}
	}
	if step != 0 {
		return fmt.Sprintf("this node's clock was set, and is %s what it would show otherwise: if it stays so for %s, it counts as right", apart(step), settles)
	}
	return ""
}

// judgeStep returns by how much the clock was set, zero if it was not. A clock that stays as it was set counts as
// right: it may have been wrong before, or the machine was suspended.
func (c *Clock) judgeStep() time.Duration {
	now, elapsed := c.wall().Round(0), c.elapsed()
	step := now.Sub(c.base.Add(elapsed))
	switch {
	case step.Abs() <= maxApart:
		c.set = nil
		return 0
	case c.set == nil:
		c.set = &elapsed
	case elapsed-*c.set >= settles:
		c.base, c.set = now.Add(-elapsed), nil
		return 0
	}
	return step
}

// apart returns text for how far a clock is ahead of another.
func apart(ahead time.Duration) string {
	if ahead < 0 {
		return ahead.Abs().Round(time.Second).String() + " behind"
	}
	return ahead.Round(time.Second).String() + " ahead of"
}
