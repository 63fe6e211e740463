package vk

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/peering"
)

// ConditionOffloaded tells of a pod whether the provider took it. Once True it
// stays so: after a restart it is how the pod is known to have crossed.
const ConditionOffloaded corev1.PodConditionType = "entente.dev/Offloaded"

// The reasons that a local pod shows besides those of the provider. A pod's
// reason is what kubectl prints as its status.
const (
	ReasonAccepted      = "Accepted"
	ReasonNotApplicable = "NotApplicable"
	ReasonNotOffloaded  = "NotOffloadable"
	ReasonNotTolerated  = "NotTolerated"
	ReasonMissing       = "MissingReference"
	ReasonRemoteGone    = "RemotePodGone"
	ReasonDeleted       = "Deleted"
)

// decodeStatus reads the status that a provider sent.
func decodeStatus(data []byte) (*corev1.PodStatus, error) {
	if len(data) > maxStatusBytes {
		return nil, fmt.Errorf("pod status is %d bytes, at most %d are taken", len(data), maxStatusBytes)
	}
	var s corev1.PodStatus
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("read pod status: %w", err)
	}
	switch s.Phase {
	case "", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown:
	default:
		return nil, fmt.Errorf("pod status has the unknown phase %q", clip(string(s.Phase), maxReasonBytes))
	}
	return &s, nil
}

// view is how this cluster sees addresses.
type view struct {
	// translate returns a provider's pod address in home terms.
	translate func(netip.Addr) (netip.Addr, bool)
	// host is the virtual node's address.
	host netip.Addr
}

// translateStatus returns the local status of a pod by what the provider says of
// it: containers, phase, reasons, start and conditions as they are there;
// addresses in home terms, and only such as belong to the provider; conditions
// that others set at home, QoS class and what only home can know as they were.
// A terminal phase never changes.
func translateStatus(pod *corev1.Pod, remote *corev1.PodStatus, v view, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	if terminal(out.Phase) {
		return out
	}
	if remote.Phase != "" && remote.Phase != corev1.PodUnknown {
		out.Phase = remote.Phase
	}
	out.Reason = clip(remote.Reason, maxReasonBytes)
	out.Message = clip(remote.Message, maxMessageBytes)
	out.StartTime = remote.StartTime.DeepCopy()
	out.InitContainerStatuses = containerStatuses(remote.InitContainerStatuses, namesOf(pod.Spec.InitContainers))
	out.ContainerStatuses = containerStatuses(remote.ContainerStatuses, namesOf(pod.Spec.Containers))
	var ephemeral []string
	for _, c := range pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, c.Name)
	}
	out.EphemeralContainerStatuses = containerStatuses(remote.EphemeralContainerStatuses, ephemeral)

	out.PodIP, out.PodIPs = "", nil
	for i, ip := range remote.PodIPs {
		if i == maxPodIPs {
			break
		}
		if home, ok := v.home(ip.IP); ok {
			out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: home})
		}
	}
	if len(out.PodIPs) == 0 {
		if home, ok := v.home(remote.PodIP); ok {
			out.PodIPs = []corev1.PodIP{{IP: home}}
		}
	}
	if len(out.PodIPs) > 0 {
		out.PodIP = out.PodIPs[0].IP
	}
	if v.host.IsValid() {
		out.HostIP = v.host.String()
		out.HostIPs = []corev1.HostIP{{IP: out.HostIP}}
	}
	mergeConditions(pod, &out, remote.Conditions)
	setConditionAt(&out, corev1.PodCondition{Type: ConditionOffloaded, Status: corev1.ConditionTrue, Reason: ReasonAccepted}, now)
	return out
}

// home returns an address of the provider in home terms.
func (v view) home(ip string) (string, bool) {
	a, err := netip.ParseAddr(ip)
	if err != nil || v.translate == nil {
		return "", false
	}
	h, ok := v.translate(a.Unmap())
	if !ok {
		return "", false
	}
	return h.String(), true
}

// mergeConditions takes over the conditions that a kubelet sets. Readiness gates
// are set at home, so Ready is decided here.
func mergeConditions(pod *corev1.Pod, out *corev1.PodStatus, remote []corev1.PodCondition) {
	gates := map[corev1.PodConditionType]bool{}
	for _, g := range pod.Spec.ReadinessGates {
		gates[g.ConditionType] = true
	}
	for i, c := range remote {
		if i == maxConditions {
			break
		}
		if c.Type == corev1.PodScheduled || gates[c.Type] || strings.HasPrefix(string(c.Type), "entente.dev/") {
			continue
		}
		c.Reason, c.Message = clip(c.Reason, maxReasonBytes), clip(c.Message, maxMessageBytes)
		c.ObservedGeneration = 0
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			if missing := gatesNotMet(pod, out.Conditions); missing != "" {
				c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", missing
			}
		}
		replaceCondition(out, c)
	}
}

