package podspec

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

// Template is the part of a pod that is sent: the JSON of an OffloadedPod's template.
type Template struct {
	Metadata struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec corev1.PodSpec `json:"spec"`
	// Notes are messages to the consumer about what Admit dropped and the pod may miss.
	Notes []string `json:"-"`
}

const (
	// fieldPrefix begins the annotations with the values of labels and annotations that a pod reads
	// of itself and that are not kept under their own keys.
	fieldPrefix                      = "field.entente.dev/"
	privileged  api.PodSecurityLevel = "privileged"
)

// Terms is what Admit needs to know about the contract.
type Terms struct {
	// Peer is the consumer.
	Peer peering.ClusterID
	// PodSecurity is the level that pods have to meet; "" means restricted.
	PodSecurity api.PodSecurityLevel
	// NodeSelector selects the nodes on which its pods run.
	NodeSelector map[string]string
	// Tolerations are for taints of these nodes.
	Tolerations []corev1.Toleration
	// RuntimeClasses are those that its pods may name.
	RuntimeClasses []string
	// Classes maps the consumer's classes to classes of this cluster.
	Classes Classes
	// HomeAPI is how pods reach the API server of their home; nil means not at all.
	HomeAPI *HomeAPI
	// Was is the pod as it was admitted, whose classes it keeps; nil means that it is new.
	Was *corev1.PodSpec
}

// appArmor annotations are the exception: Pod Security checks them.
const appArmor = "container.apparmor.security.beta.kubernetes.io"

// ForeignKey reports whether a controller of this cluster may act on a label or annotation, which a
// peer must not cause: a cloud role, a secret, a sidecar. No list of such controllers can be
// complete, so every key with a domain counts, except for the recommended labels, which only name
// an application.
func ForeignKey(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	return ok && (domain != "app.kubernetes.io" || key == api.LabelManaged)
}

// Admit turns a consumer's pod into one of this cluster, in place. It does not rely on what the
// consumer has removed before:
//
//	dropped    node name, node selector and node affinity, service account and its
//	           token, scheduler, scheduling gates and groups, readiness gates, overhead, eviction
//	           responders, tolerations of all but unreachable nodes, annotations
//	           with a domain, preferences by topologies that not every cluster has
//	rewritten  classes of runtime and priority, as the provider's policy maps them, and
//	           priorities that it does not map to none; labels with a domain, and selectors of them, to keys on which no controller
//	           here acts; namespaces in affinity, to those of the consumer; references
//	           to labels and annotations, so that they still have their values
//	added      only on nodes with the labels that the contract names, whose taints are
//	           tolerated as the provider says, and never on a virtual node, so that a
//	           pod is not passed on to another provider; no more than MaxGrace to end
//	refused    runtime classes that neither the contract names nor the policy maps, resource claims,
//	           requirements by other topologies, and every kind of volume but those of
//	           checkVolume
//
// Pod Security and the API server check the rest.
func Admit(t *Template, c Terms) error {
	fields := keepFields(t)
	maps.DeleteFunc(t.Metadata.Annotations, func(k, _ string) bool { return ForeignKey(k) && !strings.HasPrefix(k, appArmor+"/") })
	t.Metadata.Labels = admitLabels(t.Metadata.Labels)
	maps.Copy(fields, t.Metadata.Annotations)
	t.Metadata.Annotations = fields
	s := &t.Spec
	t.Notes = priorityNotes(s.PriorityClassName, c)
	if err := admitClasses(s, c); err != nil {
		return err
	}
	if len(s.ResourceClaims) > 0 {
		return fmt.Errorf("resource claim %s stays in the consumer's cluster; remove resourceClaims", s.ResourceClaims[0].Name)
	}
	for i := range s.Volumes {
		if err := checkVolume(&s.Volumes[i], c.PodSecurity); err != nil {
			return err
		}
	}
	// The contract decides on which nodes it runs.
	s.NodeName, s.NodeSelector = "", nil
	var err error
	if s.Affinity, err = admitAffinity(s.Affinity, c.Peer); err != nil {
		return err
	}
	if s.TopologySpreadConstraints, err = admitSpread(s.TopologySpreadConstraints); err != nil {
		return err
	}
	s.ServiceAccountName = "default"
	s.DeprecatedServiceAccount = ""
	s.AutomountServiceAccountToken = new(false)
	s.SchedulerName = ""
	s.SchedulingGates, s.SchedulingGroup, s.ReadinessGates = nil, nil, nil
	s.EvictionResponders = nil
	s.Overhead = nil
	if g := s.TerminationGracePeriodSeconds; g != nil && *g > MaxGrace {
		s.TerminationGracePeriodSeconds = new(MaxGrace)
	}
	s.Tolerations = append(keepTolerations(s.Tolerations), c.Tolerations...)
	keepToNodes(s, c.NodeSelector)
	return nil
}

