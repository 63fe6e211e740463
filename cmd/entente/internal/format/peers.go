package format

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// ConditionOf is a condition of a peer; nil if it is not known.
func ConditionOf(peer *ententev1.Peer, kind string) *ententev1.Condition {
	for _, c := range peer.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// IsTrue reports whether a condition of a peer is true.
func IsTrue(peer *ententev1.Peer, kind string) bool {
	return ConditionOf(peer, kind).GetStatus() == "True"
}

// StatusOf is the status of a condition.
func StatusOf(p *ententev1.Peer, kind string) string {
	if c := ConditionOf(p, kind); c != nil {
		return c.GetStatus()
	}
	return "Unknown"
}

// Because says why a condition of a peer is not true: ": message".
func Because(peer *ententev1.Peer, kind string) string { return Why(ConditionOf(peer, kind)) }

// Why says why a condition is not true, for people: ": message".
func Why(c *ententev1.Condition) string {
	switch {
	case c.GetStatus() == "True":
		return ""
	case c.GetMessage() != "":
		return ": " + c.GetMessage()
	case c.GetReason() != "":
		return ": " + c.GetReason()
	}
	return ""
}

// OpenContracts are the contracts that have not ended in which the cluster has a
// role; an empty role means either.
func OpenContracts(peer *ententev1.Peer, role string) []*ententev1.Contract {
	return slices.DeleteFunc(slices.Clone(peer.GetContracts()), func(c *ententev1.Contract) bool {
		return role != "" && c.GetRole() != role || c.GetPhase() == "Closed"
	})
}

// NodesAndPods returns the virtual nodes of contracts, and how many pods run under them.
func NodesAndPods(contracts []*ententev1.Contract) (nodes []string, pods int) {
	for _, c := range contracts {
		pods += int(c.GetPods())
		if c.GetNode() != "" {
			nodes = append(nodes, c.GetNode())
		}
	}
	return nodes, pods
}

// Problems lists what is wrong with a cluster and its peerings, one line each.
func Problems(info *ententev1.GetInfoResponse, peers []*ententev1.Peer) []string {
	var all []string
	say := func(lines ...string) {
		for _, line := range lines {
			if line = printer.Clean(line); !slices.Contains(all, line) {
				all = append(all, line)
			}
		}
	}
	// The agent reports hops, too, in the same words.
	say(info.GetProblems()...)
	for _, p := range peers {
		say(problemsOf(p)...)
	}
	return all
}

// problemsOf lists what is wrong with a peering: each hop that should be up and is
// not. It is not a problem if a known cluster has not joined, or was denied.
func problemsOf(p *ententev1.Peer) []string {
	open := OpenContracts(p, "")
	if !IsTrue(p, v1alpha1.ConditionTrusted) && len(open) == 0 {
		return nil
	}
	hops := []string{v1alpha1.ConditionTrusted, v1alpha1.ConditionConnected}
	if ConditionOf(p, v1alpha1.ConditionCertificateValid) != nil {
		hops = append(hops, v1alpha1.ConditionCertificateValid)
	}
	if len(open) > 0 {
		if ConditionOf(p, v1alpha1.ConditionNetwork).GetReason() != v1alpha1.ReasonTunnelNotRequired {
			hops = append(hops, v1alpha1.ConditionNetwork)
		}
		hops = append(hops, v1alpha1.ConditionOffloading)
	}
	var out []string
	for _, hop := range hops {
		if !IsTrue(p, hop) {
			out = append(out, fmt.Sprintf("peer %s: %s is %s%s", ShortName(p), hop, StatusOf(p, hop), Because(p, hop)))
		}
	}
	return out
}

// discovered reports whether discovery found a peer that became known like this.
func discovered(found string) bool {
	return found == string(v1alpha1.SourceLAN) || found == string(v1alpha1.SourceDNS)
}

// IsHint reports whether a cluster is known only because discovery found it.
func IsHint(p *ententev1.Peer) bool {
	return discovered(p.GetSource()) && p.GetDecision() == "" && p.GetCode() == "" &&
		!IsTrue(p, v1alpha1.ConditionTrusted) && len(p.GetContracts()) == 0
}

// TrustStatus says whether a peer is trusted: denied if an administrator denied it,
// and waiting if one has yet to decide.
func TrustStatus(p *ententev1.Peer) string {
	switch {
	case p.GetDecision() == "Denied":
		return "Denied"
	case ConditionOf(p, v1alpha1.ConditionTrusted).GetReason() == v1alpha1.ReasonAwaitingApproval:
		return "waiting"
	}
	return StatusOf(p, v1alpha1.ConditionTrusted)
}

// OffloadingStatus says whether pods can run at a peer; Cordoned if they could, but a
// virtual node is cordoned.
func OffloadingStatus(p *ententev1.Peer) string {
	if IsTrue(p, v1alpha1.ConditionOffloading) && slices.ContainsFunc(OpenContracts(p, ""), (*ententev1.Contract).GetCordoned) {
		return "Cordoned"
	}
	return StatusOf(p, v1alpha1.ConditionOffloading)
}

// NetworkStatus is the tunnel's state, or a dash where none is wanted.
func NetworkStatus(p *ententev1.Peer) string {
	if ConditionOf(p, v1alpha1.ConditionNetwork).GetReason() == v1alpha1.ReasonTunnelNotRequired {
		return "-"
	}
	return StatusOf(p, v1alpha1.ConditionNetwork)
}

// TunnelPasses reports whether traffic with a peer passes, even if pods on some nodes of this
// cluster are cut off.
func TunnelPasses(p *ententev1.Peer) bool {
	reason := ConditionOf(p, v1alpha1.ConditionNetwork).GetReason()
	return IsTrue(p, v1alpha1.ConditionNetwork) || reason == v1alpha1.ReasonNodesCutOff || reason == v1alpha1.ReasonPodsUnreachable
}

// FoundBy says how a peer became known, for people: a peer that a policy peers with was
// found by discovery, and introduced by the policy.
func FoundBy(p *ententev1.Peer) string {
	found := p.GetSource()
	if p.GetLabels()[v1alpha1.LabelAutomatic] != "" && len(p.GetSightings()) > 0 {
		found = p.GetSightings()[0].GetSource()
	}
	if discovered(found) {
		return "discovery (" + found + ")"
	}
	return strings.ToLower(found)
}

// protocols describes the protocol revisions of a peer's agent and this cluster's.
func protocols(peer, own uint32) string {
	if peer == 0 {
		return fmt.Sprintf("it did not send its revision; this cluster speaks %d", own)
	}
	return fmt.Sprintf("it speaks revision %d, this cluster %d", peer, own)
}

// nodeOf is a contract's virtual node, for people.
func nodeOf(c *ententev1.Contract) string {
	if c.GetCordoned() {
		return c.GetNode() + ", cordoned: no pod is scheduled to it until kubectl uncordon"
	}
	return cmp.Or(c.GetNode(), "-")
}

// grantedBy is what a peer grants this cluster by contracts that have not ended, all
// together; empty means nothing.
func grantedBy(p *ententev1.Peer) string {
	sum := peering.Resources{}
	for _, c := range OpenContracts(p, "Consumer") {
		granted, err := wire.ResourcesFrom("resources", c.GetResources())
		if err != nil {
			continue
		}
		if sum, err = sum.Add(granted); err != nil {
			return "more than can be added up"
		}
	}
	if len(sum) == 0 {
		return ""
	}
	return Amounts(wire.ResourcesTo(sum))
}

// Worst is the first thing that is wrong with a peer.
func Worst(p *ententev1.Peer) string {
	if wrong := problemsOf(p); len(wrong) > 0 {
		return strings.TrimPrefix(wrong[0], "peer "+ShortName(p)+": ")
	}
	return ""
}

// Refused reports whether what a peering requests now was refused, and waiting does not change
// that. An administrator may approve at any time; of several peers, another may have capacity.
func Refused(p *ententev1.Peering) bool {
	c := p.GetAccepted()
	if c.GetStatus() != "False" || p.GetAcceptedGeneration() < p.GetGeneration() {
		return false
	}
	switch strings.ReplaceAll(strings.ToUpper(c.GetReason()), "_", "") {
	case "POLICYREFUSED", "PRICEABOVECEILING", "TRUSTDENIED", "ENDEDBYPROVIDER", "REQUESTINVALID", "EXPIRED", "ENDEDHERE":
		return true
	case "CAPACITYEXHAUSTED":
		return Short(p.GetPeer()) != AnyPeer || p.GetProvider() != ""
	}
	return false
}

// Over reports whether the contract of a refused request has ended and it asks for no other, whatever it asks for.
func Over(accepted *ententev1.Condition) bool {
	return accepted.GetStatus() == "False" && slices.Contains([]string{"Expired", "EndedHere", "EndedByProvider"}, accepted.GetReason())
}

// Refusal says why a request is refused: by the provider, since it costs more than it may, since one of the
// two agents finds it invalid, or since its contract is over and it asks for no other.
func Refusal(c *ententev1.Condition) string {
	switch c.GetReason() {
	case "PriceAboveCeiling":
		return "the price is above the ceiling of this request" + Why(c)
	case "RequestInvalid":
		return "the request is not valid" + Why(c)
	case "Expired", "EndedHere":
		return "the request is over" + Why(c)
	}
	return "the provider refuses: " + c.GetReason() + Why(c)
}

// TunnelFacts says what carries a tunnel, and its round trip: " (kernel WireGuard, ...)".
func TunnelFacts(t *ententev1.Tunnel) string {
	var facts []string
	if t.GetBackend() != "" {
		facts = append(facts, t.GetBackend()+" WireGuard")
	}
	if t.GetRoundTrip() != nil {
		facts = append(facts, "round trip "+t.GetRoundTrip().AsDuration().Round(10*time.Microsecond).String())
	}
	if len(facts) == 0 {
		return ""
	}
	return " (" + strings.Join(facts, ", ") + ")"
}

// FoundText says where discovery found a peer.
func FoundText(m *ententev1.Sighting) string {
	text := m.GetSource() + " " + m.GetLocation()
	if m.GetNode() != "" {
		text += " of " + m.GetNode()
	}
	return text
}

// EndpointText is the first endpoint, and the number of others.
func EndpointText(m *ententev1.Sighting) string {
	all := m.GetEndpoints()
	if len(all) <= 1 {
		return strings.Join(all, "")
	}
	return fmt.Sprintf("%s (and %d more)", all[0], len(all)-1)
}

// Code is the code of an introduction, for people.
func Code(peer *ententev1.Peer) string {
	if s := peer.GetCode(); len(s) == 6 {
		return s[:3] + " " + s[3:]
	}
	return cmp.Or(peer.GetCode(), "-")
}
