package format

import (
	"testing"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func TestLacksNamesWhatPodsCannotRequest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		has  map[string]string
		want string
		of   map[string]string // what the provider offers
	}{
		"all of them":    {map[string]string{"cpu": "500m", "memory": "1Gi", "pods": "1"}, "", nil},
		"a tunnel alone": {map[string]string{"pods": "0"}, "", nil},
		"not known":      {nil, "", nil},
		"no memory": {
			map[string]string{"cpu": "2", "pods": "5"},
			"the contract has no memory: no pod that requests any can run under it; to ask for more: entente amend office --memory AMOUNT", nil,
		},
		"devices alone": {
			map[string]string{"nvidia.com/gpu": "1", "pods": "5"},
			"the contract has no cpu and no memory: no pod that requests any can run under it; to ask for more: entente amend office --cpu AMOUNT --memory AMOUNT", nil,
		},
		"no pods": {
			map[string]string{"cpu": "2", "memory": "1Gi", "pods": "0"},
			"the contract has no pods: no pod can run under it; to ask for more: entente amend office --pods NUMBER", nil,
		},
		"no storage of nodes, where the provider has some": {
			map[string]string{"cpu": "2", "memory": "1Gi", "pods": "5"},
			"the contract has no ephemeral-storage: no pod that requests any can run under it; to ask for more: entente amend office --resources ephemeral-storage=AMOUNT",
			map[string]string{"cpu": "2", "ephemeral-storage": "20Gi"},
		},
		"neither has storage of nodes": {map[string]string{"cpu": "2", "memory": "1Gi", "pods": "5"}, "", map[string]string{"cpu": "2", "ephemeral-storage": "0"}},
		"both have storage of nodes": {
			map[string]string{"cpu": "2", "memory": "1Gi", "pods": "5", "ephemeral-storage": "1Gi"}, "", map[string]string{"ephemeral-storage": "20Gi"},
		},
		"a tunnel alone, where the provider has storage": {map[string]string{"pods": "0"}, "", map[string]string{"ephemeral-storage": "20Gi"}},
	} {
		offer := &ententev1.Offer{Resources: &ententev1.ResourceList{Amounts: tc.of}}
		if got := Lacks("office", &ententev1.Contract{Resources: &ententev1.ResourceList{Amounts: tc.has}}, offer); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
