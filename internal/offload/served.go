package offload

import (
	"encoding/json"
	"math"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

// Served is a port on which a pod that runs here is an endpoint of a Service of its own namespace.
type Served struct {
	Addr     netip.Addr
	Protocol corev1.Protocol
	Port     int32
}

// Served returns what the Services of a contract's namespaces open of the contract's pods here, by the namespace's name
// at home. Pods are known by their UIDs: no address that the consumer names is among it. known is false until
// this cluster's pods are known, a moment after a start.
func (p *Provider) Served(contract string) (out map[string][]Served, known bool) {
	if !p.inv.known() {
		return nil, false
	}
	known = true
	pods := map[string]map[string][]netip.Addr{} // by namespace and UID at home
	for _, o := range p.inv.of(contract) {
		if !live(o) {
			continue
		}
		pod, seen := p.inv.pod(o.Namespace, o.Name)
		if known = known && seen; pod == nil || pod.Spec.HostNetwork || ended(pod.Status.Phase) || string(pod.UID) != o.Status.PodUID {
			continue
		}
		if pods[o.Namespace] == nil {
			pods[o.Namespace] = map[string][]netip.Addr{}
		}
		for _, ip := range pod.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				pods[o.Namespace][o.Spec.OriginUID] = append(pods[o.Namespace][o.Spec.OriginUID], a)
			}
		}
	}
	out = map[string][]Served{}
	for namespace, in := range pods {
		if ns := p.inv.space(namespace); ns != nil {
			out[ns.Labels[api.LabelOriginNamespace]] = p.servedIn(namespace, in)
		}
	}
	return out, known
}

// servedIn returns the ports of pods, by their UIDs at home, that are endpoints of the Services of a namespace.
func (p *Provider) servedIn(namespace string, pods map[string][]netip.Addr) (out []Served) {
	for _, svc := range indexed[*corev1.Service](p.inv.services, cache.NamespaceIndex, namespace) {
		var in peering.ServiceObject
		if svc.DeletionTimestamp != nil {
			continue
		}
		note, ok := p.checkNote(svc)
		if !ok || json.Unmarshal(note, &in) != nil {
			continue
		}
		for _, e := range in.Endpoints {
			for _, a := range pods[e.PodUID] {
				for _, port := range in.Ports {
					if number, ok := e.Ports[port.Name]; ok && number > 0 && number <= math.MaxUint16 {
						out = append(out, Served{a, endpoints.Protocol(port.Protocol), number})
					}
				}
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
