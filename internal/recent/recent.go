// Package recent remembers what this process made, was told and took away in this cluster, so
// that it need not ask the API server. What is not remembered is asked for: nothing hangs on it.
package recent

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Made is the records that this process makes, or made and has not reconciled yet, as the API
// server returned them: their first reconciliation needs not ask for what was just answered.
// A record of which nothing is known here is asked for.
type Made struct{ records sync.Map }

// making is a record that is being made; done is closed when there is an answer, which is nil
// where it was not made.
type making struct {
	done   chan struct{}
	record *api.OffloadedPod
}

// Begin says that a record is about to be made; the answer is told to what it returns.
func (m *Made) Begin(key types.NamespacedName) (answer func(*api.OffloadedPod)) {
	one := &making{done: make(chan struct{})}
	m.records.Store(key, one)
	return func(o *api.OffloadedPod) {
		if one.record = o; o == nil {
			m.records.CompareAndDelete(key, one)
		}
		close(one.done)
	}
}

// Take returns a record once, if it is the one of that UID and in that version. The watch is
// often faster than the answer, which is waited for.
func (m *Made) Take(key types.NamespacedName, seen *api.OffloadedPod) *api.OffloadedPod {
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

// Named is the UIDs of pods that this process made and wrote down, by their records, until
// the cache shows that they are written down.
type Named struct{ uids sync.Map }

// Add remembers the pod of a record.
func (n *Named) Add(o *api.OffloadedPod) {
	n.uids.Store(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o.Status.PodUID)
}

// Has says whether a record's pod is the one of that UID.
func (n *Named) Has(key types.NamespacedName, uid types.UID) bool {
	v, ok := n.uids.Load(key)
	return ok && v == string(uid)
}

// Forget forgets a record.
func (n *Named) Forget(key types.NamespacedName) { n.uids.Delete(key) }
