package provider

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// offersPools is a policy with a pool of GPU nodes and one of all others, and nodes of both.
func offersPools(edit ...func(*v1alpha1.PeeringPolicySpec)) []client.Object {
	policy := policyNamed("pools", func(s *v1alpha1.PeeringPolicySpec) {
		s.Pools = []v1alpha1.NodePool{
			{Name: "gpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind": "gpu"}, Price: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "3"}}},
			{Name: "default", NodeSelector: map[string]v1alpha1.LabelValue{"kind": "cpu"}},
		}
	})
	for _, e := range edit {
		e(&policy.Spec)
	}
	out := []client.Object{policy}
	for name, kind := range map[string]string{"g": "gpu", "c": "cpu"} {
		n := fixture.Node(name)
		n.Labels["kind"] = kind
		out = append(out, &n)
	}
	return out
}

// repool changes the policy's pools.
func (p *testProvider) repool(edit func(*v1alpha1.PeeringPolicySpec)) {
	p.t.Helper()
	var policy v1alpha1.PeeringPolicy
	if err := p.Client.Get(p.t.Context(), client.ObjectKey{Name: "pools"}, &policy); err != nil {
		p.t.Fatal(err)
	}
	edit(&policy.Spec)
	if err := p.Client.Update(p.t.Context(), &policy); err != nil {
		p.t.Fatal(err)
	}
}

func TestProviderOffersPools(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, offersPools()...)
	ask := p.ask("gpu", "cpu=3")
	ask.Pool = "gpu"
	gpu := p.mustContract(0, ask)
	if gpu.Pool != "gpu" || !maps.Equal(gpu.NodeSelector, map[string]string{"kind": "gpu"}) || gpu.Price.PerHour["cpu"].String() != "3" || gpu.NodeLabels["kind"] != "gpu" {
		t.Errorf("signed %+v", gpu.Clauses)
	}
	if c := p.stored(gpu.ContractID); c.Spec.Pool != "gpu" || c.Spec.NodeSelector["kind"] != "gpu" {
		t.Errorf("kept %+v", c.Spec)
	}
	// An older consumer names none, and signs none.
	cpu := p.mustContract(0, p.ask("cpu", "cpu=3"))
	if cpu.Pool != "" || !maps.Equal(cpu.NodeSelector, map[string]string{"kind": "cpu"}) || len(cpu.Price.PerHour) > 0 {
		t.Errorf("signed %+v", cpu.Clauses)
	}
	ask = p.ask("more", "cpu=2")
	ask.Pool = "gpu"
	_, err := p.contracted(t.Context(), 0, ask)
	wants(t, err, peering.ReasonCapacityExhausted, "cpu 1 is left now")
	ask.Pool = "spot"
	_, err = p.contracted(t.Context(), 0, ask)
	wants(t, err, peering.ReasonPolicyRefused, "offers no pool spot")
	test, err := p.Test(t.Context(), p.peers[0].ID(), peering.Ask{Pool: "gpu"})
	if err != nil || test.Advertisement == nil || test.Advertisement.Pool != "gpu" || test.Advertisement.Resources["cpu"] != peering.Whole(1) {
		t.Errorf("a test returns %+v, %v", test, err)
	}
	if offer, _ := p.offered(0); len(offer.Pools) != 2 || !offer.Available {
		t.Errorf("offers %+v", offer)
	}
}

