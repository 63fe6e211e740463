package tunnel

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTheSoonestComparisonThatIsAskedForComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Fabric{wake: make(chan struct{}, 1)}
		next := func() time.Duration {
			began := time.Now()
			<-f.wake
			return time.Since(began)
		}
		f.askAgain(time.Minute)
		f.askAgain(time.Second)
		f.askAgain(time.Hour)
		if got := next(); got != time.Second {
			t.Errorf("the next comparison comes after %v, want 1s", got)
		}
		f.askAgain(2 * time.Second)
		if got := next(); got != 2*time.Second {
			t.Errorf("the one after it comes after %v, want 2s", got)
		}
	})
}
