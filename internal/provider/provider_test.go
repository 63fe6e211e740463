package provider

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// testProvider is a Provider with peers that ask it.
type testProvider struct {
	t testing.TB
	*Provider
	self  *identity.Identity
	peers []*identity.Identity

	mu       sync.Mutex
	clock    time.Time
	notified []peering.ClusterID
}

func (p *testProvider) pass(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock = p.clock.Add(d)
}

func (p *testProvider) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock
}

// newProvider returns a provider with so many peers and what else there is.
func newProvider(t testing.TB, peers int, objects ...client.Object) *testProvider {
	t.Helper()
	p := &testProvider{t: t, self: generated(t), clock: now}
	for i := range peers {
		id := generated(t)
		p.peers = append(p.peers, id)
		objects = append(objects, &v1alpha1.ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("peer-%d", i), Labels: map[string]string{"tier": "gold", v1alpha1.LabelPeer: string(id.ID())}},
			Spec:       v1alpha1.ForeignClusterSpec{ClusterID: string(id.ID()), TrustBundle: id.TrustBundle().PEM()},
			Status: v1alpha1.ForeignClusterStatus{
				Source: v1alpha1.SourceToken, Session: &v1alpha1.PeerSession{ClockSkew: &metav1.Duration{}},
			},
		})
	}
	c := indexed(fake.NewClientBuilder().WithScheme(testScheme(t)).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ForeignCluster{}, &v1alpha1.Contract{}))
	p.Provider = &Provider{
		Client: c, Reader: c, Identity: func() *identity.Identity { return p.self }, Now: p.now, Budget: &store.WriteBudget{Now: p.now},
		Changed: func(id peering.ClusterID) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.notified = append(p.notified, id)
		},
	}
	return p
}

func policyNamed(name string, edit ...func(*v1alpha1.PeeringPolicySpec)) *v1alpha1.PeeringPolicy {
	p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAutomatic, Limits: v1alpha1.PolicyLimits{PercentOfFree: new(int32(100))},
		ContractDuration: &metav1.Duration{Duration: 24 * time.Hour},
		NodeSelectorKeys: []string{corev1.LabelArchStable, "gpu", "disk"},
	}}
	for _, e := range edit {
		e(&p.Spec)
	}
	return p
}

func TestPermissionsAreThoseOfTheSelectingPolicy(t *testing.T) {
	t.Parallel()
	gives := policyNamed("gives", func(s *v1alpha1.PeeringPolicySpec) {
		s.NamespaceNames, s.MinFence, s.HomeAPI = []string{"rome-*"}, &metav1.Duration{Duration: time.Hour}, v1alpha1.HomeAPIAllowed
		s.RuntimeClassMappings = []v1alpha1.ClassMapping{{}}
		s.NetworkPolicies = v1alpha1.NetworkPoliciesAllowed
		s.PriorityClassMappings = []v1alpha1.PriorityMapping{{}, {}}
	})
	for name, test := range map[string]struct {
		objects []client.Object
		want    Permissions
	}{
		"no policy":             {nil, Permissions{MinFence: peering.MaxFence + 1}},
		"a policy without them": {[]client.Object{policyNamed("plain")}, Permissions{MinFence: peering.MinFence}},
		"a policy that gives": {[]client.Object{gives}, Permissions{
			NamespaceNames: []string{"rome-*"}, MinFence: time.Hour, HomeAPI: true, NetworkPolicies: true,
			RuntimeClasses: make([]v1alpha1.ClassMapping, 1), PriorityClasses: make([]v1alpha1.PriorityMapping, 2),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, 1, test.objects...)
			if diff := cmp.Diff(test.want, p.Permissions(t.Context(), p.peers[0].ID(), nil, nil), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := p.Permissions(t.Context(), "stranger", nil, nil); got.MinFence <= peering.MaxFence || got.HomeAPI || got.NetworkPolicies {
				t.Errorf("a stranger is given %+v", got)
			}
		})
	}
}

func TestGrantsFollowThePolicyAsItIsNow(t *testing.T) {
	t.Parallel()
	policy := policyNamed("plain")
	p := newProvider(t, 1, policy)
	peer := p.peers[0].ID()
	if g := p.Permissions(t.Context(), peer, nil, nil); g.HomeAPI {
		t.Errorf("before, it is %+v", g)
	}
	policy.Spec.HomeAPI = v1alpha1.HomeAPIAllowed
	if err := p.Client.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if g := p.Permissions(t.Context(), peer, nil, nil); !g.HomeAPI {
		t.Errorf("once the policy allows it, it is %+v", g)
	}
	if err := p.Client.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if g := p.Permissions(t.Context(), peer, nil, nil); g.MinFence <= peering.MaxFence || g.HomeAPI {
		t.Errorf("once the policy is gone, it is %+v", g)
	}
}

func nodes(n int) []client.Object {
	var out []client.Object
	for i := range n {
		node := fixture.Node(fmt.Sprintf("n%d", i))
		out = append(out, &node)
	}
	return out
}

