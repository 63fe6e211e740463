package tunnel

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// roleMirror is a tunnel process in whose place all peers answer: what is configured is kept by a
// wireguard-go that has no network, each probe is answered, and each peer has just made a handshake.
func roleMirror(ctx context.Context) error {
	name := os.Getenv("TUNNEL_TEST_DEVICE")
	file, err := openTUN(name)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = file.Close() })()
	held := device.NewDevice(tuntest.NewChannelTUN().TUN(), conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	l, err := userspace.Listen(ctx, userspace.Socket(name))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go mirrorControl(c, held)
		}
	}()
	packet := make([]byte, 1<<16)
	for {
		n, err := file.Read(packet)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if mirrorProbe(packet[:n]) {
			_, _ = file.Write(packet[:n])
		}
	}
}

// openTUN makes a TUN device whose packets have no checksums left out.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := errors.Join(unix.IoctlIfreq(fd, unix.TUNSETIFF, request), unix.SetNonblock(fd, true)); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// mirrored counts the bytes that the peers would have sent.
var mirrored atomic.Int64

// What the mirror logs: a line for each time that its state is read, and one for each peer that is written, unless
// only its endpoint is: the fabric tries others when probes are lost.
const mirrorGet, mirrorSet = "state is read", "peer is written: "

// writtenPeers are the keys of the peers of which a request writes more than the endpoint.
func writtenPeers(request string) (keys []string) {
	key := ""
	for line := range strings.Lines(request) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "public_key":
			key = value
		case "preshared_key", "persistent_keepalive_interval", "allowed_ip", "replace_allowed_ips", "remove":
			if key != "" {
				keys, key = append(keys, key), "" // once
			}
		}
	}
	return keys
}

// mirrorControl answers requests of the control socket as a device does that all peers answer.
func mirrorControl(c net.Conn, held *device.Device) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		var request strings.Builder
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\n" {
				break
			}
			request.WriteString(line)
		}
		switch request.String() + "\n" {
		case userspace.ReportRequest: // nothing was refused
			_, _ = fmt.Fprint(c, "errno=0\n\n")
			return
		case "get=1\n\n":
			fmt.Fprintln(os.Stderr, mirrorGet)
		default:
			errno := 0
			for _, key := range writtenPeers(request.String()) {
				fmt.Fprintln(os.Stderr, mirrorSet+key)
			}
			if _, set, _ := strings.Cut(request.String(), "\n"); held.IpcSet(set) != nil {
				errno = int(unix.EINVAL)
			}
			_, _ = fmt.Fprintf(c, "errno=%d\n\n", errno)
			continue
		}
		state, err := held.IpcGet()
		if err != nil {
			return
		}
		state = strings.NewReplacer(
			"last_handshake_time_sec=0", fmt.Sprint("last_handshake_time_sec=", time.Now().Unix()/100*100),
			"rx_bytes=0", fmt.Sprint("rx_bytes=", mirrored.Add(100))).Replace(state)
		_, _ = fmt.Fprintf(c, "%serrno=0\n\n", state)
	}
}

// mirrorProbe makes a probe the answer to it, and reports whether it was one.
func mirrorProbe(packet []byte) bool {
	addresses, length, udp := 8, 16, 40
	if len(packet) > 0 && packet[0]>>4 == 4 {
		addresses, length, udp = 12, 4, 20
	}
	if len(packet) < udp+8+24 || string(packet[udp+8:udp+12]) != "entp" {
		return false
	}
	kind := &packet[udp+8+5]
	if *kind != 1 && *kind != 10 {
		return false
	}
	*kind++
	from, to := packet[addresses:addresses+length], packet[addresses+length:addresses+2*length]
	for i := range from {
		from[i], to[i] = to[i], from[i]
	}
	packet[udp], packet[udp+1], packet[udp+2], packet[udp+3] = packet[udp+2], packet[udp+3], packet[udp], packet[udp+1]
	sum := packet[udp+6 : udp+8]
	less := uint32(binary.BigEndian.Uint16(sum)) + 0xfffe // RFC 1624: the word of the kind is one more
	binary.BigEndian.PutUint16(sum, uint16(less+less>>16))
	return true
}

