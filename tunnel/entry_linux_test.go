package tunnel

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// apart has no packet pass the networks between nodes, in both directions, until they are together
// again.
func (r *directRig) apart(from *rigNode, to ...*rigNode) {
	r.t.Helper()
	for _, n := range to {
		for _, pair := range [][2]*rigNode{{from, n}, {n, from}} {
			r.in(pair[0].ns, fmt.Sprintf("nft add table ip cut; nft 'add chain ip cut in { type filter hook input priority -200; }'; nft add rule ip cut in ip saddr %v drop", pair[1].underlay))
		}
	}
}

// together lets all packets pass the networks to some nodes again.
func (r *directRig) together(nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		r.in(n.ns, "nft add table ip cut; nft delete table ip cut")
	}
}

// enters reports whether packets for pods of a cluster go from a node to a gateway of that cluster.
func (n *rigNode) enters(at *rigNode) bool {
	return slices.ContainsFunc(n.fabric.seen().Peers, func(p PeerStatus) bool { return p.Cluster == clusterID(at.cluster) && p.Node == at.name && p.Entry })
}

func (r *directRig) wantEnters(from, at *rigNode, want bool) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("from %s enters at %s: %v", from.name, at.name, want), func() error {
		if from.enters(at) != want {
			return fmt.Errorf("it is not so: %+v\n%s", from.fabric.seen(), from.fabric.log())
		}
		return nil
	})
}

// wantTunnels wants that a packet of the echoes and its answer cross so many tunnels together: two, and one more
// for each time that a gateway forwards one of them.
func (r *directRig) wantTunnels(e *echoes, want int) {
	r.t.Helper()
	gateways := []*rigNode{r.a[0], r.b[0]}
	for _, n := range gateways {
		r.in(n.ns, "nft add table ip carried; nft 'add chain ip carried f { type filter hook forward priority 0; }'; nft add rule ip carried f udp sport 8080 counter; nft add rule ip carried f udp dport 8080 counter")
	}
	began := time.Now()
	time.Sleep(3 * time.Second)
	forwarded, sent := 0, 0
	ended := time.Now()
	for _, n := range gateways {
		for line := range strings.Lines(r.in(n.ns, "nft list table ip carried; nft delete table ip carried")) {
			if _, rest, ok := strings.Cut(line, "packets "); ok {
				var packets int
				_, _ = fmt.Sscan(rest, &packets)
				forwarded += packets
			}
		}
	}
	e.mu.Lock()
	for _, at := range e.sent {
		if at.After(began) && at.Before(ended) {
			sent++
		}
	}
	e.mu.Unlock()
	got := 2 + float64(forwarded)/float64(sent)
	r.t.Logf("a packet and its answer cross %.2f tunnels", got)
	if got < float64(want)-0.3 || got > float64(want)+0.3 {
		r.t.Errorf("a packet and its answer cross %.2f tunnels, want %d", got, want)
	}
}

// bothFamilies is the desired state of a node whose pods have IPv6 as well: fd77:1::/64 on the first node of each
// cluster, and so on, which is fd41 or fd42 in the other one.
func (r *directRig) bothFamilies(n *rigNode) plan.Desired {
	d := r.desired(n)
	at := func(group string, i int) netip.Prefix { return prefix(fmt.Sprintf("%s:%d::/64", group, i+1)) }
	for i := range d.Nodes {
		d.Nodes[i].PodCIDRs = append(d.Nodes[i].PodCIDRs, at("fd77", i))
		if d.Nodes[i].Name == n.name {
			d.Announced = append(d.Announced, at("fd77", i))
		}
	}
	q, local, remote := &d.Peers[0], "fd41", "fd42"
	if n.cluster == "b" {
		local, remote = remote, local
	}
	for i := range 2 {
		q.Local = append(q.Local, plan.Mapping{Real: at("fd77", i), Alias: at(local, i)})
		q.Remote = append(q.Remote, plan.Mapping{Real: at("fd77", i), Alias: at(remote, i)})
		q.Inbound = append(q.Inbound, openTo(address(fmt.Sprintf("fd77:%d::10", i+1))))
	}
	q.Gateways[0].Pods, q.Nodes[0].Pods = append(q.Gateways[0].Pods, at("fd77", 0)), append(q.Nodes[0].Pods, at("fd77", 1))
	return d
}

