package podstatus

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// Reasons that a local pod shows in addition to those of the provider and of its virtual node.
// kubectl prints a pod's reason as its status.
const (
	ReasonNotApplicable = "NotApplicable"
	ReasonPeerLost      = "PeerLost"
	ReasonUnschedulable = corev1.PodReasonUnschedulable
	ReasonPodDeleted    = "PodDeleted"
	// ReasonRemoteDeleting: the provider's cluster deletes the pod by itself.
	ReasonRemoteDeleting = "RemoteDeleting"
	reasonAccepted       = "Accepted"
)

// MessagePodDeleted says what ReasonPodDeleted means.
const MessagePodDeleted = "the pod was deleted or evicted in the provider's cluster, by its owner or its node; it is not run again"

// Decode decodes the status that a provider sent.
func Decode(data []byte) (*corev1.PodStatus, error) {
	if len(data) > MaxStatusBytes {
		return nil, fmt.Errorf("pod status of %d bytes, the limit is %d", len(data), MaxStatusBytes)
	}
	var s corev1.PodStatus
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("malformed pod status: %w", err)
	}
	switch s.Phase {
	case "", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown:
	default:
		return nil, fmt.Errorf("pod status has the unknown phase %q", peering.Text(string(s.Phase), MaxReasonBytes))
	}
	return clean(&s), nil
}

// clean returns the parts of a provider's status that home uses: the phase, the addresses, the
// conditions that a kubelet sets, and each container's state, counters, image, ID, CPU and memory,
// which podspec.ShowResources limits to the resources that home asked for. It drops everything
// else, clips texts, and removes terminal control characters.
func clean(in *corev1.PodStatus) *corev1.PodStatus {
	m := messages{left: MaxMessagesBytes}
	out := &corev1.PodStatus{
		Phase: in.Phase, Reason: peering.Text(in.Reason, MaxReasonBytes), Message: m.take(in.Message, MaxMessageBytes),
		StartTime: in.StartTime, PodIP: peering.Text(in.PodIP, maxAddressBytes),
	}
	for _, ip := range in.PodIPs[:min(len(in.PodIPs), maxPodIPs)] {
		out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: peering.Text(ip.IP, maxAddressBytes)})
	}
	for _, c := range in.Conditions {
		if !takenCondition(c.Type) && !unscheduled(&c) || Condition(out.Conditions, c.Type) != nil {
			continue
		}
		switch c.Status {
		case corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown:
		default:
			c.Status = corev1.ConditionUnknown
		}
		out.Conditions = append(out.Conditions, corev1.PodCondition{
			Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: peering.Text(c.Reason, MaxReasonBytes), Message: m.take(c.Message, MaxMessageBytes),
		})
	}
	room := maxContainerStatuses
	for _, l := range []struct{ in, out *[]corev1.ContainerStatus }{
		{&in.InitContainerStatuses, &out.InitContainerStatuses},
		{&in.ContainerStatuses, &out.ContainerStatuses},
		{&in.EphemeralContainerStatuses, &out.EphemeralContainerStatuses},
	} {
		*l.out = cleanContainers((*l.in)[:min(len(*l.in), room)], &m)
		room -= len(*l.out)
	}
	return out
}

// takenCondition reports whether a kubelet sets a condition and it has a meaning at home.
func takenCondition(t corev1.PodConditionType) bool {
	return slices.Contains([]corev1.PodConditionType{
		corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers, corev1.DisruptionTarget,
	}, t) || podspec.ResizeCondition(t)
}

// unscheduled reports whether a provider's condition says that no node takes the pod. Home's own
// condition is True, for the virtual node.
func unscheduled(c *corev1.PodCondition) bool {
	return c != nil && c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
}

// messages counts the bytes of messages that one status may still have.
type messages struct{ left int }

func (m *messages) take(s string, n int) string {
	s = peering.Text(s, min(n, m.left))
	m.left -= len(s)
	return s
}

func cleanContainers(in []corev1.ContainerStatus, m *messages) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range in {
		c := &in[i]
		sizes, allocated := podspec.SizesOf(c)
		out = append(out, corev1.ContainerStatus{
			Resources: sizes, AllocatedResources: allocated,
			Name: peering.Text(c.Name, maxNameBytes), Ready: c.Ready, RestartCount: max(c.RestartCount, 0), Started: c.Started,
			State: cleanState(c.State, m), LastTerminationState: cleanState(c.LastTerminationState, m),
			Image: peering.Text(c.Image, maxImageBytes), ImageID: peering.Text(c.ImageID, maxImageBytes),
			ContainerID: peering.Text(c.ContainerID, MaxReasonBytes),
		})
	}
	return out
}

