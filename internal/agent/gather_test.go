package agent

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestEventsOfPodsAreGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls, last := map[string]int{}, map[string]time.Time{}
		changed := gather(podsPause, func(contract string) {
			mu.Lock()
			defer mu.Unlock()
			calls[contract]++
			last[contract] = time.Now()
		})
		for range 1000 {
			changed("a")
			time.Sleep(time.Millisecond)
		}
		changed("b")
		event := time.Now()
		time.Sleep(2 * podsPause)
		mu.Lock()
		defer mu.Unlock()
		if most := int(time.Second/podsPause) + 1; calls["a"] > most || calls["a"] < most/2 || calls["b"] != 1 {
			t.Errorf("%v calls for 1000 events in a second and for one, want at most %d and 1", calls, most)
		}
		if last["a"].Before(event) || last["b"].Sub(event) > podsPause {
			t.Errorf("the last calls came at %v, the last events at %v", last, event)
		}
	})
}
