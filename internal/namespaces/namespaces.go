// Package namespaces opens namespaces for offloading and closes them again.
package namespaces

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/placement"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// ConsumerClusterRole has the rights that the agent needs in a namespace whose pods it offloads: to read the
// objects that the pods use and the endpoints of Services.
const ConsumerClusterRole = "entente-consumer-namespace"

// HomeAPIClusterRole has the right to ask for tokens of ServiceAccounts, for pods abroad that may call their home's
// API server.
const HomeAPIClusterRole = "entente-home-api-namespace"

const (
	// evictPoll is how often a namespace that is being closed is checked.
	evictPoll = 2 * time.Second
	// placementLag is how long after a namespace was closed placement may still send new pods to virtual nodes: API
	// servers see the change of its label a little later.
	placementLag = 5 * time.Second
	// statesPoll is how often the states of a namespace at its providers are read: no object here changes with
	// them.
	statesPoll = 5 * time.Second
)

// Reconciler opens a namespace for offloading and closes it again: it grants the agent its rights there and sets
// the label that placement selects.
type Reconciler struct {
	Client client.Client
	// ServiceAccount is the agent's.
	ServiceAccount client.ObjectKey
	// Evict moves the namespace's pods off virtual nodes and returns how many are still there.
	Evict func(ctx context.Context, namespace string) (int, error)
	// States returns the state of a namespace by each contract whose virtual node runs and matches the selector,
	// sorted with ByCluster.
	States func(namespace string, selector *metav1.LabelSelector) []v1alpha1.NamespaceInCluster
	// Starts reports whether a contract has a virtual node that does not run yet.
	Starts func(ctx context.Context, contract string) (bool, error)
	// Changed is called when the set of offloaded namespaces may have changed.
	Changed func()
	// NotPlaced returns what keeps new pods of all namespaces from being placed; empty if nothing does. Optional.
	NotPlaced func() string
	// Events records what users have to know of pods.
	Events events.EventRecorder
}

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("namespaces").
		For(&v1alpha1.NamespaceOffloading{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: namespaceWorkers}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	// What it no longer opens closes at once: moving pods home may take a while.
	r.Changed()
	var offloading v1alpha1.NamespaceOffloading
	if err := r.Client.Get(ctx, req.NamespacedName, &offloading); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	defer r.Changed()
	if !offloading.DeletionTimestamp.IsZero() {
		return r.end(ctx, &offloading)
	}
	if err := store.AddFinalizer(ctx, r.Client, &offloading); err != nil {
		return reconcile.Result{}, err
	}
	if err := kube.Bind(ctx, r.Client, req.Namespace, ConsumerClusterRole, r.ServiceAccount); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.homeAPI(ctx, &offloading); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.label(ctx, req.Namespace, true); err != nil {
		return reconcile.Result{}, err
	}
	var all v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil { // the list is only read
		return reconcile.Result{}, fmt.Errorf("list foreign clusters: %w", err)
	}
	before := offloading.DeepCopy()
	clusters, err := r.fences(ctx, &offloading, r.States(req.Namespace, offloading.Spec.ClusterSelector))
	if err != nil {
		return reconcile.Result{}, err
	}
	offloading.Status.Clusters = clusters
	offloading.Status.State, offloading.Status.Message = stateOf(offloading.Spec.ClusterSelector, offloading.Status.Clusters, all.Items)
	if offloading.Status.State == v1alpha1.OffloadingReady {
		if offloading.Status.Message, err = r.hints(ctx, &offloading.Spec, offloading.Status.Message); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := store.PatchStatus(ctx, r.Client, before, &offloading); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.recordAgreed(before, &offloading)
	return reconcile.Result{RequeueAfter: statesPoll}, nil
}

// hints returns what is wrong with a namespace that is ready at its providers: what keeps its pods from being placed,
// a label that selects no node, and a namespace that it is open to for nothing; empty if nothing is.
func (r *Reconciler) hints(ctx context.Context, spec *v1alpha1.NamespaceOffloadingSpec, lost string) (string, error) {
	problem := ""
	if r.NotPlaced != nil && spec.PodStrategy != v1alpha1.StrategyLocal {
		problem = r.NotPlaced()
	}
	open, err := r.opensToNone(ctx, spec.OpenTo)
	if err != nil {
		return "", err
	}
	all := slices.DeleteFunc([]string{problem, lost, open}, func(hint string) bool { return hint == "" })
	return strings.Join(all, "; "), nil
}

// opensToNone says which of the namespaces is not offloaded, the first of them; empty if all are.
func (r *Reconciler) opensToNone(ctx context.Context, openTo []string) (string, error) {
	for _, namespace := range openTo {
		if namespace == v1alpha1.AllNamespaces {
			continue
		}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}, &v1alpha1.NamespaceOffloading{})
		switch {
		case apierrors.IsNotFound(err):
			return "openTo: namespace " + namespace + " is not offloaded, so no pod of it runs abroad", nil
		case err != nil:
			return "", fmt.Errorf("read the offloading of namespace %s: %w", namespace, err)
		}
	}
	return "", nil
}

