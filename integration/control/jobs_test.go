package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

// cordon keeps new pods off the real nodes of a cluster, until uncordon is called or the test ends.
func cordon(t *testing.T, c *cluster) (uncordon func()) {
	t.Helper()
	set := func(ctx context.Context, on bool) {
		nodes, err := list[corev1.NodeList](ctx, c)
		if err != nil {
			t.Error(err)
			return
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			if n.Labels[v1alpha1.LabelVirtualNode] != "" {
				continue
			}
			if err := c.client.Patch(ctx, n, ctrlclient.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on))); err != nil {
				t.Error(err)
			}
		}
	}
	set(t.Context(), true)
	t.Cleanup(func() { set(context.WithoutCancel(t.Context()), false) })
	return func() { set(t.Context(), false) }
}

func disrupted(action batchv1.PodFailurePolicyAction) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}
}

func exits(action batchv1.PodFailurePolicyAction, operator batchv1.PodFailurePolicyOnExitCodesOperator, code int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: operator, Values: []int32{code}}}
}

// jobOf returns a Job that tolerates no failure but by its rules.
func jobOf(namespace, name string, pods int32, rules ...batchv1.PodFailurePolicyRule) *batchv1.Job {
	template := pod(namespace, "", func(p *corev1.Pod) {
		p.Spec.RestartPolicy, p.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, nil
	}).Spec
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: batchv1.JobSpec{
			Completions: &pods, Parallelism: &pods, BackoffLimit: new(int32(0)), PodReplacementPolicy: new(batchv1.Failed),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: rules}, Template: corev1.PodTemplateSpec{Spec: template},
		},
	}
}

// podsOf returns the pods of a Job that are not being deleted, or an error if it failed or counts a failure.
func podsOf(ctx context.Context, home *cluster, job *batchv1.Job) ([]corev1.Pod, error) {
	if err := home.get(ctx, job.Name, job); err != nil {
		return nil, eventually.Permanent(err)
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobFailed || c.Type == batchv1.JobFailureTarget) && c.Status == corev1.ConditionTrue {
			return nil, eventually.Permanent(fmt.Errorf("job %s failed: %s: %s", job.Name, c.Reason, c.Message))
		}
	}
	if job.Status.Failed > 0 || job.Status.FailedIndexes != nil && *job.Status.FailedIndexes != "" {
		return nil, eventually.Permanent(fmt.Errorf("job %s counts failures: %+v", job.Name, job.Status))
	}
	all, err := list[corev1.PodList](ctx, home, inNamespace(job.Namespace), ctrlclient.MatchingLabels{batchv1.JobNameLabel: job.Name})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

// TestJobsGoOnAfterTheirPodsAreHandedBack has the pods of Jobs cross to a provider that has no node for them. Jobs that
// ignore disruptions complete at home, and no pod counts as failed, though these Jobs tolerate no failure; one that
// would fail by that is left alone.
func TestJobsGoOnAfterTheirPodsAreHandedBack(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	namespace, _ := offloadedBy(t, home, abroad, v1alpha1.StrategyLocalAndRemote)
	soonBack := []byte(`{"spec":{"unschedulable":{"after":"10s"}}}`)
	if err := home.client.Patch(ctx, offloadingOf(namespace, nil), ctrlclient.RawPatch("application/merge-patch+json", soonBack)); err != nil {
		t.Fatal(err)
	}
	uncordon := cordon(t, home)
	cordon(t, abroad)

	indexed := jobOf(namespace, "indexed", 3, disrupted(batchv1.PodFailurePolicyActionIgnore), exits(batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyOnExitCodesOpNotIn, 0))
	indexed.Spec.CompletionMode, indexed.Spec.BackoffLimit, indexed.Spec.BackoffLimitPerIndex = new(batchv1.IndexedCompletion), nil, new(int32(0))
	plain := jobOf(namespace, "plain", 2, exits(batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyOnExitCodesOpIn, 42),
		disrupted(batchv1.PodFailurePolicyActionIgnore), exits(batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyOnExitCodesOpNotIn, 0))
	strict := jobOf(namespace, "strict", 1, disrupted(batchv1.PodFailurePolicyActionFailJob))
	jobs := []*batchv1.Job{indexed, plain, strict}
	first := map[string][]corev1.Pod{}
	for _, job := range jobs {
		if err := home.client.Create(ctx, job); err != nil {
			t.Fatal(err)
		}
	}
	for _, job := range jobs {
		err := eventually.Is(ctx, later, "the pods of "+job.Name+" to be abroad", func(ctx context.Context) error {
			pods, err := podsOf(ctx, home, job)
			if err != nil || len(pods) != int(*job.Spec.Completions) {
				return errors.Join(err, fmt.Errorf("there are %d", len(pods)))
			}
			for i := range pods {
				if pods[i].Spec.NodeName != nodeName {
					return fmt.Errorf("%s is on %q: %+v", pods[i].Name, pods[i].Spec.NodeName, pods[i].Status.Conditions)
				}
			}
			first[job.Name] = pods
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	uncordon()
	for _, job := range jobs[:2] {
		completesAtHome(t, home, job)
	}
	left, err := podsOf(ctx, home, strict)
	if err != nil || len(left) != 1 || left[0].UID != first[strict.Name][0].UID {
		t.Errorf("of %s there are %d pods, %v", strict.Name, len(left), err)
	}
	err = eventually.Is(ctx, soon, "an event of the pod that stays", func(ctx context.Context) error {
		events, err := list[corev1.EventList](ctx, home, inNamespace(namespace))
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.UID == first[strict.Name][0].UID && e.Reason == "NotHandedBack" && strings.Contains(e.Message, "FailJob") {
				return nil
			}
		}
		return fmt.Errorf("there are %d others", len(events.Items))
	})
	if err != nil {
		t.Error(err)
	}
}

// completesAtHome waits until a Job is complete, and expects that its pods ran on real nodes of home. The nodes have
// pods of Jobs succeed after a moment.
func completesAtHome(t *testing.T, home *cluster, job *batchv1.Job) {
	t.Helper()
	var pods []corev1.Pod
	err := eventually.Is(t.Context(), 2*later, "job "+job.Name+" to be complete", func(ctx context.Context) (err error) {
		if pods, err = podsOf(ctx, home, job); err != nil {
			return err
		}
		if job.Status.Succeeded != *job.Spec.Completions || job.Status.CompletionTime == nil {
			return fmt.Errorf("its status is %+v", job.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if p := &pods[i]; p.Spec.NodeName == nodeName || p.Status.Phase != corev1.PodSucceeded {
			t.Errorf("%s is %s on %q", p.Name, p.Status.Phase, p.Spec.NodeName)
		}
	}
}
