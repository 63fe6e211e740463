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
)

// Reconciler hands back the pods of offloaded namespaces that their providers have no node for.
type Reconciler struct {
	Client client.Client
	Events events.EventRecorder
	Now    func() time.Time

	mu sync.Mutex
	// told is why pods that are not handed back are not, by namespace and UID, as they
	// were told.
	told map[string]map[types.UID]string
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
	if err := store.PatchStatus(ctx, r.Client, before, &offloading); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.tell(req.Namespace, d.stay)
	for _, v := range d.evict {
		if err := r.evict(ctx, v); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: lookAgain}, nil
}

// evict evicts a pod as it was seen: one that got a node meanwhile stays.
func (r *Reconciler) evict(ctx context.Context, v verdict) error {
	err := r.Client.SubResource("eviction").Create(ctx, v.pod.DeepCopy(), &policyv1.Eviction{
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.pod.UID, ResourceVersion: &v.pod.ResourceVersion}},
	})
	switch {
	case err == nil:
		r.Events.Eventf(v.pod, nil, corev1.EventTypeNormal, "HandedBack", "HandBack", "%s", v.why)
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsTooManyRequests(err):
		return fmt.Errorf("hand back pod %s/%s: %w", v.pod.Namespace, v.pod.Name, err)
	}
	return nil
}

// tell says of pods why they are not handed back, once while that stays the same.
func (r *Reconciler) tell(namespace string, stay []verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := map[types.UID]string{}
	for _, v := range stay {
		if told[v.pod.UID] = v.why; r.told[namespace][v.pod.UID] != v.why {
			r.Events.Eventf(v.pod, nil, corev1.EventTypeWarning, "NotHandedBack", "HandBack", "the provider has no node for it, and it waits there: %s", v.why)
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
}
