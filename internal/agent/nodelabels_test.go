package agent

import (
	"testing"
	"time"
)

func TestPeersStayAsFarAsTheyAreForAWhile(t *testing.T) {
	t.Parallel()
	var d distances
	start := time.Unix(0, 0)
	for i, step := range []struct {
		after, roundTrip time.Duration
		want             int
	}{
		{0, 0, 0},
		{time.Second, 3 * time.Millisecond, 5},
		{2 * time.Second, 80 * time.Millisecond, 5}, // a minute must pass
		{61 * time.Second, 5800 * time.Microsecond, 5},
		{62 * time.Second, 80 * time.Millisecond, 100},
		{63 * time.Second, time.Millisecond, 100},
		{200 * time.Second, 0, 100}, // it is away
		{201 * time.Second, 200 * time.Second, 10_000},
	} {
		if got := d.update("there", step.roundTrip, start.Add(step.after)); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	if got := d.update("third", 0, start); got != 0 {
		t.Errorf("an unknown peer is %d away", got)
	}
}
