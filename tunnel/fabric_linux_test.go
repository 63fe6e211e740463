package tunnel

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func address(s string) netip.Addr  { return netip.MustParseAddr(s) }

func clusterID(name string) string { return strings.Repeat(name, 52) }

func remap(t testing.TB, a netip.Addr, alias string) netip.Addr {
	t.Helper()
	out, ok := plan.Remap(a, prefix("10.200.0.0/16"), prefix(alias))
	if !ok {
		t.Fatalf("cannot remap %v to %s", a, alias)
	}
	return out
}

func (n *rigNode) node() plan.Node {
	return plan.Node{Name: n.name, PublicKey: n.key(), Endpoints: []string{netip.AddrPortFrom(n.underlay, 51820).String()}, PodCIDRs: []netip.Prefix{n.podCIDR}, Gateway: !n.worker}
}

func (n *rigNode) gateway() plan.Gateway {
	return plan.Gateway{Node: n.name, PublicKey: n.key(), Endpoints: []string{netip.AddrPortFrom(n.underlay, 51820).String()}}
}

// peering is the desired state for a peer whose pods it knows as remote and
// that knows its own as local.
func peering(to *rigNode, local, remote string, open ...plan.Exposure) plan.Peer {
	return plan.Peer{
		ClusterID: clusterID(to.cluster), PresharedKey: plan.PresharedKey{1, 2, 3},
		Gateways: []plan.Gateway{to.gateway()},
		Local:    []plan.Mapping{{Real: prefix("10.200.0.0/16"), Alias: prefix(local)}},
		Remote:   []plan.Mapping{{Real: prefix("10.200.0.0/16"), Alias: prefix(remote)}},
		Inbound:  open,
	}
}

func (n *rigNode) desired(nodes []*rigNode, peers ...plan.Peer) plan.Desired {
	d := plan.Desired{ClusterID: clusterID(n.cluster), Node: n.name, Peers: peers, Reserved: []netip.Prefix{prefix("10.96.0.0/16"), prefix("172.31.0.0/24")}}
	for _, o := range nodes {
		d.Nodes = append(d.Nodes, o.node())
	}
	return d
}

