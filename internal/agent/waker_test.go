package agent

import (
	"fmt"
	"testing"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// All peers may come or go at once, and a peer is not requeued soon if its wake
// was lost.
func TestNoWakeIsLost(t *testing.T) {
	t.Parallel()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	w := &waker{}
	const all = 10_000
	for i := range all {
		if i == all/2 {
			if err := w.Start(t.Context(), queue); err != nil {
				t.Fatal(err)
			}
		}
		w.wake(fmt.Sprint(i))
		w.wake(fmt.Sprint(i))
	}
	if n := queue.Len(); n != all {
		t.Errorf("%d names are enqueued, of %d", n, all)
	}
}
