package offload

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

// Served returns what the Services of some of a contract's namespaces open of the contract's pods here. Namespaces are
// named as at home. Pods are known by their UIDs: no address that the consumer names is among it. known is false until
// this cluster's pods are known, a moment after a start.
func (p *Provider) Served(contract string, namespaces []string) (out map[string][]endpoints.Served, known bool) {
	pods, known := p.addresses(contract)
	out = map[string][]endpoints.Served{}
	for namespace, in := range pods {
		if ns := p.inv.space(namespace); ns != nil && slices.Contains(namespaces, ns.Labels[api.LabelOriginNamespace]) {
			out[ns.Labels[api.LabelOriginNamespace]] = p.servedIn(namespace, in)
		}
	}
	return out, known
}

// Addresses returns the addresses of a contract's live pods, by their namespace's name at home. It waits until this
// cluster's pods are known, a moment after a start.
func (p *Provider) Addresses(ctx context.Context, contract string) (map[string][]netip.Addr, error) {
	if err := p.await(ctx); err != nil {
		return nil, err
	}
	out := map[string][]netip.Addr{}
	pods, _ := p.addresses(contract)
	for namespace, in := range pods {
		if ns := p.inv.space(namespace); ns != nil {
			out[ns.Labels[api.LabelOriginNamespace]] = slices.Concat(slices.Collect(maps.Values(in))...)
		}
	}
	return out, nil
}

// addresses returns the addresses of a contract's live pods, by their namespaces here and their UIDs at home. known is
// false until this cluster's pods are known. Pods in their node's network have no address of their own.
func (p *Provider) addresses(contract string) (out map[string]map[string][]netip.Addr, known bool) {
	if !p.inv.known() {
		return nil, false
	}
	out, known = map[string]map[string][]netip.Addr{}, true
	for _, o := range p.inv.of(contract) {
		if !live(o) {
			continue
		}
		pod, seen := p.inv.pod(o.Namespace, o.Name)
		if known = known && seen; pod == nil || pod.Spec.HostNetwork || ended(pod.Status.Phase) || string(pod.UID) != o.Status.PodUID {
			continue
		}
		if out[o.Namespace] == nil {
			out[o.Namespace] = map[string][]netip.Addr{}
		}
		for _, ip := range append(slices.Clone(pod.Status.PodIPs), corev1.PodIP{IP: pod.Status.PodIP}) {
			if a, err := netip.ParseAddr(ip.IP); err == nil && !slices.Contains(out[o.Namespace][o.Spec.OriginUID], a) {
				out[o.Namespace][o.Spec.OriginUID] = append(out[o.Namespace][o.Spec.OriginUID], a)
			}
		}
	}
	return out, known
}

// servedIn returns the ports of pods, by their UIDs at home, that are endpoints of the Services of a namespace.
func (p *Provider) servedIn(namespace string, pods map[string][]netip.Addr) (out []endpoints.Served) {
	for _, svc := range indexed[*corev1.Service](p.inv.services, cache.NamespaceIndex, namespace) {
		if svc.DeletionTimestamp != nil {
			continue
		}
		for _, open := range p.openings.Of(svc, func() ([]byte, bool) { return p.checkNote(svc) }) {
			for _, a := range pods[open.PodUID] {
				out = append(out, endpoints.Served{Addr: a, Protocol: open.Protocol, Port: open.Port})
			}
		}
	}
	return out
}

// servedChanged calls Config.Served for the consumer of a namespace.
func (p *Provider) servedChanged(namespace string) {
	if ns := p.inv.space(namespace); ns != nil && p.cfg.Served != nil {
		p.cfg.Served(peering.ClusterID(ns.Labels[api.LabelPeer]))
	}
}
