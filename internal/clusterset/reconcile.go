package clusterset

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// ClusterRole has the rights that the agent needs in a namespace that has ServiceImports.
const ClusterRole = "entente-clusterset-namespace"

// Reconciler reconciles ServiceImports, and writes the conditions of ServiceExports.
type Reconciler struct {
	// Client reads from a cache, Direct from the API server; both write.
	Client, Direct client.Client
	Cache          cache.Cache
	// ServiceAccount is the agent's.
	ServiceAccount client.ObjectKey
	// Self is this cluster.
	Self peering.ClusterID
	// Watch follows what a peer exports.
	Watch services.Watch
	// Own returns a Service of this cluster as it is exported.
	Own func(ctx context.Context, name peering.ServiceName) (peering.ExportedService, error)
	// Home translates a peer's pod address to this cluster's address for it, if it has one.
	Home func(peer peering.ClusterID, a netip.Addr) (netip.Addr, bool)
	// Distance returns how far a peer is, as the class of a round trip in milliseconds; 0 if it is not known. Nil
	// knows none.
	Distance func(peering.ClusterID) int
	// Changed is called when what this cluster exports changed.
	Changed func()
	// Budget bounds what is written here because of what peers send.
	Budget *store.WriteBudget
	Events events.EventRecorder

	followers services.Followers
	queue     services.Queue
	// served: the API server has the kinds.
	served atomic.Bool
	// subscribed: followers know from which peers this cluster imports. Before that no peer is known to be waited for.
	subscribed atomic.Bool
}

// key is the request for a Service of a name; an empty name is the request for all.
func key(name peering.ServiceName) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: name.Namespace, Name: name.Name}}
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.served.Load() {
		return reconcile.Result{}, nil
	}
	if req.Name == "" {
		return reconcile.Result{RequeueAfter: resyncInterval}, r.resync(ctx)
	}
	if !r.subscribed.Load() {
		if err := r.resync(ctx); err != nil {
			return reconcile.Result{}, err
		}
	}
	name := peering.ServiceName{Namespace: req.Namespace, Name: req.Name}
	s, err := r.load(ctx, name)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := decide(s)
	if err := r.report(ctx, s.export, p.conditions); err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case p.taken:
		return reconcile.Result{}, nil
	case len(p.sides) == 0 && !p.frozen:
		return reconcile.Result{}, r.drop(ctx, name, s.have)
	}
	if s.have == nil { // the cache may not have one that was just created
		if s.have, err = read(ctx, r.Direct, name, &mcs.ServiceImport{}); err != nil {
			return reconcile.Result{}, err
		}
	}
	err = r.apply(ctx, name, s.have, p)
	if apierrors.IsConflict(err) { // nor the last change of it
		return reconcile.Result{RequeueAfter: gather}, nil
	}
	if after, later := store.Later(err); later {
		return reconcile.Result{RequeueAfter: after}, nil
	}
	return reconcile.Result{}, err
}

// resync subscribes to the peers that share namespaces with this cluster, and enqueues each Service that any of
// them exports.
func (r *Reconciler) resync(ctx context.Context) error {
	policies, err := r.policies(ctx)
	if err != nil {
		return err
	}
	var list api.ForeignClusterList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list foreign clusters: %w", err)
	}
	want := map[peering.ClusterID]services.Subscription{}
	for i := range list.Items {
		fc := &list.Items[i]
		policy, err := market.Selecting(policies, fc)
		if err != nil || !policy.HasSet() || !fc.DeletionTimestamp.IsZero() {
			continue
		}
		contracts, err := store.ContractsWith(ctx, r.Client, peering.ClusterID(fc.Spec.ClusterID), client.UnsafeDisableDeepCopy)
		if err != nil {
			return err
		}
		if contract := services.ImportContract(contracts); contract != "" {
			want[peering.ClusterID(fc.Spec.ClusterID)] = services.Subscription{Contract: contract}
		}
	}
	r.followers.Set(want) //nolint:contextcheck // streams outlive the call
	r.subscribed.Store(true)
	names, err := r.names(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		r.queue.Later(key(name), gather)
	}
	return nil
}

