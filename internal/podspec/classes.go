package podspec

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// ErrClass means that this cluster has no class for the pod's runtime class, which the provider may change.
var ErrClass = errors.New("not part of the contract and not mapped by the provider's policy")

// Classes maps a consumer's classes to classes of this cluster.
type Classes struct {
	Runtime  []api.ClassMapping
	Priority []api.PriorityMapping
}

// admitClasses sets the classes that a pod has here. A runtime class may be a sandbox, so a pod
// runs only with one that is mapped or part of the contract; a priority is a preference, so a class
// that is not mapped is dropped.
func admitClasses(s *corev1.PodSpec, c Terms) error {
	priority := s.PriorityClassName
	s.PriorityClassName, s.Priority, s.PreemptionPolicy = "", nil, nil
	if c.Was != nil {
		s.RuntimeClassName, s.PriorityClassName, s.PreemptionPolicy = c.Was.RuntimeClassName, c.Was.PriorityClassName, c.Was.PreemptionPolicy
		return nil
	}
	for _, m := range c.Classes.Priority {
		if priority != "" && m.From == priority {
			s.PriorityClassName = m.To
			if m.Preemption != corev1.PreemptLowerPriority {
				// The API server refuses the pod if its class says otherwise.
				s.PreemptionPolicy = new(corev1.PreemptNever)
			}
		}
	}
	name := ptr.Deref(s.RuntimeClassName, "")
	if name == "" || slices.Contains(c.RuntimeClasses, name) {
		return nil
	}
	at := slices.IndexFunc(c.Classes.Runtime, func(m api.ClassMapping) bool { return m.From == name })
	if at < 0 {
		return fmt.Errorf("runtime class %s: %w; ask for a contract with it, or remove runtimeClassName", name, ErrClass)
	}
	s.RuntimeClassName = new(c.Classes.Runtime[at].To)
	return nil
}
