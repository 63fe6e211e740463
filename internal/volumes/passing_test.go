package volumes

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/entente-dev/entente/internal/refusals"
	"github.com/entente-dev/entente/peering"
)

// The provider's agent has no rights in a namespace for the first seconds after it was offloaded, or does not have it yet.
func TestARefusalOfANewClaimThatPassesSoonIsNotShown(t *testing.T) {
	for name, refusal := range map[string]*peering.Refusal{
		"its agent has no rights yet":   {Reason: peering.RefusedInternal, Message: "its agent may not write it", Retryable: true},
		"the namespace is not here yet": {Reason: peering.RefusedNamespace, Message: "the namespace is not here yet", Retryable: true},
	} {
		for _, lasts := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t, asks("entente", "office.entente.dev"))
					s.reconcile(t)
					for range 3 {
						s.answer(refusal)
						s.reconcile(t)
						time.Sleep(2 * time.Second)
					}
					if events := s.recorded(); events != "" {
						t.Errorf("there are events: %s", events)
					}
					if lasts {
						time.Sleep(refusals.Passes)
						s.answer(refusal)
						s.reconcile(t)
						if events := s.recorded(); !strings.Contains(events, "Warning "+reasonFailed) || !strings.Contains(events, refusal.Message) {
							t.Errorf("the events are %q, want %q", events, refusal.Message)
						}
					}
					s.answer(nil)
					s.reconcile(t)
					if events := s.recorded(); s.volume(t) == nil || strings.Contains(events, "Warning") {
						t.Errorf("the volume is %v, the events are %q", s.volume(t), events)
					}
				})
			})
		}
	}
}
