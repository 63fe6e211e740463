// Package limitrange sets a contract's default requests and limits on containers without their own,
// and refuses pods beyond its bounds, as the admission plugin LimitRanger of Kubernetes does in one
// cluster. A provider does so before it counts a pod; its consumer's count does the same, so that both
// get the same amounts.
package limitrange

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Fill sets the requests and limits that the containers of a pod lack. A limit is never below its
// container's request. A resource that the pod requests as a whole is shared by its containers, so
// Fill does not set it on them.
func Fill(s *corev1.PodSpec, l *api.LimitRange) {
	if l == nil || l.Container == nil {
		return
	}
	shared := requirements(s.Resources)
	for _, containers := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			fill(&containers[i].Resources, shared, l.Container)
		}
	}
}

func fill(r, shared *corev1.ResourceRequirements, l *api.ContainerLimitRange) {
	// As the API server does before it applies any default.
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			set(&r.Requests, name, limit)
		}
	}
	own := func(name corev1.ResourceName) bool {
		return named(shared.Requests, name) || named(shared.Limits, name)
	}
	for name, request := range l.DefaultRequest {
		if !named(r.Requests, name) && !own(name) {
			set(&r.Requests, name, request)
		}
	}
	for name, limit := range l.Default {
		if named(r.Limits, name) || own(name) {
			continue
		}
		if request := r.Requests[name]; request.Cmp(limit) > 0 {
			limit = request
		}
		set(&r.Limits, name, limit)
	}
}

func requirements(r *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if r == nil {
		return &corev1.ResourceRequirements{}
	}
	return r
}

func named(list corev1.ResourceList, name corev1.ResourceName) bool {
	_, ok := list[name]
	return ok
}

func set(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q.DeepCopy()
}

// Filled returns the resources of a pod after Fill. It does not change the pod.
func Filled(s *corev1.PodSpec, l *api.LimitRange) *corev1.PodSpec {
	out := &corev1.PodSpec{Resources: s.Resources, InitContainers: sizes(s.InitContainers), Containers: sizes(s.Containers)}
	Fill(out, l)
	return out
}

func sizes(list []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(list))
	for i, c := range list {
		out[i] = corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: *c.Resources.DeepCopy()}
	}
	return out
}

// Check returns how a pod, after Fill, exceeds the bounds.
func Check(s *corev1.PodSpec, l *api.LimitRange) error {
	if l == nil {
		return nil
	}
	shared := requirements(s.Resources)
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		if l.Container == nil {
			break
		}
		if err := checkContainer(c, shared, l.Container); err != nil {
			return fmt.Errorf("container %s %w a container", c.Name, err)
		}
	}
	if l.Pod == nil {
		return nil
	}
	if err := checkPod(s, shared, l.Pod); err != nil {
		return fmt.Errorf("the pod %w a pod", err)
	}
	return nil
}

// checkContainer returns how a container exceeds the bounds. A container without a limit of its own
// may use all that its pod has as a whole.
func checkContainer(c corev1.Container, shared *corev1.ResourceRequirements, l *api.ContainerLimitRange) error {
	for _, name := range slices.Sorted(maps.Keys(l.Min)) {
		request, ok := c.Resources.Requests[name]
		if !ok && (named(shared.Requests, name) || named(shared.Limits, name)) {
			continue
		}
		if least := l.Min[name]; request.Cmp(least) < 0 {
			return fmt.Errorf("requests %s %s, and the contract's limit range requires at least %s", request.String(), name, least.String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Max)) {
		limit, ok := c.Resources.Limits[name]
		if !ok {
			limit, ok = shared.Limits[name]
		}
		most := l.Max[name]
		if !ok {
			return fmt.Errorf("has no limit of %s, and the contract's limit range allows at most %s", name, most.String())
		}
		if limit.Cmp(most) > 0 {
			return fmt.Errorf("may use up to %s %s, and the contract's limit range allows at most %s", limit.String(), name, most.String())
		}
	}
	return nil
}

// checkPod returns how a pod exceeds the bounds. The overhead of this cluster's runtime class does
// not count.
func checkPod(s *corev1.PodSpec, shared *corev1.ResourceRequirements, l *api.PodLimitRange) error {
	pod, opts := &corev1.Pod{Spec: *s}, podresource.PodResourcesOptions{ExcludeOverhead: true}
	requests := podresource.PodRequests(pod, opts)
	for _, name := range slices.Sorted(maps.Keys(l.Min)) {
		request, least := requests[name], l.Min[name]
		if request.Cmp(least) < 0 {
			return fmt.Errorf("requests %s %s, and the contract's limit range requires at least %s", request.String(), name, least.String())
		}
	}
	limits := podresource.PodLimits(pod, opts)
	for _, name := range slices.Sorted(maps.Keys(l.Max)) {
		limit, most := limits[name], l.Max[name]
		bounded := named(shared.Limits, name) || !slices.ContainsFunc(slices.Concat(s.InitContainers, s.Containers), func(c corev1.Container) bool {
			return !named(c.Resources.Limits, name)
		})
		switch request := requests[name]; {
		case !bounded:
			return fmt.Errorf("has a container without a limit of %s, and the contract's limit range allows at most %s", name, most.String())
		case limit.Cmp(most) > 0 || request.Cmp(most) > 0:
			return fmt.Errorf("may use up to %s %s, and the contract's limit range allows at most %s", limit.String(), name, most.String())
		}
	}
	return nil
}
