package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/doctor"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

func (a *app) doctorCommand() *cobra.Command {
	areas := []string{doctor.AreaNetwork, doctor.AreaPeers, doctor.AreaPlacement, doctor.AreaServices}
	cmd := a.offline(&cobra.Command{Use: "doctor [AREA]", Short: "Find what keeps this cluster from peering, and say what to do"}, func(ctx context.Context, r *run) error {
		area := r.first()
		if area != "" && !slices.Contains(areas, area) {
			return exit.Usagef("there is no area %q: it is %s or %s; see `%s --help`", area, strings.Join(areas[:3], ", "), areas[3], r.path)
		}
		is, err := a.reported(ctx, target{label: "local", flags: a.flags, namespace: a.namespace}, area)
		if err != nil {
			return err
		}
		return r.diagnose(is, area)
	}, printer.FormTable)
	cmd.ValidArgsFunction = cobra.FixedCompletions(areas, cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

// diagnose prints what is wrong in an area; empty means all.
func (r *run) diagnose(is doctor.Report, area string) error {
	found := doctor.Findings(is, area, r.now())
	wrong := slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Severity != doctor.Info })
	switch {
	case r.output.Structured():
		v, err := printer.PlainValue(doctor.Value(is, found, !wrong))
		if err != nil {
			return err
		}
		if err := r.writeValue(v); err != nil {
			return err
		}
	case len(found) == 0:
		var fine []string
		if area == "" || area == doctor.AreaNetwork {
			fine = append(fine, "on the network of "+format.Count(len(is.Nodes), "node"))
		}
		if area == "" || area == doctor.AreaPeers {
			fine = append(fine, "with "+format.Count(len(is.Peers), "known cluster"))
		}
		if area == "" || area == doctor.AreaPlacement {
			fine = append(fine, "with what places pods of offloaded namespaces"+doctor.PlacedText(is.Placed.By))
		}
		if area == doctor.AreaServices || area == "" && is.Abroad.Read {
			fine = append(fine, "with the Services of other namespaces that pods at peers name")
		}
		r.none("Nothing is wrong "+strings.Join(fine, ", nor ")+".", "")
	default:
		t := r.noted("SEVERITY", "REASON", "WHERE", "WHAT")
		doctor.Print(t, found)
		t.Flush()
	}
	if !wrong {
		return nil
	}
	return &exit.Error{Code: exit.Unhealthy, Err: errors.New("unhealthy: docs/troubleshooting.md explains each reason")}
}
