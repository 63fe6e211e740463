package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

var web = peering.ServiceName{Namespace: "shop", Name: "web"}

// drawExported draws a state of a Service from few endpoints, so that most come back.
func drawExported(t *rapid.T) peering.ExportedService {
	out := peering.ExportedService{ServiceName: web}
	if rapid.IntRange(0, 5).Draw(t, "refused") == 0 {
		out.Refusal = "no such Service"
		return out
	}
	out.Service = peering.ServiceObject{
		Headless: rapid.Bool().Draw(t, "headless"), SessionAffinity: rapid.SampledFrom([]string{"None", "ClientIP"}).Draw(t, "affinity"),
		Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: rapid.Int32Range(80, 82).Draw(t, "port")}, {Name: "dns", Protocol: "UDP", Port: 53}},
	}
	if out.Service.SessionAffinity == "ClientIP" {
		out.Service.SessionAffinitySeconds = rapid.Int32Range(0, 86400).Draw(t, "seconds")
	}
	if rapid.Bool().Draw(t, "exported") {
		out.Export = &peering.ServiceExport{
			Created: time.Unix(rapid.Int64Range(1, 3).Draw(t, "created"), 0).UTC(), InternalTrafficPolicy: rapid.SampledFrom([]string{"", "Local"}).Draw(t, "policy"),
			TrafficDistribution: rapid.SampledFrom([]string{"", "PreferClose"}).Draw(t, "distribution"),
		}
		if rapid.Bool().Draw(t, "labelled") {
			out.Export.Labels, out.Export.Annotations = map[string]string{"a": "b"}, map[string]string{"example.com/c": "d e"}
		}
	}
	found := map[string]peering.ServiceEndpoint{}
	for range rapid.SampledFrom([]int{0, 1, 5, 1400}).Draw(t, "endpoints") {
		e := peering.ServiceEndpoint{
			Address: fmt.Sprintf("10.1.%d.%d", rapid.IntRange(0, 9).Draw(t, "a"), rapid.IntRange(0, 255).Draw(t, "b")),
			Ports:   map[string]int32{"http": rapid.Int32Range(8080, 8081).Draw(t, "target")}, Ready: rapid.Bool().Draw(t, "ready"),
			Hostname: rapid.SampledFrom([]string{"", "web-0"}).Draw(t, "hostname"),
		}
		e.Serving, e.Terminating = e.Ready, !e.Ready
		found[e.Key()] = e
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		out.Service.Endpoints = append(out.Service.Endpoints, found[key])
	}
	return out
}

// However a Service changes, a reader of all messages has its current state, and what did not
// change is not sent again.
func TestExportedServicesAreReadAsTheyAre(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		reader := NewExports([]peering.ServiceName{web})
		var sent *peering.ExportedService
		for range rapid.IntRange(1, 5).Draw(t, "states") {
			now := drawExported(t)
			var got *peering.ExportedService
			for _, m := range ExportTo(now, sent) {
				raw, err := proto.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				if err := CheckParts(raw, m); err != nil {
					t.Fatal(err)
				}
				s, whole, err := reader.Read(m)
				if err != nil {
					t.Fatal(err)
				}
				if got = nil; whole {
					got = &s
				}
			}
			if got == nil && sent == nil {
				t.Fatal("no message for a Service that was not sent yet")
			}
			if got != nil {
				if diff := cmp.Diff(now, *got); diff != "" {
					t.Fatalf("(-want +got)\n%s", diff)
				}
			}
			if again := ExportTo(now, &now); len(again) != 0 {
				t.Fatalf("what did not change was sent again: %v", again)
			}
			sent = &now
		}
	})
}