// names returns the Services that any cluster exports, or that are imported.
func (r *Reconciler) names(ctx context.Context) ([]peering.ServiceName, error) {
	out := r.followers.Names()
	for _, list := range []client.ObjectList{&mcs.ServiceExportList{}, &mcs.ServiceImportList{}} {
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list what is exported and imported: %w", err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			if m, ok := o.(metav1.Object); ok {
				out = append(out, peering.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()})
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("list what is exported and imported: %w", err)
		}
	}
	slices.SortFunc(out, peering.CompareServiceNames)
	return slices.Compact(out), nil
}

func (r *Reconciler) policies(ctx context.Context) ([]market.Policy, error) {
	var list api.PeeringPolicyList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list peering policies: %w", err)
	}
	return market.ReadPolicies(list.Items), nil
}

// load reads what decides about a Service of a name.
func (r *Reconciler) load(ctx context.Context, name peering.ServiceName) (snapshot, error) {
	s := snapshot{name: name, export: &mcs.ServiceExport{}, service: &corev1.Service{}, have: &mcs.ServiceImport{}}
	var err error
	if s.export, err = read(ctx, r.Client, name, s.export); err != nil {
		return s, err
	}
	if s.service, err = read(ctx, r.Client, name, s.service); err != nil {
		return s, err
	}
	if s.have, err = read(ctx, r.Client, name, s.have); err != nil {
		return s, err
	}
	var namespace corev1.Namespace
	err = r.Client.Get(ctx, client.ObjectKey{Name: name.Namespace}, &namespace)
	if client.IgnoreNotFound(err) != nil {
		return s, fmt.Errorf("read namespace %s: %w", name.Namespace, err)
	}
	if err != nil {
		return s, nil //nolint:nilerr // peers may export into namespaces that this cluster does not have
	}
	policies, err := r.policies(ctx)
	if err != nil {
		return s, err
	}
	shares := func(p market.Policy) bool { return p.Shares(&namespace, r.ServiceAccount.Namespace) }
	s.shared = slices.ContainsFunc(policies, shares)
	if err := r.loadOwn(ctx, &s); err != nil {
		return s, err
	}
	return s, r.loadPeers(ctx, &s, policies, shares)
}

// loadOwn adds this cluster, if it exports the Service.
func (r *Reconciler) loadOwn(ctx context.Context, s *snapshot) error {
	if s.export == nil || s.service == nil || s.service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if market.NeverExported(s.service) {
		s.invalid = "the Service is never exported: it came from another cluster, its owner excludes it, or it is being deleted"
		return nil
	}
	export := exportOf(s.export, s.service)
	if err := peering.CheckExport(export); err != nil {
		s.invalid = "the ServiceExport cannot cross: " + err.Error()
		return nil //nolint:nilerr // the ServiceExport says it
	}
	own, err := r.Own(ctx, s.name)
	if err != nil || own.Refusal != "" || own.Export == nil || !s.shared {
		return err
	}
	s.sides = append(s.sides, side{cluster: r.Self, own: true, service: own, resolve: asIs})
	return nil
}