// TestWorkersApartNeedOneGatewayEachWay has traffic between pods on workers of two clusters that do
// not reach each other, but each other's gateways. Packets cross two tunnels each way, not three,
// and none is lost when they begin to, or when they go directly after all.
func TestWorkersApartNeedOneGatewayEachWay(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t)
	capture := r.capture("inet")
	gatewayA, gatewayB, a, b := r.a[0], r.b[0], r.a[1], r.b[1]
	r.apart(a, b)
	closed := r.start(b.pod, "server", []string{"TUNNEL_TEST_PORT=8081"})
	t.Cleanup(closed.kill)
	desired := func(n *rigNode) plan.Desired {
		d := r.bothFamilies(n)
		if n == b {
			var open []plan.Destination
			for _, at := range []netip.Addr{b.podAddr, address("fd77:2::10")} {
				open = append(open, plan.Destination{Addr: at, Protocol: plan.TCP, Port: 8080}, plan.Destination{Addr: at, Protocol: plan.UDP, Port: 8080}, plan.Destination{Addr: at, Protocol: plan.UDP, Port: 9})
			}
			d.Peers[0].Inbound = []plan.Exposure{{Name: "some", AnySource: true, Destinations: open}}
		}
		return d
	}
	r.in(a.ns, "nft add table inet entered; nft 'add chain inet entered post { type filter hook postrouting priority 400; }'; nft add rule inet entered post ip daddr 224.0.0.0/4 counter; nft add rule inet entered post ip6 daddr fb00::/8 counter")
	for _, n := range r.all() {
		n.set(desired(n))
	}
	for _, n := range r.all() {
		n.up()
	}
	bAsSeen, aAsSeen := remap(t, b.podAddr, directAliasOfB), remap(t, a.podAddr, directAliasOfA)
	r.wantSeen("through carriers", a.pod, "tcp", bAsSeen, 8080, aAsSeen.String())

	e := r.echoes(a.pod, bAsSeen)
	defer e.stop()
	began := time.Now()
	nothing := func(what string, do func()) {
		t.Run(what, func(t *testing.T) {
			r.t = t
			began := time.Now()
			do()
			if lost := e.lostUntilNow(began); lost > 0 {
				t.Errorf("%d packets were lost", lost)
			}
		})
	}
	checks := func() {
		for _, network := range []string{"tcp", "udp"} {
			r.wantSeen(network+" a to b", a.pod, network, bAsSeen, 8080, aAsSeen.String())
			r.wantSeen(network+" b to a", b.pod, network, aAsSeen, 8080, bAsSeen.String())
		}
		for _, network := range []string{"tcp6", "udp6"} {
			r.wantSeen(network+" a to b", a.pod, network, address("fd42:2::10"), 8080, "fd41:2::10")
			r.wantSeen(network+" b to a", b.pod, network, address("fd41:2::10"), 8080, "fd42:2::10")
			r.wantClosed("another port", a.pod, network, address("fd42:2::10"), 8081)
		}
		r.in(b.pod, "ping -c 3 -i 0.2 -W 1 "+aAsSeen.String()+"; ping -6 -c 3 -i 0.2 -W 1 fd41:2::10")
		for _, family := range []string{"ip daddr 224.0.0.0/4", "ip6 daddr fb00::/8"} {
			if out := r.in(a.ns, "nft list table inet entered"); strings.Contains(out, family+" counter packets 0 ") || !strings.Contains(out, family) {
				r.t.Errorf("packets to %s do not go to the gateway:\n%s", family, out)
			}
		}
		r.wantRefused("refused", a.pod, bAsSeen)
		r.wantSeen("from the node", a.ns, "tcp", bAsSeen, 8080, remap(t, a.bridge, directAliasOfA).String())
		r.wantClosed("another port", a.pod, "tcp", bAsSeen, 8081)
		r.wantClosed("another port", a.pod, "udp", bAsSeen, 8081)
		r.wantSeen("to the gateway's pod", a.pod, "tcp", remap(t, gatewayB.podAddr, directAliasOfB), 8080, aAsSeen.String())
	}
	r.wantEnters(a, gatewayB, true)
	r.wantEnters(b, gatewayA, true)
	t.Logf("past one gateway after %v of traffic", time.Since(began).Round(100*time.Millisecond))
	if lost := e.lostUntilNow(began); lost > 0 {
		t.Errorf("%d packets were lost when it came to be so", lost)
	}
	if a.direct(b) || b.direct(a) {
		t.Fatal("the workers reach each other")
	}
	nothing("packets cross two tunnels each way", func() {
		r.wantTunnels(e, 4)
		checks()
	})
	nothing("the fabric of a gateway dies and comes back", func() {
		gatewayB.fabric.kill()
		time.Sleep(3 * time.Second)
		r.wantTunnels(e, 4)
		gatewayB.startFabric()
		gatewayB.set(desired(gatewayB))
		gatewayB.up()
		time.Sleep(3 * time.Second)
		r.wantEnters(a, gatewayB, true)
		r.wantEnters(b, gatewayA, true)
		r.wantTunnels(e, 4)
	})
	bounded := func(what string, do func()) { r.bounded(e, what, do) }
	nothing("the workers come to reach each other", func() {
		r.together(a, b)
		began := time.Now()
		for time.Since(began) < 3*time.Minute && !(a.direct(b) && b.direct(a)) {
			time.Sleep(time.Second)
		}
		r.wantDirect(a, b, true)
		r.wantDirect(b, a, true)
		t.Logf("directly after %v", time.Since(began).Round(time.Second))
		r.wantTunnels(e, 2)
	})
	t.Run("and do not any more", func(t *testing.T) {
		r.t = t
		bounded("cut", func() {
			r.apart(a, b)
			r.wantDirect(a, b, false)
			r.wantDirect(b, a, false)
		})
		r.wantTunnels(e, 4)
		checks()
	})
	t.Run("the way to the peer's gateway is cut", func(t *testing.T) {
		r.t = t
		bounded("cut", func() {
			r.apart(a, gatewayB)
			r.wantEnters(a, gatewayB, false)
		})
		r.wantTunnels(e, 5) // the answers still need one gateway only
		healed := time.Now()
		r.together(gatewayB)
		r.in(a.ns, fmt.Sprintf("nft flush chain ip cut in; nft add rule ip cut in ip saddr %v drop", b.underlay))
		r.wantEnters(a, gatewayB, true)
		if lost := e.lostUntilNow(healed); lost > 0 {
			t.Errorf("%d packets were lost when it came to be so again", lost)
		}
		r.wantTunnels(e, 4)
	})
	nothing("the fabric of a worker dies and comes back", func() {
		a.fabric.kill()
		time.Sleep(3 * time.Second)
		a.startFabric()
		a.set(desired(a))
		a.up()
		r.wantEnters(a, gatewayB, true)
		r.wantTunnels(e, 4)
	})
	e.stop()
	if e.err != nil {
		t.Error(e.err)
	}
	r.wantNoClearPackets(capture())
}

