package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// PeerSnapshot is everything that decides about a peer, at one moment.
type PeerSnapshot struct {
	Peer      *v1alpha1.ForeignCluster
	Contracts []v1alpha1.Contract
	// Requests is the PeeringRequests that ask the peer.
	Requests []v1alpha1.PeeringRequest
	// Session is the session with it, or why there is no session.
	Session trust.Session
	// Revoked: the peer reported that it no longer trusts this cluster.
	Revoked bool
	// Attempt is why it is not trusted yet.
	Attempt     trust.Attempt
	FabricNodes []v1alpha1.FabricNode
	// Health returns what Kubernetes reports of a node. Nil means that all are healthy.
	Health func(node string) gateways.Health
	// CutOff is the nodes whose pods have not reached the peer for a while, though others' do.
	CutOff []gateways.Cut
	// TunnelWaits is what the tunnel waits for; empty once it is planned.
	TunnelWaits string
	// TunnelLacks is what was left out of the tunnel, and why; empty if nothing was.
	TunnelLacks string
	// PodsOutside says that pods have addresses outside of this cluster's pod prefixes; empty if that is not known.
	PodsOutside string
	// KeyProblem is why an in-band tunnel has no key; empty if it has one.
	KeyProblem string
	Now        time.Time

	// primary: the object represents its cluster. secondary: another object does.
	primary, secondary bool
	// refusals are those before this session, root the newest root if it was read before.
	refusals refusals
	root     rootRead
}

// rootRead is when the newest root of a trust bundle ends, or why it cannot be read.
type rootRead struct {
	text string
	ends time.Time
	err  error
}

// of returns r updated for a peer's current bundle: reading one verifies it, and pods that change reconcile peers
// several times a second.
func (r rootRead) of(fc *v1alpha1.ForeignCluster) rootRead {
	if text := fc.Spec.TrustBundle; text == "" || r.text != text {
		b, err := identity.ReadBundlePEM(peering.ClusterID(fc.Spec.ClusterID), []byte(text))
		if r = (rootRead{text: text, err: err}); err == nil {
			r.ends = b.Roots[0].NotAfter
		}
	}
	return r
}

// withoutContracts returns s without its contracts.
func (s *PeerSnapshot) withoutContracts() *PeerSnapshot {
	out := *s
	out.Contracts = nil
	return &out
}

// RoleOf returns the role of a peer in the contracts with it that are not closed.
func RoleOf(contracts []v1alpha1.Contract) v1alpha1.Role {
	provider, consumer := false, false
	for _, c := range contracts {
		if store.Closed(&c) {
			continue
		}
		provider = provider || c.Spec.Role == v1alpha1.ContractConsumer
		consumer = consumer || c.Spec.Role == v1alpha1.ContractProvider
	}
	switch {
	case provider && consumer:
		return v1alpha1.RoleProviderAndConsumer
	case provider:
		return v1alpha1.RoleProvider
	case consumer:
		return v1alpha1.RoleConsumer
	}
	return v1alpha1.RoleNone
}

// peerConditions returns a peer's conditions, one for each hop. A condition is True only if that was observed.
func peerConditions(v PeerSnapshot) []metav1.Condition {
	conditions := []metav1.Condition{trusted(v), connected(v), network(v), offloading(v)}
	if v.Peer.Spec.InBand != nil {
		conditions = slices.Insert(conditions, 0, inBand(v))
	}
	if v.Peer.Spec.TrustBundle != "" {
		conditions = append(conditions, certificateValid(v))
	}
	return conditions
}

