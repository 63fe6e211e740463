package firewall

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/entente-dev/entente/tunnel/plan"
)

// layoutFor is that of a node with some peers.
func layoutFor(t *testing.T, peers ...plan.Peer) plan.Layout {
	t.Helper()
	layout, err := plan.Plan(plan.Desired{
		ClusterID: "home", Node: "gw", Peers: peers, Nodes: []plan.Node{{Name: "gw", PublicKey: plan.PublicKey{1}, Gateway: true}},
	}, plan.Observed{})
	if err != nil {
		t.Fatal(err)
	}
	return layout
}

// refused is a layout that the kernel refuses: two peers have the same alias.
func refused(l plan.Layout) *plan.Layout {
	again := l.Translations[0]
	again.Cluster += "again"
	l.Translations = append(l.Translations, again)
	return &l
}

// While the table cannot be changed it is present as long as one drops what it does not open, and absent
// once somebody deleted it, or a part of it.
func TestATableThatCannotBeChangedIsPresentOnlyWhileItDrops(t *testing.T) {
	layout := layoutFor(t, peerNumber(1))
	damage := func(do func(*nftables.Conn)) func() error {
		return func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			do(c)
			return c.Flush()
		}
	}
	chain := func(name string) *nftables.Chain { return &nftables.Chain{Table: table(), Name: name} }
	for _, row := range []struct {
		what string
		do   func() error
		want Presence
	}{
		{"nothing", func() error { return nil }, Present},
		{"the rules of the peer deleted", damage(func(c *nftables.Conn) { c.FlushChain(chain("enter" + ipv4().peerSuffix("peer1"))) }), Present},
		{"the table deleted", Remove, Absent},
		{"all rules deleted", damage(func(c *nftables.Conn) { c.FlushTable(table()) }), Absent},
		{"the rules for packets from the tunnel deleted", damage(func(c *nftables.Conn) { c.FlushChain(chain("from-tunnel")) }), Absent},
		{"the chain for packets to the node deleted", damage(func(c *nftables.Conn) {
			c.FlushChain(chain("input"))
			c.DelChain(chain("input"))
		}), Absent},
	} {
		t.Run(row.what, func(t *testing.T) {
			err := alone(t, func() error {
				var w Table
				now := time.Unix(1700000000, 0)
				apply := func(l *plan.Layout) error {
					now = now.Add(time.Millisecond)
					_, err := w.Apply(now, l, "entente0", Ports{Probe: 7445, Relay: 7448})
					return err
				}
				if err := apply(refused(layout)); err == nil || w.Presence(now) != Absent {
					return fmt.Errorf("without a table it is %d, with the error: %w", w.Presence(now), err)
				}
				if err := apply(&layout); err != nil || w.Presence(now) != Present {
					return fmt.Errorf("after it was written it is %d: %w", w.Presence(now), err)
				}
				if err := row.do(); err != nil {
					return err
				}
				if err := apply(refused(layout)); err == nil || w.Presence(now) != row.want {
					t.Errorf("it is %d, want %d, with the error: %v", w.Presence(now), row.want, err)
				}
				if err := apply(&layout); err != nil || w.Presence(now) != Present {
					return fmt.Errorf("once it can be written it is %d: %w", w.Presence(now), err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A table that was written a moment ago and is gone is written again at once.
func TestATableThatIsGoneIsWrittenAtOnce(t *testing.T) {
	layout := layoutFor(t, peerNumber(1))
	err := alone(t, func() error {
		var w Table
		now := time.Unix(1700000000, 0)
		for i := range 3 {
			changed, err := w.Apply(now.Add(time.Duration(i)*time.Millisecond), &layout, "entente0", Ports{Probe: 7445, Relay: 7448})
			if err != nil || !changed {
				return fmt.Errorf("time %d: changed %v: %w", i, changed, err)
			}
			if err := Remove(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A table that cannot be read counts as it was read last, but not for long.
func TestATableThatCannotBeReadCountsAsAbsentInTheEnd(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	for _, drops := range []bool{true, false} {
		var w Table
		w.learn(now, drops)
		before, after := w.Presence(now.Add(unreadMost)), w.Presence(now.Add(unreadMost+1))
		if (before == Present) != drops || after != Absent {
			t.Errorf("a table that was there (%v) is %d, and after %v %d", drops, before, unreadMost, after)
		}
	}
	if got := (&Table{read: now}).Presence(now); got != Unknown {
		t.Errorf("a table that was never read is %d, want %d", got, Unknown)
	}
}
