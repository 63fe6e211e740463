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

	"github.com/entente-dev/entente/tunnel/plan"
)

// outage is what takes a gateway away, and gives it back.
type outage struct {
	what       string
	limit      time.Duration // the aim
	harm, heal func(n *rigNode)
}

func outages(r *rig, peers []*rigNode) []outage {
	link := func(state string) func(*rigNode) {
		return func(n *rigNode) { r.in("inet", "ip link set e"+n.name+" "+state) }
	}
	var addresses []string
	for _, p := range peers {
		addresses = append(addresses, p.underlay.String())
	}
	return []outage{
		{"tunnel process killed", time.Second, func(n *rigNode) { n.wireguard.kill() }, (*rigNode).startWireGuard},
		{"node cut off", 3 * time.Second, link("down"), link("up")},
		{"way to the peer cut", 3 * time.Second, func(n *rigNode) {
			r.in(n.ns, "nft add table ip cut; nft 'add chain ip cut in { type filter hook input priority -200; }'; nft add rule ip cut in ip saddr { "+strings.Join(addresses, ", ")+" } drop")
		}, func(n *rigNode) { r.in(n.ns, "nft delete table ip cut") }},
	}
}

// TestFailoverGaps takes the gateway that carries a peer's traffic away, ENTENTE_ROUNDS times in
// each way, and gives it back, under packets each 10 ms between pods on other nodes. It prints for
// how long nothing passed, for docs/benchmarks.md:
// TUNNEL_BENCH=1 ENTENTE_ROUNDS=30 go test -run TestFailoverGaps -timeout 1h -v ./tunnel/
func TestFailoverGaps(t *testing.T) {
	if os.Getenv("TUNNEL_BENCH") == "" {
		t.Skip("takes a minute for each round; set TUNNEL_BENCH=1")
	}
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("ENTENTE_ROUNDS"), "5"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	var a, b []*rigNode
	for i := range 3 {
		a, b = append(a, r.node("a", i+1, fmt.Sprintf("1%d", i+1))), append(b, r.node("b", i+1, fmt.Sprintf("2%d", i+1)))
	}
	a[2].worker, b[2].worker = true, true
	for _, n := range slices.Concat(a, b) {
		own, other, local, remote := a, b, aliasOfA, aliasOfB
		if n.cluster == "b" {
			own, other, local, remote = b, a, aliasOfB, aliasOfA
		}
		p := peering(other[0], local, remote, openTo(n.podAddr))
		p.Gateways = []plan.Gateway{other[0].gateway(), other[1].gateway()}
		n.set(n.desired(own, p))
	}
	for _, n := range slices.Concat(a, b) {
		n.up()
	}
	carries := func() string {
		for _, p := range a[2].fabric.seen().Peers {
			if p.Active {
				return p.Node
			}
		}
		return ""
	}
	best, other := a[0], a[1]
	if rank := func(n *rigNode) uint64 { return plan.Rank(clusterID("a"), clusterID("b"), n.name) }; rank(other) > rank(best) {
		best, other = other, best
	}
	wait := func(n *rigNode) {
		r.eventually(n.name+" to carry", func() error {
			if now := carries(); now != n.name {
				return fmt.Errorf("%s carries", now)
			}
			return nil
		})
	}
	all := outages(r, b[:2])
	gaps, losses := make([][]time.Duration, len(all)), make([][]time.Duration, len(all))
	for range rounds {
		for i, o := range all {
			wait(best)
			e := r.echoes(a[2].pod, remap(t, b[2].podAddr, aliasOfB))
			flows := func() error {
				if lost, gap := e.since(time.Now().Add(-time.Second)); lost > 0 || gap > time.Second/2 {
					return fmt.Errorf("%d were lost in the last second", lost)
				}
				return nil
			}
			time.Sleep(5 * time.Second) // until the way is known to be in use
			r.eventually("traffic", flows)
			began := time.Now()
			o.harm(best)
			wait(other)
			r.eventually("traffic", flows)
			_, gap := e.since(began)
			gaps[i] = append(gaps[i], gap)
			healed := time.Now()
			o.heal(best)
			wait(best)
			r.eventually("traffic", flows)
			_, gap = e.since(healed)
			losses[i] = append(losses[i], gap)
			e.stop()
		}
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
