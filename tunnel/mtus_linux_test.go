package tunnel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// hop is a network between two nodes that passes packets of so many bytes.
type hop struct {
	mtu int
	// silent says that routers' ICMP errors about packets that are too large are dropped on the way.
	silent bool
	// six says that it has IPv6 alone.
	six bool
}

// String names the hop.
func (h hop) String() string {
	return fmt.Sprintf("%d bytes over IPv%s, ICMP %s", h.mtu, map[bool]string{false: "4", true: "6"}[h.six], map[bool]string{false: "passes", true: "is dropped"}[h.silent])
}

// overhead is the size of the outer headers and WireGuard's.
func (h hop) overhead() int {
	if h.six {
		return 80
	}
	return 60
}

// hops are all that are tried, and those that are with every change.
func hops() (all, sample []hop) {
	for _, six := range []bool{false, true} {
		for _, silent := range []bool{false, true} {
			for _, mtu := range []int{1280, 1296, 1368, 1400, 1450, 1500, 9000} {
				all = append(all, hop{mtu, silent, six})
			}
		}
	}
	return all, []hop{{1280, true, false}, {1450, false, true}}
}

// between puts routers and the hop between two nodes.
func (r *rig) between(h hop, a, b *rigNode) {
	r.t.Helper()
	r.addNS("far")
	link := max(1500, h.mtu)
	r.in("inet", fmt.Sprintf(`set -e
ip link add mid type veth peer name mid netns %[1]sfar
ip link set mid mtu %[2]d up
ip link set e%[3]s nomaster; ip link set e%[3]s netns %[1]sfar
ip link set e%[4]s mtu %[5]d; ip link set br0 mtu %[5]d`, r.prefix, h.mtu, b.name, a.name, link))
	r.in("far", fmt.Sprintf("ip link set lo up; ip link set mid mtu %d up; ip link set e%s mtu %d up", h.mtu, b.name, link))
	for ns, own := range map[string]struct{ near, mid, dev, to, via string }{
		"inet": {"172.31.0.1/24", "172.31.9.1/24", "br0", "172.31.1.0/24", "172.31.9.2"},
		"far":  {"172.31.1.1/24", "172.31.9.2/24", "e" + b.name, "172.31.0.0/24", "172.31.9.1"},
	} {
		if h.six {
			for _, s := range []*string{&own.near, &own.mid, &own.to, &own.via} {
				*s = inSix(*s)
			}
		}
		r.in(ns, fmt.Sprintf(`set -e
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
ip addr flush dev %[1]s scope global
ip addr add %[2]s dev %[1]s%[6]s; ip addr add %[3]s dev mid%[6]s; ip route add %[4]s via %[5]s`, own.dev, own.near, own.mid, own.to, own.via, map[bool]string{true: " nodad"}[h.six]))
		if h.silent {
			r.in(ns, `nft add table inet quiet; nft 'add chain inet quiet out { type filter hook output priority 0; }'
nft add rule inet quiet out icmp type destination-unreachable drop; nft add rule inet quiet out icmpv6 type packet-too-big drop`)
		}
	}
	b.underlay = netip.MustParseAddr("172.31.1.12")
	for n, gateway := range map[*rigNode]string{a: "172.31.0.1", b: "172.31.1.1"} {
		address := n.underlay.String() + "/24"
		if h.six {
			address, gateway = inSix(address), inSix(gateway)
			n.underlay = netip.MustParsePrefix(address).Addr()
		}
		r.in(n.ns, fmt.Sprintf("set -e; ip addr flush dev eth0 scope global; ip link set eth0 mtu %d; ip addr add %s dev eth0%s; ip route replace default via %s", link, address, map[bool]string{true: " nodad"}[h.six], gateway))
	}
}

// inSix writes 172.31.C.D as 2001:db8:C::D, and /24 as /64.
func inSix(s string) string {
	address, bits, prefix := strings.Cut(s, "/")
	a := netip.MustParseAddr(address).As4()
	out := fmt.Sprintf("2001:db8:%d::%d", a[2], a[3])
	if prefix {
		out += map[string]string{"24": "/64"}[bits]
	}
	return out
}

// bulk sends so many bytes over TCP to a server that sends them back, and returns for how long
// at most none came.
func (r *rig) bulk(ns string, to netip.Addr, size int) (stall time.Duration, err error) {
	err = r.inNS(ns, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 8080).String(), 10*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		pattern := make([]byte, 251*256)
		for i := range pattern {
			pattern[i] = byte(i % 251)
		}
		var sent sync.WaitGroup
		defer sent.Wait()
		sent.Go(func() {
			for left := size; left > 0; left -= len(pattern) {
				if _, err := c.Write(pattern[:min(left, len(pattern))]); err != nil {
					return // the reader sees it
				}
			}
		})
		var line [1]byte // the server first sends the address that it sees
		for line[0] != '\n' {
			if _, err := io.ReadFull(c, line[:]); err != nil {
				return err
			}
		}
		got, last := make([]byte, len(pattern)), time.Now()
		for left := size; left > 0; left -= len(got) {
			got = got[:min(left, len(got))]
			if _, err := io.ReadFull(c, got); err != nil {
				return fmt.Errorf("%d of %d bytes are missing: %w", left, size, err)
			}
			if !bytes.Equal(got, pattern[:len(got)]) {
				return errors.New("other bytes came back")
			}
			stall, last = max(stall, time.Since(last)), time.Now()
		}
		return nil
	})
	return stall, err
}

