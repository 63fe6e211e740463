package control

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

// carriedBy waits until both of a pair say that their session goes through a peer, directly where
// that is empty.
func carriedBy(ctx context.Context, p *pair, third string) error {
	return p.both(func(c *cluster) error {
		return eventually.Is(ctx, later, c.name+" to be connected through "+third, func(ctx context.Context) error {
			var fc v1alpha1.ForeignCluster
			if err := c.get(ctx, peerOf(c), &fc); err != nil {
				return err
			}
			if err := conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected); err != nil {
				return err
			}
			if s := fc.Status.Session; s == nil || s.Through != third {
				return fmt.Errorf("the session is %+v", s)
			}
			return nil
		})
	})
}

// Two agents that cannot dial each other keep their peering through a third cluster that allows
// it, and go back to the direct way.
func TestAPeeringContinuesThroughAThirdCluster(t *testing.T) {
	home, abroad := agents(t)
	third := another(t, "third")
	ctx := t.Context()
	if err := errors.Join(joined(ctx, home, abroad, abroadName), joined(ctx, home, third, "third"), joined(ctx, abroad, third, "third")); err != nil {
		t.Fatal(err)
	}
	// From now on both listen at addresses that are not announced.
	err := home.pair.both(func(c *cluster) error {
		elsewhere, err := freeAddresses(1)
		if err != nil {
			return err
		}
		c.flags = []string{"--peer-address=" + elsewhere[0]}
		return c.restart(ctx)
	})
	t.Cleanup(func() {
		if home.flags == nil && abroad.flags == nil {
			return
		}
		if err := home.pair.both(func(c *cluster) error {
			c.flags = nil
			c.kill() // and it is started where the pair is cleared up
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	err = home.pair.both(func(c *cluster) error {
		return eventually.Is(ctx, later, c.name+" to be cut off", func(ctx context.Context) error {
			var fc v1alpha1.ForeignCluster
			if err := c.get(ctx, peerOf(c), &fc); err != nil {
				return err
			}
			if conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected) == nil || fc.Status.Session != nil {
				return errors.New("it is connected")
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second) // the third one does not allow it
	var fc v1alpha1.ForeignCluster
	if err := home.get(ctx, abroadName, &fc); err != nil || fc.Status.Session != nil {
		t.Fatalf("without leave of the third cluster the session is %+v: %v", fc.Status.Session, err)
	}
	third.flags = []string{"--carry-for-peers=Peers"}
	if err := errors.Join(third.restart(ctx), carriedBy(ctx, home.pair, "third")); err != nil {
		t.Fatal(err)
	}
	// An offer that only a session brings.
	offerBy(t, abroad, func(p *v1alpha1.PeeringPolicySpec) { p.Price = costs("0.3") }, "cpu=4", "memory=8Gi", "pods=10")
	err = eventually.Is(ctx, later, "the offer to come through the third cluster", func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := home.get(ctx, abroadName, &fc); err != nil {
			return err
		}
		if o := fc.Status.Offer; o == nil || !o.Available || o.Resources.Cpu().String() != "4" {
			return fmt.Errorf("it is %+v", o)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	home.flags = nil
	if err := errors.Join(home.restart(ctx), carriedBy(ctx, home.pair, "")); err != nil {
		t.Fatal(err)
	}
}
