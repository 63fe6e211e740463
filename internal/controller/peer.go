package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Trust is the set of clusters that are trusted, and the sessions with them.
type Trust interface {
	// Set makes trust and sessions fit the given clusters: those that are not
	// among them are cut off at once.
	Set(peers []TrustedPeer) error
	// Connected says whether a session with the peer is up, and if not, why.
	Connected(id peering.ClusterID) (bool, string)
}

// TrustedPeer is a cluster that is trusted.
type TrustedPeer struct {
	ID        peering.ClusterID
	Endpoints []string
	// Bundle is its root certificates, PEM.
	Bundle string
}

// Peers keeps a ForeignCluster's status true, and derives its Tunnel.
type Peers struct {
	Client client.Client
	States *States
	Trust  Trust
	// AliasPool is where aliases for peers' prefixes come from.
	AliasPool []netip.Prefix
	// Reserved is prefixes that no alias may overlap: services, nodes.
	Reserved []netip.Prefix
	// Allocate returns a free prefix as long as wanted: wanted itself if it is
	// not taken, else one from the pool.
	Allocate func(taken []netip.Prefix, wanted, pool netip.Prefix) (netip.Prefix, error)
	// Exposed is what a peer may reach here now.
	Exposed func(ctx context.Context, peer peering.ClusterID) ([]Exposed, error)
	// Wake makes the named ForeignCluster be looked at again.
	Wake <-chan event.GenericEvent
	// Spoken is called after this cluster's word to the peer may have changed.
	Spoken func(peer peering.ClusterID)
	// Readdressed is called when addresses translate otherwise than before.
	Readdressed func()
	Now         func() time.Time

	// addressing is how each peer's addresses translated when last looked at. It
	// is only a memory of what was announced: after a restart it is announced
	// again.
	addressing map[string]string
}

// SetupWithManager registers the reconciler.
func (r *Peers) SetupWithManager(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		var list v1alpha1.ForeignClusterList
		if err := r.Client.List(ctx, &list); err != nil {
			return nil
		}
		requests := make([]reconcile.Request, 0, len(list.Items))
		for i := range list.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
		}
		return requests
	})
	byContract := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.(*v1alpha1.Contract).Spec.ForeignCluster}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("peers").
		For(&v1alpha1.ForeignCluster{}).
		Watches(&v1alpha1.Contract{}, byContract).
		Watches(&v1alpha1.ResourceSlice{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.(*v1alpha1.ResourceSlice).Spec.ForeignCluster}}}
		})).
		Watches(&v1alpha1.FabricNode{}, all, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&v1alpha1.Tunnel{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.(*v1alpha1.Tunnel).Spec.ForeignCluster}}}
		})).
		WatchesRawSource(source.Channel(r.Wake, &handler.EnqueueRequestForObject{})).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Peers) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := r.setTrust(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var fc v1alpha1.ForeignCluster
	if err := r.Client.Get(ctx, req.NamespacedName, &fc); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	id := peering.ClusterID(fc.Spec.ClusterID)
	defer r.Spoken(id)
	contracts, err := r.contracts(ctx, id)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !fc.DeletionTimestamp.IsZero() {
		return r.forget(ctx, &fc, contracts)
	}
	if controllerutil.AddFinalizer(&fc, v1alpha1.Finalizer) {
		if err := r.Client.Update(ctx, &fc, client.FieldOwner(v1alpha1.Manager)); err != nil {
			return reconcile.Result{}, fmt.Errorf("hold foreign cluster %s: %w", fc.Name, err)
		}
	}
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return reconcile.Result{}, fmt.Errorf("list fabric nodes: %w", err)
	}
	asks, err := r.asks(ctx, fc.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	before := fc.DeepCopy()
	waiting, err := r.tunnel(ctx, &fc, contracts)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.announce(&fc)
	connected, why := r.Trust.Connected(id)
	fc.Status.Role = RoleOf(contracts)
	for _, c := range PeerConditions(PeerView{
		Peer: &fc, Contracts: contracts, Asks: asks, Connected: connected, NotConnected: why,
		FabricNodes: nodes.Items, TunnelWaits: waiting, Now: r.Now(),
	}) {
		c.ObservedGeneration = fc.Generation
		meta.SetStatusCondition(&fc.Status.Conditions, c)
	}
	if !equality.Semantic.DeepEqual(before.Status, fc.Status) {
		if err := r.Client.Status().Patch(ctx, &fc, client.MergeFrom(before), client.FieldOwner(v1alpha1.Manager)); err != nil {
			return reconcile.Result{}, fmt.Errorf("status of foreign cluster %s: %w", fc.Name, err)
		}
	}
	// A fabric that falls silent changes no object; look again when it would be
	// stale.
	return reconcile.Result{RequeueAfter: fabricFresh / 2}, nil
}

func (r *Peers) announce(fc *v1alpha1.ForeignCluster) {
	now := fmt.Sprint(fc.Status.Aliases)
	if fc.Status.Network != nil {
		now += fmt.Sprint(fc.Status.Network.Aliases)
	}
	if r.addressing == nil {
		r.addressing = map[string]string{}
	}
	if r.addressing[fc.Name] != now {
		r.addressing[fc.Name] = now
		r.Readdressed()
	}
}

func (r *Peers) setTrust(ctx context.Context) error {
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list foreign clusters: %w", err)
	}
	var peers []TrustedPeer
	for i := range list.Items {
		fc := &list.Items[i]
		// A peer that is being forgotten stays trusted until its contracts are
		// closed, so that it can be told; that takes moments.
		if fc.Spec.TrustBundle == "" || (!fc.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(fc, v1alpha1.Finalizer)) {
			continue
		}
		peers = append(peers, TrustedPeer{
			ID: peering.ClusterID(fc.Spec.ClusterID), Endpoints: fc.Spec.Endpoints, Bundle: fc.Spec.TrustBundle,
		})
	}
	return r.Trust.Set(peers)
}

