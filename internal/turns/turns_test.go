package turns

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/peering"
)

func TestPodsOfPeersAreReconciledInTurn(t *testing.T) {
	t.Parallel()
	whose := map[string]peering.ClusterID{"many": peering.ClusterID("b"), "few": peering.ClusterID("a")}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second)
	q := NewQueue("", limiter, func(namespace string) peering.ClusterID { return whose[namespace] })
	defer q.ShutDown()
	pod := func(namespace string, n int) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(n)}}
	}
	for n := range 1000 {
		q.Add(pod("many", n))
	}
	for n := range 2 {
		q.Add(pod("few", n))
		q.Add(pod("few", n))
	}
	var got []string
	for range 6 {
		r, _ := q.Get()
		got = append(got, r.String())
		q.Done(r)
	}
	if diff := cmp.Diff([]string{"many/0", "few/0", "many/1", "few/1", "many/2", "many/3"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if q.Len() != 1002-6 {
		t.Errorf("%d wait", q.Len())
	}
}
