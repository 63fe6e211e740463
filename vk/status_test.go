package vk

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var testNow = metav1.Unix(1_000_000, 0)

// testView knows 10.200.0.0/16 of the provider as 10.241.0.0/16.
func testView() view {
	return view{host: netip.MustParseAddr("10.1.2.3"), translate: func(a netip.Addr) (netip.Addr, bool) {
		if !netip.MustParsePrefix("10.200.0.0/16").Contains(a) {
			return netip.Addr{}, false
		}
		b := a.As4()
		b[1] = 241
		return netip.AddrFrom4(b), true
	}}
}

func TestTranslateStatus(t *testing.T) {
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}
	running := corev1.ContainerStatus{Name: "c", Ready: true, RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: testNow}}}
	tests := map[string]struct {
		local  corev1.PodStatus
		spec   corev1.PodSpec
		remote corev1.PodStatus
		want   corev1.PodStatus
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
		"what is terminal stays as it is": {
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
				{Type: ConditionOffloaded, Status: corev1.ConditionFalse},
			}},
			want: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			}},
		},
		"a pod is not ready before its readiness gates at home are": {
			spec:   corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "lb"}}},
			remote: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "lb", Status: corev1.ConditionTrue}}},
			want: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady", Message: `the status of pod readiness gate "lb" is not True`},
			}},
		},
		"a long message is cut": {
			remote: corev1.PodStatus{Phase: corev1.PodPending, Message: strings.Repeat("é", maxMessageBytes)},
			want:   corev1.PodStatus{Phase: corev1.PodPending, Message: strings.Repeat("é", maxMessageBytes/2)},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := test.spec
			if s.Containers == nil {
				s.Containers = spec.Containers
			}
			pod := &corev1.Pod{Spec: s, Status: test.local}
			got := translateStatus(pod, &test.remote, testView(), testNow)
			if !terminal(test.local.Phase) {
				test.want.HostIP, test.want.HostIPs = "10.1.2.3", []corev1.HostIP{{IP: "10.1.2.3"}}
				test.want.Conditions = append(test.want.Conditions, corev1.PodCondition{Type: ConditionOffloaded, Status: corev1.ConditionTrue, Reason: ReasonAccepted, LastTransitionTime: testNow})
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			pod.Status = got
			if diff := cmp.Diff(got, translateStatus(pod, &test.remote, testView(), metav1.Unix(2_000_000, 0))); diff != "" {
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
	got := failedStatus(pod, nil, testView(), ReasonRemoteGone, "gone", testNow)
	if got.Phase != corev1.PodFailed || got.ContainerStatuses[0].State.Terminated == nil || got.ContainerStatuses[0].Ready || got.Conditions[0].Status != corev1.ConditionFalse {
		t.Errorf("got %+v, want a failed pod whose container is terminated and not ready", got)
	}
	last := &corev1.PodStatus{Phase: corev1.PodSucceeded}
	if got := failedStatus(pod, last, testView(), ReasonRemoteGone, "gone", testNow); got.Phase != corev1.PodSucceeded {
		t.Errorf("a pod whose last word was success is %s", got.Phase)
	}
}

// Whatever a provider sends, it is an error or a status that can be shown.
func FuzzRemoteStatus(f *testing.F) {
	f.Add([]byte(`{"phase":"Running","podIP":"10.200.0.7","containerStatuses":[{"name":"c","restartCount":-1,"state":{"running":{}}}]}`))
	f.Add([]byte(`{"phase":"Nonsense"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		remote, err := decodeStatus(data)
		if err != nil {
			return
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		got := translateStatus(pod, remote, testView(), testNow)
		if len(got.ContainerStatuses) > 1 || len(got.Message) > maxMessageBytes || len(got.PodIPs) > maxPodIPs {
			t.Errorf("more than the limits: %+v", got)
		}
		for _, ip := range got.PodIPs {
			if !strings.HasPrefix(ip.IP, "10.241.") {
				t.Errorf("address %s is not the provider's", ip.IP)
			}
		}
		if _, err := json.Marshal(failedStatus(pod, remote, testView(), "r", "m", testNow)); err != nil {
			t.Error(err)
		}
	})
}
