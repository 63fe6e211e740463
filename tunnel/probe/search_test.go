package probe

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// simulate runs a search for some seconds on a path that passes packets up to a limit.
func simulate(s Search, now *time.Time, seconds, limit int, each func(Search)) Search {
	for range seconds {
		if size := s.Next(*now); size > 0 {
			s = s.Sent(size, *now)
			if size <= limit {
				s = s.Answered(size)
			}
		}
		*now = now.Add(time.Second)
		s = s.Elapsed(*now, probePatience, true)
		if each != nil {
			each(s)
		}
	}
	return s
}

func TestSearchFindsTheLargestSizeThatPasses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		bound := rapid.IntRange(LeastMTU, 9000).Draw(t, "bound")
		limit := rapid.IntRange(LeastMTU, 9100).Draw(t, "limit")
		s := simulate(Search{}.Bounded(bound, 0), &now, 120, limit, nil)
		if want := min(bound, limit); s.MTU() > want || s.MTU() <= want-searchStep {
			t.Fatalf("of %d bytes that pass, with a bound of %d, it uses %d", limit, bound, s.MTU())
		}
		// Less passes from now on: that is seen within the time of two confirmations.
		limit = rapid.IntRange(LeastMTU, limit).Draw(t, "less")
		s = simulate(s, &now, 14, limit, nil)
		if s.MTU() > limit {
			t.Fatalf("14 s after only %d bytes pass it uses %d", limit, s.MTU())
		}
		s = simulate(s, &now, 120, limit, func(s Search) {
			if s.MTU() > limit {
				t.Fatalf("%d bytes are used while %d pass", s.MTU(), limit)
			}
		})
		if want := min(bound, limit); s.MTU() <= want-searchStep {
			t.Fatalf("of %d bytes that pass, with a bound of %d, it uses %d", limit, bound, s.MTU())
		}
		// All sizes pass again, which is tried after a while; the size that is used meanwhile passes.
		before := s.MTU()
		s = simulate(s, &now, int(searchAgain/time.Second)+120, bound, func(s Search) {
			if s.MTU() < before {
				t.Fatalf("it uses %d, which is less than the %d that passed", s.MTU(), before)
			}
		})
		if s.MTU() != bound {
			t.Fatalf("%d bytes pass again, and it uses %d", bound, s.MTU())
		}
	})
}

// A loss that passes, such as a way that changed for a moment, costs the size for a minute and not for ten. What goes on not to
// pass is tried less and less often.
func TestSizesThatWereLostAreTriedAgainSoonAndThenLessOften(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := simulate(Search{}.Bounded(1420, 0), &now, 60, 1420, nil)
	s = simulate(s, &now, 25, 1300, nil)
	if s.MTU() > 1300 {
		t.Fatalf("1300 bytes pass, and it uses %d", s.MTU())
	}
	began := now
	for s.MTU() < 1420 && now.Sub(began) < time.Hour {
		s = simulate(s, &now, 1, 1420, nil)
	}
	if took := now.Sub(began); took > time.Minute {
		t.Errorf("all sizes pass again, and are used after %v", took)
	}

	// It narrows for good.
	var tries []time.Duration
	last := time.Duration(0)
	began = now
	for now.Sub(began) < 2*time.Hour {
		if s.Next(now) == 1420 && s.floor > 0 && s.floor < 1420 && now.Sub(began)-last > 10*time.Second {
			tries = append(tries, now.Sub(began)-last)
			last = now.Sub(began)
		}
		s = simulate(s, &now, 1, 1300, func(s Search) {
			if now.Sub(began) > 20*time.Second && s.MTU() > 1300 {
				t.Fatalf("%d bytes are used while 1300 pass", s.MTU())
			}
		})
	}
	if n := len(tries); n < 14 || n > 20 {
		t.Errorf("within two hours it was tried %d times, after %v", n, tries)
	}
	if pause := tries[len(tries)-1]; pause < searchAgain || pause > searchAgain+time.Minute {
		t.Errorf("in the end it is tried each %v, want %v", pause, searchAgain)
	}
	for s.MTU() < 1420 && now.Sub(began) < 4*time.Hour {
		s = simulate(s, &now, 1, 1420, nil)
	}
	s = simulate(s, &now, 25, 1300, nil)
	began = now
	for s.MTU() < 1420 && now.Sub(began) < time.Hour {
		s = simulate(s, &now, 1, 1420, nil)
	}
	if took := now.Sub(began); took > time.Minute {
		t.Errorf("after it had passed again, the next loss costs the size for %v", took)
	}
}

func TestSearchConcludesNothingFromADeadPath(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := simulate(Search{}.Bounded(1420, 0), &now, 10, 1420, nil)
	for range 60 {
		if size := s.Next(now); size > 0 {
			s = s.Sent(size, now)
		}
		now = now.Add(time.Second)
		s = s.Elapsed(now, probePatience, false)
	}
	if s.MTU() != 1420 {
		t.Errorf("after a minute without any answer it uses %d, want 1420", s.MTU())
	}
}

