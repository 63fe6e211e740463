package gateways

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

func TestServiceEndpointsAreThoseOfItsType(t *testing.T) {
	addresses := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"}}
	port := func(nodePort int32) []corev1.ServicePort {
		return []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 51820, NodePort: nodePort}}
	}
	ingress := func(list ...corev1.LoadBalancerIngress) corev1.ServiceStatus {
		return corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: list}}
	}
	lb, np := corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort
	refused := []corev1.PortStatus{{Port: 51820, Protocol: corev1.ProtocolUDP, Error: new("UDPNotSupported")}}
	for name, test := range map[string]struct {
		service   corev1.Service
		addresses []corev1.NodeAddress
		want      []string
		problem   string
	}{
		"a load balancer's addresses and names": {
			service: corev1.Service{Spec: corev1.ServiceSpec{Type: lb, Ports: port(31000)}, Status: ingress(
				corev1.LoadBalancerIngress{IP: "198.51.100.7"}, corev1.LoadBalancerIngress{IP: "2001:db8::7"}, corev1.LoadBalancerIngress{Hostname: "lb.example.com"})},
			addresses: addresses, want: []string{"198.51.100.7:51820", "[2001:db8::7]:51820", "lb.example.com:51820"},
		},
		"one that is not there yet": {
			service: corev1.Service{Spec: corev1.ServiceSpec{Type: lb, Ports: port(31000)}}, addresses: addresses, problem: "has no load balancer yet",
		},
		"one that does not pass UDP": {
			service:   corev1.Service{Spec: corev1.ServiceSpec{Type: lb, Ports: port(0)}, Status: ingress(corev1.LoadBalancerIngress{IP: "198.51.100.7", Ports: refused})},
			addresses: addresses, problem: "does not pass UDP 51820: UDPNotSupported",
		},
		"one of two that does": {
			service: corev1.Service{Spec: corev1.ServiceSpec{Type: lb, Ports: port(0)}, Status: ingress(
				corev1.LoadBalancerIngress{IP: "198.51.100.7", Ports: refused}, corev1.LoadBalancerIngress{IP: "198.51.100.8"})},
			want: []string{"198.51.100.8:51820"}, problem: "does not pass UDP",
		},
		"a node's addresses with the Service's port": {
			service: corev1.Service{Spec: corev1.ServiceSpec{Type: np, Ports: port(31000)}}, addresses: addresses, want: []string{"192.0.2.1:31000", "10.0.0.1:31000"},
		},
		"a node's addresses of the Service's families": {
			service:   corev1.Service{Spec: corev1.ServiceSpec{Type: np, Ports: port(31000), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}},
			addresses: append([]corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "2001:db8::1"}}, addresses...), want: []string{"192.0.2.1:31000", "10.0.0.1:31000"},
		},
		"a port that is not given yet": {service: corev1.Service{Spec: corev1.ServiceSpec{Type: np, Ports: port(0)}}, addresses: addresses, problem: "no port on its node yet"},
		"a node without addresses":     {service: corev1.Service{Spec: corev1.ServiceSpec{Type: np, Ports: port(31000)}}, problem: "has no address"},
		"a Service without ports":      {service: corev1.Service{Spec: corev1.ServiceSpec{Type: lb}}, problem: "has no port"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problem := servedAt(&test.service, test.addresses)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (problem == "") != (test.problem == "") || !strings.Contains(problem, test.problem) {
				t.Errorf("problem %q, want %q", problem, test.problem)
			}
		})
	}
}

func TestServicesOfGatewaysHaveTheFamiliesThatAreAskedFor(t *testing.T) {
	t.Parallel()
	gw := gateway{node: "n1", port: "51820", addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}
	for asked, want := range map[corev1.IPFamilyPolicy]corev1.IPFamilyPolicy{
		"": corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicySingleStack: corev1.IPFamilyPolicySingleStack,
	} {
		s := serviceFor(Services{Type: corev1.ServiceTypeLoadBalancer, Families: asked}, "x", gw)
		if got := *s.service.Spec.IPFamilyPolicy; got != want {
			t.Errorf("asked for %q it is %s, want %s", asked, got, want)
		}
	}
}