// loadPeers adds the peers that export the Service and share its namespace.
func (r *Reconciler) loadPeers(ctx context.Context, s *snapshot, policies []market.Policy, shares func(market.Policy) bool) error {
	sent, waiting := r.followers.Of(s.name)
	s.waiting, s.down = waiting, map[peering.ClusterID]bool{}
	for peer := range waiting {
		fc, err := store.Peek(ctx, r.Client, peer)
		if err != nil {
			return err
		}
		s.down[peer] = fc == nil || !services.Passes(fc)
	}
	for peer, service := range sent {
		fc, err := store.Peek(ctx, r.Client, peer)
		if err != nil {
			return err
		}
		if fc == nil {
			continue
		}
		policy, err := market.Selecting(policies, fc)
		if err != nil || !shares(*policy) {
			continue
		}
		distance := 0
		if r.Distance != nil {
			distance = r.Distance(peer)
		}
		s.sides = append(s.sides, side{
			cluster: peer, service: service, down: !services.Passes(fc), endpoints: policy.Spec.ClusterSet.Endpoints, distance: distance,
			resolve: func(e peering.ServiceEndpoint) (netip.Addr, bool) {
				a, err := netip.ParseAddr(e.Address)
				if err != nil {
					return netip.Addr{}, false
				}
				return r.Home(peer, a)
			},
		})
	}
	return nil
}

// read reads an object; nil if there is none, or it is being deleted.
func read[T client.Object](ctx context.Context, c client.Reader, name peering.ServiceName, into T) (none T, err error) {
	err = c.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, into)
	if client.IgnoreNotFound(err) != nil {
		return none, fmt.Errorf("read %T %s: %w", into, name, err)
	}
	if err != nil || into.GetDeletionTimestamp() != nil {
		return none, nil //nolint:nilerr // nil means absent
	}
	return into, nil
}

// exportOf returns the part of a ServiceExport and its Service that is sent to peers.
func exportOf(x *mcs.ServiceExport, s *corev1.Service) *peering.ServiceExport {
	out := &peering.ServiceExport{Created: x.CreationTimestamp.UTC(), Labels: x.Spec.ExportedLabels, Annotations: x.Spec.ExportedAnnotations}
	if p := s.Spec.InternalTrafficPolicy; p != nil {
		out.InternalTrafficPolicy = string(*p)
	}
	if d := s.Spec.TrafficDistribution; d != nil {
		out.TrafficDistribution = *d
	}
	return out
}

// Export returns how a Service of this cluster is exported; nil if it is not.
func (r *Reconciler) Export(ctx context.Context, name peering.ServiceName) (*peering.ServiceExport, error) {
	if !r.served.Load() {
		return nil, nil //nolint:nilnil // nil means absent
	}
	export, err := read(ctx, r.Client, name, &mcs.ServiceExport{})
	if err != nil || export == nil {
		return nil, err
	}
	service, err := read(ctx, r.Client, name, &corev1.Service{})
	if err != nil || service == nil {
		return nil, err
	}
	out := exportOf(export, service)
	if peering.CheckExport(out) != nil {
		return nil, nil //nolint:nilnil,nilerr // the ServiceExport says why
	}
	return out, nil
}

// Exported returns which Services of this cluster are exported.
func (r *Reconciler) Exported(ctx context.Context) (out []peering.ServiceName, err error) {
	if !r.served.Load() {
		return nil, nil
	}
	var list mcs.ServiceExportList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list service exports: %w", err)
	}
	for i := range list.Items {
		if x := &list.Items[i]; x.DeletionTimestamp.IsZero() {
			out = append(out, peering.ServiceName{Namespace: x.Namespace, Name: x.Name})
		}
	}
	return out, nil
}

// report writes the conditions of an export. One that is not valid gets an event, too.
func (r *Reconciler) report(ctx context.Context, export *mcs.ServiceExport, conditions []metav1.Condition) error {
	if export == nil {
		return nil
	}
	before := export.DeepCopy()
	after := export.DeepCopy()
	for _, c := range conditions {
		changed := meta.SetStatusCondition(&after.Status.Conditions, c)
		if changed && c.Type == string(mcs.ServiceExportConditionValid) && c.Status == metav1.ConditionFalse {
			r.Events.Eventf(export, nil, corev1.EventTypeWarning, c.Reason, "Export", "%s", c.Message)
		}
	}
	return client.IgnoreNotFound(store.PatchStatus(ctx, r.Client, before, after))
}
