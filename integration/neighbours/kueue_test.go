package neighbours

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	batch = "batch" // the namespace that the page names
	// busy is how long a Job has work.
	busy = 30 * time.Second
)

// TestKueueAdmitsJobsToVirtualNodes installs Kueue with its own chart, and what docs/offloading.md says of it:
// of three Jobs one runs at home, one abroad, and one waits until that abroad is done.
func TestKueueAdmitsJobsToVirtualNodes(t *testing.T) {
	ctx, w, node := peered(t)
	manifests := documented(t, w, "## Jobs that wait in a queue: Kueue")
	if len(manifests) != 2 {
		t.Fatalf("the page has %d blocks of YAML about Kueue, want the queues and a Job", len(manifests))
	}
	var template batchv1.Job
	OK(t, yaml.UnmarshalStrict([]byte(manifests[1]), &template))
	fits(ctx, t, w, node, &template)
	runKueue(ctx, t, w)
	// After its namespace: a queue stays while there are Jobs of it.
	t.Cleanup(func() {
		_, err := w.Home.Kubectl(context.WithoutCancel(ctx), "delete", "--ignore-not-found", "--timeout=1m", "-f", written(t, manifests[0]))
		OK(t, err)
	})
	Offloaded(ctx, t, w, batch)
	_, err := w.Home.Kubectl(ctx, "label", "node", w.Home.Node(), "example.com/place=home", "--overwrite")
	OK(t, err)
	// The webhooks of Kueue may take a moment more than its pod.
	OK(t, w.Until(ctx, Soon, "Kueue to take what the page says", func(ctx context.Context) (string, error) {
		return "", apply(ctx, t, w.Home, manifests[0])
	}))

	var jobs []*batchv1.Job
	for n, work := range [][]string{{"sleep"}, {"sleep", fmt.Sprint(busy.Seconds())}, {"sleep", "1"}} {
		job := template.DeepCopy()
		job.Name += fmt.Sprint("-", n+1)
		c := &job.Spec.Template.Spec.Containers[0]
		c.Image, c.Args = ToolImage, work
		OK(t, w.Home.Create(ctx, job))
		if jobs = append(jobs, job); n < 2 {
			OK(t, isAdmitted(ctx, w, job))
		}
	}
	begin := time.Now()
	waits(ctx, t, w, jobs[2])
	first, err := w.Home.PodsReady(ctx, Scheduled, batch, podsOf(jobs[0]), 2)
	OK(t, err)
	if _, away := Split(first); len(away) > 0 {
		t.Errorf("%d pods of the first Job run abroad, while home has quota", len(away))
	}
	second, err := w.Home.Pods(ctx, batch, podsOf(jobs[1]))
	OK(t, err)
	for i := range second {
		_, err := w.Abroad.Twin(ctx, &second[i])
		OK(t, err)
	}
	for _, job := range jobs[1:] {
		OK(t, isComplete(ctx, w, job))
		pods, err := w.Home.Pods(ctx, batch, podsOf(job))
		OK(t, err)
		if home, away := Split(pods); len(home) > 0 || len(away) != 2 {
			t.Errorf("%d pods of %s ran at home, whose quota is used up, and %d abroad", len(home), job.Name, len(away))
		}
	}
	t.Logf("the third Job waited for the second one's quota, and was complete %.0f s after it was made", time.Since(begin).Seconds())
}

// documented returns the blocks of YAML in a section of docs/offloading.md.
func documented(t *testing.T, w *World, heading string) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(w.Root, "docs/offloading.md"))
	OK(t, err)
	_, section, found := strings.Cut(string(page), "\n"+heading+"\n")
	if !found {
		t.Fatalf("the page has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for {
		_, rest, found := strings.Cut(section, "\n```yaml\n")
		if !found {
			return blocks
		}
		block, rest, _ := strings.Cut(rest, "\n```\n")
		blocks, section = append(blocks, block), rest
	}
}

