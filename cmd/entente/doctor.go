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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

// What doctor checks.
const (
	areaNetwork = "network"
	areaPeers   = "peers"
)

// reported is what a cluster's resources tell doctor.
type reported struct {
	nodes []v1alpha1.FabricNode
	peers []v1alpha1.ForeignCluster
}

func (a *app) doctorCommand() *cobra.Command {
	cmd := a.offline(&cobra.Command{
		Use:   "doctor [AREA]",
		Short: "Find what keeps this cluster from peering, and say what to do",
		Long: `Find what keeps this cluster from peering, and say what to do. AREA is network or peers;
both if it is left out.

network is what on the nodes keeps packets of tunnels from passing, as a firewall that
is closed, a VPN that takes the routes, or a port that somebody has, and which ways to
gateways of peers pass no packets. The nodes check themselves, before there is any peer
and each 5 s. peers is what is wrong with the peers that this cluster trusts, or that
claim to be one of them, as the agent said last.

It exits with 3 if there are findings, other than of the severity Info. It only reads
FabricNodes and ForeignClusters: the ClusterRole entente-view is enough, and the agent
need not run. docs/troubleshooting.md explains each reason. The JSON output has healthy,
nodes, peers and findings; of each finding area, node, peer, reason, severity, message
and remedy.`,
		Example: indent(`entente doctor
entente doctor network -o json
entente doctor --get findings[*].reason`),
	}, func(ctx context.Context, r *run) error {
		area := ""
		if len(r.argv) == 1 {
			if area = r.argv[0]; area != areaNetwork && area != areaPeers {
				return usageError("there is no area %q: it is %s or %s; see `%s --help`", area, areaNetwork, areaPeers, r.path)
			}
		}
		is, err := a.reported(ctx, target{label: "local", flags: a.flags, namespace: a.namespace})
		if err != nil {
			return err
		}
		return r.diagnose(is, area)
	}, printer.FormTable)
	cmd.ValidArgsFunction = cobra.FixedCompletions([]cobra.Completion{areaNetwork, areaPeers}, cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

// finding is something that is wrong, as it is printed.
type finding struct {
	Area     string `json:"area"`
	Node     string `json:"node,omitempty"`
	Peer     string `json:"peer,omitempty"`
	Reason   string `json:"reason"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy"`
}

// diagnose prints what is wrong in an area; empty is all.
func (r *run) diagnose(is reported, area string) error {
	found := findings(is, area, r.now())
	wrong := slices.ContainsFunc(found, func(f finding) bool { return f.Severity != severityInfo })
	switch {
	case r.output.Structured():
		nodes, peers := []string{}, []string{}
		for i := range is.nodes {
			nodes = append(nodes, is.nodes[i].Name)
		}
		for i := range is.peers {
			peers = append(peers, is.peers[i].Name)
		}
		v, err := plainValue(map[string]any{"healthy": !wrong, "nodes": nodes, "peers": peers, "findings": found})
		if err != nil {
			return err
		}
		if err := r.writeValue(v); err != nil {
			return err
		}
	case len(found) == 0:
		var fine []string
		if area != areaPeers {
			fine = append(fine, "on the network of "+countOf(len(is.nodes), "node"))
		}
		if area != areaNetwork {
			fine = append(fine, "with "+countOf(len(is.peers), "known cluster"))
		}
		r.none("Nothing is wrong "+strings.Join(fine, ", nor ")+".", "")
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

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
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
	t := a.noted("SEVERITY", "REASON", "WHERE", "WHAT")
	for _, row := range rows {
		on := nodes[row]
		text := strings.Join(on[:min(len(on), doctorNodes)], ", ")
		if n := len(on) - doctorNodes; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		if row.Peer != "" {
			text = strings.TrimPrefix(text+" to "+row.Peer, "- to ")
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

// findings is what is wrong in an area, worst first; empty is all areas.
func findings(is reported, area string, now time.Time) []finding {
	found := []finding{}
	if area != areaPeers {
		found = append(found, networkFindings(is, now)...)
	}
	if area != areaNetwork {
		for i := range is.peers {
			found = append(found, peerFindings(&is.peers[i])...)
		}
	}
	rank := func(f finding) int {
		return slices.Index([]string{severityError, severityWarning, severityInfo}, f.Severity)
	}
	slices.SortStableFunc(found, func(a, b finding) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Node, b.Node)) })
	return found
}

// reportOf reads what a cluster's resources tell from its API server, without the agent.
func reportOf(ctx context.Context, t target) (reported, error) {
	config, err := t.flags.ToRESTConfig()
	if err != nil {
		return reported{}, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return reported{}, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	var is reported
	if is.nodes, err = listOf[v1alpha1.FabricNode](ctx, clients.RESTClient(), "fabricnodes"); err != nil {
		return is, fmt.Errorf("(%s) list fabric nodes: %w%s", t.label, err, doctorHint(err))
	}
	if is.peers, err = listOf[v1alpha1.ForeignCluster](ctx, clients.RESTClient(), "foreignclusters"); err != nil {
		return is, fmt.Errorf("(%s) list foreign clusters: %w%s", t.label, err, doctorHint(err))
	}
	return is, nil
}

// listOf lists a resource of ours, page by page.
func listOf[T any](ctx context.Context, c rest.Interface, resource string) ([]T, error) {
	var all []T
	for next := ""; ; {
		raw, err := c.Get().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, resource).
			Param("limit", "500").Param("continue", next).Do(ctx).Raw()
		if err != nil {
			return nil, err //nolint:wrapcheck // the caller says of what
		}
		var list struct {
			metav1.ListMeta `json:"metadata"`
			Items           []T `json:"items"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		if all = append(all, list.Items...); list.Continue == "" {
			return all, nil
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
