package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	jobSet = "jobset.sigs.k8s.io/"
	// trained is the JobSet that a Job is of, and workers the Job.
	trained, workers = "train", "train-workers-0"
)

// ofAJobSet is an Indexed Job abroad as JobSet makes one, whose pods read who they are from fields, and its headless
// Service.
func ofAJobSet(namespace string, completions int32) (*batchv1.Job, *corev1.Service) {
	marks := map[string]string{
		jobSet + "jobset-name": trained, jobSet + "replicatedjob-name": "workers", jobSet + "replicatedjob-replicas": "1",
		jobSet + "job-index": "0", jobSet + "job-global-index": "7", jobSet + "restart-attempt": "2", jobSet + "job-key": "0123456789abcdef",
	}
	d, service := Web(namespace, trained, 1, Away)
	spec := d.Spec.Template.Spec
	spec.RestartPolicy, spec.Subdomain = corev1.RestartPolicyNever, trained
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	spec.Containers[0].Env = append(spec.Containers[0].Env,
		corev1.EnvVar{Name: "POD_NAMESPACE", ValueFrom: field("metadata.namespace")},
		corev1.EnvVar{Name: "JOB_INDEX", ValueFrom: field("metadata.labels['" + jobSet + "job-index']")},
		corev1.EnvVar{Name: "GLOBAL_INDEX", ValueFrom: field("metadata.annotations['" + jobSet + "job-global-index']")},
		corev1.EnvVar{Name: "JOB_NAME", ValueFrom: field("metadata.labels['batch.kubernetes.io/job-name']")},
		corev1.EnvVar{Name: "INDEX_OF_LABEL", ValueFrom: field("metadata.labels['batch.kubernetes.io/job-completion-index']")},
		corev1.EnvVar{Name: "INDEX_OF_ANNOTATION", ValueFrom: field("metadata.annotations['batch.kubernetes.io/job-completion-index']")},
		corev1.EnvVar{Name: "COORDINATOR", Value: "$(JOB_NAME)-0." + trained + ".$(POD_NAMESPACE).svc.cluster.local"},
	)
	file := func(name, path string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: name, FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	spec.Volumes = []corev1.Volume{{Name: "who", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
		file("attempt", "metadata.labels['"+jobSet+"restart-attempt']"), file("key", "metadata.annotations['"+jobSet+"job-key']"),
		file("index", "metadata.labels['batch.kubernetes.io/job-completion-index']"),
	}}}}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "who", MountPath: "/who"}}
	// As JobSet makes it: names are there before pods are ready.
	service.Spec.ClusterIP, service.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, true
	service.Spec.Selector = map[string]string{jobSet + "jobset-name": trained}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: workers, Labels: marks, Annotations: marks},
		Spec: batchv1.JobSpec{
			CompletionMode: new(batchv1.IndexedCompletion), Completions: &completions, Parallelism: &completions,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: marks, Annotations: marks}, Spec: spec},
		},
	}, service
}

// TestPodsOfAJobSetKnowAbroadWhoTheyAre runs an Indexed Job abroad with the labels and annotations of a JobSet. Each pod
// reads its own index and the JobSet's labels, in its environment and in a volume, has the host name that belongs to them,
// and finds the others by the names that JobSet promises.
func TestPodsOfAJobSetKnowAbroadWhoTheyAre(t *testing.T) {
	const completions = 2
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	job, service := ofAJobSet(shop, completions)
	OK(t, w.Home.Create(ctx, service, job))
	pods, err := w.Home.PodsReady(ctx, Scheduled, shop, map[string]string{jobSet + "jobset-name": trained}, completions)
	OK(t, err)
	byIndex := map[string]corev1.Pod{}
	for _, p := range pods {
		byIndex[p.Labels[batchv1.JobCompletionIndexAnnotation]] = p
	}
	for i := range completions {
		index := fmt.Sprint(i)
		p, there := byIndex[index]
		if !there {
			t.Fatalf("no pod has the index %s", index)
		}
		host := workers + "-" + index
		text, err := w.Home.InPod(ctx, shop, p.Name, "/tool", "env")
		OK(t, err)
		for _, want := range []string{
			"JOB_COMPLETION_INDEX=" + index, "INDEX_OF_LABEL=" + index, "INDEX_OF_ANNOTATION=" + index, "JOB_INDEX=0", "GLOBAL_INDEX=7",
			"JOB_NAME=" + workers, "POD_NAMESPACE=" + shop, "COORDINATOR=" + workers + "-0." + trained + "." + shop + ".svc.cluster.local",
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("pod %s has no %s in its environment:\n%s", p.Name, want, text)
			}
		}
		for file, want := range map[string]string{"attempt": "2", "key": "0123456789abcdef", "index": index} {
			if text, err := w.Home.InPod(ctx, shop, p.Name, "/tool", "cat", "/who/"+file); err != nil || text != want {
				t.Errorf("pod %s reads %q in file %s (%v), want %s", p.Name, text, file, err, want)
			}
		}
		if text, err = w.Home.InPod(ctx, shop, p.Name, "/tool", "curl", "http://localhost:8080/"); err != nil || !strings.Contains(text, `"hostname":"`+host+`"`) {
			t.Errorf("pod %s has not the host name %s (%v): %s", p.Name, host, err, text)
		}
	}
	for _, from := range byIndex {
		for index, to := range byIndex {
			for _, name := range []string{workers + "-" + index + "." + trained, workers + "-" + index + "." + trained + "." + shop + ".svc.cluster.local"} {
				OK(t, w.Home.ReachesAll(ctx, Soon, shop, from.Name, "http://"+name+":8080/name", []corev1.Pod{to}))
			}
		}
	}
	t.Run("names are there before pods are ready", func(t *testing.T) {
		first, last := byIndex["0"], byIndex["1"]
		_, err := w.Home.InPod(ctx, shop, last.Name, "/tool", "write", "/tmp/health", "sick")
		OK(t, err)
		OK(t, w.Until(ctx, Soon, "home to show that pod "+last.Name+" is not ready", func(ctx context.Context) (string, error) {
			now, err := w.Home.Pods(ctx, shop, map[string]string{batchv1.JobCompletionIndexAnnotation: "1"})
			if err == nil && len(now) == 1 && PodReady(&now[0]) {
				return "it is", nil
			}
			return "", err
		}))
		OK(t, w.Home.ReachesAll(ctx, Soon, shop, first.Name, "http://"+workers+"-1."+trained+":8080/name", []corev1.Pod{last}))
	})
}
