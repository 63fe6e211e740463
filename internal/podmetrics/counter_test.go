package podmetrics

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// slope is what metrics-server computes from two scrapes, in billionths of a core.
func slope(before, now counter) float64 {
	return (now.cpu - before.cpu) / now.last.time.Sub(before.last.time).Seconds()
}

// However windows overlap or leave gaps, two scrapes give the measured average, and the counter
// never falls.
func TestSlopeOfTheCounterIsWhatWasMeasured(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var c counter
		at := noon
		for range 50 {
			at = at.Add(time.Duration(1+r.IntN(60_000)) * time.Millisecond)
			s := sample{time: at, window: time.Duration(1_000+r.IntN(59_000)) * time.Millisecond, nanocores: r.Uint64N(4e12), memory: 1}
			before := c
			c = c.add(s)
			if c.cpu < before.cpu || !c.start.Before(c.last.time) {
				t.Fatalf("%+v after %+v: it fell or has no past", c, before)
			}
			if before.last.time.IsZero() {
				continue
			}
			if got, want := slope(before, c), float64(s.nanocores); math.Abs(got-want) > 1+want*1e-6 {
				t.Fatalf("two scrapes give %g nanocores, measured were %g", got, want)
			}
		}
	}
}

func TestASampleIsCountedOnce(t *testing.T) {
	t.Parallel()
	s := sample{time: noon, window: 15 * time.Second, nanocores: 250_000_000}
	first := counter{}.add(s)
	if got := first.seconds(); math.Abs(got-3.75) > 1e-5 || !first.start.Equal(noon.Add(-15*time.Second)) {
		t.Errorf("15 s of a quarter of a core are %g s since %s", got, first.start)
	}
	if again := first.add(s); again != first {
		t.Errorf("the same once more gives %+v, want %+v", again, first)
	}
	s.time, s.nanocores = noon.Add(-time.Second), 4e9
	if older := first.add(s); older != first {
		t.Errorf("an older one gives %+v, want %+v", older, first)
	}
}

// metrics-server drops all containers of a pod of which one has no CPU time or no memory.
func TestAnIdleContainerHasACounter(t *testing.T) {
	t.Parallel()
	c := counter{}.add(sample{time: noon, window: time.Second})
	if uint64(c.seconds()*1e9) == 0 {
		t.Error("it looks as if it was not measured")
	}
}

func TestTimesAreTranslatedWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	for name, skew := range map[string]time.Duration{"equal": 0, "the provider is ahead": 50 * time.Minute, "it is behind": -50 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := func(at time.Time, age time.Duration) peering.ContractMetrics {
				return peering.ContractMetrics{Time: at.Add(skew), Pods: []peering.PodMetrics{{
					UID: "u", Time: at.Add(skew - age), Window: 15 * time.Second, Containers: []peering.ContainerMetrics{{Name: "c", Nanocores: 7, Memory: 9}},
				}}}
			}
			var k clock
			k = k.set(noon.Add(20*time.Millisecond), answer(noon, 0).Time)
			first := k.samples(answer(noon, 10*time.Second))[container{"u", "c"}]
			if age := noon.Sub(first.time); age < 9*time.Second || age > 11*time.Second {
				t.Errorf("it is %s old, want 10 s", age)
			}
			// The way takes longer the next time, and the clock is set by a quarter of an hour after.
			k = k.set(noon.Add(15*time.Second+700*time.Millisecond), answer(noon.Add(15*time.Second), 0).Time)
			next := k.samples(answer(noon.Add(15*time.Second), 10*time.Second))[container{"u", "c"}]
			if between := next.time.Sub(first.time); between != 15*time.Second {
				t.Errorf("two samples are %s apart, want 15 s", between)
			}
			k = k.set(noon.Add(30*time.Second), noon.Add(30*time.Second+skew+15*time.Minute))
			stepped := answer(noon.Add(30*time.Second+15*time.Minute), 10*time.Second)
			if age := noon.Add(30 * time.Second).Sub(k.samples(stepped)[container{"u", "c"}].time); age < 9*time.Second || age > 11*time.Second {
				t.Errorf("after a step of the clock it is %s old, want 10 s", age)
			}
			if old := k.samples(answer(noon, maxAge+time.Second)); len(old) > 0 {
				t.Errorf("an old sample is shown: %v", old)
			}
			if early := k.samples(answer(noon, -2*clockSlack)); len(early) > 0 {
				t.Errorf("a sample later than the response is shown: %v", early)
			}
		})
	}
}

// FuzzCounter adds any samples of a provider to a counter.
func FuzzCounter(f *testing.F) {
	f.Add(int64(0), int64(15), uint64(1e9), int64(15), uint64(2e9))
	f.Add(int64(-1e9), int64(1), uint64(4096e9), int64(600), uint64(0))
	f.Fuzz(func(t *testing.T, at, window int64, nanocores uint64, step int64, more uint64) {
		const day = int64(24 * time.Hour / time.Second)
		at, window, step = at%day, min(max(window, 1), 600), step%day
		first := counter{}.add(sample{time: noon.Add(time.Duration(at) * time.Second), window: time.Duration(window) * time.Second, nanocores: nanocores % 4096e9})
		next := first.add(sample{time: first.last.time.Add(time.Duration(step) * time.Second), window: time.Second, nanocores: more % 4096e9})
		if next.cpu < first.cpu || math.IsInf(next.cpu, 0) || math.IsNaN(next.cpu) || next.last.time.Before(first.last.time) {
			t.Errorf("%+v became %+v", first, next)
		}
	})
}
