package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

const directAliasOfA, directAliasOfB = "10.241.0.0/16", "10.242.0.0/16"

// directRig is two clusters of a gateway and a worker each, which announce all their nodes.
type directRig struct {
	*rig
	a, b []*rigNode
}

func newDirectRig(t *testing.T) *directRig {
	t.Helper()
	r := &directRig{rig: newRig(t)}
	r.a = []*rigNode{r.node("a", 1, "11"), r.node("a", 2, "12")}
	r.b = []*rigNode{r.node("b", 1, "21"), r.node("b", 2, "22")}
	r.a[1].worker, r.b[1].worker = true, true
	return r
}

func (r *directRig) all() []*rigNode { return slices.Concat(r.a, r.b) }

func (r *directRig) desired(n *rigNode) plan.Desired {
	own, other, local, remote := r.a, r.b, directAliasOfA, directAliasOfB
	if n.cluster == "b" {
		own, other, local, remote = r.b, r.a, directAliasOfB, directAliasOfA
	}
	peer := peering(other[0], local, remote, openTo(n.podAddr))
	peer.Gateways[0].Pods = []netip.Prefix{other[0].podCIDR}
	g := other[1].gateway()
	g.Pods = []netip.Prefix{other[1].podCIDR}
	peer.Nodes = []plan.Gateway{g}
	d := n.desired(own, peer)
	d.Announced = []netip.Prefix{n.podCIDR}
	return d
}

// direct reports whether packets from a node go directly to another.
func (n *rigNode) direct(to *rigNode) bool {
	return slices.ContainsFunc(n.fabric.seen().Peers, func(p PeerStatus) bool { return p.Cluster == clusterID(to.cluster) && p.Node == to.name && p.Direct })
}

func (r *directRig) wantDirect(from, to *rigNode, want bool) time.Duration {
	r.t.Helper()
	return r.eventually(fmt.Sprintf("direct from %s to %s: %v", from.name, to.name, want), func() error {
		if from.direct(to) != want {
			return fmt.Errorf("it is not so: %+v\n%s", from.fabric.seen(), from.fabric.log())
		}
		return nil
	})
}

