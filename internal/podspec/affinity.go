package podspec

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

// topology reports whether a label of nodes means the same in every cluster. Only by these may a
// pod's affinity, anti-affinity and spread work at a provider: with any other, a pod would reveal
// whether the provider's nodes have the label.
func topology(key string) bool {
	return key == corev1.LabelHostname || key == corev1.LabelTopologyZone || key == corev1.LabelTopologyRegion
}

// keepPodTerms returns the pod terms of an affinity for which keep returns true, as keep may have
// changed them, or nil if there are none. It drops node affinity, and does not change its argument.
func keepPodTerms(in *corev1.Affinity, keep func(t *corev1.PodAffinityTerm, required bool) bool) *corev1.Affinity {
	if in == nil {
		return nil
	}
	all := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) ([]corev1.PodAffinityTerm, []corev1.WeightedPodAffinityTerm) {
		return deleteIf(required, func(t *corev1.PodAffinityTerm) bool { return !keep(t, true) }),
			deleteIf(preferred, func(t *corev1.WeightedPodAffinityTerm) bool { return !keep(&t.PodAffinityTerm, false) })
	}
	var out corev1.Affinity
	if p := in.PodAffinity.DeepCopy(); p != nil {
		required, preferred := all(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		if len(required)+len(preferred) > 0 {
			out.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required, PreferredDuringSchedulingIgnoredDuringExecution: preferred}
		}
	}
	if p := in.PodAntiAffinity.DeepCopy(); p != nil {
		required, preferred := all(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		if len(required)+len(preferred) > 0 {
			out.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required, PreferredDuringSchedulingIgnoredDuringExecution: preferred}
		}
	}
	if out == (corev1.Affinity{}) {
		return nil
	}
	return &out
}

// affinityAbroad returns the part of a pod's affinity that its provider has to follow: affinity and
// anti-affinity to pods on the hosts, zones and regions there. Node affinity, and other topologies,
// are about home's nodes, of which the virtual node is one: the home scheduler has applied them. A
// preference that cannot be expressed abroad becomes a note; a requirement is refused
// (affinityProblems).
func affinityAbroad(in *corev1.Affinity, labels map[string]string) (out *corev1.Affinity, notes []string) {
	out = keepPodTerms(in, func(t *corev1.PodAffinityTerm, _ bool) bool {
		if !topology(t.TopologyKey) {
			return false
		}
		if _, err := spacesOf(t); err != nil {
			notes = append(notes, "a preference of spec.affinity stays behind: "+err.Error())
			return false
		}
		t.LabelSelector = withLabelKeys(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn, labels)
		t.LabelSelector = withLabelKeys(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, labels)
		t.MatchLabelKeys, t.MismatchLabelKeys = nil, nil
		return true
	})
	return out, notes
}

// affinityProblems returns the requirements of an affinity that cannot be expressed abroad.
func affinityProblems(a *corev1.Affinity) (out []string) {
	keepPodTerms(a, func(t *corev1.PodAffinityTerm, required bool) bool {
		if _, err := spacesOf(t); err != nil && required && topology(t.TopologyKey) {
			out = append(out, "spec.affinity "+err.Error())
		}
		return true
	})
	return out
}

// admitAffinity returns the part of a consumer's affinity that applies here: among its own pods, by
// topologies that every cluster has. Anti-affinity to others' pods would keep them from being
// scheduled, so the terms are always restricted to the consumer's namespaces.
func admitAffinity(in *corev1.Affinity, peer peering.ClusterID) (out *corev1.Affinity, err error) {
	terms := 0
	out = keepPodTerms(in, func(t *corev1.PodAffinityTerm, required bool) bool {
		problem := error(nil)
		if !topology(t.TopologyKey) {
			problem = fmt.Errorf("has the topology %q; pods of consumers may use %s, %s and %s", t.TopologyKey, corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion)
		}
		wanted, bad := spacesOf(t)
		problem = cmp.Or(problem, bad)
		if problem != nil {
			if required && err == nil {
				err = fmt.Errorf("affinity to pods %w", problem)
			}
			return false
		}
		terms++
		wanted.restrict(t, peer)
		dropMerged(&t.MatchLabelKeys, t.LabelSelector)
		dropMerged(&t.MismatchLabelKeys, t.LabelSelector)
		t.LabelSelector = SelectorAbroad(t.LabelSelector)
		t.MatchLabelKeys, t.MismatchLabelKeys = admitKeys(t.MatchLabelKeys), admitKeys(t.MismatchLabelKeys)
		return true
	})
	if err == nil && terms > maxPodTerms {
		err = fmt.Errorf("the pod has %d terms of affinity and anti-affinity to pods; the limit is %d", terms, maxPodTerms)
	}
	return out, err
}

// admitSpread returns the topology spread constraints of a consumer's pod that apply here, with
// selectors for the labels here.
func admitSpread(in []corev1.TopologySpreadConstraint) (out []corev1.TopologySpreadConstraint, err error) {
	for _, c := range in {
		if !topology(c.TopologyKey) {
			if c.WhenUnsatisfiable != corev1.ScheduleAnyway {
				return nil, fmt.Errorf("topologySpreadConstraints require the topology %q; pods of consumers may use %s, %s and %s", c.TopologyKey, corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion)
			}
			continue
		}
		dropMerged(&c.MatchLabelKeys, c.LabelSelector)
		c.LabelSelector, c.MatchLabelKeys = SelectorAbroad(c.LabelSelector), admitKeys(c.MatchLabelKeys)
		out = append(out, c)
	}
	if len(out) > maxPodTerms {
		return nil, fmt.Errorf("the pod has %d topologySpreadConstraints; the limit is %d", len(out), maxPodTerms)
	}
	return out, nil
}

