package podspec

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/peering"
)

// resizable reports whether Kubernetes can change a resource of a running container.
func resizable(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory
}

// sized returns, by name, the containers whose resources may change while their pod runs: its own
// and its sidecars.
func sized(s *corev1.PodSpec) map[string]*corev1.Container {
	out := make(map[string]*corev1.Container, len(s.Containers))
	for i := range s.InitContainers {
		if c := &s.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out[c.Name] = c
		}
	}
	for i := range s.Containers {
		out[s.Containers[i].Name] = &s.Containers[i]
	}
	return out
}

// Resized reports whether a pod asks for other amounts than before. A change that a running pod
// cannot make is an error: removing a resource, which the pod would keep without counting, and
// anything but CPU and memory of containers and sidecars.
func Resized(was, is *corev1.PodSpec) (bool, error) {
	if !equality.Semantic.DeepEqual(was.Resources, is.Resources) {
		return false, fmt.Errorf("the resources of the pod as a whole cannot change while it runs; delete it, or change those of its containers")
	}
	may, resized := sized(was), false
	for _, lists := range [][2][]corev1.Container{{was.InitContainers, is.InitContainers}, {was.Containers, is.Containers}} {
		if !slices.EqualFunc(lists[0], lists[1], sameKind) {
			return false, fmt.Errorf("the pod has other containers than before, or sidecars in place of others; delete it")
		}
		for i := range lists[0] {
			a, b := &lists[0][i], &lists[1][i]
			for _, l := range [][2]corev1.ResourceList{{a.Resources.Requests, b.Resources.Requests}, {a.Resources.Limits, b.Resources.Limits}} {
				changed, err := changed(l[0], l[1])
				if err == nil && changed && may[a.Name] == nil {
					err = fmt.Errorf("it is an init container")
				}
				if err != nil {
					return false, fmt.Errorf("the resources of container %s cannot change so while it runs: %w; delete the pod", a.Name, err)
				}
				resized = resized || changed
			}
		}
	}
	return resized, nil
}

// sameKind reports whether two containers have one name, and both or neither is a sidecar: sidecars
// add to what their pod uses, and other init containers do not.
func sameKind(a, b corev1.Container) bool {
	return a.Name == b.Name && ptr.Equal(a.RestartPolicy, b.RestartPolicy)
}

func changed(was, is corev1.ResourceList) (bool, error) {
	for name := range was {
		if _, ok := is[name]; !ok {
			return false, fmt.Errorf("%s is removed", name)
		}
	}
	resized := false
	for name, q := range is {
		if before, ok := was[name]; ok && before.Cmp(q) == 0 {
			continue
		}
		if !resizable(name) {
			return false, fmt.Errorf("%s is neither cpu nor memory", name)
		}
		resized = true
	}
	return resized, nil
}

// Resize sets the CPU and memory of a pod's containers to those of want, and reports whether they
// had other amounts. Resources that want does not name stay: this cluster may have added them.
func Resize(have, want *corev1.PodSpec) bool {
	wanted, resized := sized(want), false
	for name, c := range sized(have) {
		w := wanted[name]
		if w == nil {
			continue
		}
		for _, l := range []struct {
			have *corev1.ResourceList
			want corev1.ResourceList
		}{{&c.Resources.Requests, w.Resources.Requests}, {&c.Resources.Limits, w.Resources.Limits}} {
			for name, q := range l.want {
				if before, ok := (*l.have)[name]; !resizable(name) || ok && before.Cmp(q) == 0 {
					continue
				}
				if *l.have == nil {
					*l.have = corev1.ResourceList{}
				}
				(*l.have)[name] = q.DeepCopy()
				resized = true
			}
		}
	}
	return resized
}

// ResizeDone reports whether a pod has the resources of want: its kubelet has acted on the last
// resize, or has not started the pod.
func ResizeDone(want *corev1.PodSpec, pod *corev1.Pod) bool {
	if pod.Status.ObservedGeneration > 0 && pod.Status.ObservedGeneration < pod.Generation {
		return false
	}
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return ResizeCondition(c.Type) }) {
		return false
	}
	have := sized(&pod.Spec)
	for name, w := range sized(want) {
		c := have[name]
		if c == nil || !has(c.Resources.Requests, w.Resources.Requests) {
			return false
		}
		if pod.Spec.NodeName == "" {
			continue
		}
		s := statusOf(&pod.Status, name)
		if s == nil || !has(s.AllocatedResources, w.Resources.Requests) {
			return false
		}
	}
	return true
}

// ShowsSizes reports whether a pod's status shows the CPU and memory that the pod asks for, or a
// condition that it does not have them. A container without a status has not started.
func ShowsSizes(spec *corev1.PodSpec, out *corev1.PodStatus) bool {
	if slices.ContainsFunc(out.Conditions, func(c corev1.PodCondition) bool { return ResizeCondition(c.Type) }) {
		return true
	}
	for name, c := range sized(spec) {
		s := statusOf(out, name)
		if s != nil && s.Resources != nil && !(has(s.Resources.Requests, c.Resources.Requests) && has(s.Resources.Limits, c.Resources.Limits)) {
			return false
		}
	}
	return true
}

// has reports whether list has the CPU and memory of want.
func has(list, want corev1.ResourceList) bool {
	for name, q := range want {
		if have, ok := list[name]; resizable(name) && (!ok || have.Cmp(q) != 0) {
			return false
		}
	}
	return true
}

// Most returns the larger amount of each resource.
func Most(a, b corev1.ResourceList) corev1.ResourceList {
	out := a.DeepCopy()
	if out == nil {
		out = make(corev1.ResourceList, len(b))
	}
	for name, q := range b {
		if have, ok := out[name]; !ok || q.Cmp(have) > 0 {
			out[name] = q.DeepCopy()
		}
	}
	return out
}

