package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) createCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "create", Short: "Write custom resources"}, a.createPeeringRequestCommand())
}

func (a *app) createPeeringRequestCommand() *cobra.Command {
	var ask askFlags
	var whom whomFlags
	var peer string
	var dryRun bool
	var req *ententev1.CreatePeeringRequest
	cmd := a.command(&cobra.Command{
		Use:     "peeringrequest [NAME]",
		Aliases: []string{"preq", "resourceslice"},
		Short:   "Ask a peer for resources, under a name of your choice, without waiting",
		PreRunE: func(cmd *cobra.Command, argv []string) error {
			if (peer != "") == whom.given() {
				return exit.Usagef("say whom to ask with either --peer or --any; see `%s --help`", cmd.CommandPath())
			}
			req = ask.request()
			req.Peer, req.PeerSelector = peerName(cmp.Or(peer, format.AnyPeer)), whom.selector
			if len(argv) == 1 {
				req.PeeringRequest = argv[0]
			}
			return nil
		},
	}, func(ctx context.Context, r *run) error {
		if dryRun {
			return r.dryRun(ctx, req)
		}
		resp, err := r.admin.CreatePeering(ctx, req)
		if err != nil {
			return r.call("ask for resources", err)
		}
		r.done("Wrote PeeringRequest %s", resp.GetPeeringRequest())
		if r.output.Structured() {
			return r.writeValue(map[string]any{"peeringRequest": resp.GetPeeringRequest()})
		}
		a.next("See the outcome with:\n  entente peerings %s", resp.GetPeeringRequest())
		return nil
	})
	cmd.Flags().StringVar(&peer, "peer", "", "The peer to ask")
	a.completesFlag(cmd, "peer", peerNames)
	whom.add(cmd)
	ask.add(cmd)
	ask.addRenewal(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "Only ask the provider what it would offer; change nothing")
	return cmd
}
