package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

func TestPlanPeerDecidesWhatEnds(t *testing.T) {
	t.Parallel()
	trustedSince := func(ago time.Duration, status metav1.ConditionStatus, reason string) func(*PeerSnapshot) {
		return func(s *PeerSnapshot) {
			c := store.Condition(v1alpha1.ConditionTrusted, status, reason, "")
			c.LastTransitionTime = metav1.NewTime(now.Add(-ago))
			s.Peer.Status.Conditions = []metav1.Condition{c}
		}
	}
	denied := func(s *PeerSnapshot) { s.Peer.Spec.Decision = v1alpha1.DecisionDenied }
	up := func(since time.Duration) func(*PeerSnapshot) {
		return func(s *PeerSnapshot) { s.Session = trust.Session{Up: &trust.SessionInfo{Since: now.Add(-since)}} }
	}
	untrusted := func(s *PeerSnapshot) { s.Session = trust.Session{Untrusted: true, At: now} }
	agreed := func(s *PeerSnapshot) {
		s.Contracts = []v1alpha1.Contract{{Status: v1alpha1.ContractStatus{Phase: peering.PhaseActive.String()}}}
	}
	type want struct {
		end                                         v1alpha1.Termination
		revoked, unforget, endTrust, forgottenThere bool
		after                                       time.Duration
	}
	for name, tc := range map[string]struct {
		edit []func(*PeerSnapshot)
		want want
	}{
		"trusted, with a session":     {[]func(*PeerSnapshot){up(time.Hour)}, want{unforget: true, after: restInterval}},
		"another object is the first": {[]func(*PeerSnapshot){func(s *PeerSnapshot) { s.primary, s.secondary = false, true }, untrusted}, want{after: restInterval}},
		"found, and not decided": {[]func(*PeerSnapshot){func(s *PeerSnapshot) {
			s.Peer.Spec.TrustBundle, s.Peer.Labels = "", map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
		}}, want{after: restInterval}},
		"denied":                         {[]func(*PeerSnapshot){denied, agreed}, want{end: v1alpha1.TerminateNow, endTrust: true, after: removalPoll}},
		"denied, and its roots are gone": {[]func(*PeerSnapshot){denied, func(s *PeerSnapshot) { s.Peer.Spec.TrustBundle = "" }}, want{end: v1alpha1.TerminateNow, after: restInterval}},
		"it reports that it denied this cluster": {
			[]func(*PeerSnapshot){agreed, func(s *PeerSnapshot) { s.Session = trust.Session{Denied: true, At: now} }},
			want{end: v1alpha1.TerminatePeer, revoked: true, unforget: true, after: restInterval},
		},
		"it revoked trust, and the session seems up": {
			[]func(*PeerSnapshot){trustedSince(2*time.Second, metav1.ConditionFalse, store.RevokedByPeer), up(time.Hour)},
			want{end: v1alpha1.TerminatePeer, revoked: true, unforget: true, after: sessionDead / 4},
		},
		"it revoked trust, and a session came up since": {
			[]func(*PeerSnapshot){trustedSince(time.Minute, metav1.ConditionFalse, store.RevokedByPeer), up(time.Second)},
			want{unforget: true, after: restInterval},
		},
		"it refuses, just after the join": {
			[]func(*PeerSnapshot){trustedSince(time.Second, metav1.ConditionTrue, store.ReasonJoined), untrusted},
			want{unforget: true, after: joinGrace - time.Second},
		},
		"it refuses for a while": {
			[]func(*PeerSnapshot){agreed, trustedSince(time.Minute, metav1.ConditionFalse, reasonNotTrustedByPeer), untrusted},
			want{unforget: true, after: refusedApart},
		},
		"it refuses for long": {
			[]func(*PeerSnapshot){agreed, trustedSince(forgottenAfter, metav1.ConditionFalse, reasonNotTrustedByPeer), untrusted},
			want{end: v1alpha1.TerminatePeer, forgottenThere: true, unforget: true, after: restInterval},
		},
		"it refuses for long, and its contracts end already": {
			[]func(*PeerSnapshot){agreed, trustedSince(forgottenAfter, metav1.ConditionFalse, reasonNotTrustedByPeer), untrusted, func(s *PeerSnapshot) {
				s.Contracts[0].Spec.Termination = v1alpha1.TerminatePeer
			}},
			want{end: v1alpha1.TerminatePeer, unforget: true, after: restInterval},
		},
		"it refused often, between silences": {
			[]func(*PeerSnapshot){trustedSince(time.Second, metav1.ConditionFalse, reasonNotTrustedByPeer), untrusted, func(s *PeerSnapshot) {
				s.refusals = refusals{n: int(forgottenAfter / refusedApart), last: now.Add(-refusedApart)}
			}},
			want{end: v1alpha1.TerminatePeer, unforget: true, after: restInterval},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &PeerSnapshot{Peer: foreign("milan", generated(t)), Now: now, primary: true}
			s.Peer.Status.Conditions = nil
			for _, edit := range tc.edit {
				edit(s)
			}
			before := s.Peer.DeepCopy()
			p := planPeer(s)
			got := want{end: p.end, revoked: p.revoked, unforget: p.unforget, endTrust: p.endTrust, forgottenThere: p.forgottenThere, after: p.after}
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if p.revoked != store.Revoked(&v1alpha1.ForeignCluster{Status: p.status}) {
				t.Errorf("revoked %t, and the condition is %v", p.revoked, meta.FindStatusCondition(p.status.Conditions, v1alpha1.ConditionTrusted))
			}
			if !equality.Semantic.DeepEqual(before, s.Peer) {
				t.Error("it changed what it decides about")
			}
		})
	}
}

func TestLeavingWaitsForThePeerToBeNotified(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		session trust.Session
		since   time.Duration
		revoked bool
		reason  string
		unheard bool
	}{
		"it may come back":               {since: forgetWait - 1, reason: reasonForgetting},
		"it was waited for in vain":      {since: forgetWait, reason: reasonForgotten, unheard: true},
		"it does not trust this cluster": {session: trust.Session{Untrusted: true}, reason: reasonForgotten},
		"it denied this cluster":         {session: trust.Session{Denied: true}, since: forgetWait, reason: reasonForgotten},
		"it revoked trust":               {session: trust.Session{Up: &trust.SessionInfo{}}, revoked: true, reason: reasonForgotten},
		"there is a session":             {session: trust.Session{Up: &trust.SessionInfo{}}, reason: reasonForgetting},
	} {
		s := &PeerSnapshot{Peer: &v1alpha1.ForeignCluster{}, Session: tc.session, Now: now}
		if tc.revoked {
			store.SetRevoked(&s.Peer.Status, "", now)
		}
		if c, unheard := leaving(s, now.Add(-tc.since)); c.Reason != tc.reason || unheard != tc.unheard {
			t.Errorf("%s: %s, %t", name, c.Reason, unheard)
		}
	}
}
