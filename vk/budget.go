package vk

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/internal/budget"
)

// Budget bounds what providers make an agent write to its own API server: statuses of pods and
// events. Writes that home itself causes come first: each pod adds the writes and events with which
// it starts, and the last status of a pod is always written. Everything else counts against the
// share of its node, so that a provider that writes without end delays only its own statuses. What
// a node leaves of its share, the others may use. It is safe for concurrent use.
type Budget struct {
	mu sync.Mutex
	// urgent is for changes of phase and readiness, ordinary for all other statuses,
	// both in bytes.
	urgent, ordinary, events *budget.Budget[*share]
}

// Writes bounds the bytes that providers make the agent write, except for those that each pod adds.
// Half of them are for urgent statuses.
func Writes() budget.Limits {
	return budget.Limits{Burst: maxWriteBytesBurst, Rate: maxWriteBytes, UserBurst: maxNodeWriteBytesBurst, UserRate: maxNodeWriteBytes}
}

// NewBudget returns the budget of one agent, for all of its nodes.
func NewBudget() *Budget {
	all := Writes()
	half := budget.Limits{Burst: all.Burst / 2, Rate: all.Rate / 2, UserBurst: all.UserBurst / 2, UserRate: all.UserRate / 2}
	return &Budget{
		urgent: budget.New[*share](half), ordinary: budget.New[*share](half),
		events: budget.New[*share](budget.Limits{
			Burst: maxEventsBurst, Rate: maxEvents, UserBurst: maxNodeEventsBurst, UserRate: maxNodeEvents,
		}),
	}
}

// share is one node's part of a budget. Its limits queue the writes that wait, so that thousands of
// pods that change at once do not all retry at the same time.
type share struct {
	of               *Budget
	urgent, ordinary writeLimit
}

// writeLimit bounds writes by number and by size.
type writeLimit struct{ writes, bytes *rate.Limiter }

func newShare(of *Budget) *share {
	l := func() writeLimit { // half of what the node may write
		return writeLimit{
			rate.NewLimiter(maxNodeWrites/2, maxNodeWritesBurst/2),
			rate.NewLimiter(maxNodeWriteBytes/2, maxNodeWriteBytesBurst/2),
		}
	}
	return &share{of: of, urgent: l(), ordinary: l()}
}

// at queues a write of size bytes, and returns when to try it.
func (s *share) at(now time.Time, size int, urgent bool) time.Time {
	l := s.ordinary
	if urgent {
		l = s.urgent
	}
	wait := l.writes.ReserveN(now, 1).DelayFrom(now)
	if d := l.bytes.ReserveN(now, min(size, l.bytes.Burst())).DelayFrom(now); d > wait {
		wait = d
	}
	return now.Add(min(wait, math.MaxInt64/2))
}

// take takes a write of size bytes from the budget of all nodes and returns 0, or about how long
// the write has to wait for room.
func (s *share) take(now time.Time, size int, urgent bool) time.Duration {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if urgent {
		return s.of.urgent.Take(now, s, float64(size))
	}
	return s.of.ordinary.Take(now, s, float64(size))
}

// writes counts what was written of one pod. The zero value is for a pod that is about to be sent.
type writes struct {
	statuses, events int       // how many of the pod's own were made
	ephemeral        int       // how many containers home added since; each adds to the pod's own
	next             time.Time // before which no ordinary status is written
	flips            time.Time // when all of maxFlips can be used again
	slot             time.Time // when the status may be written next; zero if none waits
	urgent           bool      // what the slot was reserved as
	gathered         time.Time // when statuses of a pod that does not run yet stop being gathered; zero if none is
}

// gather returns how long a status waits for those that may follow within moments: 0 for not at
// all.
func (w *writes) gather(now time.Time, was, is *corev1.PodStatus) time.Duration {
	if was.Phase != corev1.PodPending && was.Phase != "" || is.Phase != corev1.PodPending {
		return 0
	}
	if w.gathered.IsZero() {
		w.gathered = now.Add(startGather)
	}
	if now.Before(w.gathered) {
		return w.gathered.Sub(now)
	}
	w.gathered = time.Time{}
	return 0
}

// wait returns how long a status still has to wait; at 0 it may be written, and counts as written.
// The status written in the end is always the latest one.
func (w *writes) wait(now time.Time, s *share, size int, urgent bool) time.Duration {
	if w.brought() && (w.slot.IsZero() || now.Before(w.slot)) {
		w.statuses++
		w.slot = time.Time{}
		return 0
	}
	switch {
	case w.slot.IsZero():
		w.slot, w.urgent = w.reserve(now, s, size, urgent), urgent
	case urgent && !w.urgent: // even if its slot has come: the ordinary budget may be used up
		if at := w.reserve(now, s, size, urgent); at.Before(w.slot) {
			w.slot = at
		}
		w.urgent = true
	}
	if now.Before(w.slot) {
		return w.slot.Sub(now)
	}
	if d := s.take(now, size, w.urgent); d > 0 {
		// Other nodes have used up the budget.
		w.slot = now.Add(d)
		if at := s.at(now, size, w.urgent); at.After(w.slot) {
			w.slot = at
		}
		return w.slot.Sub(now)
	}
	w.written(now)
	return 0
}

// written counts a write beyond the pod's own.
func (w *writes) written(now time.Time) {
	if w.urgent {
		w.flips = later(w.flips, now).Add(flipPace)
	}
	w.next, w.slot = now.Add(podPace), time.Time{}
}

// brought reports whether any of the pod's own statuses is left.
func (w *writes) brought() bool {
	return w.statuses < maxFirstStatuses+maxEphemeralStatuses*w.ephemeral
}

// reserve queues a status in the node's share, and returns the first time that both the share and
// the pod's own pace allow. Only statuses that were written count for the pace.
func (w *writes) reserve(now time.Time, s *share, size int, urgent bool) time.Time {
	paced := w.next
	if urgent {
		paced = w.flips.Add(-(maxFlips - 1) * flipPace)
	}
	return later(s.at(now, size, urgent), paced)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// event reports whether an event about the pod may be written.
func (w *writes) event(now time.Time, s *share) bool {
	if w.events < maxFirstEvents {
		w.events++
		return true
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.of.events.Take(now, s, 1) == 0
}

// writtenBytes is what a pod with a status takes in the API server's store.
func writtenBytes(pod *corev1.Pod, status *corev1.PodStatus) int {
	return pod.Size() - pod.Status.Size() + status.Size() + managedFieldsBytes
}
