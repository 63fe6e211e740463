package market

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func keys(services []peering.OfferedService) string {
	var out []string
	for _, s := range services {
		out = append(out, s.Key())
	}
	return strings.Join(out, " ")
}

func TestExportsSelectServicesByPolicy(t *testing.T) {
	t.Parallel()
	all := []corev1.Service{
		*fixture.Service("shop", "cart", fixture.Labelled("tier", "edge")),
		*fixture.Service("shop", "db"),
		*fixture.Service("shop", "outside", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		}),
		*fixture.Service("shop", "kept-back", fixture.Labelled("tier", "edge"), fixture.Labelled(v1alpha1.LabelExport, "false")),
		*fixture.Service("shop", "from-abroad", fixture.Labelled(v1alpha1.LabelManaged, v1alpha1.Manager)),
		*fixture.Service("shop", "ending", func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: now} }),
		*fixture.Service("shop", "broad", func(s *corev1.Service) {
			for i := range int32(peering.MaxServicePorts) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: 1000 + i})
			}
		}),
		*fixture.Service("default", "kubernetes"),
		*fixture.Service("default", "web"),
		*fixture.Service("shop-2", "cart"),
	}
	selector := func(expressions ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: expressions}
	}
	for name, tc := range map[string]struct {
		entries []v1alpha1.ServiceExports
		want    string
		left    int
	}{
		"none by default":                {nil, "", 0},
		"all of a namespace":             {[]v1alpha1.ServiceExports{{Namespace: "shop"}}, "shop/cart shop/db", 1},
		"by name":                        {[]v1alpha1.ServiceExports{{Namespace: "shop", Names: []string{"db", "not-there"}}}, "shop/db", 0},
		"by label":                       {[]v1alpha1.ServiceExports{{Namespace: "shop", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "edge"}}}}, "shop/cart", 0},
		"by the absence of a label":      {[]v1alpha1.ServiceExports{{Namespace: "shop", Selector: selector(metav1.LabelSelectorRequirement{Key: "tier", Operator: metav1.LabelSelectorOpDoesNotExist})}}, "shop/db", 1},
		"an empty selector is all":       {[]v1alpha1.ServiceExports{{Namespace: "shop", Selector: &metav1.LabelSelector{}}}, "shop/cart shop/db", 1},
		"one twice is exported once":     {[]v1alpha1.ServiceExports{{Namespace: "shop", Names: []string{"db"}}, {Namespace: "shop", Names: []string{"db", "cart"}}}, "shop/cart shop/db", 0},
		"several namespaces":             {[]v1alpha1.ServiceExports{{Namespace: "shop-2"}, {Namespace: "default"}, {Namespace: "shop", Names: []string{"cart"}}}, "default/web shop/cart shop-2/cart", 0},
		"what is withheld not by name":   {[]v1alpha1.ServiceExports{{Namespace: "shop", Names: []string{"outside", "kept-back", "from-abroad", "ending"}}}, "", 0},
		"nor the API server":             {[]v1alpha1.ServiceExports{{Namespace: "default", Names: []string{"kubernetes"}}}, "", 0},
		"a namespace that is not there":  {[]v1alpha1.ServiceExports{{Namespace: "nowhere"}}, "", 0},
		"one with more ports than go":    {[]v1alpha1.ServiceExports{{Namespace: "shop", Names: []string{"broad"}}}, "", 1},
		"the same name, other namespace": {[]v1alpha1.ServiceExports{{Namespace: "shop-2", Names: []string{"cart"}}}, "shop-2/cart", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of, err := readExports(tc.entries)
			if err != nil {
				t.Fatal(err)
			}
			if got := Exports(of, all, none); keys(got.services) != tc.want || got.left != tc.left {
				t.Errorf("exported %q and %d left, want %q and %d", keys(got.services), got.left, tc.want, tc.left)
			}
		})
	}
	for name, entry := range map[string]v1alpha1.ServiceExports{
		"names and a selector":         {Namespace: "shop", Names: []string{"a"}, Selector: &metav1.LabelSelector{}},
		"a malformed selector":         {Namespace: "shop", Selector: selector(metav1.LabelSelectorRequirement{Key: "a", Operator: "Near"})},
		"a selector of no label's key": {Namespace: "shop", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}},
	} {
		if _, err := readExports([]v1alpha1.ServiceExports{entry}); err == nil || !strings.Contains(err.Error(), "services[0]") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// What is beyond the limits is left out from the end, so that the rest stays as it
// is, and the receiver accepts what is sent.
func TestExportsAreBounded(t *testing.T) {
	t.Parallel()
	of, err := readExports([]v1alpha1.ServiceExports{{Namespace: "shop"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ services, ports, want int }{
		"as many as there may be": {peering.MaxServices, 1, peering.MaxServices},
		"too many":                {peering.MaxServices + 44, 1, peering.MaxServices},
		"too large":               {300, 20, 0},
	} {
		var all []corev1.Service
		for i := range tc.services {
			all = append(all, *fixture.Service("shop", fmt.Sprintf("s-%03d", tc.services-i-1), func(s *corev1.Service) {
				s.Spec.Ports = nil
				for p := range int32(tc.ports) {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: 80 + p})
				}
			}))
		}
		got := Exports(of, all, none)
		if tc.want == 0 { // as many as fit
			tc.want = len(got.services)
		}
		if len(got.services) != tc.want || tc.want == 0 || got.left != tc.services-tc.want || got.services[0].Name != "s-000" {
			t.Errorf("%s: %d exported, %d left, from %s", name, len(got.services), got.left, keys(got.services[:1]))
		}
		received, err := wire.OfferFrom(wire.OfferTo(peering.Offer{Services: got.services}, nil), peering.Offer{})
		if err != nil || len(received.Services) != len(got.services) {
			t.Errorf("%s: received %d, %v", name, len(received.Services), err)
		}
		if (got.left > 0) != strings.Contains(got.String(), "more are not") {
			t.Errorf("%s: the summary is %q", name, got)
		}
	}
}

func TestExportedServiceSaysItsPorts(t *testing.T) {
	t.Parallel()
	got := OfferedService(fixture.Service("shop", "cart", func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, AppProtocol: new("example.org/dns")})
	}))
	want := peering.OfferedService{Namespace: "shop", Name: "cart", Type: peering.ServiceClusterSetIP, Ports: []peering.ServicePort{
		{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", AppProtocol: "example.org/dns", Port: 53},
	}}
	if !got.Equal(want) {
		t.Errorf("exported %+v, want %+v", got, want)
	}
}

