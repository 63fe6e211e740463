package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// everywhere is a DaemonSet that tolerates everything, as those of network plugins do.
func everywhere(name string) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	pod := WebPod("default", "", labels).Spec
	pod.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}

// placeDaemonSets gives home what placement.daemonSets adds to the chart, until the test ends. An upgrade of the release
// takes longer.
func placeDaemonSets(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	out, err := w.Home.Helm(ctx, "template", Release, filepath.Join(w.Root, "charts/entente"), "--namespace", SystemNamespace,
		"--set", "placement.daemonSets=true", "--show-only", "templates/placement.yaml")
	OK(t, err)
	added := slices.DeleteFunc(strings.Split(out, "\n---\n"), func(object string) bool { return !strings.Contains(object, "name: entente-daemonsets\n") })
	if len(added) != 2 {
		t.Fatalf("the chart adds %d objects, want a policy and its binding:\n%s", len(added), out)
	}
	file := filepath.Join(t.TempDir(), "added.yaml")
	OK(t, os.WriteFile(file, []byte(strings.Join(added, "\n---\n")), 0o600))
	_, err = w.Home.Kubectl(ctx, "apply", "-f", file)
	OK(t, err)
	t.Cleanup(func() {
		_, err := w.Home.Kubectl(context.WithoutCancel(ctx), "delete", "-f", file)
		OK(t, err)
	})
}

// TestRolloutsOfDaemonSetsEndDespiteVirtualNodes restarts a DaemonSet at home that tolerates the taints of virtual
// nodes. As the chart is by default its pod there is not run, and keeps nothing waiting; with placement.daemonSets
// there is none.
func TestRolloutsOfDaemonSetsEndDespiteVirtualNodes(t *testing.T) {
	ctx, w := theStage.On(t)
	node := peered(ctx, t, w)
	set := everywhere("everywhere")
	OK(t, w.Home.Create(ctx, set))
	t.Cleanup(func() {
		_, err := w.Home.Kubectl(context.WithoutCancel(ctx), "delete", "daemonset", set.Name, "-n", set.Namespace, "--cascade=foreground", "--timeout=60s")
		OK(t, err)
	})
	rollout := func(args ...string) {
		t.Helper()
		begin := time.Now()
		_, err := w.Home.Kubectl(ctx, append([]string{"rollout", args[0], "-n", set.Namespace, "daemonset/" + set.Name}, args[1:]...)...)
		OK(t, err)
		t.Logf("rollout %s ended in %.1f s", args[0], time.Since(begin).Seconds())
	}
	pods := func() (home, away []corev1.Pod) {
		t.Helper()
		all, err := w.Home.Pods(ctx, set.Namespace, set.Labels)
		OK(t, err)
		return Split(all)
	}
	rollout("status", "--timeout=60s")

	t.Run("by default its pod on a virtual node is reported as ready and not run", func(t *testing.T) {
		_, before := pods()
		rollout("restart")
		rollout("status", "--timeout=60s")
		home, away := pods()
		if len(home) != 1 || len(before) != 1 || len(away) != 1 || away[0].UID == before[0].UID {
			t.Fatalf("%d pods are at home and %d on virtual nodes, after %d, want one each, and others", len(home), len(away), len(before))
		}
		p := &away[0]
		if c := PodReadiness(p); p.Spec.NodeName != node || c == nil || c.Status != corev1.ConditionTrue || c.Reason != "NotApplicable" || p.Status.PodIP != "" || p.Status.Phase != corev1.PodPending {
			t.Errorf("its pod on a virtual node is %s, %+v", PodText(p), p.Status)
		}
		for _, uid := range []types.UID{p.UID, before[0].UID} {
			if twin, err := w.Abroad.Twin(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}); err == nil {
				t.Errorf("the provider runs %s", PodText(twin))
			}
		}
		OK(t, w.Until(ctx, Soon, "an event to say that its pods are not run there", func(ctx context.Context) (string, error) {
			out, err := w.Home.Kubectl(ctx, "events", "-n", set.Namespace, "--for", "daemonset/"+set.Name)
			if err == nil && !strings.Contains(out, "NotOnVirtualNodes") {
				return "there are\n" + out, nil
			}
			return "", err
		}))
	})
	t.Run("with placement.daemonSets it has none there", func(t *testing.T) {
		placeDaemonSets(ctx, t, w)
		OK(t, w.Until(ctx, Soon, "new DaemonSets to be kept off virtual nodes", func(ctx context.Context) (string, error) {
			probe := everywhere("probe")
			err := w.Home.Client.Create(ctx, probe, ctrlclient.DryRunAll)
			if err == nil && probe.Spec.Template.Spec.Affinity == nil {
				return "one is made as it is", nil
			}
			return "", err
		}))
		rollout("restart")
		rollout("status", "--timeout=60s")
		OK(t, w.Until(ctx, Soon, "its pods to be those of home's own nodes", func(context.Context) (string, error) {
			if home, away := pods(); len(home) != 1 || len(away) != 0 {
				return fmt.Sprintf("%d are at home and %d on virtual nodes", len(home), len(away)), nil
			}
			return "", nil
		}))
	})
}
