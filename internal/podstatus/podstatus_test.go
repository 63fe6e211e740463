package podstatus

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podstatus/podstatustest"
	"github.com/entente-dev/entente/peering"
)

var testNow = metav1.Unix(1_000_000, 0)

func testView() Addresses {
	return Addresses{Host: netip.MustParseAddr("10.1.2.3"), Translate: podstatustest.Translate}
}

func TestPodsAbroadHaveAnAddressOfHomesFirstFamilyFirst(t *testing.T) {
	t.Parallel()
	as := func(a netip.Addr) (netip.Addr, bool) { return a, true }
	for host, want := range map[string][]corev1.PodIP{
		"10.1.2.3": {{IP: "10.200.0.7"}, {IP: "fd00::7"}}, "fd00::3": {{IP: "fd00::7"}, {IP: "10.200.0.7"}}, "": {{IP: "10.200.0.7"}, {IP: "fd00::7"}},
	} {
		v := Addresses{Translate: as}
		if host != "" {
			v.Host = netip.MustParseAddr(host)
		}
		remote := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.200.0.7", PodIPs: []corev1.PodIP{{IP: "10.200.0.7"}, {IP: "fd00::7"}, {IP: "fd00::8"}}}
		got := Translate(&corev1.Pod{}, &remote, v, testNow)
		if !slices.Equal(got.PodIPs, want) || got.PodIP != want[0].IP {
			t.Errorf("on a node at %q the pod is at %s, %v; want %v", host, got.PodIP, got.PodIPs, want)
		}
	}
}

// A pod that does not end by itself was deleted if it ended, whatever its containers returned then.
func TestAPodThatRunsForEverNeverSucceedsAbroad(t *testing.T) {
	t.Parallel()
	always, never, onFailure := corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	own := new(corev1.ContainerRestartPolicyNever)
	for name, test := range map[string]struct {
		policy   corev1.RestartPolicy
		own      *corev1.ContainerRestartPolicy
		deleting bool
		remote   corev1.PodStatus
		phase    corev1.PodPhase
		reason   string
	}{
		"its containers end well":           {policy: always, remote: corev1.PodStatus{Phase: corev1.PodSucceeded}, phase: corev1.PodFailed, reason: ReasonPodDeleted},
		"its containers fail":               {policy: always, remote: corev1.PodStatus{Phase: corev1.PodFailed}, phase: corev1.PodFailed, reason: ReasonPodDeleted},
		"it is evicted":                     {policy: always, remote: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, phase: corev1.PodFailed, reason: "Evicted"},
		"it runs":                           {policy: always, remote: corev1.PodStatus{Phase: corev1.PodRunning}, phase: corev1.PodRunning},
		"it is deleted at home":             {policy: always, deleting: true, remote: corev1.PodStatus{Phase: corev1.PodSucceeded}, phase: corev1.PodSucceeded},
		"its containers may end":            {policy: always, own: own, remote: corev1.PodStatus{Phase: corev1.PodSucceeded}, phase: corev1.PodSucceeded},
		"one that may complete, does":       {policy: onFailure, remote: corev1.PodStatus{Phase: corev1.PodSucceeded}, phase: corev1.PodSucceeded},
		"one that may fail, does":           {policy: never, remote: corev1.PodStatus{Phase: corev1.PodFailed}, phase: corev1.PodFailed},
		"one that may fail, is deleted too": {policy: never, deleting: true, remote: corev1.PodStatus{Phase: corev1.PodFailed}, phase: corev1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: test.policy, Containers: []corev1.Container{{Name: "c", RestartPolicy: test.own}}}}
			if test.deleting {
				pod.DeletionTimestamp = &testNow
			}
			test.remote.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "PodCompleted"}}
			for how, got := range map[string]corev1.PodStatus{
				"shown": Translate(pod, &test.remote, testView(), testNow),
				"gone":  Failed(pod, &test.remote, testView(), test.reason, "gone", testNow),
			} {
				if how == "gone" && !Terminal(test.remote.Phase) {
					continue
				}
				if got.Phase != test.phase || got.Reason != test.reason || (got.Message != "") != (test.reason == ReasonPodDeleted) {
					t.Errorf("%s: it is %s %q %q, want %s %q", how, got.Phase, got.Reason, got.Message, test.phase, test.reason)
				}
				if c := Condition(got.Conditions, corev1.PodReady); got.Reason == ReasonPodDeleted && (c.Status != corev1.ConditionFalse || c.Reason != "PodFailed") {
					t.Errorf("%s: ready is %s %q", how, c.Status, c.Reason)
				}
			}
		})
	}
}

