package tunnel

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// failover is two clusters of two gateways and a worker each. best carries the traffic of a.
type failover struct {
	*rig
	a, b        []*rigNode
	best, other *rigNode
}

func newFailover(t *testing.T) *failover {
	t.Helper()
	r := &failover{rig: newRig(t)}
	for i := range 3 {
		r.a, r.b = append(r.a, r.node("a", i+1, fmt.Sprintf("1%d", i+1))), append(r.b, r.node("b", i+1, fmt.Sprintf("2%d", i+1)))
	}
	r.a[2].worker, r.b[2].worker = true, true
	r.announce(r.a)
	r.announce(r.b)
	for _, n := range slices.Concat(r.a, r.b) {
		n.up()
	}
	r.best, r.other = r.a[0], r.a[1]
	if rank := func(n *rigNode) uint64 { return plan.Rank(clusterID("a"), clusterID("b"), n.name) }; rank(r.other) > rank(r.best) {
		r.best, r.other = r.other, r.best
	}
	return r
}

// announce sets on nodes what both clusters announced.
func (r *failover) announce(nodes []*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		own, other, local, remote := r.a, r.b, aliasOfA, aliasOfB
		if n.cluster == "b" {
			own, other, local, remote = r.b, r.a, aliasOfB, aliasOfA
		}
		p := peering(other[0], local, remote, openTo(n.podAddr))
		p.Gateways = nil
		for _, g := range other {
			if !g.worker {
				p.Gateways = append(p.Gateways, g.gateway())
			}
		}
		n.set(n.desired(own, p))
	}
}

// carries waits until a gateway carries the traffic of a's worker.
func (r *failover) carries(n *rigNode) {
	r.t.Helper()
	r.eventually(n.name+" to carry", func() error {
		for _, p := range r.a[2].fabric.seen().Peers {
			if p.Active && p.Node != n.name {
				return fmt.Errorf("%s carries", p.Node)
			}
			if p.Active {
				return nil
			}
		}
		return fmt.Errorf("none carries")
	})
}

// outage is what takes a gateway away, and gives it back.
type outage struct {
	// part is its name in TUNNEL_BENCH_PARTS.
	part, what string
	limit      time.Duration // the aim
	harm, heal func(n *rigNode)
}

func (r *failover) outages() []outage {
	link := func(state string) func(*rigNode) {
		return func(n *rigNode) { r.in("inet", "ip link set e"+n.name+" "+state) }
	}
	addresses := r.b[0].underlay.String() + ", " + r.b[1].underlay.String()
	return []outage{
		{"killed", "tunnel process killed", time.Second, func(n *rigNode) { n.wireguard.kill() }, (*rigNode).startWireGuard},
		{"node", "node cut off", 3 * time.Second, link("down"), link("up")},
		{"way", "way to the peer cut", 3 * time.Second, func(n *rigNode) {
			r.in(n.ns, "nft add table ip cut; nft 'add chain ip cut in { type filter hook input priority -200; }'; nft add rule ip cut in ip saddr { "+addresses+" } drop")
		}, func(n *rigNode) { r.in(n.ns, "nft delete table ip cut") }},
	}
}

// planned are the ways in which a gateway is taken away, and given back, while it works.
func (r *failover) planned() []outage {
	return []outage{
		{"ended", "both processes asked to end", 0, func(n *rigNode) {
			for _, p := range []*process{n.wireguard, n.fabric} {
				if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
					r.t.Fatal(err)
				}
			}
			<-n.fabric.done
			<-n.wireguard.done
		}, func(n *rigNode) {
			n.startWireGuard()
			n.startFabric()
			r.announce(slices.Concat(r.a, r.b)) // it has another key
		}},
		{"label", "label of the gateway taken", 0, r.labelled(true), r.labelled(false)},
	}
}

// labelled returns what makes a gateway a worker, or a gateway again. The peer receives that later.
func (r *failover) labelled(worker bool) func(*rigNode) {
	return func(n *rigNode) {
		n.worker = worker
		r.announce(r.a)
		time.Sleep(time.Second)
		r.announce(r.b)
	}
}

// chosenOutages are those that TUNNEL_BENCH_PARTS lists, and all if it is empty.
func chosenOutages(all []outage) []outage {
	list := os.Getenv("TUNNEL_BENCH_PARTS")
	return slices.DeleteFunc(all, func(o outage) bool { return list != "" && !slices.Contains(strings.Split(list, ","), o.part) })
}

