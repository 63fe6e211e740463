package placement

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// templateAffinity is where the pods of a DaemonSet have their affinity.
const templateAffinity = "/spec/template/spec/affinity"

// KeepOff returns the changes that keep the pods of a DaemonSet that tolerates virtual nodes off these, by its node
// affinity. old is nil for a new DaemonSet. One whose template stays is left alone: a change of it only for our sake
// would restart all its pods.
func KeepOff(old, set *appsv1.DaemonSet) []Operation {
	pods := &set.Spec.Template.Spec
	if old != nil && equality.Semantic.DeepEqual(old.Spec.Template, set.Spec.Template) || !slices.ContainsFunc(pods.Tolerations, toleratesVirtualNodes) {
		return nil
	}
	alone := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{realNode()}}}}
	switch a := pods.Affinity; {
	case a == nil:
		return []Operation{{"add", templateAffinity, corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: alone}}}}
	case a.NodeAffinity == nil:
		return []Operation{{"add", templateAffinity + "/nodeAffinity", corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: alone}}}
	case a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil || len(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) == 0:
		return []Operation{{"add", templateAffinity + "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution", alone}}
	}
	return keepOffEach(pods.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
}

// keepOffEach adds the requirement to each alternative that does not decide about virtual nodes itself. An empty one
// matches no node.
func keepOffEach(terms []corev1.NodeSelectorTerm) (patch []Operation) {
	for i, t := range terms {
		path := fmt.Sprintf("%s/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/%d/matchExpressions", templateAffinity, i)
		decides := func(e corev1.NodeSelectorRequirement) bool { return e.Key == v1alpha1.LabelVirtualNode }
		switch {
		case len(t.MatchExpressions)+len(t.MatchFields) == 0 || slices.ContainsFunc(t.MatchExpressions, decides):
		case len(t.MatchExpressions) == 0:
			patch = append(patch, Operation{"add", path, []corev1.NodeSelectorRequirement{realNode()}})
		default:
			patch = append(patch, Operation{"add", path + "/-", realNode()})
		}
	}
	return patch
}

func toleratesVirtualNodes(t corev1.Toleration) bool {
	return (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) && (t.Key == "" || t.Key == v1alpha1.TaintVirtualNode)
}
