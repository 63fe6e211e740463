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

// Health is what Kubernetes says of a node. The zero value is a node that is well.
type Health struct {
	// NotReady says that its Node is not Ready, or gone.
	NotReady bool
	// Reports says of one that is not Ready that its fabric reports all the same: it runs on.
	Reports bool
	// Cordoned says that it takes no new pods: somebody may be at work on it.
	Cordoned bool
	// Absent says that no pod of the fabric has run there for a while.
	Absent bool
}

// healths is the health of nodes that are not well, by their names. The zero value knows none.
type healths struct {
	mu sync.Mutex
	of map[string]Health
	// absent is since when no pod of the fabric runs on a node.
	absent map[string]time.Time
}

// Health returns what Kubernetes says of a node.
func (r *Reconciler) Health(node string) Health {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	return r.health.of[node]
}

// examine finds out how the nodes are. It returns whether that changed, and when it may change if
// no object does; zero is never.
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
	within := func(left time.Duration) bool { // and looks again when that is over
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		return left > 0
	}
	for _, m := range machines {
		name, is := m.fabric.Name, Health{NotReady: !isReady(m.node), Cordoned: m.node.Spec.Unschedulable}
		is.Reports = is.NotReady && within(reportsWithin-now.Sub(m.fabric.Status.ObservedAt.Time))
		// The fabric of a node that comes back has that time to start.
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

// isFabric says whether a pod is one of the DaemonSet that runs the fabric.
func isFabric(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet" && owner.Name == fabricDaemonSet
}

// runs says whether a pod has what carries packets. A pod that is not Ready does: the process that
// follows the API server may be restarted while the tunnels' own goes on.
func runs(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }

// podMatters lets pass what changes whether a pod of the fabric runs.
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