func TestOneEndpointThatChangesIsOneEndpointOnTheWire(t *testing.T) {
	t.Parallel()
	before := peering.ExportedService{ServiceName: web, Service: peering.ServiceObject{SessionAffinity: "None", Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}}}
	for i := range peering.MaxServiceEndpoints {
		before.Service.Endpoints = append(before.Service.Endpoints, peering.ServiceEndpoint{
			Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250), Ready: true, Serving: true, Ports: map[string]int32{"http": 8080},
		})
	}
	now := before
	now.Service.Endpoints = slices.Clone(before.Service.Endpoints[1:])
	now.Service.Endpoints[7].Ready = false
	messages := ExportTo(now, &before)
	if len(messages) != 1 || len(messages[0].GetUpdatedEndpoints()) != 1 || len(messages[0].GetRemovedEndpoints()) != 1 || messages[0].GetState() != nil || proto.Size(messages[0]) > 200 {
		t.Errorf("%d messages of %d bytes", len(messages), proto.Size(messages[0]))
	}
	reader, n := NewExports([]peering.ServiceName{web}), 0
	for _, m := range ExportTo(before, nil) {
		s, whole, err := reader.Read(m)
		if err != nil {
			t.Fatal(err)
		}
		if whole {
			n = len(s.Service.Endpoints)
		}
	}
	if n != peering.MaxServiceEndpoints {
		t.Errorf("%d of %d endpoints cross", n, peering.MaxServiceEndpoints)
	}
}

