package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// echoes sends a datagram each few milliseconds from a pod to another, which answers each, and
// counts.
type echoes struct {
	stop func()
	mu   sync.Mutex
	sent []time.Time
	got  []bool
	err  error
}

const echoEvery = 10 * time.Millisecond

func (r *rig) echoes(ns string, to netip.Addr) *echoes {
	e := &echoes{}
	ended, done := make(chan struct{}), make(chan struct{})
	e.stop = sync.OnceFunc(func() {
		time.Sleep(200 * time.Millisecond) // for packets on their way
		close(ended)
		<-done
	})
	go func() {
		defer close(done)
		e.err = r.inNS(ns, func() error {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 8080)))
			if err != nil {
				return err
			}
			defer conn.Close()
			go func() {
				buf := make([]byte, 1<<10)
				for {
					n, err := conn.Read(buf)
					if errors.Is(err, net.ErrClosed) {
						return
					}
					if err == nil && n >= 65 {
						e.mu.Lock()
						if i := binary.BigEndian.Uint32(buf); int(i) < len(e.got) {
							e.got[i] = true
						}
						e.mu.Unlock()
					}
				}
			}()
			tick := time.NewTicker(echoEvery)
			defer tick.Stop()
			for {
				select {
				case <-ended:
					return nil
				case <-tick.C:
				}
				b := make([]byte, 65) // a longer datagram is sent back unchanged
				e.mu.Lock()
				binary.BigEndian.PutUint32(b, uint32(len(e.sent)))
				e.sent, e.got = append(e.sent, time.Now()), append(e.got, false)
				e.mu.Unlock()
				_, _ = conn.Write(b)
			}
		})
	}()
	return e
}

// since is how many were lost of those sent since then, and the longest time in which none
// passed.
func (e *echoes) since(then time.Time) (lost int, gap time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last := then
	for i, at := range e.sent {
		switch {
		case at.Before(then) || time.Since(at) < 100*time.Millisecond:
		case e.got[i]:
			gap, last = max(gap, at.Sub(last)), at
		default:
			lost++
		}
	}
	return lost, gap
}

// TestGatewaysTakeOverFromEachOther has two clusters of two gateways and a worker each. What
// dies, or comes back, is noticed by probes alone: the fabrics get no other input.
func TestGatewaysTakeOverFromEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	var sides [2][]*rigNode
	for side, cluster := range []string{"a", "b"} {
		for i := range 3 {
			sides[side] = append(sides[side], r.node(cluster, i+1, fmt.Sprintf("%d%d", side+1, i+1)))
		}
		sides[side][2].worker = true
	}
	a, b := sides[0], sides[1]
	desired := func(n *rigNode) plan.Desired {
		own, other, local, remote := a, b, aliasOfA, aliasOfB
		if n.cluster == "b" {
			own, other, local, remote = b, a, aliasOfB, aliasOfA
		}
		peer := peering(other[0], local, remote, openTo(n.podAddr))
		peer.Gateways = []plan.Gateway{other[0].gateway(), other[1].gateway()}
		return n.desired(own, peer)
	}
	all := slices.Concat(a, b)
	for _, n := range all {
		n.set(desired(n))
	}
	for _, n := range all {
		n.up()
	}
	byName := func(name string) *rigNode {
		return all[slices.IndexFunc(all, func(n *rigNode) bool { return n.name == name })]
	}
	// carrier is the gateway that a worker uses.
	carrier := func(worker *rigNode) string {
		for _, p := range worker.fabric.seen().Peers {
			if p.Active {
				return p.Node
			}
		}
		return ""
	}
	bAsSeen := remap(t, b[2].podAddr, aliasOfB)
	r.wantSeen("worker's pod to worker's pod", a[2].pod, "tcp", bAsSeen, 8080, remap(t, a[2].podAddr, aliasOfA).String())
	settled := func(node string) func() error {
		return func() error {
			if now := carrier(a[2]); now != node {
				return fmt.Errorf("%s carries", now)
			}
			return nil
		}
	}
	best := a[0].name
	if plan.Rank(clusterID("a"), clusterID("b"), a[1].name) > plan.Rank(clusterID("a"), clusterID("b"), best) {
		best = a[1].name
	}
	r.eventually("the best gateway to carry", settled(best))
	time.Sleep(carrierListens)

	e := r.echoes(a[2].pod, bAsSeen)
	defer e.stop()
	flows := func() error {
		time.Sleep(300 * time.Millisecond)
		if lost, _ := e.since(time.Now().Add(-250 * time.Millisecond)); lost > 0 {
			return fmt.Errorf("%d were lost in the last quarter of a second", lost)
		}
		return nil
	}
	r.eventually("traffic", flows)
	time.Sleep(5 * time.Second) // until the way is known to be in use

	carries := byName(best)
	t.Run("the fabric of a gateway dies and nothing happens", func(t *testing.T) {
		r.t = t
		began := time.Now()
		carries.fabric.kill()
		time.Sleep(6 * time.Second)
		if lost, _ := e.since(began); lost > 0 {
			t.Errorf("%d packets were lost", lost)
		}
		if now := carrier(a[2]); now != best {
			t.Errorf("%s carries now", now)
		}
		carries.startFabric()
		carries.set(desired(carries))
		carries.up()
		time.Sleep(2 * time.Second)
		if lost, _ := e.since(began); lost > 0 {
			t.Errorf("%d packets were lost when it came back", lost)
		}
		if now := carrier(a[2]); now != best {
			t.Errorf("%s carries now that it is back", now)
		}
	})
	other := a[0]
	if other == carries {
		other = a[1]
	}
	// dies does something to the gateway that carries, sees the other take over, heals it and
	// sees it take the traffic back.
	dies := func(what string, harm, heal func()) {
		t.Run(what, func(t *testing.T) {
			r.t = t
			began := time.Now()
			harm()
			r.eventually("the other gateway to carry", settled(other.name))
			r.eventually("traffic", flows)
			lost, gap := e.since(began)
			t.Logf("%s: %d packets of one each %v were lost, none passed for %v", what, lost, echoEvery, gap.Round(time.Millisecond))
			if lost == 0 {
				t.Error("nothing was lost: it was not in the way")
			}
			if gap > 10*time.Second {
				t.Errorf("none passed for %v", gap)
			}
			healed := time.Now()
			heal()
			r.eventually("the best gateway to carry again", settled(best))
			r.eventually("traffic", flows)
			lost, gap = e.since(healed)
			t.Logf("%s, and when it came back: %d were lost, none passed for %v", what, lost, gap.Round(time.Millisecond))
			if gap > 2*time.Second {
				t.Errorf("none passed for %v when it came back", gap)
			}
			if took := time.Since(healed); took < carrierStable {
				t.Errorf("it took the traffic back after %v", took)
			}
			time.Sleep(5 * time.Second)
		})
	}
	dies("the tunnel process dies", func() { carries.wireguard.kill() }, func() { carries.startWireGuard() })
	dies("the node is cut off", func() { r.in("inet", "ip link set e"+carries.name+" down") }, func() { r.in("inet", "ip link set e"+carries.name+" up") })
	// Both gateways live, and one does not reach the peer.
	dies("the way to the peer is cut", func() {
		r.in(carries.ns, "nft add table ip cut; nft 'add chain ip cut in { type filter hook input priority -200; }'; nft add rule ip cut in ip saddr { "+
			strings.Join([]string{b[0].underlay.String(), b[1].underlay.String()}, ", ")+" } drop")
	}, func() { r.in(carries.ns, "nft delete table ip cut") })
	e.stop()
	if e.err != nil {
		t.Error(e.err)
	}
}
