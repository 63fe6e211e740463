package tunnel

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// The rig is a small Internet of network namespaces: a bridge, clusters of
// nodes on it, a pod behind each node. Fabrics, tunnel processes and servers
// are this test binary, run again in the namespace with a role.

const roleVariable = "TUNNEL_TEST_ROLE"

func runRole(role string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	switch role {
	case "wireguard":
		err = userspace.Run(ctx, userspace.Config{Device: os.Getenv("TUNNEL_TEST_DEVICE"), Log: log})
	case "fabric":
		err = roleFabric(ctx, log)
	case "clean":
		err = Clean(Config{Device: os.Getenv("TUNNEL_TEST_DEVICE")})
	case "plain":
		err = rolePlain(ctx)
	case "mirror":
		err = roleMirror(ctx)
	case "server":
		err = roleServer(ctx)
	case "traffic-server":
		err = roleTrafficServer(ctx)
	case "traffic-client":
		err = roleTrafficClient()
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// roleFabric takes gob-encoded Desired values on standard input and writes its
// status as JSON lines: each 200 ms, or as often as is set.
func roleFabric(ctx context.Context, log *slog.Logger) error {
	every, err := time.ParseDuration(cmp.Or(os.Getenv("TUNNEL_TEST_REPORTS"), "200ms"))
	if err != nil {
		return err
	}
	f, err := New(Config{Device: os.Getenv("TUNNEL_TEST_DEVICE"), DelayRelay: askToDelay, Log: log})
	if err != nil {
		return err
	}
	go func() {
		dec := gob.NewDecoder(os.Stdin)
		for {
			var d plan.Desired
			if dec.Decode(&d) != nil {
				return
			}
			f.Set(d)
		}
	}()
	go func() {
		enc := json.NewEncoder(os.Stdout)
		for {
			select {
			case <-f.Changed():
			case <-time.After(every):
			}
			if enc.Encode(rigStatus{f.Status(), f.refused()}) != nil {
				return
			}
		}
	}()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		<-ctx.Done()
		leaving, cancel := context.WithTimeout(running, 5*time.Second)
		defer cancel()
		f.Leave(leaving)
		stop()
	}()
	return f.Run(running)
}

// rigStatus is what the role "fabric" writes: its status, and how many packets the cipher refused, by the
// peer's cluster ID.
type rigStatus struct {
	Status
	Refused map[string]uint64
}

func (f *Fabric) refused() map[string]uint64 {
	counted := firewall.Totals{Dropped: map[firewall.Drop]firewall.Count{}}
	f.cipher.add(counted)
	out := map[string]uint64{}
	for d, n := range counted.Dropped {
		out[d.Peer] = n.Packets
	}
	return out
}

// roleServer answers TCP and UDP on a port, 8080 by default, with the address that it
// sees. A TCP client that sends "count" is sent how many bytes it sent.
func roleServer(ctx context.Context) error {
	port := cmp.Or(os.Getenv("TUNNEL_TEST_PORT"), "8080")
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return err
	}
	u, err := lc.ListenPacket(ctx, "udp", ":"+port)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			reply := []byte(from.(*net.UDPAddr).AddrPort().Addr().Unmap().String() + "\n")
			if n > 64 {
				reply = buf[:n]
			}
			_, _ = u.WriteTo(reply, from)
		}
	}()
	fmt.Println("ready")
	go func() { <-ctx.Done(); l.Close(); u.Close() }()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // ctx ended: closed above
		}
		go func() {
			defer c.Close()
			fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
			_, _ = io.Copy(c, c)
		}()
	}
}

// rigs counts those made, whose names differ: tests run side by side.
var rigs atomic.Int32

type rig struct {
	t      testing.TB
	prefix string
	ns     []string
}

type rigNode struct {
	r                 *rig
	cluster, name     string
	ns, pod, device   string
	underlay          netip.Addr
	podCIDR           netip.Prefix
	podAddr, bridge   netip.Addr
	worker            bool // no gateway
	wireguard, fabric *process
}

type process struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	gob  *gob.Encoder
	done chan struct{}

	mu      sync.Mutex
	status  rigStatus
	reports int // how many statuses it wrote
	errors  bytes.Buffer
}

func newRig(t testing.TB) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
	for _, tool := range []string{"ip", "nft", "nsenter", "ping", "tcpdump", "wg", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the tool %s: %v", tool, err)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs /dev/net/tun: %v", err)
	}
	r := &rig{t: t, prefix: fmt.Sprintf("t%04x%02s", os.Getpid()&0xffff, strconv.FormatInt(int64(rigs.Add(1)), 36))}
	if out, err := exec.Command("ip", "netns", "add", r.prefix+"probe").CombinedOutput(); err != nil {
		t.Skipf("cannot make network namespaces: %s", out)
	}
	run(t, "ip", "netns", "del", r.prefix+"probe")
	r.addNS("inet")
	r.in("inet", "ip link add br0 type bridge && ip addr add 172.31.0.1/24 dev br0 && ip link set br0 up && ip link set lo up")
	t.Cleanup(func() {
		for _, ns := range r.ns {
			_ = exec.Command("ip", "netns", "del", r.prefix+ns).Run()
		}
	})
	return r
}

