package agent

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// waker enqueues objects by name for a reconciler, and never blocks. No name is lost, however many come at once: a
// reconciler requeues objects by itself only after minutes. The reconciler's queue has each name once.
type waker struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// early are the names that came before the queue existed.
	early map[string]struct{}
}

func (w *waker) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = queue
	for name := range w.early {
		queue.Add(requestFor(name))
	}
	w.early = nil
	return nil
}

func (w *waker) wake(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.Add(requestFor(name))
		return
	}
	if w.early == nil {
		w.early = map[string]struct{}{}
	}
	w.early[name] = struct{}{}
}

func requestFor(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// wakePeer enqueues a peer's ForeignCluster.
func (a *agent) wakePeer(id peering.ClusterID) {
	if fc := a.addresses.peer(id); fc != nil {
		a.peersWake.wake(fc.Name)
	}
}

// wakePeers enqueues all ForeignClusters.
func (a *agent) wakePeers() {
	var list v1alpha1.ForeignClusterList
	err := a.mgr.GetClient().List(context.Background(), &list, ctrlclient.UnsafeDisableDeepCopy) //nolint:forbidigo // a read from a cache does not block
	if err != nil {
		return // they are reconciled after minutes
	}
	for i := range list.Items {
		a.peersWake.wake(list.Items[i].Name)
	}
}
