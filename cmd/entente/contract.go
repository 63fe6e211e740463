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
	return group(&cobra.Command{Use: "contract", Short: "List, show, verify and terminate contracts"},
		a.contractListCommand(), a.contractShowCommand(), a.contractVerifyCommand(), a.contractTerminateCommand())
}

func (a *app) contractListCommand() *cobra.Command {
	var output printer.Flags
	var peer string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the contracts of this cluster, in both roles",
		Long: `List the contracts of this cluster, in both roles: SIDE is which side this cluster
is on. Those that are over are listed as long as this cluster keeps them, with why
and when they ended. -o wide adds revision, price, the end's date and the node.`,
		Example: indent("entente contract list\nentente contract list --peer office -o json"),
		Args:    args(cobra.NoArgs),
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, _ []string) error {
			contracts, err := c.contracts(ctx, peer)
			if err != nil {
				return err
			}
			if done, err := printed(a, &output, contracts, "There are no contracts.", "Ask a peer for resources with:\n  entente peer PEER"); done {
				return err
			}
			t := a.noted("CONTRACT", "PEER", "SIDE", "PHASE", "RESOURCES", "PODS", "ENDS IN", "WHY")
			if output.Form == printer.FormWide {
				t = a.noted("CONTRACT", "PEER", "SIDE", "PHASE", "REVISION", "RESOURCES", "PRICE", "PODS", "UNTIL", "NODE", "WHY")
			}
			for _, k := range contracts {
				if output.Form == printer.FormWide {
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
			t.Flush()
			return nil
		}),
	}
	cmd.Flags().StringVar(&peer, "peer", "", "List the contracts with this peer only")
	a.completesFlag(cmd, "peer", peerNames)
	output.Add(cmd, printer.FormTable, printer.FormWide)
	return a.completes(cmd, 0, nil)
}

// contracts returns the contracts with a peer; an empty name is all.
func (c *cluster) contracts(ctx context.Context, peer string) ([]*ententev1.Contract, error) {
	if peer != "" {
		peer = peerName(peer)
	}
	return pages(func(token string) ([]*ententev1.Contract, string, error) {
		resp, err := c.admin.ListContracts(ctx, &ententev1.ListContractsRequest{Peer: peer, PageSize: pageSize, PageToken: token})
		return resp.GetContracts(), resp.GetNextPageToken(), c.call("list contracts", err)
	})
}

// contract returns a contract with its envelope.
func (c *cluster) contract(ctx context.Context, name string) (*ententev1.Contract, error) {
	resp, err := c.admin.GetContract(ctx, &ententev1.AdminServiceGetContractRequest{Name: contractName(name)})
	return resp.GetContract(), c.call("get contract "+format.Short(contractName(name)), err)
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