func TestTwoClustersWithEqualPodPrefixes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	capture := r.capture("inet")
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	// A knows B as 10.242/16, B knows A as 10.241/16.
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	aAsSeen, bAsSeen := remap(t, a.podAddr, aliasOfA), remap(t, b.podAddr, aliasOfB)
	// And the same with IPv6 inside.
	six := func(d *plan.Desired, local, remote string) {
		d.Nodes[0].PodCIDRs = append(d.Nodes[0].PodCIDRs, prefix("fd77:1::/64"))
		p := &d.Peers[0]
		p.Local = append(p.Local, plan.Mapping{Real: prefix("fd77:1::/64"), Alias: prefix(local)})
		p.Remote = append(p.Remote, plan.Mapping{Real: prefix("fd77:1::/64"), Alias: prefix(remote)})
		p.Inbound = append(p.Inbound, openTo(address("fd77:1::10")))
	}
	openA := openTo(a.podAddr)
	openB := openTo(b.podAddr)
	closedA := a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB))
	closedB := b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA))
	openedA := a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, openA))
	openedB := b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openB))
	a.set(closedA)
	b.set(closedB)
	a.up()
	b.up()

	t.Run("nothing is exposed by default", func(t *testing.T) {
		r.t = t
		r.wantClosed("pod to pod", a.pod, "tcp", bAsSeen, 8080)
		r.wantClosed("pod to pod", b.pod, "udp", aAsSeen, 8080)
		r.wantClosed("pod to bridge of the node", a.pod, "tcp", remap(t, b.bridge, aliasOfB), 8080)
	})
	a.set(openedA)
	b.set(openedB)
	t.Run("pods reach each other and see aliases", func(t *testing.T) {
		r.t = t
		for _, network := range []string{"tcp", "udp"} {
			r.wantSeen(network+" a to b", a.pod, network, bAsSeen, 8080, aAsSeen.String())
			r.wantSeen(network+" b to a", b.pod, network, aAsSeen, 8080, bAsSeen.String())
		}
		r.in(a.pod, "ping -c 3 -i 0.2 -W 1 "+bAsSeen.String())
		r.in(b.pod, "ping -c 3 -i 0.2 -W 1 "+aAsSeen.String())
	})
	t.Run("pods reach each other over IPv6", func(t *testing.T) {
		r.t = t
		both := [2]plan.Desired{
			a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, openA)),
			b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openB)),
		}
		six(&both[0], "fd88:a::/64", "fd88:b::/64")
		six(&both[1], "fd88:b::/64", "fd88:a::/64")
		a.set(both[0])
		b.set(both[1])
		for _, network := range []string{"tcp", "udp"} {
			r.wantSeen(network+" a to b", a.pod, network, address("fd88:b::10"), 8080, "fd88:a::10")
			r.wantSeen(network+" b to a", b.pod, network, address("fd88:a::10"), 8080, "fd88:b::10")
		}
		r.in(a.pod, "ping -c 2 -i 0.2 -W 5 fd88:b::10")
		r.wantRefused("a to b, refused", a.pod, address("fd88:b::10"))
		a.set(openedA)
		b.set(openedB)
	})
	t.Run("errors are translated to the end that caused them", func(t *testing.T) {
		r.t = t
		r.wantRefused("refused", a.pod, bAsSeen)
	})
	t.Run("services, nodes and node ports reach remote pods", func(t *testing.T) {
		r.t = t
		r.in(a.ns, fmt.Sprintf(`set -e
nft 'add chain ip cni pre { type nat hook prerouting priority -100; }'
nft 'add chain ip cni out { type nat hook output priority -100; }'
for c in pre out; do
nft add rule ip cni $c ip daddr 10.96.0.10 tcp dport 80 dnat to %[1]v:8080
nft add rule ip cni $c ip daddr %[2]v tcp dport 30080 meta mark set 0x4000 dnat to %[1]v:8080
done`, bAsSeen, a.underlay))
		nodeAsSeen := remap(t, a.bridge, aliasOfA).String()
		r.wantSeen("pod to service", a.pod, "tcp", address("10.96.0.10"), 80, aAsSeen.String())
		r.wantSeen("node to service", a.ns, "tcp", address("10.96.0.10"), 80, nodeAsSeen)
		r.wantSeen("node to pod", a.ns, "tcp", bAsSeen, 8080, nodeAsSeen)
		r.wantSeen("outsider to node port", "inet", "tcp", a.underlay, 30080, nodeAsSeen)
		r.in("inet", "ip route add "+aliasOfB+" via "+a.underlay.String())
		r.wantClosed("outsider to alias", "inet", "tcp", bAsSeen, 8080)
	})
	t.Run("packets and segments fit the tunnel", func(t *testing.T) {
		r.t = t
		r.in(a.pod, "ping -c 1 -W 5 -M do -s 1392 "+bAsSeen.String())
		if out, err := r.try(a.pod, "ping -c 1 -W 1 -M do -s 1393 "+bAsSeen.String()); err == nil || !strings.Contains(out, "mtu = 1420") && !strings.Contains(out, "mtu=1420") {
			t.Errorf("a packet of 1421 bytes: got %q, want an error that names the MTU", out)
		}
		for ns, to := range map[string]netip.Addr{a.pod: bAsSeen, b.pod: aAsSeen} {
			if mss := r.segment(ns, to); mss > 1380 {
				t.Errorf("segments from %s are %d bytes, want at most 1380", ns, mss)
			}
		}
	})
	t.Run("what is flushed by hand comes back", func(t *testing.T) {
		r.t = t
		r.repairs(a, bAsSeen)
	})
	t.Run("the fabric can be killed without losing a packet", func(t *testing.T) {
		r.t = t
		r.killFabric(a, openedA, bAsSeen)
	})
	t.Run("a preshared key that is missing takes nothing down", func(t *testing.T) {
		r.t = t
		r.missingKey(a, openedA, bAsSeen)
	})
	t.Run("closing cuts what was open", func(t *testing.T) {
		r.t = t
		r.closingCuts(b, closedB, openedB, a.pod, bAsSeen)
	})
	t.Run("the tunnel process can be lost and comes back with the same key", func(t *testing.T) {
		r.t = t
		key := a.key()
		a.wireguard.kill()
		r.wantClosed("without tunnel", a.pod, "tcp", bAsSeen, 8080)
		a.startWireGuard()
		took := r.eventually("traffic after the tunnel process came back", func() error {
			_, err := r.ask(a.pod, "tcp", bAsSeen, 8080)
			return err
		})
		t.Logf("back after %v", took.Round(10*time.Millisecond))
		if a.key() != key {
			t.Error("the key changed")
		}
	})
	t.Run("ten thousand open pairs are one transaction", func(t *testing.T) {
		r.t = t
		many := openedB
		all, some := openB, plan.Exposure{Name: "some", Destinations: []plan.Destination{{Addr: b.podAddr}}}
		for i := range 12000 {
			all.Destinations = append(all.Destinations, plan.Destination{Addr: netip.AddrFrom4([4]byte{10, 200, byte(i / 250), byte(i % 250)})})
			some.Sources = append(some.Sources, netip.AddrFrom4([4]byte{10, 241, byte(i / 250), byte(i % 250)}))
		}
		many.Peers = []plan.Peer{openedB.Peers[0]}
		many.Peers[0].Inbound = []plan.Exposure{all, some}
		b.set(many)
		took := r.eventually("all pairs", func() error {
			sources, _ := r.try(b.ns, "nft list map inet entente sources4")
			open, _ := r.try(b.ns, "nft list table inet entente")
			if s, o := strings.Count(sources, "10.241."), strings.Count(open, "10.200."); s < 12000 || o < 12000 {
				return fmt.Errorf("%d sources, %d destinations\n%s", s, o, b.fabric.log())
			}
			return nil
		})
		t.Logf("24000 pairs after %v", took.Round(10*time.Millisecond))
		r.wantSeen("with many pairs", a.pod, "tcp", bAsSeen, 8080, aAsSeen.String())
	})
	t.Run("what was an alias ends on the node when the peer is gone", func(t *testing.T) {
		r.t = t
		alone := a.desired([]*rigNode{a})
		alone.Pool = []netip.Prefix{prefix("10.242.0.0/15")}
		a.set(alone)
		r.eventually("the peer to be gone", func() error {
			if sets := r.in(a.ns, "nft list table inet entente"); strings.Contains(sets, "remote4") {
				return errors.New("its aliases are still known")
			}
			return nil
		})
		for _, ns := range []string{a.pod, a.ns} {
			for _, network := range []string{"tcp", "udp"} {
				r.wantClosed("from "+ns, ns, network, bAsSeen, 8080)
			}
		}
		a.set(openedA)
		r.wantSeen("the peer is back", a.pod, "tcp", bAsSeen, 8080, aAsSeen.String())
	})
	if clear := capture(); clear != "" {
		t.Errorf("seen in clear between the clusters: %q", clear)
	}
	t.Run("clean leaves nothing", func(t *testing.T) {
		r.t = t
		a.fabric.kill()
		a.wireguard.kill()
		clean := r.start(a.ns, "clean", []string{"TUNNEL_TEST_DEVICE=" + a.device})
		<-clean.done
		if log := clean.log(); log != "" {
			t.Errorf("clean: %s", log)
		}
		left := r.in(a.ns, "nft list tables | grep entente; ip -4 rule | grep 14[01]; ip -6 rule | grep 14[01]; ip -4 route show table all proto 141; ip -6 route show table all proto 141; ip -o link show "+a.device+" 2>/dev/null; true")
		if left != "" {
			t.Errorf("left over:\n%s", left)
		}
	})
}

