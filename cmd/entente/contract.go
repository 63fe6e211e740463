package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

func (a *app) contractCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "contract", Short: "List, show, verify and terminate contracts"},
		a.contractListCommand(), a.contractShowCommand(), a.contractVerifyCommand(), a.contractTerminateCommand())
}

func (a *app) contractListCommand() *cobra.Command {
	var peer string
	cmd := a.command(&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the contracts of this cluster, in both roles"}, func(ctx context.Context, r *run) error {
		contracts, err := r.contracts(ctx, peer)
		if err != nil {
			return err
		}
		return printList(r, contracts, "There are no contracts.", "Ask a peer for resources with:\n  entente peer PEER", func() *printer.Table {
			t := a.noted("CONTRACT", "PEER", "SIDE", "PHASE", "RESOURCES", "PODS", "ENDS IN", "WHY")
			if r.output.Form == printer.FormWide {
				t = a.noted("CONTRACT", "PEER", "SIDE", "PHASE", "REVISION", "RESOURCES", "PRICE", "PODS", "UNTIL", "NODE", "WHY")
			}
			for _, k := range contracts {
				if r.output.Form == printer.FormWide {
					t.Row(k.GetContractId(), format.Short(k.GetPeer()), k.GetRole(), k.GetPhase(), fmt.Sprint(k.GetRevision()), format.OfPool(k.GetPool(), format.Amounts(k.GetResources())),
						format.Cost(k), fmt.Sprint(k.GetPods()), format.Moment(k.GetNotAfter()), cmp.Or(k.GetNode(), "-"), format.WhyEnding(k))
					continue
				}
				end := a.until(k.GetNotAfter())
				if k.GetPhase() == "Closed" {
					end = "-"
				}
				t.Row(k.GetContractId(), format.Short(k.GetPeer()), k.GetRole(), k.GetPhase(), format.OfPool(k.GetPool(), format.Briefly(k.GetResources())), fmt.Sprint(k.GetPods()), end, format.WhyEnding(k))
			}
			return t
		})
	}, printer.FormTable, printer.FormWide)
	cmd.Flags().StringVar(&peer, "peer", "", "List the contracts with this peer only")
	a.completesFlag(cmd, "peer", peerNames)
	return cmd
}
