package twonodes

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestPodsOnADeadNodeOfTheProviderAreReplaced switches off the provider's node on which a pod of a Deployment
// runs, and leaves it off. Once the provider's cluster deletes the pod, home's Deployment makes another, which runs
// on the provider's other node. The first one is Terminating until the node is back, and then goes in both.
func TestPodsOnADeadNodeOfTheProviderAreReplaced(t *testing.T) {
	only.Matrix(t, "Kubernetes takes a minute to notice a dead node; the decision is tested in package vk")
	ctx, s := onStage(t)
	w, dead := s.World, second(s.World.Abroad)
	d, _ := e2e.Web(shop, "survivor", 1, e2e.Away)
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		d.Spec.Template.Spec.Tolerations = append(d.Spec.Template.Spec.Tolerations,
			corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))})
	}
	_, err := w.Abroad.Kubectl(ctx, "cordon", w.Abroad.Node())
	ok(t, err)
	t.Cleanup(func() {
		_, err := w.Abroad.Kubectl(context.WithoutCancel(ctx), "uncordon", w.Abroad.Node())
		ok(t, err)
		_, err = w.Home.Kubectl(context.WithoutCancel(ctx), "-n", shop, "delete", "deployment", d.Name, "--ignore-not-found")
		ok(t, err)
	})
	ok(t, w.Home.Create(ctx, d))
	pods, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, d.Labels, 1)
	ok(t, err)
	first := pods[0]
	twin, err := w.Abroad.Twin(ctx, &first)
	ok(t, err)
	if twin.Spec.NodeName != dead {
		t.Fatalf("the pod runs on %s, want %s", twin.Spec.NodeName, dead)
	}
	_, err = w.Abroad.Kubectl(ctx, "uncordon", w.Abroad.Node())
	ok(t, err)

	began := time.Now()
	stopErr := w.Lab.StopNode(ctx, dead)
	t.Cleanup(func() { ok(t, w.Lab.StartNode(context.WithoutCancel(ctx), dead)) }) // one that runs is left alone
	ok(t, stopErr)
	var now corev1.Pod
	ok(t, w.Until(ctx, e2e.Scheduled, "another pod of the Deployment to be ready", func(ctx context.Context) (string, error) {
		pods, err := w.Home.Pods(ctx, shop, d.Labels)
		if err != nil {
			return "", err
		}
		missing, terminating := "there is none", false
		for i := range pods {
			switch p := &pods[i]; {
			case p.UID == first.UID:
				terminating = p.DeletionTimestamp != nil
			case e2e.PodReady(p):
				now, missing = *p, ""
			default:
				missing = e2e.PodText(p)
			}
		}
		if missing == "" && !terminating {
			missing = "the first pod is not there, or is not being deleted"
		}
		return missing, nil
	}))
	t.Logf("another pod is ready %s after the node was switched off", time.Since(began).Round(time.Second))
	twin, err = w.Abroad.Twin(ctx, &now)
	ok(t, err)
	if twin.Spec.NodeName != w.Abroad.Node() {
		t.Errorf("the other pod runs on %s, want %s", twin.Spec.NodeName, w.Abroad.Node())
	}
	ok(t, w.Lab.StartNode(ctx, dead))
	ok(t, w.Until(ctx, e2e.Scheduled, "the first pod to be gone in both clusters", func(ctx context.Context) (string, error) {
		pods, err := w.Home.PodsReady(ctx, e2e.Soon, shop, d.Labels, 1)
		if err != nil || pods[0].UID != now.UID {
			return "another pod is there", err
		}
		left, err := w.Abroad.Pods(ctx, s.twin.Namespace, d.Labels)
		if err == nil && len(left) != 1 {
			return "the provider has both", nil
		}
		return "", err
	}))
	after, err := w.Abroad.Twin(ctx, &now)
	ok(t, err)
	if after.UID != twin.UID {
		t.Error("the other pod was made twice")
	}
	ok(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, s.inn.Name, "http://"+now.Status.PodIP+":8080/name", []corev1.Pod{now}))
	_, err = w.Home.Condition(ctx, e2e.Restarted, "Network", metav1.ConditionTrue)
	ok(t, err)
}
