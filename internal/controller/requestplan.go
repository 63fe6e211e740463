package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// conditionRenewed is the condition of a PeeringRequest that says whether its contract was renewed when that was
// last due.
const conditionRenewed = "Renewed"

// reasonContracted: the PeeringRequest is Accepted, as its contract is as it asks.
const reasonContracted = "Contracted"

// course is what to do for a PeeringRequest.
type course uint8

const (
	// courseKeep does nothing until something changes.
	courseKeep course = iota
	// courseAsk asks for a contract.
	courseAsk
	// courseAmend asks for the next revision, because the spec changed.
	courseAmend
	// courseRenew asks for the next revision, because the contract nears its end.
	courseRenew
)

// heldContract is the contract of a PeeringRequest.
type currentContract struct {
	stored *v1alpha1.Contract
	state  peering.Contract
	terms  peering.Terms
}

// requestPlan is what to do for a PeeringRequest.
type requestPlan struct {
	course course
	// accepted is the Accepted condition if nothing is asked.
	accepted metav1.Condition
	// renewal: the contract should be renewed now, whatever else is done.
	renewal bool
	// after is when to reconcile again; zero means when something changes.
	after time.Duration
}

// planRequest decides what to do for a PeeringRequest. h is its newest contract, or nil; peerGone means that the
// contract's ForeignCluster is deleted or being deleted; oldNode names a virtual node that has to be removed before
// another can be created.
func planRequest(s *v1alpha1.PeeringRequest, h *currentContract, peerGone bool, oldNode string, now time.Time) requestPlan {
	if h == nil {
		return requestPlan{course: courseAsk}
	}
	keep := func(status metav1.ConditionStatus, reason, format string, args ...any) requestPlan {
		return requestPlan{accepted: store.Condition(v1alpha1.ConditionAccepted, status, reason, fmt.Sprintf(format, args...))}
	}
	name, chooses := h.stored.Name, s.Spec.ClusterSelector != nil
	switch h.state.State {
	case peering.Closed:
		switch {
		case store.EndedByPeer(h.stored) && !chooses:
			return keep(metav1.ConditionFalse, store.ReasonEndedByProvider, "the provider ended contract %s; delete this PeeringRequest, and create another to ask again", name)
		case h.state.Reason == peering.EndedHere && chooses && !peerGone && !s.Excludes(h.stored.Spec.ForeignCluster):
			return keep(metav1.ConditionFalse, "EndedHere", "this cluster ended contract %s; delete this PeeringRequest, and create another to ask again", name)
		case h.state.Reason == peering.EndedByExpiry && s.Spec.Renewal == v1alpha1.RenewalNever:
			return keep(metav1.ConditionFalse, "Expired", "contract %s reached its end and spec.renewal is Never; delete this PeeringRequest, and create another to ask again", name)
		case oldNode != "":
			return keep(metav1.ConditionFalse, "RemovingNode", "contract %s is over and node %s is being taken down", name, oldNode)
		}
		return requestPlan{course: courseAsk}
	case peering.Draining:
		return keep(metav1.ConditionTrue, "Draining", "contract %s is ending: %s", name, h.state.Reason)
	case peering.Nothing, peering.Active:
	}
	if h.stored.Spec.Termination != "" {
		return keep(metav1.ConditionTrue, "Draining", "contract %s is ending", name)
	}
	plan := keep(metav1.ConditionTrue, reasonContracted, "contract %s was signed by both", name)
	if at := peering.RenewAt(h.state); s.Spec.Renewal != v1alpha1.RenewalNever && !at.IsZero() {
		plan.renewal, plan.after = !now.Before(at), max(at.Sub(now), 0)
	}
	switch {
	case store.Fulfils(h.stored).Generation != s.Generation:
		plan.course = courseAmend
	case plan.renewal && h.terms.Renewable:
		plan.course = courseRenew
	}
	return plan
}

// nextAsk returns what a PeeringRequest asks for the next revision of its contract.
func nextAsk(ask peering.Ask, s *v1alpha1.PeeringRequest, h *currentContract, why course, now time.Time) peering.Ask {
	ask.ContractID, ask.RequestID = h.stored.Name, h.terms.RequestID
	fulfils := store.Fulfils(h.stored)
	if why == courseRenew {
		// A renewal keeps the contract's amounts: an ask for all that is free would get whatever is free now, and a
		// changed spec was refused.
		if fulfils.Generation != s.Generation {
			ask.Resources, ask.Network, ask.RuntimeClasses, ask.StorageClasses = nil, h.terms.Network, h.terms.RuntimeClasses, nil
		}
	}
	ask.Resources = ask.Resources.KeepUnnamed(h.terms.Resources)
	// An amendment does not extend a contract whose renewal is off.
	if s.Spec.Renewal == v1alpha1.RenewalNever && ask.Duration == fulfils.Duration {
		ask.Duration = max(h.terms.NotAfter.Sub(market.BeginOf(now)), time.Second)
	}
	return ask
}

// sortContracts puts a request's contracts in order: first those that are not closed, then
// those that are over, each newest first.
func sortContracts(contracts []*v1alpha1.Contract) {
	slices.SortFunc(contracts, func(a, b *v1alpha1.Contract) int {
		if store.Closed(a) != store.Closed(b) {
			if !store.Closed(a) {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Spec.NotBefore.Compare(a.Spec.NotBefore.Time), cmp.Compare(a.Name, b.Name))
	})
}
