package agent

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/browse"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/sightings"
)

// discovery builds the checks of which addresses may be dialled, and the browsing of domains.
func (a *agent) discovery(context.Context) error {
	a.own = &lastKnown[[]netip.Prefix]{now: time.Now, log: a.log, what: "which addresses no other cluster may name", ask: func(ctx context.Context) ([]netip.Prefix, error) {
		own, err := ownRanges(ctx, a.mgr.GetCache(), a.direct, a.states.Reserved, &a.cfg)
		if err != nil {
			return nil, err
		}
		pods, _, err := a.states.Prefixes(ctx) // also those that are learnt
		return append(own, pods...), err
	}}
	a.found, a.foundChanged = &browse.Domains{Now: time.Now, Log: a.log, Dialable: a.dialable}, notify.New()
	return nil
}

// dialable returns those of the discovered endpoints that may be dialled now.
func (a *agent) dialable(endpoints []string) []string {
	own, err := a.own.get(context.Background()) //nolint:forbidigo // it has a timeout
	if err != nil {
		return nil
	}
	return discovery.DialableEndpoints(endpoints, own...)
}

func (a *agent) mayDial(endpoint string) bool { return len(a.dialable([]string{endpoint})) > 0 }

// browseDomains discovers clusters in domains. Malformed configuration is reported and left out: it does not end
// any peering.
func (a *agent) browseDomains(_ context.Context, cfg domainsConfig) error {
	a.found.Browser, a.problems = browse.NewBrowser(cfg.Domains, cfg.Resolvers, func(dnssd.Domain) { a.foundChanged.Notify() })
	if len(a.problems) > 0 {
		a.log.Error("the configuration of discovery in domains has problems", "problems", a.problems)
	}
	if a.found.Browser == nil {
		return nil
	}
	return a.run(a.found.Run)
}

// watchLANs collects what the fabrics of nodes find on LANs.
func (a *agent) watchLANs(ctx context.Context) error {
	a.lans = &browse.LANs{Reader: a.mgr.GetCache(), Now: time.Now, Log: a.log, Dialable: a.dialable}
	_, err := kube.OnChange(ctx, a.mgr.GetCache(), &v1alpha1.NodeDiscovery{}, kube.NewVersion, a.foundChanged.Notify)
	return err
}

// recordSightings records in ForeignClusters what discovery finds. With discovery off, former sightings are
// removed.
func (a *agent) recordSightings(context.Context) error {
	snapshot := a.found.Snapshot
	if a.lans != nil {
		snapshot = browse.All(a.found.Snapshot, a.lans.Snapshot)
	}
	return a.mgr.Add(&sightings.Sightings{
		Client: a.mgr.GetClient(), Self: a.source.ID(), Events: a.events, Log: a.log, Now: time.Now, Budget: a.states.Budget, Snapshot: snapshot, Wake: a.foundChanged,
	})
}

// ownRanges returns addresses that this cluster does not dial when others name them: its API server, its Services
// and pods, its nodes, and its peers' pods. Nodes are cached already.
func ownRanges(ctx context.Context, cached, direct ctrlclient.Reader, services controller.Reserved, cfg *Config) ([]netip.Prefix, error) {
	out, err := closedRanges(ctx, direct, services, cfg)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := cached.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, addresses := nodeRanges(nodes.Items)
	return slices.Concat(out, addresses, pods), nil
}

// nodeRanges returns the prefixes of nodes' pods, and the nodes' own addresses.
func nodeRanges(nodes []corev1.Node) (pods, addresses []netip.Prefix) {
	for i := range nodes {
		for _, address := range nodes[i].Status.Addresses {
			for _, addr := range kube.Addrs([]string{address.Address}) {
				addresses = append(addresses, netip.PrefixFrom(addr.WithZone(""), addr.BitLen()))
			}
		}
		pods = append(pods, kube.Prefixes(nodes[i].Spec.PodCIDRs)...)
	}
	return pods, addresses
}

// closedRanges is ownRanges without what nodes have. Only the EndpointSlices of the API server are needed, so they
// are read without a cache.
func closedRanges(ctx context.Context, direct ctrlclient.Reader, services controller.Reserved, cfg *Config) ([]netip.Prefix, error) {
	reserved, err := services(ctx)
	if err != nil {
		return nil, err
	}
	out := slices.Concat(reserved, cfg.PodCIDRs, cfg.AliasPool)
	add := func(texts ...string) {
		for _, addr := range kube.Addrs(texts) {
			addr = addr.WithZone("")
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	add(cfg.PodIP.String(), cfg.Kubernetes.Host)
	if u, err := url.Parse(cfg.Kubernetes.Host); err == nil {
		add(u.Hostname())
	}
	var endpoints discoveryv1.EndpointSliceList
	if err := direct.List(ctx, &endpoints, ctrlclient.InNamespace("default"), ctrlclient.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}); err != nil {
		return nil, fmt.Errorf("list the endpoints of the API server: %w", err)
	}
	for i := range endpoints.Items {
		for _, e := range endpoints.Items[i].Endpoints {
			add(e.Addresses...)
		}
	}
	return out, nil
}