func quantities(t testing.TB, pairs ...string) peering.Resources {
	t.Helper()
	m := map[string]string{}
	for _, p := range pairs {
		name, amount, _ := strings.Cut(p, "=")
		m[name] = amount
	}
	r, err := peering.ParseResources(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (p *testProvider) ask(request string, pairs ...string) peering.Ask {
	p.t.Helper()
	return peering.Ask{RequestID: request, Resources: quantities(p.t, pairs...)}
}

// terms returns what a peer builds from an advertisement.
func (p *testProvider) terms(peer int, ad peering.Advertisement) peering.Terms {
	begin := p.now().UTC().Truncate(time.Second).Add(-time.Minute)
	end := begin.Add(ad.Duration)
	if !ad.NotAfter.IsZero() && ad.NotAfter.Before(end) {
		end = ad.NotAfter
	}
	return peering.Terms{
		ContractID: ad.ContractID, RequestID: ad.RequestID, Revision: ad.Revision, Previous: ad.PreviousHash, Consumer: p.peers[peer].Party(), Provider: p.self.Party(), NotBefore: begin, NotAfter: end,
		Clauses: ad.Clauses,
	}
}

func (p *testProvider) envelope(peer int, terms peering.Terms) peering.Envelope {
	p.t.Helper()
	e, err := peering.NewEnvelope(terms)
	if err == nil {
		e, err = e.Sign(rand.Reader, p.peers[peer].ID(), p.peers[peer].Signer())
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

// contracted asks and signs.
func (p *testProvider) contracted(ctx context.Context, peer int, ask peering.Ask) (peering.Terms, error) {
	ad, err := p.Advertise(ctx, p.peers[peer].ID(), ask)
	if err != nil {
		return peering.Terms{}, err
	}
	signed, err := p.Sign(ctx, p.peers[peer].ID(), p.envelope(peer, p.terms(peer, ad)))
	if err != nil {
		return peering.Terms{}, err
	}
	return signed.Verify()
}

func (p *testProvider) mustContract(peer int, ask peering.Ask) peering.Terms {
	p.t.Helper()
	terms, err := p.contracted(p.t.Context(), peer, ask)
	if err != nil {
		p.t.Fatal(err)
	}
	return terms
}

func (p *testProvider) contracts(c client.Reader) []v1alpha1.Contract {
	p.t.Helper()
	var list v1alpha1.ContractList
	if err := c.List(p.t.Context(), &list); err != nil {
		p.t.Fatal(err)
	}
	return list.Items
}

// granted returns what the stored contracts grant in all.
func (p *testProvider) granted() peering.Resources {
	p.t.Helper()
	contracts := p.contracts(p.Client)
	sum := peering.Resources{}
	for i := range contracts {
		r, err := store.Resources(contracts[i].Spec.Resources)
		if err == nil {
			sum, err = sum.Add(r)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	return sum
}

func (p *testProvider) stored(id string) *v1alpha1.Contract {
	p.t.Helper()
	var c v1alpha1.Contract
	if err := p.Client.Get(p.t.Context(), client.ObjectKey{Name: id}, &c); err != nil {
		p.t.Fatal(err)
	}
	return &c
}

func wants(t testing.TB, err error, reason peering.Reason, message string) {
	t.Helper()
	if got := peering.ReasonOf(err); got != reason || (err != nil && !strings.Contains(err.Error(), message)) {
		t.Fatalf("got %s: %v; want %s with %q", got, err, reason, message)
	}
}

func TestProviderReservesAnOfferUntilItIsSignedOrLapses(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(1), policyNamed("all"))...)
	ctx := t.Context()
	first, err := p.Advertise(ctx, p.peers[0].ID(), p.ask("a", "cpu=3"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.Advertise(ctx, p.peers[0].ID(), p.ask("a", "cpu=3"))
	if err != nil || again.ContractID != first.ContractID {
		t.Errorf("the same request got %s, then %s, %v", first.ContractID, again.ContractID, err)
	}
	_, err = p.Advertise(ctx, p.peers[1].ID(), p.ask("b", "cpu=2"))
	wants(t, err, peering.ReasonCapacityExhausted, "1 ")
	if preview, err := p.Preview(ctx, p.peers[1].ID(), p.ask("b", "cpu=1")); err != nil || preview.ContractID != "" || preview.Revision != 1 {
		t.Errorf("previewed %+v, %v", preview, err)
	}
	if _, err := p.Advertise(ctx, p.peers[1].ID(), p.ask("c", "cpu=1")); err != nil {
		t.Errorf("a preview reserved something: %v", err)
	}
	p.pass(AdvertisedFor)
	if _, err := p.Advertise(ctx, p.peers[1].ID(), p.ask("d", "cpu=4")); err != nil {
		t.Errorf("what lapsed is still reserved: %v", err)
	}
	_, err = p.Sign(ctx, p.peers[0].ID(), p.envelope(0, p.terms(0, first)))
	wants(t, err, peering.ReasonAdvertisementExpired, "lapsed")
}

func TestChangedAskReplacesTheOffer(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("all"))...)
	first, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("a", "cpu=3"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("a", "cpu=4"))
	if err != nil || second.ContractID == first.ContractID || second.Grant.Resources.String() != "cpu=4, pods=110" {
		t.Fatalf("got %+v, %v", second, err)
	}
	_, err = p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, p.terms(0, first)))
	wants(t, err, peering.ReasonAdvertisementExpired, "")
}

func TestOffersOfAPeerAreBounded(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(20), policyNamed("all"))...)
	for i := range MaxAdvertisedPerPeer {
		if _, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask(fmt.Sprint("r", i), "cpu=1")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("more", "cpu=1"))
	wants(t, err, peering.ReasonCapacityExhausted, "too many advertisements")
}

func TestContractsOfAPeerAreBounded(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(1), policyNamed("all"))...)
	for i := range MaxContractsPerPeer {
		for _, peer := range []int{0, 1} {
			c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%d-%d", peer, i)}, Spec: v1alpha1.ContractSpec{
				PeerID: string(p.peers[peer].ID()), Role: v1alpha1.ContractProvider, RequestID: fmt.Sprint("r", i), Revision: 1,
			}, Status: v1alpha1.ContractStatus{Phase: "Closed"}}
			if peer == 0 {
				c.Finalizers = []string{v1alpha1.Finalizer} // those of the other are over and done with
			}
			if err := p.Client.Create(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("more", "cpu=1"))
	wants(t, err, peering.ReasonCapacityExhausted, "limit of")
	if _, err := p.Advertise(t.Context(), p.peers[1].ID(), p.ask("more", "cpu=1")); err != nil {
		t.Errorf("it bounds another peer too: %v", err)
	}
}

// A hundred requests at once, of ten peers, each for one core: what is granted is as
// much as the tightest ceiling gives, and never more.
func TestManyAtOnceNeverGetMoreThanTheCeiling(t *testing.T) {
	t.Parallel()
	gpu := func(n *corev1.Node) { n.Labels["gpu"] = "a100" }
	fast := func(n *corev1.Node) { n.Labels["disk"] = "fast" }
	node := func(name string, edit ...func(*corev1.Node)) client.Object {
		n := fixture.Node(name, edit...)
		return &n
	}
	ofCPU := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	for name, tc := range map[string]struct {
		nodes    []client.Object
		policies []*v1alpha1.PeeringPolicy
		ask      func(i int, a *peering.Ask)
		want     string // of all together
		perPeer  int64  // at most, if not 0
	}{
		"what is free":            {nodes: nodes(5), policies: []*v1alpha1.PeeringPolicy{policyNamed("p")}, want: "20"},
		"so many percent of free": {nodes: nodes(20), policies: []*v1alpha1.PeeringPolicy{policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) { s.Limits.PercentOfFree = new(int32(5)) })}, want: "40", perPeer: 4},
		"a ceiling for each":      {nodes: nodes(30), policies: []*v1alpha1.PeeringPolicy{policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) { s.Limits.Resources = ofCPU("3") })}, want: "30", perPeer: 3},
		"a ceiling for all": {nodes: nodes(30), policies: []*v1alpha1.PeeringPolicy{policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) {
			s.Limits.Total = &v1alpha1.TotalLimits{Resources: ofCPU("17")}
		})}, want: "17"},
		"percent for all": {nodes: nodes(10), policies: []*v1alpha1.PeeringPolicy{policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) {
			s.Limits.Total = &v1alpha1.TotalLimits{PercentOfFree: new(int32(50))}
		})}, want: "20"},
		"two policies of which each has its total": {nodes: nodes(30), policies: []*v1alpha1.PeeringPolicy{
			policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) {
				s.Names = []string{"peer-0", "peer-1", "peer-2"}
				s.Limits.Total = &v1alpha1.TotalLimits{Resources: ofCPU("5")}
			}),
			policyNamed("b", func(s *v1alpha1.PeeringPolicySpec) { s.Limits.Total = &v1alpha1.TotalLimits{Resources: ofCPU("7")} }),
		}, want: "12"},
		"more than there is": {nodes: nodes(5), policies: []*v1alpha1.PeeringPolicy{policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) {
			s.Limits.OvercommitPercent = new(int32(150))
		})}, want: "30"},
		"the nodes with a label": {
			nodes: append(nodes(5), node("g1", gpu), node("g2", gpu)), policies: []*v1alpha1.PeeringPolicy{policyNamed("p")},
			ask: func(_ int, a *peering.Ask) { a.NodeSelector = map[string]string{"gpu": "a100"} }, want: "8",
		},
		// Two thirds overlap: g and f have 8 each, both together only 12.
		"nodes with labels that overlap": {
			nodes: append(nodes(5), node("g", gpu), node("f", fast), node("gf", gpu, fast)), policies: []*v1alpha1.PeeringPolicy{policyNamed("p")},
			ask: func(i int, a *peering.Ask) {
				a.NodeSelector = map[string]string{"gpu": "a100"}
				if i%2 == 0 {
					a.NodeSelector = map[string]string{"disk": "fast"}
				}
			}, want: "12",
		},
		"some nodes of those with a label": {
			nodes: append(nodes(5), node("g", gpu), node("gf", gpu, fast)), policies: []*v1alpha1.PeeringPolicy{policyNamed("p")},
			ask: func(i int, a *peering.Ask) {
				a.NodeSelector = map[string]string{"gpu": "a100"}
				if i%2 == 0 {
					a.NodeSelector = map[string]string{"gpu": "a100", "disk": "fast"}
				}
			}, want: "8",
		},
		"any nodes and those with a label": {
			nodes: append(nodes(1), node("g", gpu)), policies: []*v1alpha1.PeeringPolicy{policyNamed("p")},
			ask: func(i int, a *peering.Ask) {
				if i%2 == 0 {
					a.NodeSelector = map[string]string{"gpu": "a100"}
				}
			}, want: "8",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := tc.nodes
			for _, p := range tc.policies {
				objects = append(objects, p)
			}
			p := newProvider(t, 10, objects...)
			errs := make(chan error, 100)
			for i := range 100 {
				ask := p.ask(fmt.Sprint("r", i), "cpu=1")
				if tc.ask != nil {
					tc.ask(i, &ask)
				}
				go func() {
					_, err := p.contracted(context.WithoutCancel(t.Context()), i%10, ask)
					errs <- err
				}()
			}
			for range 100 {
				if err := <-errs; err != nil {
					if r := peering.ReasonOf(err); r != peering.ReasonCapacityExhausted && r != peering.ReasonPolicyRefused {
						t.Errorf("a loser got %v", err)
					}
				}
			}
			if got := p.granted()["cpu"].String(); got != tc.want {
				t.Errorf("%s cores are granted, want %s", got, tc.want)
			}
			contracts := p.contracts(p.Client)
			by := map[string]int64{}
			for i := range contracts {
				if by[contracts[i].Spec.PeerID]++; tc.perPeer > 0 && by[contracts[i].Spec.PeerID] > tc.perPeer {
					t.Errorf("peer %s has more than %d", contracts[i].Spec.PeerID, tc.perPeer)
				}
			}
		})
	}
}

