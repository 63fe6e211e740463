package tunnel

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// hold replaces the node's nftables table by one that belongs to another process: the kernel refuses all
// changes that the fabric makes to it. release ends that process, and the kernel deletes the table.
func (n *rigNode) hold(rules string) (release func()) {
	n.r.t.Helper()
	file := filepath.Join(n.r.t.TempDir(), "held.nft")
	text := "add table inet entente\ndelete table inet entente\ntable inet entente {\nflags owner\n" + rules + "\n}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		n.r.t.Fatal(err)
	}
	cmd := n.r.command(n.ns, "nft", "-i")
	cmd.SysProcAttr = nil // it ends with its input, and not with the thread that starts it
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = fmt.Fprintf(in, "include %q\n", file)
	}
	if err != nil {
		n.r.t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	n.r.t.Cleanup(release)
	n.r.eventually("the table of "+n.name+" to belong to another process", func() error {
		if out, err := n.r.try(n.ns, "nft list table inet entente | grep 'flags owner'"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return release
}

// reports waits until the fabric reports a problem with a text.
func (n *rigNode) reports(text string) {
	n.r.t.Helper()
	n.r.eventually(n.name+" reports a problem", func() error {
		for _, p := range n.fabric.seen().Problems {
			if p.Peer == "" && strings.Contains(p.Text, text) {
				return nil
			}
		}
		return fmt.Errorf("none has %q: %q\n%s", text, n.fabric.seen().Problems, n.fabric.log())
	})
}

// shaken waits until the device has a session with another node.
func (n *rigNode) shaken(other *rigNode) {
	n.r.t.Helper()
	n.r.eventually(n.name+" has a session with "+other.name, func() error {
		for line := range strings.Lines(n.r.in(n.ns, "wg show "+n.device+" latest-handshakes")) {
			if key, at, _ := strings.Cut(strings.TrimSpace(line), "\t"); key == other.key().String() && at != "0" {
				return nil
			}
		}
		return fmt.Errorf("no handshake\n%s", other.fabric.log())
	})
}

// A node that cannot write its nftables table, at its start or after somebody deleted it, lets no packet
// of another cluster in, on whichever way: from the peer's gateway, or from the gateway that carries the
// peer. Packets that are not the fabric's pass. As soon as the table can be written all works.
func TestWithoutItsRulesANodeLetsNoPeerIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gateway, worker, friend, evil := r.node("a", 1, "11"), r.node("a", 2, "21"), r.node("c", 1, "13"), r.node("h", 1, "14")
	worker.worker = true
	const aliasOfC, aliasOfH, aliasOfA = "10.251.0.0/16", "10.250.0.0/16", "10.240.0.0/16"
	own := []*rigNode{gateway, worker}
	releaseGateway, releaseWorker := gateway.hold(""), worker.hold("")
	for _, n := range own {
		n.set(n.desired(own,
			peering(friend, aliasOfA, aliasOfC, openTo(gateway.podAddr), openTo(worker.podAddr)),
			peering(evil, aliasOfA, aliasOfH, openTo(gateway.podAddr), openTo(worker.podAddr))))
	}
	friend.set(friend.desired([]*rigNode{friend}, peering(gateway, aliasOfC, aliasOfA, openTo(friend.podAddr))))
	evil.set(evil.desired([]*rigNode{evil}, peering(gateway, aliasOfH, aliasOfA)))
	const missing = "no packets pass between this node and other clusters"
	gateway.reports(missing)
	worker.reports(missing)
	evil.shaken(gateway)
	// It has the keys and no fabric.
	evil.fabric.kill()
	r.in(evil.ns, fmt.Sprintf("nft delete table inet entente; wg set %[1]s peer %[2]s allowed-ips 0.0.0.0/0,::/0; ip route add fd00::/8 dev %[1]s", evil.device, gateway.key()))

	overlay := func(n *rigNode) netip.Addr { return plan.Overlay(clusterID(n.cluster), n.name) }
	web, away, mine := remap(t, gateway.podAddr, aliasOfA), remap(t, worker.podAddr, aliasOfA), remap(t, evil.podAddr, aliasOfH)
	attacks := []attack{
		{what: "a pod by its real address", from: mine, to: gateway.podAddr, protocol: plan.TCP, port: 8080},
		{what: "a pod by its alias", from: mine, to: web, protocol: plan.TCP, port: 8080},
		{what: "the node's own address", from: mine, to: gateway.underlay, protocol: plan.TCP, port: 10250},
		{what: "the node's overlay address", from: overlay(evil), to: overlay(gateway), protocol: plan.TCP, port: 10250},
		{what: "another node's own address", from: mine, to: worker.underlay, protocol: plan.TCP, port: 10250},
		{what: "the Service of the API server", from: mine, to: address("10.96.0.1"), protocol: plan.TCP, port: 443},
		{what: "a pod of another node by its real address", from: mine, to: worker.podAddr, protocol: plan.TCP, port: 8080},
		{what: "a pod of another node by its alias", from: mine, to: away, protocol: plan.TCP, port: 8080},
	}
	const carried = 7 // the last one
	r.watch(len(attacks), own)
	send := func() {
		for i, a := range attacks {
			r.inject(evil.ns, evil.device, a.to, a.packet(attackNumber(i)))
		}
		time.Sleep(300 * time.Millisecond)
	}
	nothing := func(when string, nodes ...*rigNode) {
		t.Helper()
		send()
		for i, a := range attacks {
			for _, where := range []string{"came", "node", "passed", "pod"} {
				if got := r.watched(where, i, nodes); got > 0 {
					t.Errorf("%s: %d packets to %s were counted at %q", when, got, a.what, where)
				}
			}
		}
	}
	unrelated := func(when string) {
		t.Helper()
		r.eventually(when+": a pod reaches what is no pod of a peer", func() error {
			out, err := r.try(gateway.pod, "ping -c 1 -W 1 172.31.0.1")
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	nothing("neither node ever had rules", gateway, worker)
	unrelated("without rules")

	seen := remap(t, friend.podAddr, aliasOfC).String()
	reaches := func(what string, to netip.Addr) {
		t.Helper()
		took := r.eventually(what, func() error {
			got, err := r.ask(friend.pod, "tcp", to, 8080)
			if err == nil && got != seen {
				err = fmt.Errorf("seen as %s, want %s", got, seen)
			}
			return err
		})
		t.Logf("%s: %v", what, took)
		if took > repairLimit {
			t.Errorf("%s: after %v, want %v at most", what, took, repairLimit)
		}
	}
	releaseGateway()
	reaches("the gateway has its rules", web)
	nothing("the node behind the gateway never had rules", worker)
	if got := r.watched("passed", carried, []*rigNode{gateway}); got == 0 {
		t.Error("the gateway carried no packet to the node behind it, so nothing was shown")
	}
	releaseWorker()
	reaches("both nodes have their rules", away)

	e := r.echoes(friend.pod, web)
	defer e.stop()
	tcp := r.flow(friend.pod, web)
	defer tcp.stop()
	releaseGateway, releaseWorker = gateway.hold(""), worker.hold("")
	gateway.reports(missing)
	worker.reports(missing)
	r.in(gateway.ns, "nft delete table inet watch")
	r.in(gateway.pod, "nft delete table inet watch")
	r.in(worker.ns, "nft delete table inet watch")
	r.in(worker.pod, "nft delete table inet watch")
	r.watch(len(attacks), own)
	nothing("the tables were deleted", gateway, worker)
	unrelated("after the table was deleted")
	time.Sleep(silence + 2*time.Second) // so that the peer seems to be gone
	releaseGateway()
	releaseWorker()
	released := time.Now()
	reaches("the tables are back", web)
	reaches("the tables of both nodes are back", away)
	r.eventually("the connection lives", func() error { return tcp.crossed(released) })
}

// A gateway that has lost its rules carries nothing, so another one of its cluster takes over.
func TestAnotherGatewayTakesOverFromOneWithoutRules(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one, two, peer := r.node("a", 1, "11"), r.node("a", 2, "21"), r.node("c", 1, "13")
	const aliasOfA, aliasOfC = "10.241.0.0/16", "10.242.0.0/16"
	own := []*rigNode{one, two}
	for _, n := range own {
		n.set(n.desired(own, peering(peer, aliasOfA, aliasOfC)))
	}
	known := peering(one, aliasOfC, aliasOfA, openTo(peer.podAddr))
	known.Gateways = append(known.Gateways, two.gateway())
	peer.set(peer.desired([]*rigNode{peer}, known))
	for _, n := range []*rigNode{one, two, peer} {
		n.up()
	}
	carries := func(n *rigNode) bool {
		return slices.ContainsFunc(n.fabric.seen().Peers, func(p PeerStatus) bool { return p.Remote && p.Active })
	}
	r.eventually("one gateway carries", func() error {
		if carries(one) == carries(two) {
			return fmt.Errorf("one %v, two %v", carries(one), carries(two))
		}
		return nil
	})
	carrier, other := one, two
	if carries(two) {
		carrier, other = two, one
	}
	e := r.echoes(other.pod, remap(t, peer.podAddr, aliasOfC))
	defer e.stop()
	time.Sleep(time.Second)
	began := time.Now()
	carrier.hold("")
	r.eventually("packets pass for a second", func() error {
		if lost, _ := e.since(time.Now().Add(-time.Second)); lost > 0 || time.Since(began) < time.Second {
			return fmt.Errorf("%d of the last second are lost", lost)
		}
		return nil
	})
	if _, gap := e.since(began); gap > repairLimit || !carries(other) {
		t.Errorf("nothing passed for %v, want %v at most; the other gateway carries: %v", gap, repairLimit, carries(other))
	}
}

// The table of the last plan is written again after it was deleted, though no other plan can be made.
func TestRulesAreWrittenAgainWithoutANewPlan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	desired := a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, openTo(a.podAddr)))
	a.set(desired)
	b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA)))
	a.up()
	desired.Nodes = nil
	a.set(desired)
	a.reports("the node is not among the nodes of the cluster")
	r.in(a.ns, "nft delete table inet entente")
	r.wantSeen("an open port", b.pod, "tcp", remap(t, a.podAddr, aliasOfA), 8080, remap(t, b.podAddr, aliasOfB).String())
	r.in(a.ns, "nft list chain inet entente from-tunnel")
}