// cleanState keeps one state of several: a container has only one.
func cleanState(in corev1.ContainerState, m *messages) corev1.ContainerState {
	switch {
	case in.Terminated != nil:
		t := in.Terminated
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: t.ExitCode, Signal: t.Signal, StartedAt: t.StartedAt, FinishedAt: t.FinishedAt,
			Reason: peering.Text(t.Reason, MaxReasonBytes), Message: m.take(t.Message, maxTerminationBytes),
			ContainerID: peering.Text(t.ContainerID, MaxReasonBytes),
		}}
	case in.Running != nil:
		return corev1.ContainerState{Running: in.Running}
	case in.Waiting != nil:
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: peering.Text(in.Waiting.Reason, MaxReasonBytes), Message: m.take(in.Waiting.Message, MaxMessageBytes),
		}}
	}
	return corev1.ContainerState{}
}

// Addresses translates a provider's addresses into those of home.
type Addresses struct {
	// Translate returns the address under which home reaches a provider's pod.
	Translate func(netip.Addr) (netip.Addr, bool)
	// Host is the virtual node's address.
	Host netip.Addr
}

// Translate returns the local status of a pod for remote, the provider's status as returned by
// Decode. Containers, phase, reasons, start and conditions are the provider's. Addresses are those
// under which home reaches the provider's, without any others. Conditions set by others at home,
// the QoS class and everything that only home knows stay. A terminal phase never changes, and a
// container that must not run again stays terminated. A pod that runs for ever failed if it ended, unless home
// deletes it, too.
func Translate(pod *corev1.Pod, remote *corev1.PodStatus, v Addresses, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	if Terminal(out.Phase) {
		return out
	}
	if remote.Phase != "" && remote.Phase != corev1.PodUnknown {
		out.Phase = remote.Phase
	}
	out.Reason, out.Message = remote.Reason, remote.Message
	out.StartTime = remote.StartTime.DeepCopy()
	staysEnded := func(c *corev1.Container, code int32) bool { return staysEnded(pod.Spec.RestartPolicy, c, code) }
	out.InitContainerStatuses = containerStatuses(pod.Status.InitContainerStatuses, remote.InitContainerStatuses, containersOf(pod.Spec.InitContainers), staysEnded)
	out.ContainerStatuses = containerStatuses(pod.Status.ContainerStatuses, remote.ContainerStatuses, containersOf(pod.Spec.Containers), staysEnded)
	out.EphemeralContainerStatuses = containerStatuses(pod.Status.EphemeralContainerStatuses, remote.EphemeralContainerStatuses, podspec.Ephemeral(&pod.Spec),
		func(*corev1.Container, int32) bool { return true })

	out.PodIP, out.PodIPs = "", v.homeIPs(remote)
	if len(out.PodIPs) > 0 {
		out.PodIP = out.PodIPs[0].IP
	}
	if v.Host.IsValid() {
		out.HostIP = v.Host.String()
		out.HostIPs = []corev1.HostIP{{IP: out.HostIP}}
	}
	mergeConditions(pod, &out, remote.Conditions)
	podspec.ShowResources(pod, &out)
	taken := corev1.PodCondition{Type: api.PodOffloaded, Status: corev1.ConditionTrue, Reason: reasonAccepted}
	if c := Condition(remote.Conditions, corev1.PodScheduled); unscheduled(c) {
		taken.Reason, taken.Message = ReasonUnschedulable, "the provider has taken the pod and no node for it yet: "+c.Message
	}
	SetCondition(&out, taken, now)
	if Terminal(out.Phase) && pod.DeletionTimestamp == nil && RunsForEver(&pod.Spec) && (out.Phase == corev1.PodSucceeded || out.Reason == "") {
		out.Phase, out.Reason, out.Message = corev1.PodFailed, ReasonPodDeleted, MessagePodDeleted
		notReady(&out, now)
	}
	return out
}

