package allow

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Hosts records for each ExternalHost whether it may be exported, and the addresses by which peers know it.
type Hosts struct {
	Client client.Client
	// Refusal returns why an address may not be exported; empty if it may.
	Refusal func(context.Context, netip.Addr) (string, error)
	// Changed plans again what peers may reach.
	Changed func()
}

// Host is an ExternalHost that may be exported.
type Host struct {
	Namespace string
	Addrs     []netip.Addr
	// Ports is what is open; empty means every port of every protocol.
	Ports []v1alpha1.DestinationPort
	// Clusters are the ForeignClusters all of whose pods reach it.
	Clusters []string
}

// Opens reports whether a destination of its namespace may be one of the host's ports.
func (h Host) Opens(namespace string, d Destination) bool {
	return h.Namespace == namespace && slices.Contains(h.Addrs, d.Addr) && (len(h.Ports) == 0 || slices.Contains(h.Ports, d.Port))
}

// Destinations is all open destinations of it.
func (h Host) Destinations() []Destination {
	var out []Destination
	for _, a := range h.Addrs {
		if len(h.Ports) == 0 {
			out = append(out, Destination{Addr: a})
		}
		for _, p := range h.Ports {
			out = append(out, Destination{Addr: a, Port: p})
		}
	}
	return out
}

// ExposedHosts returns what all pods of a ForeignCluster reach of hosts: by namespace, without a contract, since
// that ends with the tunnel.
func ExposedHosts(hosts []Host, foreignCluster string) []Exposed {
	var out []Exposed
	for _, h := range hosts {
		if slices.Contains(h.Clusters, foreignCluster) {
			out = append(out, Exposed{Namespace: h.Namespace, AnySource: true, To: h.Destinations()})
		}
	}
	return out
}

// SetupWithManager registers the reconciler.
func (r *Hosts) SetupWithManager(mgr ctrl.Manager) error {
	// A change of one tunnel may affect each host, and which of them exceed the limit depends on all.
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		var list v1alpha1.ExternalHostList
		if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return nil // they are reconciled after hostRecheck
		}
		var out []reconcile.Request
		for i := range list.Items {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		return out
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("externalhosts").
		For(&v1alpha1.ExternalHost{}).
		Watches(&v1alpha1.Tunnel{}, all).
		Watches(&v1alpha1.ForeignCluster{}, all, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }})).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Hosts) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var host v1alpha1.ExternalHost
	if err := r.Client.Get(ctx, req.NamespacedName, &host); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read external host: %w", err)
	}
	if host.UID == "" || !host.DeletionTimestamp.IsZero() { // it is gone, or about to be
		r.Changed()
		return reconcile.Result{}, nil
	}
	verdicts, err := r.judge(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	c := verdicts[req.NamespacedName]
	if c.Type == "" {
		return reconcile.Result{RequeueAfter: listRecheck}, nil // the list does not have it yet
	}
	before := host.DeepCopy()
	c.ObservedGeneration = host.Generation
	if meta.SetStatusCondition(&host.Status.Conditions, c) {
		r.Changed()
	}
	if host.Status.Clusters, err = r.clusters(ctx, &host.Spec, c.Status == metav1.ConditionTrue); err != nil {
		return reconcile.Result{}, err
	}
	err = store.PatchStatus(ctx, r.Client, before, &host)
	return reconcile.Result{RequeueAfter: hostRecheck}, client.IgnoreNotFound(err)
}

// Accepted returns the hosts that may be exported.
func (r *Hosts) Accepted(ctx context.Context) ([]Host, error) {
	verdicts, err := r.judge(ctx)
	if err != nil {
		return nil, err
	}
	list, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []Host
	for i := range list {
		h := &list[i]
		if verdicts[client.ObjectKeyFromObject(h)].Status == metav1.ConditionTrue {
			out = append(out, Host{Namespace: h.Namespace, Addrs: kube.Addrs(h.Spec.Addresses), Ports: h.Spec.Ports, Clusters: h.Spec.Clusters})
		}
	}
	return out, nil
}

// list returns all ExternalHosts, the oldest first, for reading only.
func (r *Hosts) list(ctx context.Context) ([]v1alpha1.ExternalHost, error) {
	var list v1alpha1.ExternalHostList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list external hosts: %w", err)
	}
	return slices.SortedFunc(slices.Values(list.Items), func(a, b v1alpha1.ExternalHost) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}), nil
}

