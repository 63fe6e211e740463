package agent

import (
	"context"
	"errors"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/gauges"
	"github.com/entente-dev/entente/internal/offload"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/provider"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// peeringClient calls a peer about contracts, over its session.
func (a *agent) peeringClient(peer peering.ClusterID) client.Peering {
	return client.Peering{Conn: a.sessions.Conn(peer)}
}

func (a *agent) counterpart(peer peering.ClusterID) controller.Counterpart {
	return a.peeringClient(peer)
}

// reconcileRequests makes contracts and changes them.
func (a *agent) reconcileRequests(context.Context) error {
	a.requests = &controller.Requests{
		Client: a.mgr.GetClient(), Reader: a.direct, Identity: a.source.Identity, Events: a.events, Now: time.Now,
		Provider: func(peer peering.ClusterID) controller.Provider { return a.peeringClient(peer) },
	}
	return a.requests.SetupWithManager(a.mgr)
}

// contractCalls builds what serves calls of peers about contracts.
func (a *agent) contractCalls() *controller.ContractCalls {
	return &controller.ContractCalls{
		Client: a.mgr.GetClient(), Reader: a.direct, Identity: a.source.Identity, Budget: a.states.Budget, Events: a.events, Now: time.Now,
	}
}

// reconcileOrphans asks peers about contracts that they do not report.
func (a *agent) reconcileOrphans(context.Context) error {
	orphans := &controller.Orphans{
		Client: a.mgr.GetClient(), Reader: a.direct, Self: a.source.ID(), Counterpart: a.counterpart, Now: time.Now,
	}
	return orphans.SetupWithManager(a.mgr)
}

// reconcileContracts reconciles contracts and meters their use.
func (a *agent) reconcileContracts(ctx context.Context) error {
	contracts := &controller.Contracts{
		Client: a.mgr.GetClient(), Reader: a.direct, Identity: a.source.Identity, Nodes: a.nodes, Offloaded: offloaded{a.offloaded}, Counterpart: a.counterpart,
		Volumes: a.nodes.volumes.Usage, Wake: a.contractsWake, Events: a.events, Budget: a.states.Budget, Now: time.Now, ClockDoubt: a.clock.Doubt, Log: a.log,
	}
	return errors.Join(contracts.SetupWithManager(ctx, a.mgr), register(gauges.OfContracts(a.mgr.GetCache()), gauges.OfRequests(a.mgr.GetCache())), a.run(keepCount(contracts)))
}

// keepCount stores the contracts' meters when the agent stops.
func keepCount(contracts *controller.Contracts) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		contracts.Flush(ctx)
		return nil
	}
}

// watchOffers keeps what peers offer.
func (a *agent) watchOffers() *provider.OfferWatch {
	return &provider.OfferWatch{
		Client: a.mgr.GetClient(), Now: time.Now, Log: a.log, Budget: a.states.Budget, Offering: a.exchange.Offering, WatchOffering: a.exchange.WatchOffering,
		Watch: func(ctx context.Context, peer peering.ClusterID, changed func(peering.Offer)) error {
			return a.peeringClient(peer).WatchOffer(ctx, changed)
		},
	}
}

// contractCache reads contracts in which this cluster is the provider.
type contractCache struct {
	self     peering.ClusterID
	provider *provider.Provider
	reader   *store.ContractReader
	// homeAPI returns how pods here reach the API servers of their homes, nil if none do.
	homeAPI func() *podspec.HomeAPI
}

// state returns the contract as a value. It is read from the signed envelope, not from the readable copy.
func (c *contractCache) state(id string) (*v1alpha1.Contract, peering.Contract, peering.Terms, bool) {
	stored, ok := c.provider.Granted(id)
	if !ok {
		return nil, peering.Contract{}, peering.Terms{}, false
	}
	contract, terms, err := c.reader.Read(stored, c.self)
	if err != nil {
		return nil, peering.Contract{}, peering.Terms{}, false
	}
	return stored, contract, terms, true
}

func (c *contractCache) peer(id string) peering.ClusterID {
	if contract, ok := c.provider.Granted(id); ok {
		return peering.ClusterID(contract.Spec.PeerID)
	}
	return ""
}

func (c *contractCache) granted(id string) (offload.Contract, bool) {
	stored, contract, terms, ok := c.state(id)
	if !ok || !contract.Desired().Capacity {
		return offload.Contract{}, false
	}
	resources, err := store.ResourceList(terms.Resources)
	if err != nil {
		return offload.Contract{}, false
	}
	limits, err := store.LimitRangeOf(terms.LimitRange)
	if err != nil {
		return offload.Contract{}, false
	}
	allowed := c.provider.Permissions(context.Background(), terms.Consumer.ID, store.Tolerations(stored), terms.NodeSelector) //nolint:forbidigo // a read from a cache does not block
	var homeAPI *podspec.HomeAPI
	if allowed.HomeAPI {
		homeAPI = c.homeAPI()
	}
	return offload.Contract{
		Peer: terms.Consumer.ID, Resources: resources,
		HomeAPI: homeAPI, NetworkPolicies: allowed.NetworkPolicies,
		PodSecurity:    v1alpha1.PodSecurityLevel(terms.PodSecurity),
		NodeSelector:   terms.NodeSelector,
		Tolerations:    allowed.Tolerations,
		RuntimeClasses: terms.RuntimeClasses,
		LimitRange:     limits,
		NamespaceNames: allowed.NamespaceNames,
		MinFence:       allowed.MinFence,
		Classes:        podspec.Classes{Runtime: allowed.RuntimeClasses, Priority: allowed.PriorityClasses},
		AcceptNew:      store.AcceptsNew(stored, contract),
	}, true
}

func (c *contractCache) offered(id string) (server.OffloadContract, bool) {
	_, contract, terms, ok := c.state(id)
	if !ok {
		return server.OffloadContract{}, false
	}
	return server.OffloadContract{Consumer: terms.Consumer.ID, Closed: contract.State == peering.Closed}, true
}

// offloaded is what runs here for peers. It implements controller.Offloaded.
type offloaded struct{ *offload.Provider }

func (o offloaded) Close(ctx context.Context, c *v1alpha1.Contract) (bool, error) {
	left, err := o.CloseContract(ctx, peering.ClusterID(c.Spec.PeerID), c.Name)
	return err == nil && left.None(), err
}