// RunsForEver reports whether a pod does not end by itself, since one of its containers is always started again. Its
// node ends it, and says why, or it is deleted: then its phase says what its containers returned, which means nothing.
func RunsForEver(s *corev1.PodSpec) bool {
	return s.RestartPolicy == corev1.RestartPolicyAlways && slices.ContainsFunc(s.Containers, func(c corev1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
}

// ReplacedAtOnce reports whether a pod that the provider's cluster deletes is deleted at home at once: it does not complete,
// and a controller makes another.
func ReplacedAtOnce(pod *corev1.Pod) bool {
	return metav1.GetControllerOf(pod) != nil && RunsForEver(&pod.Spec)
}

// ShowDeleting shows in the new status of a pod since when the provider's cluster deletes it; zero if it does not. Unless it
// is deleted at home, too, Services do not know that it shuts down: so it is not ready. Its containers are, as a kubelet
// says of a pod that it ends.
func ShowDeleting(pod *corev1.Pod, out *corev1.PodStatus, since time.Time) {
	if since.IsZero() || ReplacedAtOnce(pod) || Terminal(out.Phase) {
		return
	}
	ready := corev1.PodCondition{
		Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: ReasonRemoteDeleting, LastTransitionTime: metav1.NewTime(since),
		Message: "the provider's cluster is deleting the pod, so Services do without it while it shuts down there",
	}
	if was := Condition(pod.Status.Conditions, corev1.PodReady); was != nil {
		ready.ObservedGeneration = was.ObservedGeneration // until ShowGeneration sets the current one
		if was.Status == corev1.ConditionFalse {
			ready.LastTransitionTime = was.LastTransitionTime
		}
	}
	replace(out, ready)
}

// ShowsDeleting reports whether a pod's status says that the provider's cluster deletes it.
func ShowsDeleting(pod *corev1.Pod) bool {
	c := Condition(pod.Status.Conditions, corev1.PodReady)
	return c != nil && c.Reason == ReasonRemoteDeleting
}

// ShowGeneration sets observedGeneration in the new status of a pod whose current form the provider has
// acknowledged, once the containers have the requested resources or a condition says that they do not. API
// servers without a generation of pods get none.
func ShowGeneration(pod *corev1.Pod, out *corev1.PodStatus) {
	if pod.Generation == 0 || !podspec.ShowsSizes(&pod.Spec, out) {
		return
	}
	out.ObservedGeneration = pod.Generation
	for i := range out.Conditions {
		if c := &out.Conditions[i]; takenCondition(c.Type) || c.Type == corev1.PodScheduled {
			c.ObservedGeneration = pod.Generation
		}
	}
}

// homeIPs returns the addresses under which home reaches a pod: the first of each family, as the
// API server allows one of each. That of the node's family comes first, as of all pods at home: the
// provider's first family may be another one.
func (v Addresses) homeIPs(remote *corev1.PodStatus) []corev1.PodIP {
	var out []corev1.PodIP
	var has4, has6 bool
	for _, ip := range append(slices.Clone(remote.PodIPs), corev1.PodIP{IP: remote.PodIP}) {
		home, ok := v.home(ip.IP)
		if !ok || home.Is4() && has4 || home.Is6() && has6 {
			continue
		}
		has4, has6 = has4 || home.Is4(), has6 || home.Is6()
		at := len(out)
		if home.Is4() == v.Host.Is4() && v.Host.IsValid() {
			at = 0
		}
		out = slices.Insert(out, at, corev1.PodIP{IP: home.String()})
	}
	return out
}

// home returns the address under which home reaches one of the provider's.
func (v Addresses) home(ip string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(ip)
	if err != nil || v.Translate == nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	h, ok := v.Translate(a.Unmap())
	return h.Unmap(), ok && h.IsValid()
}

// mergeConditions merges the provider's conditions that a kubelet sets. Readiness gates are set at
// home, so Ready is decided here.
func mergeConditions(pod *corev1.Pod, out *corev1.PodStatus, remote []corev1.PodCondition) {
	// A kubelet removes these when it has acted.
	out.Conditions = slices.DeleteFunc(out.Conditions, func(c corev1.PodCondition) bool { return podspec.ResizeCondition(c.Type) })
	gates := map[corev1.PodConditionType]bool{}
	for _, g := range pod.Spec.ReadinessGates {
		gates[g.ConditionType] = true
	}
	for _, c := range remote {
		if gates[c.Type] || unscheduled(&c) {
			continue
		}
		before := Condition(pod.Status.Conditions, c.Type)
		if c.Type == corev1.DisruptionTarget && c.Status != corev1.ConditionTrue && before != nil && before.Status == corev1.ConditionTrue {
			continue // home evicts it, and its Job may go by that
		}
		if before != nil {
			c.ObservedGeneration = before.ObservedGeneration // until ShowGeneration sets the current one
		}
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			if missing := gatesNotMet(pod, out.Conditions); missing != "" {
				c.Status, c.Reason, c.Message = corev1.ConditionFalse, "ReadinessGatesNotReady", missing
			}
		}
		replace(out, c)
	}
}

func gatesNotMet(pod *corev1.Pod, have []corev1.PodCondition) string {
	var missing []string
	for _, g := range pod.Spec.ReadinessGates {
		if c := Condition(have, g.ConditionType); c == nil || c.Status != corev1.ConditionTrue {
			missing = append(missing, fmt.Sprintf("the status of pod readiness gate %q is not True", g.ConditionType))
		}
	}
	return strings.Join(missing, "; ")
}

// containerStatuses returns the statuses in is of the pod's containers, in the pod's order. A
// container that is terminated at home and must not run again keeps its state: the API server
// refuses a status in which it runs. stays reports whether a container stays terminated after it
// ended with an exit code.
func containerStatuses(was, is []corev1.ContainerStatus, containers []*corev1.Container, stays func(*corev1.Container, int32) bool) []corev1.ContainerStatus {
	byName := func(list []corev1.ContainerStatus) map[string]*corev1.ContainerStatus {
		m := map[string]*corev1.ContainerStatus{}
		for i := range list {
			m[list[i].Name] = &list[i]
		}
		return m
	}
	before, now := byName(was), byName(is)
	var out []corev1.ContainerStatus
	for _, c := range containers {
		s := now[c.Name]
		if s == nil {
			continue
		}
		s = s.DeepCopy()
		if b := before[c.Name]; b != nil && b.State.Terminated != nil && s.State.Terminated == nil && stays(c, b.State.Terminated.ExitCode) {
			s.State, s.Ready = *b.State.DeepCopy(), false
		}
		out = append(out, *s)
	}
	return out
}

// staysEnded reports whether a container that ended with an exit code does not run again. One with
// a restart policy of its own may.
func staysEnded(p corev1.RestartPolicy, c *corev1.Container, code int32) bool {
	return c.RestartPolicy == nil && (p == corev1.RestartPolicyNever || p == corev1.RestartPolicyOnFailure && code == 0)
}

// ShowRefusedEphemeral shows why the provider refused the pod with its new ephemeral containers, in
// the statuses of those that the provider does not have: kubectl debug prints that.
func ShowRefusedEphemeral(s *corev1.PodStatus, spec *corev1.PodSpec, r *peering.Refusal) {
	if Terminal(s.Phase) {
		return
	}
	for _, c := range podspec.Ephemeral(spec) {
		if slices.ContainsFunc(s.EphemeralContainerStatuses, func(have corev1.ContainerStatus) bool { return have.Name == c.Name }) {
			continue
		}
		s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: r.Reason.Condition(), Message: peering.Text(r.Message, MaxMessageBytes),
			}},
		})
	}
}

