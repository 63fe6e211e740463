package podspec

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

func TestClassesAreThoseOfThePolicyWhenThePodWasMade(t *testing.T) {
	terms := Terms{RuntimeClasses: []string{"kata"}, Classes: Classes{
		Runtime:  []api.ClassMapping{{From: "sandboxed", To: "gvisor"}, {From: "kata", To: "other"}},
		Priority: []api.PriorityMapping{{From: "high", To: "peers"}, {From: "urgent", To: "pushes", Preemption: corev1.PreemptLowerPriority}, {To: "nothing"}},
	}}
	later := terms
	later.Was = &corev1.PodSpec{RuntimeClassName: new("then"), PriorityClassName: "before", PreemptionPolicy: new(corev1.PreemptNever)}
	for name, tc := range map[string]struct {
		terms                     Terms
		runtime, priority         string
		wantRuntime, wantPriority string
		wantPreemption            corev1.PreemptionPolicy
		refused                   bool
	}{
		"no classes":                               {terms: terms},
		"a mapped runtime class":                   {terms: terms, runtime: "sandboxed", wantRuntime: "gvisor"},
		"the contract's is not mapped":             {terms: terms, runtime: "kata", wantRuntime: "kata"},
		"a runtime class that is not mapped":       {terms: terms, runtime: "gvisor", refused: true},
		"a mapped priority preempts no pods":       {terms: terms, priority: "high", wantPriority: "peers", wantPreemption: corev1.PreemptNever},
		"unless the policy says so":                {terms: terms, priority: "urgent", wantPriority: "pushes"},
		"a priority that is not mapped is dropped": {terms: terms, priority: "system-cluster-critical"},
		"a pod that is here keeps its classes":     {terms: later, runtime: "gvisor", priority: "high", wantRuntime: "then", wantPriority: "before", wantPreemption: corev1.PreemptNever},
	} {
		t.Run(name, func(t *testing.T) {
			s := &corev1.PodSpec{PriorityClassName: tc.priority, Priority: new(int32(7)), PreemptionPolicy: new(corev1.PreemptLowerPriority)}
			if tc.runtime != "" {
				s.RuntimeClassName = &tc.runtime
			}
			notes := priorityNotes(tc.priority, tc.terms)
			if (len(notes) > 0) != (tc.priority != "" && tc.wantPriority == "") || len(notes) > 0 && !strings.Contains(notes[0], "priority class "+tc.priority+" to none") {
				t.Errorf("it notes %q", notes)
			}
			err := admitClasses(s, tc.terms)
			if tc.refused {
				if !errors.Is(err, ErrClass) {
					t.Errorf("got %v, want %v", err, ErrClass)
				}
				return
			}
			if err != nil || ptr.Deref(s.RuntimeClassName, "") != tc.wantRuntime || s.PriorityClassName != tc.wantPriority ||
				ptr.Deref(s.PreemptionPolicy, "") != tc.wantPreemption || s.Priority != nil {
				t.Errorf("got %v, %+v", err, s)
			}
		})
	}
}
