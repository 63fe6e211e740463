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

// Home has what the pods on virtual nodes use, as their providers say.
type Home struct {
	cfg HomeConfig

	mu    sync.Mutex
	nodes map[string]*node
}

// Ask asks a node's provider what the pods of its contract use.
type Ask func(ctx context.Context) (peering.ContractMetrics, error)

// NewHome returns a Home without nodes.
func NewHome(cfg HomeConfig) *Home {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Home{cfg: cfg, nodes: make(map[string]*node)}
}

// Add has a node's provider asked from now on, when somebody reads the node's metrics.
func (h *Home) Add(name string, ask Ask) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nodes[name] = &node{ask: ask, turn: make(chan struct{}, 1), log: h.cfg.Log.With("node", name), counters: make(map[container]counter)}
}

// Remove forgets a node.
func (h *Home) Remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, name)
}

// node is what the pods on a virtual node use.
type node struct {
	ask  Ask
	log  *slog.Logger
	turn chan struct{} // whose turn it is to look at the rest

	asked    time.Time
	clock    clock
	err      error
	counters map[container]counter
	total    counter
}

// view is a node's state for one reader.
type view struct {
	name string
	now  time.Time
	err  error
	pods []podView
	// total is that of all pods; without a time it is not known.
	total counter
}

// podView is what one pod uses. It has the containers that were measured lately, sorted by
// name, and the sum of all that ever were: that never falls.
type podView struct {
	pod        *corev1.Pod
	containers []containerView
	sum        counter
}

type containerView struct {
	name string
	counter
}

// look returns what a node's pods use now.
func (h *Home) look(ctx context.Context, name string, pods []*corev1.Pod) (view, error) {
	h.mu.Lock()
	n := h.nodes[name]
	h.mu.Unlock()
	if n == nil {
		return view{name: name, now: h.cfg.Now(), err: errors.New("the node is not known yet")}, nil
	}
	if err := take(ctx, n.turn); err != nil {
		return view{}, err
	}
	defer func() { <-n.turn }()
	if h.cfg.Now().Sub(n.asked) >= askEvery {
		m, err := n.ask(ctx)
		if ctx.Err() != nil { // the reader's end says nothing about the provider
			return view{}, context.Cause(ctx)
		}
		n.heard(m, err, pods, h.cfg.Now())
	}
	return n.view(name, pods, h.cfg.Now()), nil
}

// heard takes what the provider said.
func (n *node) heard(m peering.ContractMetrics, err error, pods []*corev1.Pod, now time.Time) {
	if n.asked = now; err != nil {
		if n.err == nil {
			n.log.Warn("the provider does not say what pods use: metrics of pods there are missing", "err", err)
		}
		n.err = err
		return
	}
	if n.err != nil {
		n.log.Info("the provider says what pods use")
	}
	n.err = nil
	n.clock = n.clock.set(now, m.Time)
	n.count(n.clock.samples(m), pods, now)
}

// count counts the samples of containers that this cluster has, and forgets those that it does
// not have any more.
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

func (n *node) view(name string, pods []*corev1.Pod, now time.Time) view {
	v := view{name: name, now: now, err: n.err}
	if n.total.fresh(now) {
		v.total = n.total
	}
	for _, pod := range pods {
		p := podView{pod: pod}
		for _, c := range slices.Sorted(maps.Keys(containersOf(pod))) {
			counted, ok := n.counters[container{string(pod.UID), c}]
			if !ok {
				continue
			}
			p.sum.cpu += counted.cpu
			if counted.fresh(now) {
				p.containers = append(p.containers, containerView{c, counted})
				p.sum = p.sum.beside(counted)
			}
		}
		if len(p.containers) > 0 {
			v.pods = append(v.pods, p)
		}
	}
	slices.SortFunc(v.pods, func(a, b podView) int {
		return compareNames(a.pod, b.pod)
	})
	return v
}
