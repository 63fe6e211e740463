package vk

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

func service(name, uid string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("svc-" + uid), Labels: map[string]string{"app": name}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", SessionAffinity: corev1.ServiceAffinityNone, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func slice(name, service string, addresses ...string) *discoveryv1.EndpointSlice {
	port, http, ready := int32(8080), "http", true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: "pod-0"},
		})
	}
	return s
}

func TestServiceObjectHasPortsAndEndpoints(t *testing.T) {
	yes, no := true, false
	moving := slice("b", "web", "10.1.0.2")
	moving.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	got := serviceObject(service("web", "1"), []*discoveryv1.EndpointSlice{moving, slice("a", "web", "10.1.0.10", "10.1.0.9", "10.1.0.2", "name")})
	ports := map[string]int32{"http": 8080}
	want := peering.ServiceObject{
		Labels: map[string]string{"app": "web"}, SessionAffinity: "None", Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}},
		Endpoints: []peering.ServiceEndpoint{
			{Address: "10.1.0.2", Ready: true, Serving: true, Ports: ports, PodUID: "pod-0"}, // the slice that says ready counts
			{Address: "10.1.0.9", Ready: true, Serving: true, Ports: ports, PodUID: "pod-0"},
			{Address: "10.1.0.10", Ready: true, Serving: true, Ports: ports, PodUID: "pod-0"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	alone := serviceObject(service("web", "1"), []*discoveryv1.EndpointSlice{moving}).Endpoints[0]
	if alone.Ready || !alone.Serving || !alone.Terminating {
		t.Errorf("a terminating endpoint is %+v", alone)
	}
}

func TestServiceObjectHasTheNameThatItStandsFor(t *testing.T) {
	alias := service("db", "1", func(s *corev1.Service) {
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "db.example.org.", Ports: s.Spec.Ports}
	})
	got := serviceObject(alias, []*discoveryv1.EndpointSlice{slice("a", "db", "10.1.0.9")})
	// Headless, so that a provider that does not know the field ignores it.
	want := peering.ServiceObject{Labels: map[string]string{"app": "db"}, Headless: true, Ports: []peering.ServicePort{}, ExternalName: "db.example.org"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
}

func TestServicesThatPreferTheClusterTheyAreUsedIn(t *testing.T) {
	for name, test := range map[string]struct {
		annotation, traffic string
		want                bool
	}{
		"none says so":               {"", "", false},
		"its annotation":             {"OwnFirst", "", true},
		"the nearest is its own":     {"Nearest", "", true},
		"its traffic stays close":    {"", "PreferSameZone", true},
		"as older clusters say":      {"", "PreferClose", true},
		"its annotation says not so": {"All", "PreferClose", false},
		"an unknown preference":      {"Mine", "", false},
	} {
		svc := service("web", "1", func(s *corev1.Service) {
			s.Annotations = map[string]string{api.AnnotationEndpoints: test.annotation}
			if test.traffic != "" {
				s.Spec.TrafficDistribution = &test.traffic
			}
		})
		if got := serviceObject(svc, nil); got.OwnFirst != test.want || got.TrafficDistribution != test.traffic {
			t.Errorf("%s: %v, %q", name, got.OwnFirst, got.TrafficDistribution)
		}
	}
}

func TestEndpointsAreBounded(t *testing.T) {
	var slices []*discoveryv1.EndpointSlice
	for i := range 60 {
		var addresses []string
		for j := range 100 {
			addresses = append(addresses, fmt.Sprintf("10.1.%d.%d", i, j))
		}
		slices = append(slices, slice("s", "web", addresses...))
	}
	if n := len(endpoints.Read(slices)); n != peering.MaxServiceEndpoints {
		t.Errorf("%d endpoints, want %d", n, peering.MaxServiceEndpoints)
	}
	if _, err := object(peering.ObjectRef{Kind: peering.KindService, Name: "web"}, serviceObject(service("web", "1"), slices)); err != nil {
		t.Errorf("so many do not cross: %v", err)
	}
}

func TestExportableLeavesOutForeignServices(t *testing.T) {
	for name, test := range map[string]struct {
		service *corev1.Service
		want    bool
	}{
		"an ordinary one":              {service("web", "1"), true},
		"a name for another name":      {service("web", "1", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), true},
		"one that was imported":        {service("web", "1", func(s *corev1.Service) { s.Labels[api.LabelManaged] = api.Manager }), false},
		"the API server's":             {service("kubernetes", "1", func(s *corev1.Service) { s.Namespace = "default" }), false},
		"one that is called like that": {service("kubernetes", "1"), true},
	} {
		if got := exportable(test.service); got != test.want {
			t.Errorf("%s: exportable is %v", name, got)
		}
	}
}

func TestServicesOfAnOffloadedNamespaceFollowChanges(t *testing.T) {
	atHome(t, func(h *home) {
		ctx, core := h.t.Context(), h.client.CoreV1()
		if _, err := core.Services("shop").Create(ctx, service("web", "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		endpointsAt := func() (n int) {
			n = -1
			h.remote.locked(func() {
				for ref, o := range h.remote.held {
					if ref.Kind == peering.KindService {
						var s peering.ServiceObject
						if err := json.Unmarshal(o.JSON, &s); err != nil {
							t.Fatal(err)
						}
						n = len(s.Endpoints)
					}
				}
			})
			return n
		}
		if n := endpointsAt(); n != 0 {
			t.Fatalf("%d endpoints at the provider, want a service with none", n)
		}
		if _, err := h.client.DiscoveryV1().EndpointSlices("shop").Create(ctx, slice("web-a", "web", "10.1.0.2", "10.1.0.3"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		if n := endpointsAt(); n != 2 {
			t.Errorf("%d endpoints at the provider, want 2", n)
		}
		states := h.node.Namespaces()
		if len(states) != 1 || !states[0].Accepted || states[0].Name != "shop" {
			t.Errorf("namespaces are %+v", states)
		}
		if err := core.Services("shop").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		if n := endpointsAt(); n != -1 {
			t.Error("a deleted service stays at the provider")
		}
		h.offload()
		if h.remote.holds("ns-1") || len(h.node.Namespaces()) > 0 {
			t.Error("the namespace stays at the provider")
		}
		h.wantWatches("shop", 0)
	})
}

// A headless Service of a cluster set has no Service at home, and one with an address an object of
// its own: both cross by the name that they have in the set.
func TestServicesOfAClusterSetCross(t *testing.T) {
	atHome(t, func(h *home) {
		ctx := h.t.Context()
		held := func() map[string]int {
			out := map[string]int{}
			h.remote.locked(func() {
				for ref, o := range h.remote.held {
					if ref.Kind == peering.KindService {
						var s peering.ServiceObject
						if err := json.Unmarshal(o.JSON, &s); err != nil {
							t.Fatal(err)
						}
						out[ref.UID+" "+s.SetName] = len(s.Endpoints)
					}
				}
			})
			return out
		}
		wants := func(when string, want map[string]int) {
			t.Helper()
			h.second()
			if diff := cmp.Diff(want, held()); diff != "" {
				t.Errorf("%s (-want +got)\n%s", when, diff)
			}
		}
		slices := h.client.DiscoveryV1().EndpointSlices("shop")
		part := slice("set-a", "", "10.1.0.2", "10.1.0.3")
		part.Labels = map[string]string{
			api.LabelManaged: api.Manager, "multicluster.kubernetes.io/service-name": "db", "multicluster.kubernetes.io/source-cluster": "a", corev1.IsHeadlessService: "",
		}
		part.OwnerReferences = []metav1.OwnerReference{{Kind: "ServiceImport", Name: "db", UID: "import", Controller: new(true)}}
		if _, err := slices.Create(ctx, part, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wants("a headless one", map[string]int{"import db": 2})
		ref := peering.ObjectRef{Kind: peering.KindService, Namespace: "shop", Name: endpoints.SetName("db"), UID: "import"}
		if h.node.Orphan(ctx, peering.Held{Ref: ref}) {
			t.Error("it is an orphan, though no Service at home has that UID")
		}
		derived := service(endpoints.SetName("db"), "1")
		derived.UID, derived.Labels = "derived", map[string]string{api.LabelManaged: api.Manager, "multicluster.kubernetes.io/service-name": "db"}
		if _, err := h.client.CoreV1().Services("shop").Create(ctx, derived, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wants("one that got an address", map[string]int{"derived db": 2})
		if !h.node.Orphan(ctx, peering.Held{Ref: ref}) {
			t.Error("its earlier form is not an orphan")
		}
		if err := h.client.CoreV1().Services("shop").Delete(ctx, derived.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := slices.Delete(ctx, part.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		wants("one that is exported no longer", map[string]int{})
	})
}

// A Service with fewer endpoints than may cross, and more bytes, crosses with those that fit.
func TestALargeServiceCrossesWithTheEndpointsThatFit(t *testing.T) {
	atHome(t, func(h *home) {
		h.offload(Namespace{Name: "shop", UID: "ns-1", Mapping: "Suffixed"})
		svc := service("web", "1", func(s *corev1.Service) { s.Spec.Ports = nil })
		var ports []discoveryv1.EndpointPort
		for i := range 20 {
			name, number := fmt.Sprintf("port-number-%d", i), int32(8000+i)
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: number})
			ports = append(ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
		}
		if _, err := h.client.CoreV1().Services("shop").Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := range 40 {
			var addresses []string
			for j := range 100 {
				addresses = append(addresses, fmt.Sprintf("10.1.%d.%d", i, j))
			}
			s := slice(fmt.Sprint("web-", i), "web", addresses...)
			s.Ports = ports
			if _, err := h.client.DiscoveryV1().EndpointSlices("shop").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		h.second()
		time.Sleep(time.Minute)
		synctest.Wait()
		var sent peering.ServiceObject
		h.remote.locked(func() {
			for ref, o := range h.remote.held {
				if ref.Kind == peering.KindService {
					if err := json.Unmarshal(o.JSON, &sent); err != nil || len(o.JSON) > maxObjectBytes || len(o.JSON) < maxObjectBytes*9/10 {
						t.Errorf("%d bytes cross (%v), want nearly %d", len(o.JSON), err, maxObjectBytes)
					}
				}
			}
		})
		if m, want := h.event("TooManyEndpoints"), fmt.Sprintf("%d of its 4000 endpoints cross", len(sent.Endpoints)); len(sent.Endpoints) == 0 || !strings.Contains(m, want) {
			t.Errorf("%d endpoints cross, and the event says %q, want %q", len(sent.Endpoints), m, want)
		}
		if !h.node.ServicesDeclared() {
			t.Error("the Services of the namespace count as not declared")
		}
	})
}

// Events on a Service say what a provider refuses, and what of it is not sent.
func TestTheServiceSaysWhatDoesNotCross(t *testing.T) {
	atHome(t, func(h *home) {
		h.remote.refuse = func(o peering.Object) *peering.Refusal {
			if o.Ref.Kind != peering.KindService {
				return nil
			}
			return &peering.Refusal{Reason: peering.RefusedQuota, Message: "the contract has 64 Services already", Retryable: true}
		}
		h.offload(Namespace{Name: "shop", UID: "ns-1", Mapping: "Suffixed"})
		if _, err := h.client.CoreV1().Services("shop").Create(t.Context(), service("web", "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		for i := range 51 {
			var addresses []string
			for j := range 100 {
				addresses = append(addresses, fmt.Sprintf("10.1.%d.%d", i, j))
			}
			if _, err := h.client.DiscoveryV1().EndpointSlices("shop").Create(t.Context(), slice(fmt.Sprint("web-", i), "web", addresses...), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		h.second()
		for range 2 {
			typo := service("web", "1", func(s *corev1.Service) { s.Annotations = map[string]string{api.AnnotationEndpoints: "Ownfirst"} })
			if _, err := h.client.CoreV1().Services("shop").Update(t.Context(), typo, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			h.second()
		}
		if m := h.event("QuotaExceeded"); !strings.Contains(m, "64 Services already") {
			t.Errorf("the event of the refusal says %q", m)
		}
		if m := h.event("TooManyEndpoints"); !strings.Contains(m, "5000 of its 5100") {
			t.Errorf("the event of what is cut says %q", m)
		}
		if m := h.event("UnknownPreference"); !strings.Contains(m, `is "Ownfirst"`) || !strings.Contains(m, "All, OwnFirst or Nearest") {
			t.Errorf("the event of what it prefers says %q", m)
		}
		list, err := h.client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 3 {
			t.Fatalf("%d events, %v", len(list.Items), err)
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Kind != "Service" || e.InvolvedObject.Name != "web" || e.InvolvedObject.UID != "svc-1" || e.Count != 1 {
				t.Errorf("an event is about %+v, %d times", e.InvolvedObject, e.Count)
			}
		}
	})
}

func TestSessionsStayAsLongAsAtHome(t *testing.T) {
	for seconds, want := range map[int32]int32{0: 0, 60: 60} {
		svc := service("web", "1", func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			if seconds > 0 {
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
			}
		})
		if got := serviceObject(svc, nil); got.SessionAffinity != "ClientIP" || got.SessionAffinitySeconds != want {
			t.Errorf("%d s become %s, %d s", seconds, got.SessionAffinity, got.SessionAffinitySeconds)
		}
	}
}

// A change of a Service that crossed is sent at once, and many in a row are gathered.
func TestChangesOfAServiceAreSentAtOnceButNotEach(t *testing.T) {
	atHome(t, func(h *home) {
		ctx, slices := h.t.Context(), h.client.DiscoveryV1().EndpointSlices("shop")
		if _, err := h.client.CoreV1().Services("shop").Create(ctx, service("web", "1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := slices.Create(ctx, slice("web-a", "web"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		sent := func() (n int) {
			h.remote.locked(func() {
				for _, ref := range h.remote.applies {
					if ref.Kind == peering.KindService {
						n++
					}
				}
			})
			return n
		}
		if n := sent(); n != 1 {
			t.Errorf("a Service and its endpoints are sent %d times, want once", n)
		}
		// No change comes at the very moment at which one that waited is sent: either may be the first then.
		const changes, between = 100, 9700 * time.Microsecond
		for i := range changes {
			if _, err := slices.Update(ctx, slice("web-a", "web", fmt.Sprint("10.1.0.", i+1)), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(between)
			if n := sent(); i == 0 && n != 2 {
				t.Errorf("%d were sent right after a change, want 2", n)
			}
		}
		h.second()
		if n := sent() - 2; n < 5 || n > int(changes*between/debounce)+1 {
			t.Errorf("%d changes within a second are sent %d times", changes, n)
		}
		h.remote.locked(func() {
			for ref, o := range h.remote.held {
				if ref.Kind == peering.KindService && !strings.Contains(string(o.JSON), fmt.Sprintf(`"10.1.0.%d"`, changes)) {
					t.Errorf("the provider has %s", o.JSON)
				}
			}
		})
	})
}

// What changes of a Service while its namespace is not offloaded crosses when it is again, and the Service that
// has its name then is not the one that went.
func TestServicesThatChangedUnseenCross(t *testing.T) {
	atHome(t, func(h *home) {
		ctx, services := h.t.Context(), h.client.CoreV1().Services("shop")
		for _, s := range []*corev1.Service{service("web", "1"), service("db", "2")} {
			if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		h.bind("uid-1", "pod-1") // it stays there, and so do the watches
		h.second()
		h.offload()
		if err := services.Delete(ctx, "db", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := services.Create(ctx, service("db", "3"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.client.DiscoveryV1().EndpointSlices("shop").Create(ctx, slice("web-a", "web", "10.1.0.2"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.second()
		got := func() map[string]int {
			out := map[string]int{}
			h.remote.locked(func() {
				for ref, o := range h.remote.held {
					if ref.Kind == peering.KindService {
						out[ref.UID] = strings.Count(string(o.JSON), `"address"`)
					}
				}
			})
			return out
		}
		if diff := cmp.Diff(map[string]int{}, got()); diff != "" {
			t.Errorf("of a namespace that is not offloaded (-want +got)\n%s", diff)
		}
		h.offload(Namespace{Name: "shop", UID: "ns-1", Mapping: "Suffixed"})
		if diff := cmp.Diff(map[string]int{"svc-1": 1, "svc-3": 0}, got()); diff != "" {
			t.Errorf("of one that is again (-want +got)\n%s", diff)
		}
	})
}