func TestTranslateStatusKeepsHomeConditions(t *testing.T) {
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}
	running := corev1.ContainerStatus{Name: "c", Ready: true, RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: testNow}}}
	tests := map[string]struct {
		local  corev1.PodStatus
		spec   corev1.PodSpec
		remote corev1.PodStatus
		want   corev1.PodStatus
		waits  string
	}{
		"a running pod has its addresses in home terms": {
			remote: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: "10.200.0.7", PodIPs: []corev1.PodIP{{IP: "10.200.0.7"}}, HostIP: "192.168.0.1",
				StartTime: &testNow, ContainerStatuses: []corev1.ContainerStatus{running},
			},
			want: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: "10.241.0.7", PodIPs: []corev1.PodIP{{IP: "10.241.0.7"}}, StartTime: &testNow,
				ContainerStatuses: []corev1.ContainerStatus{running},
			},
		},
		"an address that is not the provider's is not shown": {
			remote: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.96.0.1", PodIPs: []corev1.PodIP{{IP: "10.96.0.1"}, {IP: "nonsense"}}},
			want:   corev1.PodStatus{Phase: corev1.PodRunning},
		},
		"a container that the pod does not have is not shown": {
			remote: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "other"}, running}},
			want:   corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running}},
		},
		"a terminal state stays as it is": {
			local:  corev1.PodStatus{Phase: corev1.PodSucceeded, Reason: "Done"},
			remote: corev1.PodStatus{Phase: corev1.PodRunning},
			want:   corev1.PodStatus{Phase: corev1.PodSucceeded, Reason: "Done"},
		},
		"conditions of home stay, those of a kubelet follow": {
			local: corev1.PodStatus{QOSClass: corev1.PodQOSBurstable, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "NodeNotReady"},
			}},
			remote: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBestEffort, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Reason: "theirs"},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
				{Type: api.PodOffloaded, Status: corev1.ConditionFalse},
			}},
			want: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			}},
		},
		"a pod without a node at the provider shows that": {
			local: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}},
			remote: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available: 3 Insufficient cpu."},
			}},
			want:  corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}},
			waits: "the provider has taken the pod and no node for it yet: 0/3 nodes are available: 3 Insufficient cpu.",
		},
		"a pod is not ready before its readiness gates at home are": {
			spec:   corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "lb"}}},
			remote: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "lb", Status: corev1.ConditionTrue}}},
			want: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady", Message: `the status of pod readiness gate "lb" is not True`},
			}},
		},
		"of two addresses of one family the first is shown": {
			remote: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.200.0.7"}, {IP: "10.200.0.8"}, {IP: "::ffff:10.200.0.9"}}},
			want:   corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.241.0.7", PodIPs: []corev1.PodIP{{IP: "10.241.0.7"}}},
		},
		"a container that must not run again stays terminated": {
			spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c"}}},
			local: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}},
			}},
			remote: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running}},
			want: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
				{Name: "c", RestartCount: 2, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}},
			}},
		},
		"a long message is cut": {
			remote: corev1.PodStatus{Phase: corev1.PodPending, Message: strings.Repeat("é", MaxMessageBytes)},
			want:   corev1.PodStatus{Phase: corev1.PodPending, Message: strings.Repeat("é", MaxMessageBytes/2)},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := test.spec
			if s.Containers == nil {
				s.Containers = spec.Containers
			}
			pod := &corev1.Pod{Spec: s, Status: test.local}
			remote := clean(&test.remote)
			got := Translate(pod, remote, testView(), testNow)
			if !Terminal(test.local.Phase) {
				test.want.HostIP, test.want.HostIPs = "10.1.2.3", []corev1.HostIP{{IP: "10.1.2.3"}}
				taken := corev1.PodCondition{Type: api.PodOffloaded, Status: corev1.ConditionTrue, Reason: reasonAccepted, LastTransitionTime: testNow}
				if test.waits != "" {
					taken.Reason, taken.Message = ReasonUnschedulable, test.waits
				}
				test.want.Conditions = append(test.want.Conditions, taken)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			pod.Status = got
			if diff := cmp.Diff(got, Translate(pod, remote, testView(), metav1.Unix(2_000_000, 0))); diff != "" {
				t.Errorf("the same word twice changes the status (-first +second):\n%s", diff)
			}
		})
	}
}

func TestFailedStatusEndsWhatRan(t *testing.T) {
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	got := Failed(pod, nil, testView(), "RemotePodGone", "gone", testNow)
	if got.Phase != corev1.PodFailed || got.ContainerStatuses[0].State.Terminated == nil || got.ContainerStatuses[0].Ready || got.Conditions[0].Status != corev1.ConditionFalse {
		t.Errorf("got %+v, want a failed pod whose container is terminated and not ready", got)
	}
	last := &corev1.PodStatus{Phase: corev1.PodSucceeded}
	if got := Failed(pod, last, testView(), "RemotePodGone", "gone", testNow); got.Phase != corev1.PodSucceeded {
		t.Errorf("a pod whose last status was success is %s", got.Phase)
	}
}