// capture listens on the internet. The function it returns stops and gives what
// was neither WireGuard nor from the test itself.
func (r *rig) capture(ns string) func() string {
	file := filepath.Join(r.t.TempDir(), "clear.txt")
	out, err := os.Create(file)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := r.command(ns, "tcpdump", "-n", "-l", "-i", "br0", "not udp port 51820 and not udp portrange 20000-29999 and not ((icmp[0]==3 or icmp[0]==5) and (icmp[28:2]==51820 or icmp[30:2]==51820 or (icmp[30:2]>=20000 and icmp[30:2]<30000))) and not arp and not icmp6 and not tcp port 30080 and not (host 172.31.0.1 and ip) and not dst net ff02::/16")
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	stopped := false
	stop := func() string {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait()
			out.Close()
		}
		b, _ := os.ReadFile(file)
		return strings.TrimSpace(string(b))
	}
	r.t.Cleanup(func() { stop() })
	return stop
}

// segment is the size of TCP segments on a connection.
func (r *rig) segment(ns string, to netip.Addr) int {
	size := 0
	err := r.inNS(ns, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 8080).String(), 20*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		var serr error
		err = raw.Control(func(fd uintptr) { size, serr = maxSegment(int(fd)) })
		if serr != nil {
			return serr
		}
		return err
	})
	if err != nil {
		r.t.Errorf("connect from %s: %v", ns, err)
	}
	return size
}

