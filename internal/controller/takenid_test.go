package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// offersID has a provider call each of its contracts by the same name.
func offersID(id string) func(*peering.Advertisement) {
	return func(ad *peering.Advertisement) {
		if ad.ContractID != "" {
			ad.ContractID = id
		}
	}
}

func TestContractIDThatIsTakenIsNotSigned(t *testing.T) {
	t.Parallel()
	type row struct {
		terms  func(*peering.Terms)
		change func(*v1alpha1.Contract)
		// provides: this cluster is the provider of the contract that has the name. elsewhere: with another peer.
		provides, elsewhere bool
		reason, says        string
	}
	closed := func(c *v1alpha1.Contract) {
		c.Status.Phase, c.Status.Reason = "Closed", peering.EndedByExpiry.Name()
		c.Status.ClosedAt = &metav1.Time{Time: now.Add(-time.Hour)}
	}
	for name, tc := range map[string]row{
		"by another request":        {terms: func(x *peering.Terms) { x.RequestID = "other" }, reason: "ContractMismatch", says: "another PeeringRequest"},
		"by another peer":           {elsewhere: true, reason: "ContractMismatch", says: "another peer"},
		"by what this one provides": {provides: true, reason: "ContractMismatch", says: "this cluster provides"},
		"by one that is over":       {change: closed, reason: "ContractClosed", says: "is over"},
		"by a record of one that is over": {
			change: func(c *v1alpha1.Contract) { closed(asReleased(c)) }, reason: "ContractClosed", says: "is over",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider := &seller{price: eur(t, "cpu", "0.1"), changes: offersID("c-old")}
			b := newRequestsBench(t, requestFor(nil), map[string]*seller{"peer": provider})
			p := parties{consumer: b.self, provider: provider.id}
			terms := p.terms(t, func(x *peering.Terms) {
				x.ContractID = "c-old"
				if tc.elsewhere {
					p.provider = newParties(t).provider
					x.Provider, x.RequestID = p.provider.Party(), "other"
				}
				if tc.terms != nil {
					tc.terms(x)
				}
				if tc.provides {
					x.Consumer, x.Provider = x.Provider, x.Consumer
				}
			})
			taken := p.stored(t, terms, b.self)
			if tc.change != nil {
				tc.change(taken)
			}
			if err := b.client.Create(t.Context(), taken); err != nil {
				t.Fatal(err)
			}
			s, _ := b.look(t)
			c := accepted(s)
			if c.Status != metav1.ConditionFalse || c.Reason != tc.reason || !strings.Contains(c.Message, "c-old") || !strings.Contains(c.Message, tc.says) {
				t.Errorf("the condition is %+v", c)
			}
			if provider.signs > 0 {
				t.Error("this cluster signed")
			}
			provider.changes = nil
			if s, held := b.look(t); accepted(s).Status != metav1.ConditionTrue || s.Status.Contract == "c-old" || len(held) == 0 {
				t.Errorf("with a name of its own the contract is %s: %+v", s.Status.Contract, accepted(s))
			}
		})
	}
}

func TestProviderThatReusesAnIDIsPassedOver(t *testing.T) {
	t.Parallel()
	careless, honest := &seller{price: eur(t, "cpu", "0.1"), changes: offersID("c-old")}, &seller{price: eur(t, "cpu", "0.2")}
	b := newRequestsBench(t, requestFor(choosing), map[string]*seller{"careless": careless, "honest": honest})
	p := parties{consumer: b.self, provider: careless.id}
	taken := p.stored(t, p.terms(t, func(x *peering.Terms) { x.ContractID, x.RequestID = "c-old", "other" }), b.self)
	if err := b.client.Create(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	if s, _ := b.look(t); s.Status.ForeignCluster != "honest" || careless.signs > 0 {
		t.Errorf("the request has %+v", s.Status)
	}
}

// TestContractStoredWhileItWasSignedIsCompared stores a contract while the provider signs, as a takeover of an
// orphan does.
func TestContractStoredWhileItWasSignedIsCompared(t *testing.T) {
	t.Parallel()
	type stores func(p parties, terms peering.Terms, signed peering.Envelope) peering.Envelope
	with := func(change func(*peering.Terms)) stores {
		return func(p parties, terms peering.Terms, _ peering.Envelope) peering.Envelope {
			change(&terms)
			return p.signed(t, terms)
		}
	}
	same := func(_ parties, _ peering.Terms, signed peering.Envelope) peering.Envelope { return signed }
	for name, tc := range map[string]struct {
		stores stores
		closed bool
		reason string // empty: it is accepted
	}{
		"the same":                 {stores: same},
		"the same, over meanwhile": {stores: same, closed: true, reason: "ResponseInvalid"},
		"of another request":       {stores: with(func(x *peering.Terms) { x.RequestID = "other" }), reason: "ResponseInvalid"},
		"with other content":       {stores: with(func(x *peering.Terms) { x.Notice = time.Hour }), reason: "ResponseInvalid"},
		"its later revision": {stores: func(p parties, terms peering.Terms, signed peering.Envelope) peering.Envelope {
			return p.signed(t, next(terms, signed, func(*peering.Terms) {}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider := &seller{price: eur(t, "cpu", "0.1")}
			b := newRequestsBench(t, requestFor(nil), map[string]*seller{"peer": provider})
			p := parties{consumer: b.self, provider: provider.id}
			provider.signing = func(e peering.Envelope, terms peering.Terms) {
				c, err := store.NewContract(tc.stores(p, terms, e), b.self.ID(), "peer")
				if err != nil {
					t.Error(err)
					return
				}
				if tc.closed {
					c.Status.Phase = "Closed"
				}
				if err := b.client.Create(t.Context(), c); err != nil {
					t.Error(err)
				}
			}
			s, held := b.look(t)
			c := accepted(s)
			if tc.reason != "" {
				if c.Status != metav1.ConditionFalse || c.Reason != tc.reason || !strings.Contains(c.Message, "c-1") || s.Status.Contract != "" {
					t.Errorf("the condition is %+v, the contract %q", c, s.Status.Contract)
				}
				return
			}
			if c.Status != metav1.ConditionTrue || len(held) != 1 || s.Status.Contract != held[0].Name {
				t.Errorf("the condition is %+v, the contract %q", c, s.Status.Contract)
			}
		})
	}
}
