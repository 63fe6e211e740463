// Package turns provides a queue and a comparer in which peers take turns, and locks that are granted in the order
// of the requests.
package turns

import (
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/peering"
)

// turns is the order in which pods are reconciled: those of a peer as they came, and the peers in turn, so that a
// peer with many does not delay the others. The workqueue that uses it locks it.
type turns struct {
	peerOf func(namespace string) peering.ClusterID
	// waiting are the pods of each peer, and peers those that have some, the next first.
	waiting map[peering.ClusterID][]reconcile.Request
	peers   []peering.ClusterID
	n       int
}

// NewQueue returns a workqueue that orders pods by turns. peerOf returns the peer of a namespace.
func NewQueue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request], peerOf func(string) peering.ClusterID,
) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	order := &turns{peerOf: peerOf, waiting: make(map[peering.ClusterID][]reconcile.Request)}
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{
			Name:  name,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name, Queue: order}),
		}),
	})
}

func (*turns) Touch(reconcile.Request) {}

func (q *turns) Push(r reconcile.Request) {
	peer := q.peerOf(r.Namespace)
	if len(q.waiting[peer]) == 0 {
		q.peers = append(q.peers, peer)
	}
	q.waiting[peer] = append(q.waiting[peer], r)
	q.n++
}

func (q *turns) Len() int { return q.n }

func (q *turns) Pop() reconcile.Request {
	peer := q.peers[0]
	q.peers = q.peers[1:]
	r := q.waiting[peer][0]
	if q.waiting[peer] = q.waiting[peer][1:]; len(q.waiting[peer]) > 0 {
		q.peers = append(q.peers, peer)
	} else {
		delete(q.waiting, peer)
	}
	q.n--
	return r
}