// repairs breaks one thing after the other and waits for traffic.
func (r *rig) repairs(n *rigNode, to netip.Addr) {
	for name, script := range map[string]string{
		"table":       "nft delete table inet entente",
		"one rule":    "nft flush chain inet entente source",
		"one set":     "nft flush set inet entente remote4",
		"routes":      "ip route flush table 14100; ip -6 route flush table 14100",
		"rules":       "ip rule del pref 141; ip -6 rule del pref 141",
		"address":     "ip -6 addr flush dev " + n.device + " scope global",
		"link down":   "ip link set " + n.device + " down",
		"mtu":         "ip link set " + n.device + " mtu 1300",
		"peers":       "for p in $(wg show " + n.device + " peers 2>/dev/null); do wg set " + n.device + " peer $p remove; done",
		"device gone": "ip link del " + n.device,
	} {
		time.Sleep(300 * time.Millisecond) // all is quiet
		r.fullSize(n)
		want := r.state(n)
		r.in(n.ns, script)
		took := r.eventually("repair of "+name, func() error {
			if got := r.state(n); got != want {
				return fmt.Errorf("state differs:\n%s\nwant:\n%s\n%s", got, want, n.fabric.log())
			}
			_, err := r.ask(n.pod, "tcp", to, 8080)
			return err
		})
		r.t.Logf("%s repaired after %v", name, took.Round(10*time.Millisecond))
		if took > 10*resyncEvery {
			r.t.Errorf("repair of %s took %v", name, took)
		}
	}
}

func (r *rig) routes(n *rigNode) string { return r.in(n.ns, "ip route show table 14100") }

// fullSize waits until packets of the size that the way passes are used, and returns the routes. What was broken before
// may have lost large packets: then smaller ones are used until larger ones are tried again.
func (r *rig) fullSize(n *rigNode) (routes string) {
	r.t.Helper()
	r.eventually("packets of full size to be used", func() error {
		if routes = r.routes(n); !strings.Contains(routes, "mtu 1420") {
			return fmt.Errorf("the routes are\n%s", routes)
		}
		return nil
	})
	return routes
}

// state is what of ours is in the kernel; sets and chains in the order of their names, not in
// that in which they were made.
func (r *rig) state(n *rigNode) string {
	table, _ := r.try(n.ns, "nft list table inet entente | sed 's/packets [0-9]* bytes [0-9]*//'")
	blocks := strings.Split(table, "\n\n")
	for i, b := range blocks {
		blocks[i] = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b), "table inet entente {\n\t"), "\n}")
	}
	slices.Sort(blocks)
	out, _ := r.try(n.ns, fmt.Sprintf(`ip rule | grep 14[01]; ip -6 rule | grep 14[01]
ip route show table 14100; ip -6 route show table 14100; ip -o -6 addr show dev %[1]s scope global | cut -d' ' -f2-; ip link show %[1]s | grep -o 'mtu [0-9]*\|,UP,'; wg show %[1]s allowed-ips | sort; wg show %[1]s private-key | sha256sum`, n.device))
	return strings.Join(blocks, "\n\n") + "\n" + out
}

