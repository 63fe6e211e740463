package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func amountsOf(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func TestGrantedAndUsedSumUpContractsInForce(t *testing.T) {
	t.Parallel()
	contract := func(role v1alpha1.ContractRole, phase string, granted, used corev1.ResourceList) v1alpha1.Contract {
		c := v1alpha1.Contract{Spec: v1alpha1.ContractSpec{Role: role, Resources: granted}}
		c.Status.Phase, c.Status.Used = phase, used
		return c
	}
	active, closed := peering.PhaseActive.String(), peering.PhaseClosed.String()
	for name, tt := range map[string]struct {
		contracts     []v1alpha1.Contract
		granted, used string
	}{
		"none": {},
		"one that is over": {
			contracts: []v1alpha1.Contract{contract(v1alpha1.ContractConsumer, closed, amountsOf("cpu", "4"), nil)},
		},
		"two of one direction are added, and most is used of the memory": {
			contracts: []v1alpha1.Contract{
				contract(v1alpha1.ContractConsumer, active, amountsOf("cpu", "500m", "memory", "512Mi", "pods", "20"), amountsOf("cpu", "100m", "memory", "400Mi", "pods", "2")),
				contract(v1alpha1.ContractConsumer, active, amountsOf("cpu", "1500m", "memory", "512Mi", "pods", "20"), nil),
			},
			granted: "2 CPU, 1Gi", used: "40%",
		},
		"both directions, what the peer provides first": {
			contracts: []v1alpha1.Contract{
				contract(v1alpha1.ContractProvider, active, amountsOf("cpu", "1"), amountsOf("cpu", "1")),
				contract(v1alpha1.ContractConsumer, active, amountsOf("cpu", "2", "nvidia.com/gpu", "1"), amountsOf("cpu", "20m")),
			},
			granted: "2 CPU, +1 / 1 CPU", used: "5% / 100%",
		},
		"pods only": {
			contracts: []v1alpha1.Contract{contract(v1alpha1.ContractProvider, active, amountsOf("pods", "10"), nil)},
			granted:   "10 pods", used: "0%",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			granted, used := grantedAndUsed(tt.contracts)
			if granted != tt.granted || used != tt.used {
				t.Errorf("grantedAndUsed = %q, %q, want %q, %q", granted, used, tt.granted, tt.used)
			}
		})
	}
}
