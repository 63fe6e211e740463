package agent

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/placement"
	"github.com/entente-dev/entente/peering"
)

// latencyPause is how long a virtual node stays in a class of latency at least: a peer influences how long its
// responses take, and each change is a write and may move namespaces.
const latencyPause = time.Minute

// latency is the class of the round trip to a peer, as its virtual node shows it.
type latency struct {
	class   atomic.Pointer[string]
	changed time.Time
}

// update takes a round trip into account, 0 if it is not known, and reports whether the class changed.
func (l *latency) update(roundTrip time.Duration, now time.Time) bool {
	was := l.get()
	if roundTrip <= 0 || was != "" && now.Sub(l.changed) < latencyPause {
		return false
	}
	is := placement.Latency(was, roundTrip)
	if is == was {
		return false
	}
	l.class.Store(&is)
	l.changed = now
	return true
}

func (l *latency) get() string { return ptr.Deref(l.class.Load(), "") }

// distances is how far peers are, by their classes of latency, so that small changes between two peers at about the
// same distance have no effect.
type distances struct {
	mu    sync.Mutex
	peers map[peering.ClusterID]*latency
}

// update returns the class of a peer in milliseconds for its current round trip, 0 if it is not known. The class of
// a disconnected peer stays as it was.
func (d *distances) update(peer peering.ClusterID, roundTrip time.Duration, now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.peers == nil {
		d.peers = map[peering.ClusterID]*latency{}
	}
	if d.peers[peer] == nil {
		d.peers[peer] = &latency{}
	}
	d.peers[peer].update(roundTrip, now)
	most, _ := strconv.Atoi(d.peers[peer].get())
	return most
}

// labelsOf returns the labels that home puts on a virtual node for what it knows of the peer and its contract, and the
// labels of its ForeignCluster that a node cannot have.
func (n *nodes) labelsOf(spec controller.NodeSpec, class string) (node, lost map[string]string) {
	own := maps.Clone(placement.Price(spec.Prices))
	if own == nil {
		own = map[string]string{}
	}
	own[v1alpha1.LabelPeer] = string(spec.Peer)
	if class != "" {
		own[v1alpha1.LabelLatency] = class
	}
	if spec.Pool != "" {
		own[v1alpha1.LabelPool] = spec.Pool
	}
	maps.Copy(own, placement.GPU(spec.Capacity))
	return placement.NodeLabels(n.peerLabels(spec.Peer), own, spec.Labels)
}

// peerLabels returns the labels of a peer's ForeignCluster; nil if it is not known.
func (n *nodes) peerLabels(peer peering.ClusterID) map[string]string {
	if fc := n.addresses.peer(peer); fc != nil {
		return fc.Labels
	}
	return nil
}

// lastLatency returns the class of latency that a virtual node had before the agent was restarted.
func (n *nodes) lastLatency(ctx context.Context, name string) string {
	var node corev1.Node
	if err := n.cache.Get(ctx, ctrlclient.ObjectKey{Name: name}, &node); err != nil {
		return "" // it is new, or will be measured soon
	}
	if class := node.Labels[v1alpha1.LabelLatency]; placement.IsLatency(class) {
		return class
	}
	return ""
}
