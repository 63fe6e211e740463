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
	var output printer.Flags
	cmd := &cobra.Command{
		Use:   "peerings [PEERING...]",
		Short: "List what this cluster asks for, and what came of it",
		Long: `List what this cluster asks of others, its PeeringRequests, and what came of each.
What it provides shows under ` + "`entente contract list`" + `. -o wide adds all amounts and the
price ceiling.`,
		Example: indent(`entente peerings
entente peerings office -o yaml
entente peerings office --get contract`),
		Args: args(cobra.ArbitraryArgs),
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, argv []string) error {
			peerings, err := c.namedPeerings(ctx, argv)
			if err != nil {
				return err
			}
			if output.Structured() && len(argv) == 1 {
				return output.Write(a.out, peerings[0])
			}
			if done, err := printed(a, &output, peerings, "Nothing is asked for.", "Ask a peer with:\n  entente peer PEER"); done {
				return err
			}
			t := a.noted("PEERING", "PEER", "RESOURCES", "ACCEPTED", "CONTRACT", "NODE", "WHY")
			if output.Form == printer.FormWide {
				t = a.noted("PEERING", "PEER", "RESOURCES", "CEILING", "ACCEPTED", "CONTRACT", "NODE", "WHY")
			}
			for _, p := range peerings {
				note := ""
				if p.GetAccepted().GetStatus() != "True" {
					note = cmp.Or(p.GetAccepted().GetMessage(), p.GetAccepted().GetReason())
				}
				cells := []string{format.Short(p.GetName()), providerOf(p)}
				if output.Form == printer.FormWide {
					cells = append(cells, asked(p.GetResources()), format.Money(p.GetPriceCeiling(), "-"))
				} else {
					cells = append(cells, askedBriefly(p.GetResources()))
				}
				t.Row(append(cells, cmp.Or(p.GetAccepted().GetStatus(), "Unknown"), cmp.Or(format.Short(p.GetContract()), "-"), cmp.Or(p.GetNode(), "-"), note)...)
			}
			t.Flush()
			return nil
		}),
	}
	output.Add(cmd, printer.FormTable, printer.FormWide)
	return a.completes(cmd, 1, peeringNames)
}

// providerOf is who lends, or whom the ask is for.
func providerOf(p *ententev1.Peering) string {
	switch {
	case p.GetProvider() != "" && format.Short(p.GetPeer()) == anyPeer:
		return format.Short(p.GetProvider()) + " (of any)"
	case format.Short(p.GetPeer()) == anyPeer:
		return "any"
	}
	return format.Short(p.GetPeer())
}

// asked is what is asked for, where nothing means all that there is to have.
func asked(r *ententev1.ResourceList) string {
	if len(r.GetAmounts()) == 0 {
		return "what the policy gives"
	}
	return format.Amounts(r)
}

func askedBriefly(r *ententev1.ResourceList) string {
	if len(r.GetAmounts()) == 0 {
		return asked(r)
	}
	return format.Briefly(r)
}

func (c *cluster) peerings(ctx context.Context) ([]*ententev1.Peering, error) {
	return pages(func(token string) ([]*ententev1.Peering, string, error) {
		resp, err := c.admin.ListPeerings(ctx, &ententev1.ListPeeringsRequest{PageSize: pageSize, PageToken: token})
		return resp.GetPeerings(), resp.GetNextPageToken(), c.call("list peerings", err)
	})
}

func (c *cluster) peering(ctx context.Context, name string) (*ententev1.Peering, error) {
	resp, err := c.admin.GetPeering(ctx, &ententev1.GetPeeringRequest{Name: peeringName(name)})
	return resp.GetPeering(), c.call("get peering "+name, err)
}

func (c *cluster) namedPeerings(ctx context.Context, names []string) ([]*ententev1.Peering, error) {
	if len(names) == 0 {
		return c.peerings(ctx)
	}
	var out []*ententev1.Peering
	for _, name := range names {
		p, err := c.peering(ctx, name)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
