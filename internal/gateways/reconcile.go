package gateways

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// PodNetwork is what is known of the network of this cluster's pods.
type PodNetwork struct {
	// Prefixes is those of all pods, Sources where they were learnt.
	Prefixes []netip.Prefix
	Sources  []string
	// Advice is what to set because pods are outside of these; empty if none is, or nothing particular is known.
	Advice string
	// HostRouting is how Cilium forwards packets of pods, HostRoutingBy the settings that say so. Both are empty if
	// that is not known.
	HostRouting, HostRoutingBy string
}

// Reconciler chooses which nodes have tunnels to other clusters, and deletes the
// FabricNodes of nodes that are gone. The nodes agree on the one that carries a peer's traffic
// without an API server, within a second of the death of one: see package tunnel.
type Reconciler struct {
	Client client.Client
	// Self is this cluster's ID, which the fabric learns from its FabricNode.
	Self peering.ClusterID
	// Most is how many gateways are chosen where no Node is labelled as one.
	Most int
	// Endpoints are the endpoints of gateways whose Nodes have no annotation: host or host:port,
	// with {node} for a gateway's name.
	Endpoints []string
	// Services are the Services of gateways with neither.
	Services Services
	// Direct is which nodes are announced to other clusters, with their pods, so that their nodes
	// reach these pods past the gateways.
	Direct Direct
	// Pods returns the prefixes of pods to announce to other clusters for each of some nodes, by
	// name, from those that the nodes have. Nil announces none.
	Pods func(ctx context.Context, has map[string][]netip.Prefix) (map[string][]netip.Prefix, error)
	// PodNetwork returns what nodes need to find their pods, and to check themselves. Nil means nothing.
	PodNetwork func(context.Context) (PodNetwork, error)
	// Reserved returns the prefixes of Services, which nodes check for overlaps with aliases. Nil
	// means none.
	Reserved func(context.Context) ([]netip.Prefix, error)
	// Namespace is that of the fabric's pods; empty means unknown.
	Namespace string
	// Silent is called when the fabric of a node fell silent, or reports again, and when the
	// health of a node changed: these events change no object for which peers are reconciled.
	Silent func()
	Now    func() time.Time

	// silent are the nodes whose fabrics are silent.
	silent  []string
	failing failures
	health  healths
}

// SetupWithManager registers the reconciler.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: "gateways"}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("gateways").
		Watches(&v1alpha1.FabricNode{}, all).
		Watches(&corev1.Node{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: nodeMatters})).
		Watches(&corev1.Pod{}, all, builder.WithPredicates(r.podMatters())).
		Watches(&corev1.Service{}, all, builder.WithPredicates(predicate.NewPredicateFuncs(r.Services.has))).
		Complete(r)
}

// nodeMatters reports whether an update of a Node can change whether it is a gateway, or its
// endpoints.
func nodeMatters(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return was.Annotations[v1alpha1.AnnotationEndpoint] != is.Annotations[v1alpha1.AnnotationEndpoint] || isReady(was) != isReady(is) || isFree(was) != isFree(is) ||
		was.Labels[v1alpha1.LabelGateway] != is.Labels[v1alpha1.LabelGateway] || !slices.Equal(was.Status.Addresses, is.Status.Addresses)
}

