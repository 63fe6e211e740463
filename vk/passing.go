package vk

import (
	"time"

	"github.com/entente-dev/entente/peering"
)

// refused is what users see of a provider's refusals of an object. For a moment after a namespace is offloaded again the
// provider's agent has no rights in it, or does not have it yet: refusals that such a moment explains are shown
// only if they last.
type refused struct {
	since time.Time // zero if it is not refused
	shown *peering.Refusal
}

// set records why an object is refused; nil if it is not. It reports whether there is something new to show.
func (r *refused) set(kind peering.Kind, why *peering.Refusal, now time.Time) (news bool) {
	if why == nil {
		*r = refused{}
		return false
	}
	if r.since.IsZero() {
		r.since = now
	}
	if passes(kind, why) && now.Sub(r.since) < refusalPasses {
		r.shown = nil
		return false
	}
	news = r.shown == nil || *r.shown != *why
	r.shown = why
	return news
}

// passes reports whether a refusal mostly passes by itself. A namespace's own reason is about the namespace, that of
// what is in it only says that it follows the namespace.
func passes(kind peering.Kind, why *peering.Refusal) bool {
	return why.Retryable && (why.Reason == peering.RefusedInternal || why.Reason == peering.RefusedNamespace && kind != peering.KindNamespace)
}
