package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func (a *app) contractCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "contract", Short: "List, show, verify and terminate contracts"},
		a.contractListCommand(), a.contractShowCommand(), a.contractVerifyCommand(), a.contractTerminateCommand())
}

func (a *app) contractListCommand() *cobra.Command {
	var peer string
	cmd := a.command(&cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the contracts of this cluster, in both roles",
		Long: `List the contracts of this cluster, in both roles: SIDE is which side this cluster
is on. Those that are over are listed as long as this cluster keeps them, with why
and when they ended. -o wide adds revision, price, the end's date and the node.`,
		Example: indent("entente contract list\nentente contract list --peer office -o json"),
	}, func(ctx context.Context, r *run) error {
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
					t.Row(k.GetContractId(), format.Short(k.GetPeer()), k.GetRole(), k.GetPhase(), fmt.Sprint(k.GetRevision()), format.Amounts(k.GetResources()),
						cost(k), fmt.Sprint(k.GetPods()), format.Moment(k.GetNotAfter()), cmp.Or(k.GetNode(), "-"), whyEnding(k))
					continue
				}
				end := a.until(k.GetNotAfter())
				if k.GetPhase() == "Closed" {
					end = "-"
				}
				t.Row(k.GetContractId(), format.Short(k.GetPeer()), k.GetRole(), k.GetPhase(), format.Briefly(k.GetResources()), fmt.Sprint(k.GetPods()), end, whyEnding(k))
			}
			return t
		})
	}, printer.FormTable, printer.FormWide)
	cmd.Flags().StringVar(&peer, "peer", "", "List the contracts with this peer only")
	a.completesFlag(cmd, "peer", peerNames)
	return cmd
}

// whyEnding says why a contract ends or is over, and when; empty while it is in
// force.
func whyEnding(k *ententev1.Contract) string {
	switch k.GetPhase() {
	case "Closed":
		text := cmp.Or(k.GetMessage(), "closed")
		if k.GetCloseTime() != nil {
			text += " at " + format.Moment(k.GetCloseTime())
		}
		return text
	case "Draining":
		text := cmp.Or(k.GetMessage(), "draining")
		if k.GetDrainUntil() != nil {
			text += "; drains until " + format.Moment(k.GetDrainUntil())
		}
		return text
	}
	return ""
}

// cost is what all of a contract's resources cost, for people.
func cost(k *ententev1.Contract) string {
	list, err := wire.PriceListFrom("price", k.GetPrice())
	if err != nil {
		return format.Prices(k.GetPrice())
	}
	resources, err := wire.ResourcesFrom("resources", k.GetResources())
	if err != nil {
		return format.Prices(k.GetPrice())
	}
	return hourly(list, resources)
}

// hourly is what it costs to use all of some resources, for people.
func hourly(list peering.PriceList, resources peering.Resources) string {
	m, err := list.Hourly(resources)
	switch {
	case err != nil:
		return err.Error()
	case list.IsFree():
		return "free"
	}
	return m.String() + " an hour"
}
