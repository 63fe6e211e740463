package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
)

// needLab skips tests of real nodes where there can be none.
func needLab(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("real clusters take half a minute: not with -short")
	}
	if err := allowed(Options{}); err != nil {
		t.Skip(err)
	}
}

// testLab is a lab with what a test does to it.
type testLab struct {
	*Lab
	t       *testing.T
	kubectl string
}

func upLab(t *testing.T, o Options) *testLab {
	t.Helper()
	say := func(s string) { t.Logf("lab: %s", s) }
	t.Cleanup(func() {
		if err := Down(context.WithoutCancel(t.Context()), o.Name); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})
	if _, err := Build(t.Context(), o, say); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	l, err := Up(t.Context(), o, say)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("with everything built, the lab took %v to be ready", time.Since(begin))
	kubectl, err := BinaryPath(t.Context(), "kubectl", say)
	if err != nil {
		t.Fatal(err)
	}
	return &testLab{Lab: l, t: t, kubectl: kubectl}
}

// kube runs kubectl against a cluster from this process's namespace.
func (l *testLab) kube(cluster, stdin string, args ...string) (string, error) {
	l.t.Helper()
	k, err := l.Kubeconfig(cluster)
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.CommandContext(l.t.Context(), l.kubectl, append([]string{"--kubeconfig=" + k}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (l *testLab) mustKube(cluster, stdin string, args ...string) string {
	l.t.Helper()
	out, err := l.kube(cluster, stdin, args...)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

func (l *testLab) mustFault(r FaultRequest) {
	l.t.Helper()
	if _, err := l.Fault(l.t.Context(), r); err != nil {
		l.t.Fatal(err)
	}
}

// ping sends echo requests from one node to another and returns how many were
// answered, and the mean round trip.
func (l *testLab) ping(from, to string, count int) (int, time.Duration) {
	l.t.Helper()
	_, n, err := l.plan.Node(to)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.pingAddress(from, n.Address, count)
}

func (l *testLab) pingAddress(from string, to netip.Addr, count int) (int, time.Duration) {
	l.t.Helper()
	cmd, err := l.Exec(l.t.Context(), from, false, "ping", "-q", "-c", strconv.Itoa(count), "-i", "0.02", "-W", "1", to.String())
	if err != nil {
		l.t.Fatal(err)
	}
	out, _ := cmd.CombinedOutput()
	m := regexp.MustCompile(`(\d+) received`).FindSubmatch(out)
	if m == nil {
		l.t.Fatalf("ping: %s", out)
	}
	received, err := strconv.Atoi(string(m[1]))
	if err != nil {
		l.t.Fatal(err)
	}
	var mean time.Duration
	if m := regexp.MustCompile(`= [\d.]+/([\d.]+)/`).FindSubmatch(out); m != nil {
		ms, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			l.t.Fatal(err)
		}
		mean = time.Duration(ms * float64(time.Millisecond))
	}
	return received, mean
}

// traces are the parts of a running lab, to check for when it is gone.
type traces struct {
	pids       []int
	namespaces []string
	// held are the namespaces, open: none made meanwhile gets the number of one that is gone.
	held []*os.File
}

func (l *testLab) traces() traces {
	l.t.Helper()
	s, err := l.Status(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	pids := []int{s.Daemon}
	for _, c := range s.Clusters {
		for _, n := range c.Nodes {
			if n.PID != 0 { // it is about to be started
				pids = append(pids, n.PID)
			}
		}
	}
	tr := traces{pids: pids}
	for _, p := range pids {
		for _, kind := range []string{"net", "mnt", "pid"} {
			link := fmt.Sprintf("/proc/%d/ns/%s", p, kind)
			f, err := os.Open(link)
			if err != nil {
				l.t.Fatal(err)
			}
			tr.held = append(tr.held, f)
			ns, err := os.Readlink(link)
			if err != nil {
				l.t.Fatal(err)
			}
			own, err := os.Readlink("/proc/self/ns/" + kind)
			if err != nil {
				l.t.Fatal(err)
			}
			if ns != own {
				tr.namespaces = append(tr.namespaces, ns)
			}
		}
	}
	return tr
}

// used lists the processes and namespaces of tr that there still are.
func (tr traces) used(t *testing.T) []string {
	t.Helper()
	var used []string
	for _, p := range tr.pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", p)); err == nil {
			used = append(used, fmt.Sprintf("process %d", p))
		}
	}
	links, err := filepath.Glob("/proc/[0-9]*/task/*/ns/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if ns, err := os.Readlink(l); err == nil && slices.Contains(tr.namespaces, ns) {
			used = append(used, ns+" by "+l)
		}
	}
	return used
}

// nothingLeft fails the test if anything of the lab is there.
func nothingLeft(t *testing.T, name string, tr traces) {
	t.Helper()
	if left, err := leftovers(name); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	// The dead of a killed daemon are the machine's first process's to bury.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var used []string
	if err := eventually.Poll(ctx, 50*time.Millisecond, func() bool { used = tr.used(t); return len(used) == 0 }); err != nil {
		t.Errorf("still there: %v", used)
	}
	for _, f := range tr.held {
		f.Close()
	}
	for _, file := range []string{"/proc/self/mountinfo", "/proc/net/dev"} {
		for _, mark := range []string{labDir(name), "lan1", "n1-1"} {
			if err := eventually.Poll(ctx, 50*time.Millisecond, func() bool {
				b, err := os.ReadFile(file)
				return err == nil && !bytes.Contains(b, []byte(mark))
			}); err != nil {
				t.Errorf("%s is in %s", mark, file)
			}
		}
	}
	for _, f := range []string{labDir(name), upLockFile(name)} {
		if _, err := os.Stat(f); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", f, err)
		}
	}
}

