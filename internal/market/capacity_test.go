package market

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
)

func TestSupplyCountsWhatIsFree(t *testing.T) {
	t.Parallel()
	full := "cpu=4, memory=8Gi, pods=110"
	for name, tc := range map[string]struct {
		nodes []corev1.Node
		pods  []corev1.Pod
		want  string
	}{
		"no node is nothing":                        {},
		"an empty node is all free":                 {nodes: []corev1.Node{fixture.Node("a")}, want: full},
		"a pod takes what it requests":              {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("a")}, want: "cpu=3, memory=7Gi, pods=109"},
		"a pod that is ending takes it still":       {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("a", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })}, want: "cpu=3, memory=7Gi, pods=109"},
		"a pod that succeeded takes nothing":        {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("a", fixture.Phase(corev1.PodSucceeded))}, want: full},
		"a pod that failed takes nothing":           {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("a", fixture.Phase(corev1.PodFailed))}, want: full},
		"a pod without a node takes nothing":        {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("")}, want: full},
		"an offloaded pod uses what is granted":     {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("a", fixture.Offloaded("held"))}, want: full},
		"after the contract's end it takes its own": {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("a", fixture.Offloaded("over"))}, want: "cpu=3, memory=7Gi, pods=109"},
		"a label alone makes no pod an offloaded one": {nodes: []corev1.Node{fixture.Node("a")}, pods: []corev1.Pod{fixture.Pod("a", func(p *corev1.Pod) {
			p.Labels = map[string]string{v1alpha1.LabelContract: "held"}
		})}, want: "cpu=3, memory=7Gi, pods=109"},
		"a virtual node is not ours":         {nodes: []corev1.Node{fixture.Node("a", func(n *corev1.Node) { n.Labels[v1alpha1.LabelVirtualNode] = "true" })}},
		"a cordoned node is not offered":     {nodes: []corev1.Node{fixture.Node("a", func(n *corev1.Node) { n.Spec.Unschedulable = true })}},
		"a node that is not ready is not":    {nodes: []corev1.Node{fixture.Node("a", fixture.Ready(corev1.ConditionFalse))}},
		"nor one that fell silent":           {nodes: []corev1.Node{fixture.Node("a", fixture.Ready(corev1.ConditionUnknown))}},
		"nor one that was never ready":       {nodes: []corev1.Node{fixture.Node("a", func(n *corev1.Node) { n.Status.Conditions = nil })}},
		"nor one that keeps pods away":       {nodes: []corev1.Node{fixture.Node("a", fixture.Tainted(corev1.TaintEffectNoSchedule)), fixture.Node("b", fixture.Tainted(corev1.TaintEffectNoExecute))}},
		"one that would rather not, is":      {nodes: []corev1.Node{fixture.Node("a", fixture.Tainted(corev1.TaintEffectPreferNoSchedule))}, want: full},
		"a pod elsewhere takes nothing here": {nodes: []corev1.Node{fixture.Node("a"), fixture.Node("v", fixture.Ready(corev1.ConditionUnknown))}, pods: []corev1.Pod{fixture.Pod("v")}, want: full},
		"an overfull node takes from no other": {
			nodes: []corev1.Node{fixture.Node("a"), fixture.Node("b")},
			pods: []corev1.Pod{fixture.Pod("a", func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("9")
			})},
			want: "cpu=4, memory=15Gi, pods=219",
		},
		"a device that cannot be represented is left out": {
			nodes: []corev1.Node{fixture.Node("a", func(n *corev1.Node) {
				n.Status.Allocatable["odd.example/x"] = resource.MustParse("1e3")
				n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("2")
			})},
			want: "cpu=4, memory=8Gi, nvidia.com/gpu=2, pods=110",
		},
		"init containers count as the scheduler counts them": {
			nodes: []corev1.Node{fixture.Node("a")},
			pods: []corev1.Pod{fixture.Pod("a", func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}}}
			})},
			want: "cpu=1, memory=7Gi, pods=109",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewSupply(tc.nodes, tc.pods)
			got := s.free(s.matching(nil, nil), func(contract string) bool { return contract == "held" })
			if got.String() != tc.want {
				t.Errorf("free is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSupplyChangesNoObject(t *testing.T) {
	t.Parallel()
	nodes, pods := []corev1.Node{fixture.Node("a")}, []corev1.Pod{fixture.Pod("a"), fixture.Pod("a", fixture.Offloaded("over"))}
	s := NewSupply(nodes, pods)
	none := func(string) bool { return false }
	first := s.free(s.matching(nil, nil), none).String()
	if again := s.free(s.matching(nil, nil), none).String(); again != first {
		t.Errorf("%q at first, then %q", first, again)
	}
	if q := nodes[0].Status.Allocatable[corev1.ResourceCPU]; q.String() != "4" {
		t.Errorf("the node itself has %s now", q.String())
	}
	if q := pods[0].Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]; q.String() != "1" {
		t.Errorf("the pod itself asks for %s now", q.String())
	}
}

