package controller

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// answering is a provider that has contracts with one consumer.
func answering(t *testing.T, contracts ...string) (*ContractCalls, parties) {
	t.Helper()
	p := newParties(t)
	objects := []client.Object{foreign("peer", p.consumer)}
	for _, id := range contracts {
		objects = append(objects, p.stored(t, p.terms(t, func(terms *peering.Terms) { terms.ContractID = id }), p.provider))
	}
	c := fakeClient(t, objects...)
	clock := func() time.Time { return now }
	return &ContractCalls{Client: c, Reader: c, Identity: func() *identity.Identity { return p.provider }, Budget: &store.WriteBudget{Now: clock}, Now: clock}, p
}

func (a *ContractCalls) stored(t *testing.T, id string) *v1alpha1.Contract {
	t.Helper()
	var c v1alpha1.Contract
	if err := a.Reader.Get(t.Context(), client.ObjectKey{Name: id}, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func TestContractCallsShowContractsToTheirPartiesOnly(t *testing.T) {
	t.Parallel()
	a, p := answering(t, "c-1")
	ctx, peer, stranger := t.Context(), p.consumer.ID(), newParties(t).consumer.ID()
	c := a.stored(t, "c-1")
	for i := range 3 {
		c.Status.Statements = append(c.Status.Statements, v1alpha1.Statement{Sequence: int64(i + 1), Envelope: c.Spec.Envelope})
	}
	if err := a.Client.Status().Update(ctx, c); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[uint64]int{0: 3, 1: 2, 3: 0, 1 << 63: 0} {
		got, err := a.Statements(ctx, peer, "c-1", after)
		if err != nil || len(got) != want {
			t.Errorf("after %d: %d statements, %v; want %d", after, len(got), err, want)
		}
	}
	unknown := func(what string, err error) {
		t.Helper()
		if peering.ReasonOf(err) != peering.ReasonContractUnknown {
			t.Errorf("%s: %v; want %s", what, err, peering.ReasonContractUnknown)
		}
	}
	_, err := a.Statements(ctx, stranger, "c-1", 0)
	unknown("another peer's statements", err)
	_, err = a.Contract(ctx, stranger, "c-1")
	unknown("another peer's contract", err)
	_, err = a.Contract(ctx, peer, "c-none")
	unknown("no contract", err)
	c = a.stored(t, "c-1")
	c.Spec.Role = v1alpha1.ContractConsumer
	if err := a.Client.Update(ctx, c); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Contract(ctx, peer, "c-1"); err != nil {
		t.Errorf("a contract by which this cluster consumes: %v", err)
	}
	_, err = a.Statements(ctx, peer, "c-1", 0)
	unknown("statements of a contract by which this cluster consumes", err)
}

func TestContractCallsEndAContractForItsPartyOnly(t *testing.T) {
	t.Parallel()
	a, p := answering(t, "c-1", "c-2")
	ctx, peer, stranger := t.Context(), p.consumer.ID(), newParties(t).consumer.ID()
	for _, id := range []string{"c-1", "c-none"} {
		if err := a.Terminate(ctx, stranger, id, "", time.Time{}); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if c := a.stored(t, "c-1"); c.Spec.Termination != "" {
		t.Errorf("another peer ended it: %s", c.Spec.Termination)
	}
	if err := a.Terminate(ctx, peer, "c-1", "", time.Time{}); err != nil || a.stored(t, "c-1").Spec.Termination != v1alpha1.TerminatePeer {
		t.Errorf("at once: %v", err)
	}
	until := now.Add(9 * time.Minute)
	if err := a.Terminate(ctx, peer, "c-2", "", until); err != nil {
		t.Fatal(err)
	}
	if c := a.stored(t, "c-2"); c.Spec.Termination != "" || c.Status.Phase != peering.PhaseDraining.String() || !c.Status.DrainUntil.Time.Equal(until) {
		t.Errorf("with notice it is %s until %v", c.Status.Phase, c.Status.DrainUntil)
	}
}
