package notify_test

import (
	"testing"

	"github.com/entente-dev/entente/internal/notify"
)

func TestManyNotificationsAreReceivedOnce(t *testing.T) {
	t.Parallel()
	c := notify.New()
	for range 3 {
		c.Notify()
	}
	<-c
	select {
	case <-c:
		t.Error("one notification was received twice")
	default:
	}
}
