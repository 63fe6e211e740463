package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func TestNamespaceStateIsTheWorstOfItsClusters(t *testing.T) {
	t.Parallel()
	at := func(name, state, message string) v1alpha1.NamespaceInCluster {
		return v1alpha1.NamespaceInCluster{ForeignCluster: name, State: state, Message: message}
	}
	all := []v1alpha1.ForeignCluster{{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"tier": "gold"}}}}
	selecting := func(tier string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": tier}}
	}
	const none = "spec.clusterSelector selects no ForeignCluster, so new pods run here or wait: compare it with `kubectl get foreignclusters --show-labels`"
	for name, tt := range map[string]struct {
		selector       *metav1.LabelSelector
		clusters       []v1alpha1.NamespaceInCluster
		state, message string
	}{
		"no provider":              {nil, nil, "NoProvider", "no cluster provides resources to this one: see `kubectl get peeringrequests`"},
		"none of those selected":   {selecting("gold"), nil, "NoProvider", "no cluster that spec.clusterSelector selects provides resources to this one: see `kubectl get peeringrequests`"},
		"none is selected":         {selecting("lead"), nil, "NoProvider", none},
		"none is any more":         {selecting("lead"), []v1alpha1.NamespaceInCluster{at("a", "Ready", "")}, "NoProvider", none},
		"a selector that is wrong": {&metav1.LabelSelector{MatchLabels: map[string]string{"-": ""}}, nil, "NoProvider", none},
		"it is selected":           {selecting("gold"), []v1alpha1.NamespaceInCluster{at("a", "Ready", "")}, "Ready", ""},
		"all ready":                {nil, []v1alpha1.NamespaceInCluster{at("a", "Ready", ""), at("b", "Ready", "")}, "Ready", ""},
		"one pending":              {nil, []v1alpha1.NamespaceInCluster{at("a", "Ready", ""), at("b", "Pending", "")}, "Pending", "b"},
		"refused is worst":         {nil, []v1alpha1.NamespaceInCluster{at("a", "Pending", "x"), at("b", "Refused", "names")}, "Refused", "b: names"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if state, message := namespaceState(tt.selector, tt.clusters, all); state != tt.state || message != tt.message {
				t.Errorf("namespaceState = %q, %q, want %q, %q", state, message, tt.state, tt.message)
			}
		})
	}
}
