package exposure

import (
	"maps"
	"slices"
	"sync"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
)

// Opened is, by namespace, the other namespaces whose pods in providers may use its Services here.
type Opened map[string][]string

// OpenedBy returns what the owners of namespaces open. A NamespaceOffloading that is being deleted opens nothing.
func OpenedBy(all []v1alpha1.NamespaceOffloading) Opened {
	out := Opened{}
	for i := range all {
		if o := &all[i]; len(o.Spec.OpenTo) > 0 && o.DeletionTimestamp.IsZero() {
			out[o.Namespace] = o.Spec.OpenTo
		}
	}
	return out
}

// to returns what other namespaces open to the pods of one, by namespace; services is what their Services lead to.
func (o Opened) to(pods string, services map[string][]allow.Destination) map[string][]allow.Destination {
	var out map[string][]allow.Destination
	for namespace, others := range o {
		if namespace == pods || len(services[namespace]) == 0 || !slices.Contains(others, pods) && !slices.Contains(others, v1alpha1.AllNamespaces) {
			continue
		}
		if out == nil {
			out = map[string][]allow.Destination{}
		}
		out[namespace] = services[namespace]
	}
	return out
}

// Openings notices that owners opened or closed their namespaces. The zero value has seen none.
type Openings struct {
	mu   sync.Mutex
	last Opened
}

// Changed reports whether something else is open than at the last call.
func (w *Openings) Changed(now Opened) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := maps.EqualFunc(w.last, now, slices.Equal)
	w.last = now
	return !same
}