// machine is a FabricNode and its Node.
type machine struct {
	fabric *v1alpha1.FabricNode
	node   *corev1.Node
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	machines, err := r.machines(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := r.Now()
	changed, again, err := r.examine(ctx, machines, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	candidates := candidatesOf(machines, now)
	r.failing = r.failing.next(candidates, now)
	chosen := choose(candidates, r.failing, r.Most, now)
	// New gateways are written before old ones are removed: there is always at least one.
	slices.SortStableFunc(machines, func(a, b machine) int {
		return compareBool(chosen[b.fabric.Name], chosen[a.fabric.Name])
	})
	var gateways []gateway
	for _, m := range machines[:len(chosen)] {
		gateways = append(gateways, gatewayOf(m.fabric, m.node, r.Endpoints, len(chosen)))
	}
	services, unserved := r.serve(ctx, gateways)
	if services == nil {
		return reconcile.Result{}, unserved
	}
	common, omitted, err := r.common(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	pods, unannounced, err := r.pods(ctx, machines, chosen)
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, name := range beyond(machines[:len(chosen)]) {
		unannounced[name] = []string{noRoomForGateway(len(chosen))}
	}
	if omitted > 0 && len(machines) > 0 { // one node reports it, preferably a gateway
		unannounced[machines[0].fabric.Name] = append(unannounced[machines[0].fabric.Name], noRoomForServices(omitted))
	}
	var nodes []*v1alpha1.FabricNode
	for i, m := range machines {
		n, before := m.fabric, m.fabric.DeepCopy()
		nodes = append(nodes, n)
		n.Spec = specOf(common, i < len(gateways), pods[n.Name])
		var problems []string
		if n.Spec.Gateway {
			gateways[i].service = services[n.Name]
			n.Spec.Endpoints, problems = gateways[i].announce()
		} else if len(pods[n.Name]) > 0 {
			n.Spec.Endpoints = nodeOf(n, m.node, r.Endpoints)
		}
		n.Spec.EndpointProblems = firstProblems(slices.Concat(problems, unannounced[n.Name]))
		if err := r.write(ctx, before, n); err != nil {
			return reconcile.Result{}, err
		}
	}
	r.notify(silent(nodes, now), changed)
	return reconcile.Result{RequeueAfter: min(cmp.Or(again, reportMaxAge/3), reportMaxAge/3)}, unserved
}

// notify enqueues the peers if other nodes are silent than before, or the health of one changed.
func (r *Reconciler) notify(silent []string, changed bool) {
	if changed || !slices.Equal(silent, r.silent) {
		r.silent = silent
		r.Silent()
	}
}

func (r *Reconciler) write(ctx context.Context, before, n *v1alpha1.FabricNode) error {
	if n.Spec.Gateway != before.Spec.Gateway {
		ctrl.LoggerFrom(ctx).Info("gateways change", "node", n.Name, "gateway", n.Spec.Gateway)
	}
	return store.Patch(ctx, r.Client, before, n)
}

func candidatesOf(machines []machine, now time.Time) (out []candidate) {
	for _, m := range machines {
		out = append(out, candidateOf(m.fabric, m.node, now))
	}
	return out
}

// machines returns the nodes of the cluster that have a FabricNode, and deletes the FabricNodes
// of those that are gone.
func (r *Reconciler) machines(ctx context.Context) ([]machine, error) {
	var list v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	var out []machine
	for i := range list.Items {
		n, node := &list.Items[i], new(corev1.Node)
		err := r.Client.Get(ctx, client.ObjectKey{Name: n.Name}, node)
		switch {
		case apierrors.IsNotFound(err):
			if err := r.Client.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("forget fabric node %s: %w", n.Name, err)
			}
		case err != nil:
			return nil, fmt.Errorf("read node %s: %w", n.Name, err)
		default:
			out = append(out, machine{fabric: n, node: node})
		}
	}
	return out, nil
}

// pods returns the prefixes of pods to announce to other clusters, by node, and the nodes of which some
// are not announced, with the reasons. Of nodes that are not gateways as many are announced as a
// message has room for.
func (r *Reconciler) pods(ctx context.Context, machines []machine, chosen map[string]bool) (pods, unannounced map[string][]string, err error) {
	pods, unannounced = map[string][]string{}, map[string][]string{}
	if r.Direct == DirectNone || r.Pods == nil {
		return pods, unannounced, nil
	}
	has := map[string][]netip.Prefix{}
	for _, m := range machines {
		for _, text := range m.fabric.Status.PodCIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				has[m.fabric.Name] = append(has[m.fabric.Name], p)
			}
		}
	}
	announced, err := r.Pods(ctx, has)
	if err != nil {
		return nil, nil, err
	}
	others := 0
	var late []string
	for _, m := range slices.SortedFunc(slices.Values(machines), func(a, b machine) int { return cmp.Compare(a.fabric.Name, b.fabric.Name) }) {
		n := m.fabric
		if len(announced[n.Name]) == 0 || n.Status.PublicKey == "" {
			continue
		}
		if !chosen[n.Name] {
			if r.Direct != DirectAll {
				continue
			}
			if others++; others > peering.MaxNodes {
				late = append(late, n.Name)
				continue
			}
		}
		var problem string
		if pods[n.Name], problem = largest(announced[n.Name]); problem != "" {
			unannounced[n.Name] = []string{problem}
		}
	}
	for _, name := range late {
		unannounced[name] = []string{noRoomForNode(others)}
	}
	return pods, unannounced, nil
}