func trusted(v PeerSnapshot) metav1.Condition {
	const kind = v1alpha1.ConditionTrusted
	fc := v.Peer
	no := func(reason, message string) metav1.Condition {
		return store.Condition(kind, metav1.ConditionFalse, reason, message)
	}
	was := trust.TrustedOf(fc)
	approved := fc.Spec.Decision == v1alpha1.DecisionApproved
	switch {
	case fc.Spec.Decision == v1alpha1.DecisionDenied:
		return no("Denied", "an administrator of this cluster denied it; `entente approve`, or a new token, ends that")
	case v.Revoked && was != nil:
		return no(was.Reason, was.Message)
	case fc.Spec.TrustBundle == "" && v.Attempt.Reason != "", v.Attempt.Reason == trust.ReasonDuplicate:
		return no(v.Attempt.Reason, v.Attempt.Message)
	case fc.Spec.TrustBundle == "":
		return notTrusted(fc)
	case v.Session.Up == nil && v.Session.Untrusted && joinGraceLeft(was, v.Session.At, v.Now) == 0:
		what := "this cluster trusts it, and it does not trust this cluster"
		if slices.ContainsFunc(v.Contracts, func(c v1alpha1.Contract) bool { return !store.Closed(&c) }) {
			what += fmt.Sprintf(", so contracts with it end when that has been so for %s in all", forgottenAfter)
		}
		if v.Attempt.Reason == trust.ReasonForgottenByPeer || trust.ReportedForgotten(fc) {
			return no(trust.ReasonForgottenByPeer, what+": "+trust.ForgottenByPeer)
		}
		return no(reasonNotTrustedByPeer, notMutual(fc, what))
	case v.Session.Up == nil && trust.ReportedForgotten(fc):
		return no(was.Reason, was.Message) // being unreachable now does not change that
	case v.Session.Up == nil && v.Session.At.IsZero() && was != nil && refusedByPeer(was.Reason):
		// This process has not dialled yet. What an earlier one was refused counts, and since when; see forgotten.
		return no(was.Reason, was.Message)
	case approved && v.Session.Up == nil && (was == nil || was.Status != metav1.ConditionTrue):
		return no("AwaitingPeer", notMutual(fc, "this cluster trusts it; it has not connected since"))
	case approved:
		// A session shows that the other side trusts this cluster.
		who := "an administrator of this cluster approved it"
		if policy := store.PeerOfPolicy(fc); policy != "" {
			who = fmt.Sprintf("the policy %s of this cluster peers with it (%s)", policy, fc.Annotations[v1alpha1.AnnotationAutomaticBy])
		}
		if v.Session.Up != nil {
			return store.Condition(kind, metav1.ConditionTrue, reasonApproved, who+", and it trusts this cluster")
		}
		return store.Condition(kind, metav1.ConditionTrue, reasonApproved, who+", and it trusted this cluster when there was a session last")
	}
	return store.Condition(kind, metav1.ConditionTrue, store.ReasonJoined, "the two clusters joined")
}

// joinGraceLeft is how long to wait until a peer's refusal at the given time counts; 0 if it does. Shortly after
// trust was made the peer may not know of it: the response to a join may be on its way while the issuer dials
// already. Refusals before that do not count, so the next connection decides.
func joinGraceLeft(was *metav1.Condition, at, now time.Time) time.Duration {
	if was == nil || was.Status != metav1.ConditionTrue {
		return 0
	}
	end := was.LastTransitionTime.Add(joinGrace)
	switch {
	case !at.Before(end):
		return 0
	case at.Before(was.LastTransitionTime.Time):
		return max(end.Sub(now), joinRecheck)
	}
	return max(end.Sub(now), 0)
}

// Reasons of the Trusted condition on which code depends.
const (
	reasonApproved = "Approved"
	// reasonNotTrustedByPeer: the peer proved its identity and refused this cluster.
	reasonNotTrustedByPeer = "NotTrustedByPeer"
	// reasonForgetting: the peer is being forgotten and can be notified.
	reasonForgetting = "Forgetting"
	// reasonForgotten: the peer is being forgotten, and this cluster does not wait for it.
	reasonForgotten = "Forgotten"
)

// refusedByPeer reports whether the reason of a Trusted condition is that the peer proved its identity and refused
// this cluster.
func refusedByPeer(reason string) bool {
	return reason == reasonNotTrustedByPeer || reason == trust.ReasonForgottenByPeer
}

