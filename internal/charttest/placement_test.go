package charttest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/placement"
)

// testWebhook has the API server admit pods of all kinds by the policy, and wants the webhook, which
// stands in for it on older ones, to make the same of each.
func (c cluster) testWebhook(t *testing.T) {
	selectors := []*metav1.LabelSelector{nil, {}, {MatchLabels: labels("region", "eu", "example.com/tier", "gold")}, {
		MatchLabels:      labels(v1alpha1.LabelPeer, "abc", v1alpha1.LabelCurrency, "EUR"),
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.LabelLatency, Operator: "In", Values: []string{"2", "5"}}, {Key: v1alpha1.LabelPrice, Operator: "Exists"}, {Key: v1alpha1.LabelPool, Operator: "In", Values: []string{"gpu"}}, {Key: v1alpha1.LabelGPU, Operator: "Exists"}, {Key: "kubernetes.io/arch", Operator: "In", Values: []string{"arm64"}}, {Key: "topology.kubernetes.io/region", Operator: "Exists"}, {Key: "topology.kubernetes.io/zone", Operator: "Exists"}, {Key: "nvidia.com/gpu.product", Operator: "Exists"}, {Key: "amd.com/gpu.product-name", Operator: "DoesNotExist"}, {Key: "gpu.intel.com/product", Operator: "DoesNotExist"}, {Key: "region", Operator: "NotIn", Values: []string{"us", "asia"}}, {Key: "gpu", Operator: "Exists"}},
	}}
	losses := []*v1alpha1.PeerLost{nil, {Action: v1alpha1.PeerLostEvict}, {Action: v1alpha1.PeerLostEvict, After: &metav1.Duration{Duration: 90 * time.Second}}, {Action: v1alpha1.PeerLostFence}}
	for _, strategy := range []v1alpha1.PodStrategy{v1alpha1.StrategyLocal, v1alpha1.StrategyLocalAndRemote, v1alpha1.StrategyRemote} {
		for i, selector := range selectors {
			t.Run(fmt.Sprintf("%s, selector %d", strategy, i), func(t *testing.T) {
				ns := c.offloaded(t, strategy, selector)
				offloading := &v1alpha1.NamespaceOffloading{Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: strategy, ClusterSelector: selector, PeerLost: losses[i]}}
				c.lose(t, ns, losses[i])
				if i%2 == 1 {
					offloading.Status.PlacementBackoffs = kept()
					c.keepAway(t, ns, kept())
				}
				for name, pod := range placed(t, ns) {
					asked := pod.DeepCopy()
					want := decided(t, pod, offloading)
					got := c.admit(t, asked)
					if by, policy := sorted(want.Spec.Affinity), sorted(got.Spec.Affinity); !equality.Semantic.DeepEqual(by, policy) {
						t.Errorf("%s: the webhook makes the affinity %s, the policy %s", name, text(by), text(policy))
					}
					if ours(got) != ours(want) {
						t.Errorf("%s: tolerates virtual nodes by the webhook %q, by the policy %q", name, ours(want), ours(got))
					}
					// What the agent would write on a virtual node is there.
					if _, differ := fencing.Tolerations(got.Spec.Tolerations, placement.LossOf(offloading)); differ && strings.Contains(ours(got), corev1.TaintNodeNotReady) {
						t.Errorf("%s: the agent changes the tolerations %s", name, text(got.Spec.Tolerations))
					}
				}
			})
		}
	}
}

// sorted is an affinity with what has no order in one: labels of a selector come in any.
func sorted(a *corev1.Affinity) *corev1.Affinity {
	a = a.DeepCopy()
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return a
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		slices.SortFunc(term.MatchExpressions, func(a, b corev1.NodeSelectorRequirement) int { return cmp.Compare(text(a), text(b)) })
	}
	return a
}

