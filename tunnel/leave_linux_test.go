package tunnel

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// TestAGatewayThatStopsHandsOver signals both processes of the gateway that carries the traffic to
// end, as a kubelet does, under packets between pods of workers, and counts what is lost.
func TestAGatewayThatStopsHandsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	var a, b []*rigNode
	for i := range 3 {
		a, b = append(a, r.node("a", i+1, fmt.Sprintf("1%d", i+1))), append(b, r.node("b", i+1, fmt.Sprintf("2%d", i+1)))
	}
	a[2].worker, b[2].worker = true, true
	desired := func(n *rigNode) plan.Desired {
		own, other, local, remote := a, b, aliasOfA, aliasOfB
		if n.cluster == "b" {
			own, other, local, remote = b, a, aliasOfB, aliasOfA
		}
		p := peering(other[0], local, remote, openTo(n.podAddr))
		p.Gateways = []plan.Gateway{other[0].gateway(), other[1].gateway()}
		return n.desired(own, p)
	}
	for _, n := range slices.Concat(a, b) {
		n.set(desired(n))
	}
	for _, n := range slices.Concat(a, b) {
		n.up()
	}
	best, other := a[0], a[1]
	if rank := func(n *rigNode) uint64 { return plan.Rank(clusterID("a"), clusterID("b"), n.name) }; rank(other) > rank(best) {
		best, other = other, best
	}
	carried := func(by *rigNode) func() error {
		return func() error {
			for _, p := range a[2].fabric.seen().Peers {
				if p.Active && p.Node == by.name {
					return nil
				}
			}
			return fmt.Errorf("%s does not carry", by.name)
		}
	}
	r.eventually("the best to carry", carried(best))
	time.Sleep(carrierListens)
	e := r.echoes(a[2].pod, remap(t, b[2].podAddr, aliasOfB))
	defer e.stop()
	time.Sleep(5 * time.Second)

	began := time.Now()
	for _, p := range []*process{best.wireguard, best.fabric} {
		if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	<-best.fabric.done
	<-best.wireguard.done
	t.Logf("both processes ended after %v", time.Since(began).Round(10*time.Millisecond))
	r.eventually("the other to carry", carried(other))
	time.Sleep(3 * time.Second)
	lost, gap := e.since(began)
	t.Logf("%d packets of %v lost, none passed for %v", lost, time.Since(began).Round(time.Second), gap.Round(time.Millisecond))
	// Nodes do not change gateways in the same instant, and accept packets from the one in use.
	if lost > 20 || gap > 300*time.Millisecond {
		t.Errorf("%d packets were lost, and none passed for %v", lost, gap)
	}
}

// TestAGatewayThatBecomesAWorkerHandsOver takes the label of the gateway that carries the traffic, under packets between
// pods of workers. Nodes of its cluster receive that at different moments, the peer a second later.
func TestAGatewayThatBecomesAWorkerHandsOver(t *testing.T) {
	t.Parallel()
	r := newFailover(t)
	others := slices.DeleteFunc(slices.Clone(r.a), func(n *rigNode) bool { return n == r.best })
	time.Sleep(carrierListens)
	e := r.echoes(r.a[2].pod, remap(t, r.b[2].podAddr, aliasOfB))
	defer e.stop()
	for _, tc := range []struct {
		name        string
		first, last []*rigNode
	}{
		{"all receive it at once", r.a, nil},
		{"it receives that first", []*rigNode{r.best}, others},
		{"it receives that last", others, []*rigNode{r.best}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.t = t
			r.carries(r.best)
			time.Sleep(5 * time.Second)
			began := time.Now()
			r.best.worker = true
			r.announce(tc.first)
			time.Sleep(500 * time.Millisecond)
			r.announce(tc.last)
			time.Sleep(time.Second)
			r.announce(r.b)
			r.carries(r.other)
			time.Sleep(2 * time.Second)
			lost, gap := e.since(began)
			t.Logf("%d packets of %v lost, none passed for %v", lost, time.Since(began).Round(time.Second), gap.Round(time.Millisecond))
			if lost > 20 || gap > 300*time.Millisecond {
				t.Errorf("%d packets were lost, and none passed for %v", lost, gap)
			}
			r.eventually("it has no tunnel to the peer left", func() error {
				for _, p := range r.best.fabric.seen().Peers {
					if p.Cluster == clusterID("b") {
						return fmt.Errorf("it has one to %s", p.Node)
					}
				}
				return nil
			})
			r.labelled(false)(r.best)
		})
	}
	r.t = t
}