// TestWorkersReachEachOtherDirectly has traffic between pods on workers of two clusters, which
// goes through carriers until the workers see how much it is, and through them again whenever they
// do not reach each other.
func TestWorkersReachEachOtherDirectly(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t)
	capture := r.capture("inet")
	for _, n := range r.all() {
		n.set(r.desired(n))
	}
	a, b := r.a[1], r.b[1]
	for _, n := range r.all() {
		n.up()
	}
	bAsSeen, aAsSeen := remap(t, b.podAddr, directAliasOfB), remap(t, a.podAddr, directAliasOfA)
	r.wantSeen("through carriers", a.pod, "tcp", bAsSeen, 8080, aAsSeen.String())
	if a.direct(b) {
		t.Fatal("one connection has a tunnel made")
	}

	e := r.echoes(a.pod, bAsSeen)
	defer e.stop()
	began := time.Now()
	r.wantDirect(a, b, true)
	r.wantDirect(b, a, true)
	t.Logf("direct after %v of traffic", time.Since(began).Round(100*time.Millisecond))
	if lost := e.lostUntilNow(began); lost > 0 {
		t.Errorf("%d packets were lost when it came to be direct", lost)
	}
	t.Run("packets go directly", func(t *testing.T) {
		r.t = t
		r.wantNothingCarried(1 * time.Second)
		for _, network := range []string{"tcp", "udp"} {
			r.wantSeen(network+" a to b", a.pod, network, bAsSeen, 8080, aAsSeen.String())
			r.wantSeen(network+" b to a", b.pod, network, aAsSeen, 8080, bAsSeen.String())
		}
		r.in(a.pod, "ping -c 3 -i 0.2 -W 1 "+bAsSeen.String())
		r.wantRefused("refused", a.pod, bAsSeen)
		r.wantSeen("from the node", a.ns, "tcp", bAsSeen, 8080, remap(t, a.bridge, directAliasOfA).String())
	})
	flows := func() error {
		time.Sleep(300 * time.Millisecond)
		if lost, _ := e.since(time.Now().Add(-250 * time.Millisecond)); lost > 0 {
			return fmt.Errorf("%d were lost in the last quarter of a second", lost)
		}
		return nil
	}
	// nothing does something during which nothing may be lost.
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
	cut := func() {
		r.in(a.ns, "nft add table ip cut; nft 'add chain ip cut in { type filter hook input priority -200; }'; nft add rule ip cut in ip saddr "+b.underlay.String()+" drop")
	}
	heal := func() { r.in(a.ns, "nft delete table ip cut") }
	t.Run("the way between the workers is cut", func(t *testing.T) {
		r.t = t
		began := time.Now()
		cut()
		r.wantDirect(a, b, false)
		r.eventually("traffic", flows)
		lost, gap := e.since(began)
		t.Logf("%d packets of one each %v were lost, none passed for %v", lost, echoEvery, gap.Round(time.Millisecond))
		if lost == 0 {
			t.Error("nothing was lost: it was not in the way")
		}
		if gap > 5*time.Second {
			t.Errorf("none passed for %v", gap)
		}
		healed := time.Now()
		heal()
		r.wantDirect(a, b, true)
		r.wantDirect(b, a, true)
		if lost := e.lostUntilNow(healed); lost > 0 {
			t.Errorf("%d packets were lost when it came to be direct again", lost)
		}
	})
	nothing("the fabric of a worker dies and comes back", func() {
		b.fabric.kill()
		time.Sleep(3 * time.Second)
		if !a.direct(b) {
			t.Error("it is not direct any more")
		}
		b.startFabric()
		b.set(r.desired(b))
		r.wantDirect(b, a, true)
		r.wantNothingCarried(time.Second)
	})
	nothing("the gateways die and come back", func() {
		for _, n := range []*rigNode{r.a[0], r.b[0]} {
			r.in("inet", "ip link set e"+n.name+" down")
		}
		time.Sleep(3 * time.Second)
		for _, n := range []*rigNode{r.a[0], r.b[0]} {
			r.in("inet", "ip link set e"+n.name+" up")
		}
		for _, n := range r.all() {
			n.up()
		}
	})
	nothing("one side does not want it any more", func() {
		d := r.desired(b)
		d.Announced = nil
		b.set(d)
		r.wantDirect(b, a, false)
		r.wantDirect(a, b, false)
		time.Sleep(2 * directLeaves)
		if key := a.key().String(); strings.Contains(r.in(b.ns, "wg show "+b.device+" peers"), key) {
			t.Error("it still has the tunnel")
		}
		b.set(r.desired(b))
		r.wantDirect(b, a, true)
		r.wantDirect(a, b, true)
	})
	e.stop()
	if e.err != nil {
		t.Error(e.err)
	}
	r.wantNoClearPackets(capture())
}

// lostUntilNow is how many packets were lost of those sent since then and until now. It waits for
// answers as long as a busy machine may need.
func (e *echoes) lostUntilNow(then time.Time) (lost int) {
	now := time.Now()
	time.Sleep(2 * time.Second)
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, at := range e.sent {
		if !at.Before(then) && at.Before(now) && !e.got[i] {
			lost++
		}
	}
	return lost
}

// wantNothingCarried wants that the gateways forward next to nothing.
func (r *directRig) wantNothingCarried(over time.Duration) {
	r.t.Helper()
	count := func(n *rigNode) (packets int) {
		out := r.in(n.ns, "nft list table ip carried")
		_, _ = fmt.Sscanf(out[strings.Index(out, "packets"):], "packets %d", &packets)
		return packets
	}
	gateways := []*rigNode{r.a[0], r.b[0]}
	for _, n := range gateways {
		r.in(n.ns, "nft add table ip carried; nft 'add chain ip carried f { type filter hook forward priority 0; }'; nft add rule ip carried f counter")
	}
	time.Sleep(over)
	for _, n := range gateways {
		if got := count(n); got > 3 {
			r.t.Errorf("gateway %s forwarded %d packets in %v", n.name, got, over)
		}
		r.in(n.ns, "nft delete table ip carried")
	}
}