// bounded does something that may keep echoes from passing for a moment.
func (r *directRig) bounded(e *echoes, what string, do func()) {
	r.t.Helper()
	began := time.Now()
	do()
	r.eventually("traffic", func() error {
		time.Sleep(300 * time.Millisecond)
		if lost, _ := e.since(time.Now().Add(-250 * time.Millisecond)); lost > 0 {
			return fmt.Errorf("%d were lost in the last quarter of a second", lost)
		}
		return nil
	})
	lost, gap := e.since(began)
	r.t.Logf("%s: %d packets of one each %v were lost, none passed for %v", what, lost, echoEvery, gap.Round(time.Millisecond))
	if gap > 5*time.Second {
		r.t.Errorf("none passed for %v", gap)
	}
}

// Where a cluster has two gateways packets enter it at the one that carries. When that is cut off both clusters'
// gateways carry within a second, and then packets enter at the other.
func TestWorkersApartFollowTheGatewayThatCarries(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t)
	second := r.node("b", 3, "23")
	r.b = append(r.b, second)
	a, b := r.a[1], r.b[1]
	r.apart(a, b)
	for _, n := range r.all() {
		d := r.desired(n)
		if n.cluster == "a" {
			g := second.gateway()
			g.Pods = []netip.Prefix{second.podCIDR}
			d.Peers[0].Gateways = append(d.Peers[0].Gateways, g)
		}
		n.set(d)
	}
	for _, n := range r.all() {
		n.up()
	}
	to := remap(t, b.podAddr, directAliasOfB)
	r.wantSeen("through carriers", a.pod, "tcp", to, 8080, remap(t, a.podAddr, directAliasOfA).String())
	e := r.echoes(a.pod, to)
	defer e.stop()
	more := r.echoes(a.pod, to) // so that one direction alone, which is all that a gateway carries later, is worth a tunnel
	defer more.stop()
	time.Sleep(2 * carrierStable) // until the better gateway carries, whichever was up first
	first, other := r.b[0], second
	r.eventually("packets enter", func() error {
		if a.enters(other) {
			first, other = other, first
		}
		if !a.enters(first) || !b.enters(r.a[0]) {
			return fmt.Errorf("they do not: %+v", a.fabric.seen())
		}
		return nil
	})
	r.bounded(e, "cut off", func() {
		r.in("inet", "ip link set e"+first.name+" down")
		time.Sleep(2 * time.Second)
	})
	began := time.Now()
	for time.Since(began) < 4*time.Minute && !a.enters(other) {
		time.Sleep(time.Second)
	}
	r.wantEnters(a, other, true)
	t.Logf("packets enter at the other after %v", time.Since(began).Round(time.Second))
	r.bounded(e, "back", func() {
		r.in("inet", "ip link set e"+first.name+" up")
		r.wantEnters(a, first, true)
	})
	r.wantSeen("in the end", a.pod, "tcp", to, 8080, remap(t, a.podAddr, directAliasOfA).String())
	e.stop()
	if e.err != nil {
		t.Error(e.err)
	}
}