// ours is the tolerations of virtual nodes, and of those that are lost, that a pod has.
func ours(p *corev1.Pod) string {
	var out []corev1.Toleration
	for _, t := range p.Spec.Tolerations {
		if t.Key == virtualNode || fencing.IsOurs(t) {
			out = append(out, t)
		}
	}
	return text(out)
}

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// decided is what the webhook makes of a pod.
func decided(t *testing.T, pod *corev1.Pod, offloading *v1alpha1.NamespaceOffloading) *corev1.Pod {
	t.Helper()
	operations := placement.Decide(pod, offloading)
	if len(operations) == 0 {
		return pod
	}
	var out corev1.Pod
	patched(t, operations, pod, &out)
	if again := placement.Decide(&out, offloading); len(again) > 0 {
		t.Errorf("a pod that was placed is changed once more: %s", text(again))
	}
	return &out
}

// keptOff is what the webhook makes of a new DaemonSet.
func keptOff(t *testing.T, set *appsv1.DaemonSet) *appsv1.DaemonSet {
	t.Helper()
	operations := placement.KeepOff(nil, set)
	if len(operations) == 0 {
		return set
	}
	var out appsv1.DaemonSet
	patched(t, operations, set, &out)
	if again := placement.KeepOff(nil, &out); len(again) > 0 {
		t.Errorf("a DaemonSet that is kept off is changed once more: %s", text(again))
	}
	return &out
}

// patched reads an object with a patch applied into another one.
func patched(t *testing.T, operations []placement.Operation, object, into any) {
	t.Helper()
	patch, err := jsonpatch.DecodePatch([]byte(text(operations)))
	if err != nil {
		t.Fatal(err)
	}
	is, err := patch.Apply([]byte(text(object)))
	if err != nil {
		t.Fatalf("%s on %s: %v", text(operations), text(object), err)
	}
	if err := json.Unmarshal(is, into); err != nil {
		t.Fatal(err)
	}
}

// placed is pods of a namespace in which placement has to decide something.
func placed(t *testing.T, ns string) map[string]*corev1.Pod {
	t.Helper()
	out := map[string]*corev1.Pod{}
	add := func(name string, change func(*corev1.Pod)) {
		out[name] = newPod(ns, corev1.PodSpec{})
		change(out[name])
	}
	for path, patch := range cannotCross() {
		if patch != "" {
			add(path, func(p *corev1.Pod) {
				if err := json.Unmarshal([]byte(patch), &p.Spec); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	add("bound", func(p *corev1.Pod) { p.Spec.NodeName = "somewhere" })
	add("of a DaemonSet", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "u"}}
	})
	for _, own := range []string{"Local", "Remote", "LocalAndRemote", "remote", ""} {
		for name, affinity := range affinities() {
			add(fmt.Sprintf("with %q itself, %s", own, name), func(p *corev1.Pod) {
				p.Annotations, p.Spec.Affinity = labels(v1alpha1.AnnotationPodStrategy, own), affinity.DeepCopy()
			})
		}
		add(fmt.Sprintf("with %q itself, that cannot cross", own), func(p *corev1.Pod) {
			p.Annotations, p.Spec.HostNetwork = labels(v1alpha1.AnnotationPodStrategy, own), true
		})
	}
	for name, owners := range owned() {
		add(name, func(p *corev1.Pod) { p.OwnerReferences = owners })
		add(name+", elsewhere already", func(p *corev1.Pod) { p.OwnerReferences, p.Spec.Affinity = owners, affinities()["alternatives"] })
	}
	for i, tolerations := range [][]corev1.Toleration{
		nil,
		{{Key: "x", Operator: "Exists"}},
		{{Operator: "Exists"}},
		{{Key: virtualNode, Operator: "Exists"}},
		{{Key: virtualNode, Operator: "Exists", Effect: "NoExecute"}},
		{{Key: virtualNode, Operator: "Equal", Value: "true", Effect: "NoSchedule"}},
	} {
		for name, affinity := range affinities() {
			add(fmt.Sprintf("tolerations %d, %s", i, name), func(p *corev1.Pod) { p.Spec.Tolerations, p.Spec.Affinity = tolerations, affinity.DeepCopy() })
		}
	}
	return out
}

// kept is controllers whose pods were handed back.
func kept() []v1alpha1.PlacementBackoff {
	at := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	entry := func(owner, node string, over bool) v1alpha1.PlacementBackoff {
		return v1alpha1.PlacementBackoff{OwnerUID: owner, Kind: "ReplicaSet", Name: owner, Node: node, Count: 1, Since: at, Until: at, Expired: over}
	}
	return []v1alpha1.PlacementBackoff{entry("kept", "abc.entente.dev", false), entry("kept", "def.entente.dev", false), entry("kept", "ghi.entente.dev", true), entry("back", "abc.entente.dev", true)}
}

// keepAway writes that into the status of a namespace's offloading, and waits for placement to know it.
func (c cluster) keepAway(t *testing.T, ns string, kept []v1alpha1.PlacementBackoff) {
	t.Helper()
	var offloading v1alpha1.NamespaceOffloading
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.NamespaceOffloadingName}, &offloading); err != nil {
		t.Fatal(err)
	}
	before := offloading.DeepCopy()
	offloading.Status.PlacementBackoffs = kept
	if err := c.admin.Status().Patch(t.Context(), &offloading, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if offloading.Spec.PodStrategy == v1alpha1.StrategyLocal {
		return
	}
	waitFor(t, "placement to keep pods away", func() error {
		pod := newPod(ns, corev1.PodSpec{})
		pod.OwnerReferences = owned()["of one that is kept away"]
		if got := text(c.admit(t, pod).Spec.Affinity); !strings.Contains(got, "NotIn") {
			return fmt.Errorf("the affinity is %s", got)
		}
		return nil
	})
}