func TestAContractOfAPoolFollowsThePolicy(t *testing.T) {
	t.Parallel()
	amended := func(p *testProvider, terms peering.Terms, d time.Duration, pairs ...string) (peering.Advertisement, error) {
		ask := p.amend(terms, d, pairs...)
		ask.Pool, ask.NodeSelector = terms.Pool, nil // what a consumer's request says
		return p.Advertise(t.Context(), p.peers[0].ID(), ask)
	}
	for name, tt := range map[string]struct {
		change func(*v1alpha1.PeeringPolicySpec)
		// renewed and grown are why not; empty means that it is. kind is that of the next revision's nodes.
		renewed, grown, kind string
	}{
		"as it was":          {func(*v1alpha1.PeeringPolicySpec) {}, "", "", "gpu"},
		"the pool is gone":   {func(s *v1alpha1.PeeringPolicySpec) { s.Pools = s.Pools[1:] }, "offers no pool gpu", "offers no pool gpu", ""},
		"all pools are gone": {func(s *v1alpha1.PeeringPolicySpec) { s.Pools = nil }, "offers no pools", "offers no pools", ""},
		"the pool is lowered": {func(s *v1alpha1.PeeringPolicySpec) {
			s.Pools[0].Limits = &v1alpha1.PolicyLimits{Resources: fixture.Amounts("1", "8Gi", "110")}
		}, "at most cpu 1", "at most cpu 1", ""},
		"it is of other nodes that have nothing to offer": {func(s *v1alpha1.PeeringPolicySpec) {
			s.Pools = []v1alpha1.NodePool{{
				Name: "gpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind": "cpu"}, Limits: &v1alpha1.PolicyLimits{Resources: fixture.Amounts("0", "8Gi", "110")},
			}}
		}, "at most cpu 0", "at most cpu 0", ""},
		"it is of other nodes": {func(s *v1alpha1.PeeringPolicySpec) {
			s.Pools = []v1alpha1.NodePool{{Name: "gpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind": "cpu"}}}
		}, "", "", "cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, 1, offersPools()...)
			ask := p.ask("r", "cpu=2")
			ask.Pool = "gpu"
			terms := p.mustContract(0, ask)
			p.repool(tt.change)
			for what, asked := range map[string]struct{ pair, why string }{"renewed": {"cpu=2", tt.renewed}, "grown": {"cpu=3", tt.grown}} {
				p.pass(time.Hour)
				ad, err := amended(p, terms, 0, asked.pair)
				if asked.why != "" {
					wants(t, err, peering.ReasonOf(err), asked.why)
					if err == nil {
						t.Errorf("%s: offered %+v", what, ad.Clauses)
					}
					continue
				}
				if err != nil || ad.Pool != "gpu" || ad.NodeSelector["kind"] != tt.kind || ad.Revision != 2 {
					t.Errorf("%s: offered %+v, %v", what, ad.Clauses, err)
				}
			}
			// Resources can always be given back, if need be on the terms in force.
			if ad, err := amended(p, terms, 0, "cpu=1"); err != nil || ad.Pool != "gpu" || ad.Resources["cpu"] != peering.Whole(1) {
				t.Errorf("given back: %+v, %v", ad.Clauses, err)
			}
		})
	}
}

func TestAContractKeepsWhatItsPodsTolerate(t *testing.T) {
	t.Parallel()
	dedicated := func(s *v1alpha1.PeeringPolicySpec) {
		s.Pools[0].Tolerations = []v1alpha1.PoolToleration{{Key: "dedicated", Operator: "Exists"}}
	}
	for name, tt := range map[string]struct {
		change func(*v1alpha1.PeeringPolicySpec)
		// now is what new pods tolerate; less and renewed what the contract has kept after it gave something back, and
		// after it was renewed. Empty is that it is not renewed.
		now, less, renewed string
	}{
		"as it was": {func(*v1alpha1.PeeringPolicySpec) {}, "dedicated", "dedicated", "dedicated"},
		"another one": {func(s *v1alpha1.PeeringPolicySpec) {
			s.Pools[0].Tolerations = append(s.Pools[0].Tolerations, v1alpha1.PoolToleration{Key: "gpu", Operator: "Exists"})
		}, "dedicated gpu", "dedicated gpu", "dedicated gpu"},
		"another one instead": {func(s *v1alpha1.PeeringPolicySpec) { s.Pools[0].Tolerations[0].Key = "gpu" }, "dedicated gpu", "dedicated gpu", "gpu"},
		"the pool is gone":    {func(s *v1alpha1.PeeringPolicySpec) { s.Pools = s.Pools[1:] }, "dedicated", "dedicated", ""},
		"the pool is of other nodes": {func(s *v1alpha1.PeeringPolicySpec) {
			s.Pools = []v1alpha1.NodePool{{
				Name: "gpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind": "cpu"}, Tolerations: []v1alpha1.PoolToleration{{Key: "gpu", Operator: "Exists"}},
			}}
		}, "dedicated", "gpu", "gpu"},
		"the policy is invalid": {func(s *v1alpha1.PeeringPolicySpec) { s.Pools[0].Tolerations[0].Key = "" }, "dedicated", "dedicated", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys := func(all []corev1.Toleration) string {
				var out []string
				for _, t := range all {
					out = append(out, t.Key)
				}
				return strings.Join(out, " ")
			}
			p := newProvider(t, 1, offersPools(dedicated, func(s *v1alpha1.PeeringPolicySpec) { s.ContractDuration = &metav1.Duration{Duration: 24 * time.Hour} })...)
			ask := p.ask("r", "cpu=3")
			ask.Pool = "gpu"
			terms := p.mustContract(0, ask)
			kept := store.Tolerations(p.stored(terms.ContractID))
			if keys(kept) != "dedicated" {
				t.Fatalf("kept %+v", kept)
			}
			if text := fmt.Sprintf("%+v", terms); strings.Contains(text, "dedicated") {
				t.Errorf("the consumer signed %s", text)
			}
			p.repool(tt.change)
			if got := p.Permissions(t.Context(), p.peers[0].ID(), kept, terms.NodeSelector).Tolerations; keys(got) != tt.now {
				t.Errorf("new pods tolerate %+v, want %s", got, tt.now)
			}
			// As long as the contract: nothing is renewed by it.
			less := p.amend(terms, time.Hour, "cpu=2")
			less.Pool = "gpu"
			next := p.mustContract(0, less)
			if got := store.Tolerations(p.stored(terms.ContractID)); keys(got) != tt.less || next.Revision != 2 {
				t.Errorf("after something was given back it keeps %+v, want %s", got, tt.less)
			}
			p.pass(2 * time.Minute)
			longer := p.amend(terms, 24*time.Hour, "cpu=2")
			longer.Pool = "gpu"
			_, err := p.contracted(t.Context(), 0, longer)
			if (err == nil) != (tt.renewed != "") {
				t.Fatalf("renewed: %v", err)
			}
			if got := store.Tolerations(p.stored(terms.ContractID)); err == nil && keys(got) != tt.renewed {
				t.Errorf("renewed, it keeps %+v, want %s", got, tt.renewed)
			}
		})
	}
}