// Failed is the status of a pod that is gone at the provider: its last status there if
// that was final, else Failed.
func Failed(pod *corev1.Pod, last *corev1.PodStatus, v Addresses, reason, message string, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	if last != nil {
		out = Translate(pod, last, v, now)
	}
	if Terminal(out.Phase) {
		return out
	}
	out.Phase, out.Reason, out.Message = corev1.PodFailed, reason, message
	end := func(list []corev1.ContainerStatus) {
		for i := range list {
			c := &list[i]
			c.Ready = false
			c.Started = new(false)
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
	notReady(&out, now)
	return out
}

// notReady sets the conditions of a pod that failed.
func notReady(out *corev1.PodStatus, now metav1.Time) {
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		if Condition(out.Conditions, t) != nil {
			SetCondition(out, corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: "PodFailed"}, now)
		}
	}
}

// Least is the status to write when the API server refuses a whole one: only the phase, and whether
// the pod is ready. Everything else stays as the API server has it, and so is valid.
func Least(pod *corev1.Pod, want corev1.PodStatus, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	if Terminal(out.Phase) {
		return out
	}
	out.Phase, out.Reason, out.Message = want.Phase, want.Reason, want.Message
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, api.PodOffloaded} {
		if c := Condition(want.Conditions, t); c != nil {
			SetCondition(&out, corev1.PodCondition{Type: t, Status: c.Status, Reason: c.Reason, Message: c.Message}, now)
		}
	}
	return out
}

// Lost is the status of a pod whose provider does not respond: as it was, but not ready.
func Lost(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	SetCondition(&out, corev1.PodCondition{
		Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: ReasonPeerLost,
		Message: "the provider does not respond, so it is not known whether the pod serves; it goes on running there; see the Ready condition of its node",
	}, now)
	return out
}

