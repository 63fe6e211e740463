package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// drawSeller makes a provider that may refuse, or offer something else than was asked
// for.
func drawSeller(t *testing.T, rt *rapid.T, name string) *seller {
	s := &seller{price: eur(t, "cpu", rapid.SampledFrom([]string{"0", "0.1", "0.2", "0.3"}).Draw(rt, name+" price"))}
	drawMood(t, rt, name, s)
	return s
}

// drawMood changes how a provider responds.
func drawMood(t *testing.T, rt *rapid.T, name string, s *seller) {
	s.refuses, s.away, s.approves, s.changes = "", false, false, nil
	change := func(change func(*peering.Grant)) { s.changes = func(ad *peering.Advertisement) { change(&ad.Grant) } }
	switch mood := rapid.SampledFrom([]string{
		"", "", "", "", "away", "approves", "refuses", "less", "more", "longer", "short", "no pods", "dollars", "stricter", "other resources",
	}).Draw(rt, name+" is"); mood {
	case "away":
		s.away = true
	case "approves":
		s.approves = true
	case "refuses":
		s.refuses = peering.ReasonPolicyRefused
	case "less":
		change(func(g *peering.Grant) { g.Resources["cpu"] = resourcesOf(t, map[string]string{"cpu": "1"})["cpu"] })
	case "more":
		change(func(g *peering.Grant) { g.Resources["cpu"] = resourcesOf(t, map[string]string{"cpu": "100"})["cpu"] })
	case "longer":
		change(func(g *peering.Grant) { g.Duration *= 3 })
	case "short":
		change(func(g *peering.Grant) { g.Duration = 3 * time.Minute })
	case "no pods":
		change(func(g *peering.Grant) { delete(g.Resources, peering.Pods) })
	case "dollars":
		change(func(g *peering.Grant) { g.Price.Currency = "USD" })
	case "stricter":
		change(func(g *peering.Grant) { g.PodSecurity = peering.PodSecurityRestricted })
	case "other resources":
		change(func(g *peering.Grant) {
			g.Resources["example.com/gpu"] = resourcesOf(t, map[string]string{"example.com/gpu": "1"})["example.com/gpu"]
		})
	}
}

// drawTerms makes a spec ask for something else.
func drawTerms(rt *rapid.T, s *v1alpha1.PeeringRequestSpec) {
	s.PriceCeiling, s.Duration = nil, nil
	if amount := rapid.SampledFrom([]string{"", "", "0.1", "0.5", "1"}).Draw(rt, "ceiling"); amount != "" {
		s.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: amount}
	}
	if d := rapid.SampledFrom([]time.Duration{0, 0, 2 * time.Minute, 30 * time.Minute, time.Hour}).Draw(rt, "duration"); d > 0 {
		s.Duration = &metav1.Duration{Duration: d}
	}
	s.Renewal = rapid.SampledFrom([]v1alpha1.Renewal{v1alpha1.RenewalAutomatic, v1alpha1.RenewalNever}).Draw(rt, "renewal")
}

