package provider

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

// followed runs a provider that follows informers, which report only what the test
// makes them report.
func followed(t testing.TB, p *testProvider) *informertest.FakeInformers {
	t.Helper()
	informers := &informertest.FakeInformers{Scheme: testScheme(t)}
	p.Informers, p.Now = informers, time.Now
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for !p.following.Load() {
		runtime.Gosched()
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return informers
}

func awaitClosed(t testing.TB, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal("the channel of changes is not closed")
	}
}

func (p *testProvider) offered(peer int) (peering.Offer, <-chan struct{}) {
	p.t.Helper()
	offer, changed, err := p.Offer(p.t.Context(), p.peers[peer].ID())
	if err != nil {
		p.t.Fatal(err)
	}
	return offer, changed
}

func TestOfferFollowsNodesOffersAndLapses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testOfferFollowsNodesOffersAndLapses)
}

func testOfferFollowsNodesOffersAndLapses(t *testing.T) {
	p := newProvider(t, 2, append(nodes(1), policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) {
		s.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.025"}}
	}))...)
	informers := followed(t, p)
	inform := func(o client.Object, edit func()) {
		t.Helper()
		informer, err := informers.FakeInformerFor(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		before := o.DeepCopyObject().(client.Object)
		edit()
		informer.Update(before, o)
	}
	offer, changed := p.offered(0)
	if !offer.Available || offer.Resources.String() != "cpu=4, memory=8Gi, pods=110" || offer.Price.PerHour["cpu"].String() != "0.025" ||
		offer.Duration != 24*time.Hour || fmt.Sprint(offer.Architectures) != "[amd64]" || offer.NodeLabels[corev1.LabelOSStable] != "linux" {
		t.Fatalf("offered %+v", offer)
	}

	var node corev1.Node
	if err := p.Client.Get(t.Context(), client.ObjectKey{Name: "n0"}, &node); err != nil {
		t.Fatal(err)
	}
	inform(&node, func() {
		node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("3")
		if err := p.Client.Status().Update(t.Context(), &node); err != nil {
			t.Fatal(err)
		}
	})
	awaitClosed(t, changed)
	if offer, changed = p.offered(0); offer.Resources["cpu"].String() != "3" {
		t.Errorf("after a node shrank %s is offered", offer.Resources)
	}

	// What another peer is advertised is reserved at once, and free again when the
	// advertisement lapses.
	if _, err := p.Advertise(t.Context(), p.peers[1].ID(), p.ask("r", "cpu=1")); err != nil {
		t.Fatal(err)
	}
	awaitClosed(t, changed)
	if offer, changed = p.offered(0); offer.Resources["cpu"].String() != "2" {
		t.Errorf("while 1 is reserved for another peer %s is offered", offer.Resources)
	}

	notified := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.Contains(p.notified, p.peers[0].ID())
	}
	forgotten := peering.ClusterID("a peer that was forgotten")
	_ = p.Offering(forgotten)
	wantOffering := func(want peering.Offering) {
		t.Helper()
		if !waittest.Soon(func() bool { return p.Offering(p.peers[0].ID()) == want && notified() }) {
			t.Fatalf("it offers %d, want %d; reported as changed: %t", p.Offering(p.peers[0].ID()), want, notified())
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.notified = nil
	}
	wantOffering(peering.OfferingSomething)
	inform(&node, func() {
		node.Spec.Unschedulable = true
		if err := p.Client.Update(t.Context(), &node); err != nil {
			t.Fatal(err)
		}
	})
	awaitClosed(t, changed)
	if offer, changed = p.offered(0); offer.Available || !strings.Contains(offer.Message, "nothing is left") || len(offer.Resources) > 0 {
		t.Errorf("without a node %+v is offered", offer)
	}
	wantOffering(peering.OfferingNothing)
	p.offeringsMu.Lock()
	if _, ok := p.offerings[forgotten]; ok {
		t.Error("Offering of a cluster that is not a peer is computed again and again")
	}
	p.offeringsMu.Unlock()

	// A heartbeat of a node changes nothing.
	inform(&node, func() { node.Status.Conditions[0].LastHeartbeatTime = metav1.Now() })
	select {
	case <-changed:
		t.Error("a heartbeat makes offers be computed again")
	case <-time.After(2 * refreshPause): // of virtual time
	}
}

