package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/userspace"
)

const roleVariable = "FABRIC_TEST_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	device, node, directory := os.Getenv("FABRIC_TEST_DEVICE"), os.Getenv("FABRIC_TEST_NODE"), os.Getenv("FABRIC_TEST_DIRECTORY")
	var err error
	switch role {
	case "wireguard":
		err = userspace.Run(ctx, userspace.Config{Device: device, Log: log})
	case "fabric":
		err = Run(ctx, Config{
			// Nothing listens there.
			Kubernetes: &rest.Config{Host: "https://127.0.0.1:1", BearerTokenFile: filepath.Join(directory, "token")},
			Node:       node, Namespace: "entente-system", Interface: device, Port: 51820,
			StateDirectory: filepath.Join(directory, "state"), HealthAddress: "127.0.0.1:7446", Log: log,
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// offlineNode is a node of a cluster of its own whose API server never answers.
type offlineNode struct {
	t                       *testing.T
	name, ns, pod, device   string
	underlay                string
	directory               string
	key                     wgtypes.Key
	wireguard, fabric       *exec.Cmd
	wireguardLog, fabricLog *processLog
}

func (n *offlineNode) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (n *offlineNode) in(ns, script string) (string, error) {
	out, err := exec.Command("nsenter", "--net=/run/netns/"+ns, "--", "sh", "-c", script).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (n *offlineNode) start(role string, log **processLog) *exec.Cmd {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+n.ns, "--", "setpriv", "--bounding-set=-all,+net_admin", "--no-new-privs", self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "FABRIC_TEST_DEVICE="+n.device, "FABRIC_TEST_NODE="+n.name, "FABRIC_TEST_DIRECTORY="+n.directory)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	*log = &processLog{}
	cmd.Stderr = *log
	started := make(chan error)
	go func() { // Pdeathsig is about the thread that starts the child
		runtime.LockOSThread()
		started <- cmd.Start()
		<-n.t.Context().Done()
	}()
	if err := <-started; err != nil {
		n.t.Fatal(err)
	}
	return cmd
}

// processLog is the output of a process, which is read while it runs.
type processLog struct {
	mu   sync.Mutex
	text []byte
}

func (l *processLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	return len(b), nil
}

func (l *processLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func (n *offlineNode) startBoth() {
	n.wireguard = n.start("wireguard", &n.wireguardLog)
	n.fabric = n.start("fabric", &n.fabricLog)
}

// kill kills both processes: the device goes with its own.
func (n *offlineNode) kill() {
	for _, p := range []*exec.Cmd{n.wireguard, n.fabric} {
		if p != nil && p.Process != nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
}

// newOfflineNode makes node number i of two, with a pod.
func newOfflineNode(t *testing.T, i int, prefix string) *offlineNode {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	n := &offlineNode{t: t, name: string(rune('a' + i)), directory: t.TempDir(), underlay: fmt.Sprintf("172.31.0.%d", i+1), key: key}
	n.ns, n.pod, n.device = prefix+n.name, prefix+n.name+"p", prefix+n.name
	for _, ns := range []string{n.ns, n.pod} {
		if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces here: %v %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", ns).Run() })
	}
	n.ip("-n", n.ns, "link", "add", "cni0", "type", "veth", "peer", "name", "eth0", "netns", n.pod)
	for _, args := range []string{
		"-n " + n.ns + " link set lo up", "-n " + n.ns + " addr add 10.200.1.1/24 dev cni0", "-n " + n.ns + " link set cni0 up",
		"-n " + n.pod + " addr add 10.200.1.10/24 dev eth0", "-n " + n.pod + " link set eth0 up", "-n " + n.pod + " route add default via 10.200.1.1",
	} {
		n.ip(strings.Fields(args)...)
	}
	if out, err := n.in(n.ns, "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"); err != nil {
		t.Fatal(out)
	}
	t.Cleanup(func() {
		n.kill()
		_ = os.Remove("/var/run/wireguard/" + n.device + ".sock")
	})
	return n
}

// write saves for a node the objects that it read when its API server still answered.
func (n *offlineNode) write(other *offlineNode, confirmed time.Time, edit func(*v1alpha1.Tunnel)) {
	n.t.Helper()
	claims := strings.NewReplacer(`"name":"a"`, `"name":"`+n.name+`"`).Replace(ownClaims)
	if err := os.WriteFile(filepath.Join(n.directory, "token"), []byte(tokenFor(claims)), 0o600); err != nil {
		n.t.Fatal(err)
	}
	own := &corev1.Node{}
	own.Name, own.Spec.PodCIDRs = n.name, []string{"10.200.1.0/24"}
	own.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.underlay}}
	// b is known to a as 10.240/16, and a to b as 10.250/16.
	local, remote := "10.250.0.0/16", "10.240.0.0/16"
	if n.name == "b" {
		local, remote = remote, local
	}
	me, them := strings.Repeat(n.name, 52), strings.Repeat(other.name, 52)
	self := fabricNode(n.name, me, n.key.PublicKey().String(), true)
	tun := tunnelTo(them, 0, v1alpha1.Exposure{Contract: "c", AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{"10.200.1.10"}, AnyPort: true}}})
	tun.Spec.Gateways = []v1alpha1.Gateway{{Name: other.name, PublicKey: other.key.PublicKey().String(), Endpoints: []string{other.underlay + ":51820"}}}
	tun.Spec.Gateways[0].OverlayAddress = plan.Overlay(them, other.name).String()
	tun.Spec.Local, tun.Spec.Remote = []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: local}}, []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: remote}}
	if edit != nil {
		edit(&tun)
	}
	nodes, tunnels := []v1alpha1.FabricNode{self}, []v1alpha1.Tunnel{tun}
	secret := map[string][]byte{them: bytes.Repeat([]byte{7}, 32)}
	s := stateIn(n.t, n.name, filepath.Join(n.directory, "state"), claims, slog.New(slog.DiscardHandler))
	_ = s.Save(n.key[:])
	s.keep(newSavedPlan(confirmed, own, nodes, tunnels, Known{}.Update(nodes, tunnels, secret)))
}

