package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// connecting is one run of network connect or disconnect.
type connecting struct {
	*peeringRun
	dryRun, force bool
}

func (a *app) networkConnectCommand() *cobra.Command {
	var dryRun bool
	var inBand inBandFlags
	var timeout flags.Timeout
	cmd := a.command(&cobra.Command{
		Use:     "connect [PEER]",
		Short:   "Set up a tunnel to a peer, without using its resources",
		PreRunE: func(cmd *cobra.Command, argv []string) error { return inBand.check(argv, cmd.CommandPath()) },
	}, func(ctx context.Context, r *run) error {
		ctx, cancel := timeout.Bound(ctx)
		defer cancel()
		if inBand.on {
			return connectingTo(r, dryRun, false).connectInBand(ctx, inBand)
		}
		return connectingTo(r, dryRun, false).connect(ctx)
	})
	cmd.Flags().BoolVar(&inBand.on, "in-band", false, "Run the peer API inside the tunnel")
	cmd.Flags().StringVarP(&inBand.file, "filename", "f", "", "With --in-band: the `file` of the other cluster; - is standard input")
	cmd.Flags().StringVar(&inBand.name, "name", "", "With --in-band: the peer's name here (default: the one in the file)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "Only ask the peer what it would offer, or read the file; change nothing")
	timeout.Add(cmd.Flags(), 2*time.Minute, "How long to wait for everything together")
	return cmd
}

func (a *app) networkDisconnectCommand() *cobra.Command {
	var dryRun, force bool
	var timeout flags.Timeout
	cmd := a.command(&cobra.Command{Use: "disconnect PEER", Short: "End the tunnel to a peer, and nothing else"}, func(ctx context.Context, r *run) error {
		ctx, cancel := timeout.Bound(ctx)
		defer cancel()
		return connectingTo(r, dryRun, force).disconnect(ctx)
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "Only say what would be done; change nothing")
	cmd.Flags().BoolVar(&force, "force", false, "Even if pods lose the network with this cluster")
	timeout.Add(cmd.Flags(), 2*time.Minute, "How long to wait for everything together")
	return cmd
}

func connectingTo(r *run, dryRun, force bool) *connecting {
	return &connecting{&peeringRun{run: r, sides: &sides{local: side{r.cluster, r.first()}}, flags: &peerFlags{}}, dryRun, force}
}

// tunnelAlone reports whether a peering asks for nothing but a tunnel.
func tunnelAlone(p *ententev1.Peering) bool {
	amounts := p.GetResources().GetAmounts()
	return len(amounts) == 1 && amounts["pods"] == "0"
}

// find returns the peerings that ask the peer, with and without a tunnel.
func (c *connecting) find(ctx context.Context) (with, without []*ententev1.Peering, err error) {
	peer, err := c.local.known(ctx, c.local.peer)
	if err != nil {
		return nil, nil, err
	}
	c.local.peer = format.ShortName(peer)
	all, err := c.peerings(ctx)
	for _, p := range all {
		switch {
		case format.Short(p.GetPeer()) != c.local.peer && format.Short(p.GetProvider()) != c.local.peer:
		case p.GetNoNetwork():
			without = append(without, p)
		default:
			with = append(with, p)
		}
	}
	return with, without, err
}

func (c *connecting) connect(ctx context.Context) error {
	with, without, err := c.find(ctx)
	if err != nil {
		return err
	}
	c.asked = true
	switch {
	case len(with) > 0:
		c.request = format.Short(with[0].GetName())
		c.done("Asks %s for a tunnel already (PeeringRequest %s)", c.local.peer, c.request)
		if c.dryRun {
			return nil
		}
	case len(without) > 0:
		if done, err := c.amendNetwork(ctx, without[0], false); err != nil || done {
			return err
		}
		c.request = format.Short(without[0].GetName())
	default:
		req := &ententev1.CreatePeeringRequest{Peer: peerName(c.local.peer), Resources: &ententev1.ResourceList{Amounts: map[string]string{"pods": "0"}}}
		if c.dryRun {
			return c.run.dryRun(ctx, req)
		}
		resp, err := c.create(ctx, req)
		if err != nil {
			return err
		}
		c.request = resp.GetPeeringRequest()
		c.done("Asked %s for a tunnel (PeeringRequest %s)", c.local.peer, c.request)
	}
	return c.remaining(c.awaitTunnel(ctx))
}

// awaitTunnel waits until traffic passes.
func (c *connecting) awaitTunnel(ctx context.Context) error {
	if err := c.awaitPeer(ctx, c.local, hintConnected, condition(v1alpha1.ConditionConnected, "a session with the peer's agent")); err != nil {
		return err
	}
	peering, err := c.contract(ctx)
	if err != nil {
		return err
	}
	if err := c.network(ctx); err != nil {
		return err
	}
	return c.result(peering)
}

func (c *connecting) disconnect(ctx context.Context) error {
	with, _, err := c.find(ctx)
	if err != nil {
		return err
	}
	if len(with) == 0 {
		c.done("This cluster asks %s for no tunnel: nothing to end", c.local.peer)
	}
	if err := c.unused(ctx, with); err != nil {
		return err
	}
	for _, p := range with {
		name := format.Short(p.GetName())
		switch {
		case !tunnelAlone(p):
			if _, err := c.amendNetwork(ctx, p, true); err != nil {
				return err
			}
		case c.dryRun:
			c.done("Peering %s, for a tunnel alone, would end; nothing was changed", name)
		default:
			u := &unpeering{run: c.run, sides: c.sides, flags: &unpeerFlags{peering: name}}
			if err := u.endOne(ctx); err != nil {
				return err
			}
		}
	}
	if c.dryRun {
		return nil
	}
	return c.gone(ctx)
}

// unused returns an error if pods need the tunnel.
func (c *connecting) unused(ctx context.Context, with []*ententev1.Peering) error {
	for _, p := range with {
		if p.GetContract() == "" || c.force {
			continue
		}
		contract, err := c.run.contract(ctx, p.GetContract())
		if err != nil {
			return err
		}
		if n := int(contract.GetPods()); n > 0 {
			return fmt.Errorf("%s run under contract %s at %s and would lose the network with this cluster: end or move them first, or use --force",
				format.Count(n, "pod"), contract.GetContractId(), c.local.peer)
		}
	}
	return nil
}

// amendNetwork makes a peering ask for a tunnel or for none, and waits until both sides have signed
// that. With --dry-run it changes nothing.
func (c *connecting) amendNetwork(ctx context.Context, before *ententev1.Peering, none bool) (done bool, err error) {
	name, what := format.Short(before.GetName()), "asks for a tunnel"
	if none {
		what = "does without the tunnel"
	}
	req := &ententev1.UpdatePeeringRequest{
		Peering: &ententev1.Peering{Name: before.GetName(), NoNetwork: none}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"no_network"}}, ValidateOnly: c.dryRun,
	}
	var signed *ententev1.Contract
	if before.GetContract() != "" {
		if signed, err = c.run.contract(ctx, before.GetContract()); err != nil {
			return false, err
		}
	}
	resp, err := c.admin.UpdatePeering(ctx, req)
	if err != nil {
		return false, c.call("amend "+name, err)
	}
	if c.dryRun {
		c.done("Peering %s could be amended: it %s; nothing was changed", name, what)
		return true, nil
	}
	c.done("Peering %s %s now", name, what)
	if signed != nil {
		_, err = c.agreed(ctx, before, resp.GetPeering(), signed)
	}
	return false, err
}

