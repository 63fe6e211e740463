package allow

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestPlanListsAddressesByTheirPorts(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	tcp := func(port int32) v1alpha1.DestinationPort {
		return v1alpha1.DestinationPort{Protocol: "TCP", Port: port}
	}
	got, closed := Plan([]Exposed{{Contract: "c", Namespace: "shop", From: []netip.Addr{addr("10.240.0.2"), addr("10.240.0.1"), addr("10.240.0.2")}, To: []Destination{
		{addr("10.200.0.9"), tcp(80)},
		{addr("10.200.0.3"), tcp(443)},
		{addr("10.200.0.3"), tcp(80)},
		{addr("10.200.0.8"), tcp(80)},
		{addr("10.200.0.9"), tcp(80)},
		{addr("10.200.0.9"), tcp(443)},
	}}}, nil)
	want := []v1alpha1.Exposure{{Contract: "c", Namespace: "shop", From: []string{"10.240.0.1", "10.240.0.2"}, To: []v1alpha1.Destination{
		{Addresses: []string{"10.200.0.3", "10.200.0.9"}, Ports: []v1alpha1.DestinationPort{tcp(80), tcp(443)}},
		{Addresses: []string{"10.200.0.8"}, Ports: []v1alpha1.DestinationPort{tcp(80)}},
	}}}
	if diff := cmp.Diff(want, got); diff != "" || closed != "" {
		t.Errorf("closed %q, allow (-want +got):\n%s", closed, diff)
	}
}

