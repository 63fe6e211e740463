package handback

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

const (
	ignore  = batchv1.PodFailurePolicyActionIgnore
	failJob = batchv1.PodFailurePolicyActionFailJob
	in      = batchv1.PodFailurePolicyOnExitCodesOpIn
	notIn   = batchv1.PodFailurePolicyOnExitCodesOpNotIn
)

// on is a rule about a condition that is True.
func on(action batchv1.PodFailurePolicyAction, condition corev1.PodConditionType) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: condition, Status: corev1.ConditionTrue}}}
}

func exits(action batchv1.PodFailurePolicyAction, operator batchv1.PodFailurePolicyOnExitCodesOperator, codes ...int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: operator, Values: codes}}
}

func TestAJobsRulesDecideWhetherItsPodsAreHandedBack(t *testing.T) {
	t.Parallel()
	disruption := on(ignore, corev1.DisruptionTarget)
	undisturbed := on(ignore, corev1.DisruptionTarget)
	undisturbed.OnPodConditions[0].Status = corev1.ConditionFalse
	for name, tc := range map[string]struct {
		rules []batchv1.PodFailurePolicyRule
		stays string
	}{
		"without rules":                         {nil, "ignores the condition DisruptionTarget"},
		"with one that ignores disruptions":     {[]batchv1.PodFailurePolicyRule{disruption}, ""},
		"before one about all exit codes":       {[]batchv1.PodFailurePolicyRule{disruption, exits(failJob, notIn, 0)}, ""},
		"after one about all exit codes":        {[]batchv1.PodFailurePolicyRule{exits(failJob, notIn, 0), disruption}, "rule 1"},
		"after one about a killed container":    {[]batchv1.PodFailurePolicyRule{exits(failJob, in, 137), disruption}, "rule 1"},
		"after one about all but these":         {[]batchv1.PodFailurePolicyRule{exits(failJob, notIn, 0, 137, 143), disruption}, ""},
		"after one about the program's own":     {[]batchv1.PodFailurePolicyRule{exits(failJob, in, 42), disruption}, ""},
		"after one that counts them":            {[]batchv1.PodFailurePolicyRule{exits(batchv1.PodFailurePolicyActionCount, notIn, 0), disruption}, "rule 1"},
		"after one that fails the index":        {[]batchv1.PodFailurePolicyRule{exits(batchv1.PodFailurePolicyActionFailIndex, notIn, 0), disruption}, "rule 1"},
		"after one that ignores exit codes":     {[]batchv1.PodFailurePolicyRule{exits(ignore, notIn, 0), disruption}, ""},
		"with exit codes that are ignored":      {[]batchv1.PodFailurePolicyRule{exits(ignore, notIn, 0)}, "ignores the condition"},
		"that fails when it is disturbed":       {[]batchv1.PodFailurePolicyRule{on(failJob, corev1.DisruptionTarget), disruption}, "rule 1"},
		"that fails when a pod was taken":       {[]batchv1.PodFailurePolicyRule{on(failJob, v1alpha1.PodOffloaded), disruption}, "rule 1"},
		"that fails by another condition":       {[]batchv1.PodFailurePolicyRule{on(failJob, "ConfigIssue"), disruption}, ""},
		"that ignores what was not disturbed":   {[]batchv1.PodFailurePolicyRule{undisturbed}, "ignores the condition"},
		"that ignores it where the pod was too": {[]batchv1.PodFailurePolicyRule{on(ignore, v1alpha1.PodOffloaded)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := stuck("p", owned("Job"))
			if why := (jobRules{rules: tc.rules}).counts(&p); (why == "") != (tc.stays == "") || !strings.Contains(why, tc.stays) {
				t.Errorf("it stays because %q, want %q", why, tc.stays)
			}
		})
	}
}

// Each Job is read once, a few at a time, whatever its pods do.
func TestJobsAreReadOnce(t *testing.T) {
	t.Parallel()
	const jobs = maxJobReads + 5
	now := start.Add(defaultAfter)
	office := virtualNode("office", "abc")
	objects := []client.Object{&office, &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading"}, Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyLocalAndRemote},
	}}
	for i := range jobs {
		name := fmt.Sprint("job-", i)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
		if i > 0 {
			job.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{on(ignore, corev1.DisruptionTarget)}}
		}
		if i != 1 { // that one is gone
			objects = append(objects, job)
		}
		for j := range 2 {
			p := stuck(fmt.Sprint(name, "-", j), owned("Job"))
			p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = name, job.UID
			objects = append(objects, &p)
		}
	}
	var reads []string
	forbid := ""
	c := interceptor.NewClient(peertest.Client(t, objects...), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, is := o.(*batchv1.Job); is {
				if reads = append(reads, key.Name); key.Name == forbid {
					return apierrors.NewForbidden(batchv1.Resource("jobs"), key.Name, nil)
				}
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	r := &Reconciler{Client: c, Direct: c, Events: events.NewFakeRecorder(1000), Now: func() time.Time { return now }}
	reconcile := func(forbidden string) {
		t.Helper()
		reads, forbid = nil, forbidden
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "offloading"}}); err != nil {
			t.Fatal(err)
		}
	}
	reconcile("job-2")
	if len(reads) != maxJobReads {
		t.Errorf("%d Jobs are read at once", len(reads))
	}
	reconcile("")
	if len(reads) < jobs-maxJobReads || slices.Contains(reads, "job-3") {
		t.Errorf("then are read %v", reads)
	}
	reconcile("")
	if !slices.Equal(reads, []string{"job-1"}) {
		t.Errorf("in the end %v is read", reads)
	}
	now = now.Add(placementLag)
	reconcile("")
	var left corev1.PodList
	if err := c.List(t.Context(), &left); err != nil {
		t.Fatal(err)
	}
	of := map[string]int{}
	for i := range left.Items {
		of[left.Items[i].OwnerReferences[0].Name]++
	}
	if of["job-0"] != 2 || of["job-1"] != 2 || len(of) > 2 {
		t.Errorf("left are %v", of)
	}
}

// More Jobs than are read at a time, none of which the agent may read, have their events all the same.
func TestJobsThatTheAgentMayNotReadAreAllReported(t *testing.T) {
	t.Parallel()
	const jobs = maxJobReads + 5
	office := virtualNode("office", "abc")
	objects := []client.Object{&office, &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading"}, Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyLocalAndRemote},
	}}
	for i := range jobs {
		p := stuck(fmt.Sprint("job-", i), owned("Job"))
		p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = p.Name, types.UID(p.Name)
		objects = append(objects, &p)
	}
	read := map[string]bool{}
	c := interceptor.NewClient(peertest.Client(t, objects...), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, is := o.(*batchv1.Job); is {
				read[key.Name] = true
				return apierrors.NewForbidden(batchv1.Resource("jobs"), key.Name, nil)
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	recorder := events.NewFakeRecorder(1000)
	r := &Reconciler{Client: c, Direct: c, Events: recorder, Now: func() time.Time { return start.Add(defaultAfter) }}
	for range 2 {
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "offloading"}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(read) != jobs || len(recorder.Events) != jobs {
		t.Errorf("%d of %d Jobs were read, and %d events written", len(read), jobs, len(recorder.Events))
	}
}
