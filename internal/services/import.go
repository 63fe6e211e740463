package services

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// importClusterRole has the rights that the agent needs in a namespace into which Services are imported.
const importClusterRole = "entente-import-namespace"

// annotationImported on a Service names the peer's Service that it imports.
const annotationImported = "entente.dev/imported"

// Imports creates Services for ImportedServices.
type Imports struct {
	// Client reads from a cache, Direct from the API server; both write.
	Client, Direct client.Client
	// ServiceAccount is the agent's.
	ServiceAccount client.ObjectKey
	// Watch follows the states of a peer's Services, until ctx or the stream ends.
	Watch Watch
	// Home translates a peer's pod address to this cluster's address for it, if it has one.
	Home func(peer peering.ClusterID, a netip.Addr) (netip.Addr, bool)
	// Budget bounds what is written here because of what peers send.
	Budget *store.WriteBudget

	followers Followers
	queue     Queue
}

// SetupWithManager registers the reconciler.
func (r *Imports) SetupWithManager(mgr ctrl.Manager) error {
	r.followers.Watch, r.followers.Changed = r.Watch, r.changed
	return ctrl.NewControllerManagedBy(mgr).
		Named("importedservices").
		For(&api.ImportedService{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&api.ForeignCluster{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.of(ctx, o.GetName())
		}), kube.Updates(Matters)).
		Watches(&api.Contract{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			fc, err := store.Peek(ctx, r.Client, peering.ClusterID(o.(*api.Contract).Spec.PeerID))
			if err != nil || fc == nil {
				return nil
			}
			return r.of(ctx, fc.Name)
		}), kube.Updates(func(was, is *api.Contract) bool { return ImportsBy(was) != ImportsBy(is) })).
		WatchesRawSource(&r.queue).
		Complete(r)
}

// Run ends the watches of peers when ctx ends.
func (r *Imports) Run(ctx context.Context) error {
	<-ctx.Done()
	r.followers.Stop() //nolint:contextcheck // ctx is over
	return nil
}

// Matters reports whether a change of a ForeignCluster changes how its pods are reached.
func Matters(was, is *api.ForeignCluster) bool {
	return Passes(was) != Passes(is) || was.Spec.ClusterID != is.Spec.ClusterID || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(was.Status.Aliases, is.Status.Aliases) || !equality.Semantic.DeepEqual(was.Status.AliasBlocks, is.Status.AliasBlocks)
}

// Passes reports whether the tunnel to a cluster may pass traffic: it is not known to be down.
func Passes(fc *api.ForeignCluster) bool {
	c := meta.FindStatusCondition(fc.Status.Conditions, api.ConditionNetwork)
	return c == nil || c.Status != metav1.ConditionFalse || store.TunnelPasses(c)
}

// ImportsBy reports whether this cluster may import by a contract.
func ImportsBy(c *api.Contract) bool {
	return c.Spec.Role == api.ContractConsumer && c.Spec.Exposure == peering.ExposureExported && store.Unverified(c).Desired().Tunnel
}

// of returns the ImportedServices from a ForeignCluster.
func (r *Imports) of(ctx context.Context, foreignCluster string) (out []reconcile.Request) {
	var list api.ImportedServiceList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // they are reconciled after importInterval
	}
	for i := range list.Items {
		if list.Items[i].Spec.ForeignCluster == foreignCluster {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return out
}

// changed enqueues the ImportedServices that import a Service of a peer.
func (r *Imports) changed(peer peering.ClusterID, name peering.ServiceName) {
	ctx := context.Background() //nolint:forbidigo // a read from a cache does not block
	fc, err := store.Peek(ctx, r.Client, peer)
	if err != nil || fc == nil {
		return
	}
	var list api.ImportedServiceList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // they are reconciled after importInterval
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Spec.ForeignCluster == fc.Name && nameOf(s) == name {
			r.queue.Later(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s)}, importPause)
		}
	}
}

func nameOf(s *api.ImportedService) peering.ServiceName { return peering.ServiceName(s.Spec.Service) }