func TestOnlyWhatDecidesCountsAsAChange(t *testing.T) {
	t.Parallel()
	node, pod := fixture.Node("n"), fixture.Pod("n")
	contract := v1alpha1.Contract{Status: v1alpha1.ContractStatus{Phase: "Active"}}
	peer := v1alpha1.ForeignCluster{}
	for name, tc := range map[string]struct {
		differs       func(a, b any) bool
		before, after client.Object
		want          bool
	}{
		"a pod's address":          {podDiffers, &pod, with(&pod, func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }), false},
		"a pod that begins to run": {podDiffers, &pod, with(&pod, fixture.Phase(corev1.PodRunning)), false},
		"a pod that ends":          {podDiffers, &pod, with(&pod, fixture.Phase(corev1.PodFailed)), true},
		"a pod that is placed":     {podDiffers, with(&pod, func(p *corev1.Pod) { p.Spec.NodeName = "" }), &pod, true},
		"a pod that is resized": {podDiffers, &pod, with(&pod, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		}), true},
		"a node's heartbeat":            {nodeDiffers, &node, with(&node, func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }), false},
		"a node's image":                {nodeDiffers, &node, with(&node, func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{}} }), false},
		"a node's label":                {nodeDiffers, &node, with(&node, func(n *corev1.Node) { n.Labels["x"] = "y" }), true},
		"a node's taint":                {nodeDiffers, &node, with(&node, fixture.Tainted(corev1.TaintEffectNoSchedule)), true},
		"a node's taint that is looser": {nodeDiffers, with(&node, fixture.Tainted(corev1.TaintEffectNoSchedule)), with(&node, fixture.Tainted(corev1.TaintEffectPreferNoSchedule)), true},
		"when a node got its taint": {nodeDiffers, with(&node, fixture.Tainted(corev1.TaintEffectNoSchedule)), with(&node, func(n *corev1.Node) {
			fixture.Tainted(corev1.TaintEffectNoSchedule)(n)
			n.Spec.Taints[0].TimeAdded = new(metav1.Now())
		}), false},
		"another taint of a node": {nodeDiffers, with(&node, fixture.Tainted(corev1.TaintEffectNoSchedule)), with(&node, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "y", Effect: corev1.TaintEffectNoSchedule}}
		}), true},
		"a node's cordon":              {nodeDiffers, &node, with(&node, func(n *corev1.Node) { n.Spec.Unschedulable = true }), true},
		"a node's silence":             {nodeDiffers, &node, with(&node, fixture.Ready(corev1.ConditionUnknown)), true},
		"a node's size":                {nodeDiffers, &node, with(&node, func(n *corev1.Node) { n.Status.Allocatable["gpu"] = resource.MustParse("1") }), true},
		"a contract's use":             {contractDiffers, &contract, with(&contract, func(c *v1alpha1.Contract) { c.Status.Pods = 3 }), false},
		"a contract's end":             {contractDiffers, &contract, with(&contract, func(c *v1alpha1.Contract) { c.Status.Phase = "Closed" }), true},
		"a contract's revision":        {contractDiffers, &contract, with(&contract, func(c *v1alpha1.Contract) { c.Spec.Revision = 2 }), true},
		"a peer's state":               {peerDiffers, &peer, with(&peer, func(p *v1alpha1.ForeignCluster) { p.Status.Protocol = 2 }), false},
		"a peer's label":               {peerDiffers, &peer, with(&peer, func(p *v1alpha1.ForeignCluster) { p.Labels = map[string]string{"a": "b"} }), true},
		"a peer's approval":            {peerDiffers, &peer, with(&peer, func(p *v1alpha1.ForeignCluster) { p.Generation = 2 }), true},
		"a policy":                     {generationDiffers, &v1alpha1.PeeringPolicy{}, with(&v1alpha1.PeeringPolicy{}, func(p *v1alpha1.PeeringPolicy) { p.Generation = 2 }), true},
		"something that is not a node": {nodeDiffers, &node, &pod, true},
	} {
		if got := tc.differs(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: a change is %v, want %v", name, got, tc.want)
		}
	}
}