func TestPlanServicesKeepsAServiceForEachGateway(t *testing.T) {
	cfg := Services{Namespace: "entente-system", Type: corev1.ServiceTypeNodePort}
	other := cfg
	other.Type = corev1.ServiceTypeLoadBalancer
	gw := func(node string) gateway {
		return gateway{node: node, uid: "u", port: "51820", addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}
	}
	var many []gateway
	var nodes []string
	for i := range maxServices + 2 {
		nodes = append(nodes, fmt.Sprintf("n%02d", i))
		many = append(many, gw(nodes[i]))
	}
	blind := gw("n1")
	blind.port = ""
	for name, test := range map[string]struct {
		cfg      Services
		gateways []gateway
		have     []string
		want     []string
		gone     []string
		without  []string
	}{
		"one for each":                        {cfg: cfg, gateways: []gateway{gw("n2"), gw("n1")}, want: []string{"n1", "n2"}},
		"none where none is asked for":        {cfg: Services{Namespace: "entente-system"}, gateways: []gateway{gw("n1")}, have: []string{cfg.name("n1")}, gone: []string{cfg.name("n1")}},
		"none of a node that was a gateway":   {cfg: cfg, gateways: []gateway{gw("n1")}, have: []string{cfg.name("n1"), cfg.name("n2")}, want: []string{"n1"}, gone: []string{cfg.name("n2")}},
		"another one for another type":        {cfg: other, gateways: []gateway{gw("n1")}, have: []string{cfg.name("n1")}, want: []string{"n1"}, gone: []string{cfg.name("n1")}},
		"as many as there may be":             {cfg: cfg, gateways: many, want: nodes[:maxServices], without: nodes[maxServices:]},
		"those that have theirs keep it":      {cfg: cfg, gateways: many, have: []string{cfg.name(nodes[17])}, want: append([]string{nodes[17]}, nodes[:15]...), without: nodes[15:17]},
		"it stays while its port is unknown":  {cfg: cfg, gateways: []gateway{blind}, have: []string{cfg.name("n1")}, without: []string{"n1"}},
		"and none is made until it is":        {cfg: cfg, gateways: []gateway{blind}, without: []string{"n1"}},
		"without gateways no Service is made": {cfg: cfg},
	} {
		t.Run(name, func(t *testing.T) {
			var have []corev1.Service
			for _, name := range test.have {
				have = append(have, corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}})
			}
			want, gone, without := planServices(test.cfg, test.gateways, have)
			var got, gonenames, left []string
			for _, s := range want {
				got = append(got, s.node)
			}
			for _, s := range gone {
				gonenames = append(gonenames, s.Name)
			}
			for node := range without {
				left = append(left, node)
			}
			slices.Sort(left)
			if diff := cmp.Diff([][]string{test.want, test.gone, test.without}, [][]string{got, gonenames, left}); diff != "" {
				t.Errorf("wanted, gone, without (-want +got):\n%s", diff)
			}
		})
	}
}

// A gateway is announced by its Service as soon as that leads anywhere, and by its own
// addresses before; the reason of the wait is reported.
func TestGatewaysAreAnnouncedByTheirServices(t *testing.T) {
	t.Parallel()
	fabric := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}, Status: v1alpha1.FabricNodeStatus{
		PublicKey: base64.StdEncoding.EncodeToString(make([]byte, 32)), Endpoints: []string{"10.0.0.1:51820"}, ObservedAt: metav1.NewTime(now),
	}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}}
	c := peertest.Client(t, fabric, node)
	r := &Reconciler{Client: c, Self: "self", Most: 1, Silent: func() {}, Now: func() time.Time { return now }, Services: Services{
		Namespace: "entente-system", Type: corev1.ServiceTypeLoadBalancer, Annotations: map[string]string{"example.com/pool": "a"},
	}}
	announced := func() v1alpha1.FabricNodeSpec {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		var is v1alpha1.FabricNode
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(fabric), &is); err != nil {
			t.Fatal(err)
		}
		return is.Spec
	}
	services := func() []corev1.Service {
		t.Helper()
		var list corev1.ServiceList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	own := []string{"10.0.0.1:51820", "[fd00::1]:51820"}
	announced()
	spec := announced()
	if diff := cmp.Diff(own, spec.Endpoints); diff != "" || len(spec.EndpointProblems) != 1 || !strings.Contains(spec.EndpointProblems[0], "has no load balancer yet") {
		t.Fatalf("without a load balancer it says %q (-want +got):\n%s", spec.EndpointProblems, diff)
	}
	made := services()
	if len(made) != 1 || made[0].Annotations["example.com/pool"] != "a" || made[0].OwnerReferences[0].UID != "u1" {
		t.Fatalf("Services %+v", made)
	}
	var list discoveryv1.EndpointSliceList
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != 2 {
		t.Fatalf("%d EndpointSlices, want one for each family; %v", len(list.Items), err)
	}
	for _, s := range list.Items {
		if *s.Endpoints[0].NodeName != "n1" || *s.Ports[0].Port != 51820 || s.Labels[discoveryv1.LabelServiceName] != made[0].Name {
			t.Errorf("EndpointSlice %+v", s)
		}
	}
	version := made[0].ResourceVersion
	announced()
	if again := services(); again[0].ResourceVersion != version {
		t.Error("a Service that is as it should be was written again")
	}
	made[0].Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
	if err := c.Status().Update(t.Context(), &made[0]); err != nil {
		t.Fatal(err)
	}
	if spec := announced(); !slices.Equal(spec.Endpoints, []string{"198.51.100.7:51820"}) || len(spec.EndpointProblems) != 0 {
		t.Errorf("with a load balancer: %+v", spec)
	}
	if err := c.Delete(t.Context(), &list.Items[0]); err != nil {
		t.Fatal(err)
	}
	announced()
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != 2 {
		t.Errorf("%d EndpointSlices after one was deleted; %v", len(list.Items), err)
	}
	r.Services.Type = ""
	if spec := announced(); !slices.Equal(spec.Endpoints, own) || len(services()) != 0 {
		t.Errorf("when Services are off: %+v, %d Services", spec, len(services()))
	}
}