// Ten contracts that all want to grow at once share what is left.
func TestManyThatGrowAtOnceNeverGetMoreThanThereIs(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 10, append(nodes(5), policyNamed("p"))...)
	var signed [10]peering.Terms
	for i := range signed {
		signed[i] = p.mustContract(i, p.ask(fmt.Sprint("r", i), "cpu=1"))
	}
	errs := make(chan error, 100)
	for i := range 100 {
		go func() {
			ask := p.ask(fmt.Sprint("r", i%10), fmt.Sprint("cpu=", 2+i/10))
			ask.ContractID = signed[i%10].ContractID
			_, err := p.contracted(context.WithoutCancel(t.Context()), i%10, ask)
			errs <- err
		}()
	}
	for range 100 {
		err := <-errs
		switch r := peering.ReasonOf(err); r {
		case "", peering.ReasonCapacityExhausted, peering.ReasonAdvertisementExpired, peering.ReasonContractMismatch, peering.ReasonRevisionStale:
		default:
			t.Errorf("one got %v", err)
		}
		if got := p.granted()["cpu"]; got.Cmp(peering.Whole(20)) > 0 {
			t.Fatalf("%s cores are granted of 20", got)
		}
	}
	if got := p.granted()["cpu"]; got.Cmp(peering.Whole(11)) < 0 {
		t.Errorf("%s cores are granted: none grew", got)
	}
}

func TestCordonedNodeIsNotOffered(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(2), policyNamed("p"))...)
	var node corev1.Node
	if err := p.Client.Get(t.Context(), client.ObjectKey{Name: "n0"}, &node); err != nil {
		t.Fatal(err)
	}
	node.Spec.Unschedulable = true
	if err := p.Client.Update(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("a", "cpu=5"))
	wants(t, err, peering.ReasonCapacityExhausted, "left now")
}

// A contract that gave back less than its pods use leaves to others what is
// really left.
func TestPodsOfAnEndedContractCountUntilTheyEnd(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(1), policyNamed("p"))...)
	signed := p.mustContract(0, p.ask("a", "cpu=3"))
	for i := range 3 {
		pod := fixture.Pod("n0", fixture.Offloaded(signed.ContractID))
		pod.Namespace, pod.Name = "default", fmt.Sprint("p", i)
		if err := p.Client.Create(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
	}
	less := p.ask("a", "cpu=1")
	less.ContractID = signed.ContractID
	p.mustContract(0, less)
	_, err := p.Advertise(t.Context(), p.peers[1].ID(), p.ask("b", "cpu=2"))
	wants(t, err, peering.ReasonCapacityExhausted, "1 ")
	for i := range 2 {
		if err := p.Client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Advertise(t.Context(), p.peers[1].ID(), p.ask("b", "cpu=3")); err != nil {
		t.Error(err)
	}
}

func TestProviderAdvertisesThePolicysTerms(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) {
		s.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.025"}}
		s.Renewal, s.Notice, s.StatementPeriod = v1alpha1.RenewalNever, &metav1.Duration{Duration: 2 * time.Hour}, &metav1.Duration{Duration: time.Minute}
		s.RuntimeClasses, s.StorageClasses = []string{"gvisor", "missing"}, []string{"fast"}
		s.PodSecurity, s.NodeLabels = "restricted", map[string]string{"region": "eu"}
		s.LimitRange = &v1alpha1.LimitRange{Container: &v1alpha1.ContainerLimitRange{Max: v1alpha1.LimitedResources{corev1.ResourceCPU: resource.MustParse("2")}}}
	}), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gvisor"}}, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}})...)
	ask := p.ask("a", "cpu=2")
	ask.RuntimeClasses, ask.StorageClasses, ask.Network = []string{"gvisor"}, []string{"fast"}, true
	ask.NodeSelector = map[string]string{corev1.LabelArchStable: "amd64"}
	ad, err := p.Advertise(t.Context(), p.peers[0].ID(), ask)
	if err != nil {
		t.Fatal(err)
	}
	g := ad.Grant
	hourly, err := g.Price.Hourly(g.Resources)
	if err != nil || hourly.String() != "EUR 0.05" {
		t.Errorf("it costs %s, %v", hourly, err)
	}
	if g.Renewable || g.Notice != 2*time.Hour || g.StatementPeriod != time.Minute || g.PodSecurity != "restricted" || g.Duration != 24*time.Hour ||
		!g.Network || g.Exposure != peering.ExposureOffloaded || !slices.Equal(g.RuntimeClasses, []string{"gvisor"}) || !slices.Equal(g.StorageClasses, []string{"fast"}) {
		t.Errorf("granted %+v", g)
	}
	if two := (peering.Resources{"cpu": peering.Whole(2)}); !g.LimitRange.Equal(peering.LimitRange{DefaultRequest: two, Default: two, Max: two}) {
		t.Errorf("the limit range is %+v", g.LimitRange)
	}
	if want := (map[string]string{corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", "region": "eu"}); fmt.Sprint(g.NodeLabels) != fmt.Sprint(want) {
		t.Errorf("the node's labels are %v, want %v", g.NodeLabels, want)
	}
	if _, err := p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, p.terms(0, ad))); err != nil {
		t.Error(err)
	}
	for name, tc := range map[string]struct {
		edit    func(*peering.Ask)
		reason  peering.Reason
		message string
	}{
		"a price above the ceiling":           {func(a *peering.Ask) { a.PriceCeiling = euros(t, "0.02") }, peering.ReasonPriceAboveCeiling, "EUR 0.025"},
		"a runtime class that is not offered": {func(a *peering.Ask) { a.RuntimeClasses = []string{"kata"} }, peering.ReasonPolicyRefused, "kata"},
		"one that is offered and not there":   {func(a *peering.Ask) { a.RuntimeClasses = []string{"missing"} }, peering.ReasonPolicyRefused, "has no runtime class missing"},
		"a storage class that is not offered": {func(a *peering.Ask) { a.StorageClasses = []string{"slow"} }, peering.ReasonPolicyRefused, "slow"},
		"nodes by a label that is not for it": {func(a *peering.Ask) { a.NodeSelector = map[string]string{"tenant": "bank"} }, peering.ReasonPolicyRefused, "by the label tenant"},
		"an architecture that is not here":    {func(a *peering.Ask) { a.NodeSelector = map[string]string{corev1.LabelArchStable: "riscv64"} }, peering.ReasonCapacityExhausted, "no node of the provider"},
	} {
		ask := p.ask("b"+name[:1], "cpu=1")
		tc.edit(&ask)
		ask.RequestID = "x"
		_, err := p.Advertise(t.Context(), p.peers[0].ID(), ask)
		if got := peering.ReasonOf(err); got != tc.reason || !strings.Contains(fmt.Sprint(err), tc.message) {
			t.Errorf("%s: got %v, want %s with %q", name, err, tc.reason, tc.message)
		}
	}
}