func (r *Peers) contracts(ctx context.Context, id peering.ClusterID) ([]v1alpha1.Contract, error) {
	var list v1alpha1.ContractList
	if err := r.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelPeer: string(id)}); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	return list.Items, nil
}

// asks returns the ResourceSlices that ask a peer.
func (r *Peers) asks(ctx context.Context, peer string) ([]v1alpha1.ResourceSlice, error) {
	var list v1alpha1.ResourceSliceList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(s v1alpha1.ResourceSlice) bool { return s.Spec.ForeignCluster != peer }), nil
}

// forget ends everything with a peer. It waits for this cluster alone.
func (r *Peers) forget(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(fc, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	asks, err := r.asks(ctx, fc.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	for i := range asks {
		s := &asks[i]
		if !s.DeletionTimestamp.IsZero() {
			continue
		}
		if err := r.Client.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("end resource slice %s: %w", s.Name, err)
		}
	}
	for i := range contracts {
		if err := terminate(ctx, r.Client, &contracts[i], v1alpha1.TerminateNow); err != nil {
			return reconcile.Result{}, err
		}
	}
	if len(contracts) > 0 {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err := r.dropTunnel(ctx, fc); err != nil {
		return reconcile.Result{}, err
	}
	controllerutil.RemoveFinalizer(fc, v1alpha1.Finalizer)
	if err := r.Client.Update(ctx, fc, client.FieldOwner(v1alpha1.Manager)); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("release foreign cluster %s: %w", fc.Name, err)
	}
	return reconcile.Result{}, r.setTrust(ctx)
}

// tunnel makes the Tunnel as it should be and keeps the aliases in fc's status.
// It returns what is being waited for, if anything.
func (r *Peers) tunnel(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract) (string, error) {
	if !slices.ContainsFunc(contracts, wantsTunnel) {
		fc.Status.Aliases = nil
		return "", r.dropTunnel(ctx, fc)
	}
	local, err := r.States.Prefixes(ctx)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // it is told in the status, where somebody can mend it
	}
	if fc.Status.Network != nil {
		taken, err := r.taken(ctx, fc, local)
		if err != nil {
			return "", err
		}
		aliases, err := PlanAliases(fc.Status.Aliases, fc.Status.Network.Prefixes, r.AliasPool, taken, r.allocate)
		if err != nil {
			return err.Error(), nil //nolint:nilerr // it is told in the status, where somebody can mend it
		}
		fc.Status.Aliases = aliases
	}
	exposed, err := r.Exposed(ctx, peering.ClusterID(fc.Spec.ClusterID))
	if err != nil {
		return "", fmt.Errorf("what %s may reach: %w", fc.Name, err)
	}
	spec, waiting := PlanTunnel(fc, local, exposed)
	if spec == nil {
		return waiting, nil // what stands stays: a peer that says less is not a peer that is gone
	}
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	_, err = controllerutil.CreateOrUpdate(ctx, r.Client, tunnel, func() error {
		metav1.SetMetaDataLabel(&tunnel.ObjectMeta, v1alpha1.LabelManaged, v1alpha1.Manager)
		metav1.SetMetaDataLabel(&tunnel.ObjectMeta, v1alpha1.LabelPeer, fc.Spec.ClusterID)
		tunnel.Spec = *spec
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("tunnel to %s: %w", fc.Name, err)
	}
	return "", nil
}

func (r *Peers) allocate(taken []netip.Prefix, wanted netip.Prefix) (netip.Prefix, error) {
	err := fmt.Errorf("the alias pool has no prefixes of its family")
	for _, pool := range r.AliasPool {
		if pool.Addr().Is4() != wanted.Addr().Is4() {
			continue
		}
		var p netip.Prefix
		// Its own prefix counts as taken, so that it gets one of the pool.
		if p, err = r.Allocate(append(slices.Clone(taken), wanted), wanted, pool); err == nil {
			return p, nil
		}
	}
	return netip.Prefix{}, err
}

// taken returns the prefixes that no alias for this peer may overlap.
func (r *Peers) taken(ctx context.Context, fc *v1alpha1.ForeignCluster, local []netip.Prefix) ([]netip.Prefix, error) {
	taken := slices.Concat(local, r.Reserved)
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				taken = append(taken, netip.PrefixFrom(addr, addr.BitLen()))
			}
		}
	}
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].UID == fc.UID {
			continue
		}
		for _, a := range list.Items[i].Status.Aliases {
			if p, err := netip.ParsePrefix(a.Alias); err == nil {
				taken = append(taken, p)
			}
		}
	}
	return taken, nil
}

func (r *Peers) dropTunnel(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	if err := r.Client.Delete(ctx, tunnel); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop the tunnel to %s: %w", fc.Name, err)
	}
	return editSecret(ctx, r.Client, r.States.Namespace, FabricSecret, func(data map[string][]byte) bool {
		_, had := data[fc.Spec.ClusterID]
		delete(data, fc.Spec.ClusterID)
		return had
	})
}

// terminate asks for a contract's end. The first to ask for an end at once is
// who ended it; only Drain is overruled.
func terminate(ctx context.Context, c client.Client, contract *v1alpha1.Contract, how v1alpha1.Termination) error {
	if was := contract.Spec.Termination; was == how || (was != "" && was != v1alpha1.TerminateDrain) {
		return nil
	}
	patch := client.MergeFrom(contract.DeepCopy())
	contract.Spec.Termination = how
	if err := c.Patch(ctx, contract, patch, client.FieldOwner(v1alpha1.Manager)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("terminate contract %s: %w", contract.Name, err)
	}
	return nil
}
