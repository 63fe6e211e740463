package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) infoPeerCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "peer [PEER...]", Short: "Show everything about peers, by name or cluster ID"}, func(ctx context.Context, r *run) error {
		peers, err := named(r.argv, func(name string) (*ententev1.Peer, error) { return r.known(ctx, name) }, func() ([]*ententev1.Peer, error) { return r.peers(ctx) })
		if err != nil {
			return err
		}
		if r.output.Structured() && len(r.argv) == 1 {
			return r.write(peers[0])
		}
		none := "Make a token in one cluster and redeem it in the other:\n  entente token create\n  entente join <token>"
		if r.output.Structured() || len(peers) == 0 {
			return printList(r, peers, "No peers yet.", none, nil)
		}
		own, err := r.self(ctx)
		if err != nil {
			return err
		}
		for i, p := range peers {
			if i > 0 {
				_, _ = fmt.Fprintln(a.out)
			}
			format.PrintPeer(a.newTable, a.now(), p, own.GetProtocol())
		}
		return nil
	}, printer.FormTable)
}
