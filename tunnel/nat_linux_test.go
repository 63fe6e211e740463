package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// Kinds of address translation: those of routers that keep a socket's port on the outside, and
// those that choose one for each flow. Both let in answers only.
const (
	cone      = "masquerade"
	symmetric = "masquerade random,fully-random"
)

// behind puts a node behind a router with a public address, and returns that.
func (n *rigNode) behind(kind string, number int) netip.Addr {
	n.r.t.Helper()
	r, router := n.r, n.name+"r"
	public := netip.MustParseAddr(fmt.Sprintf("172.31.0.%d", 100+number))
	r.addNS(router)
	r.in("inet", fmt.Sprintf("set -e; ip link set e%s nomaster; ip link set e%s netns %s; ip link add w%s type veth peer name wan netns %s; ip link set w%s master br0 up",
		n.name, n.name, r.prefix+router, n.name, r.prefix+router, n.name))
	r.in(router, fmt.Sprintf(`set -e
ip link set lo up; ip link set e%s name lan
ip addr add %v/24 dev wan; ip link set wan up; ip addr add 192.168.7.1/24 dev lan; ip link set lan up; ip route add default via 172.31.0.1
echo 1 > /proc/sys/net/ipv4/ip_forward
`, n.name, public))
	n.underlay = netip.MustParseAddr("192.168.7.2")
	r.in(n.ns, "set -e; ip addr flush dev eth0; ip addr add 192.168.7.2/24 dev eth0; ip route replace default via 192.168.7.1")
	n.translate(kind, true)
	return public
}

// translate changes what a node's router does. Without udp it passes none.
func (n *rigNode) translate(kind string, udp bool) {
	n.r.t.Helper()
	block := ""
	if !udp {
		block = "meta l4proto udp drop;"
	}
	// A firewall drops what it does not know before it is noted as a flow.
	n.r.in(n.name+"r", fmt.Sprintf(`set -e
nft -f - <<'EOF'
flush ruleset
table ip t {
 chain post { type nat hook postrouting priority srcnat; oifname "wan" %s; }
 chain passing { type filter hook forward priority 0; %s iifname "wan" ct state != { established, related } drop; }
 chain arriving { type filter hook input priority 0; iifname "wan" meta l4proto udp drop; }
}
EOF
`, kind, block))
	// Flows keep their mappings.
	if err := n.r.inNS(n.name+"r", func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		n.r.t.Fatal(err)
	}
}

// relay takes the place of the agents: it carries datagrams between two nodes. It returns where each finds
// the other.
func (r *rig) relay(a, b *rigNode, port int) (forA, forB netip.AddrPort, carried func() int) {
	r.t.Helper()
	var mu sync.Mutex
	count := 0
	delayed := map[*net.UDPConn]time.Time{}
	open := func(n *rigNode, last byte) (*net.UDPConn, netip.AddrPort) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 64, 0, last}), 17449)
		var conn, asked *net.UDPConn
		err := r.inNS(n.ns, func() (err error) {
			conn, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(at), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
			if err == nil {
				asked, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), delayPort)))
			}
			return err
		})
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { conn.Close(); asked.Close() })
		go func() {
			buf := make([]byte, 64)
			for {
				n, err := asked.Read(buf)
				if err != nil {
					return
				}
				if d, err := time.ParseDuration(string(buf[:n])); err == nil {
					mu.Lock()
					delayed[conn] = time.Now().Add(d)
					mu.Unlock()
				}
			}
		}()
		return conn, at
	}
	atA, forA := open(a, 1)
	atB, forB := open(b, 2)
	pass := func(from, to *net.UDPConn) {
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if err != nil {
				if strings.Contains(err.Error(), "closed") {
					return
				}
				continue
			}
			time.Sleep(2 * time.Millisecond) // it is further than the direct way
			mu.Lock()
			count++
			until := delayed[to]
			mu.Unlock()
			time.Sleep(time.Until(until))
			_, _ = to.Write(buf[:n])
		}
	}
	go pass(atA, atB)
	go pass(atB, atA)
	return forA, forB, func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
}

// delayPort is where a relay is asked to delay its datagrams for a node.
const delayPort = 17450

// askToDelay is a fabric's Config.DelayRelay.
func askToDelay(relay netip.AddrPort, d time.Duration) {
	conn, err := net.Dial("udp4", netip.AddrPortFrom(relay.Addr(), delayPort).String())
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(d.String()))
}

