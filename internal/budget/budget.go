// Package budget divides a limited amount, such as bytes that etcd has to store,
// among users that are not trusted. It has no clock: each call takes the time.
package budget

import (
	"math"
	"time"
)

// Limits of a budget. All are in the same unit; rates are per second.
type Limits struct {
	// Burst is how much all users together can take at once, and Rate how much more
	// in the long run.
	Burst, Rate float64
	// UserBurst and UserRate are the same for one user.
	UserBurst, UserRate float64
}

// Most is the most that all users take in any time d, plus at most one take of each user
// and what is charged.
func (l Limits) Most(d time.Duration) float64 { return l.Burst + l.Rate*d.Seconds() }

// Budget is a leaky bucket that users share. A user may put more in only while it
// has less in it than UserBurst, and less than is free: users that take all they
// can always leave room for a later one. What drains is divided evenly among the
// users in the bucket, and what one of them does not need goes to the others. It
// is not safe for concurrent use.
type Budget[User comparable] struct {
	limits Limits
	last   time.Time
	level  map[User]float64
}

// New returns an unused budget.
func New[User comparable](l Limits) *Budget[User] {
	return &Budget[User]{limits: l, level: make(map[User]float64)}
}

// Take takes n for a user and returns 0, or takes nothing and returns what Wait does.
func (b *Budget[User]) Take(now time.Time, user User, n float64) (wait time.Duration) {
	if wait = b.Wait(now, user); wait == 0 {
		b.level[user] += n
	}
	return wait
}

// Wait returns about how long a user has to wait before it can take something.
func (b *Budget[User]) Wait(now time.Time, user User) time.Duration {
	free := b.drain(now)
	own := b.level[user]
	if own < min(free, b.limits.UserBurst) {
		return 0
	}
	// Its own level drains by its share until it is empty, and Rate becomes free.
	share := min(b.limits.UserRate, b.limits.Rate/max(float64(len(b.level)), 1))
	room := (own - free) / (b.limits.Rate + share)
	if room*share > own {
		room = -free / b.limits.Rate
	}
	seconds := max((own-b.limits.UserBurst)/share, room)
	return time.Duration(min(seconds*float64(time.Second), math.MaxInt64/4)) + time.Millisecond
}

// Charge takes n for a user even if it is not free, for what cannot wait. Takes of
// the same user wait for all of it, those of others for UserBurst at most: no user
// delays others by what it is charged.
func (b *Budget[User]) Charge(now time.Time, user User, n float64) {
	b.drain(now)
	b.level[user] += n
}

// drain drains the bucket until now, forgets users with nothing in it, and returns
// how much is free.
func (b *Budget[User]) drain(now time.Time) (free float64) {
	if now.After(b.last) || b.last.IsZero() {
		b.flow(now.Sub(b.last).Seconds())
		b.last = now
	}
	free = b.limits.Burst
	for _, level := range b.level {
		free -= min(level, b.limits.UserBurst)
	}
	return free
}

// flow drains what a number of seconds frees.
func (b *Budget[User]) flow(seconds float64) {
	can := make(map[User]float64, len(b.level))
	for user, level := range b.level {
		can[user] = min(level, b.limits.UserRate*seconds)
	}
	for out := b.limits.Rate * seconds; out > 0 && len(can) > 0; {
		share, rest := out/float64(len(can)), 0.0
		for user, most := range can {
			goes := min(share, most)
			rest += share - goes
			if can[user] -= goes; goes == most {
				delete(can, user)
			}
			if b.level[user] -= goes; b.level[user] <= 0 {
				delete(b.level, user)
			}
		}
		out = rest
	}
}

// Users returns how many users have something in the bucket.
func (b *Budget[User]) Users() int { return len(b.level) }
