package endpoints

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// Hint sets on the ready endpoints of an EndpointSlice the hints that Kubernetes sets for a Service with this
// trafficDistribution: their zone, and their node. An endpoint in another cluster has neither, and gets none: then
// kube-proxy uses all, wherever they are.
func Hint(part *discoveryv1.EndpointSlice, trafficDistribution string) {
	nodes := trafficDistribution == corev1.ServiceTrafficDistributionPreferSameNode
	if !nodes && trafficDistribution != corev1.ServiceTrafficDistributionPreferSameZone && trafficDistribution != corev1.ServiceTrafficDistributionPreferClose {
		return
	}
	for i := range part.Endpoints {
		e := &part.Endpoints[i]
		if !ptr.Deref(e.Conditions.Ready, false) {
			continue
		}
		hints := discoveryv1.EndpointHints{}
		if e.Zone != nil {
			hints.ForZones = []discoveryv1.ForZone{{Name: *e.Zone}}
		}
		if e.NodeName != nil && nodes {
			hints.ForNodes = []discoveryv1.ForNode{{Name: *e.NodeName}}
		}
		if hints.ForZones != nil || hints.ForNodes != nil {
			e.Hints = &hints
		}
	}
}
