package controller

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
)

// peerPlan is what to do for a peer.
type peerPlan struct {
	// status is the peer's status with its last report of its trust in this cluster.
	status v1alpha1.ForeignClusterStatus
	// revoked: the peer reported that it no longer trusts this cluster.
	revoked  bool
	refusals refusals
	// unforget: the cluster no longer counts as forgotten.
	unforget bool
	// endTrust: its roots are removed once it was notified.
	endTrust bool
	// end is how contracts in force with it end, and the tunnel with them; empty if they continue.
	end v1alpha1.Termination
	// forgottenThere: contracts that were not ending end, because the peer refuses this cluster for good.
	forgottenThere bool
	// after is when to reconcile again if nothing triggers it.
	after time.Duration
}

// planPeer decides what to do for a peer that is not being deleted.
func planPeer(s *PeerSnapshot) peerPlan {
	fc := s.Peer.DeepCopy()
	denied := fc.Spec.Decision == v1alpha1.DecisionDenied
	// Relevant changes trigger a reconciliation; a session's round trip and clocks drift slowly.
	plan := peerPlan{after: restInterval, refusals: s.refusals, endTrust: denied && fc.Spec.TrustBundle != ""}
	if s.secondary {
		plan.status = fc.Status
		return plan
	}
	// An administrator here named it, or a token did. A denial does not undo that.
	plan.unforget = s.primary && !store.Pending(fc) && !denied
	plan.revoked = updateRevoked(fc, s.Session, s.Now)
	wait := joinGraceLeft(trust.TrustedOf(fc), s.Session.At, s.Now)
	if wait > 0 && s.Session.Up == nil && s.Session.Untrusted {
		plan.after = wait // the same refusal again triggers no reconciliation
	}
	plan.refusals = s.refusals.count(s.Session, wait > 0)
	gone, again := forgotten(fc, s.Session, plan.refusals, s.Now)
	switch {
	case denied:
		plan.end = v1alpha1.TerminateNow
		if fc.Spec.TrustBundle != "" {
			plan.after = removalPoll
		}
	case plan.revoked:
		plan.end = v1alpha1.TerminatePeer
		if s.Session.Up != nil {
			plan.after = sessionDead / 4
		}
	case gone:
		plan.end = v1alpha1.TerminatePeer
		plan.forgottenThere = slices.ContainsFunc(s.Contracts, func(c v1alpha1.Contract) bool { return !store.Closed(&c) && !endsNow(&c) })
	case again > 0 && len(s.Contracts) > 0:
		plan.after = min(plan.after, again)
	}
	plan.status = fc.Status
	return plan
}

// peerStatus returns a peer's status. before is the stored peer, s.Peer has what the plan and the tunnel changed.
func peerStatus(before *v1alpha1.ForeignCluster, s *PeerSnapshot, tunnel tunnelState) v1alpha1.ForeignClusterStatus {
	s.TunnelWaits, s.TunnelLacks, s.KeyProblem = tunnel.waits, tunnel.lacks, tunnel.keyProblem
	status := s.Peer.Status.DeepCopy()
	status.Source = store.FoundBy(s.Peer)
	status.Role = RoleOf(s.Contracts)
	status.Granted, status.Used = grantedAndUsed(s.Contracts)
	status.Session = sessionStatus(before.Status.Session, s.Session)
	for _, c := range peerConditions(*s) {
		c.ObservedGeneration = s.Peer.Generation
		if was := meta.FindStatusCondition(status.Conditions, c.Type); refusedByPeer(c.Reason) && was != nil && was.Reason != c.Reason {
			meta.RemoveStatusCondition(&status.Conditions, c.Type) // its time is that of the refusal; see forgotten
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	if s.Peer.Spec.InBand == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionInBand)
	}
	if s.Peer.Spec.TrustBundle == "" {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionCertificateValid)
	}
	return *status
}

// leaving returns the Trusted condition of a peer that is being forgotten and whose contracts have been closed here
// since the given time; unnotified means that it could not be notified in time.
func leaving(s *PeerSnapshot, since time.Time) (c metav1.Condition, unnotified bool) {
	reason, message := reasonForgetting, fmt.Sprintf("it is being forgotten, and has up to %s to be notified that its contracts are over", forgetWait)
	switch session := s.Session; {
	case session.Up == nil && (session.Denied || session.Untrusted), store.Revoked(s.Peer):
		reason, message = reasonForgotten, "it is being forgotten, and trusts this cluster no longer"
	case s.Now.Sub(since) >= forgetWait:
		reason, message, unnotified = reasonForgotten, "it is being forgotten, and could not be notified that its contracts are over", true
	}
	c = store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, reason, message)
	c.ObservedGeneration = s.Peer.Generation
	return c, unnotified
}

// forgotten reports whether the peer certainly no longer trusts this cluster, or if that is possible, when to check
// again; 0 means that nothing indicates it. It is certain once the peer proved its identity and refused this
// cluster for forgottenAfter without a break, or as often as in that time: it no longer honours contracts then. A
// peer that is silent or unreachable proves nothing. A restart of this agent is not a break.
func forgotten(fc *v1alpha1.ForeignCluster, s trust.Session, counted refusals, now time.Time) (bool, time.Duration) {
	if s.Up != nil || !s.Untrusted {
		return false, 0
	}
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	if c == nil || c.Status != metav1.ConditionFalse || !refusedByPeer(c.Reason) {
		return false, 0
	}
	due := c.LastTransitionTime.Add(forgottenAfter)
	return !s.At.Before(due) || counted.n > int(forgottenAfter/refusedApart), min(max(due.Sub(now), refusedAgain), refusedApart)
}

// refusals is how often a peer that proved its identity has refused this cluster since it last trusted it. It may
// have been unreachable in between.
type refusals struct {
	n    int
	last time.Time
}

// count counts a refusal if it is a new one. If the peer trusts this cluster, or may not know yet that trust was
// made again, counting begins again.
func (r refusals) count(s trust.Session, joining bool) refusals {
	switch {
	case s.Up != nil, s.Untrusted && joining:
		return refusals{}
	case s.Untrusted && (r.n == 0 || s.At.Sub(r.last) >= refusedApart):
		return refusals{r.n + 1, s.At}
	}
	return r
}
