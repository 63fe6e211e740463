package vk

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// A pod on a virtual node is resized as one on any other: by its subresource, which home's API
// server allows since the pod's status has its resources.
func TestAPodIsResizedOnARealAPIServer(t *testing.T) {
	r := newReal(t)
	ctx := t.Context()
	r.start()
	defer func() { r.stop() }()
	r.remote.connect(true)
	r.until("the node is ready", func() bool { n := r.office(); return n != nil && readyOf(n).Status == corev1.ConditionTrue })
	cpu := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
	}
	web := r.bind("web", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = cpu("1") })
	running := func(has string, conditions ...corev1.PodCondition) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.200.0.7", Conditions: append(conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}), ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			AllocatedResources: cpu(has), Resources: &corev1.ResourceRequirements{Requests: cpu(has)},
		}}}
	}
	shows := func(has string) bool {
		list := r.pod("web").Status.ContainerStatuses
		return len(list) == 1 && list[0].Resources != nil && list[0].Resources.Requests.Cpu().Cmp(resource.MustParse(has)) == 0 &&
			list[0].AllocatedResources.Cpu().Cmp(resource.MustParse(has)) == 0
	}
	pending := func(reason, words string) bool {
		c := podstatus.Condition(r.pod("web").Status.Conditions, corev1.PodResizePending)
		return c != nil && c.Reason == reason && strings.Contains(c.Message, words)
	}
	resize := func(to string) error {
		_, err := r.owner.CoreV1().Pods("shop").Patch(ctx, "web", types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"`+to+`"}}}]}}`), metav1.PatchOptions{}, "resize")
		return err
	}
	observed := func() bool { // the status is of the pod as it is now
		p := r.pod("web")
		ready := podstatus.Condition(p.Status.Conditions, corev1.PodReady)
		return p.Status.ObservedGeneration == p.Generation && ready != nil && ready.ObservedGeneration == p.Generation
	}
	asked := func(to string) (same bool) {
		r.remote.locked(func() {
			for ref, o := range r.remote.held {
				same = same || ref.UID == string(web.UID) && strings.Contains(string(o.JSON), `"requests":{"cpu":"`+to+`"}`)
			}
		})
		return same
	}
	r.until("the pod runs", func() bool { return r.pod("web").Status.Phase == corev1.PodRunning })
	r.remote.set(string(web.UID), running("1"))
	r.until("it shows what it has", func() bool { return shows("1") && observed() })

	if err := resize("2"); err != nil {
		t.Fatal(err)
	}
	r.until("the provider is asked for more", func() bool { return asked("2") })
	if observed() {
		t.Error("the pod says that it was resized before it was")
	}
	r.remote.set(string(web.UID), running("1", corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}))
	r.until("the pod says that it is resized", func() bool {
		return podstatus.Condition(r.pod("web").Status.Conditions, corev1.PodResizeInProgress) != nil && shows("1")
	})
	r.remote.set(string(web.UID), running("2"))
	r.until("the pod has it", func() bool {
		return podstatus.Condition(r.pod("web").Status.Conditions, corev1.PodResizeInProgress) == nil && shows("2") && observed()
	})

	refusal := &peering.Refusal{Reason: peering.RefusedQuota, Message: "the contract has 2 cpu", Retryable: true}
	r.remote.locked(func() { r.remote.refuse = func(peering.Object) *peering.Refusal { return refusal } })
	if err := resize("3"); err != nil {
		t.Fatal(err)
	}
	r.until("the pod says why it is not resized", func() bool {
		return pending(corev1.PodReasonDeferred, "the contract has 2 cpu") && shows("2") && observed()
	})
	r.until("so does an event", func() bool {
		list, err := r.owner.CoreV1().Events("shop").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
		return err == nil && slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, "the contract has 2 cpu") })
	})
	r.remote.locked(func() { r.remote.refuse = nil })
	if err := resize("2"); err != nil {
		t.Fatal(err)
	}
	r.until("a resize that was taken back is no longer pending", func() bool {
		return podstatus.Condition(r.pod("web").Status.Conditions, corev1.PodResizePending) == nil
	})
	// Home's API server knows how large the contract is.
	if err := resize("5"); err == nil || !strings.Contains(err.Error(), "allocatable") {
		t.Errorf("a resize beyond the contract was taken: %v", err)
	}
}