func euros(t testing.TB, amount string) peering.Money {
	t.Helper()
	d, err := peering.ParseDecimal(amount)
	if err != nil {
		t.Fatal(err)
	}
	return peering.Money{Currency: "EUR", Amount: d}
}

func TestFirstSelectingPolicyDecides(t *testing.T) {
	t.Parallel()
	never := func(s *v1alpha1.PeeringPolicySpec) { s.Accept = v1alpha1.AcceptNever }
	for name, tc := range map[string]struct {
		policies func(id string) []client.Object
		want     peering.Reason
	}{
		"none":                 {func(string) []client.Object { return nil }, peering.ReasonPolicyRefused},
		"one that selects all": {func(string) []client.Object { return []client.Object{policyNamed("a")} }, ""},
		"the first by name":    {func(string) []client.Object { return []client.Object{policyNamed("b"), policyNamed("a", never)} }, peering.ReasonPolicyRefused},
		"the second, if the first is of others": {func(string) []client.Object {
			return []client.Object{policyNamed("a", never, func(s *v1alpha1.PeeringPolicySpec) { s.Names = []string{"peer-9"} }), policyNamed("b")}
		}, ""},
		"by label": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) {
				s.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
			})}
		}, ""},
		"not by another label": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) {
				s.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tin"}}
			})}
		}, peering.ReasonPolicyRefused},
		"not by an invalid selector": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) {
				s.ClusterSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Like"}}}
			})}
		}, peering.ReasonPolicyRefused},
		"by ID": {func(id string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) { s.ClusterIDs = []string{id} })}
		}, ""},
		"not by another": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) { s.ClusterIDs = []string{"x"} })}
		}, peering.ReasonPolicyRefused},
		"by a name that an administrator gave": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) { s.Names = []string{"peer-0"} })}
		}, ""},
		"by how it came": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) { s.Sources = []v1alpha1.Source{v1alpha1.SourceToken} })}
		}, ""},
		"not otherwise": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) { s.Sources = []v1alpha1.Source{v1alpha1.SourceIntroduction} })}
		}, peering.ReasonPolicyRefused},
		"every condition": {func(id string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) { s.ClusterIDs, s.Names = []string{id}, []string{"peer-9"} })}
		}, peering.ReasonPolicyRefused},
		"one with malformed prices": {func(string) []client.Object {
			return []client.Object{policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) {
				s.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "a lot"}}
			})}
		}, peering.ReasonPolicyRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, 1, nodes(1)...)
			for _, policy := range tc.policies(string(p.peers[0].ID())) {
				if err := p.Client.Create(t.Context(), policy); err != nil {
					t.Fatal(err)
				}
			}
			_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1"))
			wants(t, err, tc.want, "")
			offer, _, err := p.Offer(t.Context(), p.peers[0].ID())
			if err != nil || offer.Available != (tc.want == "") || offer.Available == (offer.Message != "") {
				t.Errorf("offered %+v, %v", offer, err)
			}
		})
	}
}

// TestUnconfirmedNameSelectsNoPolicy: what the agent made of a cluster
// that joined under the name of another's policy gets what everybody gets, until an
// administrator confirms the name.
func TestUnconfirmedNameSelectsNoPolicy(t *testing.T) {
	t.Parallel()
	gold := policyNamed("a", func(s *v1alpha1.PeeringPolicySpec) { s.Names = []string{"peer-0"} })
	p := newProvider(t, 1, append(nodes(1), gold)...)
	edit := func(change func(*v1alpha1.ForeignCluster)) {
		t.Helper()
		fc := p.peer(0)
		change(fc)
		if err := p.Client.Update(t.Context(), fc); err != nil {
			t.Fatal(err)
		}
	}
	edit(func(fc *v1alpha1.ForeignCluster) {
		fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, "tier": "gold"}
	})
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1"))
	wants(t, err, peering.ReasonPolicyRefused, "no PeeringPolicy")
	if got, err := p.Test(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1")); err != nil || !strings.Contains(got.Message, "annotate foreigncluster peer-0") {
		t.Errorf("the administrator gets %+v, %v", got, err)
	}
	edit(func(fc *v1alpha1.ForeignCluster) {
		fc.Annotations = map[string]string{v1alpha1.AnnotationNameConfirmed: "true"}
	})
	_, err = p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1"))
	wants(t, err, "", "")
}

func TestProviderOffersAStrangerNothing(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 0, append(nodes(1), policyNamed("all"))...)
	_, err := p.Advertise(t.Context(), generated(t).ID(), p.ask("r", "cpu=1"))
	wants(t, err, peering.ReasonPeerNotTrusted, "does not know")
}

