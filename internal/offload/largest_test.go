package offload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// largestPod returns a pod with as many containers as a provider accepts, each with the longest name.
func largestPod(t *testing.T) *podspec.Template {
	t.Helper()
	var pod podspec.Template
	container := func(i int) corev1.Container {
		name := fmt.Sprintf("%s-%03d", strings.Repeat("c", 59), i)
		return corev1.Container{Name: name, Image: strings.Repeat("<", 64)}
	}
	for i := range podspec.MaxContainers / 4 {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(i))
	}
	for i := range podspec.MaxContainers - len(pod.Spec.InitContainers) {
		pod.Spec.Containers = append(pod.Spec.Containers, container(100+i))
	}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	for i := range 256 {
		pod.Spec.SecurityContext.SupplementalGroups = append(pod.Spec.SecurityContext.SupplementalGroups, 1<<31-1-int64(i))
	}
	raw, err := json.Marshal(pod)
	if err != nil || len(raw) > maxPodBytes {
		t.Fatalf("the pod has %d bytes, want at most %d, %v", len(raw), maxPodBytes, err)
	}
	if _, err := readPod(raw); err != nil {
		t.Fatal(err)
	}
	return &pod
}

// ofKubelet returns the status that a kubelet writes of a pod that ended, at its longest. text is what its consumer
// can choose: images, and what its containers leave as their last messages.
func ofKubelet(pod *podspec.Template, text string) corev1.PodStatus {
	now := metav1.Unix(1_800_000_000, 0)
	sizes := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("123456789m"), corev1.ResourceMemory: resource.MustParse("9223372036854775807")}
	id := "containerd://" + strings.Repeat("f", 64)
	all := len(pod.Spec.InitContainers) + len(pod.Spec.Containers)
	status := func(c *corev1.Container) corev1.ContainerStatus {
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 7, Reason: "ContainerStatusUnknown", StartedAt: now, FinishedAt: now, ContainerID: id,
			Message: strings.Repeat(text, (12<<10)/all/len(text)),
		}}
		s := corev1.ContainerStatus{
			Name: c.Name, State: ended, LastTerminationState: ended, RestartCount: 1000, Started: new(false), ContainerID: id,
			Image: strings.Repeat(text, 1024), ImageID: strings.Repeat(text, 1024), AllocatedResources: sizes,
			Resources: &corev1.ResourceRequirements{Requests: sizes, Limits: sizes},
			User:      &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{SupplementalGroups: pod.Spec.SecurityContext.SupplementalGroups}},
		}
		for i := range 20 {
			s.VolumeMounts = append(s.VolumeMounts, corev1.VolumeMountStatus{Name: fmt.Sprint("volume-", i), MountPath: fmt.Sprint("/var/lib/mounts/", i), ReadOnly: true})
		}
		return s
	}
	s := corev1.PodStatus{Phase: corev1.PodSucceeded, StartTime: &now, PodIP: "10.200.0.7", PodIPs: []corev1.PodIP{{IP: "10.200.0.7"}}}
	for _, t := range []corev1.PodConditionType{
		corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers, corev1.DisruptionTarget, corev1.PodScheduled,
	} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: "PodCompleted", Message: strings.Repeat(text, 1024)})
	}
	for i := range pod.Spec.InitContainers {
		s.InitContainerStatuses = append(s.InitContainerStatuses, status(&pod.Spec.InitContainers[i]))
	}
	for i := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, status(&pod.Spec.Containers[i]))
	}
	return s
}

// Home runs a pod again whose end it did not receive.
func TestTheEndOfTheLargestPodReachesHome(t *testing.T) {
	t.Parallel()
	template := largestPod(t)
	raw, err := json.Marshal(template)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a", "<", `"`, "é", "\x00"} {
		status := ofKubelet(template, text)
		o := &api.OffloadedPod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop-aaaaaaaa", Name: "web"},
			Spec:       api.OffloadedPodSpec{OriginNamespace: "shop", OriginName: "web", OriginUID: "u1", Template: runtime.RawExtension{Raw: raw}},
			Status:     api.OffloadedPodStatus{PodUID: "r1", Phase: corev1.PodRunning},
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: types.UID("r1")}, Status: status}
		running, ok := statusOf(o, pod, true)
		if !ok {
			t.Fatal("the pod has no status to send")
		}
		checkEnd(t, fmt.Sprintf("of %q, while the pod exists", text), template, running)

		o.Status.Phase = status.Phase
		if err := keepStatus(o, status); err != nil {
			t.Fatal(err)
		}
		if n := len(o.Status.PodStatus.Raw); n > wire.MaxStatusBytes {
			t.Errorf("of %q, the record of the end has %d bytes", text, n)
		}
		recorded, ok := statusOf(o, nil, true)
		if !ok || !recorded.Gone {
			t.Fatalf("the recorded end is %t, gone %t", ok, recorded.Gone)
		}
		checkEnd(t, fmt.Sprintf("of %q, once it is deleted", text), template, recorded)
	}
}

// checkEnd checks that home learns from a status that its pod succeeded, and how each container ended.
func checkEnd(t *testing.T, what string, template *podspec.Template, s peering.PodStatus) {
	t.Helper()
	got, err := wire.PodStatusFrom(wire.PodStatusTo(s).GetStatus())
	if err != nil || !bytes.Equal(got.Status, s.Status) {
		t.Errorf("%s: home refuses a status of %d bytes: %v", what, len(s.Status), err)
		return
	}
	remote, err := podstatus.Decode(got.Status)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	local := &corev1.Pod{Spec: template.Spec, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	home := podstatus.Addresses{Host: netip.MustParseAddr("10.1.2.3")}
	shown := podstatus.Failed(local, remote, home, "RemotePodGone", "gone", metav1.Unix(1_900_000_000, 0))
	if shown.Phase != corev1.PodSucceeded || len(shown.InitContainerStatuses) != len(template.Spec.InitContainers) || len(shown.ContainerStatuses) != len(template.Spec.Containers) {
		t.Errorf("%s: home shows %s, with %d and %d containers", what, shown.Phase, len(shown.InitContainerStatuses), len(shown.ContainerStatuses))
	}
	for _, c := range append(shown.InitContainerStatuses, shown.ContainerStatuses...) {
		if end := c.State.Terminated; end == nil || end.ExitCode != 7 || end.Reason == "" || end.FinishedAt.IsZero() || c.RestartCount != 1000 {
			t.Errorf("%s: home shows of container %s %+v", what, c.Name, c)
			return
		}
	}
}
