package clusterset

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

// side is one of the clusters that export a Service of a name.
type side struct {
	cluster peering.ClusterID
	// own: this cluster.
	own bool
	// service is the Service in that cluster, with its export.
	service peering.ExportedService
	// resolve returns the address of an endpoint as seen from here.
	resolve endpoints.Resolver
	// endpoints is when its endpoints are used, by the policy that selects it.
	endpoints api.EndpointPreference
	// distance is the class of the round trip to it, in milliseconds; 0 if it is not known.
	distance int
	// down: the tunnel is known to pass no traffic, so no endpoint is used.
	down bool
}

// merged is the result of merging all exports of a name.
type merged struct {
	headless bool
	ports    []peering.ServicePort
	// affinity has the settings of session affinity.
	affinity peering.ServiceObject
	// export has labels, annotations and the traffic distribution.
	export peering.ServiceExport
	// conflicts is in what the exports differ.
	conflicts []mcs.ServiceExportConditionReason
}

// order puts the cluster first that decides where clusters differ: the one with the oldest export, and of two of
// the same second the one with the smaller ID. All clusters compute the same order.
func order(sides []side) {
	slices.SortFunc(sides, func(a, b side) int {
		return cmp.Or(a.service.Export.Created.Compare(b.service.Export.Created), cmp.Compare(a.cluster, b.cluster))
	})
}

// merge merges exports by the rules of KEP-1645: ports are united, and the first decides about all else. There is
// at least one, and they are in order.
func merge(sides []side) merged {
	first := sides[0].service
	out := merged{
		headless: first.Service.Headless, ports: mergePorts(sides), export: *first.Export,
		affinity: peering.ServiceObject{SessionAffinity: first.Service.SessionAffinity, SessionAffinitySeconds: first.Service.SessionAffinitySeconds},
	}
	differ := func(reason mcs.ServiceExportConditionReason, differs func(a, b peering.ExportedService) bool) {
		if slices.ContainsFunc(sides[1:], func(s side) bool { return differs(first, s.service) }) {
			out.conflicts = append(out.conflicts, reason)
		}
	}
	differ(mcs.ServiceExportReasonPortConflict, func(a, b peering.ExportedService) bool { return !samePorts(a.Service.Ports, b.Service.Ports) })
	differ(mcs.ServiceExportReasonTypeConflict, func(a, b peering.ExportedService) bool { return a.Service.Headless != b.Service.Headless })
	differ(mcs.ServiceExportReasonSessionAffinityConflict, func(a, b peering.ExportedService) bool {
		return a.Service.SessionAffinity != b.Service.SessionAffinity
	})
	differ(mcs.ServiceExportReasonSessionAffinityConfigConflict, func(a, b peering.ExportedService) bool {
		return a.Service.SessionAffinity == b.Service.SessionAffinity && a.Service.SessionAffinitySeconds != b.Service.SessionAffinitySeconds
	})
	differ(mcs.ServiceExportReasonLabelsConflict, func(a, b peering.ExportedService) bool { return !maps.Equal(a.Export.Labels, b.Export.Labels) })
	differ(mcs.ServiceExportReasonAnnotationsConflict, func(a, b peering.ExportedService) bool {
		return !maps.Equal(a.Export.Annotations, b.Export.Annotations)
	})
	differ(mcs.ServiceExportReasonInternalTrafficPolicyConflict, func(a, b peering.ExportedService) bool {
		return a.Export.InternalTrafficPolicy != b.Export.InternalTrafficPolicy
	})
	differ(mcs.ServiceExportReasonTrafficDistributionConflict, func(a, b peering.ExportedService) bool {
		return a.Export.TrafficDistribution != b.Export.TrafficDistribution
	})
	return out
}

// mergePorts unites ports. It leaves out ports that cannot be in a Service together with those of clusters that
// come first: with the same name, with the same number and protocol, or without a name beside others.
func mergePorts(sides []side) []peering.ServicePort {
	var out []peering.ServicePort
	for _, s := range sides {
		for _, p := range s.service.Service.Ports {
			taken := slices.ContainsFunc(out, func(o peering.ServicePort) bool {
				return o.Name == p.Name || o.Port == p.Port && o.Protocol == p.Protocol || o.Name == "" || p.Name == ""
			})
			if !taken && len(out) < peering.MaxServicePorts {
				out = append(out, p)
			}
		}
	}
	return out
}

func samePorts(a, b []peering.ServicePort) bool {
	byName := func(a, b peering.ServicePort) int { return cmp.Compare(a.Name, b.Name) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), byName), slices.SortedFunc(slices.Values(b), byName))
}

// shared returns the ports of a cluster that are ports of the merged Service, as the merged Service has them. A
// different port of the same name in that cluster is not reached.
func (m merged) shared(ports []peering.ServicePort) []peering.ServicePort {
	var out []peering.ServicePort
	for _, p := range m.ports {
		if slices.ContainsFunc(ports, func(o peering.ServicePort) bool {
			return o.Name == p.Name && o.Port == p.Port && o.Protocol == p.Protocol
		}) {
			out = append(out, p)
		}
	}
	return out
}

// reason joins the conflicts to the reason of a condition.
func (m merged) reason() string {
	texts := make([]string, len(m.conflicts))
	for i, c := range m.conflicts {
		texts[i] = string(c)
	}
	return strings.Join(texts, ",")
}
