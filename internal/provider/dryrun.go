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

// Test returns the decision on a peer's ask, and why. It reserves nothing, and
// records no pending request.
func (p *Provider) Test(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.PolicyTest, error) {
	ask.RequestID = cmp.Or(ask.RequestID, "test")
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.market(ctx)
	if err != nil {
		return peering.PolicyTest{}, err
	}
	d, err := p.decide(m, peer, ask, false)
	out := peering.PolicyTest{Policy: d.policy}
	var reasons []string
	var refused *peering.Error
	switch {
	case err == nil:
		out.Advertisement = &d.ad
	case errors.As(err, &refused):
		out.Reason, reasons = refused.Reason, append(reasons, refused.Message)
		out.Advertisement = p.onceApproved(m, peer, ask, refused)
		if refused.Err != nil {
			reasons = append(reasons, refused.Err.Error())
		}
	default:
		return peering.PolicyTest{}, err
	}
	if fc := m.Peers[peer]; fc != nil {
		if name := market.Unconfirmed(m.Policies, fc); name != "" {
			reasons = append(reasons, fmt.Sprintf("policy %q names %s, and the cluster gave itself that name: to accept it, kubectl annotate foreigncluster %s %s=true",
				name, fc.Name, fc.Name, v1alpha1.AnnotationNameConfirmed))
		}
	}
	reasons = append(reasons, m.Explain(peer, ask)...)
	if services := m.ExportsTo(peer).String(); services != "" {
		reasons = append(reasons, services)
	}
	out.Message = strings.Join(reasons, "; ")
	return out, nil
}

// onceApproved returns the advertisement that a request which waits for an administrator
// will get once approved; nil if it does not wait, or would be refused even then.
func (p *Provider) onceApproved(m *market.Market, peer peering.ClusterID, ask peering.Ask, why *peering.Error) *peering.Advertisement {
	if why.Reason != peering.ReasonPolicyPending {
		return nil
	}
	d, err := p.decide(m, peer, ask, true)
	if err != nil {
		return nil
	}
	d.ad.ContractID, d.ad.NeedsApproval = "", true
	return &d.ad
}
