package provider

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestPoliciesAreValidatedWithoutPeers(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 0,
		policyNamed("fine"),
		policyNamed("names", func(s *v1alpha1.PeeringPolicySpec) { s.StorageClasses = []string{"fast"} }),
		policyNamed("misspelt", func(s *v1alpha1.PeeringPolicySpec) {
			s.Limits.Resources = corev1.ResourceList{"cpuu": resource.MustParse("2")}
		}))
	for name, want := range map[string]metav1.Condition{
		"fine":  {Type: "Valid", Status: "True", Reason: "Valid", Message: "nothing is wrong with it"},
		"names": {Type: "Valid", Status: "True", Reason: "NotFound", Message: "this cluster has no storage class fast"},
		"misspelt": {
			Type: "Valid", Status: "False", Reason: "Invalid",
			Message: `nothing is offered by it: limits.resources: nodes have no resource "cpuu": a name is cpu, memory, ephemeral-storage, pods, hugepages-SIZE, or one with a domain, such as nvidia.com/gpu`,
		},
		"gone": {},
	} {
		if got, err := p.Validate(t.Context(), name); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