// keepTolerations keeps only the tolerations for unreachable nodes. Every other taint is the
// provider's way to keep pods off a node, and its own Tolerations say which a consumer's pods
// tolerate.
func keepTolerations(in []corev1.Toleration) []corev1.Toleration {
	return deleteIf(in, func(t *corev1.Toleration) bool {
		return t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable
	})
}

// keepToNodes restricts a pod to nodes with these labels that are not virtual.
func keepToNodes(s *corev1.PodSpec, labels map[string]string) {
	wanted := []corev1.NodeSelectorRequirement{{Key: api.LabelVirtualNode, Operator: corev1.NodeSelectorOpDoesNotExist}}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		wanted = append(wanted, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{labels[key]}})
	}
	s.Affinity = cmp.Or(s.Affinity, &corev1.Affinity{})
	s.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: wanted}},
	}}
}

// keepFields redirects the pod's references to its own labels and annotations that are about to be
// dropped to annotations of ours, which it returns: no controller acts on these, whatever the
// consumer's key was.
func keepFields(t *Template) map[string]string {
	kept := make(map[string]string)
	keep := func(ref *corev1.ObjectFieldSelector) {
		if ref == nil {
			return
		}
		of, key, ok := fieldKey(ref.FieldPath)
		if !ok || !ForeignKey(key) {
			return
		}
		values := t.Metadata.Labels
		if of == "annotations" {
			values = t.Metadata.Annotations
		}
		sum := sha256.Sum256([]byte(of + "/" + key))
		name := fieldPrefix + endpoints.Short(sum[:])
		value, ok := values[key]
		switch {
		case ok:
			kept[name] = value
		case strings.HasPrefix(key, homeAPIPrefix):
			return // it is written later, by this cluster
		}
		// Even without a value yet: a pod's containers cannot be changed later.
		ref.FieldPath = "metadata.annotations['" + name + "']"
	}
	files := func(items []corev1.DownwardAPIVolumeFile) {
		for i := range items {
			keep(items[i].FieldRef)
		}
	}
	EachContainer(&t.Spec, func(_ string, c *corev1.Container) {
		for i := range c.Env {
			if from := c.Env[i].ValueFrom; from != nil {
				keep(from.FieldRef)
			}
		}
	})
	for i := range t.Spec.Volumes {
		v := &t.Spec.Volumes[i]
		if v.DownwardAPI != nil {
			files(v.DownwardAPI.Items)
		}
		if v.Projected != nil {
			for j := range v.Projected.Sources {
				if d := v.Projected.Sources[j].DownwardAPI; d != nil {
					files(d.Items)
				}
			}
		}
	}
	return kept
}

// fieldKey splits metadata.labels['key'] or metadata.annotations['key'].
func fieldKey(path string) (of, key string, ok bool) {
	rest, ok := strings.CutPrefix(path, "metadata.")
	if !ok {
		return "", "", false
	}
	of, rest, ok = strings.Cut(rest, "['")
	key, end := strings.CutSuffix(rest, "']")
	return of, key, ok && end && (of == "labels" || of == "annotations")
}

// checkVolume refuses volumes that would reach beyond the pod's own namespace: this cluster's
// storage, its nodes' file systems and networks, and its credentials. It does not check claims,
// which are not part of the pod.
func checkVolume(v *corev1.Volume, level api.PodSecurityLevel) error {
	src := v.VolumeSource
	switch {
	case src.Projected != nil:
		for _, p := range src.Projected.Sources {
			switch {
			case p.ServiceAccountToken != nil:
				return fmt.Errorf("volume %s projects a service account token, and a peer gets no credential of this cluster", v.Name)
			case p.Secret == nil && p.ConfigMap == nil && p.DownwardAPI == nil:
				return fmt.Errorf("volume %s projects something else than a Secret, a ConfigMap or the downward API", v.Name)
			}
		}
		return nil
	case src.EmptyDir != nil, src.ConfigMap != nil, src.Secret != nil, src.DownwardAPI != nil, src.Image != nil, src.PersistentVolumeClaim != nil:
		return nil
	case src.HostPath != nil && level == privileged:
		return nil
	case src == (corev1.VolumeSource{}):
		// An empty source means emptyDir.
		return nil
	}
	return fmt.Errorf("volume %s is of a kind that does not cross; use emptyDir, configMap, secret, projected, downwardAPI or image", v.Name)
}
