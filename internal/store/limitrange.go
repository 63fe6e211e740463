package store

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// LimitRange returns a limit range as a value of package peering; nil for none.
func LimitRange(l *v1alpha1.LimitRange) (out peering.LimitRange, err error) {
	if l == nil {
		return out, nil
	}
	container, pod := l.Container, l.Pod
	container = cmp.Or(container, &v1alpha1.ContainerLimitRange{})
	pod = cmp.Or(pod, &v1alpha1.PodLimitRange{})
	for _, list := range []struct {
		name string
		from v1alpha1.LimitedResources
		to   *peering.Resources
	}{
		{"container.default", container.Default, &out.Default},
		{"container.defaultRequest", container.DefaultRequest, &out.DefaultRequest},
		{"container.min", container.Min, &out.Min},
		{"container.max", container.Max, &out.Max},
		{"pod.min", pod.Min, &out.PodMin},
		{"pod.max", pod.Max, &out.PodMax},
	} {
		if *list.to, err = Resources(corev1.ResourceList(list.from)); err != nil {
			return peering.LimitRange{}, fmt.Errorf("%s: %w", list.name, err)
		}
	}
	return out.Clone(), out.Check()
}

// LimitRangeOf returns a limit range as custom resources have it; nil for none.
func LimitRangeOf(l peering.LimitRange) (*v1alpha1.LimitRange, error) {
	if l.IsZero() {
		return nil, nil //nolint:nilnil // nil means none
	}
	container, pod := &v1alpha1.ContainerLimitRange{}, &v1alpha1.PodLimitRange{}
	for _, list := range []struct {
		from peering.Resources
		to   *v1alpha1.LimitedResources
	}{
		{l.Default, &container.Default},
		{l.DefaultRequest, &container.DefaultRequest},
		{l.Min, &container.Min},
		{l.Max, &container.Max},
		{l.PodMin, &pod.Min},
		{l.PodMax, &pod.Max},
	} {
		if len(list.from) == 0 {
			continue
		}
		amounts, err := ResourceList(list.from)
		if err != nil {
			return nil, err
		}
		*list.to = v1alpha1.LimitedResources(amounts)
	}
	out := &v1alpha1.LimitRange{}
	if len(l.Default)+len(l.DefaultRequest)+len(l.Min)+len(l.Max) > 0 {
		out.Container = container
	}
	if len(l.PodMin)+len(l.PodMax) > 0 {
		out.Pod = pod
	}
	return out, nil
}
