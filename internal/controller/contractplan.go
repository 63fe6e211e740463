package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/usage"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

// contractSnapshot is everything that decides about a contract, at one moment.
type contractSnapshot struct {
	// stored is the object. Its status is changed until it is written.
	stored *v1alpha1.Contract
	// contract and terms are what both sides signed, with the stored state. invalid is why the envelope does not
	// verify.
	contract peering.Contract
	terms    peering.Terms
	invalid  error
	// peer is nil once it is forgotten.
	peer *v1alpha1.ForeignCluster
	now  time.Time
	// doubt is why now cannot be relied on; empty if it can.
	doubt string
}

// contractStep is the action for a contract.
type contractStep int

const (
	// stepConverge makes what the contract requires.
	stepConverge contractStep = iota
	// stepPrune deletes old records: the contract is released, and kept only as a record of what it cost.
	stepPrune
	// stepReport reports an envelope that does not verify, so it binds neither side. The objects that it caused
	// stay until an administrator acts.
	stepReport
	// stepTakeDown removes such a contract once an administrator ended or deleted it.
	stepTakeDown
)

// contractPlan is what to do about a contract.
type contractPlan struct {
	step contractStep
	// contract is the contract after all events.
	contract peering.Contract
	// earlier is the contract if the peer reports an earlier end, nil otherwise: clocks drift, so the peer may
	// report another end each time, which is written as the budget allows.
	earlier *peering.Contract
	// askRevision: the peer has a later revision. askExists: the peer may not have the contract.
	askRevision, askExists bool
	// held: time would end it, or end its draining, by a clock that cannot be relied on.
	held bool
}

// planContract decides what to do about a contract.
func planContract(s *contractSnapshot) contractPlan {
	switch {
	case store.Released(s.stored):
		return contractPlan{step: stepPrune}
	case s.invalid != nil && (s.stored.Spec.Termination == v1alpha1.TerminateNow || !s.stored.DeletionTimestamp.IsZero()):
		return contractPlan{step: stepTakeDown}
	case s.invalid != nil:
		return contractPlan{step: stepReport}
	}
	report := reportOf(s.peer, s.stored.Name)
	plan := contractPlan{askRevision: report != nil && report.Revision > s.stored.Spec.Revision, askExists: doubtsProvider(s)}
	var events []peering.Event
	// A contract does not come back: one that a clock ended that was wrong for a moment would be lost for both.
	tick := peering.Tick{Now: s.now}
	if ticked, _ := s.contract.Apply(tick); ticked.State != s.contract.State && s.doubt != "" {
		plan.held = true
	} else {
		events = append(events, tick)
	}
	if end := asksForEnd(s); end != nil {
		events = append(events, end)
	}
	var e peering.PeerReported
	if report != nil {
		e = peering.PeerReported{Revision: uint64(max(report.Revision, 0)), Phase: peering.ParsePhase(report.Phase), Now: s.now}
		until := ownClock(s.peer, store.TimeOf(report.DrainUntil))
		if s.contract.State != peering.Draining {
			e.DrainUntil = until
		} else if !until.IsZero() && s.contract.DrainUntil.Sub(until) > drainSlack {
			earlier := e
			earlier.DrainUntil = until
			c := applyAll(s.contract, append(slices.Clone(events), earlier))
			plan.earlier = &c
		}
		events = append(events, e)
	}
	plan.contract = applyAll(s.contract, events)
	plan.held = plan.held && plan.contract.State == s.contract.State // else it ended for another reason
	return plan
}

// applyAll applies events to a contract. An event that is refused does not change it.
func applyAll(c peering.Contract, events []peering.Event) peering.Contract {
	for _, e := range events {
		c, _ = c.Apply(e)
	}
	return c
}

