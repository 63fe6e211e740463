package clusterset

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

const (
	// AnnotationDerived on a ServiceImport names the Service that has its address here.
	AnnotationDerived = "multicluster.kubernetes.io/derived-service"
)

// snapshot is everything that decides about a Service of a name.
type snapshot struct {
	name peering.ServiceName
	// export and service are this cluster's own; nil if there is none.
	export  *mcs.ServiceExport
	service *corev1.Service
	// shared: some policy shares the namespace.
	shared bool
	// invalid is why the export cannot cross, for users; empty if it can.
	invalid string
	// sides is the clusters that export it.
	sides []side
	// waiting is the peers that have not sent yet what they export.
	waiting map[peering.ClusterID]bool
	// down is those of them whose tunnel is known to pass no traffic.
	down map[peering.ClusterID]bool
	// have is the ServiceImport; nil if there is none.
	have *mcs.ServiceImport
}

// plan is what to do for a Service of a name.
type plan struct {
	// conditions are those of the export, if there is one.
	conditions []metav1.Condition
	// taken: a ServiceImport of another owner has the name.
	taken bool
	// sides are those that count, in order; without any there is no ServiceImport.
	sides []side
	merged
	// frozen: the ServiceImport stays as it is except for endpoints: the peers in kept exported, and have not sent yet
	// whether they still do. The value says whether their endpoints stay, too.
	frozen bool
	kept   map[string]bool
}

// decide decides about a Service of a name.
func decide(s snapshot) plan {
	p := plan{sides: slices.Clone(s.sides), kept: map[string]bool{}, taken: s.have != nil && s.have.Labels[api.LabelManaged] != api.Manager}
	order(p.sides)
	if len(p.sides) > 0 {
		p.merged = merge(p.sides)
	}
	if s.have != nil && !p.taken {
		for _, c := range s.have.Status.Clusters {
			if peer := peering.ClusterID(c.Cluster); s.waiting[peer] {
				p.frozen, p.kept[c.Cluster] = true, !s.down[peer]
			}
		}
	}
	if p.frozen {
		conflicts := p.conflicts
		p.merged = mergedOf(s.have)
		p.conflicts = conflicts
	}
	if s.export != nil {
		p.conditions = conditions(s, p)
	}
	return p
}

// mergedOf reads back what decides about endpoints of the merged exports from a ServiceImport.
func mergedOf(i *mcs.ServiceImport) merged {
	out := merged{headless: i.Spec.Type == mcs.Headless, export: peering.ServiceExport{Annotations: i.Annotations}}
	for _, port := range i.Spec.Ports {
		out.ports = append(out.ports, endpoints.ReadPorts([]corev1.ServicePort{{Name: port.Name, Protocol: port.Protocol, AppProtocol: port.AppProtocol, Port: port.Port}})...)
	}
	return out
}

