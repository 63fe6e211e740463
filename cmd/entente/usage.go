package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) usageCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "usage [CONTRACT]", Short: "Show what was used of contracts, and what it costs"}, func(ctx context.Context, r *run) error {
		usage, err := all(r.cluster, "list usage", r.admin.Usage(ctx, contractName(r.first())))
		if err != nil {
			return err
		}
		if r.output.Form == printer.FormCSV {
			return format.UsageCSV(a.out, usage)
		}
		if r.output.Structured() || len(usage) == 0 {
			return printList(r, usage, "Nothing was used yet.", "", nil)
		}
		a.usageTable(usage, r.output.Form == printer.FormWide)
		return nil
	}, printer.FormTable, printer.FormWide, printer.FormCSV)
}

// usageTable shows the stated and the counted use of each period: the money, or the amounts
// where they are free. Wide, it shows both, and which side this cluster is on.
func (a *app) usageTable(usage []*ententev1.Usage, wide bool) {
	t := a.table("CONTRACT", "PEER", "FROM", "STATE", "STATED", "COUNTED", "APART")
	if wide {
		t = a.table("CONTRACT", "PEER", "SIDE", "FROM", "TO", "STATE", "STATED", "AMOUNT", "COUNTED HERE", "ITS AMOUNT", "APART")
	}
	unstated := false
	for _, u := range usage {
		state := format.UsageState(u)
		stated := "-"
		if state == "stated" {
			stated = format.Listed(u.GetStated())
		} else {
			unstated = true
		}
		counted := "-"
		if len(u.GetCounted()) > 0 || u.GetCountedAmount() != nil {
			counted = format.Listed(u.GetCounted())
		}
		apart := "-"
		if u.GetDifferencePercent() != "" && u.GetAmount() != nil {
			apart = u.GetDifferencePercent() + "%"
		}
		if !wide {
			t.Row(format.Short(u.GetContract()), format.Short(u.GetPeer()), u.GetStartTime().AsTime().Format("2006-01-02 15:04"), state,
				format.Money(u.GetAmount(), stated), format.Money(u.GetCountedAmount(), counted), apart)
			continue
		}
		t.Row(format.Short(u.GetContract()), format.Short(u.GetPeer()), u.GetRole(), format.Moment(u.GetStartTime()), format.Moment(u.GetEndTime()), state,
			stated, format.Money(u.GetAmount(), "-"), counted, format.Money(u.GetCountedAmount(), "-"), apart)
	}
	t.Flush()
	if sums := format.Totals(usage); sums != "" {
		_, _ = fmt.Fprintf(a.out, "\nBy the statements listed, %s.\n", sums)
		if unstated {
			_, _ = fmt.Fprintln(a.out, "Periods without a statement are not included.")
		}
	}
}