// asksForEnd returns the event by which an administrator here, or the peer by a call, asked to end a contract; nil
// if neither did.
func asksForEnd(s *contractSnapshot) peering.Event {
	c := s.contract
	switch how := s.stored.Spec.Termination; {
	case how == v1alpha1.TerminatePeer:
		return peering.PeerReported{Revision: c.Revision, Phase: peering.PhaseClosed, Now: s.now}
	case how == v1alpha1.TerminateNow, !s.stored.DeletionTimestamp.IsZero(), s.peer == nil:
		return peering.Terminate{By: c.Role, Mode: peering.Now, Now: s.now}
	case how == v1alpha1.TerminateDrain && c.Role == peering.Provider:
		return peering.Terminate{By: c.Role, Mode: peering.Drain, Now: s.now, Grace: c.Notice}
	case how == v1alpha1.TerminateDrain:
		return peering.Terminate{By: c.Role, Mode: peering.Drain, Now: s.now}
	}
	return nil
}

// doubtsProvider reports whether the provider of an unclosed contract may not have it, or only as one that is over:
// it forgot this cluster and was joined again, or was restored from a backup. A provider has a contract before its
// consumer does, so if its report leaves one out, this cluster asks, and the response is proof. The converse proves
// nothing: see Orphans.
func doubtsProvider(s *contractSnapshot) bool {
	return s.peer != nil && s.stored.Spec.Role == v1alpha1.ContractConsumer && !store.Closed(s.stored) && !endsNow(s.stored) &&
		reportOf(s.peer, s.stored.Name) == nil && meta.IsStatusConditionTrue(s.peer.Status.Conditions, v1alpha1.ConditionConnected) &&
		s.now.Sub(s.stored.CreationTimestamp.Time) >= orphanAge
}

// nodePlan is what to do about the virtual node of a contract.
type nodePlan struct {
	// contract is the contract after the node's events.
	contract                         peering.Contract
	ensure, acceptNew, evict, remove bool
	// again is when to reconcile the node again; 0 when something changes.
	again time.Duration
}

// planNode decides about the virtual node of a contract. left is how many pods the API server shows on it: the
// node's own count begins at zero after a restart.
func planNode(c peering.Contract, left int, now time.Time) nodePlan {
	wants := c.Desired()
	plan := nodePlan{ensure: wants.Node, acceptNew: wants.AcceptNew, evict: c.Evicts(now)}
	if c.State == peering.Draining && left == 0 {
		c, _ = c.Apply(peering.Drained{Now: now})
	}
	plan.contract, plan.remove = c, !c.Desired().Node
	switch {
	case plan.evict:
		plan.again = removalPoll
	case c.State == peering.Draining:
		plan.again = endingInterval
	}
	return plan
}

// requeueAfter is when to reconcile a contract again if nothing triggers it. Its use, the objects that it caused,
// and reports of its peer trigger one. Time does not, though it changes the contract's state, ends a period of its
// meter and adds to its use; nor do peers that did not respond.
func requeueAfter(c peering.Contract, meter *meter.Meter, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster, now time.Time) time.Duration {
	after := restInterval
	at := func(t time.Time) { after = min(after, max(t.Sub(now), removalPoll)) }
	if deadline := c.Deadline(now); !deadline.IsZero() {
		at(deadline)
	}
	if meter != nil && c.State != peering.Closed {
		at(meter.Since.Add(meter.Period))
		if usage := stored.Status.Usage; usage != nil && len(meter.Using) > 0 {
			at(usage.Until.Add(keepEvery))
		}
	}
	switch reported := reportOf(fc, stored.Name); {
	case c.Role != peering.Consumer && reported == nil, fc == nil:
	case reported == nil:
		after = min(after, endingInterval) // see doubtsProvider
	case reported.Revision > stored.Spec.Revision, c.Role == peering.Consumer && uint64(max(reported.StatementSequence, 0)) > usage.Last(stored).Sequence:
		after = min(after, fetchAgain)
	}
	return after
}