// Reconcile implements reconcile.Reconciler.
func (r *Imports) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var imported api.ImportedService
	err := r.Client.Get(ctx, req.NamespacedName, &imported)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read imported service: %w", err)
	}
	if err != nil || !imported.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.cleanUp(ctx, req.Namespace)
	}
	s, err := r.load(ctx, &imported)
	if err != nil {
		return reconcile.Result{}, err
	}
	plan := planImport(s, r.resolver(s))
	reached := int32(0)
	if plan.change {
		if err := kube.Bind(ctx, r.Client, imported.Namespace, importClusterRole, r.ServiceAccount); err != nil {
			return reconcile.Result{}, err
		}
		taken, err := r.apply(ctx, s, plan)
		if after, later := store.Later(err); later {
			return reconcile.Result{RequeueAfter: after}, nil
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		if plan.condition.Status == metav1.ConditionTrue {
			reached = int32(min(plan.reached, peering.MaxServiceEndpoints))
		}
		if taken != "" {
			plan.condition, reached = condition(metav1.ConditionFalse, "NameTaken", taken), 0
		}
	} else {
		reached = imported.Status.Endpoints
	}
	before := imported.DeepCopy()
	plan.condition.ObservedGeneration = imported.Generation
	meta.SetStatusCondition(&imported.Status.Conditions, plan.condition)
	imported.Status.Endpoints = reached
	err = store.PatchStatus(ctx, r.Client, before, &imported)
	return reconcile.Result{RequeueAfter: importInterval}, client.IgnoreNotFound(err)
}

// load reads everything that decides about an ImportedService, and subscribes to its peer.
func (r *Imports) load(ctx context.Context, imported *api.ImportedService) (importSnapshot, error) {
	s := importSnapshot{imported: imported}
	var fc api.ForeignCluster
	err := r.Client.Get(ctx, client.ObjectKey{Name: imported.Spec.ForeignCluster}, &fc)
	if client.IgnoreNotFound(err) != nil {
		return s, fmt.Errorf("read foreign cluster: %w", err)
	}
	if err != nil || !fc.DeletionTimestamp.IsZero() {
		return s, r.follow(ctx)
	}
	s.peer = &fc
	contracts, err := store.ContractsWith(ctx, r.Client, peering.ClusterID(fc.Spec.ClusterID), client.UnsafeDisableDeepCopy)
	if err != nil {
		return s, err
	}
	s.contract = ImportContract(contracts)
	if err := r.follow(ctx); err != nil {
		return s, err
	}
	s.last = r.followers.last(peering.ClusterID(fc.Spec.ClusterID), nameOf(imported))
	return s, nil
}

// follow subscribes to everything that is imported, by peer.
func (r *Imports) follow(ctx context.Context) error {
	var list api.ImportedServiceList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list imported services: %w", err)
	}
	want := map[peering.ClusterID]Subscription{}
	peers := map[string]peering.ClusterID{}
	for i := range list.Items {
		s := &list.Items[i]
		if !s.DeletionTimestamp.IsZero() {
			continue
		}
		peer, known := peers[s.Spec.ForeignCluster]
		if !known {
			var fc api.ForeignCluster
			if err := r.Client.Get(ctx, client.ObjectKey{Name: s.Spec.ForeignCluster}, &fc); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("read foreign cluster: %w", err)
			}
			peer = peering.ClusterID(fc.Spec.ClusterID)
			peers[s.Spec.ForeignCluster] = peer
			if peer == "" || !fc.DeletionTimestamp.IsZero() {
				continue
			}
			contracts, err := store.ContractsWith(ctx, r.Client, peer, client.UnsafeDisableDeepCopy)
			if err != nil {
				return err
			}
			if contract := ImportContract(contracts); contract != "" {
				want[peer] = Subscription{Contract: contract}
			}
		}
		if w, ok := want[peer]; ok {
			w.add(nameOf(s))
			want[peer] = w
		}
	}
	r.followers.Set(want) //nolint:contextcheck // streams outlive the call
	return nil
}

// ImportContract returns the contract by which Services are imported: always the same one of several.
func ImportContract(contracts []api.Contract) (name string) {
	for i := range contracts {
		if c := &contracts[i]; ImportsBy(c) && (name == "" || c.Name < name) {
			name = c.Name
		}
	}
	return name
}

func (r *Imports) resolver(s importSnapshot) endpoints.Resolver {
	return func(e peering.ServiceEndpoint) (netip.Addr, bool) {
		a, err := netip.ParseAddr(e.Address)
		if err != nil || s.peer == nil {
			return netip.Addr{}, false
		}
		return r.Home(peering.ClusterID(s.peer.Spec.ClusterID), a)
	}
}

