package vk

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
)

// Budget bounds what providers make an agent write to its own API server: statuses
// of pods and events. What home itself causes comes first: each pod brings the
// writes and events with which it starts, and the last status of a pod is always
// written. For everything beyond that each node has its own share, so that a
// provider that writes without end delays only what it says itself. All shares
// together never exceed the budget. It is safe for concurrent use.
//
// Unlike internal/budget, which tells who has to wait to ask again, it lines up:
// thousands of pods that change at once each reserve a moment.
type Budget struct {
	mu     sync.Mutex
	shares map[*share]struct{}
}

// NewBudget returns the budget of one agent, for all of its nodes.
func NewBudget() *Budget { return &Budget{shares: map[*share]struct{}{}} }

// MostWritten is how many bytes all nodes write at most in any time, but for what each
// pod brings with it.
func MostWritten(d time.Duration) float64 { return maxWriteBytesBurst + maxWriteBytes*d.Seconds() }

// share is one node's part of a budget.
type share struct {
	// urgent is for changes of phase and readiness, ordinary for all other statuses.
	urgent, ordinary writeLimit
	events           *rate.Limiter
}

// writeLimit bounds writes by number and by size.
type writeLimit struct{ writes, bytes *rate.Limiter }

func newShare() *share {
	l := func() *rate.Limiter { return rate.NewLimiter(0, 0) }
	s := &share{urgent: writeLimit{l(), l()}, ordinary: writeLimit{l(), l()}, events: l()}
	s.resize(1)
	return s
}

// join adds a share, leave takes it away. The others change with it.
func (b *Budget) join(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares[s] = struct{}{}
	b.resize()
}

func (b *Budget) leave(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.shares, s)
	b.resize()
}

func (b *Budget) resize() {
	for s := range b.shares {
		s.resize(len(b.shares))
	}
}

// resize makes a share one of n.
func (s *share) resize(n int) {
	set := func(l *rate.Limiter, perNode, inAll, burstPerNode, burstInAll float64) {
		now := time.Now()
		l.SetBurstAt(now, max(int(min(burstPerNode, burstInAll/float64(n))), 1))
		l.SetLimitAt(now, rate.Limit(min(perNode, inAll/float64(n))))
	}
	for _, l := range []writeLimit{s.urgent, s.ordinary} { // half of the share each
		set(l.writes, maxNodeWrites/2, maxWrites/2, maxNodeWritesBurst/2, maxWritesBurst/2)
		set(l.bytes, maxNodeWriteBytes/2, maxWriteBytes/2, maxNodeWriteBytesBurst/2, maxWriteBytesBurst/2)
	}
	set(s.events, maxNodeEvents, maxEvents, maxNodeEventsBurst, maxEventsBurst)
}

// at reserves a write of so many bytes and returns when it may be made.
func (l writeLimit) at(now time.Time, size int) time.Time {
	wait := l.writes.ReserveN(now, 1).DelayFrom(now)
	if d := l.bytes.ReserveN(now, min(size, l.bytes.Burst())).DelayFrom(now); d > wait {
		wait = d
	}
	return now.Add(min(wait, math.MaxInt64/2))
}

// writes is what one pod may still have written. The zero value is that of a pod
// that crosses now.
type writes struct {
	statuses, events int // how many were made of those that the pod brings
	ephemeral        int // how many containers home added since, each of which brings more
	pace             *rate.Limiter
	slot             time.Time // when the status may be written next, zero if nobody asked
	urgent           bool      // what the slot was reserved as
}

// wait says how long a status has to wait for its turn: 0 takes the turn. The
// status that is written then is the latest, whatever came meanwhile.
func (w *writes) wait(now time.Time, s *share, size int, urgent bool) time.Duration {
	if w.slot.IsZero() || now.Before(w.slot) && (w.brought() || urgent && !w.urgent) {
		w.slot, w.urgent = w.reserve(now, s, size, urgent), urgent
	}
	if now.Before(w.slot) {
		return w.slot.Sub(now)
	}
	w.slot = time.Time{}
	return 0
}

// brought says whether there is a status left of those that the pod brings.
func (w *writes) brought() bool {
	return w.statuses < maxFirstStatuses+maxEphemeralStatuses*w.ephemeral
}

func (w *writes) reserve(now time.Time, s *share, size int, urgent bool) time.Time {
	if w.brought() {
		w.statuses++
		return now
	}
	if w.pace == nil {
		w.pace = rate.NewLimiter(rate.Every(podPace), 1)
	}
	l := s.ordinary
	if urgent {
		l = s.urgent
	}
	at, paced := l.at(now, size), now.Add(w.pace.ReserveN(now, 1).DelayFrom(now))
	if paced.After(at) {
		return paced
	}
	return at
}

// event says whether an event about the pod may be written.
func (w *writes) event(now time.Time, s *share) bool {
	if w.events < maxFirstEvents {
		w.events++
		return true
	}
	return s.events.AllowN(now, 1)
}

// urgentChange says whether a status changes what others at home act on: the phase,
// or a condition of those that decide about readiness and placement.
func urgentChange(was, is *corev1.PodStatus) bool {
	if was.Phase != is.Phase || was.PodIP != is.PodIP {
		return true
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, ConditionOffloaded} {
		a, b := findCondition(was.Conditions, t), findCondition(is.Conditions, t)
		if (a == nil) != (b == nil) || a != nil && a.Status != b.Status {
			return true
		}
	}
	return false
}

// writtenBytes is what a pod with a status takes in the API server's store.
func writtenBytes(pod *corev1.Pod, status *corev1.PodStatus) int {
	return pod.Size() - pod.Status.Size() + status.Size() + managedFieldsBytes
}