func TestSupplyMatchesNodesByLabels(t *testing.T) {
	t.Parallel()
	label := func(k, v string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels[k] = v } }
	s := NewSupply([]corev1.Node{fixture.Node("a"), fixture.Node("b", label(corev1.LabelArchStable, "arm64")), fixture.Node("c", label("gpu", "a100"))}, nil)
	if got := s.architectures(s.matching(nil, nil)); !slices.Equal(got, []string{"amd64", "arm64"}) {
		t.Errorf("architectures are %v", got)
	}
	for _, tc := range []struct {
		selector map[string]string
		want     []bool
		arch     string
	}{
		{nil, []bool{true, true, true}, ""},
		{map[string]string{corev1.LabelArchStable: "amd64"}, []bool{true, false, true}, "amd64"},
		{map[string]string{"gpu": "a100", corev1.LabelOSStable: "linux"}, []bool{false, false, true}, "amd64"},
		{map[string]string{"gpu": ""}, []bool{false, false, false}, ""},
	} {
		in := s.matching(tc.selector, nil)
		if !slices.Equal(in, tc.want) {
			t.Errorf("%v matches %v, want %v", tc.selector, in, tc.want)
		}
		if got := s.common(in, corev1.LabelArchStable); got != tc.arch {
			t.Errorf("the nodes with %v have architecture %q in common, want %q", tc.selector, got, tc.arch)
		}
	}
}

func TestANodeIsOpenToWhoeverToleratesItsTaints(t *testing.T) {
	t.Parallel()
	tainted := func(taints ...corev1.Taint) corev1.Node {
		return fixture.Node("n", func(n *corev1.Node) { n.Spec.Taints = taints })
	}
	gpu, shared := corev1.Taint{Key: "gpu", Value: "h100", Effect: "NoSchedule"}, corev1.Taint{Key: "shared", Effect: "NoExecute"}
	for name, tc := range map[string]struct {
		node        corev1.Node
		tolerations []corev1.Toleration
		want        bool
	}{
		"no taint":                      {tainted(), nil, true},
		"a taint that it tolerates":     {tainted(gpu), []corev1.Toleration{{Key: "gpu", Operator: "Exists"}}, true},
		"by its value":                  {tainted(gpu), []corev1.Toleration{{Key: "gpu", Operator: "Equal", Value: "h100", Effect: "NoSchedule"}}, true},
		"of another value":              {tainted(gpu), []corev1.Toleration{{Key: "gpu", Operator: "Equal", Value: "a100"}}, false},
		"of another effect":             {tainted(gpu), []corev1.Toleration{{Key: "gpu", Operator: "Exists", Effect: "NoExecute"}}, false},
		"of another key":                {tainted(gpu), []corev1.Toleration{{Key: "gpus", Operator: "Exists"}}, false},
		"without tolerations":           {tainted(gpu), nil, false},
		"one of two":                    {tainted(gpu, shared), []corev1.Toleration{{Key: "gpu", Operator: "Exists"}}, false},
		"both of two":                   {tainted(gpu, shared), []corev1.Toleration{{Key: "gpu", Operator: "Exists"}, {Key: "shared", Operator: "Exists"}}, true},
		"one that would rather not":     {tainted(corev1.Taint{Key: "x", Effect: "PreferNoSchedule"}), nil, true},
		"more than there is to":         {tainted(), []corev1.Toleration{{Key: "gpu", Operator: "Exists"}}, true},
		"a taint of Kubernetes itself":  {tainted(corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: "NoSchedule"}), []corev1.Toleration{{Key: "gpu", Operator: "Exists"}}, false},
		"one that is cordoned besides":  {fixture.Node("n", func(n *corev1.Node) { n.Spec.Unschedulable, n.Spec.Taints = true, []corev1.Taint{gpu} }), []corev1.Toleration{{Key: "gpu", Operator: "Exists"}}, false},
		"a virtual node, whatever else": {fixture.Node("n", func(n *corev1.Node) { n.Labels[v1alpha1.LabelVirtualNode], n.Spec.Taints = "true", []corev1.Taint{gpu} }), []corev1.Toleration{{Key: "gpu", Operator: "Exists"}}, false},
	} {
		s := NewSupply([]corev1.Node{tc.node}, nil)
		if got := slices.Contains(s.matching(nil, tc.tolerations), true); got != tc.want {
			t.Errorf("%s: pods come to it: %t", name, got)
		}
	}
}

// A pod with one container is counted by itself, and as Kubernetes counts it.
func TestRequestsAreThoseThatKubernetesCounts(t *testing.T) {
	t.Parallel()
	some := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	one := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: some}}}}}
		change(p)
		return p
	}
	for name, p := range map[string]*corev1.Pod{
		"none":       {},
		"one":        one(func(*corev1.Pod) {}),
		"nothing":    one(func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }),
		"two":        one(func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) }),
		"init":       one(func(p *corev1.Pod) { p.Spec.InitContainers = p.Spec.Containers; p.Spec.Containers = nil }),
		"overhead":   one(func(p *corev1.Pod) { p.Spec.Overhead = some }),
		"of the pod": one(func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Requests: some} }),
		"resized": one(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Resources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")},
			}}}
		}),
	} {
		want := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true})
		want[corev1.ResourcePods] = resource.MustParse("1")
		if got := Requests(p); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: it takes %v, want %v", name, got, want)
		}
	}
	if _, changed := some[corev1.ResourcePods]; changed {
		t.Error("what a pod requests was changed by counting it")
	}
}
