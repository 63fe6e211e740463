package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// TestPodsAbroadKeepTheirIndexAndLabels runs workloads that controllers at home number or distinguish by labels that do
// not cross: an Indexed Job, a StatefulSet, and a Deployment that is spread by a label which its ReplicaSet sets.
func TestPodsAbroadKeepTheirIndexAndLabels(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	const replicas = 3
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}

	job := indexed(shop, "count", replicas)
	db, service := set(shop, "db", replicas)
	const podIndex = "metadata.labels['" + appsv1.PodIndexLabel + "']"
	c := &db.Spec.Template.Spec.Containers[0]
	c.Env = append(c.Env, field("POD_INDEX", podIndex), field("POD_IP", "status.podIP"))
	db.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationPodIP: v1alpha1.PodIPHome}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "self", MountPath: "/self"}}
	db.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "self", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{{Path: "index", FieldRef: &corev1.ObjectFieldSelector{FieldPath: podIndex}}},
	}}}}
	spread, _ := Web(shop, "spread", 2, Anywhere)
	spread.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: spread.Spec.Selector, MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
	OK(t, w.Home.Create(ctx, job, service, db, spread))

	t.Run("each pod of an Indexed Job prints its own index", func(t *testing.T) {
		OK(t, w.Until(ctx, Scheduled, "the Job to be complete", func(ctx context.Context) (string, error) {
			if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(job), job); err != nil {
				return "", err
			}
			if job.Status.Succeeded != replicas || job.Status.CompletionTime == nil {
				return fmt.Sprintf("%d pods succeeded, %d failed", job.Status.Succeeded, job.Status.Failed), nil
			}
			return "", nil
		}))
		pods, err := w.Home.Pods(ctx, shop, map[string]string{batchv1.JobNameLabel: job.Name})
		OK(t, err)
		if home, away := Split(pods); len(home) > 0 || len(away) != replicas {
			t.Fatalf("%d of its pods ran at home and %d abroad, want %d abroad", len(home), len(away), replicas)
		}
		for _, p := range pods {
			index := p.Labels[batchv1.JobCompletionIndexAnnotation]
			text, err := w.Home.Kubectl(ctx, "logs", "-n", shop, p.Name)
			OK(t, err)
			if index == "" || !strings.Contains(text, "JOB_COMPLETION_INDEX="+index+"\n") {
				t.Errorf("pod %s of index %q printed\n%s", p.Name, index, text)
			}
		}
	})
	t.Run("each pod of a StatefulSet reads its own", func(t *testing.T) {
		pods, err := w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, replicas)
		OK(t, err)
		for _, p := range pods {
			index := p.Name[len("db-"):]
			text, err := w.Home.InPod(ctx, shop, p.Name, "/tool", "env")
			OK(t, err)
			if !strings.Contains(text, "POD_INDEX="+index+"\n") || !strings.Contains(text, "POD_IP="+p.Status.PodIP+"\n") {
				t.Errorf("the environment of %s is\n%s", p.Name, text)
			}
			if text, err = w.Home.InPod(ctx, shop, p.Name, "/tool", "cat", "/self/index"); err != nil || text != index {
				t.Errorf("%s reads index %q in a file (%v)", p.Name, text, err)
			}
		}
	})
	t.Run("a Deployment that spreads each of its revisions runs, and rolls over to another", func(t *testing.T) {
		_, err := w.Home.PodsReady(ctx, Scheduled, shop, spread.Labels, 2)
		OK(t, err)
		_, err = w.Home.Kubectl(ctx, "rollout", "restart", "-n", shop, "deployment/spread")
		OK(t, err)
		_, err = w.Home.Kubectl(ctx, "rollout", "status", "-n", shop, "deployment/spread", "--timeout=60s")
		OK(t, err)
		pods, err := w.Home.PodsReady(ctx, Scheduled, shop, spread.Labels, 2)
		OK(t, err)
		if home, _ := Split(pods); len(home) > 0 {
			t.Errorf("%d of its pods run at home", len(home))
		}
	})
}

// indexed is a Job of pods that print their environment, each once.
func indexed(namespace, name string, completions int32) *batchv1.Job {
	pod := WebPod(namespace, "", nil).Spec
	pod.RestartPolicy = corev1.RestartPolicyNever
	pod.Containers[0].Args, pod.Containers[0].ReadinessProbe = []string{"env"}, nil
	mode := batchv1.IndexedCompletion
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &completions, CompletionMode: &mode,
			Template: corev1.PodTemplateSpec{Spec: pod},
		},
	}
}