// laterRevision returns an error unless an envelope is a later revision of a contract. Unlike Apply it accepts a
// revision of a contract that is over: statements of its use may have the prices of that revision.
func laterRevision(stored *v1alpha1.Contract, envelope peering.Envelope, self peering.ClusterID) error {
	state, current, err := store.ReadContract(stored, self)
	if err != nil {
		return err
	}
	terms, err := envelope.Verify()
	if err != nil {
		return err
	}
	if terms.ContractID != current.ContractID || terms.RequestID != current.RequestID || terms.Consumer.ID != current.Consumer.ID || terms.Provider.ID != current.Provider.ID {
		return fmt.Errorf("it is of contract %s between %s and %s", terms.ContractID, terms.Consumer.ID, terms.Provider.ID)
	}
	if terms.Revision <= current.Revision {
		return fmt.Errorf("it is revision %d, and this cluster has revision %d", terms.Revision, current.Revision)
	}
	if terms.Revision == current.Revision+1 && terms.Previous != state.Hash {
		return fmt.Errorf("revision %d does not follow revision %d, which this cluster has", terms.Revision, current.Revision)
	}
	return nil
}

// reportOf returns the peer's last report of a contract, or nil.
func reportOf(fc *v1alpha1.ForeignCluster, contract string) *v1alpha1.PeerContract {
	if fc == nil {
		return nil
	}
	if i := slices.IndexFunc(fc.Status.Contracts, func(c v1alpha1.PeerContract) bool { return c.ID == contract }); i >= 0 {
		return &fc.Status.Contracts[i]
	}
	return nil
}

// ownClock converts a time of the peer's clock to this cluster's; zero while their skew is unknown.
func ownClock(fc *v1alpha1.ForeignCluster, t time.Time) time.Time {
	if t.IsZero() || fc == nil || fc.Status.Session == nil || fc.Status.Session.ClockSkew == nil {
		return time.Time{}
	}
	return t.Add(-fc.Status.Session.ClockSkew.Duration)
}

// knowsOfEnd reports whether the peer of a closed contract knows that it is closed, or need no longer be notified.
func knowsOfEnd(s *contractSnapshot, now time.Time) bool {
	if s.peer == nil || store.EndedByPeer(s.stored) || s.peer.Spec.Decision == v1alpha1.DecisionDenied || notWaitedFor(s.peer) {
		return true
	}
	if report := reportOf(s.peer, s.stored.Name); report != nil && peering.ParsePhase(report.Phase) == peering.PhaseClosed {
		return true
	}
	return s.stored.Status.ClosedAt != nil && now.Sub(s.stored.Status.ClosedAt.Time) > tombstone
}

// neededBy reports whether a PeeringRequest, which may be nil, still needs its closed contract: to report why it
// has none, or to know which provider not to ask again.
func neededBy(request *v1alpha1.PeeringRequest, stored *v1alpha1.Contract, closed time.Duration) bool {
	if request == nil || !request.DeletionTimestamp.IsZero() {
		return false
	}
	leaveOut := request.Spec.ClusterSelector != nil && store.EndedByPeer(stored) && closed < market.LeftOut
	return request.Status.Contract == stored.Name || request.Status.Contract == "" || leaveOut
}

// beyondMaxClosed returns the released contracts of a peer that exceed the limit: those that cost the least, so
// that many small ones do not displace a large one, and of equals the oldest.
func beyondMaxClosed(contracts []v1alpha1.Contract) []*v1alpha1.Contract {
	var over []*v1alpha1.Contract
	for i := range contracts {
		if c := &contracts[i]; store.Released(c) {
			over = append(over, c)
		}
	}
	if len(over) <= maxClosed {
		return nil
	}
	owed := make(map[string]peering.Decimal, len(over))
	for _, c := range over {
		owed[c.Name] = usage.Owed(c)
	}
	slices.SortFunc(over, func(a, b *v1alpha1.Contract) int {
		return cmp.Or(owed[a.Name].Cmp(owed[b.Name]), store.TimeOf(a.Status.ClosedAt).Compare(store.TimeOf(b.Status.ClosedAt)), cmp.Compare(a.Name, b.Name))
	})
	return over[:len(over)-maxClosed]
}
