package controller

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// spendAll takes from a budget all that a peer can have.
func spendAll(b *store.WriteBudget, peer peering.ClusterID) {
	for b.TakeBytes(peer, 1<<10) == nil {
	}
}

// TestAnEndThatMovesIsWrittenWithinTheBudget: a peer that ends a contract, and then a
// little earlier again and again, has it written as its budget allows, by whichever
// way it says so; that the contract is over is written at once.
func TestAnEndThatMovesIsWrittenWithinTheBudget(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	fc := foreign("peer", p.provider)
	fc.Status.Session = &v1alpha1.PeerSession{ClockSkew: &metav1.Duration{}}
	c := p.stored(t, p.terms(t, nil), p.consumer)
	c.Status.Node = "request"
	b := newBench(t, p.consumer, append(onNodeOf("request", "a"), c, fc)...)
	held := b.look(t)
	ends := func(until time.Time) error {
		return peerEnds(t.Context(), b.client, b.Budget, held, p.consumer.ID(), until, now)
	}
	until := now.Add(20 * time.Minute)
	if err := ends(until); err != nil {
		t.Fatal(err)
	}
	spendAll(b.Budget, p.provider.ID())
	if _, ok := errors.AsType[*store.LaterError](ends(until.Add(-time.Minute))); !ok {
		t.Error("the end is written though the peer's budget is spent")
	}
	earlier := metav1.NewTime(until.Add(-2 * time.Minute))
	b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Draining", DrainUntil: &earlier})
	if got := b.look(t); !store.TimeOf(got.Status.DrainUntil).Equal(until) {
		t.Errorf("it drains until %s, and the budget was spent when that was reported", got.Status.DrainUntil)
	}
	b.clock = b.clock.Add(10 * time.Minute)
	if got := b.look(t); !store.TimeOf(got.Status.DrainUntil).Equal(earlier.Time) {
		t.Errorf("it drains until %s, and there is room for %s", got.Status.DrainUntil, earlier)
	}
	spendAll(b.Budget, p.provider.ID())
	held = b.look(t)
	if err := ends(time.Time{}); err != nil {
		t.Errorf("a contract that is over is not ended: %v", err)
	}
}

// TestStatementsAreWrittenWithinTheBudget: those that there is no room for are fetched
// when there is.
func TestStatementsAreWrittenWithinTheBudget(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, func(x *peering.Terms) { x.StatementPeriod = 5 * time.Minute })
	good := p.statementsOf(t, terms, 3, nil)
	b := newBench(t, p.consumer, p.stored(t, terms, p.consumer), foreign("peer", p.provider))
	b.clock = now.Add(time.Hour - 2*time.Minute)
	b.peer.statements = func(after uint64) ([]peering.Envelope, error) { return good[min(after, 3):], nil }
	b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Active", StatementSequence: 3})
	spendAll(b.Budget, p.provider.ID())
	if got := b.look(t); len(got.Status.Statements) > 0 {
		t.Errorf("%d statements are written though the peer's budget is spent", len(got.Status.Statements))
	}
	b.clock = b.clock.Add(time.Minute)
	if got := b.look(t); len(got.Status.Statements) != 3 {
		t.Errorf("%d statements are written when there is room, want 3", len(got.Status.Statements))
	}
}
