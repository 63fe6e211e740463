package fencing

import "time"

// Home is a consumer's half of the fences with one provider: one for each namespace that is offloaded there. It is
// not safe for concurrent use.
type Home struct {
	origin time.Time // of this process's clock
	wait   Wait
	terms  map[string]*homeTerm // by namespace
}

// homeTerm is the fence of a namespace.
type homeTerm struct {
	Term
	asked Ticks
	// taken: the provider accepted the namespace with its current fence. A provider that does not support fences
	// does so, too, but never asks whether this cluster is there.
	taken bool
	// answered: the provider agreed to what it was asked for last, in this process.
	answered bool
}

// NewHome returns the half of a process that begins now.
func NewHome() Home { return Home{origin: time.Now(), terms: map[string]*homeTerm{}} }

// now is the time on a clock that only goes forward; it may stop while this machine sleeps.
func (h *Home) now() Ticks { return time.Since(h.origin) }

// Ask records which fence a namespace is about to be asked for; before is what was agreed with an earlier process.
func (h *Home) Ask(namespace string, fence, before Ticks) {
	t := h.terms[namespace]
	if t == nil {
		t = &homeTerm{Term: NewTerm(before), asked: before}
		h.terms[namespace] = t
	}
	if fence != t.asked {
		t.Ask(fence)
		t.asked, t.taken, t.answered = fence, false, false
	}
}

// Took records that the provider accepted a namespace with the fence that was asked last.
func (h *Home) Took(namespace string) {
	if t := h.terms[namespace]; t != nil {
		t.taken = true
	}
}

// Asked records that the provider asks whether this cluster is there, and is about to be answered. It asks only
// about namespaces with a fence, so it agreed to what it accepted.
func (h *Home) Asked() {
	h.wait.Answers(h.now())
	for _, t := range h.terms {
		if t.taken {
			t.Agree()
			t.answered = true
		}
	}
}

// Counts returns the fence of a namespace that the provider keeps to; 0 means none.
func (h *Home) Counts(namespace string) time.Duration {
	if t := h.terms[namespace]; t != nil {
		fence, _ := t.Counts()
		return fence
	}
	return 0
}

// Answered reports whether the fence on which home counts for a namespace is the one to which the provider agreed
// last: it may have been asked for another since, by this process or an earlier one.
func (h *Home) Answered(namespace string) bool {
	t := h.terms[namespace]
	return t != nil && t.answered
}

// Stopped reports whether a pod that is gone, and that the provider accepted that long ago, may have been stopped
// under the fence of its namespace: not before its consumer was silent for long enough.
func (h *Home) Stopped(namespace string, taken time.Duration) bool {
	fence := h.Counts(namespace)
	return fence > 0 && taken >= fence-stopsEarly
}

// Over returns how long until the provider has stopped the pods of a namespace; false if it never does.
func (h *Home) Over(namespace string) (time.Duration, bool) {
	fence := h.Counts(namespace)
	return h.wait.Over(fence) - h.now(), fence > 0
}

// AskFor returns which fence to ask a provider for, if a namespace wants one and written is the recorded agreement.
// An agreement changes only after its record did: a later process counts on the record, and must never count on
// less than the provider keeps to.
func AskFor(want, written Ticks) Ticks {
	if written > 0 && (want == 0 || want > written) {
		return written
	}
	return want
}
