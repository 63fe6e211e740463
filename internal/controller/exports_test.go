package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// aService returns a Service as an API server has it.
func aService(namespace, name string, edit ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "u-1", ResourceVersion: "7", Labels: map[string]string{"app": name},
			Annotations: map[string]string{"note": "private"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30080}},
		},
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

func labelled(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Labels[key] = value }
}

func keys(services []peering.OfferedService) string {
	var out []string
	for _, s := range services {
		out = append(out, s.Key())
	}
	return strings.Join(out, " ")
}

func TestAPolicySaysWhichServicesAreTold(t *testing.T) {
	t.Parallel()
	all := []corev1.Service{
		*aService("shop", "cart", labelled("tier", "edge")),
		*aService("shop", "db"),
		*aService("shop", "outside", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		}),
		*aService("shop", "kept-back", labelled("tier", "edge"), labelled(v1alpha1.LabelExport, "false")),
		*aService("shop", "from-abroad", labelled(v1alpha1.LabelManaged, v1alpha1.Manager)),
		*aService("shop", "ending", func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: now} }),
		*aService("shop", "broad", func(s *corev1.Service) {
			for i := range int32(peering.MaxServicePorts) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: 1000 + i})
			}
		}),
		*aService("default", "kubernetes"),
		*aService("default", "web"),
		*aService("shop-2", "cart"),
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
		"one twice is told once":         {[]v1alpha1.ServiceExports{{Namespace: "shop", Names: []string{"db"}}, {Namespace: "shop", Names: []string{"db", "cart"}}}, "shop/cart shop/db", 0},
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
			if got := exports(of, all); keys(got.services) != tc.want || got.left != tc.left {
				t.Errorf("told of %q and %d left, want %q and %d", keys(got.services), got.left, tc.want, tc.left)
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
// is, and what is told is always taken.
func TestMoreServicesThanCanBeToldAreLeftOut(t *testing.T) {
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
			all = append(all, *aService("shop", fmt.Sprintf("s-%03d", tc.services-i-1), func(s *corev1.Service) {
				s.Spec.Ports = nil
				for p := range int32(tc.ports) {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: 80 + p})
				}
			}))
		}
		got := exports(of, all)
		if tc.want == 0 { // as many as fit
			tc.want = len(got.services)
		}
		if len(got.services) != tc.want || tc.want == 0 || got.left != tc.services-tc.want || got.services[0].Name != "s-000" {
			t.Errorf("%s: %d told, %d left, from %s", name, len(got.services), got.left, keys(got.services[:1]))
		}
		heard, err := wire.OfferFrom(wire.OfferTo(peering.Offer{Services: got.services}, nil), peering.Offer{})
		if err != nil || len(heard.Services) != len(got.services) {
			t.Errorf("%s: heard %d, %v", name, len(heard.Services), err)
		}
		if (got.left > 0) != strings.Contains(got.String(), "more are not") {
			t.Errorf("%s: it says %q", name, got)
		}
	}
}

func TestNamespacesOfWhichNothingIsTold(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		namespace metav1.ObjectMeta
		closed    bool
	}{
		"anybody's":           {metav1.ObjectMeta{Name: "shop"}, false},
		"one that offloads":   {metav1.ObjectMeta{Name: "shop", Labels: map[string]string{v1alpha1.LabelOffloading: "enabled"}}, false},
		"kube-system":         {metav1.ObjectMeta{Name: "kube-system"}, true},
		"kube-node-lease":     {metav1.ObjectMeta{Name: "kube-node-lease"}, true},
		"the agent's":         {metav1.ObjectMeta{Name: "entente-system"}, true},
		"a consumer's":        {metav1.ObjectMeta{Name: "shop-abcde", Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelPeer: "p"}}, true},
		"one without a label": {metav1.ObjectMeta{Name: "shop-abcde", Labels: map[string]string{v1alpha1.LabelPeer: "p"}}, true},
		"one that ends":       {metav1.ObjectMeta{Name: "shop", DeletionTimestamp: &metav1.Time{Time: now}}, true},
	} {
		if got := closed(&corev1.Namespace{ObjectMeta: tc.namespace}, "entente-system"); got != tc.closed {
			t.Errorf("%s: closed is %v", name, got)
		}
	}
}