const testPods = `
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: ` + ToolImage + `
    imagePullPolicy: Never
    env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers:
  - name: host
    image: ` + ToolImage + `
    args: [sleep]
    securityContext: {runAsUser: 0, capabilities: {drop: [ALL], add: [NET_ADMIN]}}
    volumeMounts: [{name: tun, mountPath: /dev/net/tun}]
  volumes: [{name: tun, hostPath: {path: /dev/net/tun, type: CharDevice}}]
`

func TestLabOfTwoClustersWithTheSamePrefixes(t *testing.T) {
	needLab(t)
	interfaces := mustRead(t, "/proc/net/dev")
	l := upLab(t, Options{Name: "labtest", Clusters: 2})
	a, b := "labtest-1", "labtest-2"
	tr := l.traces()
	t.Run("pods run in both, and are found by name", func(t *testing.T) { podsRun(l, a, b) })
	t.Run("status says what runs", func(t *testing.T) { statusIsTrue(l) })
	t.Run("up again changes nothing, and refuses another shape", func(t *testing.T) { upIsIdempotent(l) })
	t.Run("a cut loses all and heals", func(t *testing.T) { cutHeals(l, a, b) })
	t.Run("loss loses some", func(t *testing.T) { lossLoses(l, a, b) })
	t.Run("delay delays each way", func(t *testing.T) { delayDelays(l, a, b) })
	t.Run("behind NAT a cluster reaches out and is not reached", func(t *testing.T) { natHides(l, a, b) })
	t.Run("a capture has the packets between two clusters", func(t *testing.T) { captureCaptures(l, a, b) })
	t.Run("an image archive is loaded into all nodes", func(t *testing.T) { imageLoads(l) })
	t.Run("a node stops and starts with its disk", func(t *testing.T) { nodeRestarts(l, b) })
	if err := Down(t.Context(), "labtest"); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, "labtest", tr)
	if now := mustRead(t, "/proc/net/dev"); bytes.Count(now, []byte("\n")) != bytes.Count(interfaces, []byte("\n")) {
		t.Errorf("this machine's interfaces were\n%s and are\n%s", interfaces, now)
	}
}

func podsRun(l *testLab, clusters ...string) {
	addresses := map[string]int{}
	for _, c := range clusters {
		l.mustKube(c, testPods, "apply", "-f", "-")
		l.mustKube(c, "", "wait", "--for=condition=Ready", "pod/web-0", "pod/host", "--timeout=60s")
		ip := l.mustKube(c, "", "get", "pod", "web-0", "-o", "jsonpath={.status.podIP}")
		addresses[strings.Join(strings.Split(ip, ".")[:2], ".")]++
		var out string
		err := eventually.Poll(l.t.Context(), 200*time.Millisecond, func() bool { // a new Service takes a moment
			var err error
			out, err = l.kube(c, "", "exec", "host", "--", "/tool", "curl", "http://"+ip+":8080/name")
			return err == nil
		})
		if want := "web-0 on " + c + "-1"; err != nil || !strings.HasPrefix(out, want) {
			l.t.Errorf("%s: pod says %q, %v", c, out, err)
		}
		if out, err := l.kube(c, "", "exec", "web-0", "--", "/tool", "curl", "http://web.default.svc.cluster.local/name"); err != nil {
			l.t.Errorf("%s: by name: %s, %v", c, out, err)
		}
		if out := l.mustKube(c, "", "logs", "web-0"); !strings.Contains(out, "GET /name") {
			l.t.Errorf("%s: log is %q", c, out)
		}
		if out := l.mustKube(c, "", "exec", "host", "--", "/tool", "open", "/dev/net/tun"); !strings.Contains(out, "opened") {
			l.t.Errorf("%s: the tunnel device: %q", c, out)
		}
	}
	if addresses["10.200"] != len(clusters) {
		l.t.Errorf("pods are not in the same prefix: %v", addresses)
	}
}

