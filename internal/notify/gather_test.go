package notify_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/entente-dev/entente/internal/notify"
)

func TestEventsAreGathered(t *testing.T) {
	t.Parallel()
	const pause, apart = 100 * time.Millisecond, 300 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := map[string][]time.Time{}
		changed := notify.Gather(pause, apart, func(key string) {
			mu.Lock()
			defer mu.Unlock()
			calls[key] = append(calls[key], time.Now())
		})
		began := time.Now()
		for range 1000 {
			changed("a")
			time.Sleep(time.Millisecond)
		}
		last := time.Now()
		changed("b")
		time.Sleep(apart)
		synctest.Wait()
		a, b := calls["a"], calls["b"]
		if len(a) < 3 || len(a) > 2+int(time.Second/apart) || a[0].Sub(began) != pause || len(b) != 1 || b[0].Sub(last) != pause {
			t.Fatalf("from %s on, events of a second are reported at %v, one after it at %v", began, a, b)
		}
		for i := range a[1:] {
			if a[i+1].Sub(a[i]) < apart {
				t.Errorf("events are reported at %v", a)
			}
		}
		if a[len(a)-1].Before(last.Add(-time.Millisecond)) {
			t.Errorf("the last report is at %s, the last event was at %s", a[len(a)-1], last)
		}
		time.Sleep(2 * apart)
		again := time.Now()
		changed("a")
		time.Sleep(pause)
		synctest.Wait()
		if a := calls["a"]; a[len(a)-1].Sub(again) != pause {
			t.Errorf("after a rest an event at %s is reported at %v", again, a)
		}
	})
}
