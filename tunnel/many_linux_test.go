package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/probe"
)

func TestPeersWithTheSameAliasesDoNotMixOrMeet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b, c := r.node("a", 1, "11"), r.node("b", 1, "12"), r.node("c", 1, "13")
	// B and C know A by the same alias, which is also A's alias for B.
	const same, aliasOfC = "10.250.0.0/16", "10.251.0.0/16"
	hub := a.desired([]*rigNode{a},
		peering(b, same, same, openTo(a.podAddr)),
		peering(c, same, aliasOfC, openTo(a.podAddr)))
	a.set(hub)
	b.set(b.desired([]*rigNode{b}, peering(a, same, same, openTo(b.podAddr))))
	c.set(c.desired([]*rigNode{c}, peering(a, aliasOfC, same, openTo(c.podAddr))))
	for _, n := range []*rigNode{a, b, c} {
		n.up()
	}
	aAsSeen := remap(t, a.podAddr, same)
	t.Run("each peer is seen under its own alias", func(t *testing.T) {
		r.t = t
		r.wantSeen("b to a", b.pod, "tcp", aAsSeen, 8080, remap(t, b.podAddr, same).String())
		r.wantSeen("c to a", c.pod, "tcp", aAsSeen, 8080, remap(t, c.podAddr, aliasOfC).String())
		r.wantSeen("a to b", a.pod, "tcp", remap(t, b.podAddr, same), 8080, aAsSeen.String())
		r.wantSeen("a to c", a.pod, "tcp", remap(t, c.podAddr, aliasOfC), 8080, aAsSeen.String())
	})

	// B turns hostile: no fabric, no firewall, and A's tunnel gets everything.
	b.fabric.kill()
	key := a.key().String()
	r.in(b.ns, fmt.Sprintf(`set -e
nft delete table inet entente
wg set %[1]s peer %[2]s allowed-ips 0.0.0.0/0,::/0
ip route add 10.251.0.0/16 dev %[1]s
ip route add 10.250.0.0/16 dev %[1]s
nft add table ip evil
nft 'add chain ip evil post { type filter hook postrouting priority 400; }'
nft flush table ip cni`, b.device, key))
	r.in(a.ns, fmt.Sprintf(`set -e
nft add table ip watch
nft 'add chain ip watch pre { type filter hook prerouting priority -400; }'
nft add rule ip watch pre iifname %[1]s ip saddr 10.250.0.0/16 counter comment own
nft add rule ip watch pre iifname %[1]s ip saddr 10.251.0.0/16 counter comment foreign`, a.device))
	sendAs := func(source string) {
		r.in(b.ns, "nft flush chain ip evil post; nft add rule ip evil post oifname "+b.device+" ip saddr 10.200.0.0/16 ip saddr set "+source)
	}
	count := func(what string) int {
		for line := range strings.Lines(r.in(a.ns, "nft list table ip watch")) {
			if strings.Contains(line, what) {
				n := 0
				_, _ = fmt.Sscanf(line[strings.Index(line, "packets"):], "packets %d", &n)
				return n
			}
		}
		return -1
	}
	t.Run("a peer that forges another's source is dropped by the cipher", func(t *testing.T) {
		r.t = t
		sendAs("10.250.1.10")
		_, _ = r.ask(b.pod, "udp", aAsSeen, 8080)
		if count("own") == 0 {
			t.Fatal("the control packet did not arrive")
		}
		before := count("foreign")
		sendAs("10.251.1.10")
		r.wantClosed("forged source", b.pod, "udp", aAsSeen, 8080)
		if after := count("foreign"); after != before {
			t.Errorf("%d forged packets came out of the tunnel", after-before)
		}
	})
	t.Run("a peer cannot pass through to another, nor use real addresses", func(t *testing.T) {
		r.t = t
		sendAs("10.250.1.10")
		before := count("own")
		r.wantClosed("b to c through a", b.pod, "udp", remap(t, c.podAddr, aliasOfC), 8080)
		r.in(b.ns, "ip route add 10.200.1.10/32 dev "+b.device+" table 99; ip rule add iif cni0 lookup 99 pref 50")
		r.wantClosed("b to the real address of a's pod", b.pod, "udp", a.bridge, 8080)
		r.wantClosed("b to a's node", b.pod, "udp", a.underlay, 8080)
		if count("own") == before {
			t.Error("none of the packets arrived, so nothing was tested")
		}
	})
}

func TestNodesReachPeersThroughTheirGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gateway, worker, b := r.node("a", 1, "11"), r.node("a", 2, "21"), r.node("b", 1, "12")
	worker.worker = true
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	nodes := []*rigNode{gateway, worker}
	open := openTo(worker.podAddr)
	workerAsSeen, bAsSeen := remap(t, worker.podAddr, aliasOfA), remap(t, b.podAddr, aliasOfB)
	gateway.set(gateway.desired(nodes, peering(b, aliasOfA, aliasOfB)))
	worker.set(worker.desired(nodes, peering(b, aliasOfA, aliasOfB)))
	b.set(b.desired([]*rigNode{b}, peering(gateway, aliasOfB, aliasOfA, openTo(b.podAddr))))
	for _, n := range []*rigNode{gateway, worker, b} {
		n.up()
	}
	for _, network := range []string{"tcp", "udp"} {
		r.wantSeen(network+" worker's pod to b", worker.pod, network, bAsSeen, 8080, workerAsSeen.String())
	}
	r.wantSeen("gateway's pod to b", gateway.pod, "tcp", bAsSeen, 8080, remap(t, gateway.podAddr, aliasOfA).String())
	r.wantSeen("worker node to b", worker.ns, "tcp", bAsSeen, 8080, remap(t, worker.bridge, aliasOfA).String())
	r.wantClosed("b to worker's pod, not exposed", b.pod, "tcp", workerAsSeen, 8080)
	r.wantClosed("b to gateway's pod, not exposed", b.pod, "tcp", remap(t, gateway.podAddr, aliasOfA), 8080)
	worker.set(worker.desired(nodes, peering(b, aliasOfA, aliasOfB, open)))
	for _, network := range []string{"tcp", "udp"} {
		r.wantSeen(network+" b to worker's pod", b.pod, network, workerAsSeen, 8080, bAsSeen.String())
	}
	r.in(b.pod, "ping -c 3 -i 0.2 -W 5 "+workerAsSeen.String())
	r.wantRefused("worker's pod to b, refused", worker.pod, bAsSeen)
	t.Run("the gateway sends no redirects to those it forwards for", func(t *testing.T) {
		r.t = t
		// What matters is all or the device: either turns them on.
		r.in(gateway.ns, "echo 1 > /proc/sys/net/ipv4/conf/all/send_redirects; echo 0 > /proc/sys/net/ipv4/conf/"+gateway.device+"/send_redirects")
		for _, pod := range []string{worker.pod, b.pod} {
			r.in(pod, `set -e
nft add table ip watch
nft 'add chain ip watch input { type filter hook input priority -400; }'
nft add rule ip watch input icmp type redirect counter
nft add rule ip watch input icmp type echo-reply counter`)
		}
		for range 8 {
			r.in(worker.pod, "ping -c 1 -W 5 "+bAsSeen.String())
			r.in(b.pod, "ping -c 1 -W 5 "+workerAsSeen.String())
		}
		for _, pod := range []string{worker.pod, b.pod} {
			out := r.in(pod, "nft list table ip watch")
			if !strings.Contains(out, "icmp type redirect counter packets 0 ") || !strings.Contains(out, "icmp type echo-reply counter packets 8 ") {
				t.Errorf("%s got redirects, or no answers:\n%s", pod, out)
			}
		}
	})
	if out := r.in(gateway.ns, "cat /proc/net/nf_conntrack 2>/dev/null | grep "+worker.podAddr.String()+" || true"); out != "" {
		t.Errorf("the gateway tracks what it only carries:\n%s", out)
	}

	// Cutting b off is seen within the probes' patience, and heals.
	down := time.Now()
	r.in("inet", "ip link set e"+b.name+" down")
	r.eventually("path down", func() error {
		for _, p := range gateway.fabric.seen().Peers {
			if p.Node == b.name && p.State == probe.PathDown {
				return nil
			}
		}
		return fmt.Errorf("still %+v", gateway.fabric.seen().Peers)
	})
	t.Logf("path seen down after %v", time.Since(down).Round(10*time.Millisecond))
	r.eventually("problem reported", func() error {
		for _, p := range gateway.fabric.seen().Problems {
			if p.Peer == clusterID("b") {
				return nil
			}
		}
		return fmt.Errorf("no problem: %+v", gateway.fabric.seen().Problems)
	})
	r.in("inet", "ip link set e"+b.name+" up")
	gateway.up()

	// The other nodes see that their gateway died, and name it.
	died := time.Now()
	r.in("inet", "ip link set e"+gateway.name+" down")
	r.eventually("the gateway seen down", func() error {
		for _, p := range worker.fabric.seen().Peers {
			if p.Cluster == clusterID("a") && p.Node == gateway.name && p.Active && p.State == probe.PathDown {
				return nil
			}
		}
		return fmt.Errorf("still %+v", worker.fabric.seen().Peers)
	})
	took := time.Since(died)
	t.Logf("gateway seen down after %v", took.Round(10*time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("it took %v to see that the gateway died", took)
	}
	r.in("inet", "ip link set e"+gateway.name+" up")
	worker.up()
}