func statusIsTrue(l *testLab) {
	s, err := l.Status(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if s.State != StateReady || len(s.Clusters) != 2 {
		l.t.Fatalf("status is %+v", s)
	}
	for _, c := range s.Clusters {
		if !c.Ready || len(c.Nodes) != 1 || !c.Nodes[0].Ready || c.Nodes[0].PID == 0 {
			l.t.Errorf("cluster is %+v", c)
		}
		running := 0
		for _, p := range c.Nodes[0].Components {
			if p.Running && p.Restarts == 0 {
				running++
			}
		}
		if running != 7 {
			l.t.Errorf("%s: %d components run without a restart, want 7: %+v", c.Name, running, c.Nodes[0].Components)
		}
	}
	cluster, err := l.Cluster("2")
	if err != nil {
		l.t.Fatal(err)
	}
	transport, err := rest.HTTPClientFor(cluster.RESTConfig())
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := transport.Get(cluster.Server + "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies")
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		l.t.Errorf("admission policies: %s", resp.Status)
	}
}

func upIsIdempotent(l *testLab) {
	pids := l.traces().pids
	again, err := Up(l.t.Context(), l.plan.Options, nil)
	if err != nil || again.dir != l.dir || !slices.Equal(l.traces().pids, pids) {
		l.t.Errorf("up again: %v, processes %v became %v", err, pids, l.traces().pids)
	}
	other := l.plan.Options
	other.Clusters = 3
	if _, err := Up(l.t.Context(), other, nil); err == nil || !strings.Contains(err.Error(), "runs already") {
		l.t.Errorf("another shape: %v", err)
	}
}

func cutHeals(l *testLab, a, b string) {
	if got, _ := l.ping(a, b, 5); got != 5 {
		l.t.Errorf("before: %d of 5 answers", got)
	}
	l.mustFault(FaultRequest{Kind: "cut", A: a, B: b})
	for _, way := range [][2]string{{a, b}, {b, a}} {
		if got, _ := l.ping(way[0], way[1], 5); got != 0 {
			l.t.Errorf("cut, %v: %d answers", way, got)
		}
	}
	for _, c := range []string{a, b} { // we are not part of the internet
		l.mustKube(c, "", "get", "nodes")
	}
	l.mustFault(FaultRequest{Kind: "heal", A: a, B: b})
	if got, _ := l.ping(a, b, 5); got != 5 {
		l.t.Errorf("healed: %d of 5 answers", got)
	}
}

func lossLoses(l *testLab, a, b string) {
	l.mustFault(FaultRequest{Kind: "loss", A: a, B: b, LossPercent: 20})
	defer l.mustFault(FaultRequest{Kind: "heal"})
	// 0.8² of 300 come back: 192. Outside of these bounds it is not chance any more.
	if got, _ := l.ping(a, b, 300); got < 130 || got > 250 {
		l.t.Errorf("%d of 300 answers", got)
	}
}

func delayDelays(l *testLab, a, b string) {
	const delay = 40 * time.Millisecond
	l.mustFault(FaultRequest{Kind: "delay", A: a, B: b, Delay: delay})
	got, mean := l.ping(a, b, 20)
	if got != 20 || mean < 2*delay || mean > time.Second {
		l.t.Errorf("%d of 20 answers after %v", got, mean)
	}
	l.mustFault(FaultRequest{Kind: "heal", A: a})
	time.Sleep(2 * delay)
	if got, mean := l.ping(a, b, 20); got != 20 || mean >= 2*delay {
		l.t.Errorf("healed: %d of 20 answers after %v", got, mean)
	}
}