// natPair are two clusters of a node each, behind routers of their own.
type natPair struct {
	*rig
	a, b             *rigNode
	publicA, publicB netip.Addr
	relayA, relayB   netip.AddrPort
	carried          func() int
}

func newNATPair(t *testing.T, kindA, kindB string) *natPair {
	t.Helper()
	r := newRig(t)
	p := &natPair{rig: r, a: r.node("a", 1, "11"), b: r.node("b", 2, "12")}
	p.publicA, p.publicB = p.a.behind(kindA, 1), p.b.behind(kindB, 2)
	return p
}

func (p *natPair) withRelay() *natPair {
	p.relayA, p.relayB, p.carried = p.relay(p.a, p.b, 51820)
	return p
}

// set gives each side the other as a peer, seen where it is seen besides where its router is.
func (p *natPair) set(more ...netip.AddrPort) {
	p.t.Helper()
	setPeer := func(n, other *rigNode, public netip.Addr, relay netip.AddrPort, peer plan.Peer) {
		peer.Gateways[0].Relay = relay
		peer.Gateways[0].Observed = append([]netip.AddrPort{netip.AddrPortFrom(public, 51820)}, more...)
		n.set(n.desired([]*rigNode{n}, peer))
	}
	p.a.key()
	p.b.key()
	setPeer(p.a, p.b, p.publicB, p.relayA, peering(p.b, "10.241.0.0/16", "10.242.0.0/16"))
	setPeer(p.b, p.a, p.publicA, p.relayB, peering(p.a, "10.242.0.0/16", "10.241.0.0/16", openTo(p.b.podAddr)))
}

// wantWay waits until packets get to the other side in a way, on both sides, and pass.
func (p *natPair) wantWay(want Way, within time.Duration) {
	p.t.Helper()
	took := p.eventually("the way is "+string(want), func() error {
		for _, n := range []*rigNode{p.a, p.b} {
			s := n.fabric.seen()
			if len(s.Peers) != 1 || s.Peers[0].State != probe.PathUp || s.Peers[0].Way != want {
				return fmt.Errorf("%s: %+v", n.name, s.Peers)
			}
		}
		return nil
	})
	p.t.Logf("%s after %v", want, took.Round(100*time.Millisecond))
	if took > within {
		p.t.Errorf("%s after %v, want %v", want, took, within)
	}
}

func TestBothSidesBehindTranslationsThatKeepPorts(t *testing.T) {
	p := newNATPair(t, cone, cone)
	p.set()
	p.wantWay(WayObserved, 30*time.Second)
}

func TestAWayThroughTheAgentsIsUsedAndLeft(t *testing.T) {
	t.Parallel()
	p := newNATPair(t, symmetric, symmetric).withRelay()
	p.set()
	p.wantWay(WayRelayed, 30*time.Second)
	to := remap(t, p.b.podAddr, "10.242.0.0/16")
	stream := p.echoes(p.a.pod, to)
	defer stream.stop()
	time.Sleep(4 * time.Second) // better ways are tried that lead nowhere
	lost, _ := stream.since(time.Time{})
	t.Logf("better ways were tried: lost %d", lost)
	if lost > 50 { // half a second
		t.Errorf("%d echoes were lost as better ways were tried", lost)
	}
	began := time.Now()
	p.a.translate(cone, true)
	p.b.translate(cone, true)
	p.set(netip.MustParseAddrPort("172.31.0.99:1")) // something is new, so it is tried though there is traffic
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("a: %s\nb: %s", p.a.fabric.log(), p.b.fabric.log())
		}
	})
	p.wantWay(WayObserved, 30*time.Second)
	p.eventually("nothing goes through the agents", func() error {
		before := p.carried()
		time.Sleep(2 * time.Second)
		if after := p.carried(); after != before {
			return fmt.Errorf("%d datagrams did in 2 s", after-before)
		}
		return nil
	})
	lost, gap := stream.since(began)
	t.Logf("a better way was taken: lost %d, gap %v", lost, gap)
	if lost > 100 { // of two trials that led nowhere, on a busy machine
		t.Errorf("%d echoes were lost as a better way was taken", lost)
	}

	began = time.Now()
	p.a.translate(cone, false)
	p.wantWay(WayRelayed, 30*time.Second)
	p.eventually("packets pass", stream.flow)
	lost, gap = stream.since(began)
	t.Logf("UDP blocked: nothing passed for %v, lost %d", gap, lost)
	if gap > detourWithin {
		t.Errorf("nothing passed for %v as UDP was blocked, want %v", gap, detourWithin)
	}
}
