package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// node is a node that runs.
type node struct {
	cluster ClusterPlan
	plan    NodePlan
	pid     int
	ended   chan struct{} // closed when its first process is gone, and all with it
}

func (d *daemon) nodeSpec(c ClusterPlan, n NodePlan) nodeSpec {
	s := nodeSpec{
		Lab: d.plan().Options.Name, Cluster: c, Node: n, Options: d.plan().Options,
		Mounts: map[string]string{
			nodeBin + "/kube":   d.spec.Binaries["kube"],
			nodeBin + "/node":   d.spec.Binaries["node"],
			nodeBin + "/images": filepath.Join(d.dir, "images"),
		},
	}
	for _, f := range d.spec.Images {
		s.Images = append(s.Images, nodeBin+"/images/"+filepath.Base(f))
	}
	for _, name := range []string{"ptp", "flannel"} {
		if dir := d.spec.Binaries[name]; dir != "" {
			s.Mounts[nodeBin+"/"+name] = dir
		}
	}
	if kwok := d.spec.Binaries["kwok"]; kwok != "" && n.Control {
		s.Kwok = true
		s.Mounts[nodeBin+"/kwok"] = kwok
		for _, f := range kwokStages() {
			s.Stages = append(s.Stages, nodeBin+"/kwok/"+f)
		}
	}
	return s
}

func (d *daemon) prepareNode(c ClusterPlan, n NodePlan) error {
	root := nodeRoot(d.dir, n.Name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	return d.nodeSpec(c, n).prepare(root, filepath.Join(clusterDir(d.dir, c.Name), "pki"))
}

// startNode switches a node on.
func (d *daemon) startNode(c ClusterPlan, n NodePlan) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodes[n.Name] != nil {
		return nil
	}
	if err := makeCgroup(n.Cgroup); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	root := nodeRoot(d.dir, n.Name)
	out, err := os.OpenFile(filepath.Join(root, nodeLogs, "init.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	r := &node{cluster: c, plan: n, ended: make(chan struct{})}
	if r.pid, err = d.spawn(out, c.lans()[n.Subnet].Name, n.Uplink, func(err error) {
		d.logger.Info("node ended", "node", n.Name, "err", err)
		d.mu.Lock()
		delete(d.nodes, n.Name)
		d.mu.Unlock()
		close(r.ended)
	}, "node-init", root); err != nil {
		return err
	}
	d.nodes[n.Name] = r
	return nil
}

// spawn starts this program with args as the first process of new namespaces, and
// gives it its eth0, which it waits for: its file 3 ends then. ended is called when
// the process has ended, and all in its namespaces with it, on a goroutine of its own.
func (d *daemon) spawn(out *os.File, lan, uplink string, ended func(error), args ...string) (int, error) {
	wait, ready, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = wait.Close() }()
	defer func() { _ = ready.Close() }()
	cmd := exec.Command("/proc/self/exe", args...) //nolint:noctx // who called and the kernel end it
	cmd.Env = []string{nodePath, "HOME=/root", labMark(d.plan().Options.Name)}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{wait}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid:     true,
		Pdeathsig:  syscall.SIGKILL,
	}
	started := make(chan error)
	go func() {
		// The kernel ends the process when the thread that started it ends.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended(cmd.Wait())
		}
	}()
	if err := <-started; err != nil {
		return 0, err
	}
	if err := d.internet.attach(lan, uplink, cmd.Process.Pid); err != nil {
		return 0, errors.Join(err, cmd.Process.Kill())
	}
	return cmd.Process.Pid, nil
}

// stopNode switches a node off, as if its plug were pulled. Its disk remains.
func (d *daemon) stopNode(ctx context.Context, n NodePlan) error {
	d.mu.Lock()
	r := d.nodes[n.Name]
	d.mu.Unlock()
	if r == nil {
		return nil
	}
	if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill node: %w", err)
	}
	select {
	case <-r.ended:
	case <-ctx.Done():
		return fmt.Errorf("wait for the node's processes to end: %w", ctx.Err())
	}
	return errors.Join(d.internet.detach(n.Uplink), removeCgroups(ctx, func(name string) bool { return "/"+name == n.Cgroup }))
}