// gone waits until the tunnel is gone, unless the peer asks for it.
func (c *connecting) gone(ctx context.Context) error {
	var theirs []*ententev1.Contract
	var same time.Time
	err := c.awaitPeer(ctx, c.local, "see each node's fabric: kubectl get fabricnodes,tunnels -o yaml", func(peer *ententev1.Peer) (bool, string, error) {
		theirs = format.OpenContracts(peer, "Provider")
		notWanted := format.ConditionOf(peer, v1alpha1.ConditionNetwork).GetReason() == v1alpha1.ReasonTunnelNotRequired
		return notWanted || len(theirs) > 0 && c.progress.Stable(&same), "the tunnel to go" + format.Because(peer, v1alpha1.ConditionNetwork), nil
	})
	if err != nil {
		return err
	}
	peer, err := c.local.find(ctx, c.local.peer)
	if err != nil {
		return err
	}
	if peer != nil && format.ConditionOf(peer, v1alpha1.ConditionNetwork).GetReason() != v1alpha1.ReasonTunnelNotRequired && len(theirs) > 0 {
		return &exit.Error{Code: exit.Unhealthy, Err: errors.New("the tunnel stays: " + c.local.peer + " asks for it in a contract that this cluster provides, " + format.IDs(theirs) + "; to end that: entente contract terminate CONTRACT")}
	}
	c.done("There is no tunnel to %s", c.local.peer)
	return nil
}