func TestProviderRefusesASignatureOfOtherTerms(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(2), policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) {
		s.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.025"}}
	}))...)
	ask := p.ask("r", "cpu=2", "memory=4Gi")
	ask.Network = true
	ad, err := p.Advertise(t.Context(), p.peers[0].ID(), ask)
	if err != nil {
		t.Fatal(err)
	}
	other := generated(t)
	for name, tc := range map[string]struct {
		edit    func(*peering.Terms)
		reason  peering.Reason
		message string
	}{
		"more of a resource": {func(x *peering.Terms) { x.Resources = quantities(t, "cpu=3").KeepUnnamed(x.Resources) }, peering.ReasonContractMismatch, "cpu"},
		"another resource": {func(x *peering.Terms) {
			x.Resources = x.Resources.KeepUnnamed(quantities(t, "nvidia.com/gpu=1"))
		}, peering.ReasonContractMismatch, "not among the resources"},
		"a resource less":       {func(x *peering.Terms) { x.Resources = quantities(t, "memory=4Gi", "pods=55") }, peering.ReasonContractMismatch, "cpu"},
		"a second revision":     {func(x *peering.Terms) { x.Revision, x.Previous = 2, peering.Hash{1} }, peering.ReasonAdvertisementExpired, "revision 2"},
		"longer":                {func(x *peering.Terms) { x.NotAfter = x.NotAfter.Add(time.Second) }, peering.ReasonContractMismatch, "lasts"},
		"beginning in a week":   {func(x *peering.Terms) { x.NotBefore, x.NotAfter = now.Add(168*time.Hour), now.Add(169*time.Hour) }, peering.ReasonContractMismatch, "clocks"},
		"beginning later":       {func(x *peering.Terms) { x.NotBefore = now.Add(2 * time.Minute) }, peering.ReasonContractMismatch, "clocks"},
		"no tunnel":             {func(x *peering.Terms) { x.Network = false }, peering.ReasonContractMismatch, "network"},
		"a weaker Pod Security": {func(x *peering.Terms) { x.PodSecurity = peering.PodSecurityPrivileged }, peering.ReasonContractMismatch, "Pod Security"},
		"another node label value": {func(x *peering.Terms) {
			x.NodeLabels = map[string]string{corev1.LabelArchStable: "arm64", corev1.LabelOSStable: "linux"}
		}, peering.ReasonContractMismatch, "labels"},
		"another node label":       {func(x *peering.Terms) { x.NodeLabels = map[string]string{"a": "b"} }, peering.ReasonContractMismatch, "labels"},
		"a lower price":            {func(x *peering.Terms) { x.Price = peering.PriceList{} }, peering.ReasonContractMismatch, "price"},
		"not renewable":            {func(x *peering.Terms) { x.Renewable = !x.Renewable }, peering.ReasonContractMismatch, "renewable"},
		"a longer notice":          {func(x *peering.Terms) { x.Notice += time.Hour }, peering.ReasonContractMismatch, "notice"},
		"another statement period": {func(x *peering.Terms) { x.StatementPeriod += time.Minute }, peering.ReasonContractMismatch, "statement"},
		"chosen nodes":             {func(x *peering.Terms) { x.NodeSelector = map[string]string{"gpu": "a100"} }, peering.ReasonContractMismatch, "selector"},
		"a runtime class":          {func(x *peering.Terms) { x.RuntimeClasses = []string{"gvisor"} }, peering.ReasonContractMismatch, "runtime"},
		"another contract":         {func(x *peering.Terms) { x.ContractID = "c-other" }, peering.ReasonAdvertisementExpired, "c-other"},
		"another request":          {func(x *peering.Terms) { x.RequestID = "other" }, peering.ReasonAdvertisementExpired, ""},
		"another provider":         {func(x *peering.Terms) { x.Provider = other.Party() }, peering.ReasonSignatureInvalid, "between"},
	} {
		terms := p.terms(0, ad)
		tc.edit(&terms)
		_, err := p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, terms))
		if got := peering.ReasonOf(err); got != tc.reason || !strings.Contains(fmt.Sprint(err), tc.message) {
			t.Errorf("%s: got %v, want %s with %q", name, err, tc.reason, tc.message)
		}
	}
	_, err = p.Sign(t.Context(), p.peers[1].ID(), p.envelope(0, p.terms(0, ad)))
	wants(t, err, peering.ReasonSignatureInvalid, "caller")
	unsigned, err := peering.NewEnvelope(p.terms(0, ad))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Sign(t.Context(), p.peers[0].ID(), unsigned)
	wants(t, err, peering.ReasonSignatureInvalid, "")
	if _, err := p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, p.terms(0, ad))); err != nil {
		t.Errorf("what was advertised is refused: %v", err)
	}
	if !slices.Equal(p.notified, []peering.ClusterID{p.peers[0].ID()}) {
		t.Errorf("notified %v", p.notified)
	}
}

func TestSecondSignReturnsTheFirstContract(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p"))...)
	ad, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1"))
	if err != nil {
		t.Fatal(err)
	}
	envelope := p.envelope(0, p.terms(0, ad))
	results := make(chan peering.Envelope, 20)
	for range 20 {
		go func() {
			signed, err := p.Sign(context.WithoutCancel(t.Context()), p.peers[0].ID(), envelope)
			if err != nil {
				t.Error(err)
			}
			results <- signed
		}()
	}
	first := <-results
	for range 19 {
		if again := <-results; again.Hash() != first.Hash() || fmt.Sprint(again.Signatures) != fmt.Sprint(first.Signatures) {
			t.Error("two calls got two contracts")
		}
	}
	// The answer was lost, and the consumer began anew a minute later.
	p.pass(2 * time.Minute)
	ad, err = p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1"))
	if err != nil || ad.ContractID != p.stored(ad.ContractID).Name || ad.Revision != 1 {
		t.Fatalf("got %+v, %v", ad, err)
	}
	signed, err := p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, p.terms(0, ad)))
	if err != nil || signed.Hash() != first.Hash() {
		t.Errorf("another payload of the revision: %v, the same %v", err, signed.Hash() == first.Hash())
	}
	if got := p.granted().String(); got != "cpu=1, pods=27" {
		t.Errorf("%s is granted", got)
	}
}

func (p *testProvider) amend(terms peering.Terms, duration time.Duration, pairs ...string) peering.Ask {
	a := p.ask(terms.RequestID, pairs...)
	a.ContractID, a.Duration = terms.ContractID, duration
	return a
}

