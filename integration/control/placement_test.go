package control

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// TestPlacementNeedsNoAgent: pods are placed by strategy in namespaces that opted
// in, are left alone elsewhere, and the agent may be dead.
func TestPlacementNeedsNoAgent(t *testing.T) {
	home, _ := agents(t)
	ctx := t.Context()
	offloadedTo := map[v1alpha1.PodStrategy]string{}
	for _, s := range []v1alpha1.PodStrategy{v1alpha1.StrategyLocal, v1alpha1.StrategyRemote, v1alpha1.StrategyLocalAndRemote} {
		namespace := newNamespace(t, home, "place")
		offload(t, home, offloadingOf(namespace, func(o *v1alpha1.NamespaceOffloading) { o.Spec.PodStrategy = s }))
		offloadedTo[s] = namespace
	}
	plain := newNamespace(t, home, "plain")
	// It has the label, and nothing says what to do.
	labelled := newNamespace(t, home, "labelled")
	patch := ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"entente.dev/offloading":"enabled"}}}`))
	if err := home.client.Patch(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: labelled}}, patch); err != nil {
		t.Fatal(err)
	}
	// spec is a created pod's spec, without the parts that differ from pod to pod.
	spec := func(namespace string, change func(*corev1.Pod)) corev1.PodSpec {
		t.Helper()
		p := pod(namespace, "p", change)
		if err := home.client.Create(ctx, p, ctrlclient.DryRunAll); err != nil {
			t.Fatal(err)
		}
		out := p.Spec
		for i := range out.Volumes {
			out.Volumes[i].Name = ""
		}
		for i := range out.Containers {
			out.Containers[i].VolumeMounts = nil
		}
		return out
	}
	daemon := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet", Name: "d", UID: "1"}}
	}
	untouched, err := json.Marshal(spec(plain, nil))
	if err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T) {
		t.Helper()
		for name, namespace := range map[string]string{
			"with the strategy Local":                offloadedTo[v1alpha1.StrategyLocal],
			"that has the label and no more":         labelled,
			"that was not offloaded":                 plain,
			"of the system":                          metav1.NamespaceSystem,
			"of a DaemonSet in an offloaded one":     offloadedTo[v1alpha1.StrategyLocalAndRemote],
			"of a DaemonSet in one with Remote pods": offloadedTo[v1alpha1.StrategyRemote],
		} {
			change := func(*corev1.Pod) {}
			if len(name) > 14 && name[:14] == "of a DaemonSet" {
				change = daemon
			}
			got, err := json.Marshal(spec(namespace, change))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(untouched), string(got)); diff != "" {
				t.Errorf("a pod in a namespace %s was changed (-want +got):\n%s", name, diff)
			}
		}
		toleration := corev1.Toleration{Key: v1alpha1.TaintVirtualNode, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
		both := spec(offloadedTo[v1alpha1.StrategyLocalAndRemote], nil)
		if !contains(both.Tolerations, toleration) || both.Affinity != nil {
			t.Errorf("LocalAndRemote gives %+v, %+v", both.Tolerations, both.Affinity)
		}
		remote := spec(offloadedTo[v1alpha1.StrategyRemote], nil)
		want := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}},
			}}},
		}}}
		if diff := cmp.Diff(want, remote.Affinity); diff != "" || !contains(remote.Tolerations, toleration) {
			t.Errorf("Remote gives tolerations %+v and affinity (-want +got):\n%s", remote.Tolerations, diff)
		}
	}
	t.Run("with the agent", check)
	home.kill()
	t.Cleanup(func() {
		if err := home.start(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Run("without the agent", check)
}

func contains(list []corev1.Toleration, want corev1.Toleration) bool {
	return slices.Contains(list, want)
}
