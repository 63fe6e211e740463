package main

import (
	"context"
	"fmt"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// mayAsk returns an error for a peer that is not trusted, which cannot respond. A peer that this
// side approved may be asked, as the other side's approval may be on its way. If the peer
// cannot be read, the request itself will fail for the same reason.
func (p *peeringRun) mayAsk(ctx context.Context) error {
	local := p.local
	var since time.Time
	return p.poll(ctx, local.cluster, exit.HintTrusted, func(ctx context.Context) (bool, string, error) {
		peer, err := local.find(ctx, local.peer)
		trusted := format.ConditionOf(peer, v1alpha1.ConditionTrusted)
		switch {
		case err != nil || trusted.GetStatus() != "False" || trusted.GetReason() == v1alpha1.ReasonJoining || peer.GetDecision() == string(v1alpha1.DecisionApproved):
			return true, "", nil //nolint:nilerr // as above
		case !format.IsHint(peer) && !p.progress.Stable(&since):
			// This may be the status from before a join.
			return false, "trust between the two clusters" + format.Why(trusted), nil
		}
		return false, "", local.call("ask "+local.peer+" for resources", peering.Errorf(peering.ReasonPeerNotTrusted, "it is not trusted%s", format.Why(trusted)))
	})
}

// trust joins the two clusters if they have not joined yet, and finds out the peer's name here.
func (p *peeringRun) trust(ctx context.Context) error {
	local, remote := &p.local, p.remote
	known, err := local.find(ctx, local.peer)
	if err != nil {
		return err
	}
	back, err := remote.find(ctx, remote.peer)
	if err != nil {
		return err
	}
	inBand := !p.flags.inBand || known.GetInBand() && back.GetInBand()
	if format.IsTrue(known, v1alpha1.ConditionTrusted) && format.IsTrue(back, v1alpha1.ConditionTrusted) && inBand {
		local.peer = format.ShortName(known)
		p.done("The two clusters have joined already; the peer is called %s here", local.peer)
		return nil
	}
	if p.flags.dryRun {
		return fmt.Errorf("(%s) the two clusters have not joined yet, so no peer can be asked\n  next: entente join, or the same without --dry-run", local.label)
	}
	join := p.join
	if p.flags.inBand {
		join = p.connectInBand
	}
	joined, err := join(ctx)
	if err != nil {
		return err
	}
	local.peer = format.ShortName(joined)
	p.done("The peer is called %s here", local.peer)
	for _, s := range p.each() {
		if err := p.awaitPeer(ctx, s, exit.HintTrusted, condition(v1alpha1.ConditionTrusted, "trust in the other cluster")); err != nil {
			return err
		}
		p.progress.Done(s.label, "Trusts the other cluster")
	}
	return nil
}

// connectInBand gives each side the other's end of the tunnel, waits until it is up, and
// returns the remote cluster as a peer of this one.
func (p *peeringRun) connectInBand(ctx context.Context) (*ententev1.Peer, error) {
	local, remote := p.local, *p.remote
	ours, err := local.parameters(ctx)
	if err != nil {
		return nil, err
	}
	theirs, err := remote.parameters(ctx)
	if err != nil {
		return nil, err
	}
	joined, err := p.setInBand(ctx, local.cluster, theirs, p.flags.name)
	if err != nil {
		return nil, err
	}
	if _, err := p.setInBand(ctx, remote.cluster, ours, ""); err != nil {
		return nil, err
	}
	return joined, p.awaitInBand(ctx, side{local.cluster, format.ShortName(joined)})
}

// join joins the two clusters in the direction in which one can dial the other,
// and returns the remote cluster as a peer of this one.
func (p *peeringRun) join(ctx context.Context) (*ententev1.Peer, error) {
	local, remote := p.local, p.remote
	joined, err := p.redeem(ctx, remote.cluster, local.cluster, p.flags.name)
	reason := client.ReasonOf(err)
	if reason != peering.ReasonNoEndpoint && reason != peering.ReasonPeerUnreachable {
		return joined, err
	}
	// One of the two has to be reachable, either one.
	p.progress.Note(remote.label, "cannot be dialled from here (%s); trying the other way round", reason)
	if _, back := p.redeem(ctx, local.cluster, remote.cluster, ""); back != nil {
		return nil, fmt.Errorf("neither cluster can dial the other:\n  %w\n  %w", err, back)
	}
	joined, err = local.find(ctx, local.peer)
	if err == nil && joined == nil {
		err = fmt.Errorf("(%s) cluster %s joined, and is not known here", local.label, local.peer)
	}
	return joined, err
}

// redeem makes a token in one cluster and redeems it in the other, where the
// issuer is called name if that is not empty.
func (p *peeringRun) redeem(ctx context.Context, issuer, redeemer *cluster, name string) (*ententev1.Peer, error) {
	token, err := issuer.admin.CreateToken(ctx, &ententev1.CreateTokenRequest{})
	if err != nil {
		return nil, issuer.call("make a token", err)
	}
	p.progress.Done(issuer.label, "Made a one-time token")
	joined, err := redeemer.admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: token.GetToken(), Name: name})
	if err != nil {
		return nil, redeemer.call("join", err)
	}
	p.progress.Done(redeemer.label, "Redeemed the token")
	return joined.GetPeer(), nil
}

// condition waits until a condition is true.
func condition(kind, what string) func(*ententev1.Peer) (bool, string, error) {
	return func(peer *ententev1.Peer) (bool, string, error) {
		return format.IsTrue(peer, kind), what + format.Because(peer, kind), nil
	}
}
