package probe

import (
	"testing"
	"time"
)

func TestAnswersAreCountedByTheirRoundTrip(t *testing.T) {
	now := time.Unix(1000, 0)
	var p Path
	for i := range uint64(20) {
		p = p.Sent(now)
		if i%2 == 0 {
			p = p.Answered(i, now.Add(3*time.Millisecond))
			p = p.Answered(i, now.Add(time.Second)) // of no probe any more
		}
		now = now.Add(time.Second)
	}
	times := p.Times()
	if p.Next() != 20 || times.Count() != 10 || times.Sum != 30*time.Millisecond {
		t.Errorf("%d probes, %d answers that took %v", p.Next(), times.Count(), times.Sum)
	}
	for i, n := range times.Counts {
		if want := uint64(0); n != want && (i != 4 || n != 10) {
			t.Errorf("%d took as long as bucket %d says", n, i)
		}
	}
	if n := len(times.Counts); n != len(TimeBounds())+1 || (Times{}).With(time.Hour).Counts[n-1] != 1 {
		t.Errorf("%d buckets of %d bounds", n, len(TimeBounds()))
	}
}