// judge decides for each ExternalHost whether it may be exported: if there are too many the oldest are.
func (r *Hosts) judge(ctx context.Context) (map[client.ObjectKey]metav1.Condition, error) {
	list, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[client.ObjectKey]metav1.Condition, len(list))
	accepted := 0
	for i := range list {
		h := &list[i]
		if !h.DeletionTimestamp.IsZero() {
			continue
		}
		c, err := r.verdict(ctx, &h.Spec)
		if err != nil {
			return nil, err
		}
		if c.Status == metav1.ConditionTrue {
			if accepted++; accepted > maxExternalHosts {
				c = store.Condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "TooMany",
					fmt.Sprintf("%d ExternalHosts of this cluster are accepted, which is the limit: delete others", maxExternalHosts))
			}
		}
		out[client.ObjectKeyFromObject(h)] = c
	}
	return out, nil
}

// verdict decides whether a host may be exported by its addresses.
func (r *Hosts) verdict(ctx context.Context, spec *v1alpha1.ExternalHostSpec) (metav1.Condition, error) {
	for _, text := range spec.Addresses {
		a, err := netip.ParseAddr(text)
		why := "it is not an IP address"
		if err == nil {
			if why, err = r.Refusal(ctx, a); err != nil {
				return metav1.Condition{}, err
			}
		}
		if why != "" {
			return store.Condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "NotAllowed",
				peering.Text(fmt.Sprintf("%s may not be exported: %s", text, why), peering.MaxMessageLen)), nil
		}
	}
	return store.Condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Allowed", "network.externalHosts allows its addresses"), nil
}

// clusters returns the addresses by which each cluster knows a host: the clusters that the host names, and those to
// which it is open.
func (r *Hosts) clusters(ctx context.Context, spec *v1alpha1.ExternalHostSpec, accepted bool) ([]v1alpha1.HostInCluster, error) {
	var tunnels v1alpha1.TunnelList
	if err := r.Client.List(ctx, &tunnels, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list tunnels: %w", err)
	}
	var peers v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &peers, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	known := map[string]bool{}
	for i := range peers.Items {
		known[peers.Items[i].Name] = true
	}
	return hostClusters(spec, accepted, tunnels.Items, known), nil
}

// hostClusters computes clusters from what was read.
func hostClusters(spec *v1alpha1.ExternalHostSpec, accepted bool, tunnels []v1alpha1.Tunnel, known map[string]bool) []v1alpha1.HostInCluster {
	by := map[string]v1alpha1.HostInCluster{}
	for _, name := range spec.Clusters {
		in := v1alpha1.HostInCluster{ForeignCluster: name, Message: "there is no tunnel to the cluster: it is created with a contract that wants one"}
		switch {
		case !accepted:
			in.Message = "the host may not be exported"
		case !known[name]:
			in.Message = "there is no ForeignCluster of this name"
		}
		by[name] = in
	}
	for i := range tunnels {
		t := &tunnels[i].Spec
		open := 0
		in := v1alpha1.HostInCluster{ForeignCluster: t.ForeignCluster}
		for _, a := range kube.Addrs(spec.Addresses) {
			if !OpensAny(t.Allow, a) {
				continue
			}
			open++
			if alias, ok := CalledBy(t, a); ok {
				in.Addresses = append(in.Addresses, alias.String())
			}
		}
		if open == 0 {
			continue
		}
		if missing := open - len(in.Addresses); missing > 0 {
			in.Message = fmt.Sprintf("waiting for the peer to choose an alias for %d of %d addresses", missing, open)
		}
		by[t.ForeignCluster] = in
	}
	out := slices.SortedFunc(maps.Values(by), func(a, b v1alpha1.HostInCluster) int { return cmp.Compare(a.ForeignCluster, b.ForeignCluster) })
	return out[:min(len(out), maxHostClusters)]
}

// OpensAny reports whether any port of an address is open.
func OpensAny(allow []v1alpha1.Exposure, a netip.Addr) bool {
	text := a.String()
	return slices.ContainsFunc(allow, func(e v1alpha1.Exposure) bool {
		return slices.ContainsFunc(e.To, func(d v1alpha1.Destination) bool { return slices.Contains(d.Addresses, text) })
	})
}

// CalledBy returns the alias by which a peer knows a single address.
func CalledBy(t *v1alpha1.TunnelSpec, a netip.Addr) (netip.Addr, bool) {
	text := a.String()
	for _, b := range t.LocalAliasBlocks {
		p, err := netip.ParsePrefix(b.Alias)
		if err != nil {
			continue
		}
		alias := p.Masked().Addr()
		for _, address := range b.Addresses {
			if address == text && p.Contains(alias) {
				return alias, true
			}
			alias = alias.Next()
		}
	}
	return netip.Addr{}, false
}
