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
	at map[K]*moment
}

// moment is when something was so, and whether a caller of Has was sent to ask again since.
type moment struct {
	at      time.Time
	renewed bool
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
	return &Moments[Trial]{lasts: trialLasts, most: maxTrials, at: make(map[Trial]*moment)}
}

// Hold is a contract that holds a namespace.
type Hold struct{ Namespace, Contract string }

// NewHolds remembers which contracts hold which namespaces. Only this process writes that down.
func NewHolds() *Moments[Hold] {
	return &Moments[Hold]{lasts: holdLasts, most: maxHolds, at: make(map[Hold]*moment)}
}

// Add remembers that something is so.
func (m *Moments[K]) Add(k K, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.at) >= m.most {
		clear(m.at)
	}
	m.at[k] = &moment{at: now}
}

// Has says whether something was so a moment ago. In the last quarter of that time one caller is told no:
// it asks again while the others go on, instead of all at once when the time is over.
func (m *Moments[K]) Has(k K, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, ok := m.at[k]
	if !ok {
		return false
	}
	age := now.Sub(was.at)
	if age >= m.lasts-m.lasts/4 && !was.renewed {
		was.renewed = true
		return false
	}
	return age < m.lasts
}

// Forget forgets those that are.
func (m *Moments[K]) Forget(are func(K) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.at, func(k K, _ *moment) bool { return are(k) })
}
