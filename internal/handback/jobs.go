package handback

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// countsAsFailed begins why a pod of a Job stays, and deleteIt ends it.
const (
	countsAsFailed = "its Job would count it as failed"
	deleteIt       = ": delete it, and another runs elsewhere"
)

// jobRules is the rules of a Job's podFailurePolicy, which never change, or why they are not known.
type jobRules struct {
	rules   []batchv1.PodFailurePolicyRule
	problem string
}

// readJobs returns the rules of the Jobs whose pods may have to be evicted, by UID. It reads a few Jobs at a time:
// the pods of others wait for the next reconcile. Those that were never read are first; those with a problem are read
// again while there is room.
func (r *Reconciler) readJobs(ctx context.Context, f *facts, known map[types.UID]jobRules) (map[types.UID]jobRules, error) {
	out := map[types.UID]jobRules{}
	var unread, problems []*corev1.Pod
	for i := range f.pods {
		p := &f.pods[i]
		owner := metav1.GetControllerOfNoCopy(p)
		if !ofJob(owner) || unscheduled(p) == nil && !backsOff(f.offloading, owner) {
			continue
		}
		switch have, is := known[owner.UID]; {
		case !is:
			unread = append(unread, p)
		case have.problem != "":
			out[owner.UID] = have
			problems = append(problems, p)
		default:
			out[owner.UID] = have
		}
	}
	read := map[types.UID]bool{}
	for _, p := range slices.Concat(unread, problems) {
		owner := metav1.GetControllerOfNoCopy(p)
		if read[owner.UID] {
			continue
		}
		if len(read) == maxJobReads {
			break
		}
		read[owner.UID] = true
		var err error
		if out[owner.UID], err = r.readJob(ctx, p.Namespace, owner); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *Reconciler) readJob(ctx context.Context, namespace string, owner *metav1.OwnerReference) (jobRules, error) {
	var job batchv1.Job
	err := r.Direct.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &job)
	switch {
	case apierrors.IsNotFound(err), err == nil && job.UID != owner.UID:
		return jobRules{problem: "its Job is gone"}, nil
	case apierrors.IsForbidden(err): // the chart is older, or its rights are narrower
		return jobRules{problem: "the agent may not read its Job, which might count it as failed"}, nil
	case err != nil:
		return jobRules{}, fmt.Errorf("read job %s/%s: %w", namespace, owner.Name, err)
	case job.Spec.PodFailurePolicy == nil:
		return jobRules{}, nil
	}
	return jobRules{rules: job.Spec.PodFailurePolicy.Rules}, nil
}

func ofJob(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String()
}

// backsOff reports whether pods of a controller are kept away from a virtual node, or were until a moment ago.
func backsOff(o *v1alpha1.NamespaceOffloading, owner *metav1.OwnerReference) bool {
	return slices.ContainsFunc(o.Status.PlacementBackoffs, func(k v1alpha1.PlacementBackoff) bool { return k.OwnerUID == string(owner.UID) })
}

// counts returns why the Job of a pod might count it as failed once it is evicted, or fail; "" if it makes
// another instead, whatever its backoffLimit and backoffLimitPerIndex. It goes through the rules as the Job
// controller does: the first that matches decides.
func (j jobRules) counts(p *corev1.Pod) string {
	if j.problem != "" {
		return j.problem
	}
	for i := range j.rules {
		rule := &j.rules[i]
		switch {
		case rule.OnExitCodes != nil:
			if rule.Action != batchv1.PodFailurePolicyActionIgnore && matchesKilled(rule.OnExitCodes) {
				return fmt.Sprintf("rule %d of its Job's podFailurePolicy is about exit codes with which a container ends that is stopped, and has the action %s: "+
					"put a rule before it that ignores the condition %s", i+1, rule.Action, corev1.DisruptionTarget)
			}
		case matchesEvicted(rule.OnPodConditions, p.Status.Conditions):
			if rule.Action == batchv1.PodFailurePolicyActionIgnore {
				return ""
			}
			return fmt.Sprintf("rule %d of its Job's podFailurePolicy has the action %s for it once it is evicted", i+1, rule.Action)
		}
	}
	return countsAsFailed + ", as it has no podFailurePolicy that ignores the condition " + string(corev1.DisruptionTarget) + deleteIt
}

// matchesKilled reports whether a rule matches a container that is stopped. A pod that waits for a node has none that
// runs, but it may get a node just as it is evicted.
func matchesKilled(r *batchv1.PodFailurePolicyOnExitCodesRequirement) bool {
	in := r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn
	return slices.ContainsFunc([]int32{137, 143}, func(code int32) bool { return slices.Contains(r.Values, code) == in }) // SIGKILL, SIGTERM
}

// matchesEvicted reports whether one of these patterns matches a pod once it is evicted: the API server then adds the
// condition DisruptionTarget.
func matchesEvicted(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, have []corev1.PodCondition) bool {
	return slices.ContainsFunc(patterns, func(pattern batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
		if pattern.Type == corev1.DisruptionTarget {
			return pattern.Status == corev1.ConditionTrue
		}
		return slices.ContainsFunc(have, func(c corev1.PodCondition) bool { return c.Type == pattern.Type && c.Status == pattern.Status })
	})
}
