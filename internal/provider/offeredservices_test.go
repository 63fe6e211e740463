package provider

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/peering"
)

func TestClosedNamespacesExportNoService(t *testing.T) {
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
		if got := market.Closed(&corev1.Namespace{ObjectMeta: tc.namespace}, "entente-system"); got != tc.closed {
			t.Errorf("%s: closed is %v", name, got)
		}
	}
}

// exporting makes a policy export Services to clusters of these names.
func exporting(peer string, entries ...v1alpha1.ServiceExports) func(*v1alpha1.PeeringPolicySpec) {
	return func(s *v1alpha1.PeeringPolicySpec) { s.Names, s.Services = []string{peer}, entries }
}

func TestOfferHasTheServicesOfThePeersPolicyOnly(t *testing.T) {
	t.Parallel()
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	theirs := namespace("theirs")
	theirs.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelPeer: "p"}
	all := []v1alpha1.ServiceExports{{Namespace: "shop"}, {Namespace: "theirs"}, {Namespace: "entente-system"}, {Namespace: "gone"}}
	p := newProvider(t, 5, append(nodes(1), namespace("shop"), namespace("lab"), namespace("entente-system"), theirs,
		fixture.Service("shop", "cart"), fixture.Service("shop", "db"), fixture.Service("lab", "jobs"), fixture.Service("theirs", "web"),
		fixture.Service("entente-system", "entente-peer"), fixture.Service("gone", "x"),
		policyNamed("0", exporting("peer-0", all...)),
		policyNamed("1", exporting("peer-1", v1alpha1.ServiceExports{Namespace: "lab"})),
		policyNamed("2", exporting("peer-2")),
		policyNamed("3", exporting("peer-3", all...), func(s *v1alpha1.PeeringPolicySpec) { s.Accept = v1alpha1.AcceptNever }),
		policyNamed("4", exporting("peer-4", all...), func(s *v1alpha1.PeeringPolicySpec) { s.NodeLabels = map[string]string{"a b": ""} }),
		// It selects all, and decides about none of them.
		policyNamed("9", func(s *v1alpha1.PeeringPolicySpec) { s.Services = all }),
	)...)
	p.Namespace = "entente-system"
	for peer, want := range []string{"shop/cart shop/db", "lab/jobs", "", "", ""} {
		offer, _ := p.offered(peer)
		if got := keys(offer.Services); got != want || offer.Available != (peer < 3) {
			t.Errorf("peer %d is offered %q, want %q, and available is %v", peer, got, want, offer.Available)
		}
	}
	if offer, _, err := p.Offer(t.Context(), generated(t).ID()); err != nil || len(offer.Services) > 0 {
		t.Errorf("a stranger is offered %q, %v", keys(offer.Services), err)
	}
	// What can be imported does not depend on what else is left.
	if _, err := p.Advertise(t.Context(), p.peers[1].ID(), p.ask("r", "cpu=4", "memory=8Gi", "pods=110")); err != nil {
		t.Fatal(err)
	}
	if offer, _ := p.offered(0); offer.Available || keys(offer.Services) != "shop/cart shop/db" {
		t.Errorf("where nothing is left %+v is offered", offer)
	}
	// A test of the policy shows them too.
	if got, err := p.Test(t.Context(), p.peers[0].ID(), p.ask("", "cpu=1")); err != nil || !strings.Contains(got.Message, "services: 2 announced") {
		t.Errorf("a test of the policy returns %q, %v", got.Message, err)
	}
}

// What a ServiceExport exports is announced to the peers of a policy that shares its namespace.
func TestOfferHasWhatIsExportedToTheClusterSet(t *testing.T) {
	t.Parallel()
	namespace := func(name, shared string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"shared": shared}}}
	}
	sharing := func(peer string, set *v1alpha1.ClusterSet) func(*v1alpha1.PeeringPolicySpec) {
		return func(s *v1alpha1.PeeringPolicySpec) { s.Names, s.ClusterSet = []string{peer}, set }
	}
	p := newProvider(t, 3, append(nodes(1), namespace("shop", "yes"), namespace("lab", "no"), namespace("kube-system", "yes"),
		fixture.Service("shop", "cart"), fixture.Service("shop", "db"), fixture.Service("lab", "jobs"), fixture.Service("kube-system", "dns"),
		policyNamed("0", sharing("peer-0", &v1alpha1.ClusterSet{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"shared": "yes"}}})),
		policyNamed("1", sharing("peer-1", &v1alpha1.ClusterSet{})),
		policyNamed("2", sharing("peer-2", nil)),
	)...)
	p.Namespace = "entente-system"
	p.ServiceExports = func(context.Context) ([]peering.ServiceName, error) {
		return []peering.ServiceName{{Namespace: "kube-system", Name: "dns"}, {Namespace: "lab", Name: "jobs"}, {Namespace: "shop", Name: "cart"}, {Namespace: "shop", Name: "gone"}}, nil
	}
	for peer, want := range []string{"shop/cart", "lab/jobs shop/cart", ""} {
		offer, _ := p.offered(peer)
		if got := keys(offer.Services); got != want {
			t.Errorf("peer %d is offered %q, want %q", peer, got, want)
		}
		for _, s := range offer.Services {
			if !s.InSet {
				t.Errorf("%s is not known to be shared", s.Key())
			}
		}
	}
}

func TestOfferFollowsServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testOfferFollowsServices)
}

func testOfferFollowsServices(t *testing.T) {
	p := newProvider(t, 2, append(nodes(1), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, fixture.Service("shop", "cart"),
		policyNamed("0", exporting("peer-0", v1alpha1.ServiceExports{Namespace: "shop"})), policyNamed("1"))...)
	informers := followed(t, p)
	services, err := informers.FakeInformerFor(t.Context(), &corev1.Service{})
	if err != nil {
		t.Fatal(err)
	}
	policies, err := informers.FakeInformerFor(t.Context(), &v1alpha1.PeeringPolicy{})
	if err != nil {
		t.Fatal(err)
	}
	wantServices := func(want string) <-chan struct{} {
		t.Helper()
		mine, changed := p.offered(0)
		if got := keys(mine.Services); got != want {
			t.Errorf("offered %q, want %q", got, want)
		}
		if others, _ := p.offered(1); len(others.Services) > 0 {
			t.Errorf("another peer is offered %q", keys(others.Services))
		}
		return changed
	}
	ctx := t.Context()
	changed := wantServices("shop/cart")

	db := fixture.Service("shop", "db", func(s *corev1.Service) { s.ResourceVersion = "" })
	if err := p.Client.Create(ctx, db); err != nil {
		t.Fatal(err)
	}
	services.Add(db)
	awaitClosed(t, changed)
	changed = wantServices("shop/cart shop/db")

	before := db.DeepCopy()
	db.Labels[v1alpha1.LabelExport] = "false"
	if err := p.Client.Update(ctx, db); err != nil {
		t.Fatal(err)
	}
	services.Update(before, db)
	awaitClosed(t, changed)
	changed = wantServices("shop/cart")

	// A field of a Service that is not announced changes nothing.
	before = db.DeepCopy()
	db.Annotations = map[string]string{"a": "b"}
	services.Update(before, db)
	select {
	case <-changed:
		t.Error("an annotation makes offers be computed again")
	case <-time.After(2 * refreshPause): // of virtual time
	}

	cart := fixture.Service("shop", "cart")
	if err := p.Client.Delete(ctx, cart); err != nil {
		t.Fatal(err)
	}
	services.Delete(cart)
	awaitClosed(t, changed)
	changed = wantServices("")

	// Without a policy that exports Services, their changes do not matter.
	var policy v1alpha1.PeeringPolicy
	if err := p.Client.Get(ctx, client.ObjectKey{Name: "0"}, &policy); err != nil {
		t.Fatal(err)
	}
	was := policy.DeepCopy()
	policy.Spec.Services, policy.Generation = nil, policy.Generation+1
	if err := p.Client.Update(ctx, &policy); err != nil {
		t.Fatal(err)
	}
	policies.Update(was, &policy)
	awaitClosed(t, changed)
	changed = wantServices("")
	services.Add(fixture.Service("shop", "more"))
	select {
	case <-changed:
		t.Error("a Service that is not exported makes offers be computed again")
	case <-time.After(2 * refreshPause): // of virtual time
	}
}

func TestServiceDiffers(t *testing.T) {
	t.Parallel()
	s, n := fixture.Service("shop", "cart"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	for name, tc := range map[string]struct {
		differs       func(a, b any) bool
		before, after client.Object
		want          bool
	}{
		"a selector":       {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Selector = nil }), false},
		"a load balancer":  {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }), false},
		"a port":           {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }), true},
		"a protocol":       {serviceDiffers, s, with(s, func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = new("http") }), true},
		"a label":          {serviceDiffers, s, with(s, fixture.Labelled("a", "b")), true},
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

func TestOfferStatusKeepsServices(t *testing.T) {
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
	// A Service that comes or goes is not a small change: it waits as long as a change of price.
	kept := peering.Offer{Available: true}
	if got := (offerPace{&kept, now}).wait(peering.Offer{Available: true, Services: []peering.OfferedService{service}}, now); got != offerWrite {
		t.Errorf("a new service waits %s", got)
	}
}

func keys(services []peering.OfferedService) string {
	var out []string
	for _, s := range services {
		out = append(out, s.Key())
	}
	return strings.Join(out, " ")
}