func (r *rig) addNS(name string) {
	r.t.Helper()
	run(r.t, "ip", "netns", "add", r.prefix+name)
	r.ns = append(r.ns, name)
}

func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (r *rig) command(ns string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + r.prefix + ns, "--"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// in runs a shell script in a namespace.
func (r *rig) in(ns, script string) string {
	r.t.Helper()
	out, err := r.try(ns, script)
	if err != nil {
		r.t.Fatalf("%s: %s: %v\n%s", ns, script, err, out)
	}
	return out
}

func (r *rig) try(ns, script string) (string, error) {
	runtime.LockOSThread() // Pdeathsig is about this thread, and those of inNS end
	defer runtime.UnlockOSThread()
	out, err := r.command(ns, "sh", "-c", script).CombinedOutput()
	return string(out), err
}

// node makes a node with a pod. All clusters have the pod prefix 10.200.0.0/16.
func (r *rig) node(cluster string, number int, at string) *rigNode {
	r.t.Helper()
	n := &rigNode{
		r: r, cluster: cluster, name: fmt.Sprintf("%s%d", cluster, number),
		underlay: netip.MustParseAddr("172.31.0." + at),
		podCIDR:  netip.MustParsePrefix(fmt.Sprintf("10.200.%d.0/24", number)),
		podAddr:  netip.MustParseAddr(fmt.Sprintf("10.200.%d.10", number)),
		bridge:   netip.MustParseAddr(fmt.Sprintf("10.200.%d.1", number)),
	}
	n.ns, n.pod = n.name, n.name+"p"
	n.device = fmt.Sprintf("%s%s", r.prefix, n.name)
	r.addNS(n.ns)
	r.addNS(n.pod)
	node, pod := r.prefix+n.ns, r.prefix+n.pod
	r.in("inet", fmt.Sprintf("ip link add e%s type veth peer name eth0 netns %s && ip link set e%s master br0 up", n.name, node, n.name))
	r.in(n.ns, fmt.Sprintf(`set -e
ip link set lo up
ip addr add %v/24 dev eth0; ip link set eth0 up; ip route add default via 172.31.0.1
ip link add cni0 type bridge; ip addr add %v/24 dev cni0; ip addr add fd77:%d::1/64 dev cni0 nodad; ip link set cni0 up
ip link add vpod type veth peer name eth0 netns %s; ip link set vpod master cni0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter
echo 1 > /proc/sys/net/ipv4/conf/default/rp_filter
# what a CNI and kube-proxy do
nft add table ip cni
nft 'add chain ip cni post { type nat hook postrouting priority 100; }'
nft 'add rule ip cni post ip saddr 10.200.0.0/16 ip daddr != 10.200.0.0/16 counter masquerade'
nft 'add rule ip cni post meta mark 0x4000 counter masquerade'
`, n.underlay, n.bridge, number, pod))
	r.in(n.pod, fmt.Sprintf("ip link set lo up; ip addr add %v/24 dev eth0; ip addr add fd77:%d::10/64 dev eth0 nodad; ip link set eth0 up; ip route add default via %v; ip -6 route add default via fd77:%d::1", n.podAddr, number, n.bridge, number))
	n.startWireGuard()
	n.startFabric()
	server := r.start(n.pod, "server", nil)
	_ = server
	r.t.Cleanup(func() {
		n.fabric.kill()
		n.wireguard.kill()
		server.kill()
		_ = os.Remove(userspace.Socket(n.device))
		_ = os.Remove(userspace.FabricLock(n.device))
	})
	return n
}

func (n *rigNode) startWireGuard() {
	n.wireguard = n.r.start(n.ns, "wireguard", []string{"TUNNEL_TEST_DEVICE=" + n.device})
}

func (n *rigNode) startFabric() {
	n.fabric = n.r.start(n.ns, "fabric", []string{"TUNNEL_TEST_DEVICE=" + n.device})
}

func (r *rig) start(ns, role string, env []string) *process {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	args := []string{self}
	if role != "server" && role != "traffic-server" { // ours must do with what their containers get
		args = []string{"setpriv", "--bounding-set=-all,+net_admin", "--no-new-privs", self}
	}
	p := &process{cmd: r.command(ns, args...), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), roleVariable+"="+role), env...)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		r.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	p.cmd.Stderr = lockedWriter{&p.mu, &p.errors}
	started := make(chan error)
	go func() { // Pdeathsig is about the thread that starts the child
		runtime.LockOSThread()
		started <- p.cmd.Start()
		<-p.done
	}()
	if err := <-started; err != nil {
		r.t.Fatal(err)
	}
	p.gob = gob.NewEncoder(p.in)
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<22)
		for lines.Scan() {
			var s rigStatus
			if json.Unmarshal(lines.Bytes(), &s) == nil {
				p.mu.Lock()
				p.status = s
				p.reports++
				p.mu.Unlock()
			}
		}
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func (p *process) kill() {
	if p != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (p *process) seen() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Status
}

