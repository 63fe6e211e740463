package main

import (
	"cmp"
	"context"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/amendment"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

const (
	hintConnected = "one of the two clusters has to be reachable by the other: see the endpoints in `entente info peer`"
	hintEnding    = "see what it waits for: kubectl get peeringrequests,contracts -o yaml"
	hintContract  = "see the state of the request: entente peerings; at the provider: entente policy test, entente requests"
	hintTunnel    = "see each node's fabric: kubectl get fabricnodes -o yaml; one side has to be reachable by UDP 51820"
	hintNode      = "see the Contract's conditions: kubectl get contracts -o yaml"
)

// contract waits until both have signed, and, if the provider can be reached, until
// the contract is in force there, too.
func (p *peeringRun) contract(ctx context.Context) (*ententev1.Peering, error) {
	local := &p.local
	asked, err := p.awaitPeering(ctx, local.cluster, p.request, func(peering *ententev1.Peering) (bool, string, error) {
		if format.Refused(peering) {
			return false, "", amendment.Refused(local.label, peering, amendment.ChangeOrEnd(p.request))
		}
		accepted := peering.GetAccepted()
		return peering.GetContract() != "" && accepted.GetStatus() == "True", "a contract" + format.Why(accepted), nil
	})
	if err != nil {
		return nil, err
	}
	if local.peer == format.AnyPeer {
		local.peer = format.Short(cmp.Or(asked.GetProvider(), asked.GetPeer()))
		p.done("Of all that fit, %s is the provider", local.peer)
	}
	contract, err := local.contract(ctx, asked.GetContract())
	if err != nil {
		return nil, err
	}
	p.done("Contract %s is signed by both: %s until %s, %s", contract.GetContractId(),
		format.OfPool(contract.GetPool(), format.Amounts(contract.GetResources())), contract.GetNotAfter().AsTime().Format("2006-01-02 15:04 MST"), format.Cost(contract))
	p.noteLacks(ctx, asked, contract)
	remote := p.remote
	if remote == nil {
		return asked, nil
	}
	err = p.poll(ctx, remote.cluster, hintContract, func(ctx context.Context) (bool, string, error) {
		there, err := remote.contract(ctx, contract.GetContractId())
		if client.ReasonOf(err) == peering.ReasonContractUnknown {
			return false, "the contract to be known", nil
		}
		return there.GetPhase() == "Active", "the contract to be in force: it is " + there.GetPhase(), err
	})
	if err != nil {
		return nil, err
	}
	p.progress.Done(remote.label, "Contract %s is in force", contract.GetContractId())
	return asked, nil
}

// awaitPeering waits until a peering is as it should be.
func (r *run) awaitPeering(ctx context.Context, c *cluster, name string, check func(*ententev1.Peering) (bool, string, error)) (*ententev1.Peering, error) {
	var last *ententev1.Peering
	err := r.poll(ctx, c, hintContract, func(ctx context.Context) (_ bool, _ string, err error) {
		if last, err = c.peering(ctx, name); err != nil {
			return false, "", err
		}
		return check(last)
	})
	return last, err
}

// network waits until traffic passes, where the contract wants a tunnel.
func (p *peeringRun) network(ctx context.Context) error {
	for _, s := range p.each() {
		var tunnel *ententev1.Tunnel
		wanted, unwanted, cutOff := true, time.Time{}, ""
		err := p.awaitPeer(ctx, s, hintTunnel, func(peer *ententev1.Peer) (bool, string, error) {
			tunnel = peer.GetTunnel()
			if format.ConditionOf(peer, v1alpha1.ConditionNetwork).GetReason() == v1alpha1.ReasonTunnelNotRequired {
				// This may be the status from before the contract.
				wanted = p.asked && !p.flags.ask.ask.GetNoNetwork() || !p.asked && !p.progress.Stable(&unwanted)
				return !wanted, "the tunnel to be made", nil
			}
			wanted, unwanted = true, time.Time{}
			cutOff = format.Because(peer, v1alpha1.ConditionNetwork)
			return format.TunnelPasses(peer), "traffic through the tunnel" + cutOff, nil
		})
		if err != nil {
			return err
		}
		if !wanted {
			p.progress.Done(s.label, "No tunnel was asked for")
			continue
		}
		p.progress.Done(s.label, "Traffic passes through the tunnel%s", format.TunnelFacts(tunnel))
		if cutOff != "" {
			p.progress.Done(s.label, "Not from all nodes%s", cutOff)
		}
	}
	return nil
}

// node waits until the virtual node takes pods.
func (p *peeringRun) node(ctx context.Context, peering *ententev1.Peering) error {
	local := p.local
	var node string
	err := p.awaitPeer(ctx, local, hintNode, func(peer *ententev1.Peer) (bool, string, error) {
		for _, c := range format.OpenContracts(peer, "Consumer") {
			if contractName(c.GetContractId()) == contractName(format.Short(peering.GetContract())) {
				node = c.GetNode()
			}
		}
		ready := format.IsTrue(peer, v1alpha1.ConditionOffloading) && format.ConditionOf(peer, v1alpha1.ConditionOffloading).GetReason() != v1alpha1.ReasonProviding
		return ready && node != "", "the virtual node" + format.Because(peer, v1alpha1.ConditionOffloading), nil
	})
	if err != nil {
		return err
	}
	p.done("Virtual node %s is Ready", node)
	return nil
}
