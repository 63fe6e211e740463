package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// opens reports whether a plan lets a source open a flow to a destination.
func (in Inbound) opens(source netip.Addr, d Destination) bool {
	var classes []Class
	for _, p := range in.Prefixes {
		if p.Prefix.Contains(source) {
			classes = append(classes, p.Class)
		}
	}
	for _, s := range in.Sources {
		if s.Source == source {
			classes = append(classes, s.Class)
		}
	}
	return slices.ContainsFunc(in.Open, func(o Opening) bool {
		return slices.Contains(classes, o.Class) && o.Addr == d.Addr && (o.Protocol == 0 || o.Protocol == d.Protocol && o.Port == d.Port)
	})
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// A source of one namespace reaches the destinations of that namespace, on their
// ports, and nothing else.
func TestPlanKeepsPortsAndNamespacesApart(t *testing.T) {
	d := home("worker")
	web, db := Destination{addr("10.200.2.9"), TCP, 80}, Destination{addr("10.200.2.10"), TCP, 5432}
	d.Peers[0].Inbound = []Exposure{
		{Name: "shop", Sources: []netip.Addr{addr("10.242.0.1"), addr("10.242.0.3")}, Destinations: []Destination{web}},
		{Name: "bank", Sources: []netip.Addr{addr("10.242.0.2"), addr("10.242.0.3")}, Destinations: []Destination{db}},
	}
	got, err := Plan(d, Observed{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		source string
		to     Destination
		want   bool
	}{
		{"10.242.0.1", web, true},
		{"10.242.0.1", Destination{web.Addr, TCP, 81}, false},
		{"10.242.0.1", Destination{web.Addr, UDP, 80}, false},
		{"10.242.0.1", db, false},
		{"10.242.0.2", web, false},
		{"10.242.0.2", db, true},
		{"10.242.0.3", web, true},
		{"10.242.0.3", db, true},
		{"10.242.0.4", web, false},
	} {
		if open := got.Inbound.opens(addr(tc.source), tc.to); open != tc.want {
			t.Errorf("%s to %v: open is %t, want %t", tc.source, tc.to, open, tc.want)
		}
	}
}

func TestPlanOpensNamedFlowsOnly(t *testing.T) {
	sources := []netip.Addr{addr("10.242.0.1"), addr("10.242.0.2"), addr("10.242.9.9"), addr("10.9.0.1")}
	destinations := []Destination{
		{Addr: addr("10.200.2.9")}, {addr("10.200.2.9"), TCP, 80}, {addr("10.200.2.9"), UDP, 53}, {addr("10.200.1.7"), TCP, 80}, {addr("192.0.2.1"), TCP, 80},
	}
	rapid.Check(t, func(t *rapid.T) {
		d := home("worker")
		d.Peers[0].Inbound = nil
		for i := range rapid.IntRange(0, 5).Draw(t, "exposures") {
			d.Peers[0].Inbound = append(d.Peers[0].Inbound, Exposure{
				Name: fmt.Sprint(i), AnySource: rapid.Bool().Draw(t, "any"),
				Sources:      rapid.SliceOf(rapid.SampledFrom(sources)).Draw(t, "sources"),
				Destinations: rapid.SliceOf(rapid.SampledFrom(destinations)).Draw(t, "destinations"),
			})
		}
		got, err := Plan(d, Observed{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Inbound.Sources[:max(len(got.Inbound.Sources)-1, 0)] {
			if got.Inbound.Sources[i].Source == got.Inbound.Sources[i+1].Source {
				t.Fatalf("source %v has two classes", got.Inbound.Sources[i].Source)
			}
		}
		for _, s := range sources {
			for _, to := range destinations {
				want := s != addr("10.9.0.1") && to.Addr != addr("192.0.2.1") && slices.ContainsFunc(d.Peers[0].Inbound, func(e Exposure) bool {
					return (e.AnySource || slices.Contains(e.Sources, s)) && (slices.Contains(e.Destinations, to) || slices.Contains(e.Destinations, Destination{Addr: to.Addr}))
				})
				if open := got.Inbound.opens(s, to); open != want {
					t.Fatalf("%v to %v: open is %t, want %t", s, to, open, want)
				}
			}
		}
	})
}

func TestPlanLeavesFlowsClosedThatDoNotFit(t *testing.T) {
	most := make([]Destination, 0, maxInbound+1)
	for i := range maxInbound + 1 {
		most = append(most, Destination{addr("10.200.2.9"), Protocol(1 + i/60000), uint16(1 + i%60000)})
	}
	web := []Destination{{addr("10.200.2.9"), TCP, 80}}
	for name, tt := range map[string]struct {
		open []Exposure
		want string
	}{
		"a source of another peer":    {[]Exposure{{Name: "a", Sources: []netip.Addr{addr("10.9.0.1")}, Destinations: web}}, "not from an alias"},
		"an address without an alias": {[]Exposure{{Name: "a", AnySource: true, Destinations: []Destination{{addr("192.0.2.1"), TCP, 80}}}}, "not in a prefix that the peer can reach"},
		"more than fits":              {[]Exposure{{Name: "a", AnySource: true, Destinations: most}}, "maxInbound"},
		"a port without protocol":     {[]Exposure{{Name: "a", AnySource: true, Destinations: []Destination{{addr("10.200.2.9"), 0, 80}}}}, "name both or none"},
		"a protocol without port":     {[]Exposure{{Name: "a", AnySource: true, Destinations: []Destination{{addr("10.200.2.9"), TCP, 0}}}}, "name both or none"},
		"two of the same name":        {[]Exposure{{Name: "a", Destinations: web}, {Name: "a"}}, "two exposures"},
	} {
		t.Run(name, func(t *testing.T) {
			d := home("gw")
			d.Peers[0].Inbound = tt.open
			got, err := Plan(d, Observed{})
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Inbound.Open) > 0 || len(got.Inbound.Sources) > 0 || len(got.Inbound.Prefixes) > 0 {
				t.Errorf("open is %+v, want nothing", got.Inbound)
			}
			if len(got.Translations) == 0 {
				t.Error("the peer lost its tunnel")
			}
			if !slices.ContainsFunc(got.Problems, func(p Problem) bool { return p.Peer == "away" && strings.Contains(p.Text, tt.want) }) {
				t.Errorf("problems %v, want one with %q", got.Problems, tt.want)
			}
		})
	}
}

// A peer announces the namespaces of its addresses, and so could make
// a class of each set of namespaces. Sources of one namespace go first.
func TestPlanBoundsClassesOfAPeer(t *testing.T) {
	d := home("gw")
	const namespaces = 12
	exposures := make([]Exposure, namespaces)
	source := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 242, byte(i >> 8), byte(i)}) }
	for n := range exposures {
		exposures[n] = Exposure{Name: fmt.Sprint("c/", n), Destinations: []Destination{{addr("10.200.2.9"), TCP, uint16(1 + n)}}}
		for set := 1; set < 1<<namespaces; set++ {
			if set&(1<<n) != 0 {
				exposures[n].Sources = append(exposures[n].Sources, source(set))
			}
		}
	}
	d.Peers[0].Inbound = exposures
	got, err := Plan(d, Observed{})
	if err != nil {
		t.Fatal(err)
	}
	classes := map[Class]bool{}
	for _, o := range got.Inbound.Open {
		classes[o.Class] = true
	}
	if len(classes) != maxClasses {
		t.Errorf("%d classes, want %d", len(classes), maxClasses)
	}
	for n := range namespaces {
		if to := (Destination{addr("10.200.2.9"), TCP, uint16(1 + n)}); !got.Inbound.opens(source(1<<n), to) {
			t.Errorf("the source of namespace %d alone cannot reach it", n)
		}
	}
	if !slices.ContainsFunc(got.Problems, func(p Problem) bool { return p.Peer == "away" && strings.Contains(p.Text, "maxClasses") }) {
		t.Errorf("problems %v, want one about maxClasses", got.Problems)
	}
}
