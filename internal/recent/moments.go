package recent

import (
	"crypto/sha256"
	"maps"
	"sync"
	"time"
)

// Moments remembers for a moment what was so.
type Moments[K comparable] struct {
	lasts time.Duration
	most  int

	mu sync.Mutex
	at map[K]time.Time
}

// Trial is a pod of a namespace, without its name.
type Trial [sha256.Size]byte

// TrialOf returns the Trial of a pod with that template.
func TrialOf(namespace string, template []byte) (out Trial) {
	h := sha256.New()
	h.Write([]byte(namespace))
	h.Write([]byte{0})
	h.Write(template)
	h.Sum(out[:0])
	return out
}

// NewTrials remembers which pods the API server would have taken, so that of many
// that differ in nothing but their names one is tried. What the API server thinks of the
// others by then it says when they are made.
func NewTrials() *Moments[Trial] {
	return &Moments[Trial]{lasts: trialLasts, most: maxTrials, at: make(map[Trial]time.Time)}
}

// Hold is a contract that holds a namespace.
type Hold struct{ Namespace, Contract string }

// NewHolds remembers which contracts hold which namespaces. Only this process writes that down.
func NewHolds() *Moments[Hold] {
	return &Moments[Hold]{lasts: holdLasts, most: maxHolds, at: make(map[Hold]time.Time)}
}

// Add remembers that something is so.
func (m *Moments[K]) Add(k K, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.at) >= m.most {
		clear(m.at)
	}
	m.at[k] = now
}

// Has says whether something was so a moment ago.
func (m *Moments[K]) Has(k K, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.at[k]
	return ok && now.Sub(at) < m.lasts
}

// Forget forgets those that are.
func (m *Moments[K]) Forget(are func(K) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.at, func(k K, _ time.Time) bool { return are(k) })
}