func TestProviderAmendsAndRenews(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	never := func(s *v1alpha1.PeeringPolicySpec) { s.Accept = v1alpha1.AcceptNever }
	notRenewed := func(s *v1alpha1.PeeringPolicySpec) { s.Renewal = v1alpha1.RenewalNever }
	short := func(s *v1alpha1.PeeringPolicySpec) { s.ContractDuration = &metav1.Duration{Duration: 6 * time.Hour} }
	ceiling := func(n string) func(*v1alpha1.PeeringPolicySpec) {
		return func(s *v1alpha1.PeeringPolicySpec) {
			s.Limits.Resources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
		}
	}
	// The contract grants 4 of 12 cores, and so 110 of 330 pods, for a day less a minute;
	// half of it passed.
	left := day/2 - time.Minute
	for name, tc := range map[string]struct {
		policy   func(*v1alpha1.PeeringPolicySpec)
		duration time.Duration
		amounts  []string
		reason   peering.Reason
		message  string
		want     string
		lasts    time.Duration
	}{
		"renewed as it is": {want: "cpu=4, pods=110", lasts: day},
		"renewed for less": {duration: 18 * time.Hour, want: "cpu=4, pods=110", lasts: 18 * time.Hour},
		"renewed for no longer than the policy gives": {duration: 10 * day, want: "cpu=4, pods=110", lasts: day},
		"shortened":                    {duration: time.Hour, want: "cpu=4, pods=110", lasts: time.Hour},
		"grown":                        {amounts: []string{"cpu=12"}, want: "cpu=12, pods=110", lasts: day},
		"grown by another resource":    {amounts: []string{"cpu=4", "memory=1Gi"}, want: "cpu=4, memory=1Gi, pods=110", lasts: day},
		"grown without lasting longer": {amounts: []string{"cpu=12"}, duration: time.Hour, want: "cpu=12, pods=110", lasts: time.Hour},
		"not beyond what is free":      {amounts: []string{"cpu=13"}, reason: peering.ReasonCapacityExhausted, message: "12"},
		"lessened":                     {amounts: []string{"cpu=1"}, want: "cpu=1, pods=110", lasts: day},
		"with fewer pods":              {amounts: []string{"pods=3"}, want: "cpu=4, pods=3", lasts: day},
		"with no cpu":                  {amounts: []string{"cpu=0", "memory=1Gi"}, want: "cpu=0, memory=1Gi, pods=110", lasts: day},
		"traded":                       {amounts: []string{"cpu=1", "memory=20Gi"}, want: "cpu=1, memory=20Gi, pods=110", lasts: day},

		"not renewed by a policy that renews none": {policy: notRenewed, reason: peering.ReasonPolicyRefused, message: "does not renew"},
		"nor when it asks for a time":              {policy: notRenewed, duration: day, reason: peering.ReasonPolicyRefused, message: "does not renew"},
		"but grown until its end":                  {policy: notRenewed, amounts: []string{"cpu=8"}, want: "cpu=8, pods=110", lasts: left},
		"whatever time it asks for":                {policy: notRenewed, amounts: []string{"cpu=8"}, duration: day, want: "cpu=8, pods=110", lasts: left},
		"and lessened until its end":               {policy: notRenewed, amounts: []string{"cpu=2"}, want: "cpu=2, pods=110", lasts: left},

		"not renewed by one that accepts none": {policy: never, reason: peering.ReasonPolicyRefused, message: "offers nothing"},
		"nor grown":                            {policy: never, amounts: []string{"cpu=5"}, reason: peering.ReasonPolicyRefused, message: "offers nothing"},
		"nor grown in pods":                    {policy: never, amounts: []string{"cpu=1", "pods=111"}, reason: peering.ReasonPolicyRefused, message: "offers nothing"},
		"but lessened until its end by it":     {policy: never, amounts: []string{"cpu=1"}, want: "cpu=1, pods=110", lasts: left},
		"nor renewed when lessened":            {policy: never, amounts: []string{"cpu=1"}, duration: day, reason: peering.ReasonPolicyRefused, message: "offers nothing"},

		"grown for no longer than the policy gives now": {policy: short, amounts: []string{"cpu=8"}, want: "cpu=8, pods=110", lasts: 6 * time.Hour},
		"lessened under a shorter one, until its end":   {policy: short, amounts: []string{"cpu=2"}, want: "cpu=2, pods=110", lasts: left},
		"as it is under a shorter one, until its end":   {policy: short, want: "cpu=4, pods=110", lasts: left},

		"not renewed under a lower ceiling":     {policy: ceiling("2"), reason: peering.ReasonPolicyRefused, message: "at most cpu 2"},
		"unless it fits in":                     {policy: ceiling("2"), amounts: []string{"cpu=2"}, want: "cpu=2, pods=110", lasts: day},
		"but lessened under one, until its end": {policy: ceiling("2"), amounts: []string{"cpu=3"}, want: "cpu=3, pods=110", lasts: left},
		"nor grown under one":                   {policy: ceiling("5"), amounts: []string{"cpu=6"}, reason: peering.ReasonPolicyRefused, message: "at most cpu 5, of which it has cpu 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, 1, append(nodes(3), policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) { s.StatementPeriod = &metav1.Duration{Duration: time.Minute} }))...)
			old := p.mustContract(0, p.ask("r", "cpu=4"))
			p.pass(day / 2)
			if tc.policy != nil {
				var policy v1alpha1.PeeringPolicy
				if err := p.Client.Get(t.Context(), client.ObjectKey{Name: "p"}, &policy); err != nil {
					t.Fatal(err)
				}
				tc.policy(&policy.Spec)
				policy.Spec.StatementPeriod = &metav1.Duration{Duration: time.Hour}
				policy.Spec.LimitRange = &v1alpha1.LimitRange{Container: &v1alpha1.ContainerLimitRange{DefaultRequest: v1alpha1.LimitedResources{corev1.ResourceCPU: resource.MustParse("1")}}}
				if err := p.Client.Update(t.Context(), &policy); err != nil {
					t.Fatal(err)
				}
			}
			ad, err := p.Advertise(t.Context(), p.peers[0].ID(), p.amend(old, tc.duration, tc.amounts...))
			wants(t, err, tc.reason, tc.message)
			if err != nil {
				return
			}
			if ad.ContractID != old.ContractID || ad.Revision != 2 || ad.PreviousHash == (peering.Hash{}) || ad.StatementPeriod != time.Minute || !ad.LimitRange.IsZero() {
				t.Errorf("advertised %+v", ad)
			}
			terms := p.terms(0, ad)
			// A contract begins a minute before it is signed; one that keeps its end has
			// exactly the end that it had.
			end := terms.NotBefore.Add(tc.lasts)
			if tc.lasts == left {
				end = old.NotAfter
			}
			if got := ad.Resources.String(); got != tc.want || !terms.NotAfter.Equal(end) {
				t.Errorf("granted %s until %s, want %s until %s", got, terms.NotAfter, tc.want, end)
			}
			signed, err := p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, terms))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := signed.Verify(); err != nil {
				t.Error(err)
			}
			c := p.stored(old.ContractID)
			if got, err := store.Resources(c.Spec.Resources); err != nil || got.String() != tc.want || c.Spec.Revision != 2 || !c.Spec.NotAfter.Time.Equal(terms.NotAfter) {
				t.Errorf("stored %s at revision %d until %s, %v", got, c.Spec.Revision, c.Spec.NotAfter, err)
			}
			if kept, _, err := store.ReadContract(c, p.self.ID()); err != nil || kept.Hash != signed.Hash() {
				t.Errorf("the envelope that is kept: %v", err)
			}
		})
	}
}

func TestAmendmentOfAContractThatIsNotRenewableKeepsItsEnd(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", func(s *v1alpha1.PeeringPolicySpec) { s.Renewal = v1alpha1.RenewalNever }))...)
	old := p.mustContract(0, p.ask("r", "cpu=4"))
	p.pass(time.Hour)
	ad, err := p.Advertise(t.Context(), p.peers[0].ID(), p.amend(old, 0, "cpu=5"))
	if err != nil {
		t.Fatal(err)
	}
	later := p.terms(0, ad)
	// A clock that is ahead, or claims to be.
	later.NotBefore, later.NotAfter = later.NotBefore.Add(5*time.Minute), later.NotAfter.Add(5*time.Minute)
	_, err = p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, later))
	wants(t, err, peering.ReasonContractMismatch, "may last until")
	if _, err := p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, p.terms(0, ad))); err != nil {
		t.Error(err)
	}
}

func TestProviderRefusesARevision(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(3), policyNamed("p"))...)
	old := p.mustContract(0, p.ask("r", "cpu=4"))
	ended := p.mustContract(0, p.ask("ended", "cpu=1"))
	c := p.stored(ended.ContractID)
	c.Spec.Termination = v1alpha1.TerminateDrain
	if err := p.Client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		peer   int
		ask    peering.Ask
		reason peering.Reason
	}{
		"of an unknown contract":    {0, p.amend(peering.Terms{ContractID: "c-1", RequestID: "r"}, 0), peering.ReasonContractUnknown},
		"of another's":              {1, p.amend(old, 0), peering.ReasonContractUnknown},
		"by another request's name": {0, p.amend(peering.Terms{ContractID: old.ContractID, RequestID: "other"}, 0), peering.ReasonRequestInvalid},
		"of one that ends":          {0, p.amend(ended, 0), peering.ReasonContractClosed},
		"for half a pod":            {0, p.amend(old, 0, "pods=500m"), peering.ReasonRequestInvalid},
	} {
		if _, err := p.Advertise(t.Context(), p.peers[tc.peer].ID(), tc.ask); peering.ReasonOf(err) != tc.reason {
			t.Errorf("%s: got %v, want %s", name, err, tc.reason)
		}
	}
	p.pass(24 * time.Hour)
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.amend(old, 0))
	wants(t, err, peering.ReasonContractClosed, "")
}

