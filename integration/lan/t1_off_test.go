package lan

import (
	"context"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/e2e"
)

// TestWithoutDiscoveryNothingIsPublishedOnALAN installs the chart with its defaults, and then with
// discovery: the former neither sends nor receives Multicast DNS.
func TestWithoutDiscoveryNothingIsPublishedOnALAN(t *testing.T) {
	ctx, s := onStage(t)
	rome := s.rome()
	packets := s.recorded(ctx, t, func(ctx context.Context) error {
		if err := s.are(ctx, map[*e2e.Side]setting{rome: off}); err != nil {
			return err
		}
		if err := rome.AgentReady(ctx, e2e.Restarted); err != nil {
			return err
		}
		time.Sleep(3 * time.Second) // a first query comes after some 100 ms
		return nil
	})
	if len(packets) > 0 {
		t.Errorf("packets of Multicast DNS: %q", packets)
	}
	who, err := listens(ctx, rome)
	ok(t, err)
	if len(who) > 0 {
		t.Errorf("what listens for Multicast DNS: %q", who)
	}

	// What shows that this would have been seen.
	packets = s.recorded(ctx, t, func(ctx context.Context) error {
		if err := s.are(ctx, map[*e2e.Side]setting{rome: member}); err != nil {
			return err
		}
		return s.World.Until(ctx, atMost, "the node to listen", func(ctx context.Context) (string, error) {
			if who, err = listens(ctx, rome); err == nil && len(who) == 0 {
				return "nothing listens", nil
			}
			return "", err
		})
	})
	if len(packets) == 0 {
		t.Error("with discovery there are no packets of Multicast DNS either")
	}
	t.Logf("with discovery: %d packets, and there listens %q", len(packets), who)
}
