package market

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// systemNamespaces is how the names of Kubernetes' own namespaces begin.
const systemNamespaces = "kube-"

// export is Services that a policy lets its peers import.
type export struct {
	Namespace string
	// selects reports whether a Service is one of them.
	selects func(*corev1.Service) bool
}

// Exported is the Services that one policy exports.
type Exported struct {
	services []peering.OfferedService
	// left is how many more there are beyond the limits.
	left int
}

// readExports reads the field services of a policy.
func readExports(entries []v1alpha1.ServiceExports) ([]export, error) {
	var out []export
	for i := range entries {
		entry := &entries[i]
		of := export{Namespace: entry.Namespace, selects: func(*corev1.Service) bool { return true }}
		switch {
		case len(entry.Names) > 0 && entry.Selector != nil:
			return nil, fmt.Errorf("services[%d] has both names and a selector", i)
		case len(entry.Names) > 0:
			of.selects = func(s *corev1.Service) bool { return slices.Contains(entry.Names, s.Name) }
		case entry.Selector != nil:
			selector, err := metav1.LabelSelectorAsSelector(entry.Selector)
			if err != nil {
				return nil, fmt.Errorf("services[%d].selector: %w", i, err)
			}
			of.selects = func(s *corev1.Service) bool { return selector.Matches(labels.Set(s.Labels)) }
		}
		out = append(out, of)
	}
	return out, nil
}

// Exports returns the Services that a policy lets its peers import, sorted, as
// many as an offer may have. services is those of namespaces that are not closed, and
// inSet reports which of them are exported to the cluster set of the policy.
func Exports(of []export, services []corev1.Service, inSet func(*corev1.Service) bool) Exported {
	offeredServices := map[string]peering.OfferedService{}
	var out Exported
	for i := range services {
		s := &services[i]
		shared := inSet(s)
		if NeverExported(s) || !shared && !slices.ContainsFunc(of, func(e export) bool { return e.Namespace == s.Namespace && e.selects(s) }) {
			continue
		}
		offered := OfferedService(s)
		offered.InSet = shared
		if wire.CheckService("", offered) != nil {
			out.left++ // too many ports
			continue
		}
		offeredServices[offered.Key()] = offered
	}
	size := 0
	for _, s := range slices.SortedFunc(maps.Values(offeredServices), peering.CompareServices) {
		if size += s.Size(); len(out.services) == peering.MaxServices || size > peering.MaxServicesSize {
			out.left += len(offeredServices) - len(out.services)
			break
		}
		out.services = append(out.services, s)
	}
	return out
}

// NeverExported reports whether no policy exports a Service: one of type ExternalName, one that
// came from another cluster, one whose label forbids it, one that is being deleted, and the
// API server's.
func NeverExported(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeExternalName ||
		s.Labels[v1alpha1.LabelManaged] == v1alpha1.Manager || s.Labels[v1alpha1.LabelExport] == "false" ||
		!s.DeletionTimestamp.IsZero() || s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
}

// Closed reports whether no Service of a namespace is exported: the namespace belongs to
// Kubernetes, to this agent (own is its namespace) or to a consumer, or is being
// deleted.
func Closed(n *corev1.Namespace, own string) bool {
	return strings.HasPrefix(n.Name, systemNamespaces) || n.Name == own || n.Labels[v1alpha1.LabelManaged] == v1alpha1.Manager ||
		n.Labels[v1alpha1.LabelPeer] != "" || !n.DeletionTimestamp.IsZero()
}

// OfferedService returns what offers contain of a Service.
func OfferedService(s *corev1.Service) peering.OfferedService {
	out := peering.OfferedService{Namespace: s.Namespace, Name: s.Name, Type: peering.ServiceClusterSetIP}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		out.Type = peering.ServiceHeadless
	}
	for _, p := range s.Spec.Ports {
		port := peering.ServicePort{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port}
		port.Protocol = cmp.Or(port.Protocol, string(corev1.ProtocolTCP))
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		out.Ports = append(out.Ports, port)
	}
	return out
}

// ExportsTo returns the Services that a peer may import: those of the policy that
// selects it, if that accepts requests.
func (m *Market) ExportsTo(peer peering.ClusterID) Exported {
	_, l, err := m.PolicyOf(peer)
	if err != nil || l.err != nil || l.Value.Accept == peering.Never {
		return Exported{}
	}
	return m.Exports[l.Value.Name]
}

// String returns a summary for the provider's administrators.
func (e Exported) String() string {
	if len(e.services)+e.left == 0 {
		return ""
	}
	out := fmt.Sprintf("services: %d announced", len(e.services))
	if e.left > 0 {
		out += fmt.Sprintf(", %d more are not: they are more, or have more ports, than can be announced", e.left)
	}
	return out
}
