package control

import (
	"context"
	"errors"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

// TestEndOfAPodOutlivesTheProvidersAgent completes a pod while home's agent is away, deletes all
// objects of it at the provider, and restarts the provider's agent.
func TestEndOfAPodOutlivesTheProvidersAgent(t *testing.T) {
	home, abroad := agents(t)
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	namespace, remote := offloaded(t, home, abroad)
	p := runsOnce(t, home, namespace)
	home.kill()
	theirs := succeed(t, abroad, remote)
	record := &v1alpha1.OffloadedPod{ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: theirs.Name}}
	if err := eventually.Is(t.Context(), later, "home's stream to be over, and the end to be recorded", func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := errors.Join(abroad.get(ctx, record.Name, record), abroad.get(ctx, peerOf(abroad), &fc)); err != nil {
			return eventually.Permanent(err)
		}
		if conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected) == nil || record.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", record.Status.Phase)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := abroad.client.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if err := eventually.Is(t.Context(), soon, "the pod abroad to be gone", func(ctx context.Context) error {
		left, err := podsAbroad(ctx, abroad, remote)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there is %v", left)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(abroad.restart(t.Context()), home.start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := eventually.Is(t.Context(), later, "the pod to have succeeded at home, and nothing to be left", func(ctx context.Context) error {
		if err := home.get(ctx, p.Name, p); err != nil {
			return eventually.Permanent(err)
		}
		if p.Status.Phase == corev1.PodFailed {
			return eventually.Permanent(fmt.Errorf("it is Failed: %s: %s", p.Status.Reason, p.Status.Message))
		}
		if err := abroad.get(ctx, record.Name, record); ctrlclient.IgnoreNotFound(err) != nil || err == nil || p.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s, and of the record abroad: %w", p.Status.Phase, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestJobsCompleteThoughTheirPodsEndWhileNoAgentRuns has pods of Jobs end abroad, and deletes them there, one with its
// namespace, while neither cluster has an agent. Home must not run them again.
func TestJobsCompleteThoughTheirPodsEndWhileNoAgentRuns(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	uncordon := cordon(t, home)
	var jobs []*batchv1.Job
	var remotes []string
	for _, name := range []string{"pod", "namespace"} {
		namespace, remote := offloadedBy(t, home, abroad, v1alpha1.StrategyLocalAndRemote)
		job := jobOf(namespace, name, 1, exits(batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyOnExitCodesOpIn, 42))
		if err := home.client.Create(ctx, job); err != nil {
			t.Fatal(err)
		}
		jobs, remotes = append(jobs, job), append(remotes, remote)
	}
	for _, job := range jobs {
		if err := eventually.Is(ctx, later, "the pod of "+job.Name+" to run abroad", func(ctx context.Context) error {
			pods, err := podsOf(ctx, home, job)
			if err != nil || len(pods) != 1 || pods[0].Spec.NodeName != nodeName || pods[0].Status.Phase != corev1.PodRunning {
				return errors.Join(err, fmt.Errorf("its pods are %+v", pods))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	home.kill()
	abroad.kill()
	for _, remote := range remotes {
		succeed(t, abroad, remote)
	}
	ns := &corev1.Namespace{}
	ns.Name = remotes[1]
	if err := errors.Join(
		abroad.client.DeleteAllOf(ctx, &corev1.Pod{}, ctrlclient.InNamespace(remotes[0])),
		abroad.client.Delete(ctx, ns),
	); err != nil {
		t.Fatal(err)
	}
	if err := abroad.start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, remote := range remotes {
		if err := eventually.Is(ctx, soon, "the pod in "+remote+" to be gone", func(ctx context.Context) error {
			left, err := podsAbroad(ctx, abroad, remote)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("there is %v", left)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := home.start(ctx); err != nil {
		t.Fatal(err)
	}
	uncordon()
	for _, job := range jobs {
		if err := eventually.Is(ctx, later, "job "+job.Name+" to be complete", func(ctx context.Context) error {
			pods, err := podsOf(ctx, home, job)
			if err != nil {
				return err
			}
			if len(pods) != 1 || pods[0].Spec.NodeName != nodeName {
				return eventually.Permanent(fmt.Errorf("its pods are %+v", pods))
			}
			if job.Status.Succeeded != 1 || job.Status.CompletionTime == nil {
				return fmt.Errorf("its status is %+v", job.Status)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if err := eventually.Is(ctx, soon, "the deleted namespace to be gone", func(ctx context.Context) error {
		var is corev1.Namespace
		err := abroad.get(ctx, ns.Name, &is)
		if ctrlclient.IgnoreNotFound(err) != nil || err == nil && is.DeletionTimestamp != nil {
			return fmt.Errorf("it is being deleted: %+v, %w", is.Status.Conditions, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestAProvidersChangesOfConfigurationAreReverted changes and deletes what crossed with a pod.
func TestAProvidersChangesOfConfigurationAreReverted(t *testing.T) {
	home, abroad := agents(t)
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	namespace, remote := offloaded(t, home, abroad)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "config"}, Data: map[string]string{"v": "1"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "secret"}, Data: map[string][]byte{"v": []byte("1")}}
	p := remotePod(namespace, "reader", func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}}},
		}
	})
	for _, o := range []ctrlclient.Object{config, secret, p} {
		if err := home.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if err := runs(t.Context(), home, p); err != nil {
		t.Fatal(err)
	}
	var c corev1.ConfigMap
	var s corev1.Secret
	c.Namespace, s.Namespace = remote, remote
	says := func(ctx context.Context) error {
		c.Data, s.Data = nil, nil
		if err := errors.Join(abroad.get(ctx, "config", &c), abroad.get(ctx, "secret", &s)); err != nil {
			return err
		}
		if len(c.Data) != 1 || c.Data["v"] != "1" || string(s.Data["v"]) != "1" {
			return fmt.Errorf("the ConfigMap says %q and the Secret %q", c.Data, s.Data)
		}
		return nil
	}
	if err := says(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Data["w"] = "2"
	if err := errors.Join(abroad.client.Update(t.Context(), &c), abroad.client.Delete(t.Context(), &s)); err != nil {
		t.Fatal(err)
	}
	if err := eventually.Is(t.Context(), soon, "both to be as they were", says); err != nil {
		t.Error(err)
	}
}