// lose has a namespace's pods stay, or not, where their provider is lost, and waits for placement to know it.
func (c cluster) lose(t *testing.T, ns string, loss *v1alpha1.PeerLost) {
	t.Helper()
	var offloading v1alpha1.NamespaceOffloading
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.NamespaceOffloadingName}, &offloading); err != nil {
		t.Fatal(err)
	}
	offloading.Spec.PeerLost = loss
	if err := c.admin.Update(t.Context(), &offloading); err != nil {
		t.Fatal(err)
	}
	if loss == nil || loss.Action != v1alpha1.PeerLostEvict || offloading.Spec.PodStrategy == v1alpha1.StrategyLocal {
		return
	}
	waitFor(t, "placement to evict pods", func() error {
		pod := newPod(ns, corev1.PodSpec{})
		pod.Annotations = labels(v1alpha1.AnnotationPodStrategy, string(v1alpha1.StrategyRemote))
		if got := ours(c.admit(t, pod)); !strings.Contains(got, "tolerationSeconds") {
			return fmt.Errorf("the tolerations are %s", got)
		}
		return nil
	})
}

func owned() map[string][]metav1.OwnerReference {
	of := func(uid types.UID, controller *bool) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: uid, Controller: controller}
	}
	return map[string][]metav1.OwnerReference{
		"of one that is kept away":   {of("other", nil), of("kept", new(true))},
		"of one that may come back":  {of("back", new(true))},
		"of one that is not known":   {of("new", new(true))},
		"not controlled by that one": {of("kept", nil), of("other", new(true))},
		"not controlled at all":      {of("kept", new(false))},
	}
}

func affinities() map[string]*corev1.Affinity {
	zone := corev1.NodeSelectorRequirement{Key: "zone", Operator: "In", Values: []string{"a", "b"}}
	virtual := corev1.NodeSelectorRequirement{Key: virtualNode, Operator: "In", Values: []string{"true"}}
	real := corev1.NodeSelectorRequirement{Key: virtualNode, Operator: "DoesNotExist"}
	field := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n"}}
	terms := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	term := func(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: expressions}
	}
	fields := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{field}}
	both := terms(term(zone), term(virtual), fields)
	both.PodAntiAffinity = &corev1.PodAntiAffinity{}
	return map[string]*corev1.Affinity{
		"no affinity": nil, "empty affinity": {}, "prefers": {NodeAffinity: &corev1.NodeAffinity{}},
		"pods": {PodAffinity: &corev1.PodAffinity{}}, "zone": terms(term(zone)), "virtual": terms(term(virtual)), "real": terms(term(real)),
		"alternatives": terms(term(zone), term(real, zone), term(virtual)), "field": terms(fields), "empty term": terms(corev1.NodeSelectorTerm{}, term(zone)),
		"only empty terms": terms(corev1.NodeSelectorTerm{}), "all": both,
	}
}
