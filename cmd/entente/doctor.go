package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

// areaNetwork is what doctor can check so far.
const areaNetwork = "network"

func (a *app) doctorCommand() *cobra.Command {
	cmd := a.offline(&cobra.Command{
		Use:   "doctor [AREA]",
		Short: "Find what keeps this cluster from peering, and say what to do",
		Long: `Find what keeps this cluster from peering, and say what to do. AREA is network, which is
all there is so far: what on the nodes keeps packets of tunnels from passing, as a
firewall that is closed, a VPN that takes the routes, or a port that somebody has.
The nodes check themselves, before there is any peer and each minute.

It exits with 3 if there are findings, other than of the severity Info. It only reads
FabricNodes: the ClusterRole entente-view is enough, and the agent need not run.
docs/troubleshooting.md explains each reason. The JSON output has healthy, nodes and
findings; of each finding area, node, reason, severity, message and remedy.`,
		Example: indent(`entente doctor
entente doctor network -o json
entente doctor network --get findings[*].reason`),
	}, func(ctx context.Context, r *run) error {
		if len(r.argv) == 1 && r.argv[0] != areaNetwork {
			return usageError("there is no area %q: it is %s; see `%s --help`", r.argv[0], areaNetwork, r.path)
		}
		nodes, err := a.fabricNodes(ctx, target{label: "local", flags: a.flags, namespace: a.namespace})
		if err != nil {
			return err
		}
		return r.diagnose(nodes)
	}, printer.FormTable)
	cmd.ValidArgsFunction = cobra.FixedCompletions([]cobra.Completion{areaNetwork}, cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

// finding is something that is wrong, as it is printed.
type finding struct {
	Area     string `json:"area"`
	Node     string `json:"node"`
	Reason   string `json:"reason"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy"`
}

// diagnose prints what is wrong on nodes.
func (r *run) diagnose(nodes []v1alpha1.FabricNode) error {
	found := networkFindings(nodes, r.now())
	wrong := slices.ContainsFunc(found, func(f finding) bool { return f.Severity != severityInfo })
	switch {
	case r.output.Structured():
		names := make([]any, 0, len(nodes))
		for i := range nodes {
			names = append(names, nodes[i].Name)
		}
		v, err := plainValue(map[string]any{"healthy": !wrong, "nodes": names, "findings": found})
		if err != nil {
			return err
		}
		if err := r.writeValue(v); err != nil {
			return err
		}
	case len(found) == 0:
		r.none(fmt.Sprintf("Nothing is wrong on the network of %s.", countNodes(len(nodes))), "")
	default:
		r.printFindings(found)
	}
	if !wrong {
		return nil
	}
	return &codeError{exitUnhealthy, fmt.Errorf("unhealthy: docs/troubleshooting.md explains each reason")}
}

// plainValue is a value as maps and slices.
func plainValue(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return printer.Decode(b)
}

func countNodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// printFindings prints what is wrong as a table, in which nodes share a row of which the
// same is said.
func (a *app) printFindings(found []finding) {
	nodes := map[finding][]string{}
	var rows []finding
	for _, f := range found {
		row := f
		row.Node = ""
		if len(nodes[row]) == 0 {
			rows = append(rows, row)
		}
		nodes[row] = append(nodes[row], cmp.Or(f.Node, "-"))
	}
	t := a.noted("SEVERITY", "REASON", "NODES", "WHAT")
	for _, row := range rows {
		on := nodes[row]
		text := strings.Join(on[:min(len(on), doctorNodes)], ", ")
		if n := len(on) - doctorNodes; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		t.Row(row.Severity, row.Reason, text, row.Message+". To do: "+row.Remedy)
	}
	t.Flush()
}

// The severities of findings, worst first.
const (
	severityError   = "Error"
	severityWarning = "Warning"
	severityInfo    = "Info"
)

// networkFindings is what is wrong on nodes, worst first. A node that has not said of late
// that nothing is, counts as one that was not checked.
func networkFindings(nodes []v1alpha1.FabricNode, now time.Time) []finding {
	found := []finding{}
	unchecked := func(node, message string) {
		found = append(found, finding{
			areaNetwork, node, "NotChecked", severityWarning, message, "look at the pods of DaemonSet entente-fabric: kubectl -n entente-system describe pods",
		})
	}
	if len(nodes) == 0 {
		unchecked("", "no node has reported: there is no FabricNode")
	}
	for i := range nodes {
		n := &nodes[i]
		switch seen := n.Status.ObservedAt; {
		case seen.IsZero():
			unchecked(n.Name, "its fabric has not reported yet")
		case now.Sub(seen.Time) > fabricFresh:
			unchecked(n.Name, "its fabric has not reported since "+seen.UTC().Format(time.RFC3339)+", so what it found may be out of date")
		case n.Status.Preflight == nil:
			unchecked(n.Name, "its fabric reports, and has not checked the node: it just started, or is older than this command")
		}
		if n.Status.Preflight == nil {
			continue
		}
		for _, f := range n.Status.Preflight.Findings {
			found = append(found, finding{areaNetwork, n.Name, f.Reason, f.Severity, f.Message, f.Remedy})
		}
	}
	rank := func(f finding) int {
		return slices.Index([]string{severityInfo, severityWarning, severityError}, f.Severity)
	}
	slices.SortStableFunc(found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a.Node, b.Node))
	})
	return found
}

// listFabricNodes reads what the nodes report from the API server, without the agent.
func listFabricNodes(ctx context.Context, t target) ([]v1alpha1.FabricNode, error) {
	config, err := t.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	var nodes []v1alpha1.FabricNode
	for next := ""; ; {
		raw, err := clients.RESTClient().Get().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "fabricnodes").
			Param("limit", "500").Param("continue", next).Do(ctx).Raw()
		if err != nil {
			return nil, fmt.Errorf("(%s) list fabric nodes: %w%s", t.label, err, doctorHint(err))
		}
		var list v1alpha1.FabricNodeList
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("(%s) list fabric nodes: %w", t.label, err)
		}
		if nodes = append(nodes, list.Items...); list.Continue == "" {
			return nodes, nil
		}
		next = list.Continue
	}
}

// doctorHint is what to do where FabricNodes cannot be read.
func doctorHint(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "\n  next: have an administrator bind the ClusterRole entente-view"
	case apierrors.IsNotFound(err):
		return "\n  next: install Entente in this cluster, or choose another one by --context"
	}
	return ""
}
