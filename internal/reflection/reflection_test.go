package reflection

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

func named(name string, b []byte) peering.Object {
	return peering.Object{Ref: peering.ObjectRef{Kind: peering.KindService, Namespace: "shop", Name: name, UID: "u"}, JSON: b}
}

func refused(t *testing.T, err error, words string) {
	t.Helper()
	var r *peering.Refusal
	if !errors.As(err, &r) || r.Reason != peering.RefusedInvalid || r.Retryable || !strings.Contains(r.Message, words) {
		t.Errorf("got %v, want a refusal about %q", err, words)
	}
}

// As many endpoints as a consumer sends are kept, with UIDs that do not repeat.
func TestServicesKeepAllEndpointsThatCross(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	in := peering.ServiceObject{Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}}
	for n := range peering.MaxServiceEndpoints + 1 {
		in.Endpoints = append(in.Endpoints, peering.ServiceEndpoint{
			Address: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}).String(), Ready: true, Serving: true, Ports: map[string]int32{"http": 8080},
			PodUID: fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", random.Uint32(), random.IntN(1<<16), random.IntN(1<<12), random.IntN(1<<12), random.Int64N(1<<48)),
		})
	}
	for n, ok := range map[int]bool{1: true, 2001: true, peering.MaxServiceEndpoints: true, peering.MaxServiceEndpoints + 1: false} {
		some := in
		some.Endpoints = in.Endpoints[:n]
		b, err := json.Marshal(some)
		if err != nil {
			t.Fatal(err)
		}
		svc, count, err := ReadService(named("web", b))
		if !ok {
			refused(t, err, "endpoints")
			continue
		}
		if err != nil || count.Endpoints != n {
			t.Fatalf("%d endpoints: %d, %v", n, count.Endpoints, err)
		}
		got, err := Note(svc)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(some, got); diff != "" {
			t.Errorf("%d endpoints changed by being kept: %s", n, diff[:min(len(diff), 500)])
		}
	}
}

// Endpoints at home are there to fail over to.
func TestEndpointsHereComeFirstWhereTheConsumerSaysSo(t *testing.T) {
	t.Parallel()
	ips := map[string]netip.Addr{"here": netip.MustParseAddr("10.200.0.1"), "second": netip.MustParseAddr("10.200.0.2"), "starts": {}}
	pod := func(uid string, ready bool) peering.ServiceEndpoint {
		return peering.ServiceEndpoint{Address: "10.1.0.1", PodUID: uid, Ready: ready}
	}
	for name, test := range map[string]struct {
		in   peering.ServiceObject
		want string
	}{
		"all by default":                     {peering.ServiceObject{Endpoints: []peering.ServiceEndpoint{pod("here", true), pod("home", true)}}, "here home"},
		"those here":                         {peering.ServiceObject{OwnFirst: true, Endpoints: []peering.ServiceEndpoint{pod("here", true), pod("home", true), pod("second", false)}}, "here second"},
		"none here is ready":                 {peering.ServiceObject{OwnFirst: true, Endpoints: []peering.ServiceEndpoint{pod("here", false), pod("home", true)}}, "here home"},
		"none is here":                       {peering.ServiceObject{OwnFirst: true, Endpoints: []peering.ServiceEndpoint{pod("home", true), pod("", true)}}, "home "},
		"one that has no address is not":     {peering.ServiceObject{OwnFirst: true, Endpoints: []peering.ServiceEndpoint{pod("starts", true), pod("home", true)}}, "starts home"},
		"one that is not a pod is elsewhere": {peering.ServiceObject{OwnFirst: true, Endpoints: []peering.ServiceEndpoint{pod("here", true), pod("", true)}}, "here"},
		"a headless one has names for all":   {peering.ServiceObject{OwnFirst: true, Headless: true, Endpoints: []peering.ServiceEndpoint{pod("here", true), pod("home", true)}}, "here home"},
		"none":                               {peering.ServiceObject{OwnFirst: true}, ""},
	} {
		var got []string
		for _, e := range Preferred(test.in, ips) {
			got = append(got, e.PodUID)
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s: %q, want %q", name, text, test.want)
		}
	}
}

// This cluster's own DNS does not follow a Service with an external name.
func TestServicesThatStandForAnotherName(t *testing.T) {
	t.Parallel()
	read := func(in peering.ServiceObject) (*corev1.Service, error) {
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		svc, _, err := ReadService(named("db", b))
		return svc, err
	}
	for _, name := range []string{"db.example.org", "kubernetes.default.svc.cluster.local"} {
		svc, err := read(peering.ServiceObject{ExternalName: name})
		if err != nil {
			t.Fatal(err)
		}
		if s := svc.Spec; s.Type != corev1.ServiceTypeClusterIP || s.ClusterIP != corev1.ClusterIPNone || s.ExternalName != "" || svc.Annotations[api.AnnotationExternalName] != name {
			t.Errorf("%s: %+v, %v", name, s, svc.Annotations)
		}
	}
	for what, in := range map[string]peering.ServiceObject{
		"reads as an address": {ExternalName: "169.254.169.254"},
		"not a label":         {ExternalName: "db.example.org."},
		"each machine":        {ExternalName: "a.localhost"},
		"short":               {ExternalName: "kubernetes.default.svc"},
		"has one label":       {ExternalName: "metadata"},
		"1 to 253":            {ExternalName: strings.Repeat("a.", 127) + "a"},
		"1 ports and":         {ExternalName: "db.example.org", Ports: []peering.ServicePort{{Port: 80}}},
		"1 ports and end":     {ExternalName: "db.example.org", Endpoints: []peering.ServiceEndpoint{{Address: "10.0.0.1"}}},
	} {
		_, err := read(in)
		refused(t, err, what)
	}
}

