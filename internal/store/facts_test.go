package store

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func TestNothingNewIsTakenOnceAnEndWasAskedFor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		phase           string
		termination     v1alpha1.Termination
		deleted         bool
		accepts, closed bool
	}{
		"just signed":                 {accepts: true},
		"in force":                    {phase: "Active", accepts: true},
		"to drain":                    {phase: "Active", termination: v1alpha1.TerminateDrain},
		"to end at once":              {phase: "Active", termination: v1alpha1.TerminateNow},
		"ended by a call of the peer": {phase: "Active", termination: v1alpha1.TerminatePeer},
		"just signed, and deleted":    {deleted: true},
		"deleted":                     {phase: "Active", deleted: true},
		"draining":                    {phase: "Draining"},
		"closed":                      {phase: "Closed", closed: true},
	} {
		c := &v1alpha1.Contract{}
		c.Status.Phase, c.Spec.Termination = tc.phase, tc.termination
		if tc.deleted {
			c.DeletionTimestamp = new(metav1.Now())
		}
		contract := peering.Contract{State: peering.ParsePhase(tc.phase).State()}
		if got := AcceptsNew(c, contract); got != tc.accepts {
			t.Errorf("%s: accepts new work: %t", name, got)
		}
		if got := Closed(c); got != tc.closed {
			t.Errorf("%s: closed: %t", name, got)
		}
	}
}