func TestTaintsAreFollowed(t *testing.T) {
	t.Parallel()
	objects := offersPools()
	for _, o := range objects {
		if n, ok := o.(*corev1.Node); ok && n.Name == "g" {
			n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "shared", Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	p := newProvider(t, 1, objects...)
	ask := p.ask("r", "cpu=2")
	ask.Pool = "gpu"
	_, err := p.contracted(t.Context(), 0, ask)
	wants(t, err, peering.ReasonCapacityExhausted, "no node of the provider that takes pods of this contract has the labels kind=gpu")
	p.repool(func(s *v1alpha1.PeeringPolicySpec) {
		s.Pools[0].Tolerations = []v1alpha1.PoolToleration{{Key: "dedicated", Value: "shared", Effect: "NoSchedule"}}
	})
	if got := p.mustContract(0, ask); got.NodeSelector["kind"] != "gpu" || got.Resources["cpu"] != peering.Whole(2) {
		t.Errorf("signed %+v", got.Clauses)
	}
}

func TestApprovalIsOfAPool(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, offersPools(afterApproval)...)
	ask := p.ask("r", "cpu=2")
	ask.Pool = "gpu"
	p.pends(0, ask)
	seen := p.peer(0).Status.Requests
	if len(seen) != 1 || seen[0].Pool != "gpu" || seen[0].NodeSelector["kind"] != "gpu" {
		t.Fatalf("an administrator sees %+v", seen)
	}
	p.decided(0, []string{"r"}, nil)
	terms := p.mustContract(0, ask)
	more := p.amend(terms, 0, "cpu=1")
	more.Pool, more.NodeSelector = "gpu", nil
	if ad, err := p.Advertise(t.Context(), p.peers[0].ID(), more); err != nil || ad.Resources["cpu"] != peering.Whole(1) {
		t.Errorf("what is within the contract waits: %+v, %v", ad, err)
	}
	unknown := p.ask("s", "cpu=2")
	unknown.Pool = "spot"
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), unknown)
	wants(t, err, peering.ReasonPolicyRefused, "offers no pool spot")
}

func TestOfferStatusKeepsPools(t *testing.T) {
	t.Parallel()
	offer := peering.Offer{Message: "name one", Pools: []peering.OfferedPool{
		{Name: "gpu", Resources: quantities(t, "cpu=1999"), Price: perCPU(t, "2"), NodeLabels: map[string]string{"kind": "gpu"}}, {Name: "spot"},
	}}
	got, err := offerStatus(offer)
	if err != nil || len(got.Pools) != 2 || got.Pools[0].Price == nil || got.Pools[0].NodeLabels["kind"] != "gpu" || got.Pools[1].Resources != nil {
		t.Fatalf("kept %+v, %v", got, err)
	}
	if cpu := got.Pools[0].Resources["cpu"]; cpu.String() != "1900" {
		t.Errorf("kept %s", cpu.String())
	}
	if !slices.Equal(got.OfferedPools(), []string{"gpu"}) || offersNothing(&offer) {
		t.Errorf("offers %q", got.OfferedPools())
	}
	if got = nil; len(got.OfferedPools()) != 0 || !offersNothing(&peering.Offer{Pools: offer.Pools[1:]}) {
		t.Error("nothing is something")
	}
}
