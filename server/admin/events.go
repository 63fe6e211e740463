package admin

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Events are derived from two states of an object, before and after. So no record but the custom
// resources is needed, and changes while no state was read show as one step. A nil object is one
// that did not exist yet, or no longer exists.

// event is something that happened.
type event = *ententev1.WatchEventsResponse

// happening gathers what happened to one object.
type happening struct {
	now           time.Time
	peer, subject string
	events        []event
}

func (h *happening) add(reason, format string, args ...any) {
	h.at(h.now, h.subject, reason, fmt.Sprintf(format, args...))
}

func (h *happening) at(when time.Time, subject, reason, message string) {
	e := &ententev1.WatchEventsResponse{Time: timestamppb.New(when), Subject: subject, Reason: reason, Message: message}
	if h.peer != "" {
		e.Peer = "peers/" + h.peer
	}
	h.events = append(h.events, e)
}

// conditions adds an event for each condition that got another status or reason.
func (h *happening) conditions(before, after []metav1.Condition) {
	for _, c := range after {
		old := meta.FindStatusCondition(before, c.Type)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason {
			continue
		}
		when := h.now
		if !c.LastTransitionTime.IsZero() && (old == nil || old.Status != c.Status) {
			when = c.LastTransitionTime.Time
		}
		h.at(when, h.subject, c.Reason, fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Message))
	}
}

// peerEvents returns what happened to a ForeignCluster.
func peerEvents(before, after *v1alpha1.ForeignCluster, now time.Time) []event {
	name := cmp.Or(after, before).Name
	h := happening{now: now, peer: name, subject: "peers/" + name}
	if after == nil {
		h.add("Forgotten", "cluster %s is not known any more", before.Spec.ClusterID)
		return h.events
	}
	if before == nil {
		before = &v1alpha1.ForeignCluster{}
		h.add("Known", "cluster %s is known", after.Spec.ClusterID)
	}
	if i := after.Status.Introduction; i != nil && i.Code != "" && (before.Status.Introduction == nil || before.Status.Introduction.Code != i.Code) {
		h.add("Introduced", "the code to compare with the other side's is %s", i.Code)
	}
	if d := after.Spec.Decision; d != before.Spec.Decision {
		policy := after.Labels[v1alpha1.LabelAutomatic]
		switch {
		case d == "":
			h.add("Undecided", "the decision whether to trust it was taken back")
		case d == v1alpha1.DecisionApproved && policy != "" && after.Annotations[v1alpha1.AnnotationAutomaticBy] != "": // a policy never denies
			h.add(string(d), "the policy %s decided: %s", policy, d)
		default:
			h.add(string(d), "an administrator decided: %s", d)
		}
	}
	for _, r := range after.Status.Requests {
		if !slices.ContainsFunc(before.Status.Requests, func(o v1alpha1.PendingRequest) bool { return o.ID == r.ID }) {
			h.at(now, h.subject+"/requests/"+r.ID, "RequestPending", "a request waits for an administrator to approve it")
		}
	}
	h.conditions(before.Status.Conditions, after.Status.Conditions)
	return h.events
}

// requestEvents returns what happened to a PeeringRequest.
func requestEvents(before, after *v1alpha1.PeeringRequest, now time.Time) []event {
	last := cmp.Or(after, before)
	h := happening{now: now, peer: provider(last), subject: "peerings/" + last.Name}
	if after == nil {
		h.add("Deleted", "the peering is not asked for any more")
		return h.events
	}
	if before == nil {
		before = &v1alpha1.PeeringRequest{}
		h.add("Created", "%s is asked", asked(after))
	}
	h.conditions(before.Status.Conditions, after.Status.Conditions)
	return h.events
}

// contractEvents returns what happened to a Contract.
func contractEvents(before, after *v1alpha1.Contract, now time.Time) []event {
	last := cmp.Or(after, before)
	h := happening{now: now, peer: last.Spec.ForeignCluster, subject: "contracts/" + last.Name}
	if after == nil {
		h.add("Removed", "the contract is not kept any more")
		return h.events
	}
	until := after.Spec.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case before == nil:
		before = &v1alpha1.Contract{}
		h.add("Signed", "signed by both, this cluster as %s, until %s", after.Spec.Role, until)
	case before.Spec.Revision != after.Spec.Revision:
		h.add("Amended", "revision %d is signed by both, until %s", after.Spec.Revision, until)
	}
	if phase := after.Status.Phase; phase != before.Status.Phase && phase != "" {
		h.add(phase, "%s", cmp.Or(after.Status.Message, "the contract is "+phase))
	}
	h.conditions(before.Status.Conditions, after.Status.Conditions)
	return h.events
}
