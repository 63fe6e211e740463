package tunnel

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// flow is a TCP connection that a line crosses each few milliseconds, there and back.
type flow struct {
	stop func()
	mu   sync.Mutex
	last time.Time
	err  error
}

func (r *rig) flow(ns string, to netip.Addr) *flow {
	r.t.Helper()
	f := &flow{}
	ended, done, open := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f.stop = sync.OnceFunc(func() {
		close(ended)
		<-done
	})
	go func() {
		defer close(done)
		err := r.inNS(ns, func() error {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 8080).String(), 10*time.Second)
			open <- err
			if err != nil {
				return err
			}
			defer c.Close()
			in := bufio.NewReader(c)
			if _, err := in.ReadString('\n'); err != nil { // the address that the server sees
				return err
			}
			for {
				select {
				case <-ended:
					return nil
				case <-time.After(echoEvery):
				}
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if _, err := io.WriteString(c, "x\n"); err != nil {
					return err
				}
				if _, err := in.ReadString('\n'); err != nil {
					return err
				}
				f.mu.Lock()
				f.last = time.Now()
				f.mu.Unlock()
			}
		})
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
	}()
	if err := <-open; err != nil {
		r.t.Fatalf("open a flow: %v", err)
	}
	return f
}

// crossed reports whether a packet has crossed the connection since then.
func (f *flow) crossed(then time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return fmt.Errorf("the connection broke: %w", f.err)
	}
	if !f.last.After(then) {
		return errors.New("nothing has crossed the connection yet")
	}
	return nil
}

// harm is something that happens to a node.
type harm struct {
	what string
	// limit is how long traffic may stop.
	limit time.Duration
	// do does it. announce sends the node's keys and addresses to the other cluster, as agents
	// do.
	do func(n *rigNode, announce func())
}

const (
	// repairLimit is how long traffic may stop while the node itself runs.
	repairLimit = 5 * time.Second
	// restartLimit is the same for a node that is switched off and on.
	restartLimit = 30 * time.Second
	// away is for how long a process is gone before it is started again, as by a kubelet.
	away = time.Second
)

// harms are the damages that the fabric repairs. fresh returns a number that it never returned before.
func harms(desired func(*rigNode) plan.Desired, fresh func() int) []harm {
	flush := func(n *rigNode) {
		n.r.in(n.ns, "ip rule del pref 140; ip -6 rule del pref 140; ip rule del pref 141; ip -6 rule del pref 141; ip rule del pref 142; ip -6 rule del pref 142; ip route flush table 14100; ip -6 route flush table 14100; ip route flush table 14102 || true")
	}
	startFabric := func(n *rigNode) {
		n.startFabric()
		n.set(desired(n))
	}
	return []harm{
		{"fabric killed", repairLimit, func(n *rigNode, _ func()) {
			n.fabric.kill()
			time.Sleep(away)
			startFabric(n)
		}},
		{"tunnel process killed", repairLimit, func(n *rigNode, _ func()) {
			n.wireguard.kill()
			time.Sleep(away)
			n.startWireGuard()
		}},
		{"device deleted", repairLimit, func(n *rigNode, _ func()) { n.r.in(n.ns, "ip link del "+n.device) }},
		{"routes and rules flushed", repairLimit, func(n *rigNode, _ func()) { flush(n) }},
		{"nft table flushed", repairLimit, func(n *rigNode, _ func()) { n.r.in(n.ns, "nft delete table inet entente") }},
		{"link down for half a second", repairLimit, func(n *rigNode, _ func()) {
			n.r.in(n.ns, "ip link set eth0 down; sleep 0.5; ip link set eth0 up; ip route replace default via 172.31.0.1")
		}},
		{"another address", repairLimit, func(n *rigNode, _ func()) {
			before := n.underlay
			n.underlay = netip.AddrFrom4([4]byte{172, 31, 0, byte(100 + fresh()%100)})
			n.r.in(n.ns, fmt.Sprintf("ip addr del %v/24 dev eth0; ip addr add %v/24 dev eth0; ip route replace default via 172.31.0.1", before, n.underlay))
		}},
		{"another NAT mapping", repairLimit, func(n *rigNode, _ func()) {
			n.remap(20000 + fresh())
			time.Sleep(2 * time.Second)
			n.remap(20000 + fresh())
		}},
		{"node switched off for two seconds", restartLimit, func(n *rigNode, announce func()) {
			n.fabric.kill()
			n.wireguard.kill()
			flush(n)
			n.r.in(n.ns, "ip link set eth0 down; nft delete table inet entente; nft delete table ip nat 2>/dev/null; sleep 2; ip link set eth0 up; ip route replace default via 172.31.0.1")
			n.startWireGuard()
			startFabric(n)
			n.key() // another one
			announce()
		}},
	}
}