// notTrusted says what a cluster that is not trusted waits for.
func notTrusted(fc *v1alpha1.ForeignCluster) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, reason, message)
	}
	switch intro := fc.Status.Introduction; {
	case fc.Spec.Decision == v1alpha1.DecisionApproved && intro == nil && fc.Spec.InBand != nil && !trust.Dialable(fc):
		return no("AwaitingTunnel", "approved; this cluster introduces itself to it once the tunnel is up, and the condition InBand says what that waits for")
	case fc.Spec.Decision == v1alpha1.DecisionApproved && intro == nil && !trust.Dialable(fc):
		return no("AwaitingIntroduction", "approved, and it has no endpoint that could be dialled: add spec.endpoints, or wait until it introduces itself")
	case fc.Spec.Decision == v1alpha1.DecisionApproved:
		return no("Introducing", "approved; this cluster introduces itself to it")
	case fc.Spec.JoinToken != nil:
		return no(v1alpha1.ReasonJoining, "its token is being redeemed")
	case intro != nil && intro.Code != "":
		return no(v1alpha1.ReasonAwaitingApproval, fmt.Sprintf("it waits for an administrator: compare the code %s with the one that the other side shows, then `entente approve %s`, or `entente deny %s`",
			spaced(intro.Code), fc.Name, fc.Name))
	}
	if fc.Hint() {
		return no("Discovered", "discovery found it, and nothing proves who it is: join it with a token of either side, or with `entente join` and one of its endpoints and compare the code with its administrator")
	}
	return no("NotJoined", "known but not trusted: make a token there with `entente token create` and redeem it here with `entente join`")
}

// notMutual says what to do if only this side trusts the other.
func notMutual(fc *v1alpha1.ForeignCluster, what string) string {
	if policy := store.PeerOfPolicy(fc); policy != "" {
		return fmt.Sprintf("%s: the policy %s here peers with it (%s), and none there peers with this cluster, as far as is known. An administrator there lists this cluster's ID in spec.automatic.clusterIDs of a PeeringPolicy, or approves it with `entente approve`",
			what, policy, fc.Annotations[v1alpha1.AnnotationAutomaticBy])
	}
	if fc.Spec.Decision != v1alpha1.DecisionApproved {
		return what + ": it never learned of the join, or forgot this cluster; join again with a new token"
	}
	if intro := fc.Status.Introduction; intro != nil && intro.Code != "" {
		return fmt.Sprintf("%s: an administrator there has to approve this cluster; the code is %s", what, spaced(intro.Code))
	}
	return what + ": an administrator there has to approve this cluster, or name its ID"
}

// spaced formats a code for people.
func spaced(code string) string {
	if len(code) != 6 {
		return code
	}
	return code[:3] + " " + code[3:]
}

// updateRevoked reports whether the peer revoked its trust in this cluster, and keeps that in the Trusted condition
// until a session proves otherwise: one that came up afterwards, or one that is still up after sessionDead.
func updateRevoked(fc *v1alpha1.ForeignCluster, s trust.Session, now time.Time) bool {
	if fc.Spec.TrustBundle == "" {
		return false
	}
	// The time in a condition is in whole seconds.
	var since time.Time
	if c := trust.TrustedOf(fc); c != nil {
		since = c.LastTransitionTime.Add(time.Second)
	}
	switch revoked := store.Revoked(fc); {
	case revoked && s.Up != nil && (!s.Up.Since.Before(since) || !now.Before(since.Add(sessionDead))):
		meta.RemoveStatusCondition(&fc.Status.Conditions, v1alpha1.ConditionTrusted)
		return false
	case !revoked && s.Up == nil && s.Denied && !s.At.Before(since):
		// A refusal from before trust was made again is outdated.
		store.SetRevoked(&fc.Status, "", now)
		return true
	default:
		return revoked
	}
}

func connected(v PeerSnapshot) metav1.Condition {
	const kind = v1alpha1.ConditionConnected
	switch s := v.Session; {
	case v.Peer.Spec.TrustBundle == "":
		return store.Condition(kind, metav1.ConditionFalse, "NoTrust", "a session needs trust; see condition Trusted")
	case v.Peer.Status.Protocol != 0 && peering.CheckProtocol(peering.Protocol, uint32(v.Peer.Status.Protocol)) != nil:
		which := "the peer's"
		if v.Peer.Status.Protocol > peering.Protocol {
			which = "this cluster's"
		}
		return store.Condition(kind, metav1.ConditionFalse, "ProtocolUnsupported",
			peering.CheckProtocol(peering.Protocol, uint32(v.Peer.Status.Protocol)).Error()+", which is "+which)
	case s.Up == nil:
		return store.Condition(kind, metav1.ConditionFalse, "NoSession", s.Why)
	case s.Up.ClockSkew.Abs() > maxSkew:
		ahead := "ahead of"
		if s.Up.ClockSkew < 0 {
			ahead = "behind"
		}
		return store.Condition(kind, metav1.ConditionTrue, v1alpha1.ReasonClocksDiffer, fmt.Sprintf(
			"a session with the peer's agent is up, but its clock is %s %s this cluster's: set the clocks right, or certificates and contracts will be taken for expired or not yet valid",
			s.Up.ClockSkew.Abs().Round(time.Second), ahead))
	}
	where := ""
	switch up := v.Session.Up; {
	case up.InBand:
		where = ", inside the tunnel"
	case up.Through != "":
		where = fmt.Sprintf(", through peer %s, for neither agent reaches the other: make the peer API of one reachable for the other", up.Through)
	}
	return store.Condition(kind, metav1.ConditionTrue, "SessionUp", "a session with the peer's agent is up"+where)
}