func none(*corev1.Service) bool { return false }

// What is exported to a cluster set is offered whether the policy lists it or not, but never what is never exported.
func TestAClusterSetAddsToWhatIsListed(t *testing.T) {
	t.Parallel()
	all := []corev1.Service{
		*fixture.Service("shop", "cart"), *fixture.Service("shop", "db"), *fixture.Service("shop", "kept-back", fixture.Labelled(v1alpha1.LabelExport, "false")),
		*fixture.Service("shop", "from-abroad", fixture.Labelled(v1alpha1.LabelManaged, v1alpha1.Manager)), *fixture.Service("shop-2", "cart"), *fixture.Service("shop-2", "web"),
	}
	set := func(s *corev1.Service) bool {
		return s.Name == "cart" || s.Name == "kept-back" || s.Name == "from-abroad"
	}
	of, err := readExports([]v1alpha1.ServiceExports{{Namespace: "shop", Names: []string{"db"}}})
	if err != nil {
		t.Fatal(err)
	}
	got := Exports(of, all, set)
	if keys(got.services) != "shop-2/cart shop/cart shop/db" && keys(got.services) != "shop/cart shop/db shop-2/cart" {
		t.Errorf("exported %s", keys(got.services))
	}
	for _, s := range got.services {
		if s.InSet != (s.Name == "cart") {
			t.Errorf("%s is in the set: %t", s.Key(), s.InSet)
		}
	}
}
