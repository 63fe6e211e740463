package podspec

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// ErrClass means that this cluster has no class for the pod's runtime class, which the provider may change.
var ErrClass = errors.New("not part of the contract and not mapped by the provider's policy")

// Classes maps a consumer's classes to classes of this cluster.
type Classes struct {
	Runtime  []api.ClassMapping
	Priority []api.PriorityMapping
}

// priorityNotes notes that the provider has no class for the priority class of a new pod.
func priorityNotes(class string, c Terms) []string {
	if class == "" || c.Was != nil || slices.ContainsFunc(c.Classes.Priority, func(m api.PriorityMapping) bool { return m.From == class }) {
		return nil
	}
	return []string{fmt.Sprintf("the provider's policy maps priority class %s to none of its own, so the pod has the priority there of pods without a class: "+
		"if it needs another, have the provider's administrator add the class to priorityClassMappings of the PeeringPolicy", peering.Text(class, peering.MaxLabelKeyLen))}
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