// certificateValid checks the peer's newest root. Its leaf certificates are valid for hours by design and renewed
// automatically; one that was not renewed shows in Connected.
func certificateValid(v PeerSnapshot) metav1.Condition {
	const day = 24 * time.Hour
	root := v.root.of(v.Peer)
	if root.err != nil {
		return store.Condition(v1alpha1.ConditionCertificateValid, metav1.ConditionFalse, "BundleInvalid",
			fmt.Sprintf("spec.trustBundle cannot be read: %s; join again with a new token", root.err))
	}
	ends := root.ends
	left := ends.Sub(v.Now)
	text := "the peer's root certificate ends at " + ends.UTC().Format(time.RFC3339)
	const todo = ": have `entente identity rollover` run there"
	if left <= 0 {
		return store.Condition(v1alpha1.ConditionCertificateValid, metav1.ConditionFalse, "RootExpired",
			strings.Replace(text, "ends", "ended", 1)+todo+", then join again")
	}
	for _, limit := range []time.Duration{day, 7 * day, 30 * day} {
		if left < limit {
			return store.Condition(v1alpha1.ConditionCertificateValid, metav1.ConditionTrue, v1alpha1.ReasonRootExpiresSoon,
				fmt.Sprintf("%s, in less than %d days%s", text, limit/day, todo))
		}
	}
	return store.Condition(v1alpha1.ConditionCertificateValid, metav1.ConditionTrue, "Valid", text)
}

// sessionStatus is the session as the status shows it: it does not change with each heartbeat.
func sessionStatus(was *v1alpha1.PeerSession, s trust.Session) *v1alpha1.PeerSession {
	if s.Up == nil {
		return nil
	}
	out := &v1alpha1.PeerSession{Dialled: s.Up.Dialled, Endpoint: s.Up.Endpoint, InBand: s.Up.InBand, Through: s.Up.Through, Since: metav1.NewTime(s.Up.Since.Truncate(time.Second))}
	if s.Up.Dialled || s.Up.RoundTrip > 0 {
		skew := s.Up.ClockSkew.Round(time.Second)
		if was != nil && was.ClockSkew != nil && (s.Up.ClockSkew-was.ClockSkew.Duration).Abs() < time.Second {
			skew = was.ClockSkew.Duration
		}
		out.ClockSkew = &metav1.Duration{Duration: skew}
	}
	if !s.Up.NotAfter.IsZero() {
		ends := metav1.NewTime(s.Up.NotAfter)
		out.CertificateNotAfter = &ends
	}
	if s.Up.RoundTrip > 0 {
		rtt := s.Up.RoundTrip
		if was != nil && was.RoundTrip != nil && was.Since.Equal(&out.Since) {
			if old := was.RoundTrip.Duration; rtt > old/2 && rtt < 2*old {
				rtt = old
			}
		}
		out.RoundTrip = &metav1.Duration{Duration: roundTrip(rtt)}
	}
	return out
}

// roundTrip rounds to one significant digit: what is shown is a magnitude.
func roundTrip(d time.Duration) time.Duration {
	unit := 10 * time.Microsecond
	for 10*unit <= d {
		unit *= 10
	}
	return max(d.Round(unit), unit)
}

