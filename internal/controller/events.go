package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// happened is an event. Events of one object that differ only in their note are counted, not written again: a peer
// that changes its texts causes no writes.
type happened struct{ Type, Reason, Action, Note string }

// record records events of an object; without a recorder it does nothing.
func record(recorder events.EventRecorder, about runtime.Object, all []happened) {
	if recorder == nil {
		return
	}
	for _, e := range all {
		recorder.Eventf(about, nil, e.Type, e.Reason, e.Action, "%s", e.Note)
	}
}

// requestEvents returns the events between two statuses of a PeeringRequest.
func requestEvents(before, after *v1alpha1.PeeringRequest) []happened {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionAccepted)
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionAccepted)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
		return nil
	}
	kind := corev1.EventTypeNormal
	if is.Status == metav1.ConditionFalse {
		kind = corev1.EventTypeWarning
	}
	return []happened{{Type: kind, Reason: is.Reason, Action: "Negotiate", Note: is.Message}}
}

// amended is the event of a Contract that has a later revision.
func amended(c *v1alpha1.Contract) []happened {
	return []happened{{corev1.EventTypeNormal, "Amended", "Sign", store.RevisionText(c)}}
}

// contractEvents returns the events between two statuses of a Contract.
func contractEvents(before, after *v1alpha1.Contract) []happened {
	if before.Status.Phase == after.Status.Phase {
		return nil
	}
	switch after.Status.Phase {
	case peering.PhaseActive.String():
		return []happened{{corev1.EventTypeNormal, "InForce", "Sign", fmt.Sprintf("signed by both: %s until %s",
			amountsText(after.Spec.Resources), after.Spec.NotAfter.UTC().Format("2006-01-02 15:04 MST"))}}
	case peering.PhaseDraining.String():
		return []happened{{corev1.EventTypeWarning, "Draining", "End", after.Status.Message}}
	case peering.PhaseClosed.String():
		return []happened{{corev1.EventTypeNormal, "Closed", "End", after.Status.Message}}
	}
	return nil
}
