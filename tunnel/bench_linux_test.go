package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// rolePlain is wireguard-go as it comes: no bounds, no fabric.
func rolePlain(ctx context.Context) error {
	t, err := tun.CreateTUN(os.Getenv("TUNNEL_TEST_DEVICE"), 1420)
	if err != nil {
		return err
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	l, err := userspace.Listen(ctx, userspace.Socket(os.Getenv("TUNNEL_TEST_DEVICE")))
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go d.IpcHandle(c)
	}
}

const benchAliasOfA, benchAliasOfB = "10.241.0.0/16", "10.242.0.0/16"

// besidePlain sets up two clusters of a node each with the fabric between them, and
// wireguard-go alone beside it.
func besidePlain(t *testing.T) (r *rig, a, b *rigNode, plainA, plainB *process) {
	t.Helper()
	r = newRig(t)
	a, b = r.node("a", 1, "11"), r.node("b", 2, "12")
	a.set(a.desired([]*rigNode{a}, peering(b, benchAliasOfA, benchAliasOfB)))
	b.set(b.desired([]*rigNode{b}, peering(a, benchAliasOfB, benchAliasOfA, openTo(b.podAddr))))
	a.up()
	b.up()
	return r, a, b, r.plain(a, b, 51999), r.plain(b, a, 51998)
}

// TestMemoryUnderFlood floods a live peer through the tunnel process and through
// wireguard-go alone, and prints the most memory that each took. It fails if the tunnel
// process took more than 256 MiB; its container has 384. Set GOMEMLIMIT to see what
// that alone does. It takes half a minute:
// TUNNEL_BENCH=1 go test -run TestMemoryUnderFlood -v ./tunnel/
func TestMemoryUnderFlood(t *testing.T) {
	if os.Getenv("TUNNEL_BENCH") == "" {
		t.Skip("takes half a minute; set TUNNEL_BENCH=1")
	}
	r, a, b, plainA, plainB := besidePlain(t)

	for _, to := range []netip.Addr{remap(t, b.podAddr, benchAliasOfB), b.podAddr} {
		stop := r.flood(a.pod, to, 0)
		time.Sleep(5 * time.Second)
		stop()
	}
	for _, p := range []struct {
		name  string
		of    *process
		limit int
	}{
		{"sending", a.wireguard, 256},
		{"receiving", b.wireguard, 256},
		{"wireguard-go alone, sending", plainA, 0},
		{"wireguard-go alone, receiving", plainB, 0},
	} {
		took := peakMemory(t, p.of)
		t.Logf("%s: %d MiB", p.name, took)
		if p.limit > 0 && took > p.limit {
			t.Errorf("%s: the tunnel process took %d MiB, want at most %d", p.name, took, p.limit)
		}
	}
}

// TestTunnelProcessAtRest prints what the tunnel process and wireguard-go alone take while no pod
// sends, with probes inside the tunnel and then with those end to end as well: of a processor, and how often a second they wake. It
// fails if the tunnel process wakes more than 150 times. It takes two minutes:
// TUNNEL_BENCH=1 go test -run TestTunnelProcessAtRest -v ./tunnel/
func TestTunnelProcessAtRest(t *testing.T) {
	if os.Getenv("TUNNEL_BENCH") == "" {
		t.Skip("takes two minutes; set TUNNEL_BENCH=1")
	}
	_, a, b, plain, _ := besidePlain(t)
	atRest := func(what string) {
		time.Sleep(15 * time.Second) // new ways are probed more often
		processes := map[string]*process{"tunnel process": a.wireguard, "the peer's": b.wireguard, "wireguard-go alone": plain, "fabric": a.fabric}
		before := map[string][2]int64{}
		began := time.Now()
		for name, p := range processes {
			before[name] = usage(t, p)
		}
		time.Sleep(45 * time.Second)
		for name, p := range processes {
			now, seconds := usage(t, p), time.Since(began).Seconds()
			wakes := float64(now[1]-before[name][1]) / seconds
			t.Logf("%s, %s: %.3f %% of a processor, %.0f wakes a second", what, name, float64(now[0]-before[name][0])/1e7/seconds, wakes)
			if p != plain && wakes > 150 {
				t.Errorf("%s woke %.0f times a second, want 150 at most", name, wakes)
			}
		}
	}
	atRest("probes in the tunnel")
	probed := func(n, of *rigNode, local, remote string, open ...plan.Exposure) {
		q := peering(of, local, remote, open...)
		q.Probed = []plan.Probed{{Node: of.name, Addrs: []netip.Addr{remap(t, of.bridge, remote)}}}
		n.set(n.desired([]*rigNode{n}, q))
	}
	probed(a, b, benchAliasOfA, benchAliasOfB)
	probed(b, a, benchAliasOfB, benchAliasOfA, openTo(b.podAddr))
	a.r.eventually("a way is known end to end", func() error {
		if s := a.fabric.seen(); len(s.Ends) != 1 || s.Ends[0].State != probe.EndUp {
			return fmt.Errorf("%+v", s.Ends)
		}
		return nil
	})
	atRest("end to end as well")
}

