package notify_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/entente-dev/entente/internal/notify"
)

func TestAPauseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		began := time.Now()
		if !notify.Pause(ctx, time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("waited %s", time.Since(began))
		}
		if notify.Pause(ctx, time.Minute) || time.Since(began) != 90*time.Second {
			t.Errorf("waited until %s", time.Since(began))
		}
	})
}

func TestEachEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Second)
		defer cancel()
		n := 0
		notify.Each(ctx, time.Minute, func() { n++ })
		if n != 3 {
			t.Errorf("done %d times", n)
		}
	})
}
