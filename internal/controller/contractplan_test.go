package controller

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

func TestPlanContractAppliesAllThatHappened(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	reports := func(phase string, revision int64, drainUntil time.Time) func(*contractSnapshot) {
		return func(s *contractSnapshot) {
			r := v1alpha1.PeerContract{ID: "c-1", Revision: revision, Phase: phase}
			if !drainUntil.IsZero() {
				r.DrainUntil = &metav1.Time{Time: drainUntil}
			}
			s.peer.Status.Contracts = []v1alpha1.PeerContract{r}
		}
	}
	ends := func(how v1alpha1.Termination) func(*contractSnapshot) {
		return func(s *contractSnapshot) { s.stored.Spec.Termination = how }
	}
	drains := func(until time.Time) func(*contractSnapshot) {
		return func(s *contractSnapshot) {
			s.contract.State, s.contract.Reason, s.contract.DrainUntil = peering.Draining, peering.EndedByPeer, until
		}
	}
	type want struct {
		step             contractStep
		state            peering.State
		reason           peering.EndReason
		until            time.Time
		earlier          time.Time
		askRevision, ask bool
	}
	soon := now.Add(5 * time.Minute)
	active := want{state: peering.Active}
	for name, tc := range map[string]struct {
		provider bool
		edit     []func(*contractSnapshot)
		want     want
	}{
		"nothing happened": {edit: []func(*contractSnapshot){reports("Active", 1, time.Time{})}, want: active},
		"it is released": {edit: []func(*contractSnapshot){func(s *contractSnapshot) {
			s.stored.Status.Phase, s.stored.Finalizers = peering.PhaseClosed.String(), nil
		}}, want: want{step: stepPrune}},
		"this cluster did not sign it": {edit: []func(*contractSnapshot){func(s *contractSnapshot) { s.invalid = errors.New("no") }}, want: want{step: stepReport}},
		"this cluster did not sign it, and it is deleted": {edit: []func(*contractSnapshot){func(s *contractSnapshot) {
			s.invalid, s.stored.DeletionTimestamp = errors.New("no"), &metav1.Time{Time: now}
		}}, want: want{step: stepTakeDown}},
		"this cluster did not sign it, and it is ended":    {edit: []func(*contractSnapshot){ends(v1alpha1.TerminateNow), func(s *contractSnapshot) { s.invalid = errors.New("no") }}, want: want{step: stepTakeDown}},
		"this cluster did not sign it, and a peer ends it": {edit: []func(*contractSnapshot){ends(v1alpha1.TerminatePeer), func(s *contractSnapshot) { s.invalid = errors.New("no") }}, want: want{step: stepReport}},
		"it reached its end":                               {edit: []func(*contractSnapshot){reports("Active", 1, time.Time{}), func(s *contractSnapshot) { s.now = s.contract.NotAfter }}, want: want{state: peering.Draining, reason: peering.EndedByExpiry}},
		"the peer ended it by a call":                      {edit: []func(*contractSnapshot){ends(v1alpha1.TerminatePeer)}, want: want{state: peering.Closed, reason: peering.EndedByPeer}},
		"an administrator ended it":                        {provider: true, edit: []func(*contractSnapshot){ends(v1alpha1.TerminateNow)}, want: want{state: peering.Closed, reason: peering.EndedHere}},
		"an administrator drains it":                       {provider: true, edit: []func(*contractSnapshot){ends(v1alpha1.TerminateDrain)}, want: want{state: peering.Draining, reason: peering.EndedHere, until: now.Add(10 * time.Minute)}},
		"it was deleted":                                   {provider: true, edit: []func(*contractSnapshot){func(s *contractSnapshot) { s.stored.DeletionTimestamp = &metav1.Time{Time: now} }}, want: want{state: peering.Closed, reason: peering.EndedHere}},
		"its peer was forgotten":                           {provider: true, edit: []func(*contractSnapshot){func(s *contractSnapshot) { s.peer = nil }}, want: want{state: peering.Closed, reason: peering.EndedHere}},
		"the peer reports that it drains":                  {edit: []func(*contractSnapshot){reports("Draining", 1, soon)}, want: want{state: peering.Draining, reason: peering.EndedByPeer, until: soon}},
		"the peer reports the same again":                  {edit: []func(*contractSnapshot){drains(soon), reports("Draining", 1, soon.Add(-drainSlack))}, want: want{state: peering.Draining, reason: peering.EndedByPeer, until: soon}},
		"the peer reports an earlier end":                  {edit: []func(*contractSnapshot){drains(soon), reports("Draining", 1, soon.Add(-time.Minute))}, want: want{state: peering.Draining, reason: peering.EndedByPeer, until: soon, earlier: soon.Add(-time.Minute)}},
		"the peer reports a later one":                     {edit: []func(*contractSnapshot){drains(soon), reports("Draining", 1, soon.Add(time.Minute))}, want: want{state: peering.Draining, reason: peering.EndedByPeer, until: soon}},
		"the peer has a later revision":                    {edit: []func(*contractSnapshot){reports("Active", 2, time.Time{})}, want: want{state: peering.Active, askRevision: true}},
		"the provider leaves it out":                       {want: want{state: peering.Active, ask: true}},
		"the provider is away":                             {edit: []func(*contractSnapshot){func(s *contractSnapshot) { s.peer.Status.Conditions = nil }}, want: active},
		"it was signed just now":                           {edit: []func(*contractSnapshot){func(s *contractSnapshot) { s.stored.CreationTimestamp = metav1.NewTime(now.Add(1 - orphanAge)) }}, want: active},
		"the consumer leaves it out":                       {provider: true, want: active},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			self, other := p.consumer, p.provider
			if tc.provider {
				self, other = p.provider, p.consumer
			}
			s := snapshotOf(t, p, self, other)
			for _, edit := range tc.edit {
				edit(s)
			}
			plan := planContract(s)
			got := want{step: plan.step, askRevision: plan.askRevision, ask: plan.askExists}
			if plan.step == stepConverge {
				got.state, got.reason = plan.contract.State, plan.contract.Reason
			}
			if got.state == peering.Draining && got.reason != peering.EndedByExpiry && !tc.want.until.IsZero() {
				got.until = plan.contract.DrainUntil
			}
			if plan.earlier != nil {
				got.earlier = plan.earlier.DrainUntil
			}
			if !got.until.Equal(tc.want.until) || !got.earlier.Equal(tc.want.earlier) {
				t.Errorf("until %s or %s, want %s or %s", got.until, got.earlier, tc.want.until, tc.want.earlier)
			}
			got.until, got.earlier = tc.want.until, tc.want.earlier
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// snapshotOf is a contract in force a while after it was signed, with a session.
func snapshotOf(t *testing.T, p parties, self, other *identity.Identity) *contractSnapshot {
	t.Helper()
	s := &contractSnapshot{stored: p.stored(t, p.terms(t, nil), self), peer: foreign("peer", other), now: now}
	s.stored.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	s.contract, s.terms, s.invalid = store.ReadContract(s.stored, self.ID())
	if s.invalid != nil {
		t.Fatal(s.invalid)
	}
	return s
}

func TestPlanNodeEvictsAndRemoves(t *testing.T) {
	t.Parallel()
	active := peering.Contract{State: peering.Active, Role: peering.Consumer, NotAfter: now.Add(time.Hour)}
	ending := active
	ending.State, ending.Reason, ending.DrainUntil = peering.Draining, peering.EndedHere, now.Add(time.Hour)
	noticed := ending
	noticed.Reason, noticed.Notice, noticed.DrainUntil = peering.EndedByPeer, time.Hour, now.Add(50*time.Minute)
	leaving := noticed
	leaving.DrainUntil = now.Add(30 * time.Minute)
	over := active
	over.State = peering.Closed
	type want struct {
		ensure, acceptNew, evict, remove bool
		again                            time.Duration
	}
	for name, tc := range map[string]struct {
		contract peering.Contract
		left     int
		want     want
	}{
		"in force":                            {active, 3, want{ensure: true, acceptNew: true}},
		"in force, and empty":                 {active, 0, want{ensure: true, acceptNew: true}},
		"ended here":                          {ending, 3, want{ensure: true, evict: true, again: removalPoll}},
		"ended here, and empty":               {ending, 0, want{ensure: true, evict: true, remove: true, again: removalPoll}},
		"in the first half of a notice":       {noticed, 3, want{ensure: true, again: endingInterval}},
		"in the first half of one, and empty": {noticed, 0, want{ensure: true, remove: true}},
		"in the second half of one":           {leaving, 3, want{ensure: true, evict: true, again: removalPoll}},
		"over":                                {over, 0, want{remove: true}},
	} {
		p := planNode(tc.contract, tc.left, now)
		if got := (want{p.ensure, p.acceptNew, p.evict, p.remove, p.again}); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
		if (p.contract.State == peering.Closed) != tc.want.remove {
			t.Errorf("%s: then it is %v", name, p.contract.State)
		}
	}
}

func TestContractIsKeptForItsPeerAndItsRequest(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	for name, tc := range map[string]struct {
		edit func(*contractSnapshot)
		want bool
	}{
		"it does not know": {func(*contractSnapshot) {}, false},
		"it ended it":      {func(s *contractSnapshot) { s.stored.Status.Reason = peering.EndedByPeer.Name() }, true},
		"it is forgotten":  {func(s *contractSnapshot) { s.peer = nil }, true},
		"it is denied":     {func(s *contractSnapshot) { s.peer.Spec.Decision = v1alpha1.DecisionDenied }, true},
		"it reports it as closed": {func(s *contractSnapshot) {
			s.peer.Status.Contracts = []v1alpha1.PeerContract{{ID: "c-1", Phase: "Closed"}}
		}, true},
		"it reports it as in force": {func(s *contractSnapshot) {
			s.peer.Status.Contracts = []v1alpha1.PeerContract{{ID: "c-1", Phase: "Active"}}
		}, false},
		"it was away for a week": {func(s *contractSnapshot) { s.stored.Status.ClosedAt = &metav1.Time{Time: now.Add(-tombstone - 1)} }, true},
		"it was away for less":   {func(s *contractSnapshot) { s.stored.Status.ClosedAt = &metav1.Time{Time: now.Add(-tombstone)} }, false},
	} {
		s := snapshotOf(t, p, p.provider, p.consumer)
		if tc.edit(s); knowsOfEnd(s, now) != tc.want {
			t.Errorf("%s: %t, want %t", name, !tc.want, tc.want)
		}
	}
	stored := &v1alpha1.Contract{}
	stored.Name, stored.Status.Reason = "c-1", peering.EndedByPeer.Name()
	request := func(contract string, chooses bool) *v1alpha1.PeeringRequest {
		r := &v1alpha1.PeeringRequest{}
		if r.Status.Contract = contract; chooses {
			r.Spec.ClusterSelector = &metav1.LabelSelector{}
		}
		return r
	}
	deleted := request("c-1", false)
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	for name, tc := range map[string]struct {
		request *v1alpha1.PeeringRequest
		closed  time.Duration
		want    bool
	}{
		"none":                           {nil, 0, false},
		"its own":                        {request("c-1", false), market.LeftOut, true},
		"one without a contract":         {request("", false), market.LeftOut, true},
		"one that has another":           {request("c-2", false), 0, false},
		"one that chooses, a moment ago": {request("c-2", true), market.LeftOut - 1, true},
		"one that chooses, a while ago":  {request("c-2", true), market.LeftOut, false},
		"its own, which is deleted":      {deleted, 0, false},
	} {
		if got := neededBy(tc.request, stored, tc.closed); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
