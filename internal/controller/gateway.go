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
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Gateways chooses which nodes hold tunnels to other clusters, and forgets the
// FabricNodes of nodes that are gone. Which of them carries a peer's traffic the nodes
// agree upon without an API server, within a second of the death of one: see package tunnel.
type Gateways struct {
	Client client.Client
	// Self is this cluster's ID, which the fabric learns from its FabricNode.
	Self peering.ClusterID
	// Most is how many gateways are chosen where no Node is labelled as one.
	Most int
	// Endpoints is where other clusters can dial gateways, where their Nodes do not say: as
	// host or host:port, with {node} for a gateway's name.
	Endpoints []string
	// Services is by which Services they can, where neither says.
	Services GatewayServices
	// Reserved returns the prefixes of Services, of which nodes check that no alias overlaps them.
	Reserved Reserved
	// Silent is called when the fabric of a gateway fell silent, or is heard of again:
	// when that is so changes no object.
	Silent func()
	Now    func() time.Time

	// silent is the gateways whose fabrics are.
	silent  []string
	failing failures
}

// SetupWithManager registers the reconciler.
func (r *Gateways) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("gateways").
		Watches(&v1alpha1.FabricNode{}, allAsOne("gateways")).
		Watches(&corev1.Node{}, allAsOne("gateways"), gatewayMatters()).
		Watches(&corev1.Service{}, allAsOne("gateways"), servesGateway(r.Services.Namespace)).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Gateways) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return reconcile.Result{}, fmt.Errorf("list fabric nodes: %w", err)
	}
	var alive []v1alpha1.FabricNode
	var candidates []gatewayCandidate
	machines := map[string]*corev1.Node{}
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
			machines[n.Name] = &node
			candidates = append(candidates, candidateOf(n, &node, r.Now()))
		}
	}
	r.failing = r.failing.next(candidates, r.Now())
	chosen := chooseGateways(candidates, r.failing, r.Most, r.Now())
	// New gateways are named before the old ones are not any more: there is never none.
	slices.SortStableFunc(alive, func(a, b v1alpha1.FabricNode) int {
		return compareBool(chosen[b.Name], chosen[a.Name])
	})
	var toServe []servedGateway
	for i := range alive {
		if n := &alive[i]; chosen[n.Name] {
			of := announcingOf(n, machines[n.Name], r.Endpoints, len(chosen))
			toServe = append(toServe, servedGateway{node: n.Name, uid: n.UID, addresses: of.addresses, port: of.port})
		}
	}
	services, unserved := r.serve(ctx, toServe)
	if services == nil {
		return reconcile.Result{}, unserved
	}
	serviceCIDRs, err := r.serviceCIDRs(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	for i := range alive {
		n := &alive[i]
		if n.Spec.Gateway != chosen[n.Name] {
			ctrl.LoggerFrom(ctx).Info("gateways change", "node", n.Name, "gateway", chosen[n.Name])
		}
		before := n.DeepCopy()
		n.Spec.ServiceCIDRs = serviceCIDRs
		n.Spec.ClusterID, n.Spec.Gateway, n.Spec.Endpoints, n.Spec.EndpointProblems = string(r.Self), chosen[n.Name], nil, nil
		if n.Spec.Gateway {
			of := announcingOf(n, machines[n.Name], r.Endpoints, len(chosen))
			of.service = services[n.Name]
			var problems []string
			n.Spec.Endpoints, problems = announce(of)
			for _, p := range problems[:min(len(problems), maxEndpointProblems)] {
				n.Spec.EndpointProblems = append(n.Spec.EndpointProblems, peering.Text(p, peering.MaxMessageLen))
			}
		}
		if err := store.Patch(ctx, r.Client, before, n); err != nil {
			return reconcile.Result{}, err
		}
	}
	if now := silentGateways(alive, r.Now()); !slices.Equal(now, r.silent) {
		r.silent = now
		r.Silent()
	}
	return reconcile.Result{RequeueAfter: fabricFresh / 3}, unserved
}

// serviceCIDRs is the prefixes of Services that nodes are told.
func (r *Gateways) serviceCIDRs(ctx context.Context) ([]string, error) {
	prefixes, err := r.Reserved.now(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), maxServiceCIDRs)], nil
}

// gatewayCandidate is what of a node says whether it should be a gateway.
type gatewayCandidate struct {
	name string
	// label is the value of its label v1alpha1.LabelGateway; empty if it has none.
	label string
	// gateway says that it is one.
	gateway bool
	// able says that its fabric has announced a key, works that its Node is Ready and that its
	// fabric was heard of lately.
	able, works bool
	// external says that it has an address that others can dial, free that no taint or
	// cordon keeps ordinary pods off it.
	external, free bool
}

func candidateOf(n *v1alpha1.FabricNode, node *corev1.Node, now time.Time) gatewayCandidate {
	return gatewayCandidate{
		name: n.Name, label: node.Labels[v1alpha1.LabelGateway], gateway: n.Spec.Gateway,
		able: n.Status.PublicKey != "", works: isReady(node) && !isSilent(n, now),
		external: slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeExternalIP }),
		free:     isFree(node),
	}
}

// isFree says that no taint keeps pods off a node. Those that say that it is not ready count
// elsewhere, and in time.
func isFree(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable
	})
}

// failures is since when nodes do not work, by name.
type failures map[string]time.Time

func (f failures) next(nodes []gatewayCandidate, now time.Time) failures {
	out := failures{}
	for _, n := range nodes {
		if n.works {
			continue
		}
		out[n.name] = now
		if since, known := f[n.name]; known {
			out[n.name] = since
		}
	}
	return out
}

// lasts says that a node has not worked for so long that another should be a gateway in its
// place.
func (f failures) lasts(name string, now time.Time) bool {
	since, failing := f[name]
	return failing && now.Sub(since) >= gatewayPatience
}

// chooseGateways returns which nodes are gateways: those that are labelled so, if any are; else
// so many, of those that are not labelled otherwise: with an external address before others, on
// which pods may run, that work, and that are gateways already.
func chooseGateways(nodes []gatewayCandidate, failing failures, most int, now time.Time) map[string]bool {
	var wanted, able []gatewayCandidate
	for _, n := range nodes {
		if n.label == "true" {
			wanted = append(wanted, n)
		}
		if n.label == "" && (n.able || n.gateway) {
			able = append(able, n)
		}
	}
	if len(wanted) == 0 {
		slices.SortFunc(able, func(a, b gatewayCandidate) int {
			worksA, worksB := a.works || a.gateway && !failing.lasts(a.name, now), b.works || b.gateway && !failing.lasts(b.name, now)
			return cmp.Or(
				compareBool(worksB, worksA), compareBool(b.external, a.external), compareBool(b.free, a.free),
				compareBool(b.gateway, a.gateway), cmp.Compare(a.name, b.name))
		})
		wanted = able[:min(len(able), most)]
	}
	chosen := map[string]bool{}
	for _, n := range wanted {
		chosen[n.name] = true
	}
	return chosen
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
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
