package refusals

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

func TestRefusalsThatPassAreShownOnlyIfTheyLast(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		kind   peering.Kind
		why    peering.Refusal
		passes bool
	}{
		"its agent has no rights yet":            {kind: peering.KindService, why: peering.Refusal{Reason: peering.RefusedInternal, Retryable: true}, passes: true},
		"that of a namespace":                    {kind: peering.KindNamespace, why: peering.Refusal{Reason: peering.RefusedInternal, Retryable: true}, passes: true},
		"the namespace is not here yet":          {kind: peering.KindClaim, why: peering.Refusal{Reason: peering.RefusedNamespace, Retryable: true}, passes: true},
		"the namespace is not accepted":          {kind: peering.KindNamespace, why: peering.Refusal{Reason: peering.RefusedNamespace, Retryable: true}},
		"there is no room, which may change":     {kind: peering.KindClaim, why: peering.Refusal{Reason: peering.RefusedQuota, Retryable: true}},
		"an internal error that does not change": {kind: peering.KindPod, why: peering.Refusal{Reason: peering.RefusedInternal}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s Shown
			for _, step := range []struct {
				after time.Duration
				why   *peering.Refusal
				shown bool
				news  bool
			}{
				{why: &test.why, shown: !test.passes, news: !test.passes},
				{after: Passes - 1, why: &test.why, shown: !test.passes},
				{after: Passes, why: &test.why, shown: true, news: test.passes},
				{after: Passes + 1, why: &test.why, shown: true},
				{after: Passes + 2},
				{after: 2 * Passes, why: &test.why, shown: !test.passes, news: !test.passes},
			} {
				if news := s.Set(test.kind, step.why, now.Add(step.after)); news != step.news || (s.Why() != nil) != step.shown {
					t.Errorf("after %s: shown is %v, news %t; want %t, %t", step.after, s.Why(), news, step.shown, step.news)
				}
			}
		})
	}
}