// A consumer keeps an offer of the next revision standing while the contract is ended:
// signing it brings nothing back.
func TestRevisionReopensNoContract(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p"))...)
	ctx, peer := t.Context(), p.peers[0].ID()
	first, err := p.Advertise(ctx, peer, p.ask("r", "cpu=2"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Sign(ctx, peer, p.envelope(0, p.terms(0, first))); err != nil {
		t.Fatal(err)
	}
	second, err := p.Advertise(ctx, peer, p.amend(p.terms(0, first), 0, "cpu=1"))
	if err != nil {
		t.Fatal(err)
	}
	contract := p.stored(first.ContractID)
	contract.Finalizers = nil
	if err := errors.Join(p.Client.Update(ctx, contract), p.Client.Delete(ctx, contract)); err != nil {
		t.Fatal(err)
	}
	_, err = p.Sign(ctx, peer, p.envelope(0, p.terms(0, second)))
	if peering.ReasonOf(err) != peering.ReasonContractClosed {
		t.Errorf("the next revision of what is over: %v", err)
	}
	var stored v1alpha1.Contract
	if err := p.Client.Get(ctx, client.ObjectKey{Name: first.ContractID}, &stored); !apierrors.IsNotFound(err) {
		t.Errorf("it is back: %v", err)
	}
}

func TestRevisionsFollowEachOther(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p"))...)
	ctx, peer := t.Context(), p.peers[0].ID()
	first, err := p.Advertise(ctx, peer, p.ask("r", "cpu=1"))
	if err != nil {
		t.Fatal(err)
	}
	one := p.envelope(0, p.terms(0, first))
	if _, err := p.Sign(ctx, peer, one); err != nil {
		t.Fatal(err)
	}
	p.pass(time.Hour)
	second, err := p.Advertise(ctx, peer, p.amend(p.terms(0, first), 0, "cpu=2"))
	if err != nil {
		t.Fatal(err)
	}
	terms := p.terms(0, second)
	wrong := terms
	wrong.Previous = peering.Hash{7}
	_, err = p.Sign(ctx, peer, p.envelope(0, wrong))
	wants(t, err, peering.ReasonContractMismatch, "previous hash")
	skipped := terms
	skipped.Revision = 3
	_, err = p.Sign(ctx, peer, p.envelope(0, skipped))
	wants(t, err, peering.ReasonRevisionStale, "")
	two := p.envelope(0, terms)
	signed, err := p.Sign(ctx, peer, two)
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.Sign(ctx, peer, two)
	if err != nil || again.Hash() != signed.Hash() {
		t.Errorf("again: %v", err)
	}
	_, err = p.Sign(ctx, peer, one)
	wants(t, err, peering.ReasonRevisionStale, "revision 2")
	// The consumer that lost the answer gets it by asking, as by the contract.
	if got, err := peering.ParseEnvelope([]byte(p.stored(first.ContractID).Spec.Envelope)); err != nil || got.Hash() != signed.Hash() {
		t.Errorf("the contract is another, %v", err)
	}
	if ad, err := p.Advertise(ctx, peer, p.ask("r", "cpu=1")); err != nil || ad.Revision != 2 || ad.PreviousHash != one.Hash() {
		t.Errorf("asked as if it were new: %+v, %v", ad, err)
	}
	c := p.stored(first.ContractID)
	c.Status.Phase = peering.PhaseClosed.String()
	if err := p.Client.Status().Update(ctx, c); err != nil {
		t.Fatal(err)
	}
	_, err = p.Sign(ctx, peer, two)
	wants(t, err, peering.ReasonContractClosed, "")
}

// The call that signs may be cut off while the contract is stored: the contract is in force,
// and the advertisement is void.
func TestStoredOfferIsAdvertisedAgain(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p"))...)
	ctx, peer := t.Context(), p.peers[0].ID()
	inner := p.Client
	cut := func(err error) error {
		if err != nil {
			return err
		}
		return context.Canceled
	}
	p.Client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return cut(c.Create(ctx, o, opts...))
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return cut(c.Update(ctx, o, opts...))
		},
	})
	first, err := p.Advertise(ctx, peer, p.ask("r", "cpu=1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Sign(ctx, peer, p.envelope(0, p.terms(0, first))); !errors.Is(err, context.Canceled) {
		t.Fatalf("it was not cut off: %v", err)
	}
	ask := p.amend(p.terms(0, first), 0, "cpu=2")
	for revision := uint64(2); revision <= 3; revision++ {
		next, err := p.Advertise(ctx, peer, ask)
		if err != nil || next.Revision != revision {
			t.Fatalf("revision %d is offered, want %d: %v", next.Revision, revision, err)
		}
		if _, err := p.Sign(ctx, peer, p.envelope(0, p.terms(0, next))); !errors.Is(err, context.Canceled) {
			t.Fatalf("it was not cut off: %v", err)
		}
		if got := p.stored(first.ContractID).Spec.Revision; got != int64(revision) {
			t.Fatalf("revision %d is stored, want %d", got, revision)
		}
	}
}

// The reconciler writes the contract's status all the time; a revision that is
// signed meanwhile is neither lost nor undoes it.
func TestSignRetriesAConflict(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p"))...)
	terms := p.mustContract(0, p.ask("r", "cpu=1"))
	inner, writes := p.Client, 0
	p.Client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if writes++; writes <= 3 {
				status := p.stored(terms.ContractID)
				status.Status.Pods = int32(writes)
				if err := inner.Status().Update(ctx, status); err != nil {
					return err
				}
			}
			return c.Update(ctx, o, opts...)
		},
	})
	p.mustContract(0, p.amend(terms, 0, "cpu=2"))
	if c := p.stored(terms.ContractID); c.Spec.Revision != 2 || c.Status.Pods != 3 || writes != 4 {
		t.Errorf("revision %d, %d pods, %d writes", c.Spec.Revision, c.Status.Pods, writes)
	}
}

// What was just signed counts before the cache shows it, and no longer when it
// turns out not to be there.
func TestLaggingCacheGrantsNothingTwice(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(1), policyNamed("p"))...)
	inner, lag := p.Client, true
	p.Client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*v1alpha1.ContractList); ok && lag {
				return nil
			}
			return c.List(ctx, list, opts...)
		},
	})
	signed := p.mustContract(0, p.ask("a", "cpu=3"))
	_, err := p.Advertise(t.Context(), p.peers[1].ID(), p.ask("b", "cpu=2"))
	wants(t, err, peering.ReasonCapacityExhausted, "")
	p.mustContract(0, p.amend(signed, 0, "cpu=4"))
	_, err = p.Advertise(t.Context(), p.peers[1].ID(), p.ask("b", "cpu=1"))
	wants(t, err, peering.ReasonCapacityExhausted, "")
	p.pass(cacheLag)
	_, err = p.Advertise(t.Context(), p.peers[1].ID(), p.ask("b", "cpu=1"))
	wants(t, err, peering.ReasonCapacityExhausted, "")
	c := p.stored(signed.ContractID)
	c.Finalizers = nil
	if err := errors.Join(inner.Update(t.Context(), c), inner.Delete(t.Context(), c)); err != nil {
		t.Fatal(err)
	}
	p.pass(cacheLag)
	if _, err := p.Advertise(t.Context(), p.peers[1].ID(), p.ask("b", "cpu=4")); err != nil {
		t.Errorf("what is gone is still reserved: %v", err)
	}
}

