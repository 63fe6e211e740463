package doctor

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

// Print prints findings as a table, in which nodes with the same finding share a row.
func Print(t *printer.Table, found []Finding) {
	nodes := map[Finding][]string{}
	var rows []Finding
	for _, f := range found {
		row := f
		row.Node = ""
		if len(nodes[row]) == 0 {
			rows = append(rows, row)
		}
		nodes[row] = append(nodes[row], cmp.Or(f.Node, "-"))
	}
	for _, row := range rows {
		on := nodes[row]
		text := strings.Join(on[:min(len(on), maxNamedNodes)], ", ")
		if n := len(on) - maxNamedNodes; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		if row.Peer != "" {
			text = strings.TrimPrefix(text+" to "+row.Peer, "- to ")
		}
		t.Row(row.Severity, row.Reason, text, row.Message+". To do: "+row.Remedy)
	}
	t.Flush()
}
