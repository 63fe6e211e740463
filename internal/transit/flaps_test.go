package transit

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

// An address that comes again counts after a pause, which doubles from the fourth time on, and is as any other after a
// while.
func TestAnAddressThatComesAgainCountsAfterAPauseThatDoubles(t *testing.T) {
	t.Parallel()
	o := Opening{"home", addr("10.0.0.9")}
	type step struct {
		after time.Duration
		open  bool
		// counts is when it counts from then on; negative if it does not.
		counts time.Duration
	}
	flaps := func(n int) (out []step) {
		for range n {
			out = append(out, step{time.Second, false, -1}, step{time.Second, true, -1})
		}
		return out
	}
	for what, steps := range map[string][]step{
		"it is new":                              {{0, true, 0}},
		"it stays":                               {{0, true, 0}, {time.Second, true, 0}},
		"it was taken back":                      {{0, true, 0}, {time.Second, false, -1}},
		"it comes again":                         {{0, true, 0}, {time.Second, false, -1}, {time.Second, true, flapPause}},
		"it comes again and stays":               {{0, true, 0}, {time.Second, false, -1}, {time.Second, true, flapPause}, {flapPause / 2, true, flapPause / 2}, {flapPause, true, 0}},
		"it comes again three times":             append(append([]step{{0, true, 0}}, flaps(2)...), step{time.Second, false, -1}, step{time.Second, true, flapPause}),
		"it comes again four times":              append(append([]step{{0, true, 0}}, flaps(3)...), step{time.Minute, false, -1}, step{time.Second, true, 2 * flapPause}),
		"it is taken back before it counts":      append(append([]step{{0, true, 0}}, flaps(4)...), step{time.Second, false, -1}, step{time.Second, true, 4 * flapPause}),
		"it comes again and again":               append(append([]step{{0, true, 0}}, flaps(40)...), step{time.Second, false, -1}, step{time.Second, true, flapPauseMost}),
		"it was taken back long ago":             {{0, true, 0}, {time.Second, false, -1}, {flapForget, true, 0}},
		"it was open for long":                   append(append([]step{{0, true, 0}}, flaps(5)...), step{flapForget, true, 0}, step{0, false, -1}, step{time.Second, true, flapPause}),
		"it was taken back again and again, ago": append(append([]step{{0, true, 0}}, flaps(5)...), step{0, false, -1}, step{flapForget, true, 0}),
	} {
		now, known := time.Unix(2e9, 0), map[Opening]Flap(nil)
		for i, s := range steps {
			now = now.Add(s.after)
			open := map[Opening]bool{}
			if s.open {
				open[o] = true
			}
			known = Damp(known, open, now)
			f := known[o]
			if i < len(steps)-1 && s.counts < 0 && s.open {
				continue // one of many
			}
			if s.counts < 0 {
				if f.Counts(now.Add(24 * time.Hour)) {
					t.Errorf("%s, step %d: it counts: %+v", what, i, f)
				}
				continue
			}
			if !f.Counts(now.Add(s.counts)) || s.counts > 0 && f.Counts(now.Add(s.counts-1)) {
				t.Errorf("%s, step %d: it does not count after %s: %+v", what, i, s.counts, f)
			}
			if due := Due(known, now); s.counts > 0 && !due.Equal(now.Add(s.counts)) || s.counts == 0 && !due.IsZero() {
				t.Errorf("%s, step %d: the next counts at %v", what, i, due)
			}
		}
	}
}

// However a peer flaps, an address begins to count at most so often; and what is known of it is bounded.
func TestAPeerThatFlapsHasFewAddressesBeginToCount(t *testing.T) {
	t.Parallel()
	now, known := time.Unix(2e9, 0), map[Opening]Flap(nil)
	o, began, counted := Opening{"home", addr("10.0.0.9")}, 0, false
	for range 8 * 3600 {
		open := map[Opening]bool{}
		if !counted { // it takes it back as soon as it counts
			open[o] = true
		}
		known = Damp(known, open, now)
		if counts := known[o].Counts(now); counts != counted {
			if counted = counts; counts {
				began++
			}
		}
		now = now.Add(time.Second)
	}
	if most := 8*6 + 8; began == 0 || began > most {
		t.Errorf("it began to count %d times in eight hours, want at most %d", began, most)
	}
	next := netip.MustParseAddr("10.0.0.0")
	for range 3 * maxTakenBack / peering.MaxDirect {
		open := map[Opening]bool{}
		for range peering.MaxDirect {
			next = next.Next()
			open[Opening{"home", next}] = true
		}
		known = Damp(known, open, now)
		now = now.Add(time.Second)
	}
	if len(known) > maxTakenBack+peering.MaxDirect {
		t.Errorf("%d openings are known, the limit is %d", len(known), maxTakenBack+peering.MaxDirect)
	}
	if !maps.Equal(Damp(known, nil, now), Damp(known, nil, now)) {
		t.Error("what is forgotten is not always the same")
	}
	if got := Damp(Damp(known, nil, now), nil, now.Add(flapForget)); len(got) > 0 {
		t.Errorf("after long %d are known", len(got))
	}
}
