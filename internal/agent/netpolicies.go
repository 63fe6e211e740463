package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/internal/fabric"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/netpolicy"
	"github.com/entente-dev/entente/peering"
)

// followPolicies builds the consumer's half of NetworkPolicies.
func (a *agent) followPolicies() (*netpolicy.Home, error) {
	var resolvers []netip.Addr
	if conf, err := dns.ClientConfigFromFile(ownResolvConf); err == nil {
		resolvers = kube.Addrs(conf.Servers)
	}
	home := netpolicy.NewHome(netpolicy.Config{
		Client: a.kubernetes, Own: a.reachableHere, Abroad: func(peer peering.ClusterID) (out []netip.Prefix) {
			for _, m := range a.mappings(peer) {
				out = append(out, m.Alias)
			}
			return out
		},
		Resolvers: resolvers, Events: a.events, Log: a.log,
	})
	return home, a.run(home.Run)
}

// reachableHere returns addresses of this cluster that peers' pods may reach: its pods, and hosts.
func (a *agent) reachableHere() ([]netip.Prefix, error) {
	ctx := context.Background() //nolint:forbidigo // a read from a cache does not block
	out, _, err := a.states.Prefixes(ctx)
	if err != nil {
		return nil, err
	}
	hosts, err := a.hosts.Accepted(ctx)
	if err != nil {
		return nil, err
	}
	out = slices.Clone(out)
	for _, h := range hosts {
		for _, addr := range h.Addrs {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return out, nil
}

// mappings returns how this cluster knows a peer's addresses.
func (a *agent) mappings(peer peering.ClusterID) []netpolicy.Mapping {
	fc := a.addresses.peer(peer)
	if fc == nil {
		return nil
	}
	var out []netpolicy.Mapping
	for _, m := range fabric.Mappings(fc.Status.Aliases, fc.Status.AliasBlocks) {
		out = append(out, netpolicy.Mapping{Real: m.Real, Alias: m.Alias})
	}
	return out
}

// dnsPort is the port on which the pods of the resolver of consumers' names listen.
const dnsPort = 1053

// policyTerms returns a function for the terms by which NetworkPolicies of consumers are translated; service is the
// Service of the resolver of their names, empty if this cluster's own resolves them.
func (a *agent) policyTerms(service string) func(peering.ClusterID) (netpolicy.Here, error) {
	return func(peer peering.ClusterID) (netpolicy.Here, error) {
		ctx := context.Background() //nolint:forbidigo // reads from caches do not block, and other reads have a timeout
		own, err := a.own.get(ctx)
		if err != nil {
			return netpolicy.Here{}, err
		}
		here := netpolicy.Here{Mappings: a.mappings(peer), Own: own}
		opened, named := a.addresses.places(peer)
		here.Mappings, here.Sources = append(here.Mappings, opened...), named
		if service == "" {
			// The labels of most clusters; with other labels pods resolve no names, which is noticed.
			here.Resolver = netpolicy.Resolver{Namespace: metav1.NamespaceSystem, Labels: map[string]string{"k8s-app": "kube-dns"}, Port: 53}
			return here, nil
		}
		var s corev1.Service
		key := ctrlclient.ObjectKey{Namespace: a.cfg.Namespace, Name: service}
		if err := a.mgr.GetCache().Get(ctx, key, &s); err != nil {
			return netpolicy.Here{}, fmt.Errorf("read Service %s: %w", key, err)
		}
		here.Resolver = netpolicy.Resolver{Namespace: s.Namespace, Labels: s.Spec.Selector, Port: dnsPort}
		if address, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
			here.Resolver.Address = address
		}
		return here, nil
	}
}
