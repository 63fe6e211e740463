package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// priorityClass gives a cluster a class, until the test ends.
func priorityClass(ctx context.Context, t *testing.T, s *Side, name string, value int32, preempts corev1.PreemptionPolicy) {
	t.Helper()
	c := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, PreemptionPolicy: &preempts}
	OK(t, s.Client.Create(ctx, c))
	t.Cleanup(func() { OK(t, s.Client.Delete(context.WithoutCancel(ctx), c)) })
}

// mapPriorities has a cluster's policy map classes of its consumers, until the test ends.
func mapPriorities(ctx context.Context, t *testing.T, s *Side, mappings ...v1alpha1.PriorityMapping) {
	t.Helper()
	set := func(ctx context.Context, m []v1alpha1.PriorityMapping) {
		var policy v1alpha1.PeeringPolicy
		OK(t, s.Client.Get(ctx, ctrlclient.ObjectKey{Name: "entente-default"}, &policy))
		before := policy.DeepCopy()
		policy.Spec.PriorityClassMappings = m
		OK(t, s.Client.Patch(ctx, &policy, ctrlclient.MergeFrom(before)))
	}
	set(ctx, mappings)
	t.Cleanup(func() { set(context.WithoutCancel(ctx), nil) })
}

// spareCPU is how many thousandths of a core no pod on the cluster's own node has requested.
func spareCPU(ctx context.Context, t *testing.T, s *Side) int64 {
	t.Helper()
	var node corev1.Node
	OK(t, s.Client.Get(ctx, ctrlclient.ObjectKey{Name: s.Node()}, &node))
	spare := node.Status.Allocatable.Cpu().MilliValue()
	pods, err := s.Pods(ctx, "", nil)
	OK(t, err)
	for _, p := range pods {
		if p.Spec.NodeName == node.Name && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			for _, c := range p.Spec.Containers {
				spare -= c.Resources.Requests.Cpu().MilliValue()
			}
		}
	}
	return spare
}

// TestPodsAbroadHaveThePriorityThatThePolicyNames fills the provider's node with a pod of its own. A pod of a class that
// the policy maps, and that may not preempt, waits; one whose class may takes the place of the provider's pod; and one of a
// class that is not mapped has none.
func TestPodsAbroadHaveThePriorityThatThePolicyNames(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	const value, peersValue, wanted, left = 1000, 2000, 200, 100
	for _, class := range []string{"urgent", "patient", "unknown"} {
		priorityClass(ctx, t, w.Home, class, value, corev1.PreemptLowerPriority)
	}
	priorityClass(ctx, t, w.Abroad, "peers-urgent", peersValue, corev1.PreemptLowerPriority)
	priorityClass(ctx, t, w.Abroad, "peers-patient", peersValue, corev1.PreemptNever)
	mapPriorities(ctx, t, w.Abroad,
		v1alpha1.PriorityMapping{From: "urgent", To: "peers-urgent", Preemption: corev1.PreemptLowerPriority},
		v1alpha1.PriorityMapping{From: "patient", To: "peers-patient"})
	requesting := func(p *corev1.Pod, millis int64) *corev1.Pod {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(millis, resource.DecimalSI)}
		return p
	}
	filler := requesting(WebPod("default", "filler", map[string]string{"app": "filler"}), spareCPU(ctx, t, w.Abroad)-left)
	OK(t, w.Abroad.Create(ctx, filler))
	t.Cleanup(func() { OK(t, ctrlclient.IgnoreNotFound(w.Abroad.Client.Delete(context.WithoutCancel(ctx), filler))) })
	_, err := w.Abroad.PodsReady(ctx, Scheduled, filler.Namespace, filler.Labels, 1)
	OK(t, err)

	pod := func(class string, millis int64) *corev1.Pod {
		p := requesting(WebPod(shop, class, map[string]string{"app": class}), millis)
		p.Spec.PriorityClassName = class
		OK(t, w.Home.Create(ctx, p))
		return p
	}
	has := func(p *corev1.Pod, class string, priority int32, preempts corev1.PreemptionPolicy) {
		t.Helper()
		twin, err := w.Abroad.Twin(ctx, p)
		OK(t, err)
		s := twin.Spec
		if s.PriorityClassName != class || s.Priority == nil || *s.Priority != priority || s.PreemptionPolicy == nil || *s.PreemptionPolicy != preempts {
			t.Errorf("%s has class %q, priority %v and preemption policy %v abroad, want %q, %d and %s",
				p.Name, s.PriorityClassName, s.Priority, s.PreemptionPolicy, class, priority, preempts)
		}
	}
	patient, unknown := pod("patient", wanted), pod("unknown", 0)
	_, err = w.Home.PodsReady(ctx, Scheduled, shop, unknown.Labels, 1)
	OK(t, err)
	has(unknown, "", 0, corev1.PreemptLowerPriority)
	OK(t, w.Until(ctx, Soon, "no node to take what may not preempt", func(ctx context.Context) (string, error) {
		twin, err := w.Abroad.Twin(ctx, patient)
		if err != nil {
			return "", err
		}
		for _, c := range twin.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return "", nil
			}
		}
		return fmt.Sprintf("its conditions are %+v", twin.Status.Conditions), nil
	}))
	has(patient, "peers-patient", peersValue, corev1.PreemptNever)
	OK(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(filler), filler))
	if !filler.DeletionTimestamp.IsZero() {
		t.Error("a pod of a class that may not preempt has done so")
	}

	urgent := pod("urgent", wanted)
	for _, p := range []*corev1.Pod{urgent, patient} {
		_, err = w.Home.PodsReady(ctx, Scheduled, shop, p.Labels, 1)
		OK(t, err)
	}
	has(urgent, "peers-urgent", peersValue, corev1.PreemptLowerPriority)
	OK(t, w.Until(ctx, Soon, "the provider's pod of a lower priority to be gone", func(ctx context.Context) (string, error) {
		err := w.Abroad.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(filler), filler)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is " + PodText(filler), err
	}))
}
