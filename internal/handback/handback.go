package handback

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Reconciler hands back the pods of offloaded namespaces for which their providers have no node,
// and moves those that may no longer run where they do.
type Reconciler struct {
	// Client may read reduced pods from a cache; Direct reads whole ones from the API server.
	Client client.Client
	Direct client.Reader
	Events events.EventRecorder
	Now    func() time.Time

	mu sync.Mutex
	// namespaces has the state of each namespace. One of them is reconciled at a time.
	namespaces map[string]*memory
}

// memory is the state of a namespace between two reconciles.
type memory struct {
	// kept is why pods are not handed back, by UID, as in their last events, and unmoved why pods
	// are not moved. The fields of a pod that decide this never change, but the NamespaceOffloading
	// does, so unmoved is cleared with each generation of it.
	kept, unmoved map[types.UID]string
	// stranded has, by UID of pods that find no node, the claim with a volume in another cluster and the strategy
	// that their last event named.
	stranded map[types.UID]string
	// jobs has what readJobs returned last.
	jobs map[types.UID]jobRules
	// generation is that of its NamespaceOffloading, first seen at since.
	generation int64
	since      time.Time
}

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("handback").
		For(&v1alpha1.NamespaceOffloading{}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var offloading v1alpha1.NamespaceOffloading
	if err := r.Client.Get(ctx, req.NamespacedName, &offloading); err != nil {
		r.mu.Lock()
		delete(r.namespaces, req.Namespace)
		r.mu.Unlock()
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !offloading.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // its pods leave anyway
	}
	f, mem := &facts{now: r.Now(), offloading: &offloading, nodes: map[string]*corev1.Node{}}, r.memory(req.Namespace)
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(req.Namespace), client.UnsafeDisableDeepCopy); err != nil { // they are only read
		return reconcile.Result{}, fmt.Errorf("list pods: %w", err)
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.HasLabels{v1alpha1.LabelVirtualNode}, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list virtual nodes: %w", err)
	}
	f.pods = pods.Items
	for i := range nodes.Items {
		f.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	var err error
	if f.jobs, err = r.readJobs(ctx, f, mem.jobs); err != nil {
		return reconcile.Result{}, err
	}
	mem.jobs = f.jobs
	d := decide(f)
	before := offloading.DeepCopy()
	offloading.Status.PlacementBackoffs = d.kept
	moves, err := r.moves(ctx, f, mem)
	if err != nil {
		return reconcile.Result{}, err
	}
	offloading.Status.Misplaced = moves
	if err := store.PatchStatus(ctx, r.Client, before, &offloading); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.warnKept(mem, d.stay)
	if err := r.freeStranded(ctx, f, mem); err != nil {
		return reconcile.Result{}, err
	}
	for _, v := range d.evict {
		if _, err := r.evict(ctx, v, "HandedBack"); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: reconcileInterval}, nil
}

// moves evicts pods that may no longer run where they do, and returns how many are left; nil means
// none. It waits until placement has the NamespaceOffloading's current generation, as the next pods
// would otherwise go where these are.
func (r *Reconciler) moves(ctx context.Context, f *facts, mem *memory) (*v1alpha1.MisplacedPods, error) {
	all := candidates(f)
	known := mem.knows(f)
	m := &mover{r: r, f: f, budget: gentleWith(f.pods), before: mem.unmoved, now: map[types.UID]string{}}
	m.out.Pods = int32(min(len(all), 1<<30))
	for _, p := range all {
		if p.DeletionTimestamp != nil || !known {
			continue
		}
		if err := m.move(ctx, p); err != nil {
			return nil, err
		}
	}
	if known {
		mem.unmoved = m.now
	}
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // nil means none
	}
	return &m.out, nil
}

// mover moves the pods of a namespace in one reconcile.
type mover struct {
	r           *Reconciler
	f           *facts
	budget      gentle
	checked     int
	before, now map[types.UID]string
	out         v1alpha1.MisplacedPods
}

func (m *mover) move(ctx context.Context, p *corev1.Pod) error {
	if why := m.before[p.UID]; why != "" {
		m.stays(p, why)
		return nil
	}
	if m.checked >= maxEvictions || !m.budget.take(p) {
		return nil
	}
	m.checked++
	var whole corev1.Pod
	if err := m.r.Direct.Get(ctx, client.ObjectKeyFromObject(p), &whole); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("read pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if whole.UID != p.UID {
		return nil
	}
	if why := notMoved(&m.f.offloading.Spec, &whole); why != "" {
		m.stays(p, why)
		m.r.Events.Eventf(p, nil, corev1.EventTypeWarning, "NotMoved", "Place", "its namespace's pods may no longer run here, and this one stays: %s", why)
		return nil
	}
	refused, err := m.r.evict(ctx, verdict{&whole, "its namespace's pods may no longer run here; its controller creates another"}, "Moved")
	if refused != "" {
		m.report(p, refused)
	}
	return err
}

func (m *mover) stays(p *corev1.Pod, why string) {
	m.out.NotMoved++
	m.now[p.UID] = why
	m.report(p, why)
}

func (m *mover) report(p *corev1.Pod, why string) {
	m.out.Message = cmp.Or(m.out.Message, peering.Text(p.Name+": "+why, maxMessage))
}

// memory returns the state of a namespace, which it adds if necessary.
func (r *Reconciler) memory(namespace string) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.namespaces == nil {
		r.namespaces = map[string]*memory{}
	}
	m := r.namespaces[namespace]
	if m == nil {
		m = &memory{}
		r.namespaces[namespace] = m
	}
	return m
}

// knows reports whether placement has the NamespaceOffloading's current generation.
func (m *memory) knows(f *facts) bool {
	if m.since.IsZero() || m.generation != f.offloading.Generation {
		m.generation, m.since, m.unmoved = f.offloading.Generation, f.now, nil
	}
	return f.now.Sub(m.since) >= placementLag
}

// evict evicts a pod unless it changed since it was read. refused is the API server's message if a
// disruption budget forbids it.
func (r *Reconciler) evict(ctx context.Context, v verdict, reason string) (refused string, err error) {
	err = r.Client.SubResource("eviction").Create(ctx, v.pod.DeepCopy(), &policyv1.Eviction{
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.pod.UID, ResourceVersion: &v.pod.ResourceVersion}},
	})
	switch {
	case err == nil:
		r.Events.Eventf(v.pod, nil, corev1.EventTypeNormal, reason, "Place", "%s", v.why)
	case apierrors.IsTooManyRequests(err):
		return err.Error(), nil
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
		return "", fmt.Errorf("evict pod %s/%s: %w", v.pod.Namespace, v.pod.Name, err)
	}
	return "", nil
}

// warnKept records why pods are not handed back as events, once per reason.
func (r *Reconciler) warnKept(m *memory, stay []verdict) {
	kept := map[types.UID]string{}
	for _, v := range stay {
		if kept[v.pod.UID] = v.why; m.kept[v.pod.UID] != v.why {
			r.Events.Eventf(v.pod, nil, corev1.EventTypeWarning, "NotHandedBack", "Place", "the provider has no node for it, and it waits there: %s", v.why)
		}
	}
	m.kept = kept
}
