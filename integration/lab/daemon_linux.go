package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// daemon owns a lab: the internet is its network namespace and the nodes are
// its children.
type daemon struct {
	dir      string
	spec     daemonSpec // but for its plan
	planNow  atomic.Pointer[Plan]
	logger   *slog.Logger
	progress *progress
	internet internet
	hostNet  int // file descriptor of the machine's network namespace, or -1

	mu      sync.Mutex
	nodes   map[string]*node
	hosts   map[string]*host
	lights  map[string]*supervisor
	servers map[string]string // cluster → URL from the machine
	faults  Faults
	delays  map[uint16]delayHandle
	state   string
	failure string
}

// plan is the plan as it is now: nodes may have been given other addresses.
func (d *daemon) plan() Plan { return *d.planNow.Load() }

// delayHandle is a delay line and what ends it.
type delayHandle struct {
	line *delayLine
	stop func()
}

// runDaemon runs a lab until it is killed or ctx ends. File 3 is the machine's
// network namespace, unless the lab is light.
func runDaemon(ctx context.Context, dir string) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	spec, err := readSpec(dir)
	if err != nil {
		return err
	}
	d := &daemon{
		dir: dir, spec: spec, logger: logger, progress: newProgress(), hostNet: -1,
		internet: internet{dir: dir},
		nodes:    map[string]*node{}, hosts: map[string]*host{}, lights: map[string]*supervisor{}, servers: map[string]string{}, delays: map[uint16]delayHandle{},
		state: StateStarting,
	}
	d.planNow.Store(&spec.Plan)
	if !spec.Plan.Options.Light {
		d.hostNet = 3
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(dir, socketFile))
	if err != nil {
		return fmt.Errorf("listen for commands: %w", err)
	}
	if err := os.Chmod(filepath.Join(dir, socketFile), 0o600); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, stateFile), daemonState{PID: os.Getpid(), Started: time.Now()}, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{Handler: d.routes(ctx), ReadHeaderTimeout: 10 * time.Second}
	go d.bringUp(ctx)
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve commands: %w", err)
	}
	return nil
}

// bringUp makes the lab and says how it ended.
func (d *daemon) bringUp(ctx context.Context) {
	upCtx, cancel := context.WithTimeoutCause(ctx, upMost, fmt.Errorf("not ready within %v", upMost))
	defer cancel()
	var err error
	if d.plan().Options.Light {
		err = d.upLight(ctx, upCtx)
	} else {
		err = d.upFull(ctx, upCtx)
	}
	d.mu.Lock()
	d.state = StateReady
	if err != nil {
		d.state, d.failure = StateFailed, err.Error()
		d.logger.Error("lab not ready", "err", err)
	}
	d.mu.Unlock()
	d.progress.done(err)
}

