package controller

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// contractsOf returns the contracts that an object concerns.
type contractsOf func(ctx context.Context, o client.Object) ([]v1alpha1.Contract, error)

// gathered enqueues the contracts that an object concerns after a pause, together with all changes in between: a
// contract is then reconciled at most once in each pause, however many of its objects change. One that is ending
// waits for its last pod, and is reconciled sooner.
func gathered(pause time.Duration, find contractsOf) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, o := range objects {
			contracts, err := find(ctx, o)
			if err != nil {
				continue // they are reconciled after restInterval
			}
			for i := range contracts {
				if store.Released(&contracts[i]) {
					continue
				}
				wait := pause
				if contracts[i].Status.Phase != peering.PhaseActive.String() {
					wait = min(wait, endGather)
				}
				q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Name: contracts[i].Name}}, wait)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { enqueue(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, q, e.Object) },
	}
}
