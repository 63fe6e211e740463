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
	}{
		"all of them":    {map[string]string{"cpu": "500m", "memory": "1Gi", "pods": "1"}, ""},
		"a tunnel alone": {map[string]string{"pods": "0"}, ""},
		"not known":      {nil, ""},
		"no memory": {
			map[string]string{"cpu": "2", "pods": "5"},
			"the contract has no memory: no pod that requests any can run under it; to ask for more: entente amend office --memory AMOUNT",
		},
		"devices alone": {
			map[string]string{"nvidia.com/gpu": "1", "pods": "5"},
			"the contract has no cpu and no memory: no pod that requests any can run under it; to ask for more: entente amend office --cpu AMOUNT --memory AMOUNT",
		},
		"no pods": {
			map[string]string{"cpu": "2", "memory": "1Gi", "pods": "0"},
			"the contract has no pods: no pod can run under it; to ask for more: entente amend office --pods NUMBER",
		},
	} {
		if got := Lacks("office", &ententev1.Contract{Resources: &ententev1.ResourceList{Amounts: tc.has}}); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