// common returns what the spec of each FabricNode has: this cluster's ID, and the prefixes of its Services and pods.
// omitted is how many prefixes of Services are left out.
func (r *Reconciler) common(ctx context.Context) (spec *v1alpha1.FabricNodeSpec, omitted int, err error) {
	spec = &v1alpha1.FabricNodeSpec{ClusterID: string(r.Self)}
	if spec.ServiceCIDRs, omitted, err = r.serviceCIDRs(ctx); err != nil || r.PodNetwork == nil {
		return spec, omitted, err
	}
	pods, err := r.PodNetwork(ctx)
	if err != nil {
		return nil, 0, err
	}
	spec.ClusterPodCIDRs = wire.Texts(pods.Prefixes[:min(len(pods.Prefixes), peering.MaxPrefixes)])
	spec.ClusterPodCIDRSources = pods.Sources[:min(len(pods.Sources), maxPodSources)]
	spec.ClusterPodCIDRAdvice, spec.CiliumHostRouting, spec.CiliumSettings = pods.Advice, pods.HostRouting, pods.HostRoutingBy
	return spec, omitted, nil
}

// specOf returns the spec of one FabricNode, from what all have.
func specOf(common *v1alpha1.FabricNodeSpec, gateway bool, pods []string) v1alpha1.FabricNodeSpec {
	spec := common.DeepCopy()
	spec.Gateway, spec.AnnouncedPodCIDRs = gateway, pods
	return *spec
}

// serviceCIDRs returns the prefixes of Services for the FabricNodes, and how many are left out.
func (r *Reconciler) serviceCIDRs(ctx context.Context) (cidrs []string, omitted int, err error) {
	if r.Reserved == nil {
		return nil, 0, nil
	}
	prefixes, err := r.Reserved(ctx)
	if err != nil {
		return nil, 0, err
	}
	out := wire.Texts(prefixes)
	slices.Sort(out)
	out = slices.Compact(out)
	cidrs = out[:min(len(out), maxServiceCIDRs)]
	return cidrs, len(out) - len(cidrs), nil
}

// noRoomForServices returns the problem that nodes do not check all prefixes of Services.
func noRoomForServices(omitted int) string {
	return fmt.Sprintf("nodes check %d prefixes of Services for overlaps, the limit, and %d more exist: set cluster.serviceCIDRs to prefixes that cover them", maxServiceCIDRs, omitted)
}

// Announced returns the gateways with their announced endpoints.
func (r *Reconciler) Announced(ctx context.Context) ([]peering.PlannedGateway, error) {
	var list v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	var out []peering.PlannedGateway
	for _, n := range list.Items {
		if n.Spec.Gateway {
			out = append(out, peering.PlannedGateway{Name: n.Name, Endpoints: n.Spec.Endpoints, Problems: n.Spec.EndpointProblems})
		}
	}
	return out, nil
}