// fits fails where the contract would not give what the page's Job asks for, twice over.
func fits(ctx context.Context, t *testing.T, w *World, node string, job *batchv1.Job) {
	t.Helper()
	var n corev1.Node
	OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: node}, &n))
	want := resource.Quantity{}
	for range *job.Spec.Parallelism {
		want.Add(*job.Spec.Template.Spec.Containers[0].Resources.Requests.Cpu())
	}
	if have := n.Status.Allocatable.Cpu(); have.Cmp(want) < 0 {
		t.Fatalf("the contract gives %s CPUs, and the Job asks for %s", have, &want)
	}
}

// runKueue installs Kueue at home until the test ends.
func runKueue(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	archive, chart, err := lab.Kueue(ctx, t.TempDir(), w.Waiting)
	OK(t, err)
	_, err = w.Lab.Load(ctx, archive)
	OK(t, err)
	const system = "kueue-system"
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_, err := w.Home.Helm(ctx, "uninstall", "kueue", "--namespace", system, "--ignore-not-found", "--wait")
		OK(t, err)
		_, err = w.Home.Kubectl(ctx, "delete", "namespace", system, "--ignore-not-found", "--timeout=2m")
		OK(t, err)
	})
	repository, tag, _ := strings.Cut(lab.KueueImage, ":")
	const manager = "controllerManager.manager."
	_, err = w.Home.Helm(ctx, "upgrade", "--install", "kueue", chart, "--namespace", system, "--create-namespace", "--wait", "--timeout", "3m",
		"--set", manager+"image.repository="+repository, "--set", manager+"image.tag="+tag, "--set", manager+"image.pullPolicy=Never",
		"--set", manager+"resources.requests.cpu=100m")
	OK(t, err)
}

func podsOf(job *batchv1.Job) map[string]string {
	return map[string]string{batchv1.JobNameLabel: job.Name}
}

// isAdmitted waits until Kueue lets a Job start.
func isAdmitted(ctx context.Context, w *World, job *batchv1.Job) error {
	return w.Until(ctx, Soon, "Kueue to admit Job "+job.Name, func(ctx context.Context) (string, error) {
		err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(job), job)
		if err == nil && (job.Spec.Suspend == nil || *job.Spec.Suspend) {
			return "it is suspended", nil
		}
		return "", err
	})
}

// waits fails if a Job does not wait for quota.
func waits(ctx context.Context, t *testing.T, w *World, job *batchv1.Job) {
	t.Helper()
	OK(t, w.Until(ctx, Soon, "Kueue to say that there is no quota", func(ctx context.Context) (string, error) {
		out, err := w.Home.Kubectl(ctx, "-n", batch, "get", "workloads.kueue.x-k8s.io", "-l", "kueue.x-k8s.io/job-uid="+string(job.UID),
			"-o", `jsonpath={.items[*].status.conditions[?(@.type=="QuotaReserved")].message}`)
		if err == nil && !strings.Contains(out, "insufficient unused quota for cpu in flavor abroad") {
			return "it says " + out, nil
		}
		return "", err
	}))
	OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(job), job))
	pods, err := w.Home.Pods(ctx, batch, podsOf(job))
	OK(t, err)
	if job.Spec.Suspend == nil || !*job.Spec.Suspend || len(pods) > 0 {
		t.Errorf("Job %s, for which there is no quota, has %d pods", job.Name, len(pods))
	}
}

// isComplete waits until all pods of a Job did what they had to.
func isComplete(ctx context.Context, w *World, job *batchv1.Job) error {
	return w.Until(ctx, Scheduled, "Job "+job.Name+" to be complete", func(ctx context.Context) (string, error) {
		err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(job), job)
		if err == nil && job.Status.CompletionTime == nil {
			return fmt.Sprintf("%d pods are active, %d succeeded, %d failed", job.Status.Active, job.Status.Succeeded, job.Status.Failed), nil
		}
		return "", err
	})
}