func natHides(l *testLab, a, b string) {
	l.mustFault(FaultRequest{Kind: "nat", A: a})
	defer l.mustFault(FaultRequest{Kind: "heal"})
	if got, _ := l.ping(a, b, 5); got != 5 {
		l.t.Errorf("out: %d of 5 answers", got)
	}
	if got, _ := l.ping(b, a, 5); got != 0 {
		l.t.Errorf("in: %d answers", got)
	}
	out := l.mustKube(a, "", "exec", "host", "--", "/tool", "curl", "-t", "5s", "http://"+l.nodePortPod(b))
	if !strings.Contains(out, `"client":"`+l.plan.Clusters[0].Public.String()) {
		l.t.Errorf("the other side sees %s", out)
	}
}

// nodePortPod makes b's web server reachable on its node and returns where.
func (l *testLab) nodePortPod(c string) string {
	l.t.Helper()
	l.mustKube(c, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"port"},"spec":{"type":"NodePort","externalTrafficPolicy":"Local","selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080,"nodePort":30080}]}}`, "apply", "-f", "-")
	_, n, err := l.plan.Node(c)
	if err != nil {
		l.t.Fatal(err)
	}
	address := n.Address.String() + ":30080/"
	err = eventually.Poll(l.t.Context(), 100*time.Millisecond, func() bool {
		_, err := l.kube(l.plan.Clusters[0].Name, "", "exec", "host", "--", "/tool", "curl", "-t", "1s", "http://"+address)
		return err == nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return address
}

func captureCaptures(l *testLab, a, b string) {
	file := filepath.Join(l.t.TempDir(), "x.pcap")
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Capture(ctx, a, b, file, nil) }()
	// The file's header is written when tcpdump listens.
	if err := eventually.Poll(l.t.Context(), 20*time.Millisecond, func() bool { fi, err := os.Stat(file); return err == nil && fi.Size() > 0 }); err != nil {
		l.t.Fatal(err)
	}
	l.ping(a, b, 3)
	cancel()
	if err := <-done; err != nil {
		l.t.Fatal(err)
	}
	out, err := exec.Command("tcpdump", "-n", "-r", file).Output()
	if err != nil {
		l.t.Fatal(err)
	}
	if n := strings.Count(string(out), "ICMP echo"); n != 6 {
		l.t.Errorf("%d packets of 3 pings:\n%s", n, out)
	}
}

func imageLoads(l *testLab) {
	binary, err := BinaryPath(l.t.Context(), "tool", func(string) {})
	if err != nil {
		l.t.Fatal(err)
	}
	files, err := writeImages(l.t.TempDir(), []image{{name: "example.com/loaded:v1", binary: binary, path: "tool", user: "1:1"}})
	if err != nil {
		l.t.Fatal(err)
	}
	nodes, err := l.Load(l.t.Context(), files[0])
	if err != nil || len(nodes) != 2 {
		l.t.Fatalf("loaded into %v: %v", nodes, err)
	}
	l.mustKube("2", "", "run", "loaded", "--image=example.com/loaded:v1", "--restart=Never", "--", "env")
	l.mustKube("2", "", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/loaded", "--timeout=30s")
	if _, err := l.Load(l.t.Context(), "/dev/null"); err == nil {
		l.t.Error("nothing was loaded as an image")
	}
}

func nodeRestarts(l *testLab, c string) {
	node := c + "-1"
	if err := l.StopNode(l.t.Context(), node); err != nil {
		l.t.Fatal(err)
	}
	if s, err := l.Status(l.t.Context()); err != nil || s.Clusters[1].Nodes[0].PID != 0 {
		l.t.Errorf("stopped: %+v, %v", s, err)
	}
	if _, err := l.Exec(l.t.Context(), node, false, "true"); err == nil {
		l.t.Error("a command runs on a stopped node")
	}
	if err := l.StartNode(l.t.Context(), node); err != nil {
		l.t.Fatal(err)
	}
	if _, err := Up(l.t.Context(), l.plan.Options, nil); err != nil { // waits for readiness
		l.t.Fatal(err)
	}
	err := eventually.Poll(l.t.Context(), 300*time.Millisecond, func() bool {
		out, err := l.kube(c, "", "get", "pod", "web-0", "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
		return err == nil && out == "1 true"
	})
	if err != nil {
		l.t.Errorf("the pod does not come back: %v", err)
	}
}

func TestLabOfSeveralNodes(t *testing.T) {
	needLab(t)
	l := upLab(t, Options{Name: "labnodes", Clusters: 1, Nodes: 2, CIDRs: DistinctCIDRs})
	tr := l.traces()
	for i := 1; i <= 2; i++ {
		pod := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p%[1]d"},"spec":{"nodeName":"labnodes-1-%[1]d","terminationGracePeriodSeconds":0,"containers":[{"name":"p","image":"%[2]s"}]}}`, i, ToolImage)
		l.mustKube("1", pod, "apply", "-f", "-")
	}
	l.mustKube("1", "", "wait", "--for=condition=Ready", "pod/p1", "pod/p2", "--timeout=30s")
	address := func(i int) string {
		return l.mustKube("1", "", "get", "pod", fmt.Sprintf("p%d", i), "-o", "jsonpath={.status.podIP}")
	}
	for i := 1; i <= 2; i++ {
		if !strings.HasPrefix(address(i), fmt.Sprintf("10.201.%d.", i-1)) {
			t.Errorf("pod of node %d has address %s", i, address(i))
		}
		out := l.mustKube("1", "", "exec", fmt.Sprintf("p%d", i), "--", "/tool", "curl", "http://"+address(3-i)+":8080/")
		if !strings.Contains(out, `"client":"`+address(i)+":") {
			t.Errorf("pod %d is seen under another address than its own %s: %s", i, address(i), out)
		}
	}
	// kubelets answer the API server on each node.
	for i := 1; i <= 2; i++ {
		if out := l.mustKube("1", "", "logs", fmt.Sprintf("p%d", i)); !strings.Contains(out, "listens on") {
			t.Errorf("log of pod %d is %q", i, out)
		}
	}
	if err := Down(t.Context(), "labnodes"); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, "labnodes", tr)
}

// Whatever is killed at whatever moment: down removes the rest.
func TestDownRemovesLeftoversOfACrash(t *testing.T) {
	needLab(t)
	const name = "labcrash"
	o := Options{Name: name, Clusters: 2}
	if _, err := Build(t.Context(), o, func(string) {}); err != nil {
		t.Fatal(err)
	}
	binary, err := labBinary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Down(context.WithoutCancel(t.Context()), name) })
	for _, tt := range []struct {
		name   string
		after  time.Duration
		daemon bool
	}{
		{"the command, at once", 30 * time.Millisecond, false},
		{"the command, while nodes start", 2 * time.Second, false},
		{"command and daemon, while nodes start", 2 * time.Second, true},
		{"command and daemon, while pods start", 7 * time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up := exec.Command(binary, "--name", name, "up")
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(tt.after)
			var tr traces
			if tt.daemon {
				var l *Lab
				if err := eventually.Is(t.Context(), time.Minute, "the daemon to serve", func(ctx context.Context) (err error) {
					l, err = Open(ctx, name)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				tr = (&testLab{Lab: l, t: t}).traces()
			}
			if err := up.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = up.Wait()
			if tt.daemon {
				if err := syscall.Kill(tr.pids[0], syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if err := eventually.Poll(t.Context(), 50*time.Millisecond, func() bool { p, err := markedProcesses(name); return err == nil && len(p) == 0 }); err != nil {
					t.Fatalf("nodes outlive the daemon: %v", err)
				}
				// The kernel closes the socket of a process that was killed a moment later.
				if err := eventually.Is(t.Context(), 10*time.Second, "the lab to be left over", func(ctx context.Context) error {
					s, err := ReadStatus(ctx, name)
					if err == nil && s.State != StateLeftover {
						err = fmt.Errorf("status is %+v", s)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			}
			if err := Down(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, name, tr)
			if s, err := ReadStatus(t.Context(), name); err != nil || s.State != StateDown {
				t.Errorf("status is %+v, %v", s, err)
			}
		})
	}
}

func TestDownWithoutALabSucceeds(t *testing.T) {
	if err := Down(t.Context(), "nosuchlab"); err != nil {
		t.Error(err)
	}
	if err := Down(t.Context(), "../x"); err == nil {
		t.Error("a path was taken for a name")
	}
}

func TestLightLabRunsFakePodsAndEndsWithItsTest(t *testing.T) {
	if testing.Short() {
		t.Skip("control planes take some seconds: not with -short")
	}
	var clusters []*Cluster
	t.Run("inside", func(t *testing.T) {
		clusters = Light(t, 2)
		for _, c := range clusters {
			a, err := openAPI(c.Kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			path := "/api/v1/namespaces/default/configmaps/x"
			if err := a.apply(t.Context(), path, m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": "x"}, "data": m{"cluster": c.Name}}); err != nil {
				t.Fatal(err)
			}
			var got struct{ Data map[string]string }
			if err := a.get(t.Context(), path, &got); err != nil || got.Data["cluster"] != c.Name {
				t.Errorf("%s holds %v, %v", c.Name, got, err)
			}
		}
	})
	if t.Failed() || len(clusters) == 0 {
		return
	}
	for _, c := range clusters {
		if resp, err := http.Get(c.Server + "/readyz"); err == nil {
			resp.Body.Close()
			t.Errorf("%s outlives its test", c.Name)
		}
	}
	l, err := StartLight(t.Context(), t.TempDir(), Options{Clusters: 1, FakeNodes: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	fakePodsRun(t, l.Clusters[0])
	fakePodsComeAgain(t, l.Clusters[0])
}

func fakePodsRun(t *testing.T, c *Cluster) {
	t.Helper()
	a, err := openAPI(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	labels := m{"app": "x"}
	path := "/apis/apps/v1/namespaces/default/deployments/x"
	err = a.applyRetry(t.Context(), path, m{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": m{"name": "x"}, "spec": m{
		"replicas": 20, "selector": m{"matchLabels": labels},
		"template": m{"metadata": m{"labels": labels}, "spec": m{"containers": []m{{"name": "x", "image": "x"}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var d struct {
		Status struct{ AvailableReplicas int }
	}
	if err := eventually.Poll(ctx, 200*time.Millisecond, func() bool { return a.get(ctx, path, &d) == nil && d.Status.AvailableReplicas == 20 }); err != nil {
		t.Errorf("%d of 20 pods run: %v", d.Status.AvailableReplicas, err)
	}
}

// fakePodsComeAgain deletes pods and makes others of their names as soon as they are gone: these run.
func fakePodsComeAgain(t *testing.T, c *Cluster) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	pods := kubernetes.NewForConfigOrDie(config).CoreV1().Pods("default")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	node := c.Name + "-fake-1"
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if err := fakePodComesAgain(ctx, pods, fmt.Sprint("again-", i), node); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func fakePodComesAgain(ctx context.Context, pods typedcorev1.PodInterface, name, node string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{Name: "x", Image: "x"}},
	}}
	for range 10 {
		made, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		err = eventually.Poll(ctx, 10*time.Millisecond, func() bool {
			got, err := pods.Get(ctx, name, metav1.GetOptions{})
			return err != nil || got.UID != made.UID || got.Status.Phase == corev1.PodRunning
		})
		if got, getErr := pods.Get(ctx, name, metav1.GetOptions{}); err != nil || getErr != nil || got.UID != made.UID {
			return fmt.Errorf("pod %s, which was not deleted, is gone: %w", name, errors.Join(err, getErr))
		}
		if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		err = eventually.Poll(ctx, time.Millisecond, func() bool {
			_, err := pods.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		if err != nil {
			return fmt.Errorf("pod %s is never gone: %w", name, err)
		}
	}
	return nil
}

// On a shared LAN all nodes and hosts receive a node's multicast; a node can be given another
// address, and be moved to a LAN where none of them receives it.
func TestLabOfClustersThatShareALAN(t *testing.T) {
	only.Matrix(t, "the tests of package lan run on such a lab")
	needLab(t)
	l := upLab(t, Options{Name: "lablan", Clusters: 2, LAN: SharedLAN})
	a, b := "lablan-1", "lablan-2"
	tr := l.traces()
	h, err := l.Host(t.Context(), "printer", 1)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.Host(t.Context(), "printer", 1); err != nil || again.pid != h.pid {
		t.Errorf("asked for again, the host is %+v, %v", again, err)
	}
	hears := func(want bool, who string) {
		t.Helper()
		for _, group := range []string{"224.0.0.251", "ff02::fb"} {
			if heard := l.multicast(a, group, who, h); heard != want {
				t.Errorf("%s hears what %s sends to %s: %v, want %v", who, a, group, heard, want)
			}
		}
	}
	t.Run("multicast is heard by the other cluster and by a host", func(t *testing.T) {
		hears(true, b)
		hears(true, "printer")
		for _, n := range []string{a, b} {
			l.mustKube(n, "", "get", "nodes")
		}
		if got, _ := l.ping(a, b, 5); got != 5 {
			t.Errorf("%d of 5 answers", got)
		}
		c, n, err := l.plan.Node(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []netip.Addr{n.Address, n.Address6} {
			if out, err := h.Exec(t.Context(), "ping", "-c1", "-w5", to.String()).CombinedOutput(); err != nil {
				t.Errorf("the host does not reach %s of %s: %s", to, c.Name, out)
			}
		}
	})
	t.Run("a cut cuts multicast too, and heals", func(t *testing.T) {
		l.mustFault(FaultRequest{Kind: "cut", A: a, B: b})
		if got, _ := l.ping(a, b, 3); got != 0 {
			t.Errorf("cut: %d answers", got)
		}
		hears(false, b)
		hears(true, "printer")
		l.mustFault(FaultRequest{Kind: "heal"})
		if got, _ := l.ping(a, b, 3); got != 3 {
			t.Errorf("healed: %d of 3 answers", got)
		}
	})
	t.Run("a capture has the packets between two clusters", func(t *testing.T) { captureCaptures(l, a, b) })
	t.Run("a node is carried to another LAN, where it has another address", func(t *testing.T) {
		const to = "172.29.2.11"
		if err := l.Readdress(t.Context(), b, netip.MustParseAddr(to)); err != nil {
			t.Fatal(err)
		}
		if _, err := Up(t.Context(), l.plan.Options, nil); err != nil { // waits for readiness
			t.Fatal(err)
		}
		is := func() string {
			out, _ := l.kube(b, "", "get", "nodes", "-o", `jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}`)
			return out
		}
		if err := eventually.Poll(t.Context(), 200*time.Millisecond, func() bool { return is() == to }); err != nil {
			t.Errorf("the node's address is %s, want %s: %v", is(), to, err)
		}
		if got, _ := l.ping(a, b, 3); got != 3 {
			t.Errorf("%d of 3 answers", got)
		}
		hears(false, b)
		there, err := l.Host(t.Context(), "scanner", 2)
		if err != nil {
			t.Fatal(err)
		}
		if !l.multicast(b, "224.0.0.251", there.Name, there) {
			t.Error("a host on the other LAN does not hear it either")
		}
		if _, err := l.Host(t.Context(), "printer", 2); err == nil {
			t.Error("one host is on two LANs")
		}
	})
	t.Run("a cut also cuts routed packets", func(t *testing.T) {
		l.mustFault(FaultRequest{Kind: "cut", A: a, B: b})
		if got, _ := l.ping(a, b, 3); got != 0 {
			t.Errorf("%d answers", got)
		}
		l.mustFault(FaultRequest{Kind: "heal"})
	})
	t.Run("a host ends with all that runs on it", func(t *testing.T) {
		sleeper := h.Exec(t.Context(), "sleep", "1000")
		if err := sleeper.Start(); err != nil {
			t.Fatal(err)
		}
		if err := h.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := sleeper.Wait(); err == nil {
			t.Error("a program ended well when its host went")
		}
	})
	if _, err := l.Host(t.Context(), "left", 1); err != nil { // down has to remove it
		t.Fatal(err)
	}
	if err := Down(t.Context(), "lablan"); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, "lablan", tr)
}

// multicast sends packets to a group from a node and says whether a node or the host
// sees one arrive.
func (l *testLab) multicast(from, group, to string, h *Host) bool {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 3*time.Second)
	defer cancel()
	listen := []string{"tcpdump", "-i", "eth0", "-n", "-l", "-c1", "-Z", "root", "--immediate-mode", "dst host " + group + " and udp port 5399"}
	cmd := h.Exec(ctx, listen...)
	if to != h.Name {
		var err error
		if cmd, err = l.Exec(ctx, to, false, listen...); err != nil {
			l.t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Run() }()
	for {
		send, err := l.Exec(ctx, from, false, "bash", "-c", "echo hear me > /dev/udp/"+group+"%eth0/5399")
		if group[0] != 'f' {
			send, err = l.Exec(ctx, from, false, "bash", "-c", "echo hear me > /dev/udp/"+group+"/5399")
		}
		if err == nil {
			_ = send.Run() // what counts is what arrives
		}
		select {
		case err := <-done:
			return err == nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}