// conditions returns the conditions of an export.
func conditions(s snapshot, p plan) []metav1.Condition {
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	newCondition := func(kind mcs.ServiceExportConditionType, status metav1.ConditionStatus, reason mcs.ServiceExportConditionReason, message string) metav1.Condition {
		c := store.Condition(string(kind), status, string(reason), message)
		c.ObservedGeneration = s.export.Generation
		return c
	}
	ready := newCondition(mcs.ServiceExportConditionReady, yes, mcs.ServiceExportReasonReady, "peers that share the namespace may import it")
	valid := newCondition(mcs.ServiceExportConditionValid, yes, mcs.ServiceExportReasonValid, "")
	wrong := func(reason mcs.ServiceExportConditionReason, message string) {
		valid = newCondition(mcs.ServiceExportConditionValid, no, reason, message)
		ready = newCondition(mcs.ServiceExportConditionReady, no, mcs.ServiceExportReasonFailed, message)
	}
	switch {
	case s.service == nil:
		wrong(mcs.ServiceExportReasonNoService, fmt.Sprintf("namespace %s has no Service %s", s.name.Namespace, s.name.Name))
	case s.service.Spec.Type == corev1.ServiceTypeExternalName:
		wrong(mcs.ServiceExportReasonInvalidServiceType, "a Service of type ExternalName has no endpoints that another cluster could reach")
	case s.invalid != "":
		wrong("NotExported", s.invalid)
	case !s.shared:
		ready = newCondition(mcs.ServiceExportConditionReady, no, mcs.ServiceExportReasonPending, "no PeeringPolicy shares the namespace: the clusterSet of one has to select it")
	case p.taken:
		ready = newCondition(mcs.ServiceExportConditionReady, no, mcs.ServiceExportReasonFailed, "the namespace has a ServiceImport of that name that is not Entente's: delete it")
	}
	conflict := newCondition(mcs.ServiceExportConditionConflict, no, mcs.ServiceExportReasonNoConflicts, "")
	if len(p.conflicts) > 0 {
		conflict = newCondition(mcs.ServiceExportConditionConflict, yes, mcs.ServiceExportConditionReason(p.reason()),
			fmt.Sprintf("of %d clusters that export it, that of %s is the oldest export, which wins; their ports are united", len(p.sides), p.sides[0].cluster))
	}
	return []metav1.Condition{valid, ready, conflict}
}

// serviceImport returns the desired ServiceImport: its labels, annotations and spec without addresses.
func (p plan) serviceImport(name peering.ServiceName) *mcs.ServiceImport {
	out := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, Labels: maps.Clone(p.export.Labels), Annotations: maps.Clone(p.export.Annotations),
	}}
	metav1.SetMetaDataLabel(&out.ObjectMeta, api.LabelManaged, api.Manager)
	out.Spec.Type = mcs.ClusterSetIP
	if p.headless {
		out.Spec.Type = mcs.Headless
	} else {
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, AnnotationDerived, endpoints.SetName(name.Name))
	}
	out.Spec.Ports = []mcs.ServicePort{}
	for _, port := range endpoints.Ports(p.ports) {
		out.Spec.Ports = append(out.Spec.Ports, mcs.ServicePort{Name: port.Name, Protocol: port.Protocol, AppProtocol: port.AppProtocol, Port: port.Port})
	}
	var spec corev1.ServiceSpec
	endpoints.Affinity(&spec, p.affinity)
	out.Spec.SessionAffinity, out.Spec.SessionAffinityConfig = spec.SessionAffinity, spec.SessionAffinityConfig
	if v := p.export.InternalTrafficPolicy; v != "" {
		out.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicy(v))
	}
	if v := p.export.TrafficDistribution; v != "" {
		out.Spec.TrafficDistribution = new(v)
	}
	return out
}

// clusters returns the clusters of a ServiceImport, including those that are kept.
func (p plan) clusters() []mcs.ClusterStatus {
	names := slices.Collect(maps.Keys(p.kept))
	for _, s := range p.sides {
		if !p.kept[string(s.cluster)] {
			names = append(names, string(s.cluster))
		}
	}
	slices.Sort(names)
	var out []mcs.ClusterStatus
	for _, n := range names {
		out = append(out, mcs.ClusterStatus{Cluster: n})
	}
	return out
}

// derived returns the Service that has the address of a ServiceImport. Its owner's traffic policies apply except
// for Local: endpoints of other clusters are on no node of this one.
func derived(i *mcs.ServiceImport) *corev1.Service {
	out := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: i.Namespace, Name: endpoints.SetName(i.Name), OwnerReferences: []metav1.OwnerReference{owner(i)},
			Labels: map[string]string{api.LabelManaged: api.Manager, mcs.LabelServiceName: i.Name},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
			SessionAffinity: i.Spec.SessionAffinity, SessionAffinityConfig: i.Spec.SessionAffinityConfig,
			TrafficDistribution: i.Spec.TrafficDistribution,
		},
	}
	for _, p := range i.Spec.Ports {
		out.Spec.Ports = append(out.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
	}
	return out
}

func owner(i *mcs.ServiceImport) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: mcs.GroupVersion.String(), Kind: "ServiceImport", Name: i.Name, UID: i.UID, Controller: new(true)}
}

