package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) peeringsCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "peerings [PEERING...]", Short: "List what this cluster asks for, and the outcome"}, func(ctx context.Context, r *run) error {
		peerings, err := named(r.argv, func(name string) (*ententev1.Peering, error) { return r.peering(ctx, name) },
			func() ([]*ententev1.Peering, error) { return r.peerings(ctx) })
		if err != nil {
			return err
		}
		if r.output.Structured() && len(r.argv) == 1 {
			return r.write(peerings[0])
		}
		return printList(r, peerings, "This cluster asks for nothing.", "Ask a peer with:\n  entente peer PEER", func() *printer.Table {
			t := a.noted("PEERING", "PEER", "RESOURCES", "ACCEPTED", "CONTRACT", "NODE", "WHY")
			if r.output.Form == printer.FormWide {
				t = a.noted("PEERING", "PEER", "RESOURCES", "CEILING", "ACCEPTED", "CONTRACT", "NODE", "WHY")
			}
			for _, p := range peerings {
				note := ""
				if p.GetAccepted().GetStatus() != "True" {
					note = cmp.Or(p.GetAccepted().GetMessage(), p.GetAccepted().GetReason())
				}
				cells := []string{format.Short(p.GetName()), format.ProviderOf(p)}
				if r.output.Form == printer.FormWide {
					cells = append(cells, format.OfPool(p.GetPool(), format.Asked(p.GetResources())), format.Money(p.GetPriceCeiling(), "-"))
				} else {
					cells = append(cells, format.OfPool(p.GetPool(), format.AskedBriefly(p.GetResources())))
				}
				t.Row(append(cells, cmp.Or(p.GetAccepted().GetStatus(), "Unknown"), cmp.Or(format.Short(p.GetContract()), "-"), cmp.Or(p.GetNode(), "-"), note)...)
			}
			return t
		})
	}, printer.FormTable, printer.FormWide)
}
