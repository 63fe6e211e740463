package podmetrics

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/peering"
)

// HomeConfig is what a Home needs.
type HomeConfig struct {
	// Now is the time. Default time.Now.
	Now func() time.Time
	// Log may be nil.
	Log *slog.Logger
}

// Home has what the pods on virtual nodes use, from their providers' measurements.
type Home struct {
	cfg HomeConfig

	mu    sync.Mutex
	nodes map[string]*node
}

// Ask requests the metrics of a contract's pods from a node's provider.
type Ask func(ctx context.Context) (peering.ContractMetrics, error)

// NewHome returns a Home without nodes.
func NewHome(cfg HomeConfig) *Home {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Home{cfg: cfg, nodes: make(map[string]*node)}
}

// Add adds a node. Its provider is asked when the node's metrics are read.
func (h *Home) Add(name string, ask Ask) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nodes[name] = &node{ask: ask, lock: make(chan struct{}, 1), log: h.cfg.Log.With("node", name), counters: make(map[container]counter)}
}

// Remove forgets a node.
func (h *Home) Remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, name)
}

// node has what the pods on a virtual node use.
type node struct {
	ask  Ask
	log  *slog.Logger
	lock chan struct{} // a lock of the rest that can be waited for with a context

	asked    time.Time
	clock    clock
	err      error
	counters map[container]counter
	total    counter
}

// snapshot is a node's state for one reader.
type snapshot struct {
	name string
	now  time.Time
	err  error
	pods []podUsage
	// total is the counter of all pods; without a time it is not known.
	total counter
}

// podUsage is what one pod uses: the recently measured containers, sorted by name, and the sum of
// all containers that ever were measured, which never falls.
type podUsage struct {
	pod        *corev1.Pod
	containers []containerUsage
	sum        counter
}

type containerUsage struct {
	name string
	counter
}

// read returns what a node's pods use now.
func (h *Home) read(ctx context.Context, name string, pods []*corev1.Pod) (snapshot, error) {
	h.mu.Lock()
	n := h.nodes[name]
	h.mu.Unlock()
	if n == nil {
		return snapshot{name: name, now: h.cfg.Now(), err: errors.New("the node is not known yet")}, nil
	}
	if err := take(ctx, n.lock); err != nil {
		return snapshot{}, err
	}
	defer func() { <-n.lock }()
	if h.cfg.Now().Sub(n.asked) >= askEvery {
		m, err := n.ask(ctx)
		if ctx.Err() != nil { // the reader has gone, which is not the provider's error
			return snapshot{}, context.Cause(ctx)
		}
		n.record(m, err, pods, h.cfg.Now())
	}
	return n.snapshot(name, pods, h.cfg.Now()), nil
}

// record records the provider's response.
func (n *node) record(m peering.ContractMetrics, err error, pods []*corev1.Pod, now time.Time) {
	if n.asked = now; err != nil {
		if n.err == nil {
			n.log.Warn("the provider returns no metrics of pods: those of pods there are missing", "err", err)
		}
		n.err = err
		return
	}
	if n.err != nil {
		n.log.Info("the provider returns metrics of pods again")
	}
	n.err = nil
	n.clock = n.clock.set(now, m.Time)
	n.count(n.clock.samples(m), pods, now)
}

// count counts the samples of this cluster's containers, and forgets containers that no longer
// exist.
func (n *node) count(samples map[container]sample, pods []*corev1.Pod, now time.Time) {
	has := make(map[container]bool)
	for _, pod := range pods {
		for name := range containersOf(pod) {
			has[container{string(pod.UID), name}] = true
		}
	}
	maps.DeleteFunc(n.counters, func(c container, _ counter) bool { return !has[c] })
	for c, s := range samples {
		if has[c] {
			n.counters[c] = n.counters[c].add(s)
		}
	}
	sum := sample{time: now}
	for _, c := range n.counters {
		if c.fresh(now) {
			sum.nanocores += c.last.nanocores
			sum.memory += c.last.memory
		}
	}
	n.total = n.total.add(sum)
}

// containersOf returns the names of the containers that a pod may have running.
func containersOf(pod *corev1.Pod) map[string]bool {
	out := make(map[string]bool)
	for _, c := range pod.Spec.InitContainers {
		out[c.Name] = true
	}
	for _, c := range pod.Spec.Containers {
		out[c.Name] = true
	}
	for _, c := range pod.Spec.EphemeralContainers {
		out[c.Name] = true
	}
	return out
}

func (n *node) snapshot(name string, pods []*corev1.Pod, now time.Time) snapshot {
	v := snapshot{name: name, now: now, err: n.err}
	if n.total.fresh(now) {
		v.total = n.total
	}
	for _, pod := range pods {
		p := podUsage{pod: pod}
		for _, c := range slices.Sorted(maps.Keys(containersOf(pod))) {
			counted, ok := n.counters[container{string(pod.UID), c}]
			if !ok {
				continue
			}
			p.sum.cpu += counted.cpu
			if counted.fresh(now) {
				p.containers = append(p.containers, containerUsage{c, counted})
				p.sum = p.sum.beside(counted)
			}
		}
		if len(p.containers) > 0 {
			v.pods = append(v.pods, p)
		}
	}
	slices.SortFunc(v.pods, func(a, b podUsage) int {
		return compareNames(a.pod, b.pod)
	})
	return v
}
