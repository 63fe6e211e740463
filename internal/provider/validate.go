package provider

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Validate returns the condition Valid of a policy; an empty one if there is no such policy. It needs no peer that the
// policy selects.
func (p *Provider) Validate(ctx context.Context, name string) (metav1.Condition, error) {
	policies, err := p.policies(ctx)
	if err != nil {
		return metav1.Condition{}, err
	}
	i := slices.IndexFunc(policies, func(p market.Policy) bool { return p.Value.Name == name })
	if i < 0 {
		return metav1.Condition{}, nil
	}
	text := func(lines ...string) string { return peering.Text(strings.Join(lines, "; "), maxProblems) }
	if problems := policies[i].Problems(); len(problems) > 0 {
		return store.Condition(v1alpha1.ConditionValid, metav1.ConditionFalse, "Invalid", "nothing is offered by it: "+text(problems...)), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readClasses(ctx, policies)
	if doubts := policies[i].Doubts(p.snapshot.runtimeClasses, p.snapshot.storageClasses); len(doubts) > 0 {
		return store.Condition(v1alpha1.ConditionValid, metav1.ConditionTrue, v1alpha1.ReasonNotFound, text(doubts...)), nil
	}
	return store.Condition(v1alpha1.ConditionValid, metav1.ConditionTrue, "Valid", "nothing is wrong with it"), nil
}