// remap puts the node's tunnel behind address translation, under this port, and drops what
// dials it otherwise; or, if it is so, has the translation forget it and use another port.
func (n *rigNode) remap(port int) {
	n.r.in(n.ns, fmt.Sprintf(`nft -f - <<END
table ip nat
delete table ip nat
table ip nat {
  chain in {
    type filter hook prerouting priority -150
    iifname eth0 udp dport 51820 ct state new drop
  }
  chain post {
    type nat hook postrouting priority 100
    oifname eth0 udp sport 51820 masquerade to :%d
  }
}
END
`, port))
	err := n.r.inNS(n.ns, func() error {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, tunnelFlows{})
		return err
	})
	if err != nil {
		n.r.t.Fatal(err)
	}
}

// tunnelFlows are the connections that connection tracking has of a tunnel's own packets.
type tunnelFlows struct{}

// MatchConntrackFlow implements the filter.
func (tunnelFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Forward.Protocol == unix.IPPROTO_UDP && (f.Forward.SrcPort == 51820 || f.Forward.DstPort == 51820)
}

// TestFabricRepairsItself does one harm after the other to a node that is its cluster's only
// gateway, under packets from a pod to another one each 10 ms and on one TCP connection that lives
// through all of them. Only a fabric that starts gets input. No packet of a pod is
// seen between the clusters meanwhile. ENTENTE_ROUNDS sets how often.
func TestFabricRepairsItself(t *testing.T) {
	t.Parallel()
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("ENTENTE_ROUNDS"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	desired := func(n *rigNode) plan.Desired {
		if n == a {
			return a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB))
		}
		return b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openTo(b.podAddr)))
	}
	for _, n := range []*rigNode{a, b} {
		n.set(desired(n))
		// docs/upgrades.md says what a node does when it starts: it has no state of the fabric then.
		r.in(n.ns, "ip route add blackhole 10.240.0.0/14 metric 4000000000")
	}
	a.up()
	b.up()
	bAsSeen := remap(t, b.podAddr, aliasOfB)
	r.wantSeen("pod to pod", a.pod, "tcp", bAsSeen, 8080, remap(t, a.podAddr, aliasOfA).String())
	given := 0
	all := harms(desired, func() int { given++; return given })
	gaps := make([][]time.Duration, len(all))
	tcp := r.flow(a.pod, bAsSeen)
	defer tcp.stop()
	for round := range rounds {
		for i, h := range all {
			n, other := a, b
			if (round+i)%2 > 0 {
				n, other = b, a
			}
			announce := func() { other.set(desired(other)) }
			gap := r.harmed(h, func() { h.do(n, announce) }, a.pod, bAsSeen, tcp)
			gaps[i] = append(gaps[i], gap)
			announce() // of another address: agents have had the time
			r.in(n.ns, "nft delete table ip nat 2>/dev/null || true")
			if gap > h.limit {
				t.Errorf("%s: nothing passed for %v, want %v at most", h.what, gap.Round(10*time.Millisecond), h.limit)
			}
		}
	}
	for i, h := range all {
		slices.Sort(gaps[i])
		t.Logf("%s, %d times: nothing passed for %v (median), %v (most)", h.what, len(gaps[i]),
			gaps[i][len(gaps[i])/2].Round(10*time.Millisecond), gaps[i][len(gaps[i])-1].Round(10*time.Millisecond))
	}
}

// harmed does harm and returns for how long nothing passed, there and back.
func (r *rig) harmed(h harm, do func(), from string, to netip.Addr, tcp *flow) time.Duration {
	r.t.Helper()
	e := r.echoes(from, to)
	defer e.stop()
	clear := r.capture("inet")
	defer func() {
		if seen := clear(); seen != "" {
			r.t.Errorf("%s: seen in clear between the clusters: %q", h.what, seen)
		}
	}()
	time.Sleep(200 * time.Millisecond)
	began := time.Now()
	do()
	r.eventually(h.what+": packets pass for a second", func() error {
		if lost, gap := e.since(time.Now().Add(-time.Second)); time.Since(began) < time.Second || lost > 0 || gap > time.Second/2 {
			return fmt.Errorf("%d of the last second are lost", lost)
		}
		return nil
	})
	repaired := time.Now()
	r.eventually(h.what+": the connection lives", func() error { return tcp.crossed(repaired) })
	_, gap := e.since(began)
	return gap
}
