package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Lab is a lab that runs, seen from outside of it.
type Lab struct {
	name string
	dir  string
	plan Plan
	http *http.Client
}

// Up makes the lab that o describes, and returns when all of it is ready. If it runs already, Up
// only waits; if another lab of that name runs, that is an error; leftovers of one that died are
// removed first. progress is called with a line for each step; it may be nil.
func Up(ctx context.Context, o Options, progress func(string)) (*Lab, error) {
	if progress == nil {
		progress = func(string) {}
	}
	plan, err := NewPlan(o)
	if err != nil {
		return nil, err
	}
	o = plan.Options
	if err := allowed(o); err != nil {
		return nil, err
	}
	bins, err := Build(ctx, o, progress)
	if err != nil {
		return nil, err
	}
	unlock, err := lockFile(ctx, upLockFile(o.Name), func() { progress("waiting for another process that starts or ends lab " + o.Name) })
	if err != nil {
		return nil, err
	}
	defer unlock()
	defer func() { _ = os.Remove(upLockFile(o.Name)) }()
	if l, err := resume(ctx, o, progress); l != nil || err != nil {
		return l, err
	}
	l, err := create(ctx, plan, bins)
	if err != nil {
		return nil, err
	}
	return l, l.wait(ctx, progress)
}

// resume returns the lab if it runs already, with all its nodes switched on; otherwise nil, after
// removing its leftovers.
func resume(ctx context.Context, o Options, progress func(string)) (*Lab, error) {
	l, err := Open(ctx, o.Name)
	if err == nil && l.plan.Options != o {
		return nil, fmt.Errorf("lab %s runs already, with %+v: take it down first, or name another with --name", o.Name, l.plan.Options)
	}
	if err == nil {
		progress("lab " + o.Name + " is there already")
		if err = l.wait(ctx, func(string) {}); err == nil {
			return l, l.call(ctx, http.MethodPost, "/ready", struct{}{}, nil)
		}
		if ctx.Err() != nil {
			return nil, err
		}
		progress("starting again: " + err.Error())
	}
	left, err := leftovers(o.Name)
	if err != nil || len(left) == 0 {
		return nil, err
	}
	progress("removing the leftovers of an earlier lab")
	return nil, remove(ctx, o.Name)
}

// create starts a lab's daemon.
func create(ctx context.Context, plan Plan, bins Binaries) (*Lab, error) {
	o, dir := plan.Options, labDir(plan.Options.Name)
	// Keys, and all that nodes and pods write, are the user's alone.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil {
		return nil, err
	}
	spec := daemonSpec{Plan: plan, Binaries: bins}
	if !o.Light {
		var err error
		if spec.Images, err = writeImages(filepath.Join(dir, "images"), labImages(bins)); err != nil {
			return nil, err
		}
	}
	if err := writeJSON(filepath.Join(dir, specFile), spec, 0o600); err != nil {
		return nil, err
	}
	if err := startDaemon(ctx, dir, o); err != nil {
		return nil, err
	}
	return Open(ctx, o.Name)
}

// allowed reports whether this user on this machine can have such a lab.
func allowed(o Options) error {
	if runtime.GOOS != "linux" {
		return errNotLinux
	}
	if o.Light {
		return nil
	}
	if os.Getuid() != 0 {
		return errors.New("a lab of real nodes needs root (network namespaces, mounts, cgroups); --light does not")
	}
	if missing := MissingPackages(); len(missing) > 0 {
		return fmt.Errorf("programs are missing; install the packages %s", strings.Join(missing, " "))
	}
	return nil
}

// labBinary is the binary of the lab command, which the daemon and the nodes' first processes run:
// this process's own if it is that command, else one that is built and cached.
func labBinary(ctx context.Context) (string, error) {
	if filepath.Base(os.Args[0]) == "lab" {
		return os.Executable()
	}
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	out := filepath.Join(cache, "test", "lab")
	unlock, err := lockFile(ctx, filepath.Join(cache, "lab.lock"), func() {})
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := goCommand(ctx, filepath.Dir(source), nil, "build", "-o", out, "./lab/cmd/lab"); err != nil {
		return "", err
	}
	return out, nil
}

// errNotLinux says why there is no lab on this system.
var errNotLinux = errors.New("the lab needs Linux: nodes are made of its namespaces and cgroups")

