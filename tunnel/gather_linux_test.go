package tunnel

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAChangeThatMustNotWaitEndsTheWaitForOthers(t *testing.T) {
	gathers := func(t *testing.T, hurries bool) time.Duration {
		t.Helper()
		f := &Fabric{wake: make(chan struct{}, 1), rekey: newRekeying()}
		f.poke()
		time.AfterFunc(gatherFor/5, f.poke)
		time.AfterFunc(gatherFor/2, func() {
			if hurries {
				f.hurry()
			}
		})
		began := time.Now()
		f.gather(t.Context())
		return time.Since(began)
	}
	synctest.Test(t, func(t *testing.T) {
		if took := gathers(t, false); took != gatherFor {
			t.Errorf("changes were gathered for %v, want %v", took, gatherFor)
		}
		if took := gathers(t, true); took != gatherFor/2 {
			t.Errorf("with one that must not wait changes were gathered for %v, want %v", took, gatherFor/2)
		}
	})
}