// A fabric that knows no plan yet finds the device of the one before it, with its peers. It leaves rules
// that are there as they are, writes some that open nothing if there are none, and lets nothing pass if
// it cannot.
func TestAFabricWithoutAPlanLetsNoPeerInWithoutRules(t *testing.T) {
	t.Parallel()
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("the kernel refuses the rules: %v", refused), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
			const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
			desired := a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, openTo(a.podAddr)))
			a.set(desired)
			b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA)))
			a.up()
			web, seen := remap(t, a.podAddr, aliasOfA), remap(t, b.podAddr, aliasOfB).String()
			r.wantSeen("an open port", b.pod, "tcp", web, 8080, seen)

			a.fabric.kill()
			a.startFabric()
			time.Sleep(time.Second)
			r.wantSeen("an open port, while the rules of the fabric before decide", b.pod, "tcp", web, 8080, seen)

			a.fabric.kill()
			release := func() {}
			if refused {
				release = a.hold("")
			} else {
				r.in(a.ns, "nft delete table inet entente")
			}
			attack := attack{from: remap(t, b.podAddr, aliasOfB), to: a.podAddr, protocol: plan.TCP, port: 8080}
			r.watch(1, []*rigNode{a})
			b.fabric.kill()
			r.in(b.ns, fmt.Sprintf("nft delete table inet entente; wg set %s peer %s allowed-ips 0.0.0.0/0,::/0", b.device, a.key()))
			inject := func() (came int) {
				before := r.watched("pod", 0, []*rigNode{a})
				r.inject(b.ns, b.device, attack.to, attack.packet(attackNumber(0)))
				time.Sleep(300 * time.Millisecond)
				return r.watched("pod", 0, []*rigNode{a}) - before
			}
			if inject() == 0 {
				t.Fatal("without rules and fabric no packet came, so nothing is shown")
			}
			a.startFabric()
			if refused {
				a.reports("no packets pass between this node and other clusters")
			} else {
				r.eventually("there are rules again", func() error {
					if out, err := r.try(a.ns, "nft list chain inet entente from-tunnel"); err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				})
			}
			time.Sleep(300 * time.Millisecond)
			if came := inject(); came > 0 {
				t.Errorf("%d packets came", came)
			}
			release()
			a.set(desired)
			b.startFabric()
			b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA)))
			r.wantSeen("an open port, once there is a plan", b.pod, "tcp", web, 8080, seen)
		})
	}
}