// usage returns for how many nanoseconds the threads of a process have run, and how often they
// went to sleep.
func usage(t *testing.T, p *process) (sum [2]int64) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		ran, err := os.ReadFile(filepath.Join(dir, thread.Name(), "schedstat"))
		status, err2 := os.ReadFile(filepath.Join(dir, thread.Name(), "status"))
		if err != nil || err2 != nil {
			t.Fatal(errors.Join(err, err2))
		}
		var of [2]int64
		_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		_, err = fmt.Sscan(string(ran), &of[0])
		_, err2 = fmt.Sscan(rest, &of[1])
		if err != nil || err2 != nil {
			t.Fatal(errors.Join(err, err2))
		}
		sum[0], sum[1] = sum[0]+of[0], sum[1]+of[1]
	}
	return sum
}

// peakMemory returns the most memory that a process had resident, in MiB.
func peakMemory(t *testing.T, p *process) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// flood sends UDP packets, 48,000 bytes at a time and then a pause, until it is stopped.
func (r *rig) flood(from string, to netip.Addr, pause time.Duration) (stop func()) {
	stopped, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- r.inNS(from, func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(to, 8080).String())
			if err != nil {
				return err
			}
			defer c.Close()
			raw, err := c.(*net.UDPConn).SyscallConn()
			if err != nil {
				return err
			}
			// Many packets in one, so that one read of the TUN device takes as many buffers.
			if err := raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1200) }); err != nil {
				return err
			}
			many := make([]byte, 1200*40)
			for {
				select {
				case <-stopped:
					return nil
				default:
				}
				_, _ = c.Write(many)
				time.Sleep(pause)
			}
		})
	}()
	return func() {
		r.t.Helper()
		close(stopped)
		if err := <-ended; err != nil {
			r.t.Fatal(err)
		}
	}
}

// plain sets up wireguard-go alone from a node to another.
func (r *rig) plain(n, to *rigNode, port int) *process {
	r.t.Helper()
	name := n.device + "p"
	p := r.start(n.ns, "plain", []string{"TUNNEL_TEST_DEVICE=" + name})
	r.t.Cleanup(func() {
		p.kill()
		_ = os.Remove(userspace.Socket(name))
	})
	r.eventually("plain device", func() error {
		_, err := os.Stat(userspace.Socket(name))
		return err
	})
	key := func(n *rigNode) wgtypes.Key { return wgtypes.Key{8, n.name[0]} }
	private := r.t.TempDir() + "/key"
	if err := os.WriteFile(private, []byte(key(n).String()), 0o600); err != nil {
		r.t.Fatal(err)
	}
	otherPort := map[int]int{51999: 51998, 51998: 51999}[port]
	r.in(n.ns, fmt.Sprintf(`set -e
wg set %[1]s listen-port %[2]d private-key %[3]s peer %[4]s endpoint %[5]v:%[6]d allowed-ips %[7]v
ip link set %[1]s mtu 1420 up
ip route add %[7]v dev %[1]s
nft insert rule ip cni post ip saddr 10.200.0.0/16 ip daddr 10.200.0.0/16 accept`,
		name, port, private, key(to).PublicKey(), to.underlay, otherPort, to.podCIDR))
	return p
}