// peerEvents returns the events between two statuses of a peer.
func peerEvents(before, after *v1alpha1.ForeignCluster) []happened {
	var out []happened
	find := func(fc *v1alpha1.ForeignCluster, kind string) metav1.Condition {
		return ptr.Deref(meta.FindStatusCondition(fc.Status.Conditions, kind), metav1.Condition{})
	}
	was, is := find(before, v1alpha1.ConditionTrusted), find(after, v1alpha1.ConditionTrusted)
	if was.Status != is.Status || was.Reason != is.Reason || (is.Reason == v1alpha1.ReasonAwaitingApproval && was.Message != is.Message) {
		kind, reason := corev1.EventTypeNormal, ""
		switch is.Reason {
		case store.ReasonJoined, reasonApproved, "Denied":
			reason = is.Reason
		case v1alpha1.ReasonAwaitingApproval:
			reason = "Introduced"
		case store.RevokedByPeer:
			kind, reason = corev1.EventTypeWarning, "Revoked"
		}
		if reason != "" {
			out = append(out, happened{Type: kind, Reason: reason, Action: "Trust", Note: is.Message})
		}
	}
	was, is = find(before, v1alpha1.ConditionConnected), find(after, v1alpha1.ConditionConnected)
	switch {
	case was.Status == metav1.ConditionTrue && is.Status != metav1.ConditionTrue:
		out = append(out, happened{Type: corev1.EventTypeWarning, Reason: "Lost", Action: "Connect", Note: is.Message})
	case was.Status != metav1.ConditionTrue && is.Status == metav1.ConditionTrue:
		out = append(out, happened{Type: corev1.EventTypeNormal, Reason: "Connected", Action: "Connect", Note: is.Message})
	}
	return out
}

func network(v PeerSnapshot) metav1.Condition {
	const kind = v1alpha1.ConditionNetwork
	if !slices.ContainsFunc(v.Contracts, wantsTunnel) {
		return store.Condition(kind, metav1.ConditionFalse, v1alpha1.ReasonTunnelNotRequired, "no contract in force wants a tunnel")
	}
	if v.TunnelWaits != "" {
		return store.Condition(kind, metav1.ConditionFalse, "Negotiating", v.TunnelWaits)
	}
	carrier, path, unreachable := v.nodes().Carrier(v.Peer.Spec.ClusterID)
	switch {
	case carrier == nil:
		return notCarried(&v)
	case len(unreachable) > 0:
		return store.Condition(kind, metav1.ConditionFalse, "GatewayUnreachable", fmt.Sprintf(
			"probes to gateway node %s are lost from %s: check that node and the network to it; another node takes over if one can", carrier.Name, gateways.Some(unreachable)))
	case gateways.StopsPods(carrier):
		return store.Condition(kind, metav1.ConditionFalse, "NodeBlocked", joinTexts([]string{blockedBy(carrier), path.Message, v.TunnelLacks}))
	case path.LargePacketsLost:
		return store.Condition(kind, metav1.ConditionFalse, "LargePacketsLost", joinTexts([]string{blockedBy(carrier), path.Message, v.TunnelLacks}))
	}
	reason, way := wayOf(*path)
	answered := fmt.Sprintf("probes through the tunnel of node %s are answered", carrier.Name)
	if len(v.CutOff) > 0 {
		return store.Condition(kind, metav1.ConditionFalse, v1alpha1.ReasonNodesCutOff, joinTexts([]string{answered, gateways.CutsMessage(v.CutOff), way, v.TunnelLacks}))
	}
	if lost := v.nodes().LostEnds(v.Peer.Spec.ClusterID); lost != "" {
		return store.Condition(kind, metav1.ConditionFalse, v1alpha1.ReasonPodsUnreachable, joinTexts([]string{answered, lost, way, v.TunnelLacks}))
	}
	if v.PodsOutside != "" {
		reason = v1alpha1.ReasonPodsOutsidePrefixes
	}
	return store.Condition(kind, metav1.ConditionTrue, reason, joinTexts([]string{v.PodsOutside, answered, way, v.TunnelLacks}))
}

// nodes returns what is known of this cluster's nodes.
func (s *PeerSnapshot) nodes() gateways.Nodes {
	return gateways.Nodes{Fabric: s.FabricNodes, Health: s.Health, Now: s.Now}
}

