package podspec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

const consumer peering.ClusterID = "consumerconsumerconsumerconsumer"

// abroad is a pod as it is at the provider, or why one of the halves refuses it.
func abroad(t *testing.T, pod *corev1.Pod, terms Terms) (*Template, error) {
	t.Helper()
	sent, refusal := Leave(pod)
	if refusal != nil {
		return nil, refusal
	}
	raw, err := json.Marshal(sent.Pod)
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := read(raw)
	if err != nil {
		t.Fatal(err)
	}
	terms.Peer = consumer
	return tpl, Admit(tpl, terms)
}

func seeks(required bool, shuns bool, terms ...corev1.PodAffinityTerm) *corev1.Affinity {
	var preferred []corev1.WeightedPodAffinityTerm
	if !required {
		for _, t := range terms {
			preferred = append(preferred, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: t})
		}
		terms = nil
	}
	if shuns {
		return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms, PreferredDuringSchedulingIgnoredDuringExecution: preferred}}
	}
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms, PreferredDuringSchedulingIgnoredDuringExecution: preferred}}
}

func termsOf(a *corev1.Affinity) (out []corev1.PodAffinityTerm) {
	keepPodTerms(a, func(t *corev1.PodAffinityTerm, _ bool) bool {
		out = append(out, *t)
		return true
	})
	return out
}

func TestPodsSeekAndShunEachOtherAbroad(t *testing.T) {
	app := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	ours := map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(consumer)}
	inSpaces := func(op metav1.LabelSelectorOperator, names ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: ours, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: api.LabelOriginNamespace, Operator: op, Values: names}}}
	}
	named := func(op metav1.LabelSelectorOperator, names ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: op, Values: names}
	}
	for name, tc := range map[string]struct {
		in   corev1.PodAffinityTerm
		want *corev1.PodAffinityTerm // nil if it goes
	}{
		"hosts": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app},
		},
		"racks of home": {corev1.PodAffinityTerm{TopologyKey: "example.com/rack", LabelSelector: app}, nil},
		"labels with a domain": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{
				MatchLabels:      map[string]string{"example.com/tier": "db", "app.kubernetes.io/name": "web"},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "apps.kubernetes.io/pod-index", Operator: "NotIn", Values: []string{"0"}}},
			}},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{
				MatchLabels:      map[string]string{"home.entente.dev/example.com_tier": "db", "app.kubernetes.io/name": "web"},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "home.entente.dev/apps.kubernetes.io_pod-index", Operator: "NotIn", Values: []string{"0"}}},
			}},
		},
		"keys of its own labels": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, MatchLabelKeys: []string{"pod-template-hash", "absent"}, MismatchLabelKeys: []string{"example.com/tenant"}},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: app.MatchLabels, MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "pod-template-hash", Operator: "In", Values: []string{"x1"}}, {Key: "home.entente.dev/example.com_tenant", Operator: "NotIn", Values: []string{"t1"}},
			}}},
		},
		"other namespaces": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, Namespaces: []string{"shop", "billing"}},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, NamespaceSelector: inSpaces("In", "billing", "shop")},
		},
		"all namespaces": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, NamespaceSelector: &metav1.LabelSelector{}},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, NamespaceSelector: &metav1.LabelSelector{MatchLabels: ours}},
		},
		"namespaces by name, and more": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, Namespaces: []string{"a"}, NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{named("In", "b", "c"), named("NotIn", "c")},
			}},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, NamespaceSelector: inSpaces("In", "a", "b")},
		},
		"all but some": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, Namespaces: []string{"a"}, NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{named("NotIn", "a", "b")},
			}},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, NamespaceSelector: inSpaces("NotIn", "b")},
		},
		"none": {
			corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: "a"}, MatchExpressions: []metav1.LabelSelectorRequirement{named("DoesNotExist")},
			}},
			&corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: app, NamespaceSelector: inSpaces("DoesNotExist")},
		},
	} {
		for _, required := range []bool{true, false} {
			for _, shuns := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, required %t, shuns %t", name, required, shuns), func(t *testing.T) {
					pod := &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", Labels: map[string]string{"app": "web", "pod-template-hash": "x1", "example.com/tenant": "t1"}},
						Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, Affinity: seeks(required, shuns, tc.in)},
					}
					before := pod.DeepCopy()
					tpl, err := abroad(t, pod, Terms{PodSecurity: baseline})
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(before, pod); diff != "" {
						t.Errorf("the pod at home changed (-want +got):\n%s", diff)
					}
					got := tpl.Spec.Affinity.DeepCopy()
					got.NodeAffinity = nil
					want := &corev1.Affinity{}
					if tc.want != nil {
						want = seeks(required, shuns, *tc.want)
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("affinity (-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}

func TestNamespacesByTheirLabelsAreRefusedIfTheyAreDemanded(t *testing.T) {
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}}
	pod := func(required bool) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}, Affinity: seeks(required, true, term)}}
	}
	if _, refusal := Leave(pod(true)); refusal == nil || !strings.Contains(refusal.Message, `"tier"`) {
		t.Errorf("refusal %v", refusal)
	}
	sent, refusal := Leave(pod(false))
	if refusal != nil || sent.Pod.Spec.Affinity != nil || len(sent.Notes) != 1 || !strings.Contains(sent.Notes[0], `"tier"`) {
		t.Errorf("refusal %v, affinity %v, notes %q", refusal, sent.Pod.Spec.Affinity, sent.Notes)
	}
	// A consumer that sends it anyway gets a refusal.
	if err := Admit(&Template{Spec: pod(true).Spec}, Terms{}); err == nil || !strings.Contains(err.Error(), `"tier"`) {
		t.Errorf("admitted: %v", err)
	}
}

