// Package recent remembers what this process created, read and deleted in this cluster, so that it need not ask the
// API server. What is not remembered is asked for, so nothing depends on it.
package recent

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Made is the records that this process creates, or created and has not reconciled yet, as the API server returned
// them: their first reconciliation need not ask for what was just returned. A record that is not known here is
// asked for.
type Made struct{ records sync.Map }

// making is a record that is being created; done is closed when there is a response, which is nil if it was not
// created.
type making struct {
	done   chan struct{}
	record *api.OffloadedPod
}

// Begin records that a record is about to be created, and returns the function that takes the response.
func (m *Made) Begin(key types.NamespacedName) (respond func(*api.OffloadedPod)) {
	one := &making{done: make(chan struct{})}
	m.records.Store(key, one)
	return func(o *api.OffloadedPod) {
		if one.record = o; o == nil {
			m.records.CompareAndDelete(key, one)
		}
		close(one.done)
	}
}

// Take returns a record once, if it has that UID and version. The watch is often faster than the response, for
// which Take waits.
func (m *Made) Take(key types.NamespacedName, seen *api.OffloadedPod) *api.OffloadedPod {
	v, ok := m.records.LoadAndDelete(key)
	if !ok || seen == nil {
		return nil
	}
	one, _ := v.(*making)
	select {
	case <-one.done:
	case <-time.After(responseLate):
		return nil
	}
	if o := one.record; o != nil && o.UID == seen.UID && o.ResourceVersion == seen.ResourceVersion {
		return o
	}
	return nil
}

// Named is the UIDs of pods that this process created and recorded, by their records, until the cache shows that
// they are recorded.
type Named struct{ uids sync.Map }

// Add remembers the pod of a record.
func (n *Named) Add(o *api.OffloadedPod) {
	n.uids.Store(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o.Status.PodUID)
}

// Has reports whether a record's pod has that UID.
func (n *Named) Has(key types.NamespacedName, uid types.UID) bool {
	v, ok := n.uids.Load(key)
	return ok && v == string(uid)
}

// Forget forgets a record.
func (n *Named) Forget(key types.NamespacedName) { n.uids.Delete(key) }