// drawWorld makes a PeeringRequest, what it agreed on before, and providers that it can
// ask, or cannot.
func drawWorld(t *testing.T, rt *rapid.T) *requestsBench {
	request := requestFor(func(s *v1alpha1.PeeringRequest) {
		if rapid.IntRange(0, 3).Draw(rt, "chooses") > 0 {
			choosing(s)
		} else {
			s.Spec.ForeignCluster = rapid.SampledFrom([]string{"p0", "p0", "p1", "nobody"}).Draw(rt, "asks")
		}
		drawTerms(rt, &s.Spec)
	})
	sellers, names := map[string]*seller{}, []string{}
	for i := range rapid.IntRange(1, 5).Draw(rt, "providers") {
		name := fmt.Sprintf("p%d", i)
		sellers[name], names = drawSeller(t, rt, name), append(names, name)
	}
	b := newRequestsBench(t, request, sellers)
	save := func(err error) {
		if err != nil {
			rt.Fatal(err)
		}
	}
	for _, name := range names {
		fc, id := &v1alpha1.ForeignCluster{}, sellers[name].id
		save(b.client.Get(t.Context(), client.ObjectKey{Name: name}, fc))
		switch rapid.SampledFrom([]string{
			"", "", "", "", "untrusted", "disconnected", "unselected", "left out", "ended", "ended long ago", "no bundle", "bad bundle", "agreed", "tried",
		}).Draw(rt, name) {
		case "untrusted":
			fc.Status.Conditions[0].Status = metav1.ConditionFalse
		case "disconnected":
			fc.Status.Conditions[1].Status = metav1.ConditionFalse
		case "unselected":
			fc.Labels = nil
		case "left out":
			request.Exclude(name)
		case "ended":
			save(b.client.Create(t.Context(), endedContract(t, b, name, time.Minute)))
		case "ended long ago":
			save(b.client.Create(t.Context(), endedContract(t, b, name, time.Hour)))
		case "no bundle":
			fc.Spec.TrustBundle = ""
		case "bad bundle":
			fc.Spec.TrustBundle = "nonsense"
		case "agreed":
			request.Status.Agreed = &v1alpha1.AgreedPrice{ClusterID: string(id.ID()), Price: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.1"}}}
		case "tried":
			request.Status.ForeignCluster = name
		}
		if rt := rapid.IntRange(0, 2).Draw(rt, name+" round trip"); rt > 0 {
			fc.Status.Session.RoundTrip = &metav1.Duration{Duration: time.Duration(rt) * 50 * time.Millisecond}
		}
		status := fc.Status
		save(b.client.Update(t.Context(), fc))
		fc.Status = status
		save(b.client.Status().Update(t.Context(), fc))
	}
	stored, status := b.request(t), request.Status
	stored.Annotations = request.Annotations
	save(b.client.Update(t.Context(), stored))
	stored.Status = status
	save(b.client.Status().Update(t.Context(), stored))
	return b
}

func (b *requestsBench) request(t *testing.T) *v1alpha1.PeeringRequest {
	t.Helper()
	var s v1alpha1.PeeringRequest
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: "request"}, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// endedContract is a contract of the request that its provider ended some time ago.
func endedContract(t *testing.T, b *requestsBench, provider string, ago time.Duration) *v1alpha1.Contract {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: provider}, &fc); err != nil {
		t.Fatal(err)
	}
	p := parties{b.self, b.market.sellers[peering.ClusterID(fc.Spec.ClusterID)].id}
	c := p.stored(t, p.terms(t, func(x *peering.Terms) { x.ContractID = "old-" + provider }), b.self)
	closed := metav1.NewTime(b.clock.Add(-ago))
	c.Status.Phase, c.Status.Reason, c.Status.ClosedAt = "Closed", peering.EndedByPeer.Name(), &closed
	return c
}

// TestPreviewNamesTheProviderThatReconcileTakes: in whatever world, a preview names the
// provider that a reconciliation takes next, if need be once an administrator there
// approved it, with the terms that are signed, or gives its refusal. So it is for a new
// contract, and then for a change of it, for its renewal, and for another after its end.
func TestPreviewNamesTheProviderThatReconcileTakes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := drawWorld(t, rt)
		held := samePreview(t, rt, b)
		if held == nil {
			return
		}
		s := b.market.sellers[peering.ClusterID(held.Spec.PeerID)]
		what := rapid.SampledFrom([]string{"the spec", "its end nears", "both", "it ended"}).Draw(rt, "what changes")
		if what == "the spec" || what == "both" {
			changed := b.request(t)
			changed.Generation++
			drawTerms(rt, &changed.Spec)
			changed.Spec.Resources = rapid.SampledFrom([]corev1.ResourceList{
				nil, amountsIn("cpu=8"), amountsIn("memory=1Gi", "pods=5"), amountsIn("cpu=4", "memory=8Gi", "pods=20"),
			}).Draw(rt, "resources")
			if err := b.client.Update(t.Context(), changed); err != nil {
				rt.Fatal(err)
			}
		}
		if what == "its end nears" || what == "both" {
			b.clock = held.Spec.NotAfter.Add(-time.Minute)
		}
		if what == "it ended" {
			held.Status.Phase, held.Status.Reason = "Closed", rapid.SampledFrom([]peering.EndReason{peering.EndedByPeer, peering.EndedHere, peering.EndedByExpiry}).Draw(rt, "why").Name()
			held.Status.ClosedAt = &metav1.Time{Time: b.clock}
			delete(s.held, held.Name)
			if err := b.client.Status().Update(t.Context(), held); err != nil {
				rt.Fatal(err)
			}
		}
		if s.price = eur(t, "cpu", rapid.SampledFrom([]string{"0", "0.1", "0.2", "0.3"}).Draw(rt, "new price")); rapid.Bool().Draw(rt, "changes its mind") {
			drawMood(t, rt, "it", s)
		}
		samePreview(t, rt, b)
		if s.requests > 0 && s.previews > 0 && b.request(t).Status.Contract == held.Name && what == "the spec" {
			if !reflect.DeepEqual(s.asked, s.seen) {
				rt.Errorf("previewed %+v, and asked %+v to sign it", s.seen, s.asked)
			}
		}
	})
}

