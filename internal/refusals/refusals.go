// Package refusals decides which of a provider's refusals users see.
package refusals

import (
	"time"

	"github.com/entente-dev/entente/peering"
)

// Shown is what users see of a provider's refusals of an object. For a moment after a namespace is offloaded again the
// provider's agent has no rights in it, or does not have it yet: refusals that such a moment explains are shown
// only if they last.
type Shown struct {
	since time.Time // zero if it is not refused
	why   *peering.Refusal
}

// Set records why an object is refused; nil if it is not. It reports whether there is something new to show.
func (s *Shown) Set(kind peering.Kind, why *peering.Refusal, now time.Time) (news bool) {
	if why == nil {
		*s = Shown{}
		return false
	}
	if s.since.IsZero() {
		s.since = now
	}
	if passes(kind, why) && now.Sub(s.since) < Passes {
		s.why = nil
		return false
	}
	news = s.why == nil || *s.why != *why
	s.why = why
	return news
}

// Why returns the refusal to show, or nil.
func (s *Shown) Why() *peering.Refusal { return s.why }

// passes reports whether a refusal mostly passes by itself. A namespace's own reason is about the namespace, that of
// what is in it only says that it follows the namespace.
func passes(kind peering.Kind, why *peering.Refusal) bool {
	return why.Retryable && (why.Reason == peering.RefusedInternal || why.Reason == peering.RefusedNamespace && kind != peering.KindNamespace)
}
