package handback

import (
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

// Reconciler hands back the pods of offloaded namespaces that their providers have no node for, and
// moves those that run where they may not any more.
type Reconciler struct {
	// Client may know of pods what a cache keeps; Direct knows them whole.
	Client client.Client
	Direct client.Reader
	Events events.EventRecorder
	Now    func() time.Time

	mu sync.Mutex
	// told is why pods that are not handed back are not, by namespace and UID, as they
	// were told.
	told map[string]map[types.UID]string
	// unmoved is the same of pods that are not moved: what is looked at never changes.
	unmoved map[string]map[types.UID]string
	// seen is which generation of a NamespaceOffloading was seen first when.
	seen map[string]sighting
}

type sighting struct {
	generation int64
	at         time.Time
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
		r.forget(req.Namespace)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !offloading.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // its pods leave anyway
	}
	f := &facts{now: r.Now(), offloading: &offloading}
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(req.Namespace), client.UnsafeDisableDeepCopy); err != nil { // they are only read
		return reconcile.Result{}, fmt.Errorf("list pods: %w", err)
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.HasLabels{v1alpha1.LabelVirtualNode}, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list virtual nodes: %w", err)
	}
	f.pods, f.nodes = pods.Items, nodes.Items
	d := decide(f)
	before := offloading.DeepCopy()
	offloading.Status.KeptAway = d.kept
	moves, err := r.moves(ctx, f)
	if err != nil {
		return reconcile.Result{}, err
	}
	offloading.Status.Misplaced = moves
	if err := store.PatchStatus(ctx, r.Client, before, &offloading); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.tell(req.Namespace, d.stay)
	for _, v := range d.evict {
		if _, err := r.evict(ctx, v, "HandedBack"); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: lookAgain}, nil
}

// moves evicts pods that run where they may not any more, and says how many there still are. It
// waits until placement knows what the namespace says now: the next would go where these are.
func (r *Reconciler) moves(ctx context.Context, f *facts) (*v1alpha1.MisplacedPods, error) {
	all := candidates(f)
	known := r.knows(f)
	m := &mover{r: r, f: f, budget: gentleWith(f.pods), before: r.unmovedIn(f.offloading.Namespace), now: map[types.UID]string{}}
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
		r.remember(f.offloading.Namespace, m.now)
	}
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // none is what there is
	}
	return &m.out, nil
}

// mover moves the pods of a namespace, once.
type mover struct {
	r           *Reconciler
	f           *facts
	budget      gentle
	looks       int
	before, now map[types.UID]string
	out         v1alpha1.MisplacedPods
}

func (m *mover) move(ctx context.Context, p *corev1.Pod) error {
	if why := m.before[p.UID]; why != "" {
		m.stays(p, why)
		return nil
	}
	if m.looks >= maxEvictions || !m.budget.take(p) {
		return nil
	}
	m.looks++
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
		m.r.Events.Eventf(p, nil, corev1.EventTypeWarning, "NotMoved", "Place", "its namespace's pods may not run here any more, and this one stays: %s", why)
		return nil
	}
	refused, err := m.r.evict(ctx, verdict{&whole, "its namespace's pods may not run here any more; its controller makes another"}, "Moved")
	if refused != "" {
		m.say(p, refused)
	}
	return err
}

func (m *mover) stays(p *corev1.Pod, why string) {
	m.out.Stay++
	m.now[p.UID] = why
	m.say(p, why)
}

func (m *mover) say(p *corev1.Pod, why string) {
	if m.out.Message == "" {
		m.out.Message = peering.Text(p.Name+": "+why, maxMessage)
	}
}

// knows says whether placement knows what the NamespaceOffloading says now.
func (r *Reconciler) knows(f *facts) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string]sighting{}
	}
	s, ok := r.seen[f.offloading.Namespace]
	if !ok || s.generation != f.offloading.Generation {
		s = sighting{f.offloading.Generation, f.now}
		r.seen[f.offloading.Namespace] = s
	}
	return f.now.Sub(s.at) >= placementLag
}

func (r *Reconciler) unmovedIn(namespace string) map[types.UID]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unmoved[namespace]
}

func (r *Reconciler) remember(namespace string, unmoved map[types.UID]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unmoved == nil {
		r.unmoved = map[string]map[types.UID]string{}
	}
	if r.unmoved[namespace] = unmoved; len(unmoved) == 0 {
		delete(r.unmoved, namespace)
	}
}

// evict evicts a pod as it was seen: one that changed meanwhile stays. It returns what a disruption
// budget says against it.
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

// tell says of pods why they are not handed back, once while that stays the same.
func (r *Reconciler) tell(namespace string, stay []verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := map[types.UID]string{}
	for _, v := range stay {
		if told[v.pod.UID] = v.why; r.told[namespace][v.pod.UID] != v.why {
			r.Events.Eventf(v.pod, nil, corev1.EventTypeWarning, "NotHandedBack", "Place", "the provider has no node for it, and it waits there: %s", v.why)
		}
	}
	if r.told == nil {
		r.told = map[string]map[types.UID]string{}
	}
	if r.told[namespace] = told; len(told) == 0 {
		delete(r.told, namespace)
	}
}

func (r *Reconciler) forget(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.told, namespace)
	delete(r.unmoved, namespace)
	delete(r.seen, namespace)
}
