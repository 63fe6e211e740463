package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/bare"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering/jointoken"
)

// nodes is how many nodes a cluster pretends to have.
const nodes = 3

// provider is the name of the cluster that most runs have.
const provider = "provider"

// agent is a cluster's control plane, with the chart's objects, and its agent as a
// process of this machine.
type agent struct {
	name string
	// pods is the prefix of the cluster's pods.
	pods   string
	lab    *lab.LightLab
	client ctrlclient.WithWatch
	cmd    *exec.Cmd
	ended  chan struct{}
	// peers, health, profiles and admin are where it listens.
	peers, health, profiles, admin string
	log                            string
	// memory is the agent's memory limit in the chart, in bytes.
	memory int64
	// again starts it again.
	again func(context.Context) error
}

// build builds the agent of the repository at root, with other text in place of some of
// its files.
func build(ctx context.Context, root, binary string, instead map[string]string) error {
	overlay, err := json.Marshal(map[string]any{"Replace": instead})
	if err != nil {
		return err
	}
	text := binary + ".overlay"
	if err := os.WriteFile(text, overlay, 0o600); err != nil {
		return err
	}
	if err := os.Remove(binary); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may run
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", text, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, "./cmd/entented")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build entented: %w\n%s", err, out)
	}
	return nil
}

// startAgent brings up the control plane of a cluster and the agent in it. pods is the prefix of the cluster's pods.
func startAgent(ctx context.Context, name, dir, root, binary, pods string) (_ *agent, err error) {
	a := &agent{name: name, pods: pods, log: filepath.Join(dir, "agent.log")}
	if a.lab, err = lab.StartLight(ctx, filepath.Join(dir, "lab"), lab.Options{Clusters: 1, FakeNodes: nodes}, nil); err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}
	defer func() {
		if err != nil {
			a.stop()
		}
	}()
	config := a.lab.Clusters[0].RESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	kinds := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(kinds), v1alpha1.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	if a.client, err = ctrlclient.NewWithWatch(config, ctrlclient.Options{Scheme: kinds}); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "agent.kubeconfig")
	if err := bare.Install(ctx, config, root, kubeconfig); err != nil {
		return nil, err
	}
	if a.memory, err = memoryLimit(root); err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(ctx, 6)
	if err != nil {
		return nil, err
	}
	a.again = func(ctx context.Context) error { return a.spawn(ctx, binary, kubeconfig, addresses) }
	return a, errors.Join(a.again(ctx), a.nodesReady(ctx))
}

// memoryLimit is the agent's memory limit in the chart.
func memoryLimit(root string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(root, "charts", "entente", "values.yaml"))
	if err != nil {
		return 0, err
	}
	var values struct {
		Agent struct {
			Resources corev1.ResourceRequirements `json:"resources"`
		} `json:"agent"`
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return 0, fmt.Errorf("read the chart's values: %w", err)
	}
	return values.Agent.Resources.Limits.Memory().Value(), nil
}