// killFabric kills and restarts the fabric under a stream of datagrams.
func (r *rig) killFabric(n *rigNode, d plan.Desired, to netip.Addr) {
	key := n.key()
	before := r.fullSize(n)
	const every, total = 2 * time.Millisecond, 3000
	lost := make(chan string)
	go func() {
		out, _ := r.try(n.pod, fmt.Sprintf("ping -q -i %v -c %d -W 10 %v", every.Seconds(), total, to))
		lost <- out
	}()
	for range 3 {
		time.Sleep(700 * time.Millisecond)
		n.fabric.kill()
		time.Sleep(300 * time.Millisecond)
		n.startFabric()
		n.set(d)
	}
	if out := <-lost; !strings.Contains(out, fmt.Sprintf("%d received, 0%% packet loss", total)) {
		r.t.Errorf("packets lost while the fabric was killed:\n%s", out)
	} else {
		r.t.Log(strings.TrimSpace(out))
	}
	if n.key() != key {
		r.t.Error("the key changed")
	}
	if log := n.fabric.log(); strings.Contains(log, "level=INFO") {
		r.t.Errorf("a restarted fabric changed what was right:\n%s\nroutes before:\n%s\nroutes now:\n%s", log, before, r.routes(n))
	}
}

// missingKey takes the preshared key away from a fabric that runs, and from one that
// starts, under a stream of datagrams.
func (r *rig) missingKey(n *rigNode, d plan.Desired, to netip.Addr) {
	without := d
	without.Peers = []plan.Peer{d.Peers[0]}
	without.Peers[0].PresharedKey, without.Peers[0].KeyMissing = plan.PresharedKey{}, true
	keys := func() string { return r.in(n.ns, "wg show "+n.device+" preshared-keys") }
	time.Sleep(300 * time.Millisecond) // all is quiet
	state, psks := r.state(n), keys()
	const every, total = 5 * time.Millisecond, 600
	lost := make(chan string)
	go func() {
		out, _ := r.try(n.pod, fmt.Sprintf("ping -q -i %v -c %d -W 10 %v", every.Seconds(), total, to))
		lost <- out
	}()
	n.set(without)
	time.Sleep(time.Second)
	n.fabric.kill()
	n.startFabric()
	n.set(without)
	r.eventually("the problem is reported", func() error {
		for _, p := range n.fabric.seen().Problems {
			if strings.Contains(p.Text, "preshared key") {
				return nil
			}
		}
		return fmt.Errorf("got %+v", n.fabric.seen().Problems)
	})
	if out := <-lost; !strings.Contains(out, fmt.Sprintf("%d received, 0%% packet loss", total)) {
		r.t.Errorf("packets lost without the key:\n%s", out)
	}
	if got := r.state(n); got != state {
		r.t.Errorf("the kernel's state changed:\n%s\nwant:\n%s", got, state)
	}
	if keys() != psks {
		r.t.Error("the device's preshared keys changed")
	}
	n.set(d)
}

// closingCuts closes an exposure under an established connection.
func (r *rig) closingCuts(n *rigNode, closed, opened plan.Desired, pod string, to netip.Addr) {
	err := r.inNS(pod, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 8080).String(), 20*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		lines := bufio.NewReader(c)
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := lines.ReadString('\n'); err != nil {
			return err
		}
		echo := func(within time.Duration) error {
			_ = c.SetDeadline(time.Now().Add(within))
			if _, err := c.Write([]byte("x\n")); err != nil {
				return err
			}
			_, err := lines.ReadString('\n')
			return err
		}
		if err := echo(20 * time.Second); err != nil {
			return fmt.Errorf("before: %w", err)
		}
		n.set(closed)
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if echo(2*time.Second) != nil {
				return nil
			}
		}
		return fmt.Errorf("the connection survived")
	})
	if err != nil {
		r.t.Error(err)
	}
	n.set(opened)
	r.eventually("open again", func() error {
		_, err := r.ask(pod, "tcp", to, 8080)
		return err
	})
}
