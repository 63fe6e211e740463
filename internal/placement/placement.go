package placement

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// Operation is one of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Decide returns the changes to a pod that is created in a namespace with this NamespaceOffloading: a toleration of
// virtual nodes, if it can run on one, a node affinity to those where it may, and if it can only run on a virtual
// node, how long it tolerates the loss of that. It does not change a pod that has all of them already.
func Decide(pod *corev1.Pod, offloading *v1alpha1.NamespaceOffloading) []Operation {
	if pod.Spec.NodeName != "" || ofDaemonSet(pod) {
		return nil
	}
	terms := termsOf(&pod.Spec)
	switch StrategyOf(pod, &offloading.Spec) {
	case v1alpha1.StrategyLocal:
		if offloading.Spec.PodStrategy == v1alpha1.StrategyLocal {
			return nil
		}
		return required(nil, pod, atHome(terms, true))
	case v1alpha1.StrategyRemote:
		// A pod that cannot cross is still sent to a virtual node, where its status says what is wrong.
		return required(tolerate(pod.Spec.Tolerations, tolerateLoss(pod.Spec.Tolerations, offloading)), pod, abroad(terms, selectedFor(pod, offloading), true))
	case v1alpha1.StrategyLocalAndRemote:
		if !Crosses(&pod.Spec) {
			return nil
		}
		selected, patch := selectedFor(pod, offloading), tolerate(pod.Spec.Tolerations, nil)
		if len(selected) == 0 {
			return patch
		}
		return required(patch, pod, append(abroad(terms, selected, false), atHome(terms, false)...))
	}
	return nil
}

// StrategyOf returns where a pod may run: its own annotation decides, if its namespace lets pods run abroad at all.
func StrategyOf(pod *corev1.Pod, offloading *v1alpha1.NamespaceOffloadingSpec) v1alpha1.PodStrategy {
	if offloading.PodStrategy == v1alpha1.StrategyRemote || offloading.PodStrategy == v1alpha1.StrategyLocalAndRemote {
		switch own := v1alpha1.PodStrategy(pod.Annotations[v1alpha1.AnnotationPodStrategy]); own {
		case v1alpha1.StrategyLocal, v1alpha1.StrategyRemote, v1alpha1.StrategyLocalAndRemote:
			return own
		}
	}
	return offloading.PodStrategy
}

func selectedFor(pod *corev1.Pod, offloading *v1alpha1.NamespaceOffloading) []corev1.NodeSelectorRequirement {
	return append(Selector(offloading.Spec.ClusterSelector), backoffRequirements(pod, offloading.Status.PlacementBackoffs)...)
}

func ofDaemonSet(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
}

// tolerate adds the toleration of virtual nodes to a pod, and before all others, those of the loss of one.
func tolerate(has, loss []corev1.Toleration) (patch []Operation) {
	toleration := corev1.Toleration{Key: v1alpha1.LabelVirtualNode, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	if len(has) == 0 {
		return []Operation{{"add", "/spec/tolerations", append(loss, toleration)}}
	}
	for _, t := range slices.Backward(loss) {
		patch = append(patch, Operation{"add", "/spec/tolerations/0", t})
	}
	if slices.ContainsFunc(has, func(t corev1.Toleration) bool {
		return t.Key == toleration.Key && t.Operator == toleration.Operator && (t.Effect == "" || t.Effect == toleration.Effect)
	}) {
		return patch
	}
	return append(patch, Operation{"add", "/spec/tolerations/-", toleration})
}

// tolerateLoss returns the tolerations of a lost virtual node that a pod does not have yet. The agent would write
// them once the pod is on one, which would change the pod's generation.
func tolerateLoss(has []corev1.Toleration, offloading *v1alpha1.NamespaceOffloading) []corev1.Toleration {
	want, _ := fencing.Tolerations(nil, LossOf(offloading))
	return slices.DeleteFunc(want, func(w corev1.Toleration) bool {
		return slices.ContainsFunc(has, func(t corev1.Toleration) bool { return t.Key == w.Key && fencing.IsOurs(t) })
	})
}

// LossOf is what happens to a namespace's pods at a provider that does not respond.
func LossOf(o *v1alpha1.NamespaceOffloading) peering.Loss {
	p := o.Spec.PeerLost
	if p == nil {
		return peering.Loss{Action: peering.LossKeep}
	}
	loss := peering.Loss{Action: peering.LossAction(p.Action)}
	if p.After != nil {
		loss.After = p.After.Duration
	}
	return loss
}

// backoffRequirements returns the requirements that keep a pod off virtual nodes whose providers had no node for other pods of
// its controller.
func backoffRequirements(pod *corev1.Pod, all []v1alpha1.PlacementBackoff) []corev1.NodeSelectorRequirement {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return nil
	}
	var out []corev1.NodeSelectorRequirement
	for i := range all {
		if !all[i].Expired && all[i].OwnerUID == string(owner.UID) {
			out = append(out, NotOn(all[i].Node))
		}
	}
	return out
}

