// Package profiles shows ForeignClusters as ClusterProfiles (SIG Multicluster's Cluster Inventory API) if the API
// server has that kind, for tools that use it.
package profiles

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

const (
	// managerLabel names the cluster manager of a ClusterProfile.
	managerLabel = "x-k8s.io/cluster-manager"
	// resyncInterval is how often it is checked whether the API server has the kind, and each profile is compared.
	resyncInterval = 10 * time.Minute
	// idProperty is the standard name of a cluster's ID (KEP-2149).
	idProperty = "cluster.clusterset.k8s.io"
)

// Reconciler keeps a ClusterProfile for each trusted ForeignCluster.
type Reconciler struct {
	// Client reads ForeignClusters from a cache, Direct reads and writes ClusterProfiles.
	Client client.Reader
	Direct client.Client
	// Namespace is the namespace of the ClusterProfiles.
	Namespace string
	Now       func() time.Time

	mu        sync.Mutex
	served    bool
	checkedAt time.Time
}

func kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "multicluster.x-k8s.io", Version: "v1alpha1", Kind: "ClusterProfile"}
}

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("clusterprofiles").
		For(&api.ForeignCluster{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*api.ForeignCluster), e.ObjectNew.(*api.ForeignCluster)
			return !equality.Semantic.DeepEqual(statusOf(was), statusOf(is)) || trusted(was) != trusted(is)
		}})).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler. The garbage collector deletes the profile of a deleted ForeignCluster.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if served, err := r.isServed(); err != nil || !served {
		return reconcile.Result{RequeueAfter: resyncInterval}, err
	}
	var fc api.ForeignCluster
	if err := r.Client.Get(ctx, req.NamespacedName, &fc); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(kind())
	err := r.Direct.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: fc.Name}, have)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read cluster profile: %w", err)
	}
	exists := err == nil
	if exists && !metav1.IsControlledBy(have, &fc) {
		return reconcile.Result{RequeueAfter: resyncInterval}, nil // another owner's
	}
	if !trusted(&fc) {
		if exists {
			return reconcile.Result{}, client.IgnoreNotFound(r.Direct.Delete(ctx, have))
		}
		return reconcile.Result{}, nil
	}
	if !exists {
		have = profile(&fc, r.Namespace)
		if err := r.Direct.Create(ctx, have, client.FieldOwner(api.Manager)); err != nil {
			return reconcile.Result{}, fmt.Errorf("create cluster profile: %w", err)
		}
	}
	return reconcile.Result{RequeueAfter: resyncInterval}, r.writeStatus(ctx, have, statusOf(&fc))
}

func (r *Reconciler) writeStatus(ctx context.Context, have *unstructured.Unstructured, want map[string]any) error {
	if now, _, _ := unstructured.NestedMap(have.Object, "status"); equality.Semantic.DeepEqual(now, want) {
		return nil
	}
	have.Object["status"] = want
	if err := r.Direct.Status().Update(ctx, have, client.FieldOwner(api.Manager)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write status of cluster profile: %w", err)
	}
	return nil
}

// isServed reports whether the API server has the kind, as of a moment ago.
func (r *Reconciler) isServed() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.served || !r.checkedAt.IsZero() && r.Now().Sub(r.checkedAt) < resyncInterval {
		return r.served, nil
	}
	_, err := r.Direct.RESTMapper().RESTMapping(kind().GroupKind(), kind().Version)
	if err != nil && !meta.IsNoMatchError(err) {
		return false, fmt.Errorf("discover the kind ClusterProfile: %w", err)
	}
	r.served, r.checkedAt = err == nil, r.Now()
	return r.served, nil
}

// trusted reports whether a cluster gets a profile: others do not, since any cluster may introduce itself.
func trusted(fc *api.ForeignCluster) bool {
	return fc.DeletionTimestamp.IsZero() && meta.IsStatusConditionTrue(fc.Status.Conditions, api.ConditionTrusted)
}

// profile returns the ClusterProfile of a ForeignCluster, without a status.
func profile(fc *api.ForeignCluster, namespace string) *unstructured.Unstructured {
	p := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"displayName": fc.Name, "clusterManager": map[string]any{"name": api.Manager},
	}}}
	p.SetGroupVersionKind(kind())
	p.SetNamespace(namespace)
	p.SetName(fc.Name)
	p.SetLabels(map[string]string{api.LabelManaged: api.Manager, managerLabel: api.Manager})
	p.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: api.GroupVersion.String(), Kind: "ForeignCluster", Name: fc.Name, UID: fc.UID, Controller: new(true),
	}})
	return p
}

// statusOf returns the status of a ClusterProfile. It has no access providers: no user gets credentials of another
// cluster. Of the control plane only whether the agent responds is known.
func statusOf(fc *api.ForeignCluster) map[string]any {
	var conditions []any
	add := func(kind, from string) {
		c := meta.FindStatusCondition(fc.Status.Conditions, from)
		if c == nil {
			return
		}
		status := c.Status
		if kind == "ControlPlaneHealthy" && status == metav1.ConditionFalse {
			status = metav1.ConditionUnknown
		}
		conditions = append(conditions, map[string]any{
			"type": kind, "status": string(status), "reason": c.Reason, "message": c.Message,
			"lastTransitionTime": c.LastTransitionTime.UTC().Format(time.RFC3339),
		})
	}
	add("ControlPlaneHealthy", api.ConditionConnected)
	add("Joined", api.ConditionTrusted)
	add("entente.dev/Network", api.ConditionNetwork)
	properties := []any{map[string]any{"name": idProperty, "value": fc.Spec.ClusterID}}
	if fc.Status.Role != "" {
		properties = append(properties, map[string]any{"name": "entente.dev/role", "value": string(fc.Status.Role)})
	}
	return map[string]any{"conditions": conditions, "properties": properties}
}