func TestPlanKeepsWhatIsNotKnownYet(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	http := v1alpha1.DestinationPort{Protocol: "TCP", Port: 80}
	web := func(contract, namespace, from string) v1alpha1.Exposure {
		return v1alpha1.Exposure{Contract: contract, Namespace: namespace, From: []string{from}, To: []v1alpha1.Destination{
			{Addresses: []string{"10.200.0.7"}, Ports: []v1alpha1.DestinationPort{http}},
		}}
	}
	provided := v1alpha1.Exposure{Contract: "provided", AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{"10.200.0.9"}, AnyPort: true}}}
	standing := []v1alpha1.Exposure{web("a", "shop", "10.240.0.1"), web("b", "shop", "10.240.0.2"), web("gone", "shop", "10.240.0.3"), provided}
	for name, tc := range map[string]struct {
		exposed []Exposed
		want    []v1alpha1.Exposure
	}{
		"nothing is known":              {[]Exposed{{Contract: "a", Unknown: true}, {Contract: "b", Unknown: true}, {Contract: "provided", Unknown: true}}, []v1alpha1.Exposure{standing[0], standing[1], provided}},
		"one is known":                  {[]Exposed{{Contract: "a"}, {Contract: "b", Unknown: true}}, standing[1:2]},
		"all is known":                  {nil, nil},
		"what is new comes beside":      {[]Exposed{{Contract: "a", Unknown: true}, {Contract: "a", Namespace: "bank", From: []netip.Addr{addr("10.240.0.1")}, To: []Destination{{addr("10.200.0.7"), http}}}}, []v1alpha1.Exposure{web("a", "bank", "10.240.0.1"), standing[0]}},
		"what is known is not repeated": {[]Exposed{{Contract: "a", Unknown: true}, {Contract: "a", Namespace: "shop", From: []netip.Addr{addr("10.240.0.1")}, To: []Destination{{addr("10.200.0.7"), http}}}}, standing[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _ := Plan(tc.exposed, standing)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("allow (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanIsBounded(t *testing.T) {
	t.Parallel()
	many := func(n int) []Destination {
		var out []Destination
		a := netip.MustParseAddr("10.200.0.0")
		for range n {
			a = a.Next()
			out = append(out, Destination{a, v1alpha1.DestinationPort{Protocol: "TCP", Port: 80}})
		}
		return out
	}
	source := []netip.Addr{netip.MustParseAddr("10.240.0.1")}
	var namespaces []Exposed
	for i := range MaxExposures + 1 {
		namespaces = append(namespaces, Exposed{Contract: "c", Namespace: strings.Repeat("n", i+1), From: source, To: many(1)})
	}
	ports := Exposed{Contract: "c", Namespace: "n", From: source}
	for i := range int32(MaxExposed + 1) {
		ports.To = append(ports.To, Destination{source[0], v1alpha1.DestinationPort{Protocol: "TCP", Port: i}})
	}
	pod := Exposed{Contract: "c", Namespace: "n", From: source, To: slices.Clone(ports.To[:maxPorts+101])}
	for name, exposed := range map[string][]Exposed{
		"ports of a pod": {pod},
		"addresses":      {{Contract: "c", Namespace: "n", From: source, To: many(MaxExposed + 1)}},
		"ports":          {ports},
		"namespaces":     namespaces,
		"sources":        {{Contract: "c", Namespace: "n", From: addrsOf(many(MaxExposed + 1)), To: many(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, closed := Plan(exposed, nil)
			size := 0
			for _, e := range got {
				size += len(e.From) + sizeOf(e.To)
				for _, d := range e.To {
					if len(d.Ports) > maxPorts {
						t.Errorf("an address has %d ports, more than the custom resource takes", len(d.Ports))
					}
				}
			}
			if size > MaxExposed || len(got) > MaxExposures {
				t.Errorf("%d exposures with %d addresses and ports", len(got), size)
			}
			if !strings.Contains(closed, "the rest is closed") {
				t.Errorf("the text about what is closed is %q", closed)
			}
		})
	}
	if got, closed := Plan(namespaces[:MaxExposures], nil); len(got) != MaxExposures || closed != "" {
		t.Errorf("%d exposures, %q, want all %d", len(got), closed, MaxExposures)
	}
}

func addrsOf(list []Destination) []netip.Addr {
	var out []netip.Addr
	for _, d := range list {
		out = append(out, d.Addr)
	}
	return out
}

// What a Tunnel lists at most is what the custom resource takes.
func TestATunnelTakesAsMuchAsIsPlanned(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../charts/entente/files/crds/entente.dev_tunnels.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	takes := func(list apiextensionsv1.JSONSchemaProps, what string, want int64) apiextensionsv1.JSONSchemaProps {
		t.Helper()
		field := list.Properties[what]
		if field.MaxItems == nil || *field.MaxItems != want {
			t.Errorf("%s has at most %v items, planned are %d", what, field.MaxItems, want)
		}
		if field.Items == nil {
			t.Fatalf("%s is not a list", what)
		}
		return *field.Items.Schema
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	exposure := takes(spec, "allow", MaxExposures)
	takes(exposure, "from", MaxExposed)
	destination := takes(exposure, "to", MaxExposed)
	takes(destination, "addresses", MaxExposed)
	takes(destination, "ports", maxPorts)
}

func TestExposuresMeetInWhatBothOpen(t *testing.T) {
	t.Parallel()
	to := func(ports ...int32) []v1alpha1.Destination {
		d := v1alpha1.Destination{Addresses: []string{"10.0.0.7"}, AnyPort: len(ports) == 0}
		for _, p := range ports {
			d.Ports = append(d.Ports, v1alpha1.DestinationPort{Protocol: corev1.ProtocolTCP, Port: p})
		}
		return []v1alpha1.Destination{d}
	}
	x := func(every bool, to []v1alpha1.Destination, from ...string) []v1alpha1.Exposure {
		return []v1alpha1.Exposure{{Contract: "c", Namespace: "n", AnySource: every, From: from, To: to}}
	}
	until := func(x []v1alpha1.Exposure, hour int) []v1alpha1.Exposure {
		end := metav1.Date(2030, 1, 1, hour, 0, 0, 0, time.UTC)
		x[0].Until = &end
		return x
	}
	for name, tc := range map[string]struct{ a, b, want []v1alpha1.Exposure }{
		"sources":                {x(false, to(80), "10.1.0.1", "10.1.0.2"), x(false, to(80), "10.1.0.2", "10.1.0.3"), x(false, to(80), "10.1.0.2")},
		"no common source":       {x(false, to(80), "10.1.0.1"), x(false, to(80), "10.1.0.3"), nil},
		"any source of one":      {x(true, to(80)), x(false, to(80), "10.1.0.3"), x(false, to(80), "10.1.0.3")},
		"ports":                  {x(true, to(80, 443)), x(true, to(443, 8080)), x(true, to(443))},
		"any port of one":        {x(true, to()), x(true, to(443, 8080)), x(true, to(443, 8080))},
		"any port of the other":  {x(true, to(443)), x(true, to()), x(true, to(443))},
		"any port of both":       {x(true, to()), x(true, to()), x(true, to())},
		"the later end":          {until(x(true, to()), 1), until(x(true, to()), 2), until(x(true, to()), 1)},
		"the earlier end":        {until(x(true, to()), 2), until(x(true, to()), 1), until(x(true, to()), 1)},
		"no end of one":          {x(true, to()), until(x(true, to()), 1), until(x(true, to()), 1)},
		"no end of the other":    {until(x(true, to()), 1), x(true, to()), until(x(true, to()), 1)},
		"what one does not have": {x(true, to()), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, Common(tc.a, tc.b), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Pods of other peers come after what a peer has by its own contracts, each namespace as a whole or not at all.
func TestPodsOfOtherPeersAreOpenAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	many := func(n int) (out []netip.Addr) {
		for a := addr("10.240.1.0"); len(out) < n; a = a.Next() {
			out = append(out, a)
		}
		return out
	}
	at := func(port int32) []Destination {
		return []Destination{{addr("10.200.0.7"), v1alpha1.DestinationPort{Protocol: corev1.ProtocolTCP, Port: port}}}
	}
	of := func(contract, home string, from []netip.Addr, to []Destination) Exposed {
		return Exposed{Contract: contract, Namespace: "shop", Home: home, From: from, To: to}
	}
	own := Exposed{Contract: "z", Namespace: "shop", From: many(2), To: at(80)}
	for name, tc := range map[string]struct {
		exposed []Exposed
		want    string // contracts in order
	}{
		"one":                            {[]Exposed{of("a", "b", many(3), at(80))}, "a"},
		"after its own":                  {[]Exposed{of("a", "b", []netip.Addr{addr("10.240.9.9")}, at(80)), own}, "z a"},
		"a source that is another's pod": {[]Exposed{of("a", "b", many(1), at(80)), own}, "z"},
		"a source of two homes":          {[]Exposed{of("a", "b", many(1), at(80)), of("c", "d", many(2), at(80))}, "a"},
		"as much as its share":           {[]Exposed{of("a", "b", many(maxDirect-2), at(80))}, "a"},
		"more than its share":            {[]Exposed{of("a", "b", many(maxDirect-1), at(80))}, ""},
		"every port":                     {[]Exposed{of("a", "b", many(1), []Destination{{Addr: addr("10.200.0.7")}})}, ""},
		"no source":                      {[]Exposed{of("a", "b", nil, at(80))}, ""},
		"no destination":                 {[]Exposed{of("a", "b", many(1), nil)}, ""},
		"beside what all pods reach":     {[]Exposed{{Contract: "y", AnySource: true, To: at(80)}, of("a", "b", many(1), at(80))}, "y a"},
	} {
		got, closed := Plan(tc.exposed, nil)
		var names []string
		for _, x := range got {
			names = append(names, x.Contract)
			if x.Contract == "a" && (x.HomePeerID != "b" || len(x.From) != len(tc.exposed[slices.IndexFunc(tc.exposed, func(e Exposed) bool { return e.Contract == "a" })].From)) {
				t.Errorf("%s: %+v", name, x)
			}
		}
		if strings.Join(names, " ") != tc.want || closed != "" {
			t.Errorf("%s: open are %v, want %q; closed %q", name, names, tc.want, closed)
		}
	}
	both := []Exposed{of("a", "b", many(1), at(80)), of("c", "d", many(2), at(80))}
	first, _ := Plan(both[1:], nil)
	if got, _ := Plan(both, first); !cmp.Equal(got, first) {
		t.Errorf("another home took the sources of one that stands: %+v", got)
	}
	two := []Exposed{of("a", "b", many(2), at(80)), of("c", "b", many(2), at(443))}
	if got, _ := Plan(two, nil); len(got) != 2 {
		t.Errorf("of two contracts of one home in a namespace these are open: %+v", got)
	} else if again, _ := Plan(two, got[1:]); !cmp.Equal(again, got) {
		t.Errorf("the order depends on what stood before: %+v", again)
	}
	until := metav1.NewTime(time.Unix(2e9, 0))
	standing, _ := Plan([]Exposed{{Contract: "a", Namespace: "shop", Home: "b", Until: until, From: many(1), To: at(80)}}, nil)
	again, _ := Plan([]Exposed{{Contract: "a", Unknown: true}}, standing)
	if diff := cmp.Diff(standing, again); diff != "" || standing[0].Until == nil {
		t.Errorf("what is not known yet (-want +got):\n%s", diff)
	}
	if common := Common(standing, again); !cmp.Equal(common, standing) {
		t.Errorf("common is %+v", common)
	}
}

// What namespaces open to others takes only what room is left beside what each has of its own, the smallest first.
func TestWhatIsOpenedToOthersClosesNothingOfTheirOwn(t *testing.T) {
	t.Parallel()
	at := func(third byte, ports int32) (out []Destination) {
		for p := range ports {
			out = append(out, Destination{netip.AddrFrom4([4]byte{10, 200, third, 1}), v1alpha1.DestinationPort{Protocol: corev1.ProtocolTCP, Port: p + 1}})
		}
		return out
	}
	endpoints := func(n int) (out []Destination) {
		for i := range n {
			out = append(out, Destination{netip.AddrFrom4([4]byte{10, 201, byte(i >> 8), byte(i)}), v1alpha1.DestinationPort{Protocol: corev1.ProtocolTCP, Port: 5432}})
		}
		return out
	}
	clients := func(n int, opened map[string][]Destination) (out []Exposed) {
		for i := range n {
			out = append(out, Exposed{Contract: "c", Namespace: string(rune('a' + i)), From: []netip.Addr{netip.AddrFrom4([4]byte{10, 240, 0, byte(i)})}, To: at(byte(i), 1), Opened: opened})
		}
		return out
	}
	product := func(addresses int, ports int32) (out []Destination) {
		for i := range addresses {
			out = append(out, at(byte(100+i), ports)...)
		}
		return out
	}
	for name, tc := range map[string]struct {
		exposed []Exposed
		open    int // flows
		left    string
	}{
		"what fits":                    {clients(10, map[string][]Destination{"data": endpoints(3)}), 10 * (1 + 3), ""},
		"too many addresses":           {clients(20, map[string][]Destination{"data": endpoints(1000), "login": endpoints(2)}), 20 * (1 + 2), "data"},
		"too many flows":               {clients(20, map[string][]Destination{"data": product(10, 200), "login": endpoints(2)}), 20 * (1 + 2), "data"},
		"to those that have no others": {[]Exposed{{Contract: "c", Namespace: "a", From: []netip.Addr{netip.MustParseAddr("10.240.0.1")}, Opened: map[string][]Destination{"data": endpoints(3)}}}, 3, ""},
		"more ports of an address":     {clients(1, map[string][]Destination{"data": at(0, maxPorts+1)}), 1, "data"},
		"to nobody":                    {[]Exposed{{Contract: "c", Namespace: "a", Opened: map[string][]Destination{"data": endpoints(3)}}}, 0, ""},
	} {
		got, closed := Plan(tc.exposed, nil)
		open := 0
		for i, x := range got {
			flows := openOf(x.To)
			if open += len(flows); len(tc.exposed[i].To) > 0 && !flows[tc.exposed[i].To[0]] {
				t.Errorf("%s: namespace %s has nothing of its own", name, x.Namespace)
			}
		}
		if open != tc.open || (closed == "") != (tc.left == "") || !strings.Contains(closed, tc.left) {
			t.Errorf("%s: %d flows are open, want %d; closed is %q, want %q", name, open, tc.open, closed, tc.left)
		}
		if again, _ := Plan(tc.exposed, got); !cmp.Equal(got, again) {
			t.Errorf("%s: another plan of the same differs", name)
		}
	}
}