// TestTwoNodesThatNoAPIServerAnswers starts the processes of two nodes, kills them with their
// devices, and starts them again. All that they have is their saved state.
func TestTwoNodesThatNoAPIServerAnswers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root makes network namespaces")
	}
	for _, tool := range []string{"nsenter", "setpriv", "ping", "wg"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the tool %s: %v", tool, err)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs /dev/net/tun: %v", err)
	}
	prefix := fmt.Sprintf("of%x", os.Getpid()&0xffff)
	a, b := newOfflineNode(t, 0, prefix), newOfflineNode(t, 1, prefix)
	a.ip("-n", a.ns, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b.ns)
	for _, n := range []*offlineNode{a, b} {
		n.ip("-n", n.ns, "addr", "add", n.underlay+"/24", "dev", "eth0")
		n.ip("-n", n.ns, "link", "set", "eth0", "up")
	}
	passes := func() error {
		out, err := a.in(a.pod, "ping -n -c 1 -W 1 10.240.1.10")
		if err != nil {
			return fmt.Errorf("%s\n%s\n%s", out, a.fabricLog, b.fabricLog)
		}
		return nil
	}
	eventually := func(what string, check func() error) time.Duration {
		t.Helper()
		began := time.Now()
		for {
			err := check()
			switch {
			case err == nil:
				return time.Since(began)
			case time.Since(began) > 40*time.Second:
				t.Fatalf("%s: %v", what, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	now := time.Now()
	a.write(b, now, nil)
	b.write(a, now, nil)
	for _, round := range []string{"after a start", "after both processes of both nodes were killed"} {
		a.startBoth()
		b.startBoth()
		t.Logf("%s: packets pass after %v", round, eventually(round, passes).Round(10*time.Millisecond))
		for _, n := range []*offlineNode{a, b} {
			if out, err := n.in(n.ns, "wg show "+n.device+" public-key"); err != nil || out != n.key.PublicKey().String() {
				t.Errorf("%s: the key of %s is %s, not %s: %v", round, n.name, out, n.key.PublicKey(), err)
			}
		}
		a.kill()
		b.kill()
	}
	gone := func() error {
		out, err := b.in(b.ns, "wg show "+b.device+" peers; ip -br link show "+b.device)
		if err == nil && strings.Contains(out, a.key.PublicKey().String()) {
			err = errors.New("there is a peer still")
		}
		return err
	}
	for what, write := range map[string]func(){
		"its contract is over": func() {
			b.write(a, now, func(t *v1alpha1.Tunnel) {
				t.Spec.ContractEnds = []v1alpha1.ContractEnd{{Contract: "c", Time: metav1.NewTime(now.Add(-time.Hour))}}
			})
		},
		"the API server has not answered for a day": func() { b.write(a, now.Add(-25*time.Hour), nil) },
	} {
		write()
		a.startBoth()
		b.startBoth()
		eventually(what, gone)
		time.Sleep(2 * time.Second)
		if err := passes(); err == nil {
			t.Errorf("packets pass though %s", what)
		}
		if err := gone(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		a.kill()
		b.kill()
	}
}