// TestAnUnschedulablePodAbroadSaysSoAtHome keeps pods off the provider's node, and expects the
// message of its scheduler on the pod at home, until the node takes pods again.
func TestAnUnschedulablePodAbroadSaysSoAtHome(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	uncordon := cordoned(ctx, t, w.Abroad)
	waits, _ := Web(shop, "waits", 1, Away)
	OK(t, w.Home.Create(ctx, waits))
	says := func(reason, message string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			pods, err := w.Home.Pods(ctx, shop, waits.Labels)
			if err != nil || len(pods) != 1 {
				return fmt.Sprintf("%d pods", len(pods)), err
			}
			for _, c := range pods[0].Status.Conditions {
				if c.Type == "entente.dev/Offloaded" && c.Reason == reason && strings.Contains(c.Message, message) {
					return "", nil
				}
			}
			return fmt.Sprintf("its conditions are %+v", pods[0].Status.Conditions), nil
		}
	}
	OK(t, w.Until(ctx, Scheduled, "the pod to say that no node takes it", says("Unschedulable", "1 node(s) were unschedulable")))
	uncordon()
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, waits.Labels, 1)
	OK(t, err)
	OK(t, w.Until(ctx, Soon, "the pod to say no more", says("Accepted", "")))
}

// cordoned keeps new pods off a cluster's own node, until uncordon is called or the test ends.
func cordoned(ctx context.Context, t *testing.T, s *Side) (uncordon func()) {
	t.Helper()
	set := func(ctx context.Context, on bool) {
		var node corev1.Node
		OK(t, s.Client.Get(ctx, ctrlclient.ObjectKey{Name: s.Node()}, &node))
		before := node.DeepCopy()
		node.Spec.Unschedulable = on
		OK(t, s.Client.Patch(ctx, &node, ctrlclient.MergeFrom(before)))
	}
	set(ctx, true)
	t.Cleanup(func() { set(context.WithoutCancel(ctx), false) })
	return func() { set(ctx, false) }
}

// TestUnschedulableAndMisplacedPodsComeHome has a pod go abroad where no node takes it, and
// others run abroad in a namespace that is not to be there any more: home runs both afterwards.
func TestUnschedulableAndMisplacedPodsComeHome(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	var o v1alpha1.NamespaceOffloading
	OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: shop, Name: v1alpha1.NamespaceOffloadingName}, &o))
	before := o.DeepCopy()
	o.Spec.Unschedulable = &v1alpha1.Unschedulable{After: &metav1.Duration{Duration: 10 * time.Second}}
	OK(t, w.Home.Client.Patch(ctx, &o, ctrlclient.MergeFrom(before)))
	abroad := func(d *appsv1.Deployment) {
		t.Helper()
		OK(t, w.Until(ctx, Scheduled, d.Name+" to be abroad", func(ctx context.Context) (string, error) {
			pods, err := w.Home.Pods(ctx, shop, d.Labels)
			if _, away := Split(pods); len(away) != 1 {
				return fmt.Sprintf("%d of %d are", len(away), len(pods)), err
			}
			return "", err
		}))
	}
	athome := func(d *appsv1.Deployment) {
		t.Helper()
		begin := time.Now()
		OK(t, w.Until(ctx, 2*Scheduled, d.Name+" to run at home", func(ctx context.Context) (string, error) {
			pods, err := w.Home.Pods(ctx, shop, d.Labels)
			if err != nil || len(pods) != 1 {
				return fmt.Sprintf("there are %d pods", len(pods)), err
			}
			if c := PodReadiness(&pods[0]); pods[0].Spec.NodeName != w.Home.Node() || c == nil || c.Status != corev1.ConditionTrue {
				return PodText(&pods[0]), nil
			}
			return "", nil
		}))
		t.Logf("%s runs at home after %.1f s", d.Name, time.Since(begin).Seconds())
	}

	takenAtHome := cordoned(ctx, t, w.Home)
	moves, _ := Web(shop, "moves", 1, Anywhere)
	OK(t, w.Home.Create(ctx, moves))
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, moves.Labels, 1)
	OK(t, err)
	abroad(moves)
	takenAbroad := cordoned(ctx, t, w.Abroad)
	returns, _ := Web(shop, "returns", 1, Anywhere)
	OK(t, w.Home.Create(ctx, returns))
	abroad(returns)
	takenAtHome()
	athome(returns)
	takenAbroad()
	_, err = w.Home.Entente(ctx, "offload", "namespace", shop, "--strategy", "Local", "--move")
	OK(t, err)
	athome(moves)
}