// TestTunnelsInARow measures what two tunnels instead of three are worth between pods on workers that do
// not reach each other, in turns:
// TUNNEL_BENCH=1 go test -run TestTunnelsInARow -v ./tunnel/
func TestTunnelsInARow(t *testing.T) {
	if os.Getenv("TUNNEL_BENCH") == "" {
		t.Skip("takes three minutes; set TUNNEL_BENCH=1")
	}
	r := newDirectRig(t)
	gatewayA, gatewayB, a, b := r.a[0], r.b[0], r.a[1], r.b[1]
	r.apart(a, b)
	for _, n := range r.all() {
		n.set(r.desired(n))
	}
	for _, n := range r.all() {
		n.up()
	}
	server := r.start(b.pod, "traffic-server", nil)
	t.Cleanup(server.kill)
	to := remap(t, b.podAddr, directAliasOfB)
	e := r.echoes(a.pod, to) // so that there is something to decide on
	defer e.stop()
	measure := func(l traffic) trafficResult {
		l.To = to
		said, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		self, _ := os.Executable()
		cmd := r.command(a.pod, self)
		cmd.Env = append(os.Environ(), roleVariable+"=traffic-client", "TUNNEL_TEST_TRAFFIC="+string(said))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("measure: %v", err)
		}
		var result trafficResult
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatal(err)
		}
		return result
	}
	var streams, trips [2][]float64
	for range 5 {
		for i := range 2 {
			if i == 0 {
				r.apart(a, gatewayB)
				r.apart(b, gatewayA)
			} else {
				r.together(gatewayA, gatewayB)
				r.in(a.ns, fmt.Sprintf("nft flush chain ip cut in; nft add rule ip cut in ip saddr %v drop", b.underlay))
				r.in(b.ns, fmt.Sprintf("nft flush chain ip cut in; nft add rule ip cut in ip saddr %v drop", a.underlay))
			}
			r.wantEnters(a, gatewayB, i == 1)
			r.wantEnters(b, gatewayA, i == 1)
			stream := measure(traffic{Kind: trafficStream, For: 4 * time.Second, Streams: 1}).rate() * 8 / 1e6
			trip := measure(traffic{Kind: trafficRoundTrips, For: 3 * time.Second, Streams: 1, Size: 1})
			streams[i], trips[i] = append(streams[i], stream), append(trips[i], float64(trip.mean().Microseconds()))
			t.Logf("%d tunnels: %.0f Mbit/s, round trip %v", 3-i, stream, trip.mean().Round(time.Microsecond))
		}
	}
	middle := func(of []float64) float64 {
		slices.Sort(of)
		return of[len(of)/2]
	}
	t.Logf("medians: %.0f and %.0f Mbit/s, ratio %.2f; round trips of %.0f and %.0f µs, ratio %.2f", middle(streams[0]), middle(streams[1]), middle(streams[1])/middle(streams[0]),
		middle(trips[0]), middle(trips[1]), middle(trips[1])/middle(trips[0]))
}
