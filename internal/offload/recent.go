package offload

import (
	"crypto/sha256"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// made is the records that this process makes, or made and has not reconciled yet, as the API
// server returned them: their first reconciliation needs not ask for what was just answered.
// A record of which nothing is known here is asked for.
type made struct{ records sync.Map }

// making is a record that is being made; done is closed when there is an answer, which is nil
// where it was not made.
type making struct {
	done   chan struct{}
	record *api.OffloadedPod
}

// begin says that a record is about to be made; the answer is told to what it returns.
func (m *made) begin(key types.NamespacedName) (answer func(*api.OffloadedPod)) {
	one := &making{done: make(chan struct{})}
	m.records.Store(key, one)
	return func(o *api.OffloadedPod) {
		if one.record = o; o == nil {
			m.records.CompareAndDelete(key, one)
		}
		close(one.done)
	}
}

// take returns a record once, if it is the one of that UID and in that version. The watch is
// often faster than the answer, which is waited for.
func (m *made) take(key types.NamespacedName, seen *api.OffloadedPod) *api.OffloadedPod {
	v, ok := m.records.LoadAndDelete(key)
	if !ok || seen == nil {
		return nil
	}
	one, _ := v.(*making)
	select {
	case <-one.done:
	case <-time.After(answerLate):
		return nil
	}
	if o := one.record; o != nil && o.UID == seen.UID && o.ResourceVersion == seen.ResourceVersion {
		return o
	}
	return nil
}

// named is the UIDs of pods that this process made and wrote down, by their records, until
// the cache shows that they are written down.
type named struct{ uids sync.Map }

func (n *named) add(o *api.OffloadedPod) {
	n.uids.Store(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o.Status.PodUID)
}

func (n *named) has(key types.NamespacedName, uid types.UID) bool {
	v, ok := n.uids.Load(key)
	return ok && v == string(uid)
}

func (n *named) forget(key types.NamespacedName) { n.uids.Delete(key) }

// trials remembers for a moment which pods the API server would have taken, so that of many
// that differ in nothing but their names one is tried. What the API server thinks of the
// others by then it says when they are made.
type trials struct {
	mu   sync.Mutex
	took map[[sha256.Size]byte]time.Time
}

// trialOf is a pod of a namespace, without its name.
func trialOf(namespace string, template []byte) (out [sha256.Size]byte) {
	h := sha256.New()
	h.Write([]byte(namespace))
	h.Write([]byte{0})
	h.Write(template)
	h.Sum(out[:0])
	return out
}

// taken says whether one like it would have been taken a moment ago.
func (t *trials) taken(one [sha256.Size]byte, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.took[one]
	return ok && now.Sub(at) < trialLasts
}

// forget has the next pods tried: the API server did not take one.
func (t *trials) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = nil
}

func (t *trials) add(one [sha256.Size]byte, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.took == nil || len(t.took) >= maxTrials {
		t.took = make(map[[sha256.Size]byte]time.Time)
	}
	t.took[one] = now
}

// holds remembers for a moment which contracts hold which namespaces. Only this process
// writes that down.
type holds struct {
	mu     sync.Mutex
	spaces map[string]map[string]time.Time
}

func (h *holds) add(namespace, contract string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spaces == nil || len(h.spaces) >= maxHolds {
		h.spaces = make(map[string]map[string]time.Time)
	}
	if h.spaces[namespace] == nil {
		h.spaces[namespace] = make(map[string]time.Time)
	}
	h.spaces[namespace][contract] = now
}

// has says whether a contract held a namespace a moment ago.
func (h *holds) has(namespace, contract string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.spaces[namespace][contract]
	return ok && now.Sub(at) < holdLasts
}

func (h *holds) forget(namespace string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.spaces, namespace)
}