// A fabric moves to another endpoint when the first is dead, and finds a peer
// that can only dial.
func TestEndpointsAreTriedInTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	toB := peering(b, aliasOfA, aliasOfB)
	toB.Gateways[0].Endpoints = []string{"172.31.0.99:51820", netip.AddrPortFrom(b.underlay, 51820).String()}
	toA := peering(a, aliasOfB, aliasOfA, openTo(b.podAddr))
	toA.Gateways[0].Endpoints = nil
	a.set(a.desired([]*rigNode{a}, toB))
	b.set(b.desired([]*rigNode{b}, toA))
	a.up()
	b.up()
	r.wantSeen("a to b", a.pod, "tcp", remap(t, b.podAddr, aliasOfB), 8080, remap(t, a.podAddr, aliasOfA).String())
}

// Nodes that have nothing but IPv6 between them carry pods of both families.
func TestTunnelsOverIPv6(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	for _, n := range []*rigNode{a, b} {
		before := n.underlay
		n.underlay = netip.MustParseAddr("2001:db8::" + map[*rigNode]string{a: "11", b: "12"}[n])
		r.in(n.ns, fmt.Sprintf("ip addr add %v/64 dev eth0 nodad && ip addr del %v/24 dev eth0", n.underlay, before))
	}
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	a.set(a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB)))
	b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openTo(b.podAddr))))
	a.up()
	b.up()
	r.wantSeen("a to b", a.pod, "tcp", remap(t, b.podAddr, aliasOfB), 8080, remap(t, a.podAddr, aliasOfA).String())
	for _, p := range a.fabric.seen().Peers {
		if p.Cluster == clusterID("b") && p.Endpoint != netip.AddrPortFrom(b.underlay, 51820) {
			t.Errorf("b is reached at %v, want %v", p.Endpoint, b.underlay)
		}
	}
}

// The tunnel's own addresses are IPv6. Where a node has none, traffic flows all
// the same, and the status reports what is missing.
func TestNodesWithoutIPv6(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	r.in(b.ns, "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")
	a.set(a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB)))
	b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openTo(b.podAddr))))
	r.wantSeen("a to b", a.pod, "tcp", remap(t, b.podAddr, aliasOfB), 8080, remap(t, a.podAddr, aliasOfA).String())
	r.eventually("the problem is reported", func() error {
		for _, p := range b.fabric.seen().Problems {
			if strings.Contains(p.Text, "IPv6 is off") {
				return nil
			}
		}
		return fmt.Errorf("got %+v", b.fabric.seen().Problems)
	})
	// Probes to b are lost while its WireGuard answers: that is not a reason to
	// look for it elsewhere.
	time.Sleep(4 * time.Second)
	r.wantSeen("a to b, later", a.pod, "tcp", remap(t, b.podAddr, aliasOfB), 8080, remap(t, a.podAddr, aliasOfA).String())
}

// A fabric with nothing to do plans nothing, and costs next to nothing.
func TestAnIdleFabricIsCheap(t *testing.T) {
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	a.set(a.desired([]*rigNode{a}, peering(b, "10.241.0.0/16", "10.242.0.0/16")))
	b.set(b.desired([]*rigNode{b}, peering(a, "10.242.0.0/16", "10.241.0.0/16")))
	a.up()
	b.up()
	const over = 5 * time.Second
	plans := func() int { return strings.Count(a.fabric.log(), "msg=planned") }
	r.eventually("nothing is planned for two seconds", func() error {
		before := plans()
		if time.Sleep(2 * time.Second); plans() > before {
			return errors.New("something was")
		}
		return nil
	})
	before, planned := [2]time.Duration{cpu(t, a.fabric), cpu(t, a.wireguard)}, plans()
	a.set(a.desired([]*rigNode{a}, peering(b, "10.241.0.0/16", "10.242.0.0/16"))) // the same again
	time.Sleep(over)
	if n := plans() - planned; n > 0 || planned == 0 {
		t.Errorf("planned %d times at rest, %d before", n, planned)
	}
	after := [2]time.Duration{cpu(t, a.fabric), cpu(t, a.wireguard)}
	for i, name := range []string{"fabric", "tunnel process"} {
		used := after[i] - before[i]
		t.Logf("%s: %.1f %% of a core", name, 100*used.Seconds()/over.Seconds())
		if used > over/20 {
			t.Errorf("%s used %v of %v", name, used, over)
		}
	}
}

// cpu is the processor time of a process, in ticks of 10 ms.
func cpu(t *testing.T, p *process) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b)[strings.LastIndex(string(b), ")")+1:])
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