// samePreview compares a preview with what a reconciliation does right after it, and
// returns the contract then.
func samePreview(t *testing.T, rt *rapid.T, b *requestsBench) *v1alpha1.Contract {
	t.Helper()
	provider, offer, refusal := b.Preview(t.Context(), b.request(t))
	before, revision := b.request(t).Status.Contract, int64(0)
	if before != "" {
		var c v1alpha1.Contract
		if err := b.client.Get(t.Context(), client.ObjectKey{Name: before}, &c); err != nil {
			rt.Fatal(err)
		}
		revision = c.Spec.Revision
	}
	s, held := b.look(t)
	pending := accepted(s).Reason == peering.ReasonPolicyPending.Condition()
	if renewed := meta.FindStatusCondition(s.Status.Conditions, conditionRenewed); renewed != nil && accepted(s).Status == metav1.ConditionTrue {
		pending = renewed.Reason == peering.ReasonPolicyPending.Condition() // the contract stays meanwhile
	}
	if offer != nil && pending != offer.NeedsApproval {
		rt.Fatalf("previewed %+v; then %+v", offer, s.Status.Conditions)
	} else if pending {
		for _, seller := range b.market.sellers {
			seller.approves = false // it is approved
		}
		s, held = b.look(t)
	}
	got := accepted(s)
	switch {
	case refusal == nil && offer == nil: // it is as it should be
		if before == "" || got.Reason != reasonContracted || len(held) != 1 || held[0].Name != before || held[0].Spec.Revision != revision {
			rt.Fatalf("a preview of nothing; then %+v and %+v", got, held)
		}
	case refusal != nil:
		e := peering.AsError(refusal)
		if renewed := meta.FindStatusCondition(s.Status.Conditions, conditionRenewed); renewed != nil && got.Status == metav1.ConditionTrue {
			got = renewed
		}
		// Why a contract that is over is not followed by another has reasons of its own.
		if reason := e.Reason.Condition(); got.Status != metav1.ConditionFalse || got.Reason != reason && e.Reason != peering.ReasonContractClosed || !strings.HasSuffix(got.Message, e.Error()) {
			rt.Fatalf("previewed %s: %s; then %+v", e.Reason, e, got)
		}
	case got.Status != metav1.ConditionTrue || len(held) != 1 || held[0].Spec.ForeignCluster != provider:
		rt.Fatalf("previewed %s; then %+v and %+v", provider, got, held)
	default:
		terms := termsIn(t, b, &held[0])
		if !terms.NotAfter.Equal(market.EndOf(*offer, b.clock)) || terms.Revision != offer.Revision || cmp.Diff(terms.Resources.Strings(), offer.Resources.Strings()) != "" ||
			fmt.Sprint(terms.Price) != fmt.Sprint(offer.Price) {
			rt.Fatalf("previewed %+v, and signed %+v", offer, terms)
		}
	}
	if len(held) == 0 || before != "" && before != held[0].Name {
		return nil
	}
	return &held[0]
}

func termsIn(t *testing.T, b *requestsBench, c *v1alpha1.Contract) peering.Terms {
	t.Helper()
	_, terms, err := store.ReadContract(c, b.self.ID())
	if err != nil {
		t.Fatal(err)
	}
	return terms
}
