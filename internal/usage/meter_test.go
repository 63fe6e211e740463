package usage

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func amountsIn(texts ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, text := range texts {
		name, amount, _ := strings.Cut(text, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return out
}

func TestPodsCountOnceTheProviderTookThem(t *testing.T) {
	t.Parallel()
	pod := func(change func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: amountsIn("cpu=500m", "memory=1Gi")}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue}}},
		}
		if change != nil {
			change(&p)
		}
		return p
	}
	for name, tc := range map[string]struct {
		pods []corev1.Pod
		used corev1.ResourceList
		left int
	}{
		"nothing":                                {used: corev1.ResourceList{}},
		"two pods":                               {[]corev1.Pod{pod(nil), pod(nil)}, amountsIn("cpu=1", "memory=2Gi", "pods=2"), 2},
		"a pod that ended uses nothing":          {[]corev1.Pod{pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, corev1.ResourceList{}, 0},
		"a pod that is being deleted still does": {[]corev1.Pod{pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })}, amountsIn("cpu=500m", "memory=1Gi", "pods=1"), 1},
		"one that the provider did not take is there, and uses nothing": {
			[]corev1.Pod{pod(func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })}, corev1.ResourceList{}, 1,
		},
		"the home cluster's overhead is not the provider's": {
			[]corev1.Pod{pod(func(p *corev1.Pod) { p.Spec.Overhead = amountsIn("cpu=1") })}, amountsIn("cpu=500m", "memory=1Gi", "pods=1"), 1,
		},
		"a DaemonSet's pod runs elsewhere": {[]corev1.Pod{pod(func(p *corev1.Pod) {
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: &yes}}
		})}, corev1.ResourceList{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			used, left := OfPods(tc.pods, nil)
			if diff := cmp.Diff(tc.used, used); diff != "" || left != tc.left {
				t.Errorf("%d are left, want %d; they use (-want +got):\n%s", left, tc.left, diff)
			}
		})
	}
}

// As the provider counts them, which makes the pods so.
func TestPodsWithoutRequestsCountTheContractsDefaults(t *testing.T) {
	t.Parallel()
	given := &v1alpha1.LimitRange{Container: &v1alpha1.ContainerLimitRange{DefaultRequest: v1alpha1.LimitedResources(amountsIn("cpu=100m", "memory=64Mi"))}}
	pods := []corev1.Pod{{
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "a"}, {Name: "b", Resources: corev1.ResourceRequirements{Requests: amountsIn("cpu=1")}},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue}}},
	}}
	before := pods[0].DeepCopy()
	used, _ := OfPods(pods, given)
	if diff := cmp.Diff(amountsIn("cpu=1100m", "memory=128Mi", "pods=1"), used); diff != "" {
		t.Errorf("they use (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, &pods[0]); diff != "" {
		t.Errorf("the pod has changed:\n%s", diff)
	}
}

func TestAmountsFinerThanAMeterAreRoundedUp(t *testing.T) {
	t.Parallel()
	got := Using(corev1.ResourceList{"cpu": resource.MustParse("100n"), "memory": resource.MustParse("1e3"), "pods": resource.MustParse("2"), "x": {}, "y": resource.MustParse("-1")})
	if diff := cmp.Diff(map[string]string{"cpu": "1", "memory": "1k", "pods": "2"}, got.Strings()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