func with[T client.Object](o T, edit func(T)) T {
	out := o.DeepCopyObject().(T)
	edit(out)
	return out
}

// large returns a provider with so many nodes, pods and peers, whose reads cost
// what those of a cache cost, and how often its nodes were read.
func large(t testing.TB, nodes, pods, peers int) (p *testProvider, lists *struct {
	nodes []corev1.Node
	pods  []corev1.Pod
	reads int
},
) {
	t.Helper()
	p = newProvider(t, 0, policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) { s.Limits.PercentOfFree = new(int32(10)) }))
	lists = &struct {
		nodes []corev1.Node
		pods  []corev1.Pod
		reads int
	}{}
	var clusters []v1alpha1.ForeignCluster
	id := generated(t)
	for i := range peers {
		p.peers = append(p.peers, id)
		clusters = append(clusters, v1alpha1.ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("peer-", i)}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: peerID(i)},
		})
	}
	for i := range nodes {
		lists.nodes = append(lists.nodes, fixture.Node(fmt.Sprint("n", i)))
	}
	for i := range pods {
		lists.pods = append(lists.pods, fixture.Pod(fmt.Sprint("n", i%nodes), func(p *corev1.Pod) {
			p.Name = fmt.Sprint("p", i)
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}
		}))
	}
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			switch list := list.(type) {
			case *corev1.NodeList:
				lists.reads++
				list.Items = append([]corev1.Node(nil), lists.nodes...)
			case *corev1.PodList:
				list.Items = append([]corev1.Pod(nil), lists.pods...)
			case *v1alpha1.ForeignClusterList:
				by := (&client.ListOptions{}).ApplyOptions(opts).FieldSelector
				if by == nil {
					list.Items = append([]v1alpha1.ForeignCluster(nil), clusters...)
				} else if i := slices.IndexFunc(clusters, func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.ClusterID == by.Requirements()[0].Value }); i >= 0 {
					list.Items = clusters[i : i+1]
				}
			default:
				return c.List(ctx, list, opts...)
			}
			return nil
		},
	})
	return p, lists
}

func peerID(i int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	return strings.Repeat("a", 30) + string(alphabet[i/32%32]) + string(alphabet[i%32])
}

// A change of one node, in a cluster of a thousand nodes, is announced to 250 peers
// after reading nodes and pods once.
func TestOneRefreshServesAllPeers(t *testing.T) {
	p, lists := large(t, 1000, 5000, 250)
	informers := followed(t, p)
	informer, err := informers.FakeInformerFor(t.Context(), &corev1.Node{})
	if err != nil {
		t.Fatal(err)
	}
	var changes []<-chan struct{}
	for i := range 250 {
		offer, changed, err := p.Offer(t.Context(), peering.ClusterID(peerID(i)))
		if err != nil || offer.Resources["cpu"].String() != "399500m" {
			t.Fatalf("offered %v, %v", offer, err)
		}
		changes = append(changes, changed)
	}
	reads := lists.reads
	before := lists.nodes[7]
	p.mu.Lock()
	lists.nodes[7] = fixture.Node("n7", fixture.Ready(corev1.ConditionUnknown))
	p.mu.Unlock()
	begin := time.Now()
	informer.Update(&before, &lists.nodes[7])
	var wait sync.WaitGroup
	for i := range 250 {
		wait.Go(func() {
			for changed := changes[i]; ; {
				<-changed
				offer, next, err := p.Offer(t.Context(), peering.ClusterID(peerID(i)))
				if err == nil && offer.Resources["cpu"].String() == "399100m" {
					return
				}
				if err != nil || time.Since(begin) > 10*time.Second {
					t.Errorf("offered %v, %v", offer, err)
					return
				}
				changed = next
			}
		})
	}
	wait.Wait()
	took := time.Since(begin)
	t.Logf("250 peers of a cluster with 1000 nodes and 5000 pods knew after %s", took)
	if took > 10*time.Second { // a second, on a machine that does nothing else
		t.Errorf("it took %s", took)
	}
	if got := lists.reads - reads; got != 1 {
		t.Errorf("nodes were read %d times", got)
	}
}

