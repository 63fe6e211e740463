package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
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
	silent   []string
	election Election
}

// SetupWithManager registers the reconciler.
func (r *Gateways) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("gateways").
		Watches(&v1alpha1.FabricNode{}, allAsOne("gateways")).
		Watches(&corev1.Node{}, allAsOne("gateways"), onlyReadiness()).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Gateways) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return reconcile.Result{}, fmt.Errorf("list fabric nodes: %w", err)
	}
	var alive []v1alpha1.FabricNode
	ready := map[string]bool{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		var node corev1.Node
		err := r.Client.Get(ctx, client.ObjectKey{Name: n.Name}, &node)
		switch {
		case apierrors.IsNotFound(err):
			if err := r.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
				return reconcile.Result{}, fmt.Errorf("forget fabric node %s: %w", n.Name, err)
			}
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("read node %s: %w", n.Name, err)
		default:
			alive = append(alive, *n)
			ready[n.Name] = isReady(&node)
		}
	}
	before := r.election.Gateway
	r.election = r.election.Next(alive, ready, r.Now())
	chosen := r.election.Gateway
	if before != "" && chosen != before {
		ctrl.LoggerFrom(ctx).Info("another node is the gateway", "node", chosen, "before", before)
	}
	// The new gateway is named before the old one is not one any more: there is never none.
	if i := slices.IndexFunc(alive, func(n v1alpha1.FabricNode) bool { return n.Name == chosen }); i > 0 {
		alive[0], alive[i] = alive[i], alive[0]
	}
	for i := range alive {
		n := &alive[i]
		before := n.DeepCopy()
		n.Spec = v1alpha1.FabricNodeSpec{ClusterID: string(r.Self), Gateway: n.Name == chosen}
		if err := store.Patch(ctx, r.Client, before, n); err != nil {
			return reconcile.Result{}, err
		}
	}
	if now := silentGateways(alive, r.Now()); !slices.Equal(now, r.silent) {
		r.silent = now
		r.Silent()
	}
	return reconcile.Result{RequeueAfter: r.election.again(r.Now())}, nil
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

// Election is which node is the gateway, and what the choice depends on besides the
// nodes: a gateway is replaced by evidence that lasts, and silence counts only as far
// as this process has listened. The zero value knows nothing.
type Election struct {
	// Gateway is the name of the chosen node; empty if there is none to choose.
	Gateway string
	// Began is when this process began to listen, Chosen when it chose the gateway;
	// zero if it found it.
	Began, Chosen time.Time
	// Failing is since when there is evidence against the gateway; zero if there is none.
	Failing time.Time
	// Moves is how often the gateway was replaced lately. Each time the next one has
	// longer to settle, so that where nothing helps the gateway does not move all the time.
	Moves int
	// Replaced is the gateways that were replaced, with the time of their last report.
	// They are not chosen until they report again.
	Replaced map[string]time.Time
}