func (r *directRig) wantNoClearPackets(out string) {
	r.t.Helper()
	if out != "" {
		r.t.Errorf("packets of pods were seen in clear:\n%s", out)
	}
}

// A node of a peer that turned hostile, with the tunnels that it had, sends directly as its own pods
// and to pods on the node that it sends to, and the cipher or the firewall drops all else.
func TestHostileNodeSendsDirectlyAsItsOwnPodsOnly(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t)
	for _, n := range r.all() {
		n.set(r.desired(n))
	}
	for _, n := range r.all() {
		n.up()
	}
	a, evil := r.a[0], r.b[0]
	r.wantDirect(evil, a, true)
	evil.fabric.kill()
	r.in(evil.ns, fmt.Sprintf(`set -e
nft delete table inet entente
nft flush table ip cni
wg set %[1]s peer %[2]s allowed-ips 0.0.0.0/0,::/0
ip route add 240.0.0.0/4 dev %[1]s
nft add table ip evil
nft 'add chain ip evil post { type filter hook postrouting priority 400; }'`, evil.device, a.key()))
	r.in(a.ns, fmt.Sprintf(`set -e
nft add table ip watch
nft 'add chain ip watch pre { type filter hook prerouting priority -400; }'
nft 'add chain ip watch forward { type filter hook forward priority 0; }'
nft add rule ip watch pre iifname %[1]s ip saddr 240.0.0.0/4 counter comment came
nft add rule ip watch forward iifname %[1]s counter comment passed`, a.device))
	count := func(what string) (n int) {
		for line := range strings.Lines(r.in(a.ns, "nft list table ip watch")) {
			if strings.Contains(line, what) {
				_, _ = fmt.Sscanf(line[strings.Index(line, "packets"):], "packets %d", &n)
			}
		}
		return n
	}
	form := func(a netip.Addr) netip.Addr { return plan.DirectForm(netip.PrefixFrom(a, a.BitLen())).Addr() }
	enter := func(to netip.Addr) netip.Addr { return plan.EntryForm(netip.PrefixFrom(to, to.BitLen())).Addr() }
	asOwn, asOther := form(remap(t, evil.podAddr, directAliasOfB)), form(remap(t, r.b[1].podAddr, directAliasOfB))
	toHere, toOther := form(remap(t, a.podAddr, directAliasOfA)), form(remap(t, r.a[1].podAddr, directAliasOfA))
	for _, tt := range []struct {
		name         string
		as, to       netip.Addr
		came, passed bool
	}{
		{"as its own pod to a pod here", asOwn, toHere, true, true},
		{"as a pod of another node", asOther, toHere, false, false},
		{"as an alias, which is the carrier's", remap(t, r.b[1].podAddr, directAliasOfB), toHere, false, false},
		{"to a pod of another node", asOwn, toOther, true, false},
		{"to an address of no pod", asOwn, address("255.0.0.1"), true, false},
		{"as its own pod, entering, to a pod of another node, which decides", asOwn, enter(remap(t, r.a[1].podAddr, directAliasOfA)), true, true},
		{"as its own pod, entering, to what is not the cluster's", asOwn, enter(remap(t, a.podAddr, "10.249.0.0/16")), true, false},
		{"as a pod of another node, entering", asOther, enter(remap(t, r.a[1].podAddr, directAliasOfA)), false, false},
		{"as its own alias, which is the carrier's, entering", remap(t, evil.podAddr, directAliasOfB), enter(remap(t, r.a[1].podAddr, directAliasOfA)), false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			came, passed := count("came"), count("passed")
			r.in(evil.ns, fmt.Sprintf("nft flush chain ip evil post; nft add rule ip evil post oifname %s ip saddr 10.200.0.0/16 ip daddr set %v ip saddr set %v", evil.device, tt.to, tt.as))
			for range 3 {
				_, _ = r.ask(evil.pod, "udp", address("240.0.0.1"), 8080)
			}
			if got := count("came") > came; got != tt.came {
				t.Errorf("it came out of the tunnel: %v, want %v", got, tt.came)
			}
			if got := count("passed") > passed; got != tt.passed {
				t.Errorf("it passed the firewall: %v, want %v", got, tt.passed)
			}
		})
	}
}