func TestACacheKeepsOfServicesWhatIsTold(t *testing.T) {
	t.Parallel()
	slim := SlimService("entente-system")
	for name, s := range map[string]*corev1.Service{
		"one with an address": aService("shop", "cart", labelled("tier", "edge"), func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = new("kubernetes.io/h2c") }),
		"a headless one":      aService("shop", "db", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
		"one without ports":   aService("shop", "db", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports = corev1.ClusterIPNone, nil }),
		"another name": aService("shop", "x", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		}),
		"one that ends":         aService("shop", "x", func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: now} }),
		"one without protocols": aService("shop", "x", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "" }),
	} {
		s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		whole := s.DeepCopy()
		kept, err := slim(s)
		got, ok := kept.(*corev1.Service)
		if err != nil || !ok {
			t.Fatalf("%s: %v, %v", name, kept, err)
		}
		if !offeredService(got).Equal(offeredService(whole)) || withheld(got) != withheld(whole) || serviceDiffers(whole, got) {
			t.Errorf("%s: another thing would be told of %+v", name, got)
		}
		if got.UID != whole.UID || got.ResourceVersion != whole.ResourceVersion {
			t.Errorf("%s: it is another object: %+v", name, got.ObjectMeta)
		}
		if got.Annotations != nil || got.ManagedFields != nil || got.Spec.Selector != nil || got.Spec.ClusterIPs != nil || got.Spec.ExternalName != "" {
			t.Errorf("%s: kept %+v", name, got)
		}
	}
	own := aService("entente-system", "entente-peer")
	want := own.DeepCopy()
	want.ManagedFields = nil
	if got, err := slim(own); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("of the agent's own namespace %+v is kept, %v", got, err)
	}
	if got, err := slim(&corev1.Node{}); err != nil || got == nil {
		t.Errorf("of something else %v is kept, %v", got, err)
	}
}

func TestWhatIsToldOfAService(t *testing.T) {
	t.Parallel()
	got := offeredService(aService("shop", "cart", func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, AppProtocol: new("example.org/dns")})
	}))
	want := peering.OfferedService{Namespace: "shop", Name: "cart", Type: peering.ServiceClusterSetIP, Ports: []peering.ServicePort{
		{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", AppProtocol: "example.org/dns", Port: 53},
	}}
	if !got.Equal(want) {
		t.Errorf("told %+v, want %+v", got, want)
	}
}

// exporting has a policy tell the clusters of these names of services.
func exporting(peer string, entries ...v1alpha1.ServiceExports) func(*v1alpha1.PeeringPolicySpec) {
	return func(s *v1alpha1.PeeringPolicySpec) { s.Names, s.Services = []string{peer}, entries }
}

func TestAPeerIsToldOfWhatItsPolicyExportsAndOfNothingElse(t *testing.T) {
	t.Parallel()
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	theirs := namespace("theirs")
	theirs.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelPeer: "p"}
	all := []v1alpha1.ServiceExports{{Namespace: "shop"}, {Namespace: "theirs"}, {Namespace: "entente-system"}, {Namespace: "gone"}}
	l := newLent(t, 5, append(nodes(1), namespace("shop"), namespace("lab"), namespace("entente-system"), theirs,
		aService("shop", "cart"), aService("shop", "db"), aService("lab", "jobs"), aService("theirs", "web"),
		aService("entente-system", "entente-peer"), aService("gone", "x"),
		policyNamed("0", exporting("peer-0", all...)),
		policyNamed("1", exporting("peer-1", v1alpha1.ServiceExports{Namespace: "lab"})),
		policyNamed("2", exporting("peer-2")),
		policyNamed("3", exporting("peer-3", all...), func(s *v1alpha1.PeeringPolicySpec) { s.Accept = v1alpha1.AcceptNever }),
		policyNamed("4", exporting("peer-4", all...), func(s *v1alpha1.PeeringPolicySpec) { s.NodeLabels = map[string]string{"a b": ""} }),
		// It selects all, and decides about none of them.
		policyNamed("9", func(s *v1alpha1.PeeringPolicySpec) { s.Services = all }),
	)...)
	l.Namespace = "entente-system"
	for peer, want := range []string{"shop/cart shop/db", "lab/jobs", "", "", ""} {
		offer, _ := l.offered(peer)
		if got := keys(offer.Services); got != want || offer.Available != (peer < 3) {
			t.Errorf("peer %d is told of %q, want %q, and lent %v", peer, got, want, offer.Available)
		}
	}
	if offer, _, err := l.Offer(t.Context(), generated(t).ID()); err != nil || len(offer.Services) > 0 {
		t.Errorf("a stranger is told of %q, %v", keys(offer.Services), err)
	}
	// What can be imported does not depend on what else is left.
	if _, err := l.Advertise(t.Context(), l.peers[1].ID(), l.ask("r", "cpu=4", "memory=8Gi", "pods=110")); err != nil {
		t.Fatal(err)
	}
	if offer, _ := l.offered(0); offer.Available || keys(offer.Services) != "shop/cart shop/db" {
		t.Errorf("where nothing is left %+v is offered", offer)
	}
	// The provider's own people are told too.
	if got, err := l.Test(t.Context(), l.peers[0].ID(), l.ask("", "cpu=1")); err != nil || !strings.Contains(got.Message, "services: 2 told") {
		t.Errorf("trying the policy out says %q, %v", got.Message, err)
	}
}