// refused is how many packets of a peer the cipher of the node refused.
func (p *process) refused(cluster string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Refused[clusterID(cluster)]
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errors.String()
}

func (n *rigNode) set(d plan.Desired) {
	n.r.t.Helper()
	if err := n.fabric.gob.Encode(d); err != nil {
		n.r.t.Fatalf("set desired of %s: %v\n%s", n.name, err, n.fabric.log())
	}
}

// key waits for the fabric's public key.
func (n *rigNode) key() plan.PublicKey {
	n.r.t.Helper()
	n.r.eventually(n.name+" has a key", func() error {
		if n.fabric.seen().PublicKey.IsZero() {
			return fmt.Errorf("no key yet: %v\n%s\n%s", n.fabric.seen().Problems, n.fabric.log(), n.wireguard.log())
		}
		return nil
	})
	return n.fabric.seen().PublicKey
}

// eventually waits for something that has to become so, on a machine that is busy
// with other tests, and returns how long that took.
func (r *rig) eventually(what string, check func() error) time.Duration {
	r.t.Helper()
	const patience = time.Minute
	began := time.Now()
	for {
		err := check()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > patience {
			r.t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// up waits until all paths of a node are up.
func (n *rigNode) up() {
	n.r.t.Helper()
	n.r.eventually(n.name+" sees its paths up", func() error {
		s := n.fabric.seen()
		if len(s.Peers) == 0 {
			return fmt.Errorf("no peers: %v\n%s", s.Problems, n.fabric.log())
		}
		for _, p := range s.Peers {
			if p.State != probe.PathUp {
				return fmt.Errorf("path to %s is %v: %+v\n%s", p.Node, p.State, s, n.fabric.log())
			}
		}
		return nil
	})
}

// inNS calls a function on a thread in a namespace.
func (r *rig) inNS(ns string, do func() error) error {
	failed := make(chan error, 1)
	go func() {
		var err error
		defer func() { failed <- err }() // a test that fails ends the goroutine
		runtime.LockOSThread()           // never unlocked: the thread ends here
		var fd *os.File
		fd, err = os.Open("/run/netns/" + r.prefix + ns)
		if err == nil {
			defer fd.Close()
			err = unix.Setns(int(fd.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = do()
		}
	}()
	return <-failed
}

// ask connects from a namespace and returns the address that the server saw.
func (r *rig) ask(ns, network string, to netip.Addr, port int) (string, error) {
	return r.askFrom(ns, netip.Addr{}, network, to, port)
}

// askFrom connects from an address of a namespace.
func (r *rig) askFrom(ns string, from netip.Addr, network string, to netip.Addr, port int) (string, error) {
	var seen string
	dialer := net.Dialer{Timeout: time.Second}
	switch {
	case !from.IsValid():
	case strings.HasPrefix(network, "udp"):
		dialer.LocalAddr = &net.UDPAddr{IP: from.AsSlice()}
	default:
		dialer.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
	}
	err := r.inNS(ns, func() error {
		c, err := dialer.Dial(network, netip.AddrPortFrom(to, uint16(port)).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if strings.HasPrefix(network, "udp") {
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
		}
		seen, err = bufio.NewReader(c).ReadString('\n')
		return err
	})
	return strings.TrimSpace(seen), err
}

func (r *rig) wantSeen(what, ns, network string, to netip.Addr, port int, want string) {
	r.t.Helper()
	var got string
	r.eventually(what, func() (err error) {
		if got, err = r.ask(ns, network, to, port); err != nil {
			return err
		}
		return nil
	})
	if got != want {
		r.t.Errorf("%s: the server saw %s, want %s", what, got, want)
	}
}

// wantRefused waits until a datagram to a closed port is answered with that.
func (r *rig) wantRefused(what, ns string, to netip.Addr) {
	r.t.Helper()
	r.eventually(what, func() error {
		_, err := r.ask(ns, "udp", to, 9)
		if err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("UDP to a closed port: got %v, want connection refused", err) //nolint:errorlint // it may be nil
		}
		return nil
	})
}

func (r *rig) wantClosed(what, ns, network string, to netip.Addr, port int) {
	r.t.Helper()
	if got, err := r.ask(ns, network, to, port); err == nil {
		r.t.Errorf("%s: reached, seen as %s, want it closed", what, got)
	}
}

// openTo opens all of an address to all of a peer.
func openTo(a netip.Addr) plan.Exposure {
	return plan.Exposure{Name: a.String(), AnySource: true, Destinations: []plan.Destination{{Addr: a}}}
}
