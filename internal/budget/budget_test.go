package budget_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/internal/budget"
)

// limits are such that each of three leaves the others, and a fourth, what is a
// user's.
func limits() budget.Limits {
	return budget.Limits{Burst: 5000, Rate: 10, UserBurst: 1000, UserRate: 10}
}

func epoch() time.Time { return time.Unix(1_000_000, 0) }

// fill takes as much as a user can.
func fill(b *budget.Budget[string], now time.Time, user string, n float64) (taken float64) {
	for b.Take(now, user, n) == 0 {
		taken += n
	}
	return taken
}

type take struct {
	at   time.Time
	user string
	n    float64
}

// Whoever takes what and when: in no time is more taken than the limits allow, and
// one more take of each user.
func TestLimitsHoldInEveryWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const users, most = 6, 200
		l := budget.Limits{
			Burst: rapid.Float64Range(1, 5000).Draw(t, "burst"), Rate: rapid.Float64Range(0.1, 50).Draw(t, "rate"),
			UserBurst: rapid.Float64Range(1, 5000).Draw(t, "user's burst"), UserRate: rapid.Float64Range(0.1, 50).Draw(t, "user's rate"),
		}
		b, now := budget.New[string](l), epoch()
		var takes []take
		for range rapid.IntRange(1, 120).Draw(t, "takes") {
			// Some clocks go back.
			now = now.Add(time.Duration(rapid.IntRange(-100, 20_000).Draw(t, "pause")) * time.Millisecond)
			x := take{at: now, user: fmt.Sprint(rapid.IntRange(1, users).Draw(t, "user")), n: rapid.Float64Range(1, most).Draw(t, "n")}
			if len(takes) > 0 && x.at.Before(takes[len(takes)-1].at) {
				x.at = takes[len(takes)-1].at
			}
			switch wait := b.Take(now, x.user, x.n); {
			case wait == 0:
				takes = append(takes, x)
			case wait < 0:
				t.Fatalf("it is to wait %s", wait)
			}
		}
		for i, first := range takes {
			all, each := 0.0, map[string]float64{}
			for _, x := range takes[i:] {
				all += x.n
				each[x.user] += x.n
				if d := x.at.Sub(first.at); all > l.Most(d)+users*most {
					t.Fatalf("%v were taken in %s of %+v", all, d, l)
				} else if mine := l.UserBurst + l.UserRate*d.Seconds() + most; each[x.user] > mine+0.001 {
					t.Fatalf("one took %v in %s of %+v", each[x.user], d, l)
				}
			}
		}
	})
}

// Three that take all they can, in whatever order and for however long, leave a fourth
// all that one user can have.
func TestThreeUsersLeaveAFourthItsShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const size = 20
		b, now := budget.New[string](limits()), epoch()
		for range rapid.IntRange(0, 100).Draw(t, "attempts") {
			fill(b, now, fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "who")), rapid.Float64Range(5, size).Draw(t, "size"))
			now = now.Add(time.Duration(rapid.IntRange(0, 60_000).Draw(t, "pause")) * time.Millisecond)
		}
		if got := fill(b, now, "honest", 1); got < limits().UserBurst-2*size {
			t.Fatalf("the fourth took %v", got)
		}
	})
}

// Three that take all they can and are charged as much as they like leave a fourth all
// that one user can have.
func TestAChargeDelaysItsUser(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, now := budget.New[string](limits()), epoch()
		for i := range 3 {
			fill(b, now, fmt.Sprint(i), 10)
			b.Charge(now, fmt.Sprint(i), rapid.Float64Range(0, 1e6).Draw(t, "charge"))
		}
		if got := fill(b, now, "honest", 1); got < limits().UserBurst-1 {
			t.Fatalf("the fourth took %v", got)
		}
	})
}

// However many users take all they can, a later one finds room, and then gets as much as
// each of them.
func TestManyUsersLeaveRoom(t *testing.T) {
	t.Parallel()
	const lasts = 900
	for _, many := range []int{1, 4, 16, 64} {
		b, now := budget.New[string](limits()), epoch()
		for range lasts {
			for i := range many {
				fill(b, now, fmt.Sprint(i), 2)
			}
			now = now.Add(time.Second)
		}
		got := fill(b, now, "honest", 1)
		if want := min(limits().UserBurst, limits().Burst/float64(2*(many+1))-float64(2*many)); got < want {
			t.Errorf("beside %d it took %v at once, want %v", many, got, want)
		}
		later := 0.0
		for range lasts {
			now = now.Add(time.Second)
			for i := range many {
				fill(b, now, fmt.Sprint(i), 2)
			}
			later += fill(b, now, "honest", 1)
		}
		if want := limits().Rate * lasts / float64(many+1); later < want*0.9 {
			t.Errorf("beside %d it took %v in a while, want %v", many, later, want)
		}
	}
}

// A user that waits as long as Wait returns, repeatedly, succeeds at the latest when
// everything taken has drained, if no other user takes more.
func TestAWaitEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, now := budget.New[string](limits()), epoch()
		taken := 0.0
		for i := range rapid.IntRange(0, 8).Draw(t, "others") {
			taken += fill(b, now, fmt.Sprint(i), rapid.Float64Range(10, 500).Draw(t, "size"))
		}
		taken += fill(b, now, "a", rapid.Float64Range(10, 500).Draw(t, "size"))
		end := now.Add(time.Duration(taken/limits().Rate)*time.Second + time.Second)
		for wait := b.Take(now, "a", 1); wait > 0; wait = b.Take(now, "a", 1) {
			if now = now.Add(wait); now.After(end) {
				t.Fatalf("it has to wait %s after all has drained", now.Sub(end))
			}
		}
	})
}

func TestUsageDrains(t *testing.T) {
	t.Parallel()
	l := limits()
	b, now := budget.New[string](l), epoch()
	first := fill(b, now, "a", 1)
	now = now.Add(time.Duration(l.UserBurst/l.UserRate) * time.Second)
	if again := fill(b, now, "a", 1); first < l.UserBurst || again < first {
		t.Errorf("at first it took %v and later %v", first, again)
	}
	b.Charge(now, "b", 2*l.Burst)
	if b.Take(now, "b", 1) == 0 {
		t.Error("one that was charged all there is may take more")
	}
	now = now.Add(time.Hour)
	if b.Take(now, "c", 1) > 0 || b.Users() != 1 {
		t.Errorf("%d users are remembered, want the one that takes", b.Users())
	}
}