// end closes the namespace. Placement stops first, so that evicted pods do not come back; the
// rights are removed last.
func (r *Reconciler) end(ctx context.Context, offloading *v1alpha1.NamespaceOffloading) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(offloading, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	namespace := offloading.Namespace
	if err := r.unbind(ctx, namespace, HomeAPIClusterRole); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.label(ctx, namespace, false); err != nil {
		return reconcile.Result{}, err
	}
	left, err := r.Evict(ctx, namespace)
	if err != nil {
		return r.ending(ctx, offloading, fmt.Errorf("move the pods of namespace %s home: %w", namespace, err))
	}
	if left > 0 {
		return r.ending(ctx, offloading, fmt.Errorf("%d pods of the namespace are still on virtual nodes: they leave as their disruption budgets allow", left))
	}
	replaced, err := r.replace(ctx, offloading)
	if err != nil {
		return r.ending(ctx, offloading, err)
	}
	if replaced {
		return reconcile.Result{RequeueAfter: evictPoll}, nil
	}
	if err := r.unbind(ctx, namespace, ConsumerClusterRole); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, store.RemoveFinalizer(ctx, r.Client, offloading)
}

// homeAPI grants the agent the right to ask for tokens of a namespace's ServiceAccounts while its pods may call its
// API server from abroad, and removes it otherwise.
func (r *Reconciler) homeAPI(ctx context.Context, offloading *v1alpha1.NamespaceOffloading) error {
	if offloading.Spec.HomeAPI == v1alpha1.HomeAPIAllowed {
		return kube.Bind(ctx, r.Client, offloading.Namespace, HomeAPIClusterRole, r.ServiceAccount)
	}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: offloading.Namespace, Name: HomeAPIClusterRole}, &rbacv1.RoleBinding{})
	switch {
	case apierrors.IsNotFound(err):
		return nil // one that the cache does not show yet is seen at the next poll
	case err != nil:
		return fmt.Errorf("read the agent's rights in namespace %s: %w", offloading.Namespace, err)
	}
	return r.unbind(ctx, offloading.Namespace, HomeAPIClusterRole)
}

// unbind removes the rights of a ClusterRole that the agent has in a namespace.
func (r *Reconciler) unbind(ctx context.Context, namespace, clusterRole string) error {
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: clusterRole}}
	if err := r.Client.Delete(ctx, binding); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop the agent's rights in namespace %s: %w", namespace, err)
	}
	return nil
}

// ending records in the status why a namespace is not closed yet, and requeues it.
func (r *Reconciler) ending(ctx context.Context, offloading *v1alpha1.NamespaceOffloading, why error) (reconcile.Result, error) {
	before := offloading.DeepCopy()
	offloading.Status.State, offloading.Status.Message = v1alpha1.OffloadingTerminating, peering.Text(why.Error(), maxMessage)
	err := store.PatchStatus(ctx, r.Client, before, offloading)
	return reconcile.Result{RequeueAfter: evictPoll}, client.IgnoreNotFound(err)
}