// NotOn is the requirement that a node is not the one with this name in its label.
func NotOn(node string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node}}
}

// Selector returns a selector of ForeignClusters as requirements of virtual nodes, which have
// their ForeignCluster's labels with a prefix.
func Selector(s *metav1.LabelSelector) []corev1.NodeSelectorRequirement {
	if s == nil {
		return nil
	}
	var out []corev1.NodeSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		out = append(out, corev1.NodeSelectorRequirement{Key: nodeKey(key), Operator: corev1.NodeSelectorOpIn, Values: []string{s.MatchLabels[key]}})
	}
	for _, e := range s.MatchExpressions {
		out = append(out, corev1.NodeSelectorRequirement{Key: nodeKey(e.Key), Operator: corev1.NodeSelectorOperator(e.Operator), Values: e.Values})
	}
	return out
}

// termsOf returns the terms of a pod's node affinity, which are alternatives. An empty one
// matches nothing; a pod without terms runs anywhere, as with one that requires nothing.
func termsOf(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	a := spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil ||
		len(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) == 0 {
		return []corev1.NodeSelectorTerm{{}}
	}
	return slices.DeleteFunc(slices.Clone(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms), func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) == 0
	})
}

func virtualNode() corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}}
}

func realNode() corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpDoesNotExist}
}

// abroad returns the alternatives for selected virtual nodes, and atHome those for other nodes. An alternative that
// rules these out is left out, unless a pod has to run there: then nothing matches.
func abroad(terms []corev1.NodeSelectorTerm, selected []corev1.NodeSelectorRequirement, remote bool) []corev1.NodeSelectorTerm {
	var out []corev1.NodeSelectorTerm
	for _, t := range terms {
		if remote || !requires(t, realNode()) {
			out = append(out, with(t, append([]corev1.NodeSelectorRequirement{virtualNode()}, selected...)...))
		}
	}
	return out
}

func atHome(terms []corev1.NodeSelectorTerm, local bool) []corev1.NodeSelectorTerm {
	var out []corev1.NodeSelectorTerm
	for _, t := range terms {
		if local || !requires(t, virtualNode()) {
			out = append(out, with(t, realNode()))
		}
	}
	return out
}

// AbroadOnly reports whether all alternatives of a pod's node affinity are on virtual nodes, as Decide writes that.
func AbroadOnly(spec *corev1.PodSpec) bool {
	if a := spec.Affinity; a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool { return !requires(t, virtualNode()) })
}

func requires(t corev1.NodeSelectorTerm, r corev1.NodeSelectorRequirement) bool {
	return slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return equality.Semantic.DeepEqual(e, r) })
}

func with(t corev1.NodeSelectorTerm, requirements ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	out := corev1.NodeSelectorTerm{MatchExpressions: slices.Clone(t.MatchExpressions), MatchFields: t.MatchFields}
	has := func(r corev1.NodeSelectorRequirement) bool { return requires(t, r) }
	out.MatchExpressions = append(out.MatchExpressions, slices.DeleteFunc(slices.Clone(requirements), has)...)
	return out
}

// required adds these terms for a pod's node affinity to a patch.
func required(patch []Operation, pod *corev1.Pod, terms []corev1.NodeSelectorTerm) []Operation {
	if len(terms) == 0 || equality.Semantic.DeepEqual(terms, termsOf(&pod.Spec)) {
		return patch
	}
	return append(patch, require(pod.Spec.Affinity, terms))
}

// require sets the terms of a pod's node affinity.
func require(has *corev1.Affinity, terms []corev1.NodeSelectorTerm) Operation {
	selector := &corev1.NodeSelector{NodeSelectorTerms: terms}
	switch {
	case has == nil:
		return Operation{"add", "/spec/affinity", corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}}
	case has.NodeAffinity == nil:
		return Operation{"add", "/spec/affinity/nodeAffinity", corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
	}
	return Operation{"add", "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution", selector}
}

// Crosses reports whether a pod can run on a virtual node: it has nothing that is refused, and no claim, whose
// volume may be in this cluster.
func Crosses(spec *corev1.PodSpec) bool {
	return len(podspec.Problems(spec)) == 0 &&
		!slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}
