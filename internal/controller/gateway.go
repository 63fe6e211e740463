package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Gateways chooses which node speaks to other clusters, and forgets the
// FabricNodes of nodes that are gone.
type Gateways struct {
	Client client.Client
	// Self is this cluster's ID, which the fabric learns from its FabricNode.
	Self peering.ClusterID
	// Silent is called when the fabric of a gateway fell silent, or is heard of again:
	// when that is so changes no object.
	Silent func()
	Now    func() time.Time

	// silent is the gateways whose fabrics are.
	silent []string
}

// SetupWithManager registers the reconciler.
func (r *Gateways) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("gateways").
		Watches(&v1alpha1.FabricNode{}, allAsOne("gateways")).
		Watches(&corev1.Node{}, allAsOne("gateways"), onlyExistence()).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Gateways) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return reconcile.Result{}, fmt.Errorf("list fabric nodes: %w", err)
	}
	var alive []v1alpha1.FabricNode
	for i := range nodes.Items {
		n := &nodes.Items[i]
		err := r.Client.Get(ctx, client.ObjectKey{Name: n.Name}, &corev1.Node{})
		switch {
		case apierrors.IsNotFound(err):
			if err := r.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
				return reconcile.Result{}, fmt.Errorf("forget fabric node %s: %w", n.Name, err)
			}
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("read node %s: %w", n.Name, err)
		default:
			alive = append(alive, *n)
		}
	}
	chosen := ElectGateway(alive, r.Now())
	for i := range alive {
		n := &alive[i]
		want := v1alpha1.FabricNodeSpec{ClusterID: string(r.Self), Gateway: n.Name == chosen}
		if n.Spec == want {
			continue
		}
		patch := client.MergeFrom(n.DeepCopy())
		n.Spec = want
		if err := r.Client.Patch(ctx, n, patch, client.FieldOwner(v1alpha1.Manager)); err != nil {
			return reconcile.Result{}, fmt.Errorf("make %s a gateway: %t: %w", n.Name, n.Spec.Gateway, err)
		}
	}
	if now := silentGateways(alive, r.Now()); !slices.Equal(now, r.silent) {
		r.silent = now
		r.Silent()
	}
	return reconcile.Result{RequeueAfter: fabricFresh / 3}, nil
}

// silentGateways returns the gateways whose fabrics were not heard of lately, sorted.
func silentGateways(nodes []v1alpha1.FabricNode, now time.Time) []string {
	var out []string
	for i := range nodes {
		if nodes[i].Spec.Gateway && isSilent(&nodes[i], now) {
			out = append(out, nodes[i].Name)
		}
	}
	slices.Sort(out)
	return out
}

func isSilent(n *v1alpha1.FabricNode, now time.Time) bool {
	return now.Sub(n.Status.ObservedAt.Time) > fabricFresh
}

// ElectGateway returns the name of the node that should be the gateway: the one
// that is, as long as its fabric was heard of lately; else of those heard of
// lately the first by name; and when none was, the one that is, for silence is
// no evidence that its traffic stopped.
func ElectGateway(nodes []v1alpha1.FabricNode, now time.Time) string {
	fresh := func(n v1alpha1.FabricNode) bool {
		return n.Status.PublicKey != "" && now.Sub(n.Status.ObservedAt.Time) < fabricFresh
	}
	sorted := slices.SortedFunc(slices.Values(nodes), func(a, b v1alpha1.FabricNode) int { return cmp.Compare(a.Name, b.Name) })
	current, candidate := "", ""
	for _, n := range sorted {
		if n.Spec.Gateway && (current == "" || fresh(n)) {
			current = n.Name
			if fresh(n) {
				return current
			}
		}
		if candidate == "" && fresh(n) {
			candidate = n.Name
		}
	}
	return cmp.Or(candidate, current)
}
