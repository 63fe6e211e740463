package endpoints

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// The labels of the Multi-Cluster Services API on EndpointSlices: the name of their ServiceImport, and the cluster
// of their endpoints. A Service that has a ServiceImport's address has the first one, too.
const (
	labelSetName    = "multicluster.kubernetes.io/service-name"
	labelSetCluster = "multicluster.kubernetes.io/source-cluster"
)

// SetName returns the name of the Service that has a ServiceImport's address, under which a ServiceImport without
// one crosses, too. An exported Service is unlikely to have this name.
func SetName(serviceImport string) string {
	sum := sha256.Sum256([]byte(serviceImport))
	return "clusterset-" + Short(sum[:])
}

// SetOf returns the name of the ServiceImport for which the agent made a Service or an EndpointSlice; empty if it
// did not.
func SetOf(o metav1.Object) string {
	if labels := o.GetLabels(); labels[api.LabelManaged] == api.Manager {
		return labels[labelSetName]
	}
	return ""
}

// SetService is the form in which a ServiceImport crosses.
type SetService struct {
	// Name and UID are of the object that crosses: the Service that has the address, or without one, the name that
	// it would have and the UID of the ServiceImport.
	Name, UID string
	peering.ServiceObject
}

// OfSet returns what crosses to a provider of the ServiceImports of a namespace, by the Services and EndpointSlices
// that were made for them, sorted by name. Only endpoints of this cluster and of the provider itself cross: the
// provider does not reach those of a third cluster, or not by addresses of this one.
func OfSet(services []*corev1.Service, list []*discoveryv1.EndpointSlice, provider string) []SetService {
	found := map[string]*SetService{}
	for _, s := range services {
		if SetOf(s) != "" {
			o := &SetService{Name: s.Name, UID: string(s.UID), ServiceObject: peering.ServiceObject{SetName: s.Labels[labelSetName], Ports: ReadPorts(s.Spec.Ports)}}
			ReadAffinity(s.Spec, &o.ServiceObject)
			found[o.SetName] = o
		}
	}
	of := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range list {
		name, peer := SetOf(s), s.Labels[api.LabelPeer]
		if name == "" || peer != "" && peer != provider {
			continue
		}
		owner := metav1.GetControllerOf(s)
		if _, headless := s.Labels[corev1.IsHeadlessService]; headless && owner != nil && found[name] == nil {
			found[name] = &SetService{Name: SetName(name), UID: string(owner.UID), ServiceObject: peering.ServiceObject{
				SetName: name, Headless: true, Ports: []peering.ServicePort{}, SessionAffinity: string(corev1.ServiceAffinityNone),
			}}
		}
		of[name] = append(of[name], s)
	}
	var out []SetService
	for _, name := range slices.Sorted(maps.Keys(found)) {
		o := found[name]
		if o.Headless {
			o.Ports = portsOf(of[name])
		}
		o.Endpoints = readSet(leading(of[name]))
		out = append(out, *o)
	}
	return out
}

// leading returns the EndpointSlices that the address of a ServiceImport leads to here: those with a Service's
// label. If there are none it leads to all, of which the provider reaches some. A headless one has no such label,
// and leads to all.
func leading(list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	out := slices.DeleteFunc(slices.Clone(list), func(s *discoveryv1.EndpointSlice) bool { return s.Labels[discoveryv1.LabelServiceName] == "" })
	if len(out) == 0 {
		return list
	}
	return out
}

// readSet reads the endpoints of each cluster, the smallest ID first.
func readSet(list []*discoveryv1.EndpointSlice) (out []peering.ServiceEndpoint) {
	by := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range list {
		by[s.Labels[labelSetCluster]] = append(by[s.Labels[labelSetCluster]], s)
	}
	for _, cluster := range slices.Sorted(maps.Keys(by)) {
		for _, e := range Read(by[cluster]) {
			e.Cluster = cluster
			out = append(out, e)
		}
	}
	return out[:min(len(out), peering.MaxServiceEndpoints)]
}

// portsOf returns the ports of EndpointSlices, without duplicate names and numbers.
func portsOf(list []*discoveryv1.EndpointSlice) []peering.ServicePort {
	out := []peering.ServicePort{}
	for _, s := range slices.SortedFunc(slices.Values(list), func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) }) {
		for _, p := range s.Ports {
			port := peering.ServicePort{
				Name: ptr.Deref(p.Name, ""), Protocol: string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)),
				AppProtocol: ptr.Deref(p.AppProtocol, ""), Port: ptr.Deref(p.Port, 0),
			}
			if port.Port != 0 && !slices.ContainsFunc(out, func(o peering.ServicePort) bool {
				return o.Name == port.Name || o.Protocol == port.Protocol && o.Port == port.Port
			}) {
				out = append(out, port)
			}
		}
	}
	return out
}
