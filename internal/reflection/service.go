package reflection

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// NoteService is the annotation with the consumer's form of a reflected Service.
const NoteService = "entente.dev/service"

func invalid(format string, args ...any) *peering.Refusal {
	return &peering.Refusal{Reason: peering.RefusedInvalid, Message: fmt.Sprintf(format, args...)}
}

// ReadService decodes a consumer's Service into one without a selector and with a note, and returns
// what it counts.
func ReadService(o peering.Object) (s *corev1.Service, item stock.Item, err error) {
	var in peering.ServiceObject
	if err := json.Unmarshal(o.JSON, &in); err != nil {
		return nil, item, invalid("read %s: %v", o.Ref, err)
	}
	if err := errors.Join(checkExternal(in), in.CheckSet()); err != nil {
		return nil, item, invalid("%s: %v", o.Ref, err)
	}
	note, err := Pack(o.JSON)
	if err != nil {
		return nil, item, fmt.Errorf("encode %s: %w", o.Ref, err)
	}
	switch {
	case len(in.Endpoints) > peering.MaxServiceEndpoints:
		return nil, item, invalid("%s has %d endpoints; the limit is %d", o.Ref, len(in.Endpoints), peering.MaxServiceEndpoints)
	case len(in.Ports) > maxServicePorts:
		return nil, item, invalid("%s has %d ports; the limit is %d", o.Ref, len(in.Ports), maxServicePorts)
	case len(note) > MaxNote:
		return nil, item, invalid("%s with its endpoints has %d bytes, compressed; the limit is %d", o.Ref, len(note), MaxNote)
	}
	s = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Labels: make(map[string]string), Annotations: map[string]string{NoteService: note}},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			SessionAffinity: corev1.ServiceAffinityNone,
			IPFamilyPolicy:  new(corev1.IPFamilyPolicyPreferDualStack),
		},
	}
	for k, v := range in.Labels {
		if !podspec.ForeignKey(k) {
			s.Labels[k] = v
		}
	}
	if in.ExternalName != "" {
		s.Annotations[api.AnnotationExternalName] = in.ExternalName
	}
	if in.SetName != "" {
		s.Annotations[api.AnnotationSetName] = in.SetName
	}
	if in.Headless || in.ExternalName != "" {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	endpoints.Affinity(&s.Spec, in)
	s.Spec.Ports = endpoints.Ports(in.Ports)
	return s, Count(in), nil
}

// checkExternal checks a Service with an external name. It becomes a headless Service without
// endpoints, never one of type ExternalName: this cluster's own DNS, and other readers of its
// Services, must not follow a name that a consumer chose.
func checkExternal(in peering.ServiceObject) error {
	if in.ExternalName == "" {
		return nil
	}
	if n := len(in.Ports) + len(in.Endpoints); n > 0 {
		return fmt.Errorf("it is an alias of another name, and has %d ports and endpoints of its own", n)
	}
	return peering.CheckExternalName(in.ExternalName) //nolint:wrapcheck // the caller names the object
}

// Count returns what a Service counts in addition to its bytes. An EndpointSlice has endpoints of
// one family and cluster with the same ports.
func Count(in peering.ServiceObject) stock.Item {
	i := stock.Item{Ports: len(in.Ports), Endpoints: len(in.Endpoints)}
	groups := make(map[string]int)
	for _, e := range in.Endpoints {
		i.EndpointPorts += len(e.Ports)
		family := discoveryv1.AddressTypeIPv4
		if strings.Contains(e.Address, ":") {
			family = discoveryv1.AddressTypeIPv6
		}
		groups[endpoints.GroupKey(family, e)]++
	}
	for _, n := range groups {
		i.Slices += (n + endpoints.SliceSize - 1) / endpoints.SliceSize
	}
	return i
}