// ResizeCondition reports whether a condition is about the progress of a resize.
func ResizeCondition(t corev1.PodConditionType) bool {
	return t == corev1.PodResizePending || t == corev1.PodResizeInProgress
}

// ShowResources sets the CPU and memory in the container statuses of a pod's new status, from those
// of the provider. Kubernetes counts them at home, for quotas and its scheduler, and resizes no pod
// without them. So the provider's amounts are limited to the range between home's current request
// and the previous status: it cannot show an amount that home never asked for. All other resources
// are as requested. API servers without pod resize have no generation of pods, and would refuse
// these fields.
func ShowResources(pod *corev1.Pod, out *corev1.PodStatus) {
	if pod.Generation == 0 {
		for _, list := range [][]corev1.ContainerStatus{out.InitContainerStatuses, out.ContainerStatuses} {
			for i := range list {
				list[i].Resources, list[i].AllocatedResources = nil, nil
			}
		}
		return
	}
	for i := range out.InitContainerStatuses {
		showResources(pod.Spec.InitContainers, pod.Status.InitContainerStatuses, &out.InitContainerStatuses[i])
	}
	for i := range out.ContainerStatuses {
		showResources(pod.Spec.Containers, pod.Status.ContainerStatuses, &out.ContainerStatuses[i])
	}
	boundResize(pod, out)
}

// boundResize turns an infeasible resize into a deferred one, unless all containers show their
// resources: otherwise Kubernetes would count nothing for them.
func boundResize(pod *corev1.Pod, out *corev1.PodStatus) {
	for i := range out.Conditions {
		c := &out.Conditions[i]
		if c.Type != corev1.PodResizePending || c.Reason == corev1.PodReasonDeferred {
			continue
		}
		for _, of := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if s := statusOf(out, of.Name); s == nil || s.Resources == nil || c.Reason != corev1.PodReasonInfeasible {
				c.Reason = corev1.PodReasonDeferred
			}
		}
	}
}

func showResources(containers []corev1.Container, before []corev1.ContainerStatus, s *corev1.ContainerStatus) {
	at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == s.Name })
	if at < 0 {
		s.Resources, s.AllocatedResources = nil, nil
		return
	}
	var was corev1.ContainerStatus
	if i := slices.IndexFunc(before, func(b corev1.ContainerStatus) bool { return b.Name == s.Name }); i >= 0 {
		was = before[i]
	}
	was.Resources = cmp.Or(was.Resources, &corev1.ResourceRequirements{})
	says := cmp.Or(s.Resources, &corev1.ResourceRequirements{})
	asked := containers[at].Resources
	s.AllocatedResources = between(asked.Requests, was.AllocatedResources, s.AllocatedResources)
	s.Resources = &corev1.ResourceRequirements{
		Requests: between(asked.Requests, was.Resources.Requests, says.Requests),
		Limits:   between(asked.Limits, was.Resources.Limits, says.Limits),
	}
}

// between returns the requested resources, with the provider's amounts of CPU and memory, limited
// to the range between the requested and the previous ones. Amounts that the provider does not have
// stay as they were.
func between(asked, before, says corev1.ResourceList) corev1.ResourceList {
	out := asked.DeepCopy()
	for name, q := range asked {
		b, ok := before[name]
		if !resizable(name) || !ok {
			continue
		}
		s, ok := says[name]
		if !ok {
			s = b
		}
		out[name] = clamp(s, q, b).DeepCopy()
	}
	return out
}

func clamp(q, a, b resource.Quantity) resource.Quantity {
	if a.Cmp(b) > 0 {
		a, b = b, a
	}
	switch {
	case q.Cmp(a) < 0:
		return a
	case q.Cmp(b) > 0:
		return b
	}
	return q
}

// SizesOf returns the parts of a container's status that ShowResources reads: CPU and memory.
func SizesOf(in *corev1.ContainerStatus) (*corev1.ResourceRequirements, corev1.ResourceList) {
	few := func(l corev1.ResourceList) (out corev1.ResourceList) {
		for name, q := range l {
			if resizable(name) {
				if out == nil {
					out = corev1.ResourceList{}
				}
				out[name] = q
			}
		}
		return out
	}
	if in.Resources == nil {
		return nil, few(in.AllocatedResources)
	}
	return &corev1.ResourceRequirements{Requests: few(in.Resources.Requests), Limits: few(in.Resources.Limits)}, few(in.AllocatedResources)
}

// ShowRefusedResize sets the condition that a kubelet would set if the provider refused a resize,
// with the provider's reason.
func ShowRefusedResize(pod *corev1.Pod, out *corev1.PodStatus, r *peering.Refusal, now metav1.Time) {
	asks := false
	for name, c := range sized(&pod.Spec) {
		s := statusOf(out, name)
		asks = asks || s != nil && s.Resources != nil && !(has(s.Resources.Requests, c.Resources.Requests) && has(s.Resources.Limits, c.Resources.Limits))
	}
	if !asks {
		return
	}
	c := corev1.PodCondition{
		Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible,
		Message: "the provider does not resize the pod: " + r.Message, LastTransitionTime: now,
	}
	if r.Retryable {
		c.Reason = corev1.PodReasonDeferred
	}
	if i := slices.IndexFunc(pod.Status.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type }); i >= 0 {
		c.LastTransitionTime = pod.Status.Conditions[i].LastTransitionTime
	}
	out.Conditions = append(slices.DeleteFunc(out.Conditions, func(old corev1.PodCondition) bool { return ResizeCondition(old.Type) }), c)
	boundResize(pod, out)
}

func statusOf(s *corev1.PodStatus, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