// Waiting is the status of a pod that the provider did not take (yet).
func Waiting(pod *corev1.Pod, reason, message string, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	if Terminal(out.Phase) {
		return out
	}
	out.Phase, out.Reason, out.Message = corev1.PodPending, reason, peering.Text(message, MaxMessageBytes)
	SetCondition(&out, corev1.PodCondition{
		Type: api.PodOffloaded, Status: corev1.ConditionFalse, Reason: reason, Message: out.Message,
	}, now)
	return out
}

// Accepted is the status of a pod that the provider took, but has not sent a status of.
func Accepted(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	out := *pod.Status.DeepCopy()
	out.Reason, out.Message = "", ""
	SetCondition(&out, corev1.PodCondition{Type: api.PodOffloaded, Status: corev1.ConditionTrue, Reason: reasonAccepted}, now)
	return out
}

// NotApplicable is the status of a pod that is not run here because its namespace is not offloaded.
// A pod of a DaemonSet is still ready: it has nothing to do on this node, and while it is not ready
// its DaemonSet updates no other node. It has no address, so no Service sends traffic to it. The
// chart's placement.daemonSets keeps such pods off the node.
func NotApplicable(pod *corev1.Pod, message string, now metav1.Time) corev1.PodStatus {
	out := Waiting(pod, ReasonNotApplicable, message, now)
	if o := metav1.GetControllerOf(pod); o != nil && o.Kind == "DaemonSet" && !Terminal(out.Phase) {
		SetCondition(&out, corev1.PodCondition{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: ReasonNotApplicable,
			Message: "nothing has to run on a virtual node, so the DaemonSet need not wait for it",
		}, now)
	}
	return out
}

// Urgent reports whether a status changes something on which others at home act: the phase, the
// address, or a condition that decides about readiness or placement.
func Urgent(was, is *corev1.PodStatus) bool {
	if was.Phase != is.Phase || was.PodIP != is.PodIP {
		return true
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, api.PodOffloaded} {
		a, b := Condition(was.Conditions, t), Condition(is.Conditions, t)
		if (a == nil) != (b == nil) || a != nil && a.Status != b.Status {
			return true
		}
	}
	return false
}

// Patch is the patch from a pod's status to another, with its UID as a precondition.
func Patch(pod *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	was, err := json.Marshal(corev1.Pod{Status: pod.Status})
	if err != nil {
		return nil, err
	}
	is, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: status})
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(was, is, corev1.Pod{})
}

// Terminal reports whether a pod in this phase no longer runs.
func Terminal(p corev1.PodPhase) bool {
	return p == corev1.PodSucceeded || p == corev1.PodFailed
}

// Offloaded reports whether the provider is known to have taken the pod. That never changes: after a
// restart it shows that the pod was sent.
func Offloaded(pod *corev1.Pod) bool {
	c := Condition(pod.Status.Conditions, api.PodOffloaded)
	return c != nil && c.Status == corev1.ConditionTrue
}

// NotTaken says, as a kubelet does of a container that has not started, why the provider has not taken a pod. Without
// a container it is about the pod.
func NotTaken(pod *corev1.Pod, container string) string {
	what := fmt.Sprintf("pod %q", pod.Name)
	if container != "" {
		what = fmt.Sprintf("container %q in %s", container, what)
	}
	if Terminal(pod.Status.Phase) {
		what += " never started"
	} else {
		what += " is waiting to start"
	}
	why := slices.DeleteFunc([]string{pod.Status.Reason, pod.Status.Message}, func(s string) bool { return s == "" })
	return what + ": " + cmp.Or(strings.Join(why, ": "), "the provider has not taken it yet")
}

// Condition returns the condition of a type, or nil.
func Condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

func replace(s *corev1.PodStatus, c corev1.PodCondition) {
	if old := Condition(s.Conditions, c.Type); old != nil {
		*old = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

// SetCondition sets a condition of ours; its time changes only with its status.
func SetCondition(s *corev1.PodStatus, c corev1.PodCondition, now metav1.Time) {
	c.LastTransitionTime = now
	if old := Condition(s.Conditions, c.Type); old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	replace(s, c)
}

func containersOf(list []corev1.Container) []*corev1.Container {
	out := make([]*corev1.Container, 0, len(list))
	for i := range list {
		out = append(out, &list[i])
	}
	return out
}