// apply updates the Service and its EndpointSlices to a plan. taken says that the name belongs to another Service;
// it is empty otherwise.
func (r *Imports) apply(ctx context.Context, s importSnapshot, plan importPlan) (taken string, err error) {
	have := &corev1.Service{}
	err = r.Direct.Get(ctx, client.ObjectKeyFromObject(s.imported), have)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return "", fmt.Errorf("read service: %w", err)
	case err != nil:
		have = nil
	case Leftover(have, "ImportedService", s.imported):
		if err := DeleteLeftover(ctx, r.Direct, have); err != nil {
			return "", err
		}
		have = nil
	case !metav1.IsControlledBy(have, s.imported):
		return fmt.Sprintf("namespace %s has a Service %s already; delete it, or import under another name", have.Namespace, have.Name), nil
	}
	if plan.service != nil {
		if have, err = r.applyService(ctx, s, have, plan.service); err != nil {
			return "", err
		}
	}
	if have == nil {
		return "", nil
	}
	return "", r.applySlices(ctx, s, have, plan)
}

func (r *Imports) applyService(ctx context.Context, s importSnapshot, have, want *corev1.Service) (*corev1.Service, error) {
	peer := peering.ClusterID(s.peer.Spec.ClusterID)
	if have != nil && (have.Spec.ClusterIP == corev1.ClusterIPNone) != (want.Spec.ClusterIP == corev1.ClusterIPNone) {
		if err := r.Direct.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("replace service: %w", err)
		}
		have = nil
	}
	if have == nil {
		if err := r.Budget.Take(peer, want); err != nil {
			return nil, err
		}
		if err := r.Direct.Create(ctx, want, client.FieldOwner(api.Manager)); err != nil {
			return nil, fmt.Errorf("create service: %w", err)
		}
		return want, nil
	}
	now := have.DeepCopy()
	now.Labels, now.Annotations = want.Labels, want.Annotations
	now.Spec.Ports = want.Spec.Ports
	now.Spec.SessionAffinity, now.Spec.SessionAffinityConfig = want.Spec.SessionAffinity, want.Spec.SessionAffinityConfig
	if equality.Semantic.DeepEqual(now.Labels, have.Labels) && equality.Semantic.DeepEqual(now.Annotations, have.Annotations) &&
		samePorts(now.Spec.Ports, have.Spec.Ports) && now.Spec.SessionAffinity == have.Spec.SessionAffinity &&
		equality.Semantic.DeepEqual(now.Spec.SessionAffinityConfig, have.Spec.SessionAffinityConfig) {
		return have, nil
	}
	if err := r.Budget.Take(peer, now); err != nil {
		return nil, err
	}
	if err := r.Direct.Update(ctx, now, client.FieldOwner(api.Manager)); err != nil {
		return nil, fmt.Errorf("update service: %w", err)
	}
	return now, nil
}

// samePorts compares ports but for what the API server fills in.
func samePorts(want, have []corev1.ServicePort) bool {
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		h := corev1.ServicePort{Name: have[i].Name, Protocol: have[i].Protocol, AppProtocol: have[i].AppProtocol, Port: have[i].Port}
		if !equality.Semantic.DeepEqual(want[i], h) {
			return false
		}
	}
	return true
}

// applySlices updates the EndpointSlices of a Service to a plan.
func (r *Imports) applySlices(ctx context.Context, s importSnapshot, svc *corev1.Service, plan importPlan) error {
	var list discoveryv1.EndpointSliceList
	if err := r.Direct.List(ctx, &list, client.InNamespace(svc.Namespace), client.MatchingLabels{
		discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: api.Manager,
	}); err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	have := map[string]*discoveryv1.EndpointSlice{}
	for i := range list.Items {
		have[list.Items[i].Name] = &list.Items[i]
	}
	take := func(o client.Object) error {
		if s.peer == nil {
			return nil
		}
		return r.Budget.Take(peering.ClusterID(s.peer.Spec.ClusterID), o)
	}
	for _, want := range plan.slices(svc) {
		if err := ApplySlice(ctx, r.Direct, have[want.Name], want, take); err != nil {
			return err
		}
		delete(have, want.Name)
	}
	return DeleteSlices(ctx, r.Direct, have)
}

// cleanUp removes what a namespace has for a deleted ImportedService: the Service is deleted with it, as its owner;
// the agent's rights are removed with the last one.
func (r *Imports) cleanUp(ctx context.Context, namespace string) error {
	if err := r.follow(ctx); err != nil {
		return err
	}
	var left api.ImportedServiceList
	if err := r.Client.List(ctx, &left, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list imported services: %w", err)
	}
	for i := range left.Items {
		if left.Items[i].DeletionTimestamp.IsZero() {
			return nil
		}
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: importClusterRole}}
	if err := r.Client.Delete(ctx, binding); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop the agent's rights in namespace %s: %w", namespace, err)
	}
	return nil
}