// Open finds the lab called name, which has to run.
func Open(ctx context.Context, name string) (*Lab, error) {
	if name == "" {
		name = DefaultName
	}
	dir := labDir(name)
	socket := filepath.Join(dir, socketFile)
	if !listens(ctx, socket) {
		return nil, fmt.Errorf("lab %s is not up", name)
	}
	spec, err := readSpec(dir)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Lab{name: name, dir: dir, plan: spec.Plan, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// ReadStatus returns the status of the lab called name, even if it does not exist.
func ReadStatus(ctx context.Context, name string) (Status, error) {
	if name == "" {
		name = DefaultName
	}
	if l, err := Open(ctx, name); err == nil {
		return l.Status(ctx)
	}
	left, err := leftovers(name)
	if err != nil {
		return Status{}, err
	}
	if len(left) > 0 {
		return Status{Name: name, State: StateLeftover, Error: "left of a lab that died: " + strings.Join(left, ", ")}, nil
	}
	return Status{Name: name, State: StateDown}, nil
}

// Names of the labs that there is something of on this machine.
func Names() ([]string, error) {
	entries, err := os.ReadDir(baseDir())
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Plan has all names and addresses of the lab as they are after the last Readdress of
// this Lab.
func (l *Lab) Plan() Plan { return l.plan }

// Dir is where the lab keeps its files, logs among them.
func (l *Lab) Dir() string { return l.dir }

// Kubeconfig is the path of a cluster's kubeconfig that works on this machine.
func (l *Lab) Kubeconfig(cluster string) (string, error) {
	c, err := l.plan.Cluster(cluster)
	if err != nil {
		return "", err
	}
	return kubeconfigFile(l.dir, c.Name), nil
}

// InternalKubeconfig is the path of a cluster's kubeconfig that works inside
// the lab's network: on nodes and in pods of any cluster.
func (l *Lab) InternalKubeconfig(cluster string) (string, error) {
	c, err := l.plan.Cluster(cluster)
	if err != nil {
		return "", err
	}
	internal := internalKubeconfigFile(l.dir, c.Name)
	if _, err := os.Stat(internal); err != nil {
		return "", fmt.Errorf("lab %s is light and has no network of its own", l.name)
	}
	return internal, nil
}

// Status says how the lab is now.
func (l *Lab) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, l.call(ctx, http.MethodGet, "/status", nil, &s)
}

// Fault changes what the internet between clusters does to packets, and
// returns all faults that there are then.
func (l *Lab) Fault(ctx context.Context, r FaultRequest) (Faults, error) {
	var f Faults
	return f, l.call(ctx, http.MethodPost, "/fault", r, &f)
}

// StopNode switches a node off, as if its plug were pulled.
func (l *Lab) StopNode(ctx context.Context, node string) error {
	return l.call(ctx, http.MethodPost, "/node", nodeRequest{Node: node, Action: "stop"}, nil)
}

// StartNode switches a node on again, with the disk that it had.
func (l *Lab) StartNode(ctx context.Context, node string) error {
	return l.call(ctx, http.MethodPost, "/node", nodeRequest{Node: node, Action: "start"}, nil)
}

// Readdress switches a node of a lab with a shared LAN off and on again with another
// IPv4 address, as a machine that is given another one. An address of 172.29.C.0/24, C
// being the cluster's number, is on the second LAN, where multicast of the first does
// not go; 172.30.C.0/24 is on the first. Only clusters of one node can do this.
func (l *Lab) Readdress(ctx context.Context, node string, to netip.Addr) error {
	if err := l.call(ctx, http.MethodPost, "/readdress", readdressRequest{Node: node, Address: to}, nil); err != nil {
		return err
	}
	spec, err := readSpec(l.dir)
	if err != nil {
		return err
	}
	l.plan = spec.Plan
	return nil
}

// Load imports an image archive (docker or OCI) into the nodes or clusters
// named, all without any, and returns the nodes that have it.
func (l *Lab) Load(ctx context.Context, archive string, to ...string) ([]string, error) {
	archive, err := filepath.Abs(archive)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(archive); err != nil {
		return nil, err
	}
	var nodes []string
	return nodes, l.call(ctx, http.MethodPost, "/load", loadRequest{Archive: archive, To: to}, &nodes)
}

// Exec prepares a command of this machine in a node's network namespace. With
// inside, it is a command of the node: its files and processes too. The node
// "internet" is the router between the clusters.
func (l *Lab) Exec(ctx context.Context, node string, inside bool, argv ...string) (*exec.Cmd, error) {
	if len(argv) == 0 {
		return nil, errors.New("exec: no command")
	}
	pid, err := l.nodePID(ctx, node)
	if err != nil {
		return nil, err
	}
	args := []string{fmt.Sprintf("--target=%d", pid), "--net"}
	if inside && node != Internet {
		args = append(args, "--mount", "--uts", "--ipc", "--pid", "--root", "--wd=/")
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(append(args, "--"), argv...)...)
	env := os.Environ()
	if inside {
		env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") })
		env = append(env, nodePath, "CONTAINERD_NAMESPACE=k8s.io")
	}
	cmd.Env = append(env, labMark(l.name))
	return cmd, nil
}

// Internet is the name that Exec takes for the router between the clusters.
const Internet = "internet"

func (l *Lab) nodePID(ctx context.Context, node string) (int, error) {
	s, err := l.Status(ctx)
	if err != nil {
		return 0, err
	}
	if s.Options.Light {
		return 0, errors.New("a light lab has no nodes")
	}
	if node == Internet {
		return s.Daemon, nil
	}
	_, n, err := l.plan.Node(node)
	if err != nil {
		return 0, err
	}
	for _, c := range s.Clusters {
		for _, ns := range c.Nodes {
			if ns.Name == n.Name && ns.PID != 0 {
				return ns.PID, nil
			}
		}
	}
	return 0, fmt.Errorf("node %s is stopped", n.Name)
}

// Capture writes the packets between two clusters to file until ctx ends. It
// sees them at a's end of the internet: what a sends before it is cut, what b
// sends after.
func (l *Lab) Capture(ctx context.Context, a, b, file string, log io.Writer) error {
	ca, err := l.plan.Cluster(a)
	if err != nil {
		return err
	}
	cb, err := l.plan.Cluster(b)
	if err != nil {
		return err
	}
	switch {
	case ca.Name == cb.Name:
		return errors.New("capture: want two clusters")
	case len(ca.More) > 0:
		return fmt.Errorf("capture: the nodes of %s are on several networks, and only one can be recorded: use Record or tcpdump", ca.Name)
	}
	return l.Record(ctx, ca.LANName, l.plan.captureFilter(ca, cb), file, log)
}

// Record writes the packets on a LAN, by its name in the plan, that match filter, as
// pcap-filter(7) has it, to file until ctx ends.
func (l *Lab) Record(ctx context.Context, lan, filter, file string, log io.Writer) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	// Without the context: it ends tcpdump by force, which loses packets.
	cmd, err := l.Exec(context.WithoutCancel(ctx), Internet, false,
		"tcpdump", "-i", lan, "-n", "-U", "-Z", "root", "--immediate-mode", "-w", file, filter)
	if err != nil {
		return err
	}
	cmd.Stderr = log
	cmd.SysProcAttr = ownGroup() // the terminal's Ctrl-C is for us
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return fmt.Errorf("tcpdump ended: %w", err)
	case <-ctx.Done():
	}
	time.Sleep(300 * time.Millisecond) // packets on their way to the file
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return <-ended
}

