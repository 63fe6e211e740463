package doctor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// The areas that doctor checks.
const (
	AreaNetwork   = "network"
	AreaPeers     = "peers"
	AreaPlacement = "placement"
	AreaServices  = "services"
)

// Report contains the resources of a cluster that doctor reads.
type Report struct {
	Nodes []v1alpha1.FabricNode
	Peers []v1alpha1.ForeignCluster
	// Namespace is where Entente is installed, and Agent why no agent runs there, or why that is not known.
	Namespace string
	Agent     error
	// Elsewhere is the namespaces that have pods of an agent if Namespace has none, as far as that is known.
	Elsewhere []string
	// Placed is what places pods.
	Placed Placed
	// Abroad is which Services pods at peers name.
	Abroad Abroad
}

// Finding is a problem, as it is printed.
type Finding struct {
	Area     string `json:"area"`
	Node     string `json:"node,omitempty"`
	Peer     string `json:"peer,omitempty"`
	Reason   string `json:"reason"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy"`
}

// networkFindings returns the problems of nodes and of their paths to gateways. A node whose
// last report is old counts as not checked.
func networkFindings(is Report, now time.Time) []Finding {
	var found []Finding
	add := func(node, reason, severity, message, remedy string) {
		found = append(found, Finding{Area: AreaNetwork, Node: node, Reason: reason, Severity: severity, Message: message, Remedy: remedy})
	}
	unchecked := func(node, message string) {
		add(node, "NotChecked", Warning, message, "look at the pods of DaemonSet entente-fabric: kubectl -n entente-system describe pods")
	}
	if len(is.Nodes) == 0 {
		unchecked("", "no node has reported: there is no FabricNode")
	}
	for i := range is.Nodes {
		n := &is.Nodes[i]
		switch seen := n.Status.ObservedAt; {
		case seen.IsZero():
			unchecked(n.Name, "its fabric has not reported yet")
		case now.Sub(seen.Time) > reportMaxAge:
			unchecked(n.Name, "its fabric has not reported since "+seen.UTC().Format(time.RFC3339)+", so what it found may be out of date")
		case n.Status.Preflight == nil:
			unchecked(n.Name, "its fabric reports, and has not checked the node: it just started, or is older than this command")
		}
		if n.Status.Preflight != nil {
			for _, f := range n.Status.Preflight.Findings {
				add(n.Name, f.Reason, f.Severity, f.Message, f.Remedy)
			}
		}
		found = append(found, pathFindings(n, is.Peers)...)
		found = append(found, endFindings(n, is.Peers)...)
		found = append(found, hopFindings(n, found)...)
		for _, problem := range n.Status.Problems {
			add(n.Name, "TunnelProblem", Warning, problem, "see `entente network status`")
		}
	}
	return found
}

// pathFindings returns the paths from a node to gateways that drop packets of some size.
func pathFindings(n *v1alpha1.FabricNode, peers []v1alpha1.ForeignCluster) []Finding {
	var found []Finding
	for _, p := range n.Status.Paths {
		if p.State != "Down" && !p.LargePacketsLost {
			continue
		}
		f := Finding{
			Area: AreaNetwork, Node: n.Name, Reason: v1alpha1.ReasonPathDown, Severity: Error, Message: p.Message,
			Remedy: "see that UDP passes between the two nodes both ways, and what `entente doctor` says of the node at the other end",
		}
		f.Peer = nameOf(peers, p.PeerID)
		switch {
		case p.LargePacketsLost:
			f.Reason, f.Remedy = v1alpha1.ReasonLargePacketsLost, "raise the MTU of the networks on the way, or let fragments of UDP pass their firewalls"
		case p.Standby:
			f.Reason = v1alpha1.ReasonStandbyDown
		}
		if p.Standby {
			f.Severity = Warning
		}
		found = append(found, f)
	}
	return found
}

// nameOf is the name of a known cluster; empty if the cluster is not known.
func nameOf(peers []v1alpha1.ForeignCluster, id string) string {
	for i := range peers {
		if peers[i].Spec.ClusterID == id {
			return peers[i].Name
		}
	}
	return ""
}

// hopFindings returns the hops from a node that do not work and whose reason was not found yet.
func hopFindings(n *v1alpha1.FabricNode, before []Finding) []Finding {
	var found []Finding
	for _, c := range n.Status.Conditions {
		known := slices.ContainsFunc(before, func(f Finding) bool { return f.Node == n.Name && f.Reason == c.Reason })
		if c.Status == metav1.ConditionFalse && !known {
			found = append(found, Finding{
				Area: AreaNetwork, Node: n.Name, Reason: c.Reason, Severity: Error, Message: c.Type + ": " + c.Message,
				Remedy: "see `entente network status -o wide`",
			})
		}
	}
	return found
}

