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

// Outline reduces what Encode encoded to what controllers at home decide by: phase, reason, message, whether the pod was
// disrupted, and how its containers ended. Where that is too long it has only those that failed, or none. It is nil if
// the status is malformed.
func Outline(encoded []byte) []byte {
	in, err := Decode(encoded)
	if err != nil {
		return nil
	}
	out := &corev1.PodStatus{Phase: in.Phase, Reason: in.Reason, Message: peering.Text(in.Message, MaxReasonBytes)}
	if c := Condition(in.Conditions, corev1.DisruptionTarget); c != nil {
		out.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, Reason: peering.Text(c.Reason, maxBriefBytes), LastTransitionTime: c.LastTransitionTime}}
	}
	for _, keep := range []func(code int32) bool{
		func(int32) bool { return true },
		func(code int32) bool { return code != 0 },
		func(int32) bool { return false },
	} {
		out.InitContainerStatuses, out.ContainerStatuses = ends(in.InitContainerStatuses, keep), ends(in.ContainerStatuses, keep)
		if b, err := json.Marshal(out); err == nil && len(b) <= maxOutlineBytes {
			return b
		}
	}
	return nil
}

// ends returns how those containers ended for which keep returns true, by their exit codes.
func ends(in []corev1.ContainerStatus, keep func(code int32) bool) (out []corev1.ContainerStatus) {
	for i := range in {
		if t := in[i].State.Terminated; t != nil && keep(t.ExitCode) {
			out = append(out, corev1.ContainerStatus{Name: in[i].Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: t.ExitCode, Signal: t.Signal, Reason: peering.Text(t.Reason, maxBriefBytes), StartedAt: t.StartedAt, FinishedAt: t.FinishedAt,
			}}})
		}
	}
	return out
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
