package offload

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// live says whether a pod counts: until it ended. A pod that is being deleted
// still takes what it takes.
func live(p *api.OffloadedPod) bool {
	return !ended(p.Status.Phase)
}

// fits says whether need fits into what is left of limit, and if not, why. A
// resource that the contract does not have is refused.
func fits(limit, used, need corev1.ResourceList) *peering.Refusal {
	for _, name := range slices.Sorted(maps.Keys(need)) {
		want := need[name]
		if want.IsZero() {
			continue
		}
		most, ok := limit[name]
		if !ok {
			return refuse(peering.RefusedQuota, false,
				"the contract has no %s and the pod asks for %s; ask for a contract with it, or take the request away", name, want.String())
		}
		sum := used[name].DeepCopy()
		sum.Add(want)
		if sum.Cmp(most) > 0 {
			u := used[name]
			return refuse(peering.RefusedQuota, true,
				"the contract has %s %s, of which live pods use %s; the pod asks for %s more; end a pod or ask for a larger contract",
				most.String(), name, u.String(), want.String())
		}
	}
	return nil
}