// crowded makes a gateway of a cluster of 100 nodes with so many peers, of which each has two gateways,
// reaches 20 pods, and has two nodes that are probed end to end. All answer. reports is how often its fabric reports its
// status if that does not change.
func (r *rig) crowded(peers int, reports time.Duration) (*rigNode, plan.Desired) {
	r.t.Helper()
	n := &rigNode{
		r: r, cluster: "home", name: "n0", ns: "n0", device: r.prefix + "n0", underlay: address("172.31.0.11"), podCIDR: prefix("10.200.0.0/24"),
	}
	r.addNS(n.ns)
	r.in("inet", fmt.Sprintf("ip link add en0 type veth peer name eth0 netns %sn0 && ip link set en0 master br0 up", r.prefix))
	r.in(n.ns, `set -e
ip link set lo up
ip addr add 172.31.0.11/24 dev eth0; ip link set eth0 up; ip route add default via 172.31.0.1
ip link add cni0 type bridge; ip addr add 10.200.0.1/24 dev cni0; ip link set cni0 up
echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding`)
	n.wireguard = r.start(n.ns, "mirror", []string{"TUNNEL_TEST_DEVICE=" + n.device})
	n.fabric = r.start(n.ns, "fabric", []string{"TUNNEL_TEST_DEVICE=" + n.device, "TUNNEL_TEST_REPORTS=" + reports.String()})
	r.t.Cleanup(func() {
		n.fabric.kill()
		n.wireguard.kill()
		_ = os.Remove(userspace.Socket(n.device))
		_ = os.Remove(userspace.FabricLock(n.device))
	})
	d := plan.Desired{ClusterID: clusterID("a"), Node: "n0", Reserved: []netip.Prefix{prefix("10.96.0.0/16")}, Pool: []netip.Prefix{prefix("fd00::/16")}}
	for i := range 100 {
		node := plan.Node{Name: fmt.Sprint("n", i), Endpoints: []string{"172.31.0.99:51820"}, Gateway: i < 3, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i)}), 24)}}
		if i > 0 {
			node.PublicKey = plan.PublicKey{1, byte(i)}
		}
		d.Nodes = append(d.Nodes, node)
	}
	for i := range peers {
		alias := netip.AddrFrom4([4]byte{byte(20 + i/200), byte(i % 200)})
		q := plan.Peer{
			ClusterID: fmt.Sprintf("%s%03d", clusterID("b")[3:], i), PresharedKey: plan.PresharedKey{1},
			Local:  []plan.Mapping{{Real: prefix("10.200.0.0/16"), Alias: prefix("10.199.0.0/16")}},
			Remote: []plan.Mapping{{Real: prefix("10.200.0.0/16"), Alias: netip.PrefixFrom(alias, 16)}},
		}
		e := plan.Exposure{Name: "e", AnySource: true}
		for p := range 20 {
			e.Destinations = append(e.Destinations, plan.Destination{Addr: netip.AddrFrom4([4]byte{10, 200, byte(p), 9}), Protocol: plan.TCP, Port: uint16(1 + i)})
		}
		for g := range 2 {
			q.Gateways = append(q.Gateways, plan.Gateway{Node: fmt.Sprint("g", g), PublicKey: plan.PublicKey{2, byte(i), byte(i >> 8), byte(g)}, Endpoints: []string{fmt.Sprintf("192.0.2.%d:51820", 1+i%200)}})
			at := alias.As4()
			at[2], at[3] = byte(g), 1
			q.Probed = append(q.Probed, plan.Probed{Node: fmt.Sprint("g", g), Addrs: []netip.Addr{netip.AddrFrom4(at)}})
		}
		q.Inbound = []plan.Exposure{e}
		d.Peers = append(d.Peers, q)
	}
	return n, d
}

// allUp reports whether all of some paths are up, and whether all peers have an end-to-end state.
func (n *rigNode) allUp(paths int) error {
	s := n.fabric.seen()
	up, unknown := 0, 0
	for _, p := range s.Peers {
		if p.State == probe.PathUp {
			up++
		}
	}
	for _, e := range s.Ends {
		if e.State == probe.EndUnknown {
			unknown++
		}
	}
	if up < paths || unknown > 0 {
		return fmt.Errorf("%d of %d paths are up, of %d peers nothing is known end to end: %v", up, paths, unknown, s.Problems[:min(3, len(s.Problems))])
	}
	return nil
}

// peerCounts are numbers of peers, or the one in TUNNEL_BENCH_PEERS.
func peerCounts(t *testing.T, counts ...int) []int {
	t.Helper()
	text := os.Getenv("TUNNEL_BENCH_PEERS")
	if text == "" {
		return counts
	}
	var n int
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return []int{n}
}

// TestFabricAtRest prints what a fabric takes of a processor, and what its probes send, while nothing
// changes, as a gateway of a cluster of 100 nodes and with so many peers. TUNNEL_BENCH_PEERS says how
// many. It takes eight minutes: TUNNEL_BENCH=1 go test -run TestFabricAtRest -v ./tunnel/
func TestFabricAtRest(t *testing.T) {
	if os.Getenv("TUNNEL_BENCH") == "" {
		t.Skip("takes eight minutes; set TUNNEL_BENCH=1")
	}
	counts := peerCounts(t, 1, 10, 100, 250, 500)
	type course struct {
		peers  int
		probed bool // end to end
	}
	var courses []course
	for _, peers := range counts {
		courses = append(courses, course{peers, true})
		if peers == 250 {
			courses = append(courses, course{peers, false})
		}
	}
	for _, c := range courses {
		t.Run(fmt.Sprintf("%d peers, probed end to end: %t", c.peers, c.probed), func(t *testing.T) {
			r, peers := newRig(t), c.peers
			n, d := r.crowded(peers, 10*time.Second)
			for i := range d.Peers {
				if !c.probed {
					d.Peers[i].Probed = nil
				}
			}
			n.set(d)
			for began := time.Now(); ; time.Sleep(time.Second) { // a node probes 8 peers a second end to end
				err := n.allUp(99 + 2*peers)
				if err == nil {
					break
				}
				if time.Since(began) > 3*time.Minute {
					t.Fatal(err)
				}
			}
			time.Sleep(15 * time.Second)
			const over = 30 * time.Second
			packets := func() (sum int) {
				_, _ = fmt.Sscan(r.in(n.ns, "awk '/"+n.device+":/ { print $11 }' /proc/net/dev"), &sum)
				return sum
			}
			before, sent := usage(t, n.fabric), packets()
			mirror := usage(t, n.wireguard)
			time.Sleep(over)
			after, mirrorAfter := usage(t, n.fabric), usage(t, n.wireguard)
			t.Logf("%d peers: %.2f %% of a processor, %.0f wakes and %.0f packets a second; the tunnel process's stand-in %.2f %%", peers,
				float64(after[0]-before[0])/1e7/over.Seconds(), float64(after[1]-before[1])/over.Seconds(), float64(packets()-sent)/over.Seconds(),
				float64(mirrorAfter[0]-mirror[0])/1e7/over.Seconds())
		})
	}
}
