package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/peering"
)

// Test says what a peer would be answered, and why. It holds nothing back, and
// shows no request to anybody.
func (p *Provider) Test(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.PolicyTest, error) {
	ask.RequestID = cmp.Or(ask.RequestID, "test")
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.market(ctx)
	if err != nil {
		return peering.PolicyTest{}, err
	}
	a, err := p.answer(m, peer, ask, false)
	out := peering.PolicyTest{Policy: a.policy}
	var said []string
	var refused *peering.Error
	switch {
	case err == nil:
		out.Advertisement = &a.ad
	case errors.As(err, &refused):
		out.Reason, said = refused.Reason, append(said, refused.Message)
		out.Advertisement = p.onceApproved(m, peer, ask, refused)
		if refused.Err != nil {
			said = append(said, refused.Err.Error())
		}
	default:
		return peering.PolicyTest{}, err
	}
	if fc := m.Peers[peer]; fc != nil {
		if name := market.Unconfirmed(m.Policies, fc); name != "" {
			said = append(said, fmt.Sprintf("policy %q names %s, and the cluster gave itself that name: to have it count, kubectl annotate foreigncluster %s %s=true",
				name, fc.Name, fc.Name, v1alpha1.AnnotationNameConfirmed))
		}
	}
	said = append(said, m.Explain(peer, ask)...)
	if services := m.TellsOf(peer).String(); services != "" {
		said = append(said, services)
	}
	out.Message = strings.Join(said, "; ")
	return out, nil
}

// onceApproved returns what a request that waits for an administrator would be
// answered once it is let through; nil for one that does not wait, or would get
// nothing then either.
func (p *Provider) onceApproved(m *market.Market, peer peering.ClusterID, ask peering.Ask, why *peering.Error) *peering.Advertisement {
	if why.Reason != peering.ReasonPolicyPending {
		return nil
	}
	a, err := p.answer(m, peer, ask, true)
	if err != nil {
		return nil
	}
	a.ad.ContractID, a.ad.NeedsApproval = "", true
	return &a.ad
}