// replace lets controllers replace pods that wait for a node and that placement restricts to virtual nodes: they
// would wait forever. It evicts them, since the agent has that right in offloaded namespaces and no right to delete
// such pods. None of their containers ever ran, and they are evicted only in the version that was read, without a
// node. A pod without a controller is left, with an event. It returns whether any were evicted.
func (r *Reconciler) replace(ctx context.Context, offloading *v1alpha1.NamespaceOffloading) (bool, error) {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(offloading.Namespace)); err != nil {
		return false, fmt.Errorf("list pods: %w", err)
	}
	evicted := false
	for i := range pods.Items {
		p := &pods.Items[i]
		if placement.StrategyOf(p, &offloading.Spec) != v1alpha1.StrategyRemote || !waitsForVirtualNode(p) || p.CreationTimestamp.After(offloading.DeletionTimestamp.Add(placementLag)) {
			continue
		}
		if metav1.GetControllerOf(p) == nil {
			r.Events.Eventf(p, nil, corev1.EventTypeWarning, "NotOffloaded", "Place",
				"the namespace is no longer offloaded, and this pod may run on virtual nodes only; delete it and create it again to run it here")
			continue
		}
		err := r.Client.SubResource("eviction").Create(ctx, p.DeepCopy(), &policyv1.Eviction{
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion}},
		})
		switch {
		// A pod that changed, or that a budget protects, is evicted next time.
		case err == nil, apierrors.IsConflict(err), apierrors.IsTooManyRequests(err):
			evicted = true
		case !apierrors.IsNotFound(err):
			return false, fmt.Errorf("replace pod %s/%s, which may run on virtual nodes only: %w", p.Namespace, p.Name, err)
		}
	}
	return evicted, nil
}

// waitsForVirtualNode reports whether a pod waits for a node and may run on virtual ones only, as placement writes
// it.
func waitsForVirtualNode(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && (p.Status.Phase == corev1.PodPending || p.Status.Phase == "") && p.DeletionTimestamp.IsZero() &&
		placement.AbroadOnly(&p.Spec)
}

func (r *Reconciler) label(ctx context.Context, name string, on bool) error {
	var namespace corev1.Namespace
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &namespace); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := namespace.DeepCopy()
	if on {
		metav1.SetMetaDataLabel(&namespace.ObjectMeta, v1alpha1.LabelOffloading, "enabled")
	} else if namespace.Labels[v1alpha1.LabelOffloading] == "enabled" {
		delete(namespace.Labels, v1alpha1.LabelOffloading)
	}
	return store.Patch(ctx, r.Client, before, &namespace)
}

// stateOf sums up the state of a namespace at its providers, given all ForeignClusters. Pods may still run at a
// provider that the selector no longer selects.
func stateOf(of *metav1.LabelSelector, clusters []v1alpha1.NamespaceInCluster, all []v1alpha1.ForeignCluster) (state, message string) {
	which := "no cluster"
	selected, lost := selects(of, all)
	if of != nil {
		which = "no cluster that spec.clusterSelector selects"
		if !selected && lost != "" {
			return v1alpha1.OffloadingNoProvider, lost
		}
		if !selected {
			return v1alpha1.OffloadingNoProvider, "spec.clusterSelector selects no ForeignCluster, so new pods run here or wait: compare it with `kubectl get foreignclusters --show-labels`"
		}
	}
	if !slices.ContainsFunc(clusters, func(c v1alpha1.NamespaceInCluster) bool { return c.State != v1alpha1.OffloadingTerminating }) {
		return v1alpha1.OffloadingNoProvider, which + " provides resources to this one: see `kubectl get peeringrequests`"
	}
	for _, state := range []string{v1alpha1.OffloadingRefused, v1alpha1.OffloadingPending} {
		i := slices.IndexFunc(clusters, func(c v1alpha1.NamespaceInCluster) bool { return c.State == state })
		if i >= 0 {
			return state, strings.TrimSuffix(clusters[i].ForeignCluster+": "+clusters[i].Message, ": ")
		}
	}
	return v1alpha1.OffloadingReady, lost
}

// selects reports whether a selector selects any of these ForeignClusters by their labels, and which label that it
// names cannot be on a node.
func selects(of *metav1.LabelSelector, all []v1alpha1.ForeignCluster) (selected bool, lost string) {
	byPeer := placement.ByPeer(of)
	for i := range all {
		fc := &all[i]
		node, without := placement.NodeLabels(fc.Labels, map[string]string{v1alpha1.LabelPeer: fc.Spec.ClusterID}, nil)
		selected = selected || placement.Selects(byPeer, node)
		for _, key := range placement.SelectedKeys(of) {
			if why := without[key]; why != "" && lost == "" {
				lost = fmt.Sprintf("label %s of ForeignCluster %s selects no node: %s", key, fc.Name, why)
			}
		}
	}
	return selected, lost
}
