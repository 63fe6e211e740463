package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/exposure"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/peering"
)

// exportedServices builds the announcement of the Services that peers import.
func (a *agent) exportedServices() *services.Exports {
	return &services.Exports{
		Reader: a.mgr.GetCache(), Informers: a.mgr.GetCache(),
		Offered: func(ctx context.Context, peer peering.ClusterID) ([]peering.OfferedService, <-chan struct{}, error) {
			offer, changed, err := a.provider.Offer(ctx, peer)
			return offer.Services, changed, err
		},
		May: a.contracts.mayImport,
		Own: func(ctx context.Context) (func(netip.Addr) bool, error) {
			pods, _, err := a.states.Prefixes(ctx)
			return func(addr netip.Addr) bool {
				return slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(addr) })
			}, err
		},
		Peers: a.importers, Open: a.wakePeer, Export: a.exportOf(),
	}
}

// exportOf returns a function for how Services are exported to cluster sets; nil if none are.
func (a *agent) exportOf() func(context.Context, peering.ServiceName) (*peering.ServiceExport, error) {
	if a.set == nil {
		return nil
	}
	return a.set.Export
}

// shareNamespaces builds the Multi-Cluster Services API, before peers can ask for exports; it runs with the rest.
func (a *agent) shareNamespaces(_ context.Context, on bool) error {
	if !on {
		return nil
	}
	a.set.Own, a.set.Home, a.set.Budget, a.set.Events = a.exports.Shared, a.addresses.home, a.states.Budget, a.events
	a.set.Watch = func(ctx context.Context, peer peering.ClusterID, what services.Subscription, changed func(peering.ExportedService), synced func([]peering.ServiceName)) error {
		return a.peeringClient(peer).WatchClusterSet(ctx, what.Contract, changed, synced)
	}
	var far distances
	a.set.Distance = func(peer peering.ClusterID) int { return far.update(peer, a.sessions.RoundTrip(peer), time.Now()) }
	a.set.Changed = func() {
		a.provider.ExportsChanged()
		a.exports.Changed()
	}
	return a.set.SetupWithManager(a.mgr)
}

// mayImport returns an error unless a peer may import by the signed terms of a contract.
func (c *contractCache) mayImport(peer peering.ClusterID, id string) error {
	_, contract, terms, ok := c.state(id)
	switch {
	case !ok || terms.Consumer.ID != peer:
		return peering.Errorf(peering.ReasonContractUnknown, "there is no contract %s with the caller here; ask for a new one", id)
	case !contract.Desired().Tunnel:
		return peering.Errorf(peering.ReasonContractClosed, "contract %s is closed; ask for a new one", id)
	case terms.Exposure != peering.ExposureExported:
		return peering.Errorf(peering.ReasonPolicyRefused, "contract %s does not allow imports of Services; one that is made or renewed while the provider's policy exports some does", id)
	}
	return nil
}

// importers returns the peers that have a contract by which they may import.
func (a *agent) importers(ctx context.Context) ([]peering.ClusterID, error) {
	var list v1alpha1.ContractList
	if err := a.mgr.GetClient().List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	var out []peering.ClusterID
	for i := range list.Items {
		c := &list.Items[i]
		peer := peering.ClusterID(c.Spec.PeerID)
		if c.Spec.Role == v1alpha1.ContractProvider && !slices.Contains(out, peer) && a.contracts.mayImport(peer, c.Name) == nil {
			out = append(out, peer)
		}
	}
	return out, nil
}

// exposedServices returns what a contract exposes of exported Services: their own ports, to all pods of the
// consumer.
func (a *agent) exposedServices(ctx context.Context, c *v1alpha1.Contract, own exposure.Reachable) ([]allow.Exposed, error) {
	peer := peering.ClusterID(c.Spec.PeerID)
	if c.Spec.Role != v1alpha1.ContractProvider {
		return nil, nil
	}
	if err := a.contracts.mayImport(peer, c.Name); err != nil {
		return nil, nil //nolint:nilerr // other contracts open nothing
	}
	open, err := a.exports.OpenTo(ctx, peer)
	return exposure.Ports(c.Name, open, own), err
}

// importServices builds the reconciler of ImportedServices.
func (a *agent) importServices(context.Context) error {
	imports := &services.Imports{
		Client: a.mgr.GetClient(), Direct: a.direct, ServiceAccount: client.ObjectKey{Namespace: a.cfg.Namespace, Name: ServiceAccount},
		Watch: func(ctx context.Context, peer peering.ClusterID, what services.Subscription, changed func(peering.ExportedService), _ func([]peering.ServiceName)) error {
			return a.peeringClient(peer).WatchServices(ctx, what.Contract, what.Names, changed)
		},
		Home: a.addresses.home, Budget: a.states.Budget,
	}
	return errors.Join(imports.SetupWithManager(a.mgr), a.run(imports.Run), a.run(a.exports.Run))
}