// On a node whose processors are busy answers come late, or are read late.
func TestASizeWhoseProbesAreAnsweredLatePasses(t *testing.T) {
	t.Parallel()
	begin := func() (Search, time.Time) {
		now := time.Unix(0, 0)
		return simulate(Search{}.Bounded(1420, 0), &now, 10, 1420, nil), now
	}
	lose := func(s Search, now *time.Time, each func(Search) Search) Search {
		for range 2 * searchLoss {
			s = s.Sent(1420, *now)
			*now = now.Add(probePatience)
			s = each(s.Elapsed(*now, probePatience, true))
			*now = now.Add(probeSoon)
		}
		return s
	}
	s, now := begin()
	s = lose(s, &now, func(s Search) Search {
		s = s.Answered(1420)
		if s.MTU() != 1420 {
			t.Fatalf("each answer is late, and it uses %d", s.MTU())
		}
		return s
	})
	s = lose(s, &now, func(s Search) Search { return s })
	if s.MTU() == 1420 {
		t.Error("no probe is answered, and it uses that size")
	}
	if s = s.Answered(1400); s.MTU() >= 1400 {
		t.Error("an answer to a probe that was not sent counts")
	}
	if s = s.Answered(1420); s.MTU() != 1420 {
		t.Errorf("the last one is answered after all, and it uses %d", s.MTU())
	}
}

// For half a second no packet passes, and then all do.
func TestAWayThatFailsForAMomentKeepsItsSize(t *testing.T) {
	t.Parallel()
	for what, passes := range map[string]bool{"nothing passes for a moment": false, "small packets pass": true} {
		now := time.Unix(1000, 0)
		s := trackedTarget{Status: Status{Search: Search{}.Bounded(1420, 0)}}
		send := func(answered bool) {
			s.Path = s.Path.Sent(now)
			if answered {
				s.Path = s.Path.Answered(s.Path.Next()-1, now.Add(time.Millisecond))
			}
			if size := s.Search.Next(now); size > 0 {
				s.Search = s.Search.Sent(size, now)
			}
		}
		send(true)
		s.Search = s.Search.Answered(1420)
		now = now.Add(confirmEvery)
		for range searchLoss {
			send(passes)
			now = now.Add(probePatience - time.Millisecond)
			s.judge(now)
			now = now.Add(time.Millisecond)
			s.Path = s.Path.Sent(now).Answered(s.Path.Next(), now.Add(time.Millisecond))
			s.judge(now)
		}
		if keeps := s.Search.MTU() == 1420; keeps == passes {
			t.Errorf("%s: %d bytes are used", what, s.Search.MTU())
		}
	}
}

func TestAStallOfTheProcessLosesNoSize(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := simulate(Search{}.Bounded(1420, 0), &now, 10, 1420, nil)
	for range 2 * searchLoss {
		s = s.Sent(1420, now)
		due := now.Add(probePatience / 2)
		now = now.Add(time.Second)
		s = s.Stalled(due, now, probePatience).Elapsed(now, probePatience, true).Answered(1420)
	}
	if s.MTU() != 1420 {
		t.Errorf("this process stalls, and it uses %d", s.MTU())
	}
	for range searchLoss {
		s = s.Sent(1420, now)
		due := now.Add(probePatience * 2) // it was late before the stall
		now = now.Add(time.Second)
		s = s.Stalled(due, now, probePatience).Elapsed(now, probePatience, true)
	}
	if s.MTU() == 1420 {
		t.Error("its probes are lost, and it uses that size")
	}
}

func TestSearchReportsThatNotEvenTheLeastSizePasses(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	sent := 0
	s := simulate(Search{}.Bounded(1420, 0), &now, 20, 500, nil)
	if !s.Blocked() || !s.Narrow() || s.MTU() != LeastMTU {
		t.Errorf("blocked %v, narrow %v, MTU %d, want blocked, narrow and %d", s.Blocked(), s.Narrow(), s.MTU(), LeastMTU)
	}
	s = simulate(s, &now, 60, 500, func(s Search) {
		if s.sent.Equal(now.Add(-time.Second)) {
			sent++
		}
	})
	if sent > 12 {
		t.Errorf("%d large probes within a minute on a path that passes none", sent)
	}
	if s = simulate(s, &now, 60, 1400, nil); s.Blocked() || s.Narrow() || s.MTU() > 1400 || s.MTU() <= 1400-searchStep {
		t.Errorf("1400 bytes pass: blocked %v, MTU %d", s.Blocked(), s.MTU())
	}
}

func TestSearchBeginsAgainWithAnotherBound(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := simulate(Search{}.Bounded(1420, 0), &now, 60, 1300, nil)
	if s = s.Bounded(1420, 0); s.MTU() > 1300 {
		t.Errorf("the same bound made it forget that 1300 bytes pass: %d", s.MTU())
	}
	if s = s.Bounded(1412, 0); s.MTU() != 1412 {
		t.Errorf("with a bound of 1412 it begins with %d", s.MTU())
	}
	if got := (Search{}).Bounded(1420, 1333).MTU(); got != 1333 {
		t.Errorf("where 1333 bytes passed before it begins with %d", got)
	}
	if got := (Search{}).MTU(); got != 0 {
		t.Errorf("a search that knows nothing uses %d", got)
	}
}
