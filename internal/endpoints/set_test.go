package endpoints

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func TestTheLabelsAreThoseOfTheMultiClusterServicesAPI(t *testing.T) {
	t.Parallel()
	if labelSetName != mcs.LabelServiceName || labelSetCluster != mcs.LabelSourceCluster {
		t.Errorf("they are %s and %s", mcs.LabelServiceName, mcs.LabelSourceCluster)
	}
}

// derived is a Service that has a ServiceImport's address.
func derived(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: SetName(name), UID: types.UID("service-" + name),
			Labels: map[string]string{api.LabelManaged: api.Manager, labelSetName: name},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Name: "http", Port: 80}}, SessionAffinity: corev1.ServiceAffinityClientIP},
	}
}

// setSlice is an EndpointSlice of a ServiceImport. Without a peer it is this cluster's own.
func setSlice(name, cluster, peer string, edit func(*discoveryv1.EndpointSlice), addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: SetName(name) + "-" + cluster,
			Labels: map[string]string{
				api.LabelManaged: api.Manager, labelSetName: name, labelSetCluster: cluster, discoveryv1.LabelServiceName: SetName(name),
			},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ServiceImport", Name: name, UID: types.UID("import-" + name), Controller: new(true)}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	if peer != "" {
		s.Labels[api.LabelPeer] = peer
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	if edit != nil {
		edit(s)
	}
	return s
}

func headless(s *discoveryv1.EndpointSlice) {
	delete(s.Labels, discoveryv1.LabelServiceName)
	s.Labels[corev1.IsHeadlessService] = ""
}

func unused(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) }

func TestWhatCrossesOfAClusterSet(t *testing.T) {
	t.Parallel()
	type services []*corev1.Service
	type list []*discoveryv1.EndpointSlice
	http := []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}
	end := func(cluster, address string) peering.ServiceEndpoint {
		return peering.ServiceEndpoint{Address: address, Cluster: cluster, Ready: true, Serving: true, Ports: map[string]int32{"http": 8080}}
	}
	address := func(ends ...peering.ServiceEndpoint) []SetService {
		return []SetService{{Name: SetName("hello"), UID: "service-hello", ServiceObject: peering.ServiceObject{
			SetName: "hello", Ports: http, SessionAffinity: "ClientIP", Endpoints: ends,
		}}}
	}
	none := func(ports []peering.ServicePort, ends ...peering.ServiceEndpoint) []SetService {
		return []SetService{{Name: SetName("db"), UID: "import-db", ServiceObject: peering.ServiceObject{
			SetName: "db", Headless: true, Ports: ports, SessionAffinity: "None", Endpoints: ends,
		}}}
	}
	plain := derived("hello")
	delete(plain.Labels, labelSetName)
	theirs := derived("hello")
	delete(theirs.Labels, api.LabelManaged)
	for name, tc := range map[string]struct {
		services services
		slices   list
		want     []SetService
	}{
		"nothing":                 {},
		"no endpoints":            {services{derived("hello")}, nil, address()},
		"own, and the provider's": {services{derived("hello")}, list{setSlice("hello", "b", "b", nil, "198.18.0.1"), setSlice("hello", "a", "", nil, "10.0.0.1")}, address(end("a", "10.0.0.1"), end("b", "198.18.0.1"))},
		"a third cluster's not":   {services{derived("hello")}, list{setSlice("hello", "a", "", nil, "10.0.0.1"), setSlice("hello", "c", "c", nil, "198.19.0.1")}, address(end("a", "10.0.0.1"))},
		"those that the address leads to": {
			services{derived("hello")}, list{setSlice("hello", "a", "", nil, "10.0.0.1"), setSlice("hello", "b", "b", unused, "198.18.0.1")}, address(end("a", "10.0.0.1")),
		},
		"all, where it leads to a third one's alone": {
			services{derived("hello")}, list{setSlice("hello", "a", "", unused, "10.0.0.1"), setSlice("hello", "c", "c", nil, "198.19.0.1")}, address(end("a", "10.0.0.1")),
		},
		"a headless one": {
			nil,
			list{setSlice("db", "b", "b", headless, "198.18.0.1"), setSlice("db", "a", "", headless, "10.0.0.1")},
			none([]peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 8080}}, end("a", "10.0.0.1"), end("b", "198.18.0.1")),
		},
		"the ports of all of its clusters, each once": {
			nil,
			list{setSlice("db", "a", "", headless), setSlice("db", "b", "b", func(s *discoveryv1.EndpointSlice) {
				headless(s)
				s.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(9090))}, {Name: new("same"), Port: new(int32(8080))}, {Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(8080))}}
			})},
			none([]peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 8080}, {Name: "dns", Protocol: "UDP", Port: 8080}}),
		},
		"EndpointSlices before their Service": {nil, list{setSlice("hello", "a", "", nil, "10.0.0.1")}, nil},
		"another's Service and EndpointSlice": {services{plain, theirs}, list{setSlice("hello", "a", "", func(s *discoveryv1.EndpointSlice) { s.Labels[api.LabelManaged] = "other" }, "10.0.0.1")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, OfSet(tc.services, tc.slices, "b")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestEndpointSlicesAreOfOneCluster(t *testing.T) {
	t.Parallel()
	in := peering.ServiceObject{SetName: "db", Headless: true, Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}}
	for cluster, address := range map[string]string{"": "10.0.0.1", "a": "10.0.0.2", "b": "10.0.0.3"} {
		in.Endpoints = append(in.Endpoints, peering.ServiceEndpoint{Address: address, Cluster: cluster, Ready: true, Ports: map[string]int32{"http": 80}})
	}
	list, _ := Slices(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "db"}}, in, func(e peering.ServiceEndpoint) (netip.Addr, bool) { return netip.MustParseAddr(e.Address), true })
	got := map[string]string{}
	for _, s := range list {
		for _, e := range s.Endpoints {
			got[s.Labels[api.LabelSourceCluster]] += e.Addresses[0]
		}
	}
	if diff := cmp.Diff(map[string]string{"": "10.0.0.1", "a": "10.0.0.2", "b": "10.0.0.3"}, got); diff != "" || len(list) != 3 {
		t.Errorf("%d EndpointSlices (-want +got)\n%s", len(list), diff)
	}
}
