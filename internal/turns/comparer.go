package turns

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/entente-dev/entente/peering"
)

// CompareConfig configures a Comparer.
type CompareConfig struct {
	// What names for users what is compared, and Compare compares one thing: a namespace with all that is in it if
	// the name is empty. Required.
	What    string
	Compare func(ctx context.Context, key types.NamespacedName) error
	// PeerOf returns the peer of a namespace, and Namespaces the namespaces of all peers. Required.
	PeerOf     func(namespace string) peering.ClusterID
	Namespaces func() []string
	// Pause returns when to compare a thing again for which Compare failed, and whether the failure is expected:
	// other failures are logged. Required.
	Pause func(error) (pause time.Duration, usual bool)
	// Log is required.
	Log *slog.Logger
}

// Comparer compares what peers have here with what they should have. Peers take turns, one thing each, so that a
// peer with many does not delay the others.
type Comparer struct {
	cfg CompareConfig
	// peers are the peers that have something to compare.
	peers workqueue.TypedInterface[peering.ClusterID]

	mu sync.Mutex
	// gathering is what changed a moment ago, ready what to compare, by peer, and waiting the same as a set. A peer
	// for which a comparison runs is in ready, too.
	gathering map[types.NamespacedName]gathered
	ready     map[peering.ClusterID][]types.NamespacedName
	waiting   map[types.NamespacedName]struct{}
}

// gathered is what becomes ready at a time.
type gathered struct {
	at    time.Time
	timer *time.Timer
}

// NewComparer returns a Comparer that only gathers until Run.
func NewComparer(cfg CompareConfig) *Comparer {
	return &Comparer{
		cfg: cfg, peers: workqueue.NewTyped[peering.ClusterID](),
		gathering: make(map[types.NamespacedName]gathered), ready: make(map[peering.ClusterID][]types.NamespacedName),
		waiting: make(map[types.NamespacedName]struct{}),
	}
}

// Namespace schedules the comparison of a namespace.
func (c *Comparer) Namespace(name string) { c.One(types.NamespacedName{Namespace: name}) }

// One schedules the comparison of one thing.
func (c *Comparer) One(key types.NamespacedName) { c.Later(key, compareGather) }

// Later schedules the comparison of one thing after a pause, with all changes meanwhile. The shortest pause counts.
func (c *Comparer) Later(key types.NamespacedName, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(pause)
	if g, ok := c.gathering[key]; ok {
		if !at.Before(g.at) {
			return
		}
		g.timer.Stop()
	}
	c.gathering[key] = gathered{at: at, timer: time.AfterFunc(pause, func() { c.Now(key) })}
}

// Now makes something ready to be compared at its peer's turn.
func (c *Comparer) Now(key types.NamespacedName) {
	peer := c.cfg.PeerOf(key.Namespace)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.gathering, key)
	if _, ok := c.waiting[key]; !ok {
		c.waiting[key] = struct{}{}
		c.ready[peer] = append(c.ready[peer], key)
		c.peers.Add(peer)
	}
}

// All schedules the comparison of all namespaces.
func (c *Comparer) All() {
	for _, name := range c.cfg.Namespaces() {
		c.Namespace(name)
	}
}

// Of schedules the comparison of all namespaces of a peer.
func (c *Comparer) Of(peer peering.ClusterID) {
	for _, name := range c.cfg.Namespaces() {
		if c.cfg.PeerOf(name) == peer {
			c.Namespace(name)
		}
	}
}

// Idle reports whether everything that changed was compared.
func (c *Comparer) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.gathering)+len(c.ready) == 0
}

// Run compares until ctx ends.
func (c *Comparer) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	defer c.peers.ShutDown()
	for range compareWorkers {
		work.Go(func() { c.work(ctx) })
	}
	again := time.NewTicker(compareInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			c.All()
		}
	}
}

func (c *Comparer) work(ctx context.Context) {
	for {
		peer, key, ok := c.next()
		if !ok {
			return
		}
		if err := c.cfg.Compare(ctx, key); err != nil && ctx.Err() == nil {
			pause, usual := c.cfg.Pause(err)
			if !usual {
				c.cfg.Log.Warn("reflect a namespace", "what", c.cfg.What, "of", key, "err", err)
			}
			c.Later(key, pause)
		}
		c.done(peer)
	}
}

// next waits for the turn of a peer, and returns what to compare; false after Run.
func (c *Comparer) next() (peer peering.ClusterID, key types.NamespacedName, ok bool) {
	peer, shut := c.peers.Get()
	if shut {
		return "", key, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key, c.ready[peer] = c.ready[peer][0], c.ready[peer][1:]
	delete(c.waiting, key)
	return peer, key, true
}

// done lets the next thing of a peer be compared.
func (c *Comparer) done(peer peering.ClusterID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ready[peer]) > 0 {
		c.peers.Add(peer)
	} else {
		delete(c.ready, peer)
	}
	c.peers.Done(peer)
}
