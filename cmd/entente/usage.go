package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"maps"

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
			return a.usageCSV(usage)
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

// usageCSV writes one line per period. There are columns for the resources of all lines.
func (a *app) usageCSV(usage []*ententev1.Usage) error {
	resources := map[string]string{}
	for _, u := range usage {
		maps.Copy(resources, u.GetStated())
		maps.Copy(resources, u.GetCounted())
	}
	names := format.ResourceNames(resources)
	header := []string{"contract", "peer", "role", "sequence", "start", "end", "state", "currency", "amount", "counted_amount", "difference_percent"}
	for _, name := range names {
		header = append(header, "stated_hours:"+name, "counted_hours:"+name)
	}
	w := csv.NewWriter(a.out)
	_ = w.Write(header) // Error returns it
	for _, u := range usage {
		line := []string{
			format.Short(u.GetContract()), format.Short(u.GetPeer()), u.GetRole(), fmt.Sprint(u.GetSequence()),
			format.Moment(u.GetStartTime()), format.Moment(u.GetEndTime()), format.UsageState(u),
			cmp.Or(u.GetAmount().GetCurrency(), u.GetCountedAmount().GetCurrency()), u.GetAmount().GetAmount(), u.GetCountedAmount().GetAmount(), u.GetDifferencePercent(),
		}
		for _, name := range names {
			line = append(line, u.GetStated()[name], u.GetCounted()[name])
		}
		_ = w.Write(line) // Error returns it
	}
	w.Flush()
	return w.Error()
}
