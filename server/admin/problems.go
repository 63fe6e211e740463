package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

const (
	// rootExpiresSoon is how long before its end a root certificate is a problem: peers that are
	// away for weeks should still receive its successor.
	rootExpiresSoon = 60 * 24 * time.Hour
	// clocksApart is how far a peer's clock may be from this one's. Tokens live for
	// minutes, and certificates in tests, too.
	clocksApart = time.Minute
	// maxAlike is how many problems of one kind, which may have one cause, are listed one by one.
	maxAlike = 8
)

// problems returns problems on which an administrator has to act, a line each: what is wrong,
// where, and what to do. A part that is merely not configured is not a problem.
func (v *snapshot) problems(self Self, peers []v1alpha1.ForeignCluster, asks []v1alpha1.PeeringRequest, policies []v1alpha1.PeeringPolicy) []string {
	var out []string
	say := func(format string, args ...any) {
		if len(out) < MaxProblems {
			out = append(out, peering.Text(fmt.Sprintf(format, args...), 2*peering.MaxMessageLen))
		}
	}
	// few lists only the first of many problems with one cause, so that others find room.
	few := func(more string, n int, one func(i int)) {
		for i := range min(n, maxAlike) {
			one(i)
		}
		if n > maxAlike {
			say("%d more %s", n-maxAlike, more)
		}
	}
	v.selfProblems(self, say, few)
	v.nodeProblems(say)
	for i := range policies {
		for _, p := range []string{invalid(&policies[i]), policyProblem(&policies[i], self.Sources)} {
			if p != "" {
				say("policy %s: %s", policies[i].Name, p)
			}
		}
	}
	slices.SortFunc(peers, byName)
	for i := range peers {
		for _, p := range v.peerProblems(&peers[i]) {
			say("peer %s: %s", peers[i].Name, p)
		}
	}
	for i := range asks {
		for _, c := range asks[i].Status.Conditions {
			if c.Status == metav1.ConditionFalse {
				say("peering %s: %s is False: %s", asks[i].Name, c.Type, c.Message)
			}
		}
	}
	for i := range v.contracts {
		c := &v.contracts[i]
		if closed(c) {
			continue
		}
		for _, cond := range c.Status.Conditions {
			// Whether the node is ready shows in the peer's Offloading.
			if cond.Status == metav1.ConditionFalse && cond.Type != v1alpha1.ConditionNodeReady {
				say("contract %s: %s", c.Name, cond.Message)
			}
		}
	}
	return out
}

// selfProblems lists what is wrong with this cluster's identity and its discovery.
func (v *snapshot) selfProblems(self Self, say func(format string, args ...any), few func(more string, n int, one func(i int))) {
	if !self.RootExpires.IsZero() && self.RootExpires.Sub(v.now) < rootExpiresSoon {
		say("this cluster's root certificate ends at %s: replace its key with RolloverIdentity", self.RootExpires.UTC().Format(time.RFC3339))
	}
	if !self.CertificateExpires.IsZero() && !v.now.Before(self.CertificateExpires) {
		say("the certificate that this cluster shows to peers ended at %s and was not renewed: see the agent's log", self.CertificateExpires.UTC().Format(time.RFC3339))
	}
	if self.NotPlaced != "" {
		say("%s", self.NotPlaced)
	}
	few("problems of discovery: see the agent's log", len(self.Problems), func(i int) { say("%s", self.Problems[i]) })
	unlisted := slices.DeleteFunc(slices.Clone(self.Domains), func(d DNSDomain) bool { return !d.Unlisted })
	few("domains that cannot be queried for clusters", len(unlisted), func(i int) {
		d := &unlisted[i]
		say("domain %s cannot be queried for clusters since %s: %s", d.Domain, d.Since.UTC().Format(time.RFC3339), d.Error)
	})
	for _, p := range self.DNS {
		if p.Problem != "" {
			say("DNS domain %s: %s", p.Domain, p.Problem)
		}
	}
}

