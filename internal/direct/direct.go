// Package direct is a provider's part in letting the pods of one cluster reach each other directly, here and at another
// provider: what it opens of those that it runs, and which pods it says it runs. Package transit says who agrees.
package direct

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// Pods is the pods that this cluster runs for contracts.
type Pods interface {
	// Served returns what Services open of a contract's pods in some namespaces, and whether that is known yet.
	Served(contract string, namespaces []string) (served map[string][]endpoints.Served, known bool)
	// Addresses returns the addresses of a contract's pods, by namespace. It waits until they are known.
	Addresses(ctx context.Context, contract string) (map[string][]netip.Addr, error)
}

// Provider is this cluster as a provider.
type Provider struct {
	// Client reads from a cache.
	Client client.Reader
	Pods   Pods
	// Named returns the address by which this cluster knows one that a peer names now.
	Named func(peer peering.ClusterID, there netip.Addr) (netip.Addr, bool)
	// Unsure reports whether what is open for a contract has to stay for now, as what is served is not known yet.
	Unsure func(contract string, known bool) bool

	mu sync.Mutex
	// named is what homes have named lately, by the ID of the peer that is told what runs here.
	named map[string]map[transit.Space]transit.Named
}

// Exposed returns what the pods that a peer runs for third clusters may reach of these clusters' pods here. A nil peer
// has none.
func (p *Provider) Exposed(ctx context.Context, peer *v1alpha1.ForeignCluster) (out []allow.Exposed, err error) {
	var all v1alpha1.ForeignClusterList
	if peer == nil {
		return nil, nil
	}
	if err := p.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	for _, home := range transit.Homes(peer, all.Items) {
		contracts, err := p.contracts(ctx, home)
		if err != nil {
			return nil, err
		}
		runs := transit.RunsFor(peer, home.Spec.ClusterID)
		known := func(there netip.Addr) (netip.Addr, bool) {
			return p.Named(peering.ClusterID(peer.Spec.ClusterID), there)
		}
		named := transit.NamespacesIn(home, peer.Spec.ClusterID)
		for i := range contracts {
			c := &contracts[i]
			served, all := p.Pods.Served(c.Name, transit.Names(named))
			for _, ns := range named {
				out = append(out, exposed(c, home, transit.Sources(ns, runs, known), ns.Name, served[ns.Name]))
			}
			if p.Unsure(c.Name, all) {
				out = append(out, allow.Exposed{Contract: c.Name, Unknown: true})
			}
		}
	}
	return out, nil
}

// exposed opens the pods that this cluster runs for a contract, in one namespace, to the pods of the same namespace in
// another cluster, which are the addresses in from.
func exposed(c *v1alpha1.Contract, home *v1alpha1.ForeignCluster, from map[bool][]netip.Addr, namespace string, served []endpoints.Served) allow.Exposed {
	x := allow.Exposed{Contract: c.Name, Namespace: namespace, Home: home.Spec.ClusterID, Until: store.EndOf(c)}
	for _, addrs := range from {
		x.From = append(x.From, addrs...)
	}
	for _, s := range served {
		if len(from[s.Addr.Is4()]) > 0 {
			x.To = append(x.To, allow.Destination{Addr: s.Addr, Port: v1alpha1.DestinationPort{Protocol: s.Protocol, Port: s.Port}})
		}
	}
	return x
}

// Running returns the pods that this cluster runs for others, for a peer that opens its own of the same clusters to them;
// see transit.Running. all is all peers.
func (p *Provider) Running(ctx context.Context, peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) ([]peering.TransitAddresses, error) {
	var failed error
	limited, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	p.mu.Lock()
	before := p.named[peer.Spec.ClusterID]
	p.mu.Unlock()
	out, named := transit.Running(peer, all, before, time.Now(), func(home *v1alpha1.ForeignCluster) map[string][]netip.Addr {
		in := map[string][]netip.Addr{}
		contracts, err := p.contracts(ctx, home)
		failed = cmp.Or(failed, err)
		for i := range contracts {
			running, err := p.Pods.Addresses(limited, contracts[i].Name)
			if err != nil {
				return nil // a state without them is better than none
			}
			for namespace, addrs := range running {
				in[namespace] = append(in[namespace], addrs...)
			}
		}
		return in
	})
	p.remember(peer.Spec.ClusterID, named, all)
	return out, failed
}

// remember records what was named when a peer was last told what runs here, and forgets peers that are gone.
func (p *Provider) remember(peer string, named map[transit.Space]transit.Named, all []v1alpha1.ForeignCluster) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.named == nil {
		p.named = map[string]map[transit.Space]transit.Named{}
	}
	p.named[peer] = named
	maps.DeleteFunc(p.named, func(id string, named map[transit.Space]transit.Named) bool {
		return len(named) == 0 || !slices.ContainsFunc(all, func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.ClusterID == id })
	})
}

// contracts returns those by which this cluster runs pods for a peer, as long as they want a tunnel.
func (p *Provider) contracts(ctx context.Context, home *v1alpha1.ForeignCluster) ([]v1alpha1.Contract, error) {
	all, err := store.ContractsWith(ctx, p.Client, peering.ClusterID(home.Spec.ClusterID), client.UnsafeDisableDeepCopy)
	return slices.DeleteFunc(all, func(c v1alpha1.Contract) bool {
		return c.Spec.Role != v1alpha1.ContractProvider || !store.Unverified(&c).Desired().Tunnel
	}), err
}
