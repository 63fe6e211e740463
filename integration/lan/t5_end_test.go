package lan

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/e2e"
)

// TestNothingIsLeft uninstalls it all: it is the last test.
func TestNothingIsLeft(t *testing.T) {
	if os.Getenv("ENTENTE_MATRIX") == "" {
		t.Skip("a minute and a half: `make matrix` runs it, and e2e what an uninstall leaves of the rest")
	}
	ctx, s := onStage(t)
	ok(t, s.are(ctx, map[*e2e.Side]setting{s.rome(): member, s.milan(): member}))
	ok(t, s.are(ctx, nil))
	packets := s.recorded(ctx, t, func(context.Context) error {
		time.Sleep(3 * time.Second)
		return nil
	})
	if len(packets) > 0 {
		t.Errorf("packets of Multicast DNS after all is uninstalled: %q", packets)
	}
	for _, side := range s.World.Sides() {
		who, err := listens(ctx, side)
		ok(t, err)
		if len(who) > 0 {
			t.Errorf("what listens for Multicast DNS in %s: %q", side.Name, who)
		}
	}
	ok(t, s.World.NothingLeft(ctx, s.before, shop))
}
