package podspec

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"
)

// Demand returns what a pod uses of a contract: its effective requests as the scheduler counts them
// (init containers, sidecars, overhead, pod-level resources), and one pod. If only a limit is set,
// it is the request, as for the API server.
func Demand(spec *corev1.PodSpec) (corev1.ResourceList, error) {
	defaultRequests(spec)
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if err := checkQuantities(c.Name, c.Resources.Requests, c.Resources.Limits); err != nil {
			return nil, err
		}
	}
	if spec.Resources != nil {
		if err := checkQuantities("pod", spec.Resources.Requests, spec.Resources.Limits); err != nil {
			return nil, err
		}
	}
	need := podresource.PodRequests(&corev1.Pod{Spec: *spec}, podresource.PodResourcesOptions{})
	maps.DeleteFunc(need, func(_ corev1.ResourceName, q resource.Quantity) bool { return q.IsZero() })
	if len(need) > maxDemands {
		return nil, fmt.Errorf("the pod asks for %d resources; the limit is %d", len(need), maxDemands)
	}
	need[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return need, nil
}

// defaultRequests sets requests that are not set to the limits.
func defaultRequests(spec *corev1.PodSpec) {
	fill := func(r *corev1.ResourceRequirements) {
		for name, limit := range r.Limits {
			if _, ok := r.Requests[name]; !ok {
				if r.Requests == nil {
					r.Requests = corev1.ResourceList{}
				}
				r.Requests[name] = limit.DeepCopy()
			}
		}
	}
	for i := range spec.InitContainers {
		fill(&spec.InitContainers[i].Resources)
	}
	for i := range spec.Containers {
		fill(&spec.Containers[i].Resources)
	}
	if spec.Resources != nil {
		fill(spec.Resources)
	}
}

// checkQuantities refuses negative amounts, which would free resources of the contract.
func checkQuantities(where string, lists ...corev1.ResourceList) error {
	for _, l := range lists {
		if len(l) > maxDemands {
			return fmt.Errorf("%s names %d resources; the limit is %d", where, len(l), maxDemands)
		}
		for name, q := range l {
			if q.Sign() < 0 {
				return fmt.Errorf("%s asks for a negative amount of %s", where, name)
			}
			if q.CmpInt64(1<<62) > 0 {
				return fmt.Errorf("%s asks for an amount of %s beyond the largest possible", where, name)
			}
		}
	}
	return nil
}