// Next returns the election after another look. ready says of each node whether its
// Node is Ready.
//
// What counts is what the other nodes' probes say of the gateway, for that is the way
// of their pods' traffic: as long as at least half of those that say anything reach it,
// it stays, whatever else is said of it. If none says anything, a Node that is not
// Ready and a fabric that does not report count against it.
func (e Election) Next(nodes []v1alpha1.FabricNode, ready map[string]bool, now time.Time) Election {
	if e.Began.IsZero() {
		e.Began = now
	}
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b v1alpha1.FabricNode) int { return cmp.Compare(a.Name, b.Name) })
	e.Replaced = maps.Clone(e.Replaced)
	maps.DeleteFunc(e.Replaced, func(name string, report time.Time) bool {
		i := slices.IndexFunc(nodes, func(n v1alpha1.FabricNode) bool { return n.Name == name })
		return i < 0 || !nodes[i].Status.ObservedAt.Time.Equal(report)
	})
	current := e.current(nodes, now)
	if current == nil {
		return e.choose(able(nodes, ready, e.Replaced, "", now), now)
	}
	if current.Name != e.Gateway {
		e.Gateway, e.Failing = current.Name, time.Time{}
	}
	reached, lost := reach(nodes, current.Name, ready, now)
	failing := len(lost) > len(reached)
	if len(lost)+len(reached) == 0 {
		failing = !ready[current.Name] || current.Status.PublicKey == "" || (isSilent(current, now) && now.Sub(e.Began) > fabricFresh)
	}
	switch {
	case !failing:
		e.Failing = time.Time{}
		if now.Sub(e.Chosen) > gatewaySettles<<(maxGatewayMoves+1) {
			e.Moves = 0
		}
		return e
	case e.Failing.IsZero():
		e.Failing = now
	}
	next := able(nodes, ready, e.Replaced, current.Name, now)
	if now.Sub(e.Failing) < gatewayPatience || now.Sub(e.Chosen) < e.settles() || next == nil || !ready[next.Name] {
		return e
	}
	if e.Replaced == nil {
		e.Replaced = map[string]time.Time{}
	}
	e.Replaced[current.Name] = current.Status.ObservedAt.Time
	e.Moves++
	return e.choose(next, now)
}

// current returns the node that is the gateway; nil if none is.
func (e Election) current(nodes []v1alpha1.FabricNode, now time.Time) *v1alpha1.FabricNode {
	var current *v1alpha1.FabricNode
	for i := range nodes {
		n := &nodes[i]
		if n.Spec.Gateway && (current == nil || n.Name == e.Gateway || (current.Name != e.Gateway && isSilent(current, now) && !isSilent(n, now))) {
			current = n
		}
	}
	return current
}

func (e Election) choose(n *v1alpha1.FabricNode, now time.Time) Election {
	e.Gateway, e.Failing = "", time.Time{}
	if n != nil {
		e.Gateway, e.Chosen = n.Name, now
	}
	return e
}

// able returns the first node by name that can be the gateway, one that is Ready if
// there is any; nil if none can.
func able(nodes []v1alpha1.FabricNode, ready map[string]bool, replaced map[string]time.Time, not string, now time.Time) *v1alpha1.FabricNode {
	var first *v1alpha1.FabricNode
	for i := range nodes {
		n := &nodes[i]
		if _, failed := replaced[n.Name]; failed || n.Name == not || n.Status.PublicKey == "" || isSilent(n, now) {
			continue
		}
		if ready[n.Name] {
			return n
		}
		if first == nil {
			first = n
		}
	}
	return first
}

// reach returns the other nodes that reach a gateway by their probes, and those that
// do not. Nodes that do not report, or are not ready, say nothing; nil is that all
// nodes are ready.
func reach(nodes []v1alpha1.FabricNode, gateway string, ready map[string]bool, now time.Time) (reached, lost []string) {
	for i := range nodes {
		n := &nodes[i]
		if n.Name == gateway || isSilent(n, now) || (ready != nil && !ready[n.Name]) {
			continue
		}
		for _, p := range n.Status.Paths {
			if p.PeerID != n.Spec.ClusterID || p.Node != gateway {
				continue
			}
			switch p.State {
			case "Up":
				reached = append(reached, n.Name)
			case "Down":
				lost = append(lost, n.Name)
			}
		}
	}
	return reached, lost
}

// settles is how long the gateway has for its tunnels to come up.
func (e Election) settles() time.Duration {
	return gatewaySettles << min(max(e.Moves-1, 0), maxGatewayMoves)
}

// again returns when to look again.
func (e Election) again(now time.Time) time.Duration {
	if e.Failing.IsZero() {
		return fabricFresh / 3
	}
	left := max(gatewayPatience-now.Sub(e.Failing), e.settles()-now.Sub(e.Chosen))
	if left <= 0 {
		return gatewayPatience // there is no other node to choose
	}
	return left
}