// spaces is a set of namespaces by their names at home: those in names, or all others.
type spaces struct {
	// own means the pod's own namespace, whatever the other fields are.
	own    bool
	names  []string
	others bool
}

// spacesOf returns the namespaces of a term. Names of home's namespaces are known abroad but not
// their labels, so a term that needs other labels is an error.
func spacesOf(t *corev1.PodAffinityTerm) (spaces, error) {
	s := t.NamespaceSelector
	if s == nil {
		return spaces{own: len(t.Namespaces) == 0, names: t.Namespaces}, nil
	}
	selected := spaces{others: true}
	for key, value := range s.MatchLabels {
		if key != corev1.LabelMetadataName {
			return spaces{}, otherLabel(key)
		}
		selected = selected.and(spaces{names: []string{value}})
	}
	for _, r := range s.MatchExpressions {
		if r.Key != corev1.LabelMetadataName {
			return spaces{}, otherLabel(r.Key)
		}
		switch r.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			selected = selected.and(spaces{names: r.Values, others: r.Operator == metav1.LabelSelectorOpNotIn})
		case metav1.LabelSelectorOpDoesNotExist:
			selected = selected.and(spaces{})
		case metav1.LabelSelectorOpExists:
		}
	}
	return selected.or(t.Namespaces), nil
}

func otherLabel(key string) error {
	return fmt.Errorf("selects namespaces by their label %q, which does not cross; name them in namespaces, or select them by %s", peering.Text(key, maxKeyBytes), corev1.LabelMetadataName)
}

// and returns the namespaces that are in both.
func (s spaces) and(other spaces) spaces {
	in := func(list []string) func(string) bool { return func(n string) bool { return slices.Contains(list, n) } }
	switch {
	case s.others && other.others:
		return spaces{others: true, names: append(slices.Clone(s.names), other.names...)}
	case s.others:
		return spaces{names: without(other.names, in(s.names))}
	case other.others:
		return spaces{names: without(s.names, in(other.names))}
	}
	return spaces{names: without(s.names, func(n string) bool { return !slices.Contains(other.names, n) })}
}

// or returns the namespaces that are in the set or named.
func (s spaces) or(names []string) spaces {
	if s.others {
		return spaces{others: true, names: without(s.names, func(n string) bool { return slices.Contains(names, n) })}
	}
	return spaces{names: append(slices.Clone(s.names), names...)}
}

func without(names []string, gone func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(names), gone)
}

// restrict makes a term select these namespaces of a consumer, by the labels that the agent sets on
// them here: so it includes later ones, and none of other consumers.
func (s spaces) restrict(t *corev1.PodAffinityTerm, peer peering.ClusterID) {
	t.Namespaces, t.NamespaceSelector = nil, nil
	if s.own {
		return
	}
	names := metav1.LabelSelectorRequirement{Key: api.LabelOriginNamespace, Operator: metav1.LabelSelectorOpIn, Values: slices.Compact(slices.Sorted(slices.Values(s.names)))}
	t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(peer)}}
	switch {
	case s.others && len(names.Values) == 0:
		return
	case s.others:
		names.Operator = metav1.LabelSelectorOpNotIn
	case len(names.Values) == 0: // no namespace: each of ours has the label
		names.Operator = metav1.LabelSelectorOpDoesNotExist
	}
	t.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{names}
}

// withLabelKeys returns a selector that also requires the pod's own values of keys, or other
// values. Home's API server usually has merged these keys into the selector already, and another
// API server refuses both together; if it has not, withLabelKeys does.
func withLabelKeys(s *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator, labels map[string]string) *metav1.LabelSelector {
	if len(keys) == 0 || s == nil {
		return s
	}
	s = s.DeepCopy()
	for _, k := range keys {
		value, has := labels[k]
		merged := slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
			return r.Key == k && r.Operator == op && slices.Equal(r.Values, []string{value})
		})
		if has && !merged {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: op, Values: []string{value}})
		}
	}
	return s
}

// dropMerged drops the match label keys that the consumer's API server merged into the label
// selector: this one would merge them again, and refuses a key that is in both.
func dropMerged(keys *[]string, in *metav1.LabelSelector) {
	if in == nil {
		return
	}
	*keys = slices.DeleteFunc(slices.Clone(*keys), func(key string) bool {
		_, ok := in.MatchLabels[key]
		return ok || slices.ContainsFunc(in.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == key })
	})
}

// LabelAbroad returns the key that a label of a consumer's pod has here. A key on which a
// controller of this cluster may act is replaced by one on which none acts; selectors of the
// consumer's other pods are rewritten in the same way.
func LabelAbroad(key string) string {
	if !ForeignKey(key) {
		return key
	}
	name := strings.Replace(key, "/", "_", 1) // a domain has no such character
	if len(name) > maxLabelName {
		sum := sha256.Sum256([]byte(key))
		tail := "_" + endpoints.Short(sum[:])
		name = name[:maxLabelName-len(tail)] + tail
	}
	return api.PrefixHomeLabel + name
}

func admitLabels(in map[string]string) map[string]string {
	if in == nil {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		out[LabelAbroad(k)] = v
	}
	return out
}

// SelectorAbroad returns a selector that selects the same pods by the labels that they have here.
func SelectorAbroad(in *metav1.LabelSelector) *metav1.LabelSelector {
	out := in.DeepCopy()
	if out == nil {
		return nil
	}
	out.MatchLabels = admitLabels(out.MatchLabels)
	for i := range out.MatchExpressions {
		out.MatchExpressions[i].Key = LabelAbroad(out.MatchExpressions[i].Key)
	}
	return out
}

func admitKeys(in []string) (out []string) {
	for _, k := range in {
		out = append(out, LabelAbroad(k))
	}
	return out
}
