package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func TestManyChangesReconcileAContractOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		phase := peering.PhaseActive.String()
		on := map[string]string{"office": "c-1", "lab": "c-2"}
		h := gathered(useGather, func(_ context.Context, o client.Object) ([]v1alpha1.Contract, error) {
			name := on[o.(*corev1.Pod).Spec.NodeName]
			if name == "" {
				return nil, errors.New("no contract")
			}
			return []v1alpha1.Contract{{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ContractStatus{Phase: phase}}}, nil
		})
		pod := func(node string) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}} }
		for range 1000 {
			h.Create(t.Context(), event.CreateEvent{Object: pod("office")}, q)
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: pod("elsewhere"), ObjectNew: pod("lab")}, q)
			h.Delete(t.Context(), event.DeleteEvent{Object: pod("office")}, q)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(useGather)
		synctest.Wait()
		// Both are waiting to be reconciled, once.
		seen := map[string]int{}
		for q.Len() > 0 {
			r, _ := q.Get()
			seen[r.Name]++
			q.Done(r)
		}
		if len(seen) != 2 || seen["c-1"] != 1 || seen["c-2"] != 1 {
			t.Errorf("reconciled are %v", seen)
		}
		// A change that comes later is seen, too, and not late.
		h.Create(t.Context(), event.CreateEvent{Object: pod("office")}, q)
		if q.Len() != 0 {
			t.Error("nothing is gathered")
		}
		time.Sleep(useGather + time.Millisecond)
		synctest.Wait()
		if q.Len() != 1 {
			t.Error("a later change is lost")
		}
		r, _ := q.Get()
		q.Done(r)
		// One that ends waits for its pods.
		phase = peering.PhaseDraining.String()
		h.Delete(t.Context(), event.DeleteEvent{Object: pod("office")}, q)
		time.Sleep(endGather + time.Millisecond)
		synctest.Wait()
		if q.Len() != 1 {
			t.Error("the end of a pod of a contract that ends is seen late")
		}
	})
}