func TestHostileExportsAreRefused(t *testing.T) {
	t.Parallel()
	state := func(change ...func(*ententev1.ExportedService)) *ententev1.ExportedService {
		s := &ententev1.ExportedService{
			Service:         &ententev1.OfferedService{Namespace: "shop", Name: "web", Type: "ClusterSetIP", Ports: []*ententev1.OfferedServicePort{{Name: "http", Protocol: "TCP", Port: 80}}},
			SessionAffinity: "None",
		}
		for _, f := range change {
			f(s)
		}
		return s
	}
	name := &ententev1.ServiceName{Namespace: "shop", Name: "web"}
	with := func(ends ...*ententev1.ServiceEndpoint) *ententev1.WatchServicesResponse {
		return &ententev1.WatchServicesResponse{Service: name, State: state(), UpdatedEndpoints: ends, Complete: true}
	}
	exports := func(change func(*ententev1.ServiceExport)) *ententev1.WatchServicesResponse {
		x := &ententev1.ServiceExport{CreateTime: timestamppb.New(time.Unix(1, 0))}
		change(x)
		return &ententev1.WatchServicesResponse{Service: name, State: state(func(s *ententev1.ExportedService) { s.Export = x })}
	}
	many := make([]*ententev1.ServiceEndpoint, 501)
	for i := range many {
		many[i] = &ententev1.ServiceEndpoint{Address: []byte{10, 0, byte(i >> 8), byte(i)}}
	}
	for what, test := range map[string]struct {
		m    *ententev1.WatchServicesResponse
		want string
	}{
		"nothing":                      {&ententev1.WatchServicesResponse{}, "service"},
		"one that was not asked for":   {&ententev1.WatchServicesResponse{Service: &ententev1.ServiceName{Namespace: "kube-system", Name: "web"}, State: state()}, "was not asked for"},
		"a malformed name":             {&ententev1.WatchServicesResponse{Service: &ententev1.ServiceName{Namespace: "shop", Name: "../web"}}, "DNS label"},
		"endpoints without a service":  {&ententev1.WatchServicesResponse{Service: name, Complete: true}, "state"},
		"another service's state":      {&ententev1.WatchServicesResponse{Service: name, State: state(func(s *ententev1.ExportedService) { s.Service.Name = "db" })}, "is not the service"},
		"an unknown type":              {&ententev1.WatchServicesResponse{Service: name, State: state(func(s *ententev1.ExportedService) { s.Service.Type = "LoadBalancer" })}, "later versions"},
		"no state inside":              {&ententev1.WatchServicesResponse{Service: name, State: &ententev1.ExportedService{}}, "state"},
		"an unknown affinity":          {&ententev1.WatchServicesResponse{Service: name, State: state(func(s *ententev1.ExportedService) { s.SessionAffinity = "Sticky" })}, "session_affinity"},
		"an affinity for a year":       {&ententev1.WatchServicesResponse{Service: name, State: state(func(s *ententev1.ExportedService) { s.SessionAffinity, s.SessionAffinitySeconds = "ClientIP", 1<<30 })}, "affinity_seconds"},
		"a port out of range":          {&ententev1.WatchServicesResponse{Service: name, State: state(func(s *ententev1.ExportedService) { s.Service.Ports[0].Port = 1 << 30 })}, "port"},
		"an address of five bytes":     {with(&ententev1.ServiceEndpoint{Address: []byte{1, 2, 3, 4, 5}}), "address"},
		"an IPv4 address as IPv6":      {with(&ententev1.ServiceEndpoint{Address: []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1}}), "address"},
		"an endpoint's port":           {with(&ententev1.ServiceEndpoint{Address: []byte{10, 0, 0, 1}, Ports: map[string]uint32{"http": 1 << 20}}), "65535"},
		"an endpoint's port's name":    {with(&ententev1.ServiceEndpoint{Address: []byte{10, 0, 0, 1}, Ports: map[string]uint32{"HTTP\n": 80}}), "DNS label"},
		"an endpoint's name":           {with(&ententev1.ServiceEndpoint{Address: []byte{10, 0, 0, 1}, Hostname: "web.evil"}), "hostname"},
		"more than a message may have": {with(many...), "at most 500"},
		"an export without a time":     {exports(func(x *ententev1.ServiceExport) { x.CreateTime = nil }), "create_time"},
		"a malformed label":            {exports(func(x *ententev1.ServiceExport) { x.Labels = map[string]string{"a b": "c"} }), "label"},
		"a malformed value of a label": {exports(func(x *ententev1.ServiceExport) { x.Labels = map[string]string{"a": "b\n"} }), "label"},
		"annotations without end":      {exports(func(x *ententev1.ServiceExport) { x.Annotations = map[string]string{"a": strings.Repeat("x", 5000)} }), "4096 bytes"},
		"an unknown traffic policy":    {exports(func(x *ententev1.ServiceExport) { x.InternalTrafficPolicy = "Mine" }), "traffic policy"},
		"a malformed distribution":     {exports(func(x *ententev1.ServiceExport) { x.TrafficDistribution = "a\nb" }), "distribution"},
	} {
		_, _, err := NewExports([]peering.ServiceName{web}).Read(test.m)
		if err == nil || !strings.Contains(violations(err), test.want) {
			t.Errorf("%s: %v %s", what, err, violations(err))
		}
	}
	// A cluster set is bounded, too, and what is refused makes room.
	set := NewClusterSet()
	for i := range peering.MaxServices + 1 {
		n := &ententev1.ServiceName{Namespace: "shop", Name: fmt.Sprintf("s-%d", i)}
		m := &ententev1.WatchServicesResponse{Service: n, State: state(func(s *ententev1.ExportedService) { s.Service.Name = n.GetName() }), Complete: true}
		_, _, err := set.Read(m)
		if (err != nil) != (i == peering.MaxServices) {
			t.Errorf("of %d Services: %v", i+1, err)
		}
		if err == nil {
			continue
		}
		if _, _, err := set.Read(&ententev1.WatchServicesResponse{Service: &ententev1.ServiceName{Namespace: "shop", Name: "s-0"}, Refusal: "gone"}); err != nil {
			t.Error(err)
		}
		if _, _, err := set.Read(m); err != nil {
			t.Errorf("after one is gone: %v", err)
		}
	}
	// Many messages add up.
	reader := NewExports([]peering.ServiceName{web})
	var err error
	for i := 0; i < 12 && err == nil; i++ {
		m := with()
		m.Complete = false
		for j := range 500 {
			m.UpdatedEndpoints = append(m.UpdatedEndpoints, &ententev1.ServiceEndpoint{Address: []byte{10, byte(i), byte(j >> 8), byte(j)}})
		}
		_, _, err = reader.Read(m)
	}
	if err == nil {
		t.Error("more endpoints than a Service may have were taken")
	}
}

func TestNamesOfServicesAreChecked(t *testing.T) {
	t.Parallel()
	n := &ententev1.ServiceName{Namespace: "a", Name: "b"}
	for what, list := range map[string][]*ententev1.ServiceName{
		"none": nil, "one twice": {n, n}, "no namespace": {{Name: "b"}}, "an empty one": {nil}, "too many": slices.Repeat([]*ententev1.ServiceName{n}, 257),
	} {
		if got, err := ServiceNamesFrom("services", list); err == nil {
			t.Errorf("%s: %v", what, got)
		}
	}
	if got, err := ServiceNamesFrom("services", ServiceNamesTo([]peering.ServiceName{web})); err != nil || !slices.Equal(got, []peering.ServiceName{web}) {
		t.Errorf("%v %v", got, err)
	}
}

// violations returns what is wrong with which field.
func violations(err error) string {
	var e *peering.Error
	if !errors.As(err, &e) || len(e.Violations) != 1 {
		return ""
	}
	return e.Violations[0].Field + ": " + e.Violations[0].Message
}
