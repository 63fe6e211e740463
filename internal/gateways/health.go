package gateways

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Health is the state of a node in Kubernetes. The zero value is that of a healthy node.
type Health struct {
	// NotReady says that its Node is not Ready, or gone.
	NotReady bool
	// Reports says that its fabric still reports although the node is not Ready.
	Reports bool
	// Cordoned says that it takes no new pods: its administrator may be working on it.
	Cordoned bool
	// Absent says that no pod of the fabric has been running there for a while.
	Absent bool
}

// healths is the health of the unhealthy nodes, by their names. The zero value has none.
type healths struct {
	mu sync.Mutex
	of map[string]Health
	// absent is since when no pod of the fabric has been running on a node.
	absent map[string]time.Time
}

// Health returns the state of a node in Kubernetes.
func (r *Reconciler) Health(node string) Health {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	return r.health.of[node]
}

// examine finds out the health of the nodes. It returns whether that changed, and after how long it may
// change without an event; zero means never.
func (r *Reconciler) examine(ctx context.Context, machines []machine, now time.Time) (changed bool, again time.Duration, err error) {
	var running map[string]bool
	if r.Namespace != "" {
		if running, err = r.fabricPods(ctx); err != nil {
			return false, 0, err
		}
	}
	h := &r.health
	h.mu.Lock()
	defer h.mu.Unlock()
	of, absent := map[string]Health{}, map[string]time.Time{}
	within := func(left time.Duration) bool { // and requeues for the end of that time
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		return left > 0
	}
	for _, m := range machines {
		name, is := m.fabric.Name, Health{NotReady: !isReady(m.node), Cordoned: m.node.Spec.Unschedulable}
		is.Reports = is.NotReady && within(reportsWithin-now.Sub(m.fabric.Status.ObservedAt.Time))
		// The fabric of a node that comes back has absentAfter to start.
		if running != nil && !running[name] && !is.NotReady {
			since, known := h.absent[name]
			if !known {
				since = now
			}
			absent[name], is.Absent = since, !within(absentAfter-now.Sub(since))
		}
		if is != (Health{}) {
			of[name] = is
		}
	}
	changed = !maps.Equal(of, h.of)
	h.of, h.absent = of, absent
	return changed, again, nil
}

// fabricPods returns the nodes on which a pod of the fabric runs.
func (r *Reconciler) fabricPods(ctx context.Context) (map[string]bool, error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the fabric's pods: %w", err)
	}
	running := map[string]bool{}
	for i := range pods.Items {
		if p := &pods.Items[i]; isFabric(p) && runs(p) {
			running[p.Spec.NodeName] = true
		}
	}
	return running, nil
}

// fabricDaemonSet is the DaemonSet of the chart that runs the fabric.
const fabricDaemonSet = "entente-fabric"

// isFabric reports whether a pod is one of the DaemonSet that runs the fabric.
func isFabric(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet" && owner.Name == fabricDaemonSet
}

// runs reports whether the tunnels of a pod of the fabric run. They may run in a pod that is not Ready:
// the process that follows the API server may be restarting while the tunnel process goes on.
func runs(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }

// podMatters passes events that change whether a pod of the fabric runs.
func (r *Reconciler) podMatters() predicate.Predicate {
	ours := func(o client.Object) (*corev1.Pod, bool) {
		p, ok := o.(*corev1.Pod)
		return p, ok && p.Namespace == r.Namespace && isFabric(p)
	}
	one := func(o client.Object) bool { _, ok := ours(o); return ok }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return one(e.Object) },
		DeleteFunc: func(e event.DeleteEvent) bool { return one(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, _ := ours(e.ObjectOld)
			is, ok := ours(e.ObjectNew)
			return ok && (was == nil || runs(was) != runs(is))
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