func TestSecretsThatAreCredentialsOfAClusterAreRefused(t *testing.T) {
	for typ, ok := range map[string]bool{
		"": true, "Opaque": true, "kubernetes.io/tls": true, "example.org/own": true,
		"kubernetes.io/service-account-token": false, "bootstrap.kubernetes.io/token": false,
	} {
		_, err := ReadConfig(peering.Object{
			Ref: peering.ObjectRef{Kind: peering.KindSecret, Namespace: "shop", Name: "s", UID: "u"}, JSON: fmt.Appendf(nil, `{"type":%q}`, typ),
		})
		if (err == nil) != ok {
			t.Errorf("type %q: %v", typ, err)
		}
	}
	_, err := ReadConfig(peering.Object{Ref: peering.ObjectRef{Kind: peering.KindSecret, Name: "s"}, JSON: []byte(`{"data":{"k":"!hunter2!"}}`)})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an error that quotes a secret: %v", err)
	}
}

func FuzzReadService(f *testing.F) {
	b, _ := json.Marshal(peering.ServiceObject{
		Headless: true, Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}},
		Endpoints: []peering.ServiceEndpoint{{Address: "10.0.0.1", Ready: true, Serving: true, Ports: map[string]int32{"http": 80}}},
	})
	f.Add(b)
	f.Add([]byte(`{"headless":true,"ports":[],"externalName":"db.example.org"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := peering.Object{Ref: peering.ObjectRef{Kind: peering.KindService, Namespace: "shop", Name: "web", UID: "u"}, JSON: b}
		svc, _, err := ReadService(o)
		if err != nil {
			return
		}
		if svc.Spec.Selector != nil || svc.Spec.Type != corev1.ServiceTypeClusterIP || len(svc.Spec.ExternalIPs) > 0 || svc.Spec.ExternalName != "" {
			t.Fatalf("%+v", svc.Spec)
		}
		if target, ok := svc.Annotations[api.AnnotationExternalName]; ok && (peering.CheckExternalName(target) != nil || svc.Spec.ClusterIP != corev1.ClusterIPNone || len(svc.Spec.Ports) > 0) {
			t.Fatalf("%q has the external name %q: %+v", b, target, svc.Spec)
		}
		var in peering.ServiceObject
		if err := json.Unmarshal([]byte(svc.Annotations[NoteService]), &in); err != nil {
			t.Fatal(err)
		}
		for _, s := range must(endpoints.Slices(svc, in, func(e peering.ServiceEndpoint) (netip.Addr, bool) {
			a, err := netip.ParseAddr(e.Address)
			return a, err == nil
		})) {
			if len(s.Endpoints) > endpoints.SliceSize {
				t.Fatal("a slice is too large")
			}
		}
	})
}

// A Service makes no more EndpointSlices than it counts, nor more ports in them.
func TestAServiceCountsItsEndpointSlices(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		in := peering.ServiceObject{Ports: []peering.ServicePort{{Name: "a", Port: 1}, {Name: "b", Port: 2}}}
		for n := range r.IntN(600) {
			e := peering.ServiceEndpoint{Address: fmt.Sprintf("10.1.%d.%d", n/200, 1+n%200), Ports: map[string]int32{"a": 80, "b": 81 + int32(r.IntN(4))}}
			if r.IntN(4) == 0 {
				e.Address = fmt.Sprintf("fd00::%x", n+1)
			}
			in.Endpoints = append(in.Endpoints, e)
		}
		counts := Count(in)
		made, _ := endpoints.Slices(&corev1.Service{}, in, func(e peering.ServiceEndpoint) (netip.Addr, bool) {
			a, err := netip.ParseAddr(e.Address)
			return a, err == nil
		})
		endpoints, ports := 0, 0
		for _, s := range made {
			endpoints, ports = endpoints+len(s.Endpoints), ports+len(s.Endpoints)*len(s.Ports)
		}
		if got := (stock.Item{Ports: 2, Endpoints: endpoints, EndpointPorts: ports, Slices: len(made)}); got != counts {
			t.Errorf("seed %d: it counts %+v and makes %+v", seed, counts, got)
		}
	}
}

func must[A, B any](a A, _ B) A { return a }