// leadsTo reports whether the address of the Service leads to the endpoints of a cluster, this one or another.
// Clusters that it does not lead to have EndpointSlices of other names, without the Service's label, so that any
// kube-proxy ignores them, and uses those with the label once the last endpoint that it leads to is not ready.
func (p plan) leadsTo(s side) bool {
	preference := s.endpoints
	switch sent := api.EndpointPreference(p.export.Annotations[api.AnnotationEndpoints]); sent {
	case api.EndpointsAll, api.EndpointsOwnFirst, api.EndpointsNearest:
		preference = sent
	}
	switch preference {
	case api.EndpointsOwnFirst:
		return s.own || !slices.ContainsFunc(p.sides, func(o side) bool { return o.own && p.serves(o) })
	case api.EndpointsNearest:
		return !slices.ContainsFunc(p.sides, func(o side) bool { return o.nearer(s) && p.serves(o) })
	case api.EndpointsAll:
	}
	return true
}

// serves reports whether a cluster has a ready endpoint to which the address could lead.
func (p plan) serves(s side) bool {
	ports := s.service.Service.Ports
	if s.down || len(ports) > 0 && len(p.shared(ports)) == 0 {
		return false
	}
	return slices.ContainsFunc(s.service.Service.Endpoints, func(e peering.ServiceEndpoint) bool {
		_, reached := s.resolve(e)
		return e.Ready && reached
	})
}

// nearer reports whether a cluster is nearer than another one: this one is nearest, and those at an unknown
// distance are furthest. Two at the same distance are both used.
func (s side) nearer(o side) bool {
	switch {
	case s.own || o.own:
		return s.own && !o.own
	case s.distance == 0 || o.distance == 0:
		return s.distance != 0 && o.distance == 0
	}
	return s.distance < o.distance
}

// unused ends the name of an EndpointSlice to which the Service's address does not lead.
const unused = "-unused"

// slicesOf returns the EndpointSlices of a cluster. Those of a headless Service belong to no Service of this
// cluster: only DNS reads them.
func (p plan) slicesOf(s side, i *mcs.ServiceImport) []*discoveryv1.EndpointSlice {
	object := s.service.Service
	object.Headless, object.Ports = p.headless, p.shared(object.Ports)
	if s.down || len(object.Ports) == 0 && len(s.service.Service.Ports) > 0 {
		return nil
	}
	of := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: endpoints.SetName(i.Name)}}
	list, _ := endpoints.Slices(of, object, s.resolve)
	sum := sha256.Sum256([]byte(s.cluster))
	for _, slice := range list {
		slice.Name += "-" + endpoints.Short(sum[:])
		slice.OwnerReferences = []metav1.OwnerReference{owner(i)}
		slice.Labels[mcs.LabelServiceName], slice.Labels[mcs.LabelSourceCluster] = i.Name, string(s.cluster)
		if slice.Labels[api.LabelPeer] = string(s.cluster); s.own {
			delete(slice.Labels, api.LabelPeer)
		}
		if p.headless {
			delete(slice.Labels, discoveryv1.LabelServiceName)
		} else if !p.leadsTo(s) {
			// Another one, since kube-proxy keeps the endpoints of one whose label is removed until it is deleted.
			slice.Name += unused
			delete(slice.Labels, discoveryv1.LabelServiceName)
		}
	}
	return list
}

// families returns the IP families of EndpointSlices, IPv4 first.
func families(list []*discoveryv1.EndpointSlice) (out []corev1.IPFamily) {
	for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if slices.ContainsFunc(list, func(s *discoveryv1.EndpointSlice) bool { return string(s.AddressType) == string(f) }) {
			out = append(out, f)
		}
	}
	return out
}

// asIs resolves the endpoints of this cluster.
func asIs(e peering.ServiceEndpoint) (netip.Addr, bool) {
	a, err := netip.ParseAddr(e.Address)
	return a.Unmap(), err == nil
}
