package lan

import (
	"context"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestNothingIsLeft uninstalls it all: it is the last test.
func TestNothingIsLeft(t *testing.T) {
	only.Matrix(t, "a minute and a half; e2e tries what an uninstall leaves of the rest")
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