// fragments records what is a fragment on the hop. The function that it returns ends that, and
// says what there was.
func (r *rig) fragments() func() string {
	r.t.Helper()
	cmd := r.command("inet", "tcpdump", "-n", "-l", "-i", "mid", "ip[6:2] & 0x3fff != 0 or ip6[6] == 44")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	r.t.Cleanup(stop)
	return func() string {
		stop()
		return strings.TrimSpace(out.String())
	}
}

// TestWhateverTheNetworkPasses has a narrow network between two nodes, with routers that say so
// and with routers that do not. Large transfers do not stall, large datagrams arrive, and once it
// is known what passes no packet of a tunnel is cut up.
func TestWhateverTheNetworkPasses(t *testing.T) {
	t.Parallel()
	all, sample := hops()
	tried, size := sample, 20<<20
	if os.Getenv("ENTENTE_MATRIX") != "" {
		tried, size = all, 100<<20
	}
	for _, h := range sample {
		if !slices.Contains(all, h) {
			t.Errorf("%s is not among those that are tried", h)
		}
	}
	for _, h := range tried {
		t.Run(h.String(), func(t *testing.T) { passes(t, h, size) })
	}
}

func passes(t *testing.T, h hop, size int) {
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	r.between(h, a, b)
	if h.mtu > 1500 { // network plugins follow the nodes' networks
		for _, n := range []*rigNode{a, b} {
			r.in(n.pod, fmt.Sprintf("ip link set eth0 mtu %d", h.mtu))
			r.in(n.ns, fmt.Sprintf("ip link set vpod mtu %[1]d; ip link set cni0 mtu %[1]d", h.mtu))
		}
	}
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	withSix := func(d plan.Desired, local, remote string) plan.Desired {
		own := prefix("fd77:1::/64")
		d.Nodes[0].PodCIDRs = append(d.Nodes[0].PodCIDRs, own)
		p := &d.Peers[0]
		p.Local = append(p.Local, plan.Mapping{Real: own, Alias: prefix(local)})
		p.Remote = append(p.Remote, plan.Mapping{Real: own, Alias: prefix(remote)})
		p.Inbound = append(p.Inbound, openTo(address("fd77:1::10")))
		return d
	}
	a.set(withSix(a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, openTo(a.podAddr))), "fd88:a::/64", "fd88:b::/64"))
	b.set(withSix(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openTo(b.podAddr))), "fd88:b::/64", "fd88:a::/64"))
	a.up()
	b.up()
	largest := h.mtu - h.overhead()
	for _, n := range []*rigNode{a, b} {
		took := r.eventually("the size that passes from "+n.name, func() error {
			for _, p := range n.fabric.seen().Peers {
				// Where the network reports its MTU, 80 bytes are taken off either way; the
				// search goes in steps of 16.
				if p.MTU > largest || p.MTU < min(largest, n.fabric.seen().MTU)-20-16 {
					return fmt.Errorf("%d bytes of %d: %+v", p.MTU, largest, p)
				}
			}
			return nil
		})
		t.Logf("%s knows what passes after %v", n.name, took.Round(100*time.Millisecond))
	}
	carries := func(from *rigNode, to netip.Addr) {
		t.Helper()
		stall, err := r.bulk(from.pod, to, size)
		if err != nil || stall > 3*time.Second {
			t.Errorf("%d MiB from %s to %v and back: none came for %v, %v", size>>20, from.name, to, stall, err)
		}
		for _, size := range []int{8 << 10, 60 << 10} {
			err := r.echo(from.pod, "udp", to, size)
			for range 2 { // one too large is lost, and its sender notified: it may come from either end
				if err != nil {
					err = r.echo(from.pod, "udp", to, size)
				}
			}
			if err != nil {
				t.Errorf("a datagram of %d bytes from %s to %v and back: %v", size, from.name, to, err)
			}
		}
	}
	cut := r.fragments() // until then the kernel may cut up the packets of which it learns that they are too large
	text := ""
	for _, p := range a.fabric.seen().Problems {
		text += p.Text
	}
	if narrow := strings.Contains(text, "which IPv6 needs"); narrow != (largest < probe.MinMTU) {
		t.Errorf("that IPv6 lacks something is reported: %t: %+v", narrow, a.fabric.seen().Problems)
	}
	carries(a, remap(t, b.podAddr, aliasOfB))
	carries(b, remap(t, a.podAddr, aliasOfA))
	if largest >= probe.MinMTU {
		carries(a, address("fd88:b::10"))
		carries(b, address("fd88:a::10"))
	}
	if out := cut(); out != "" {
		t.Errorf("fragments on the way:\n%s", out)
	}
}