// captureFilter matches the packets between two clusters, under their own
// addresses or those that translation gives them.
func (p Plan) captureFilter(a, b ClusterPlan) string {
	side := func(c ClusterPlan) string {
		var match []string
		for _, o := range p.own(c) {
			match = append(match, "net "+o.String())
		}
		return "(" + strings.Join(append(match, "host "+c.Public.String()), " or ") + ")"
	}
	return side(a) + " and " + side(b)
}

// wait passes on what the daemon says until the lab is ready or has failed.
func (l *Lab) wait(ctx context.Context, progress func(string)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://lab/wait", nil)
	if err != nil {
		return err
	}
	resp, err := l.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the lab's daemon: %w", err)
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var e event
		if err := dec.Decode(&e); err != nil {
			return fmt.Errorf("the lab's daemon went away: %w; see %s", err, filepath.Join(l.dir, "log", "daemon.log"))
		}
		switch {
		case e.Error != "":
			return fmt.Errorf("lab %s is not ready: %s; logs are in %s", l.name, e.Error, l.dir)
		case e.Done:
			return nil
		}
		progress(e.Text)
	}
}

// call sends one command to the daemon.
func (l *Lab) call(ctx context.Context, method, path string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := l.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the lab's daemon: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, apiAnswerMost))
	if err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(answer)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}
