package sightings

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
)

const (
	// LANConvergence is how long after a fabric began to listen some clusters may not have
	// answered: queries are sent at once, and after one and three seconds (RFC 6762 section 5.2).
	LANConvergence = 5 * time.Second
	// lanHandover is for how long at most the previous gateway goes on with discovery while the
	// new one has not converged.
	lanHandover = time.Minute
	// lanFresh is how old a fabric's report may be: it reports each minute.
	lanFresh = 3 * time.Minute
	// publishCheck is how often it is checked whether what is published changed.
	publishCheck = 5 * time.Second
)

// NodeDiscoveries keeps a NodeDiscovery for the node that is the gateway, which publishes this
// cluster on its LANs, and browses for others.
type NodeDiscoveries struct {
	Client client.Client
	// Desired returns the spec of the NodeDiscovery, or nil if discovery on LANs is off. With an
	// error nothing is changed.
	Desired func(context.Context) (*v1alpha1.NodeDiscoverySpec, error)
	Now     func() time.Time
}

// SetupWithManager registers the reconciler.
func (r *NodeDiscoveries) SetupWithManager(mgr ctrl.Manager) error {
	gateway := builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*v1alpha1.FabricNode).Spec, e.ObjectNew.(*v1alpha1.FabricNode).Spec
		return was.ClusterID != is.ClusterID || was.Gateway != is.Gateway
	}})
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return make([]reconcile.Request, 1) })
	return ctrl.NewControllerManagedBy(mgr).
		Named("nodediscoveries").
		Watches(&v1alpha1.FabricNode{}, all, gateway).
		Watches(&v1alpha1.NodeDiscovery{}, all).
		// Whether this cluster peers by policy is published.
		Watches(&v1alpha1.PeeringPolicy{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *NodeDiscoveries) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var nodes v1alpha1.FabricNodeList
	var have v1alpha1.NodeDiscoveryList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return reconcile.Result{}, fmt.Errorf("list fabric nodes: %w", err)
	}
	if err := r.Client.List(ctx, &have); err != nil {
		return reconcile.Result{}, fmt.Errorf("list node discoveries: %w", err)
	}
	want, err := r.Desired(ctx)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get what to publish on LANs: %w", err)
	}
	plan := planNodeDiscoveries(want, nodes.Items, have.Items, r.Now())
	for _, name := range plan.create {
		nd := &v1alpha1.NodeDiscovery{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}},
			Spec:       *want,
		}
		if err := r.Client.Create(ctx, nd, client.FieldOwner(v1alpha1.Manager)); err != nil {
			return reconcile.Result{}, fmt.Errorf("create node discovery %s: %w", name, err)
		}
	}
	for _, nd := range plan.change {
		before := nd.DeepCopy()
		nd.Spec = *want
		if err := store.Patch(ctx, r.Client, before, nd); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
	}
	for _, nd := range plan.remove {
		if err := r.Client.Delete(ctx, nd, client.Preconditions{UID: &nd.UID}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("remove node discovery %s: %w", nd.Name, err)
		}
	}
	if want == nil {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: publishCheck}, nil
}

type nodeDiscoveryPlan struct {
	create         []string
	change, remove []*v1alpha1.NodeDiscovery
}

// listener returns the gateway that is to listen on LANs, empty if no node is a gateway. It
// prefers gateways that are reached and reported lately, then the one that listens already, then
// the first by name.
func listener(nodes []v1alpha1.FabricNode, have map[string]*v1alpha1.NodeDiscovery, now time.Time) string {
	var gateways []*v1alpha1.FabricNode
	dead := map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		fresh := now.Sub(n.Status.ObservedAt.Time) < lanFresh
		if n.Spec.Gateway && n.DeletionTimestamp.IsZero() {
			gateways = append(gateways, n)
			dead[n.Name] = dead[n.Name] || !fresh
		}
		for _, p := range n.Status.Paths {
			if fresh && p.PeerID == n.Spec.ClusterID && p.State == "Down" {
				dead[p.Node] = true
			}
		}
	}
	if len(gateways) == 0 {
		return ""
	}
	order := func(n *v1alpha1.FabricNode) int {
		switch {
		case dead[n.Name]:
			return 2
		case have[n.Name] == nil:
			return 1
		}
		return 0
	}
	return slices.MinFunc(gateways, func(a, b *v1alpha1.FabricNode) int {
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.Name, b.Name))
	}).Name
}

// planNodeDiscoveries decides which NodeDiscoveries there are. The previous listener goes on
// until the new one has listened for a while, so that what is found does not go and come back.
func planNodeDiscoveries(want *v1alpha1.NodeDiscoverySpec, nodes []v1alpha1.FabricNode, have []v1alpha1.NodeDiscovery, now time.Time) nodeDiscoveryPlan {
	var plan nodeDiscoveryPlan
	at := map[string]*v1alpha1.NodeDiscovery{}
	for i := range have {
		at[have[i].Name] = &have[i]
	}
	name, settled := listener(nodes, at, now), false
	if nd := at[name]; nd != nil {
		settled = LANConverged(&nd.Status) || now.Sub(nd.CreationTimestamp.Time) >= lanHandover
	} else if want != nil && name != "" {
		plan.create = append(plan.create, name)
	}
	for i := range have {
		nd := &have[i]
		switch {
		case !nd.DeletionTimestamp.IsZero():
		case want == nil, nd.Name != name && settled:
			plan.remove = append(plan.remove, nd)
		case !equality.Semantic.DeepEqual(nd.Spec, *want):
			plan.change = append(plan.change, nd)
		}
	}
	byName := func(a, b *v1alpha1.NodeDiscovery) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(plan.change, byName)
	slices.SortFunc(plan.remove, byName)
	return plan
}

// LANConverged reports whether the fabric had listened for long enough when it wrote this status,
// so that clusters that it did not name are not there.
func LANConverged(s *v1alpha1.NodeDiscoveryStatus) bool {
	return s.Since != nil && s.ObservedAt.Sub(s.Since.Time) >= LANConvergence
}