// BenchmarkRefresh measures a change of one pod at a provider with 500 nodes, 5000
// pods and 250 peers, each of which gets its offer.
func BenchmarkRefresh(b *testing.B) {
	p, _ := large(b, 500, 5000, 250)
	p.following.Store(true)
	for b.Loop() {
		p.supplyStale.Store(true)
		p.refresh(b.Context())
		for i := range 250 {
			if o, _, err := p.Offer(b.Context(), peering.ClusterID(peerID(i))); err != nil || !o.Available {
				b.Fatal(o.Message, err)
			}
		}
	}
}

func BenchmarkOffer(b *testing.B) {
	p, _ := large(b, 1000, 1000, 1)
	m, err := p.market(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if o := m.Offer(peering.ClusterID(peerID(0))); !o.Available {
			b.Fatal(o.Message)
		}
	}
}

func TestPolicyTestReservesNothing(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(2),
		policyNamed("gold", func(s *v1alpha1.PeeringPolicySpec) {
			s.Names = []string{"peer-0"}
			s.Limits = v1alpha1.PolicyLimits{PercentOfFree: new(int32(50)), Resources: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("3Gi")}}
		}),
		policyNamed("tin", afterApproval, func(s *v1alpha1.PeeringPolicySpec) { s.Names = []string{"peer-1"} }))...)
	ctx := t.Context()
	for name, tc := range map[string]struct {
		peer   peering.ClusterID
		ask    peering.Ask
		policy string
		reason peering.Reason
		says   string
	}{
		"all there is":           {p.peers[0].ID(), peering.Ask{}, "gold", "", "memory: 3Gi, bounded by ceiling of 3Gi"},
		"what fits":              {p.peers[0].ID(), p.ask("", "cpu=1"), "gold", "", "cpu: 1"},
		"more than percent of":   {p.peers[0].ID(), p.ask("", "cpu=5"), "gold", "CAPACITY_EXHAUSTED", "cpu: 4 of 5, bounded by percent of free of 4"},
		"more than the ceiling":  {p.peers[0].ID(), p.ask("", "memory=4Gi"), "gold", "POLICY_REFUSED", "memory: 3Gi of 4Gi, bounded by ceiling of 3Gi"},
		"what has to be allowed": {p.peers[1].ID(), p.ask("", "cpu=1"), "tin", "POLICY_PENDING", "cpu: 1"},
		"more, and to allow":     {p.peers[1].ID(), p.ask("", "cpu=500"), "tin", "CAPACITY_EXHAUSTED", "cpu: 8 of 500"},
		"of a stranger":          {generated(t).ID(), p.ask("", "cpu=1"), "", "PEER_NOT_TRUSTED", "does not know"},
	} {
		got, err := p.Test(ctx, tc.peer, tc.ask)
		if err != nil || got.Policy != tc.policy || got.Reason != tc.reason || !strings.Contains(got.Message, tc.says) || (got.Advertisement != nil) != (tc.reason == "" || name == "what has to be allowed") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if len(p.advertised) != 0 || len(p.waiting(1)) != 0 {
		t.Errorf("a test of the policy reserved %d advertisements, and %v wait", len(p.advertised), p.waiting(1))
	}
	var policy v1alpha1.PeeringPolicy
	if err := p.Client.Get(ctx, client.ObjectKey{Name: "gold"}, &policy); err != nil {
		t.Fatal(err)
	}
	policy.Spec.NodeLabels = map[string]string{"a b": ""}
	if err := p.Client.Update(ctx, &policy); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Test(ctx, p.peers[0].ID(), peering.Ask{}); err != nil || got.Reason != "POLICY_REFUSED" || !strings.Contains(got.Message, "nodeLabels") {
		t.Errorf("an invalid policy: %+v, %v", got, err)
	}
}
