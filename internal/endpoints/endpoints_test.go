package endpoints

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/entente-dev/entente/peering"
)

func TestAffinityIsKeptAsFarAsKubernetesTakesIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ in, want peering.ServiceObject }{
		"none":           {peering.ServiceObject{}, peering.ServiceObject{SessionAffinity: "None"}},
		"none for long":  {peering.ServiceObject{SessionAffinity: "None", SessionAffinitySeconds: 60}, peering.ServiceObject{SessionAffinity: "None"}},
		"a minute":       {peering.ServiceObject{SessionAffinity: "ClientIP", SessionAffinitySeconds: 60}, peering.ServiceObject{SessionAffinity: "ClientIP", SessionAffinitySeconds: 60}},
		"as long as any": {peering.ServiceObject{SessionAffinity: "ClientIP"}, peering.ServiceObject{SessionAffinity: "ClientIP", SessionAffinitySeconds: 10800}},
		"too long":       {peering.ServiceObject{SessionAffinity: "ClientIP", SessionAffinitySeconds: 1 << 30}, peering.ServiceObject{SessionAffinity: "ClientIP", SessionAffinitySeconds: 10800}},
		"nonsense":       {peering.ServiceObject{SessionAffinity: "Sticky", SessionAffinitySeconds: -1}, peering.ServiceObject{SessionAffinity: "None"}},
	} {
		spec := corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}
		Affinity(&spec, test.in)
		var got peering.ServiceObject
		ReadAffinity(spec, &got)
		if diff := cmp.Diff(test.want, got); diff != "" || (spec.SessionAffinityConfig != nil) != (got.SessionAffinity == "ClientIP") {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestBothFamiliesCross(t *testing.T) {
	t.Parallel()
	slice := func(family discoveryv1.AddressType, address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		}
	}
	got := Read([]*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv6, "fd00::7"), slice(discoveryv1.AddressTypeIPv4, "10.1.0.7"), slice(discoveryv1.AddressTypeFQDN, "web.example")})
	var addresses []string
	for _, e := range got {
		addresses = append(addresses, e.Address)
	}
	if diff := cmp.Diff([]string{"10.1.0.7", "fd00::7"}, addresses); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