// While the table cannot be changed the rules in it decide: what was open stays open, without a packet
// lost, what was closed stays closed, and a fabric that starts changes nothing of that.
func TestRulesThatCannotBeChangedStillDecide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	open := func(ports ...uint16) plan.Desired {
		e := plan.Exposure{Name: "ports", AnySource: true}
		for _, port := range ports {
			e.Destinations = append(e.Destinations, plan.Destination{Addr: a.podAddr, Protocol: plan.TCP, Port: port}, plan.Destination{Addr: a.podAddr, Protocol: plan.UDP, Port: port})
		}
		return a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, e))
	}
	server := r.start(a.pod, "server", []string{"TUNNEL_TEST_PORT=8081"})
	t.Cleanup(server.kill)
	a.set(open(8080))
	b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA)))
	a.up()
	b.up()
	web, seen := remap(t, a.podAddr, aliasOfA), remap(t, b.podAddr, aliasOfB).String()
	r.wantSeen("an open port", b.pod, "tcp", web, 8080, seen)
	r.wantClosed("a closed port", b.pod, "tcp", web, 8081)

	rules := strings.TrimSpace(r.in(a.ns, "nft list table inet entente"))
	_, rules, _ = strings.Cut(strings.TrimSuffix(rules, "}"), "{")
	release := a.hold(rules)
	r.wantSeen("the open port by the same rules", b.pod, "tcp", web, 8080, seen)
	e := r.echoes(b.pod, web)
	defer e.stop()
	time.Sleep(200 * time.Millisecond)
	began := time.Now()
	a.set(open(8081))
	a.reports("stays as it was")
	a.fabric.kill()
	a.startFabric()
	a.set(open(8081))
	a.reports("stays as it was")
	time.Sleep(time.Second)
	if lost, gap := e.since(began); lost > 0 {
		t.Errorf("%d packets were lost, nothing passed for %v", lost, gap)
	}
	r.wantClosed("the other port before its rules are there", b.pod, "tcp", web, 8081)
	if s := a.fabric.seen(); s.Unfiltered != "" {
		t.Errorf("it reports that nothing passes: %q", s.Unfiltered)
	}
	release()
	r.wantSeen("the other port, once its rules are there", b.pod, "tcp", web, 8081, seen)
	r.wantClosed("the port that is no longer open", b.pod, "tcp", web, 8080)
}
