// Package podwatch notifies the watches of a contract's pods, at their provider, which of them changed.
package podwatch

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// Hub notifies the watches of a contract which of its pods changed.
type Hub struct {
	now     func() time.Time
	outline func(status []byte) []byte

	mu   sync.Mutex
	subs map[*Watch]struct{}
	// left has the recently deleted pods by contract. A consumer gets the list of what it has here
	// before its watch begins, and pods may be deleted in between.
	left map[string][]leftPod
}

// leftPod is a pod that was deleted here.
type leftPod struct {
	peering.PodStatus
	at       time.Time
	outlined bool
}

// Watch is one watch of a contract.
type Watch struct {
	contract string
	// Event is called with each event of a pod of the contract.
	Event func(peering.PodEvent)

	mu    sync.Mutex
	dirty map[types.NamespacedName]struct{}
	gone  []peering.PodStatus
	// Wake has a value while there is something to take.
	Wake notify.Channel
	// Over has a value once the watch is to end.
	Over notify.Channel
}

// New returns a Hub without watches. outline shortens the last statuses of pods for which there is
// no room.
func New(outline func(status []byte) []byte) *Hub {
	return &Hub{now: time.Now, outline: outline, subs: make(map[*Watch]struct{}), left: make(map[string][]leftPod)}
}

// Subscribe begins to watch a contract, until leave is called.
func (h *Hub) Subscribe(contract string, event func(peering.PodEvent)) (w *Watch, leave func()) {
	s := &Watch{
		contract: contract, Event: event,
		dirty: make(map[types.NamespacedName]struct{}), Wake: notify.New(), Over: notify.New(),
	}
	h.mu.Lock()
	h.subs[s] = struct{}{}
	for _, p := range h.prune(contract) {
		s.leave(p.PodStatus)
	}
	h.mu.Unlock()
	return s, func() {
		h.mu.Lock()
		delete(h.subs, s)
		h.mu.Unlock()
	}
}

// Each calls f with each watch of a contract.
func (h *Hub) Each(contract string, f func(*Watch)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eachLocked(contract, f)
}

// Watched reports whether a contract has a watch.
func (h *Hub) Watched(contract string) (watched bool) {
	h.Each(contract, func(*Watch) { watched = true })
	return watched
}

func (h *Hub) eachLocked(contract string, f func(*Watch)) {
	for s := range h.subs {
		if s.contract == contract {
			f(s)
		}
	}
}

// End ends the watches of the contracts for which f returns true.
func (h *Hub) End(f func(contract string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		if f(s.contract) {
			s.Over.Notify()
		}
	}
}

// Touch notifies the watches of a contract that a pod changed.
func (h *Hub) Touch(contract string, key types.NamespacedName) {
	h.Each(contract, func(s *Watch) { s.Touch(key) })
}

// Gone notifies the watches of a contract that a pod was deleted. last has its last status, if that is known.
func (h *Hub) Gone(contract string, last peering.PodStatus) {
	last.Gone = true
	h.mu.Lock()
	defer h.mu.Unlock()
	left := slices.DeleteFunc(h.prune(contract), func(before leftPod) bool {
		if before.Ref == last.Ref && last.Status == nil {
			last = before.PodStatus
		}
		return before.Ref == last.Ref
	})
	h.eachLocked(contract, func(s *Watch) { s.leave(last) })
	left = append(left, leftPod{PodStatus: last, at: h.now()})
	left = left[max(len(left)-maxLeft, 0):]
	bytes := 0
	for i := range slices.Backward(left) {
		if bytes += len(left[i].Status); bytes > maxLeftBytes && !left[i].outlined {
			left[i].Status, left[i].outlined = h.outline(left[i].Status), true
		}
	}
	h.left[contract] = left
}

// prune forgets pods that were deleted too long ago, and returns those of a contract. The lock is
// held.
func (h *Hub) prune(contract string) []leftPod {
	since := h.now().Add(-leftKept)
	for c, pods := range h.left {
		recent := slices.DeleteFunc(pods, func(p leftPod) bool { return p.at.Before(since) })
		if h.left[c] = recent; len(recent) == 0 {
			delete(h.left, c)
		}
	}
	return h.left[contract]
}

func (s *Watch) leave(last peering.PodStatus) {
	s.mu.Lock()
	s.gone = append(s.gone, last)
	s.mu.Unlock()
	s.Wake.Notify()
}

// Touch notifies the watch that a pod changed.
func (s *Watch) Touch(key types.NamespacedName) {
	s.mu.Lock()
	s.dirty[key] = struct{}{}
	s.mu.Unlock()
	s.Wake.Notify()
}

// Take returns, once, the pods that changed, and the last statuses of those that were deleted.
func (s *Watch) Take() (dirty map[types.NamespacedName]struct{}, gone []peering.PodStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty, gone = s.dirty, s.gone
	s.dirty, s.gone = make(map[types.NamespacedName]struct{}), nil
	return dirty, gone
}
