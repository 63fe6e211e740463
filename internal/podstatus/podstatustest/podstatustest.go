// Package podstatustest has statuses of providers for tests.
package podstatustest

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Translate knows 10.200.0.0/16 of the provider as 10.241.0.0/16.
func Translate(a netip.Addr) (netip.Addr, bool) {
	if !netip.MustParsePrefix("10.200.0.0/16").Contains(a) {
		return netip.Addr{}, false
	}
	b := a.As4()
	b[1] = 241
	return netip.AddrFrom4(b), true
}

// Forged is a status with all that a provider may forge in it: every field is
// set, and every text has control characters and is long.
func Forged(times int) *corev1.PodStatus {
	text := strings.Repeat("\x1b[31m\r\n\u202e", times)
	one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	state := corev1.ContainerState{
		Waiting:    &corev1.ContainerStateWaiting{Reason: text, Message: text},
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: text, Message: text, ContainerID: text},
	}
	container := corev1.ContainerStatus{
		Name: "c", State: state, LastTerminationState: state, Ready: true, RestartCount: -1, Image: text, ImageID: text, ContainerID: text,
		AllocatedResources: one, Resources: &corev1.ResourceRequirements{Requests: one, Limits: one},
		VolumeMounts:             []corev1.VolumeMountStatus{{Name: text, MountPath: text}},
		User:                     &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: -1}},
		AllocatedResourcesStatus: []corev1.ResourceStatus{{Name: corev1.ResourceName(text)}},
		StopSignal:               new(corev1.Signal("SIGNONE")),
	}
	list := []corev1.ContainerStatus{container, container, {Name: "other"}}
	return &corev1.PodStatus{
		Phase: corev1.PodRunning, Reason: text, Message: text, NominatedNodeName: text, QOSClass: "Forged",
		PodIP: "10.200.0.9", PodIPs: []corev1.PodIP{{IP: "10.200.0.7"}, {IP: "10.200.0.8"}}, HostIP: text, HostIPs: []corev1.HostIP{{IP: text}},
		Resize: corev1.PodResizeStatusInfeasible, ObservedGeneration: 1 << 40, Resources: &corev1.ResourceRequirements{Requests: one}, AllocatedResources: one,
		ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: text}},
		InitContainerStatuses: list, ContainerStatuses: list, EphemeralContainerStatuses: list,
		Conditions: []corev1.PodCondition{
			{Type: "not a qualified name!", Status: "True"},
			{Type: "", Status: "True"},
			{Type: corev1.PodReady, Status: "Perhaps", Reason: text, Message: text},
			{Type: corev1.PodResizePending, Status: "True", Reason: "Infeasible"},
			{Type: corev1.PodResizeInProgress, Status: "True"},
			{Type: corev1.PodScheduled, Status: "False"},
			{Type: api.PodOffloaded, Status: "False"},
		},
	}
}