// notCarried returns the condition that says why no gateway carries a peer's traffic.
func notCarried(v *PeerSnapshot) metav1.Condition {
	const kind = v1alpha1.ConditionNetwork
	found, stale, gone := false, "", ""
	var worst *metav1.Condition
	for i := range v.FabricNodes {
		n := &v.FabricNodes[i]
		if !n.Spec.Gateway {
			continue
		}
		found = true
		switch {
		case v.nodes().Gone(n):
			gone = fmt.Sprintf("no pod of the fabric runs on gateway node %s: check its pod of DaemonSet entente-fabric", n.Name)
			continue
		case gateways.Silent(n, v.Now):
			stale = fmt.Sprintf("the fabric on gateway node %s last reported at %s: check its pod", n.Name, n.Status.ObservedAt.UTC().Format(time.RFC3339))
			continue
		}
		for _, p := range n.Status.Paths {
			if p.PeerID != v.Peer.Spec.ClusterID || p.Standby {
				continue
			}
			reason, message := "Probing", p.Message
			switch p.State {
			case "Up": // its Node is not Ready, else it would carry
				reason, message = "GatewayUnreachable", fmt.Sprintf("gateway node %s is not Ready: check that node; another node takes over if one can", n.Name)
			case "Down":
				reason = "ProbesLost"
			}
			worst = new(store.Condition(kind, metav1.ConditionFalse, reason, joinTexts([]string{blockedBy(n), message, v.TunnelLacks})))
		}
	}
	switch {
	case worst != nil:
		return *worst
	case !found:
		return store.Condition(kind, metav1.ConditionFalse, "NoGateway", "no node is a gateway: the fabric runs on none; check DaemonSet entente-fabric")
	case gone != "":
		return store.Condition(kind, metav1.ConditionFalse, "FabricNotRunning", gone)
	case stale != "":
		return store.Condition(kind, metav1.ConditionUnknown, "FabricSilent", stale)
	}
	return store.Condition(kind, metav1.ConditionFalse, "Applying", "the fabric has not applied the tunnel yet")
}

// wayOf returns the reason of a condition for a path that is up, and a text about the way that its packets take;
// empty if they go where the peer announces.
func wayOf(p v1alpha1.FabricPath) (reason, text string) {
	switch p.ConnectionType {
	case "Relayed":
		return "Relayed", "packets go through the agents and their session, for UDP does not pass to gateway " + p.Node + " of the peer: open the UDP port of a gateway of one of the two clusters to the other to have them go directly"
	case "Observed":
		return "ProbesAnswered", "gateway " + p.Node + " of the peer is behind an address translation, and seen at " + p.Endpoint
	}
	return "ProbesAnswered", ""
}

// blockedBy says what on a node blocks the packets of tunnels, by the node's own check; empty if nothing does.
func blockedBy(n *v1alpha1.FabricNode) string {
	if text := gateways.Blocks(n); text != "" {
		return fmt.Sprintf("node %s: %s", n.Name, text)
	}
	return ""
}

func offloading(v PeerSnapshot) metav1.Condition {
	const kind = v1alpha1.ConditionOffloading
	consuming := 0
	for _, c := range v.Contracts {
		if c.Spec.Role != v1alpha1.ContractConsumer || store.Closed(&c) {
			continue
		}
		consuming++
		ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionNodeReady)
		switch {
		case c.Status.Phase == peering.PhaseDraining.String():
			return store.Condition(kind, metav1.ConditionFalse, "Draining", fmt.Sprintf("contract %s is ending: %s", c.Name, c.Status.Message))
		case ready == nil:
			return store.Condition(kind, metav1.ConditionFalse, "NodeStarting", fmt.Sprintf("the virtual node of contract %s is starting", c.Name))
		case ready.Status != metav1.ConditionTrue:
			return store.Condition(kind, metav1.ConditionFalse, ready.Reason, ready.Message)
		}
	}
	if consuming > 0 {
		return store.Condition(kind, metav1.ConditionTrue, v1alpha1.ConditionNodeReady, "the virtual node takes pods")
	}
	for _, request := range v.Requests {
		accepted := meta.FindStatusCondition(request.Status.Conditions, v1alpha1.ConditionAccepted)
		if accepted != nil && accepted.Status == metav1.ConditionFalse {
			return store.Condition(kind, metav1.ConditionFalse, accepted.Reason, fmt.Sprintf("PeeringRequest %s: %s", request.Name, accepted.Message))
		}
	}
	for _, c := range v.Contracts {
		if c.Spec.Role == v1alpha1.ContractProvider && c.Status.Phase == peering.PhaseActive.String() {
			return store.Condition(kind, metav1.ConditionTrue, v1alpha1.ReasonProviding, fmt.Sprintf("contract %s lets the peer run pods here", c.Name))
		}
	}
	next := "ask for one with `entente peer`"
	if trusted(v).Status != metav1.ConditionTrue {
		next = "trust comes first, and the condition Trusted says what it waits for"
	}
	return store.Condition(kind, metav1.ConditionFalse, v1alpha1.ReasonNoContract, "no contract is in force: "+next)
}