func TestServicesAreFollowed(t *testing.T) {
	t.Parallel()
	l := newLent(t, 2, append(nodes(1), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, aService("shop", "cart"),
		policyNamed("0", exporting("peer-0", v1alpha1.ServiceExports{Namespace: "shop"})), policyNamed("1"))...)
	informers := followed(t, l)
	services, err := informers.FakeInformerFor(t.Context(), &corev1.Service{})
	if err != nil {
		t.Fatal(err)
	}
	policies, err := informers.FakeInformerFor(t.Context(), &v1alpha1.PeeringPolicy{})
	if err != nil {
		t.Fatal(err)
	}
	told := func(want string) <-chan struct{} {
		t.Helper()
		mine, changed := l.offered(0)
		if got := keys(mine.Services); got != want {
			t.Errorf("told of %q, want %q", got, want)
		}
		if others, _ := l.offered(1); len(others.Services) > 0 {
			t.Errorf("another peer is told of %q", keys(others.Services))
		}
		return changed
	}
	ctx := t.Context()
	changed := told("shop/cart")

	db := aService("shop", "db", func(s *corev1.Service) { s.ResourceVersion = "" })
	if err := l.Client.Create(ctx, db); err != nil {
		t.Fatal(err)
	}
	services.Add(db)
	awaitClosed(t, changed)
	changed = told("shop/cart shop/db")

	before := db.DeepCopy()
	db.Labels[v1alpha1.LabelExport] = "false"
	if err := l.Client.Update(ctx, db); err != nil {
		t.Fatal(err)
	}
	services.Update(before, db)
	awaitClosed(t, changed)
	changed = told("shop/cart")

	// What is not told of a Service changes nothing.
	before = db.DeepCopy()
	db.Annotations = map[string]string{"a": "b"}
	services.Update(before, db)
	select {
	case <-changed:
		t.Error("an annotation has offers looked at again")
	case <-time.After(3 * offerDebounce):
	}

	cart := aService("shop", "cart")
	if err := l.Client.Delete(ctx, cart); err != nil {
		t.Fatal(err)
	}
	services.Delete(cart)
	awaitClosed(t, changed)
	changed = told("")

	// Where no policy tells of any, nobody looks.
	var p v1alpha1.PeeringPolicy
	if err := l.Client.Get(ctx, client.ObjectKey{Name: "0"}, &p); err != nil {
		t.Fatal(err)
	}
	was := p.DeepCopy()
	p.Spec.Services, p.Generation = nil, p.Generation+1
	if err := l.Client.Update(ctx, &p); err != nil {
		t.Fatal(err)
	}
	policies.Update(was, &p)
	awaitClosed(t, changed)
	changed = told("")
	services.Add(aService("shop", "more"))
	select {
	case <-changed:
		t.Error("a Service that nobody is told of has offers looked at again")
	case <-time.After(3 * offerDebounce):
	}
}

func TestWhatOfServicesCountsAsAChange(t *testing.T) {
	t.Parallel()
	s, n := aService("shop", "cart"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	for name, tc := range map[string]struct {
		differs       func(a, b any) bool
		before, after client.Object
		want          bool
	}{
		"a selector":       {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Selector = nil }), false},
		"a load balancer":  {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }), false},
		"a port":           {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }), true},
		"a protocol":       {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = new("http") }), true},
		"a label":          {serviceDiffers, s, with(s, labelled("a", "b")), true},
		"its end":          {serviceDiffers, s, with(s, func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: now} }), true},
		"another name":     {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), true},
		"a namespace":      {namespaceDiffers, n, with(n, func(n *corev1.Namespace) { n.Annotations = map[string]string{"a": "b"} }), false},
		"a namespace ours": {namespaceDiffers, n, with(n, func(n *corev1.Namespace) { n.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager} }), true},
		"a namespace gone": {namespaceDiffers, n, with(n, func(n *corev1.Namespace) { n.DeletionTimestamp = &metav1.Time{Time: now} }), true},
	} {
		if got := tc.differs(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: a change is %v, want %v", name, got, tc.want)
		}
	}
}

func TestServicesOfAnOfferAreKept(t *testing.T) {
	t.Parallel()
	service := peering.OfferedService{Namespace: "shop", Name: "cart", Type: peering.ServiceHeadless, Ports: []peering.ServicePort{
		{Name: "http", Protocol: "TCP", AppProtocol: "https", Port: 443},
	}}
	got, err := offerStatus(peering.Offer{Message: "nothing is left", Services: []peering.OfferedService{service}})
	want := []v1alpha1.OfferedService{{Namespace: "shop", Name: "cart", Type: v1alpha1.ServiceHeadless, Ports: []v1alpha1.OfferedServicePort{
		{Name: "http", Protocol: corev1.ProtocolTCP, AppProtocol: "https", Port: 443},
	}}}
	if err != nil || !reflect.DeepEqual(got.Services, want) || got.Available {
		t.Errorf("kept %+v, %v", got, err)
	}
	// A Service that comes or goes is no small change, and waits as another price does.
	kept := peering.Offer{Available: true}
	if got := (offerPace{&kept, now}).wait(peering.Offer{Available: true, Services: []peering.OfferedService{service}}, now); got != offerWrite {
		t.Errorf("a new service waits %s", got)
	}
}
