package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/exposure"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// exposed returns what a peer may reach: as a consumer the pods that it runs here, as a provider what our pods
// there need.
func (a *agent) exposed(ctx context.Context, peer peering.ClusterID) ([]allow.Exposed, error) {
	opened, err := a.opened(ctx)
	own := exposure.Reachable{Opened: opened}
	if err != nil {
		return nil, err
	}
	if own.Pods, _, err = a.states.Prefixes(ctx); err != nil {
		return nil, err
	}
	if own.Hosts, err = a.hosts.Accepted(ctx); err != nil {
		return nil, err
	}
	contracts, err := store.ContractsWith(ctx, a.mgr.GetClient(), peer, ctrlclient.UnsafeDisableDeepCopy) // they are only read
	if err != nil {
		return nil, err
	}
	own.Thirds = map[string]map[string][]netip.Addr{}
	for _, third := range a.passesTo(ctx, peer) {
		own.Thirds[third] = a.nodes.podsIn(peering.ClusterID(third))
	}
	var out []allow.Exposed
	if fc := a.addresses.peer(peer); fc != nil {
		out = allow.ExposedHosts(own.Hosts, fc.Name)
	}
	for i := range contracts {
		c := &contracts[i]
		if !store.Unverified(c).Desired().Tunnel {
			continue
		}
		open, known := a.exposedBy(c, own)
		out = append(out, open...)
		exported, err := a.exposedServices(ctx, c, own)
		if err != nil {
			return nil, err
		}
		out = append(out, exported...)
		if a.startup.Unsure(c.Name, known, time.Now()) {
			out = append(out, allow.Exposed{Contract: c.Name, Unknown: true})
		}
	}
	directly, err := a.directly.Exposed(ctx, a.addresses.peer(peer))
	return append(out, directly...), err
}

// opened returns the namespaces whose Services are open to pods of others.
func (a *agent) opened(ctx context.Context) (exposure.Opened, error) {
	var all v1alpha1.NamespaceOffloadingList
	err := a.mgr.GetClient().List(ctx, &all, ctrlclient.UnsafeDisableDeepCopy) // they are only read
	return exposure.OpenedBy(all.Items), err
}

// namespacesChanged notifies the virtual nodes that the offloaded namespaces may have changed, and updates the tunnels
// if what they open did.
func (a *agent) namespacesChanged() {
	a.nodes.namespacesChanged()
	if now, err := a.opened(context.Background()); err == nil && a.openings.Changed(now) { //nolint:forbidigo // a read from a cache does not block
		a.wakePeers()
	}
}

// servedChanged updates the tunnels to the peers that a consumer names as those whose pods reach its pods here.
func (a *agent) servedChanged(home peering.ClusterID) {
	if fc := a.addresses.peer(home); fc != nil {
		for _, third := range transit.Through(fc) {
			a.wakePeer(peering.ClusterID(third))
		}
	}
}

// reachedThrough returns the peers through which this cluster reaches another one.
func (a *agent) reachedThrough(third peering.ClusterID) (out []peering.ClusterID) {
	var all v1alpha1.ForeignClusterList
	if err := a.mgr.GetClient().List(context.Background(), &all, ctrlclient.UnsafeDisableDeepCopy); err != nil { //nolint:forbidigo // a read from a cache does not block
		return nil
	}
	for i := range all.Items {
		if slices.Contains(transit.Through(&all.Items[i]), string(third)) {
			out = append(out, peering.ClusterID(all.Items[i].Spec.ClusterID))
		}
	}
	return out
}

// passesTo returns the peers that another one reaches through this cluster.
func (a *agent) passesTo(ctx context.Context, peer peering.ClusterID) []string {
	var list v1alpha1.ForeignClusterList
	fc := a.addresses.peer(peer)
	if fc == nil || fc.Spec.Transit == nil || a.mgr.GetClient().List(ctx, &list, ctrlclient.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return transit.Agreed(fc, list.Items)
}

// exposureChanged updates the tunnel to a peer, and the tunnels to the peers that reach this cluster's pods there
// through it.
func (a *agent) exposureChanged(peer peering.ClusterID) {
	a.wakePeer(peer)
	for _, third := range a.passesTo(context.Background(), peer) { //nolint:forbidigo // a read from a cache does not block
		a.wakePeer(peering.ClusterID(third))
	}
}

// exposedBy returns what one contract exposes, as far as that is known, and whether that is all.
func (a *agent) exposedBy(c *v1alpha1.Contract, own exposure.Reachable) ([]allow.Exposed, bool) {
	if c.Spec.Role != v1alpha1.ContractProvider {
		return a.nodes.exposed(c.Name, own)
	}
	pods, known := a.offloaded.Exposed(c.Name)
	open := allow.Exposed{Contract: c.Name, AnySource: true}
	for _, addr := range pods {
		open.To = append(open.To, allow.Destination{Addr: addr}) // they are the peer's own
	}
	return []allow.Exposed{open}, known
}