// Whether a pod could be scheduled would reveal the labels of the provider's nodes.
func TestOtherTopologiesAreNotAskedFor(t *testing.T) {
	secret := corev1.PodAffinityTerm{TopologyKey: "customer.example/gold"}
	for _, required := range []bool{true, false} {
		tpl := &Template{Spec: corev1.PodSpec{Affinity: seeks(required, false, secret)}}
		if err := Admit(tpl, Terms{}); (err != nil) != required || !required && len(termsOf(tpl.Spec.Affinity)) > 0 {
			t.Errorf("required %t: %v, %+v", required, err, tpl.Spec.Affinity)
		}
	}
	for _, when := range []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway, ""} {
		tpl := &Template{Spec: corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{TopologyKey: secret.TopologyKey, WhenUnsatisfiable: when}}}}
		if err := Admit(tpl, Terms{}); (err != nil) != (when != corev1.ScheduleAnyway) || err == nil && len(tpl.Spec.TopologySpreadConstraints) > 0 {
			t.Errorf("%q: %v, %+v", when, err, tpl.Spec.TopologySpreadConstraints)
		}
	}
}

func TestTermsAreBounded(t *testing.T) {
	host := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname}
	for n, ok := range map[int]bool{maxPodTerms: true, maxPodTerms + 1: false} {
		if err := Admit(&Template{Spec: corev1.PodSpec{Affinity: seeks(true, true, slices.Repeat([]corev1.PodAffinityTerm{host}, n)...)}}, Terms{}); (err == nil) != ok {
			t.Errorf("%d terms: %v", n, err)
		}
		spread := corev1.TopologySpreadConstraint{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway}
		if err := Admit(&Template{Spec: corev1.PodSpec{TopologySpreadConstraints: slices.Repeat([]corev1.TopologySpreadConstraint{spread}, n)}}, Terms{}); (err == nil) != ok {
			t.Errorf("%d constraints: %v", n, err)
		}
	}
}

// A selector selects a pod abroad if and only if it does at home.
func TestSelectorsMeanTheSamePodsAbroad(t *testing.T) {
	long := "a-domain-that-is-rather-long.and-has-many-parts.example.com/" + strings.Repeat("n", 60)
	keys := []string{"app", "example.com/app", "app.kubernetes.io/name", api.LabelManaged, api.LabelPeer, "batch.kubernetes.io/job-name", "home.entente.dev/example.com_app", long, long + "x"}
	seen := map[string]bool{}
	for _, k := range keys {
		got := LabelAbroad(k)
		if problems := validation.IsQualifiedName(got); len(problems) > 0 || seen[got] {
			t.Errorf("%s becomes %s, which another one does or no key is: %q", k, got, problems)
		}
		seen[got] = true
	}
	for _, pod := range keys {
		for _, other := range keys {
			home := map[string]string{pod: "v"}
			spread := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: home}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c"}},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
					TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{other: "v"}},
				}},
			}}
			tpl, err := abroad(t, spread, Terms{PodSecurity: baseline})
			if err != nil {
				t.Fatal(err)
			}
			selector, err := metav1.LabelSelectorAsSelector(tpl.Spec.TopologySpreadConstraints[0].LabelSelector)
			if err != nil {
				t.Fatal(err)
			}
			if got := selector.Matches(labels.Set(tpl.Metadata.Labels)); got != (pod == other) {
				t.Errorf("a pod with %s: a selector of %s matches %t", pod, other, got)
			}
		}
	}
}