// nodesReady waits until the nodes take pods: their first taints go a moment after
// they are ready.
func (a *agent) nodesReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the nodes do not take pods"))
	defer cancel()
	for {
		var list corev1.NodeList
		if err := a.client.List(ctx, &list); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return len(n.Spec.Taints) > 0 }) {
			return nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func (a *agent) spawn(ctx context.Context, binary, kubeconfig string, addresses []string) error {
	a.peers, a.health, a.profiles, a.admin = addresses[0], addresses[1], addresses[2], addresses[3]
	out, err := os.OpenFile(a.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	a.cmd = exec.Command(binary, "agent", "--cluster-name="+a.name, //nolint:noctx // it is stopped by stop
		"--peer-address="+a.peers, "--peer-endpoint="+a.peers, "--health-address="+a.health, "--profile-address="+a.profiles,
		"--admin-address="+a.admin, "--kubelet-address="+addresses[4], "--metrics-address="+addresses[5],
		"--relay-address=", "--in-band-address=", "--pod-cidr="+a.pods, "--service-cidr=10.96.0.0/16")
	a.cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "POD_NAME=entente-agent-bench", "POD_NAMESPACE="+bare.Namespace, "POD_IP=127.0.0.1",
		fmt.Sprint("GOMEMLIMIT=", a.memory)) // as the chart does
	a.cmd.Stdout, a.cmd.Stderr = out, out
	if err := errors.Join(a.cmd.Start(), out.Close()); err != nil {
		return err
	}
	cmd, ended := a.cmd, make(chan struct{})
	a.ended = ended
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := a.get(ctx, a.health, "/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			b, _ := os.ReadFile(a.log)
			return fmt.Errorf("the agent ended: %s", b)
		case <-ctx.Done():
			return fmt.Errorf("the agent is not ready: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// freeAddresses finds unused loopback ports.
func freeAddresses(ctx context.Context, n int) ([]string, error) {
	var out []string
	for range n {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all at the end, so that all are different
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// restart kills the agent and starts it again.
func (a *agent) restart(ctx context.Context) error {
	_ = a.cmd.Process.Kill()
	<-a.ended
	return a.again(ctx)
}

// lives is a context that ends with the agent.
func (a *agent) lives(ctx context.Context) context.Context {
	ctx, end := context.WithCancelCause(ctx)
	ended := a.ended
	go func() {
		select {
		case <-ctx.Done():
		case <-ended:
			b, _ := os.ReadFile(a.log)
			lines := strings.Split(strings.TrimSpace(string(b)), "\n")
			end(fmt.Errorf("the agent ended: %s", lines[len(lines)-1]))
		}
	}()
	return ctx
}

func (a *agent) stop() {
	if a.cmd != nil && a.cmd.Process != nil {
		_ = a.cmd.Process.Kill()
		<-a.ended
	}
	a.lab.Stop()
}

func (*agent) get(ctx context.Context, address, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, resp.Status, b)
	}
	return b, err
}

// blind shows no Secrets, so that as many tokens can be made as are wanted: how
// many may be outstanding is a limit for people.
type blind struct{ ctrlclient.WithWatch }

func (blind) List(context.Context, ctrlclient.ObjectList, ...ctrlclient.ListOption) error { return nil }

// tokens makes tokens.
func (a *agent) tokens(ctx context.Context, n int) ([]jointoken.Token, error) {
	id, err := store.LoadIdentity(ctx, a.client, bare.Namespace, time.Now())
	if err != nil {
		return nil, err
	}
	mint := store.Tokens{Client: blind{a.client}, Namespace: bare.Namespace, Now: time.Now}
	out := make([]jointoken.Token, n)
	for i := range out {
		if out[i], err = mint.Mint(ctx, id.ID(), []string{a.peers}, 0); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// size is the memory use of the agent.
type size struct {
	// RSS is its resident memory, Heap what lives on its heap after a collection, and
	// Stacks what its stacks take, in bytes.
	RSS        float64 `json:"rss"`
	Heap       float64 `json:"heap"`
	Stacks     float64 `json:"stacks"`
	Goroutines float64 `json:"goroutines"`
	// CPU is the time that it used so far, in seconds.
	CPU float64 `json:"cpu"`
}

// size measures the agent. RSS is taken before the collection that the heap needs.
func (a *agent) size(ctx context.Context) (size, error) {
	before, err := a.metrics(ctx)
	if err != nil {
		return size{}, err
	}
	if _, err := a.get(ctx, a.profiles, "/debug/pprof/heap?gc=1"); err != nil {
		return size{}, err
	}
	after, err := a.metrics(ctx)
	return size{
		RSS: before["process_resident_memory_bytes"], CPU: before["process_cpu_seconds_total"], Goroutines: before["go_goroutines"],
		Heap: after["go_memstats_heap_alloc_bytes"], Stacks: after["go_memstats_stack_inuse_bytes"],
	}, err
}

// metrics reads the metrics that have no labels.
func (a *agent) metrics(ctx context.Context) (map[string]float64, error) {
	b, err := a.get(ctx, a.profiles, "/metrics")
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	eachSample(b, func(metric, labels string, v float64) {
		if labels == "" {
			out[metric] = v
		}
	})
	return out, nil
}

// profile keeps a profile of the agent.
func (a *agent) profile(ctx context.Context, path, file string) error {
	b, err := a.get(ctx, a.profiles, path)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o644)
}

// halve takes half of its processors from a node, or gives them back.
func (a *agent) halve(ctx context.Context, percent int64) error {
	var list corev1.NodeList
	if err := a.client.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		n := &list.Items[i]
		before := n.DeepCopy()
		cpu := n.Status.Capacity[corev1.ResourceCPU]
		cpu.SetMilli(cpu.MilliValue() * percent / 100)
		n.Status.Allocatable[corev1.ResourceCPU] = cpu
		if err := a.client.Status().Patch(ctx, n, ctrlclient.MergeFrom(before)); err != nil {
			return fmt.Errorf("change node %s: %w", n.Name, err)
		}
	}
	return nil
}
