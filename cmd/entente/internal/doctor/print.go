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

// Value is a report and its findings for programs.
func Value(is Report, found []Finding, healthy bool) map[string]any {
	nodes, peers := []string{}, []string{}
	for i := range is.Nodes {
		nodes = append(nodes, is.Nodes[i].Name)
	}
	for i := range is.Peers {
		peers = append(peers, is.Peers[i].Name)
	}
	return map[string]any{"healthy": healthy, "nodes": nodes, "peers": peers, "placement": is.Placed.By, "findings": found}
}