// each runs f for all clusters at once.
func (d *daemon) each(f func(ClusterPlan) error) error {
	errs := make([]error, len(d.plan().Clusters))
	var wg sync.WaitGroup
	for i, c := range d.plan().Clusters {
		wg.Go(func() {
			if err := f(c); err != nil {
				errs[i] = fmt.Errorf("%s: %w", c.Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// upFull makes clusters of nodes. ctx is the lab's, upCtx ends sooner.
func (d *daemon) upFull(ctx, upCtx context.Context) error {
	if err := d.internet.create(upCtx, d.plan()); err != nil {
		return fmt.Errorf("make the internet: %w", err)
	}
	if err := d.raiseLimits(upCtx); err != nil {
		return fmt.Errorf("raise kernel limits: %w", err)
	}
	err := d.each(func(c ClusterPlan) error {
		if err := writePKI(filepath.Join(clusterDir(d.dir, c.Name), "pki"), c); err != nil {
			return fmt.Errorf("make certificates: %w", err)
		}
		return d.forward(ctx, c)
	})
	if err != nil {
		return err
	}
	d.progress.say("internet is up; starting %d clusters of %d nodes", len(d.plan().Clusters), d.plan().Options.Nodes)
	return d.each(func(c ClusterPlan) error {
		for _, n := range c.Nodes {
			if err := d.prepareNode(c, n); err != nil {
				return fmt.Errorf("prepare node %s: %w", n.Name, err)
			}
			if err := d.startNode(c, n); err != nil {
				return fmt.Errorf("start node %s: %w", n.Name, err)
			}
		}
		return d.ready(upCtx, c)
	})
}

// upLight makes control planes on loopback ports.
func (d *daemon) upLight(ctx, upCtx context.Context) error {
	return d.each(func(c ClusterPlan) error {
		dir := clusterDir(d.dir, c.Name)
		s, server, err := lightCluster(ctx, d.spec, c, dir, filepath.Join(d.dir, "log", c.Name), d.logger)
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.lights[c.Name], d.servers[c.Name] = s, server
		d.mu.Unlock()
		go func() {
			if err := s.run(ctx); err != nil {
				d.logger.Error("control plane ended", "cluster", c.Name, "err", err)
			}
		}()
		return d.ready(upCtx, c)
	})
}

// ready waits until the cluster is what it was planned to be.
func (d *daemon) ready(ctx context.Context, c ClusterPlan) error {
	return bootstrap(ctx, d.plan(), c, d.ownKubeconfig(c), d.progress)
}

// allReady switches on the nodes that are off and waits until all is ready.
func (d *daemon) allReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, upMost, fmt.Errorf("not ready within %v", upMost))
	defer cancel()
	return d.each(func(c ClusterPlan) error {
		for _, n := range c.Nodes {
			if err := d.startNode(c, n); err != nil {
				return fmt.Errorf("start node %s: %w", n.Name, err)
			}
		}
		return bootstrap(ctx, d.plan(), c, d.ownKubeconfig(c), newProgress())
	})
}

// ownKubeconfig is the kubeconfig that works where the daemon is.
func (d *daemon) ownKubeconfig(c ClusterPlan) string {
	if d.plan().Options.Light {
		return kubeconfigFile(d.dir, c.Name)
	}
	return internalKubeconfigFile(d.dir, c.Name)
}

// forward listens on a loopback port of the machine for c's API server. Only
// the socket is in the machine's namespace; the way on starts in the daemon's.
func (d *daemon) forward(ctx context.Context, c ClusterPlan) error {
	l, err := listenIn(ctx, d.hostNet, netip.MustParseAddr("127.0.0.1"), preferredPort(d.plan().Options.Name, c.Index))
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	go forward(ctx, l, func() string { return apiServer(d.plan().Clusters[c.Index-1]) }, d.logger)
	server := "https://" + l.Addr().String()
	d.mu.Lock()
	d.servers[c.Name] = server
	d.mu.Unlock()
	pki := filepath.Join(clusterDir(d.dir, c.Name), "pki")
	if err := writeKubeconfig(kubeconfigFile(d.dir, c.Name), c.Name, pki, "admin", server); err != nil {
		return err
	}
	return d.writeInternalKubeconfig(c)
}

func (d *daemon) writeInternalKubeconfig(c ClusterPlan) error {
	pki := filepath.Join(clusterDir(d.dir, c.Name), "pki")
	return writeKubeconfig(internalKubeconfigFile(d.dir, c.Name), c.Name, pki, "admin", "https://"+apiServer(c))
}

func (d *daemon) status(ctx context.Context) Status {
	d.mu.Lock()
	o := d.plan().Options
	s := Status{Name: o.Name, State: d.state, Error: d.failure, Dir: d.dir, Daemon: os.Getpid(), Options: &o, Faults: d.faults}
	for _, h := range d.hosts {
		s.Hosts = append(s.Hosts, h.HostStatus)
	}
	d.mu.Unlock()
	slices.SortFunc(s.Hosts, func(a, b HostStatus) int { return strings.Compare(a.Name, b.Name) })
	s.Clusters = make([]ClusterStatus, len(d.plan().Clusters))
	var wg sync.WaitGroup
	for i, c := range d.plan().Clusters {
		wg.Go(func() { s.Clusters[i] = d.clusterStatus(ctx, c) })
	}
	wg.Wait()
	return s
}

func (d *daemon) clusterStatus(ctx context.Context, c ClusterPlan) ClusterStatus {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	d.mu.Lock()
	s := ClusterStatus{
		Name: c.Name, Kubeconfig: kubeconfigFile(d.dir, c.Name), Server: d.servers[c.Name],
		PodCIDR: list(c.PodCIDRs()), ServiceCIDR: list(c.ServiceCIDRs()),
	}
	if l := d.lights[c.Name]; l != nil {
		s.Components, s.Logs = l.snapshot(), l.logDir
	}
	for _, n := range c.Nodes {
		ns := NodeStatus{Name: n.Name, Address: n.Address.String(), Logs: filepath.Join(nodeRoot(d.dir, n.Name), nodeLogs)}
		if r := d.nodes[n.Name]; r != nil {
			ns.PID, ns.Components = r.pid, r.components()
		}
		s.Nodes = append(s.Nodes, ns)
	}
	d.mu.Unlock()
	a, err := openAPI(d.ownKubeconfig(c))
	if err != nil {
		return s
	}
	defer a.http.CloseIdleConnections()
	s.Ready = a.get(ctx, "/readyz", nil) == nil
	if !s.Ready {
		return s
	}
	ready, err := readyNodes(ctx, a)
	for i := range s.Nodes {
		s.Nodes[i].Ready = err == nil && ready[s.Nodes[i].Name]
	}
	return s
}

// components reads what the node's supervisor last wrote.
func (n *node) components() []Process {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", n.pid, nodeStatus))
	if err != nil {
		return nil
	}
	var states []Process
	if json.Unmarshal(b, &states) != nil {
		return nil
	}
	return states
}