// readdress switches a node off and on again with another address, as a machine that
// is given another one, or is carried to another LAN.
func (d *daemon) readdress(ctx context.Context, q readdressRequest) error {
	if d.plan().Options.Light {
		return errors.New("a light lab has no nodes")
	}
	plan, err := d.plan().readdressed(q.Node, q.Address)
	if err != nil {
		return err
	}
	c, n, err := plan.Node(q.Node)
	if err != nil {
		return err
	}
	if err := d.stopNode(ctx, n); err != nil {
		return err
	}
	d.planNow.Store(&plan)
	spec := d.spec
	spec.Plan = plan
	if err := writeJSON(filepath.Join(d.dir, specFile), spec, 0o600); err != nil {
		return err
	}
	if err := reissue(filepath.Join(clusterDir(d.dir, c.Name), "pki"), c); err != nil {
		return err
	}
	if err := errors.Join(d.writeInternalKubeconfig(c), d.prepareNode(c, n)); err != nil {
		return err
	}
	return d.startNode(c, n)
}

// loadImage imports an image archive into nodes.
func (d *daemon) loadImage(ctx context.Context, archive string, nodes []string) ([]string, error) {
	d.mu.Lock()
	var to []*node
	for _, r := range d.nodes {
		if len(nodes) == 0 {
			to = append(to, r)
			continue
		}
		for _, n := range nodes {
			if r.plan.Name == n || r.cluster.Name == n {
				to = append(to, r)
			}
		}
	}
	d.mu.Unlock()
	if len(to) == 0 {
		return nil, errors.New("no such node is running")
	}
	var mu sync.Mutex
	var done []string
	var errs []error
	var wg sync.WaitGroup
	for _, r := range to {
		wg.Go(func() {
			err := r.importImage(ctx, archive)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", r.plan.Name, err))
				return
			}
			done = append(done, r.plan.Name)
		})
	}
	wg.Wait()
	return done, errors.Join(errs...)
}

func (n *node) importImage(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// The path is one inside the node: only the pipe crosses.
	cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--target=%d", n.pid), "--mount", "--net", "--pid", "--root", "--wd=/", "--",
		nodeBin+"/node/ctr", "--address", containerd, "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = f
	cmd.Env = append(os.Environ(), nodePath)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("import %s: %w: %s", filepath.Base(archive), err, tail(out.String(), 5))
	}
	return nil
}

// setFault changes what the internet does to packets.
func (d *daemon) setFault(ctx, lab context.Context, r FaultRequest) (Faults, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.plan().Options.Light {
		return d.faults, errors.New("a light lab has no network to disturb")
	}
	f, err := d.faults.with(d.plan(), r)
	if err != nil {
		return d.faults, err
	}
	if err := d.openDelays(lab, f); err != nil {
		return d.faults, err
	}
	if err := d.internet.apply(ctx, d.plan(), f); err != nil {
		return d.faults, err
	}
	translated := strings.Join(d.faults.NAT, " ") != strings.Join(f.NAT, " ")
	d.faults = f
	d.closeDelays(f)
	if translated {
		return f, d.internet.forget(ctx)
	}
	return f, nil
}

// openDelays opens the delay lines that f needs and adjusts those that are open.
func (d *daemon) openDelays(ctx context.Context, f Faults) error {
	for q, delay := range d.delayed(f) {
		if h, ok := d.delays[q]; ok {
			h.line.delay.Store(int64(delay))
			continue
		}
		lineCtx, cancel := context.WithCancel(ctx)
		wg := &sync.WaitGroup{}
		line, err := openDelayLine(lineCtx, q, delay, wg)
		if err != nil {
			cancel()
			return err
		}
		d.delays[q] = delayHandle{line: line, stop: func() { cancel(); wg.Wait() }}
	}
	return nil
}

// closeDelays closes the lines that f no longer uses, after the packets in them
// had time to leave.
func (d *daemon) closeDelays(f Faults) {
	wanted := d.delayed(f)
	for q, h := range d.delays {
		if _, ok := wanted[q]; ok {
			continue
		}
		delete(d.delays, q)
		last := time.Duration(h.line.delay.Load())
		go func() {
			time.Sleep(last)
			h.stop()
		}()
	}
}

func (d *daemon) delayed(f Faults) map[uint16]time.Duration {
	q := map[uint16]time.Duration{}
	for _, x := range f.Pairs {
		a, errA := d.plan().Cluster(x.A)
		b, errB := d.plan().Cluster(x.B)
		if errA == nil && errB == nil && x.Delay > 0 {
			q[queueNumber(a, b)] = x.Delay
		}
	}
	return q
}

// raiseLimits raises what the kernel allows all namespaces together, and records the previous value
// for the process that takes the last lab down.
func (d *daemon) raiseLimits(ctx context.Context) error {
	unlock, err := lockFile(ctx, filepath.Join(baseDir(), lockName), func() {})
	if err != nil {
		return err
	}
	defer unlock()
	return raiseSysctls(filepath.Join(baseDir(), kernelFile))
}
