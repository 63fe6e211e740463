package recent

import (
	"crypto/sha256"
	"maps"
	"sync"
	"time"
)

// Moments remembers facts for a moment.
type Moments[K comparable] struct {
	lasts time.Duration
	most  int

	mu sync.Mutex
	at map[K]*moment
}

// moment is when a fact was known, and whether a caller of Has was asked to check it again since.
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

// NewTrials remembers which pods the API server would have accepted, so that of many that differ in nothing but
// their names one is tried. If the API server decides differently by then, creating the others fails.
func NewTrials() *Moments[Trial] {
	return &Moments[Trial]{lasts: trialLasts, most: maxTrials, at: make(map[Trial]*moment)}
}

// Binding is a contract that is bound to a namespace.
type Binding struct{ Namespace, Contract string }

// NewBindings remembers which contracts are bound to which namespaces. Only this process records that.
func NewBindings() *Moments[Binding] {
	return &Moments[Binding]{lasts: bindingLasts, most: maxBindings, at: make(map[Binding]*moment)}
}

// Add remembers a fact.
func (m *Moments[K]) Add(k K, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.at) >= m.most {
		clear(m.at)
	}
	m.at[k] = &moment{at: now}
}

// Has reports whether a fact was known a moment ago. In the last quarter of that time one caller gets false: it
// checks again while the others continue, instead of all at once when the time is over.
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

// Forget forgets the facts that are selected.
func (m *Moments[K]) Forget(are func(K) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.at, func(k K, _ *moment) bool { return are(k) })
}
