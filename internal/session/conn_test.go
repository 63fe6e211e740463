package session

import (
	"testing"
	"time"
)

func TestBuffersAreKeptOnlyWhereMuchComes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	var c Conn
	for i, step := range []struct {
		pause time.Duration
		n     int
		want  bool
	}{
		{0, 9, true},
		{time.Millisecond, burstBytes - 9, true},
		{time.Millisecond, 1, false},
		{burstPause - 1, 1, false},
		{burstPause, 100, true},
		{burstPause, burstBytes + 1, false},
	} {
		now = now.Add(step.pause)
		if got := c.seldom(step.n, now); got != step.want {
			t.Errorf("step %d: %t", i, got)
		}
	}
}