// endFindings returns the paths on which a node's end-to-end probes found packets of pods dropped.
func endFindings(n *v1alpha1.FabricNode, peers []v1alpha1.ForeignCluster) []Finding {
	var found []Finding
	for _, e := range n.Status.EndToEnd {
		if e.State != "Down" && e.State != "Blocked" && e.State != v1alpha1.ReasonLargePacketsLost {
			continue
		}
		f := Finding{
			Area: AreaNetwork, Node: n.Name, Peer: nameOf(peers, e.PeerID), Reason: v1alpha1.ReasonPodsUnreachable, Severity: Error, Message: e.Message,
			Remedy: "see what `entente doctor` says of node " + e.Node + " in the peer's cluster, and of the tunnels of that node",
		}
		if e.State == v1alpha1.ReasonLargePacketsLost {
			f.Reason = e.State
		}
		found = append(found, f)
	}
	return found
}

// peerFindings returns the problems of a known cluster that is trusted here, or claims to be
// one that is, from the conditions that the agent wrote. A hop that cannot be up before
// another one is left out.
func peerFindings(fc *v1alpha1.ForeignCluster) []Finding {
	var found []Finding
	add := func(c *metav1.Condition, severity string) {
		found = append(found, Finding{
			Area: AreaPeers, Peer: fc.Name, Reason: c.Reason, Severity: severity, Message: strings.TrimSuffix(c.Message, "."),
			Remedy: "see `entente info peer " + fc.Name + "`",
		})
	}
	condition := func(kind string) *metav1.Condition {
		i := slices.IndexFunc(fc.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
		if i < 0 {
			return &metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: "NotChecked", Message: "the agent has not reported yet how " + strings.ToLower(kind) + " is"}
		}
		return &fc.Status.Conditions[i]
	}
	if c := condition(v1alpha1.ConditionImpostor); c.Status == metav1.ConditionTrue {
		add(c, Warning)
	}
	if fc.Spec.Decision == v1alpha1.DecisionDenied {
		return found
	}
	if fc.Spec.InBand != nil {
		switch c := condition(v1alpha1.ConditionInBand); c.Status {
		case metav1.ConditionFalse:
			add(c, Error)
		case metav1.ConditionUnknown:
			add(c, Warning)
		case metav1.ConditionTrue:
		}
	}
	if fc.Spec.TrustBundle == "" {
		return found
	}
	if c := condition(v1alpha1.ConditionCertificateValid); c.Status == metav1.ConditionFalse {
		add(c, Error)
	} else if c.Reason == v1alpha1.ReasonRootExpiresSoon {
		add(c, Warning)
	}
	for _, kind := range []string{v1alpha1.ConditionTrusted, v1alpha1.ConditionConnected, v1alpha1.ConditionNetwork, v1alpha1.ConditionOffloading} {
		switch c := condition(kind); {
		case c.Reason == v1alpha1.ReasonClocksDiffer, c.Status == metav1.ConditionTrue && c.Reason == v1alpha1.ReasonPodsOutsidePrefixes:
			add(c, Warning)
		case c.Status == metav1.ConditionTrue, c.Reason == v1alpha1.ReasonTunnelNotRequired, c.Reason == v1alpha1.ReasonNoContract:
		case c.Status == metav1.ConditionUnknown:
			add(c, Warning)
		default:
			add(c, Error)
			if kind == v1alpha1.ConditionTrusted {
				return found
			}
		}
	}
	return found
}

// The severities of findings, worst first.
const (
	Error   = "Error"
	Warning = "Warning"
	Info    = "Info"
)

// Findings returns the problems in an area, worst first; an empty area means all.
func Findings(is Report, area string, now time.Time) []Finding {
	found := []Finding{}
	if area == "" || area == AreaPeers {
		found = append(found, agentFindings(is)...) // first: what follows is what it last wrote
	}
	if area == "" || area == AreaNetwork {
		found = append(found, networkFindings(is, now)...)
	}
	if area == "" || area == AreaPeers {
		for i := range is.Peers {
			found = append(found, peerFindings(&is.Peers[i])...)
		}
	}
	if area == "" || area == AreaPlacement {
		found = append(found, placementFindings(is.Placed, now)...)
	}
	if area == "" || area == AreaServices {
		found = append(found, serviceFindings(is.Abroad, is.Namespace, area == AreaServices)...)
	}
	rank := func(f Finding) int {
		return slices.Index([]string{Error, Warning, Info}, f.Severity)
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Node, b.Node)) })
	return found
}
