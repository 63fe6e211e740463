package podstatus

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// Encode encodes the parts of a pod's status that home uses, so that Decode accepts them whatever pod it is: its
// consumer and its kubelet decide how long a status is, and home would run a pod again whose end it did not receive.
// Of a pod with very many containers the images, IDs, messages and former states are left out.
func Encode(s *corev1.PodStatus) ([]byte, error) {
	out := clean(s)
	b, err := json.Marshal(out)
	if err == nil && len(b) > maxDetailBytes {
		omitDetails(out)
		b, err = json.Marshal(out)
	}
	if err != nil {
		return nil, fmt.Errorf("encode pod status: %w", err)
	}
	return b, nil
}

// omitDetails leaves of each container whether it runs and how it ended, its CPU and its memory.
func omitDetails(s *corev1.PodStatus) {
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			c := &list[i]
			c.Image, c.ImageID, c.ContainerID, c.LastTerminationState = "", "", "", corev1.ContainerState{}
			if t := c.State.Terminated; t != nil {
				t.Reason, t.Message, t.ContainerID = peering.Text(t.Reason, maxBriefBytes), "", ""
			}
			if w := c.State.Waiting; w != nil {
				w.Reason, w.Message = peering.Text(w.Reason, maxBriefBytes), ""
			}
		}
	}
}

// Trim drops the statuses of containers that the pod does not have, so that what is kept of a provider's status
// depends on the pod. One more ephemeral container may be in it than in the pod, since the cache may be behind. The
// status may be nil.
func Trim(s *corev1.PodStatus, spec *corev1.PodSpec) {
	if s == nil {
		return
	}
	s.InitContainerStatuses = statusesOf(containersOf(spec.InitContainers), s.InitContainerStatuses, 0)
	s.ContainerStatuses = statusesOf(containersOf(spec.Containers), s.ContainerStatuses, 0)
	s.EphemeralContainerStatuses = statusesOf(podspec.Ephemeral(spec), s.EphemeralContainerStatuses, 1)
}

// statusesOf returns the statuses of containers, and those of as many others.
func statusesOf(containers []*corev1.Container, list []corev1.ContainerStatus, others int) []corev1.ContainerStatus {
	out := containerStatuses(nil, list, containers, nil)
	for i := range list {
		known := slices.ContainsFunc(containers, func(c *corev1.Container) bool { return c.Name == list[i].Name })
		if !known && others > 0 {
			out, others = append(out, list[i]), others-1
		}
	}
	return out
}

// Bytes returns how much memory a status takes at most that was decoded from JSON of a size. The status may be
// nil.
func Bytes(s *corev1.PodStatus, size int) int {
	if s == nil {
		return size
	}
	return size + containerBytes*(len(s.InitContainerStatuses)+len(s.ContainerStatuses)+len(s.EphemeralContainerStatuses))
}