func gatesNotMet(pod *corev1.Pod, have []corev1.PodCondition) string {
	var missing []string
	for _, g := range pod.Spec.ReadinessGates {
		if c := findCondition(have, g.ConditionType); c == nil || c.Status != corev1.ConditionTrue {
			missing = append(missing, fmt.Sprintf("the status of pod readiness gate %q is not True", g.ConditionType))
		}
	}
	return strings.Join(missing, "; ")
}

// containerStatuses keeps those of containers that the pod has, in its order.
func containerStatuses(in []corev1.ContainerStatus, names []string) []corev1.ContainerStatus {
	byName := map[string]*corev1.ContainerStatus{}
	for i := range in {
		byName[in[i].Name] = &in[i]
	}
	var out []corev1.ContainerStatus
	for _, n := range names {
		c := byName[n]
		if c == nil {
			continue
		}
		s := *c.DeepCopy()
		s.RestartCount = max(s.RestartCount, 0)
		s.AllocatedResourcesStatus = nil
		out = append(out, s)
	}
	return out
}

// failedStatus is the status of a pod that is gone at the provider: the last
// word of the provider where that was final, else Failed.
func failedStatus(pod *corev1.Pod, last *corev1.PodStatus, v view, reason, message string, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	if last != nil {
		out = translateStatus(pod, last, v, now)
	}
	if terminal(out.Phase) {
		return out
	}
	out.Phase, out.Reason, out.Message = corev1.PodFailed, reason, message
	end := func(list []corev1.ContainerStatus) {
		for i := range list {
			c := &list[i]
			c.Ready = false
			started := false
			c.Started = &started
			if c.State.Terminated != nil {
				continue
			}
			t := &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown",
				Message: "the container could not be found in the provider", FinishedAt: now, ContainerID: c.ContainerID,
			}
			if c.State.Running != nil {
				t.StartedAt = c.State.Running.StartedAt
			}
			c.State = corev1.ContainerState{Terminated: t}
		}
	}
	end(out.InitContainerStatuses)
	end(out.ContainerStatuses)
	end(out.EphemeralContainerStatuses)
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		if findCondition(out.Conditions, t) != nil {
			setConditionAt(&out, corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: "PodFailed"}, now)
		}
	}
	return out
}

// waitingStatus is the status of a pod that the provider did not take (yet).
func waitingStatus(pod *corev1.Pod, reason, message string, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	if terminal(out.Phase) {
		return out
	}
	out.Phase, out.Reason, out.Message = corev1.PodPending, reason, clip(message, maxMessageBytes)
	setConditionAt(&out, corev1.PodCondition{
		Type: ConditionOffloaded, Status: corev1.ConditionFalse, Reason: reason, Message: out.Message,
	}, now)
	return out
}

// refusalReason is a provider's reason as Kubernetes writes such.
func refusalReason(r peering.RefusalReason) string {
	switch r {
	case peering.RefusedQuota:
		return "QuotaExceeded"
	case peering.RefusedContract:
		return "ContractClosed"
	case peering.RefusedPodSecurity:
		return "PodSecurity"
	case peering.RefusedNamespace:
		return "NamespaceRefused"
	case peering.RefusedInvalid:
		return "ObjectInvalid"
	case peering.RefusedInternal:
		return "ProviderError"
	}
	return "Refused"
}

func terminal(p corev1.PodPhase) bool {
	return p == corev1.PodSucceeded || p == corev1.PodFailed
}

// offloadedBefore says whether the provider is known to have taken the pod.
func offloadedBefore(pod *corev1.Pod) bool {
	c := findCondition(pod.Status.Conditions, ConditionOffloaded)
	return c != nil && c.Status == corev1.ConditionTrue
}

func findCondition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// replaceCondition takes a condition over as it is.
func replaceCondition(s *corev1.PodStatus, c corev1.PodCondition) {
	if old := findCondition(s.Conditions, c.Type); old != nil {
		*old = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

// setConditionAt sets a condition of ours; its time changes with its status only.
func setConditionAt(s *corev1.PodStatus, c corev1.PodCondition, now metav1.Time) {
	c.LastTransitionTime = now
	if old := findCondition(s.Conditions, c.Type); old != nil {
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

func namesOf(list []corev1.Container) []string {
	out := make([]string, 0, len(list))
	for _, c := range list {
		out = append(out, c.Name)
	}
	return out
}

// clip cuts a text from outside to n bytes and makes it valid UTF-8.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}
