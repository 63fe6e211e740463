// Package offloadedpod has what follows from an OffloadedPod for its pod: which containers are the consumer's, and how
// it ended.
package offloadedpod

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// NoteContainers is the annotation with the names of a pod's containers, which only an OffloadedPod of the cache has: it
// lacks the template.
const NoteContainers = "entente.dev/containers"

// Containers returns the names of the containers that a consumer sent of a pod. All others in the pod here were
// added by this cluster, as by a webhook of its mesh or by its administrators, and may have secrets of it.
func Containers(o *api.OffloadedPod) []string {
	if len(o.Spec.Template.Raw) == 0 { // it is of the cache
		return strings.Split(o.Annotations[NoteContainers], ",")
	}
	type named []struct{ Name string }
	var t struct {
		Spec struct{ Containers, InitContainers, EphemeralContainers named }
	}
	if json.Unmarshal(o.Spec.Template.Raw, &t) != nil {
		return nil // no pod is made of it either
	}
	var out []string
	for _, c := range slices.Concat(t.Spec.Containers, t.Spec.InitContainers, t.Spec.EphemeralContainers) {
		out = append(out, c.Name)
	}
	return out
}

// CheckContainer refuses a container that the consumer did not send.
func CheckContainer(o *api.OffloadedPod, name string) error {
	own := Containers(o)
	if slices.Contains(own, name) {
		return nil
	}
	return peering.Errorf(peering.ReasonRequestInvalid, "container %s is not one of those with which pod %s/%s was sent: the provider's cluster added it, and gives no access to it, or there is none; its containers are %s",
		name, o.Spec.OriginNamespace, o.Spec.OriginName, strings.Join(slices.Sorted(slices.Values(own)), ", "))
}

// WithoutAdded returns a pod's status without those of containers that the consumer did not send.
func WithoutAdded(s corev1.PodStatus, o *api.OffloadedPod) corev1.PodStatus {
	own := Containers(o)
	for _, list := range []*[]corev1.ContainerStatus{&s.InitContainerStatuses, &s.ContainerStatuses, &s.EphemeralContainerStatuses} {
		*list = slices.DeleteFunc(slices.Clone(*list), func(c corev1.ContainerStatus) bool { return !slices.Contains(own, c.Name) })
	}
	return s
}

// FinalStatus returns the recorded status of a pod that ended.
func FinalStatus(o *api.OffloadedPod) corev1.PodStatus {
	var s corev1.PodStatus
	if o.Status.PodStatus != nil {
		// If it cannot be decoded, the phase is enough.
		_ = json.Unmarshal(o.Status.PodStatus.Raw, &s)
	}
	s.Phase = o.Status.Phase
	if s.Reason == "" {
		s.Reason = o.Status.Reason
	}
	if s.Message == "" {
		s.Message = o.Status.Message
	}
	return s
}

// IsPodOf reports whether a pod was created for an OffloadedPod.
func IsPodOf(pod *corev1.Pod, o *api.OffloadedPod) bool {
	if pod.Labels[api.LabelManaged] != api.Manager || pod.Labels[api.LabelOriginUID] != o.Spec.OriginUID {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.UID == o.UID
}