// A consumer opens its streams when it has the second signature, which may be before
// the cache shows the contract.
func TestSignedContractIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p"))...)
	inner, asked := p.Client, 0
	p.Client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*v1alpha1.Contract); ok {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "contracts"}, key.Name)
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	p.Reader = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			asked++
			return c.Get(ctx, key, o, opts...)
		},
	})
	if _, ok := p.Granted("c-none"); ok || asked != 0 {
		t.Errorf("a contract that was not signed is there: %t, and the API server was asked %d times", ok, asked)
	}
	signed := p.mustContract(0, p.ask("a", "cpu=3"))
	if c, ok := p.Granted(signed.ContractID); !ok || c.Name != signed.ContractID {
		t.Error("the contract that was just signed is not there")
	}
	p.pass(cacheLag)
	asked = 0
	if _, ok := p.Granted(signed.ContractID); ok || asked != 0 {
		t.Errorf("what the cache does not show for long is there: %t, and the API server was asked %d times", ok, asked)
	}
}

func TestProviderRefusesARolledOverKey(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p"))...)
	old := p.peers[0]
	rolled, err := old.Rollover(now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var fc v1alpha1.ForeignCluster
	if err := p.Client.Get(t.Context(), client.ObjectKey{Name: "peer-0"}, &fc); err != nil {
		t.Fatal(err)
	}
	fc.Spec.TrustBundle = rolled.TrustBundle().PEM()
	if err := p.Client.Update(t.Context(), &fc); err != nil {
		t.Fatal(err)
	}
	_, err = p.contracted(t.Context(), 0, p.ask("a", "cpu=1"))
	wants(t, err, peering.ReasonSignatureInvalid, "rolled over")
	p.peers[0] = rolled
	if _, err := p.contracted(t.Context(), 0, p.ask("a", "cpu=1")); err != nil {
		t.Errorf("the new key: %v", err)
	}
	// The provider rolls over too; a consumer that does not know that yet waits.
	ad, err := p.Advertise(t.Context(), rolled.ID(), p.ask("b", "cpu=1"))
	if err != nil {
		t.Fatal(err)
	}
	stale := p.terms(0, ad)
	if p.self, err = p.self.Rollover(now, time.Hour); err != nil {
		t.Fatal(err)
	}
	_, err = p.Sign(t.Context(), rolled.ID(), p.envelope(0, stale))
	wants(t, err, peering.ReasonContractMismatch, "newest")
	if _, err := p.Sign(t.Context(), rolled.ID(), p.envelope(0, p.terms(0, ad))); err != nil {
		t.Error(err)
	}
}

// A peer that just joined is known before the cache shows it.
func TestProviderAnswersAPeerThatJustJoined(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p"))...)
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*v1alpha1.ForeignClusterList); ok {
				return nil
			}
			return c.List(ctx, list, opts...)
		},
	})
	p.mustContract(0, p.ask("r", "cpu=1"))
	if offer, _, err := p.Offer(t.Context(), p.peers[0].ID()); err != nil || !offer.Available {
		t.Errorf("offered %+v, %v", offer, err)
	}
}

// What many do at once must not cost the API server more than it has to.
func TestSignStoresAFirstRevisionInOneWrite(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p"))...)
	reads := 0
	p.Reader = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			reads++
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			reads++
			return c.List(ctx, list, opts...)
		},
	})
	terms := p.mustContract(0, p.ask("r", "cpu=1"))
	if reads != 0 {
		t.Errorf("the API server was asked %d times", reads)
	}
	// The offer is gone; what is signed again is what was signed.
	signed, err := p.Sign(t.Context(), p.peers[0].ID(), p.envelope(0, terms))
	if err != nil || reads != 1 {
		t.Fatalf("signed again: %v, with %d reads", err, reads)
	}
	if again, err := signed.Verify(); err != nil || again.ContractID != terms.ContractID {
		t.Errorf("it is %s, %v", again.ContractID, err)
	}
}

// A contract may have been stored by a call whose response was lost.
func TestSignReturnsAStoredFirstRevision(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p"))...)
	inner, cuts := p.Client, 1
	p.Client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			err := c.Create(ctx, o, opts...)
			if cuts--; cuts >= 0 && err == nil {
				return errors.New("the connection broke")
			}
			return err
		},
	})
	ad, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1"))
	if err != nil {
		t.Fatal(err)
	}
	envelope := p.envelope(0, p.terms(0, ad))
	if _, err := p.Sign(t.Context(), p.peers[0].ID(), envelope); err == nil {
		t.Fatal("it was not cut off")
	}
	signed, err := p.Sign(t.Context(), p.peers[0].ID(), envelope)
	if err != nil {
		t.Fatal(err)
	}
	if stored := p.stored(ad.ContractID); stored.Spec.Revision != 1 || len(signed.Signatures) != 2 {
		t.Errorf("revision %d is stored, and %d signatures are returned", stored.Spec.Revision, len(signed.Signatures))
	}
	if contracts := p.contracts(inner); len(contracts) != 1 {
		t.Errorf("%d contracts", len(contracts))
	}
}

// A consumer that amends a contract without end is told to wait once it had as much
// written as it may, and then its revision is signed.
func TestSignStaysWithinThePeersBudget(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p"))...)
	var bytes, writes int
	count := func(o client.Object, err error) error {
		text, _ := json.Marshal(o)
		bytes, writes = bytes+len(text), writes+1
		return err
	}
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return count(o, c.Create(ctx, o, opts...))
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return count(o, c.Update(ctx, o, opts...))
		},
	})
	ctx, peer := t.Context(), p.peers[0].ID()
	terms := p.mustContract(0, p.ask("r", "cpu=1"))
	began := p.now()
	var refusal error
	var last peering.Envelope
	for i := 0; refusal == nil && i < 2000; i++ {
		ad, err := p.Advertise(ctx, peer, p.amend(terms, 0, "cpu="+[]string{"1", "2"}[i%2]))
		if err != nil {
			t.Fatal(err)
		}
		terms = p.terms(0, ad)
		last = p.envelope(0, terms)
		if _, err := p.Sign(ctx, peer, last); err != nil {
			refusal = err
		}
		p.pass(10 * time.Millisecond)
	}
	e, ok := errors.AsType[*peering.Error](refusal)
	if !ok || e.Reason != peering.ReasonRateLimited || e.RetryAfter <= 0 {
		t.Fatalf("after %d writes it returns %v", writes, refusal)
	}
	// What a write adds to an object, as its version, is not in what is measured before;
	// and the last write may go beyond, as long as there is room when it begins.
	limits := store.Writes()
	if most := limits.UserBurst + limits.UserRate*p.now().Sub(began).Seconds() + float64(256*writes+bytes/writes); float64(bytes) > most {
		t.Errorf("%d writes of %d bytes, want at most %.0f", writes, bytes, most)
	}
	p.pass(e.RetryAfter)
	if _, err := p.Sign(ctx, peer, last); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// What was advertised to a peer that was forgotten is free, also for that peer once it joins again.
func TestAdvertisementsEndWithTheTrustInAPeer(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(2), policyNamed("p"))...)
	peer, all := p.peers[0].ID(), p.ask("before")
	ad, err := p.Advertise(t.Context(), peer, all)
	if err != nil {
		t.Fatal(err)
	}
	again := p.ask("after", "cpu="+ad.Resources["cpu"].String())
	_, err = p.Advertise(t.Context(), peer, again)
	wants(t, err, peering.ReasonCapacityExhausted, "")
	fc := p.peer(0)
	if err := p.Client.Delete(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	fc.ResourceVersion, fc.UID = "", "another"
	if err := p.Client.Create(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Advertise(t.Context(), peer, again); err != nil {
		t.Error(err)
	}
	_, err = p.Sign(t.Context(), peer, p.envelope(0, p.terms(0, ad)))
	wants(t, err, peering.ReasonAdvertisementExpired, "ask again")
}