// The API server at home adds the condition when it evicts a pod, and a Job at home goes by it.
func TestADisruptionAtHomeOutlivesTheProvidersStatus(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"}}},
	}
	for name, last := range map[string]*corev1.PodStatus{
		"without one":            nil,
		"without that condition": {Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}},
		"with a former one":      {Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse}}},
	} {
		got := Failed(pod, last, testView(), "Deleted", "gone", testNow)
		if c := Condition(got.Conditions, corev1.DisruptionTarget); got.Phase != corev1.PodFailed || c == nil || c.Status != corev1.ConditionTrue || len(got.ContainerStatuses) > 0 {
			t.Errorf("%s it ends as %+v", name, got)
		}
	}
}

func TestForgedStatusIsReducedToWhatHomeUses(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	data, err := json.Marshal(podstatustest.Forged(2000))
	if err != nil {
		t.Fatal(err)
	}
	forged := podstatustest.Forged(2000)
	forged.InitContainerStatuses, forged.EphemeralContainerStatuses = nil, nil // so that it is not refused for its size
	if _, err := Decode(data); err == nil {
		t.Errorf("a status of %d bytes was read, the limit is %d", len(data), MaxStatusBytes)
	}
	got := Translate(pod, clean(forged), testView(), testNow)
	c := got.ContainerStatuses[0]
	if len(got.ContainerStatuses) != 1 || c.Resources != nil || c.AllocatedResources != nil || c.AllocatedResourcesStatus != nil ||
		c.VolumeMounts != nil || c.User != nil || c.StopSignal != nil || c.RestartCount != 0 || c.State.Waiting != nil {
		t.Errorf("container status is %+v", c)
	}
	if got.Resources != nil || got.AllocatedResources != nil || got.Resize != "" || got.ObservedGeneration != 0 || got.NominatedNodeName != "" ||
		got.QOSClass != "" || got.ResourceClaimStatuses != nil || got.HostIP != "10.1.2.3" {
		t.Errorf("status is %+v", got)
	}
	var types []string
	for _, c := range got.Conditions {
		types = append(types, string(c.Type)+"="+string(c.Status))
	}
	if diff := cmp.Diff([]string{"Ready=Unknown", "PodResizePending=True", "PodResizeInProgress=True", "entente.dev/Offloaded=True"}, types); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if data, err := json.Marshal(got); err != nil || len(data) > MaxMessagesBytes+8<<10 {
		t.Errorf("the status has %d bytes, %v", len(data), err)
	}
}

func TestPodStatusTextsCannotDrawOnATerminal(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	remote := clean(podstatustest.Forged(2000))
	for name, got := range map[string]corev1.PodStatus{
		"a pod that runs":       Translate(pod, remote, testView(), testNow),
		"a pod that is gone":    Failed(pod, remote, testView(), "RemotePodGone", "gone", testNow),
		"a pod that is refused": Waiting(pod, "NotOffloadable", remote.Message+podstatustest.Forged(2000).Message, testNow),
	} {
		if text := drawing(reflect.ValueOf(got)); text != "" {
			t.Errorf("%s: its status has the text %q", name, text)
		}
	}
}

// drawing returns a text in a value that could draw on a terminal.
func drawing(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); s != peering.Text(s, len(s)) {
			return s
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return drawing(v.Elem())
		}
	case reflect.Struct:
		for _, f := range v.Fields() {
			if s := drawing(f); s != "" {
				return s
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if s := drawing(v.Index(i)); s != "" {
				return s
			}
		}
	}
	return ""
}

// Whatever a provider sends, it is an error or a status that can be shown.
func FuzzRemoteStatus(f *testing.F) {
	f.Add([]byte(`{"phase":"Running","podIP":"10.200.0.7","containerStatuses":[{"name":"c","restartCount":-1,"state":{"running":{}}}]}`))
	f.Add([]byte(`{"phase":"Nonsense"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		remote, err := Decode(data)
		if err != nil {
			return
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		got := Translate(pod, remote, testView(), testNow)
		if len(got.ContainerStatuses) > 1 || len(got.Message) > MaxMessageBytes || len(got.PodIPs) > 2 {
			t.Errorf("more than the limits: %+v", got)
		}
		for _, ip := range got.PodIPs {
			if !strings.HasPrefix(ip.IP, "10.241.") {
				t.Errorf("address %s is not the provider's", ip.IP)
			}
		}
		if _, err := json.Marshal(Failed(pod, remote, testView(), "r", "m", testNow)); err != nil {
			t.Error(err)
		}
	})
}