// TestFailoverGaps takes the gateway that carries a peer's traffic away, ENTENTE_ROUNDS times in
// each way, and gives it back, under packets each 10 ms between pods on other nodes. It prints for
// how long nothing passed, and how many packets, one each pingEvery, a planned change lost, for docs/benchmarks.md:
// TUNNEL_BENCH=1 ENTENTE_ROUNDS=30 go test -run TestFailoverGaps -timeout 1h -v ./tunnel/
// TUNNEL_BENCH_PARTS=ended,label does that with these rows only: killed, node, way, ended, label.
func TestFailoverGaps(t *testing.T) {
	if os.Getenv("TUNNEL_BENCH") == "" {
		t.Skip("takes two minutes for each round; set TUNNEL_BENCH=1")
	}
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("ENTENTE_ROUNDS"), "5"))
	if err != nil {
		t.Fatal(err)
	}
	r := newFailover(t)
	r.gaps(t, chosenOutages(r.outages()), rounds)
	r.switches(t, chosenOutages(r.planned()), rounds)
}

// gaps prints for how long nothing passed when a gateway was lost.
func (r *failover) gaps(t *testing.T, all []outage, rounds int) {
	t.Helper()
	gaps, losses := make([][]time.Duration, len(all)), make([][]time.Duration, len(all))
	for range rounds {
		for i, o := range all {
			gap, back := r.gap(o)
			gaps[i], losses[i] = append(gaps[i], gap), append(losses[i], back)
		}
	}
	if len(all) == 0 {
		return
	}
	var table strings.Builder
	table.WriteString("| | aim | nothing passed for, median | most | when it came back, median | most |\n| --- | --- | --- | --- | --- | --- |\n")
	for i, o := range all {
		slices.Sort(gaps[i])
		slices.Sort(losses[i])
		half, last := len(gaps[i])/2, len(gaps[i])-1
		fmt.Fprintf(&table, "| %s | %v | %v | %v | %v | %v |\n", o.what, o.limit,
			gaps[i][half].Round(time.Millisecond), gaps[i][last].Round(time.Millisecond), losses[i][half].Round(time.Millisecond), losses[i][last].Round(time.Millisecond))
		if gaps[i][half] > 2*o.limit {
			t.Errorf("%s: nothing passed for %v at the median; the aim is %v", o.what, gaps[i][half], o.limit)
		}
	}
	t.Logf("%s, %d rounds\n%s", kernelRelease(), rounds, table.String())
}

// gap is for how long nothing passed when a gateway was lost, and when it came back.
func (r *failover) gap(o outage) (lost, back time.Duration) {
	r.t.Helper()
	r.carries(r.best)
	e := r.echoes(r.a[2].pod, remap(r.t, r.b[2].podAddr, aliasOfB))
	defer e.stop()
	flows := func() error {
		if lost, gap := e.since(time.Now().Add(-time.Second)); lost > 0 || gap > time.Second/2 {
			return fmt.Errorf("%d were lost in the last second", lost)
		}
		return nil
	}
	time.Sleep(5 * time.Second) // until the way is known to be in use
	r.eventually("traffic", flows)
	began := time.Now()
	o.harm(r.best)
	r.carries(r.other)
	r.eventually("traffic", flows)
	_, lost = e.since(began)
	healed := time.Now()
	o.heal(r.best)
	r.carries(r.best)
	r.eventually("traffic", flows)
	_, back = e.since(healed)
	return lost, back
}

// switches prints how many packets were lost when a gateway that works was taken away, and given back.
func (r *failover) switches(t *testing.T, all []outage, rounds int) {
	t.Helper()
	type count struct{ rounds, sent, lost, most int64 }
	counts := make([][2]count, len(all))
	for range rounds {
		for i, o := range all {
			for back, do := range []func(*rigNode){o.harm, o.heal} {
				sent, lost := r.losses(do, []*rigNode{r.other, r.best}[back])
				c := &counts[i][back]
				c.sent, c.lost, c.most = c.sent+sent, c.lost+lost, max(c.most, lost)
				if lost > 0 {
					c.rounds++
				}
			}
		}
	}
	if len(all) == 0 {
		return
	}
	var table strings.Builder
	table.WriteString("| planned | packets a second | sent | aim | lost | rounds with a loss | most lost in a round |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for i, o := range all {
		for back, c := range counts[i] {
			fmt.Fprintf(&table, "| %s%s | %.0f | %d | 0 | %d | %d of %d | %d |\n", o.what, []string{"", ", and it is back"}[back], time.Second.Seconds()/pingEvery.Seconds(),
				c.sent, c.lost, c.rounds, rounds, c.most)
		}
	}
	t.Logf("%s, %d rounds\n%s", kernelRelease(), rounds, table.String())
}

// losses is how many packets were sent, and lost, while the traffic moved to another gateway.
func (r *failover) losses(move func(*rigNode), to *rigNode) (sent, lost int64) {
	r.t.Helper()
	time.Sleep(5 * time.Second) // until the way is known to be in use
	_, stop := r.pings(r.a[2].pod, remap(r.t, r.b[2].podAddr, aliasOfB))
	time.Sleep(time.Second)
	move(r.best)
	r.carries(to)
	time.Sleep(3 * time.Second)
	return stop()
}