// nodeProblems lists what is wrong on the nodes.
func (v *snapshot) nodeProblems(say func(format string, args ...any)) {
	for i := range v.nodes {
		node := &v.nodes[i]
		for _, p := range node.Status.Problems {
			say("node %s: %s", node.Name, p)
		}
		seen := node.Status.ObservedAt
		if !seen.IsZero() && v.now.Sub(seen.Time) > FabricFresh {
			say("node %s: its fabric last reported at %s: check its pod of DaemonSet entente-fabric", node.Name, seen.UTC().Format(time.RFC3339))
		}
	}
	if text := blockedNodes(v.nodes); text != "" {
		say("%s", text)
	}
	for i := range v.lans {
		for _, p := range v.lans[i].Status.Problems {
			say("node %s: discovery on its LANs: %s", v.lans[i].Name, p)
		}
	}
}

// blockedNodes returns one line for the nodes on which something other than the tunnels
// themselves blocks packets of tunnels, or nothing if there are no such nodes.
func blockedNodes(nodes []v1alpha1.FabricNode) string {
	blocked, reasons := 0, []string{}
	for i := range nodes {
		if nodes[i].Status.Preflight == nil {
			continue
		}
		wrong := false
		for _, f := range nodes[i].Status.Preflight.Findings {
			if f.Severity != "Error" {
				continue
			}
			if wrong = true; !slices.Contains(reasons, f.Reason) {
				reasons = append(reasons, f.Reason)
			}
		}
		if wrong {
			blocked++
		}
	}
	if blocked == 0 {
		return ""
	}
	slices.Sort(reasons)
	more := ""
	if n := len(reasons) - maxAlike; n > 0 {
		reasons, more = reasons[:maxAlike], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("nodes on which packets of tunnels do not pass: %d (%s%s): see `entente doctor network`", blocked, strings.Join(reasons, ", "), more)
}

// invalid returns what is wrong with a policy, or names what this cluster does not have; empty means nothing.
func invalid(p *v1alpha1.PeeringPolicy) string {
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionValid)
	if c == nil || c.Status == metav1.ConditionTrue && c.Reason != v1alpha1.ReasonNotFound {
		return ""
	}
	return c.Message
}

// policyProblem returns why a policy cannot peer automatically with clusters that discovery finds
// by sources. It is empty if the policy can, or does not ask for it.
func policyProblem(p *v1alpha1.PeeringPolicy, sources []v1alpha1.Source) string {
	automatic := p.Spec.Automatic
	if automatic == nil {
		return ""
	}
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAutomatic); c != nil && c.Status == metav1.ConditionFalse {
		return c.Message
	}
	on := func(s v1alpha1.Source) bool { return slices.Contains(sources, s) }
	if !automatic.TrustOnFirstUse || len(automatic.Sources) == 0 && len(sources) > 0 || slices.ContainsFunc(automatic.Sources, on) {
		return ""
	}
	what := "discovery.lan.enabled or discovery.domains"
	if len(automatic.Sources) == 1 {
		what = map[v1alpha1.Source]string{v1alpha1.SourceLAN: "discovery.lan.enabled", v1alpha1.SourceDNS: "discovery.domains"}[automatic.Sources[0]]
	}
	return "it trusts clusters on first use (trustOnFirstUse) where discovery finds them, and that is off: set " + what + " in the chart's values"
}

func (v *snapshot) peerProblems(fc *v1alpha1.ForeignCluster) []string {
	var out []string
	bad := func(kind string) {
		if c := meta.FindStatusCondition(fc.Status.Conditions, kind); c != nil && c.Status != metav1.ConditionTrue {
			out = append(out, fmt.Sprintf("%s is %s: %s", kind, c.Status, c.Message))
		}
	}
	if !trusted(fc) {
		if fc.Spec.Decision == v1alpha1.DecisionApproved {
			bad(v1alpha1.ConditionTrusted)
		}
		return out
	}
	bad(v1alpha1.ConditionConnected)
	bad(v1alpha1.ConditionCertificateValid)
	of := func(c v1alpha1.Contract) bool { return c.Spec.PeerID == fc.Spec.ClusterID && !closed(&c) }
	if slices.ContainsFunc(v.contracts, func(c v1alpha1.Contract) bool { return of(c) && c.Spec.Network == v1alpha1.NetworkTunnel }) {
		bad(v1alpha1.ConditionNetwork)
	}
	if slices.ContainsFunc(v.contracts, of) {
		bad(v1alpha1.ConditionOffloading)
	}
	if s := fc.Status.Session; s != nil && s.ClockSkew != nil && s.ClockSkew.Abs() > clocksApart {
		out = append(out, fmt.Sprintf("its clock is %s ahead of this cluster's: set both by NTP", s.ClockSkew.Duration))
	}
	return out
}
