package offload

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// template is what of a pod crosses: the JSON of an OffloadedPod's template.
type template struct {
	Metadata struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec corev1.PodSpec `json:"spec"`
}

// readPod decodes a pod as a consumer sends it. Fields that this version does
// not know are left out; so is everything but labels, annotations and spec.
func readPod(raw []byte) (*template, error) {
	if err := wire.CheckQuantities(raw); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	var t template
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	if n := len(t.Spec.Containers); n == 0 || n+len(t.Spec.InitContainers)+len(t.Spec.EphemeralContainers) > maxContainers {
		return nil, fmt.Errorf("a pod has 1 to %d containers", maxContainers)
	}
	return &t, nil
}

// appArmor annotations are the exception: Pod Security checks them.
const appArmor = "container.apparmor.security.beta.kubernetes.io"

// foreignKey says whether a label or annotation may speak to a controller of
// this cluster, which is not a peer's to do: a cloud role, a secret, a sidecar.
// Nobody can list all such controllers, so every key with a domain counts, but
// for the recommended labels, which name an application and nothing else.
func foreignKey(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	return ok && (domain != "app.kubernetes.io" || key == api.LabelManaged)
}

// admitPod makes a consumer's pod one of this cluster, in place. It decides
// alone what may stay, whatever the consumer has taken away before:
//
//	dropped    node name, node selector and node affinity, service account and its
//	           token, scheduler, priority and preemption, scheduling gates and
//	           groups, readiness gates, overhead, eviction
//	           responders, tolerations of all but unreachable nodes, labels and
//	           annotations with a domain, affinity to pods of other namespaces
//	rewritten  references to labels and annotations that are dropped, so that they
//	           still have their values
//	added      only on nodes with the labels that the contract names, and never
//	           on a virtual node, so that a pod is not lent on; no more than
//	           maxGrace to end
//	refused    runtime classes that the contract does not name, resource claims,
//	           and every kind of volume but those of checkVolume
//
// What is left is for Pod Security and the API server to judge.
func admitPod(t *template, c Contract) error {
	fields := keepFields(t)
	maps.DeleteFunc(t.Metadata.Annotations, func(k, _ string) bool { return foreignKey(k) && !strings.HasPrefix(k, appArmor+"/") })
	maps.DeleteFunc(t.Metadata.Labels, func(k, _ string) bool { return foreignKey(k) })
	maps.Copy(fields, t.Metadata.Annotations)
	t.Metadata.Annotations = fields
	s := &t.Spec
	if s.RuntimeClassName != nil && *s.RuntimeClassName != "" && !slices.Contains(c.RuntimeClasses, *s.RuntimeClassName) {
		return fmt.Errorf("runtime class %s is not part of the contract; ask for a contract with it, or take runtimeClassName away", *s.RuntimeClassName)
	}
	if len(s.ResourceClaims) > 0 {
		return fmt.Errorf("resource claim %s stays in the consumer's cluster; take resourceClaims away", s.ResourceClaims[0].Name)
	}
	for i := range s.Volumes {
		if err := checkVolume(&s.Volumes[i], c.PodSecurity); err != nil {
			return err
		}
	}
	// Which nodes, is for the contract to say.
	s.NodeName, s.NodeSelector = "", nil
	if s.Affinity != nil {
		s.Affinity.NodeAffinity = nil
	}
	s.ServiceAccountName = "default"
	s.DeprecatedServiceAccount = ""
	s.AutomountServiceAccountToken = new(false)
	s.SchedulerName = ""
	s.PriorityClassName, s.Priority, s.PreemptionPolicy = "", nil, nil
	s.SchedulingGates, s.SchedulingGroup, s.ReadinessGates = nil, nil, nil
	s.EvictionResponders = nil
	s.Overhead = nil
	if g := s.TerminationGracePeriodSeconds; g != nil && *g > maxGrace {
		s.TerminationGracePeriodSeconds = new(maxGrace)
	}
	s.Tolerations = keepTolerations(s.Tolerations)
	keepToOwnNamespace(s.Affinity)
	dropMergedKeys(s)
	keepToNodes(s, c.NodeSelector)
	return nil
}

// keepToOwnNamespace lets a pod seek or shun only pods of its own namespace: one
// that shuns those of others keeps them from being scheduled.
func keepToOwnNamespace(a *corev1.Affinity) {
	eachPodTerm(a, func(t *corev1.PodAffinityTerm) { t.Namespaces, t.NamespaceSelector = nil, nil })
}

// eachPodTerm calls f for each term by which a pod seeks or shuns others.
func eachPodTerm(a *corev1.Affinity, f func(*corev1.PodAffinityTerm)) {
	if a == nil {
		return
	}
	all := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			f(&required[i])
		}
		for i := range preferred {
			f(&preferred[i].PodAffinityTerm)
		}
	}
	if p := a.PodAffinity; p != nil {
		all(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		all(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// keepTolerations keeps how long a pod stays on a node that is away. Every other
// taint is the provider's way of keeping pods off a node.
func keepTolerations(in []corev1.Toleration) (out []corev1.Toleration) {
	for _, t := range in {
		if t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable {
			out = append(out, t)
		}
	}
	return out
}

// keepToNodes has a pod placed on a node with these labels, and not on a virtual one.
func keepToNodes(s *corev1.PodSpec, labels map[string]string) {
	wanted := []corev1.NodeSelectorRequirement{{Key: api.LabelVirtualNode, Operator: corev1.NodeSelectorOpDoesNotExist}}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		wanted = append(wanted, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{labels[key]}})
	}
	if s.Affinity == nil {
		s.Affinity = &corev1.Affinity{}
	}
	s.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: wanted}},
	}}
}

// keepFields has what the pod reads of its own labels and annotations that are
// about to be dropped read of annotations of ours instead, which it returns: no
// controller acts on these, whatever a consumer's key was.
func keepFields(t *template) map[string]string {
	kept := make(map[string]string)
	keep := func(ref *corev1.ObjectFieldSelector) {
		if ref == nil {
			return
		}
		of, key, ok := fieldKey(ref.FieldPath)
		if !ok || !foreignKey(key) {
			return
		}
		values := t.Metadata.Labels
		if of == "annotations" {
			values = t.Metadata.Annotations
		}
		value, ok := values[key]
		if !ok {
			return
		}
		sum := sha256.Sum256([]byte(of + "/" + key))
		name := fieldPrefix + endpoints.Short(sum[:])
		kept[name] = value
		ref.FieldPath = "metadata.annotations['" + name + "']"
	}
	files := func(items []corev1.DownwardAPIVolumeFile) {
		for i := range items {
			keep(items[i].FieldRef)
		}
	}
	for _, containers := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
		for i := range containers {
			for j := range containers[i].Env {
				if from := containers[i].Env[j].ValueFrom; from != nil {
					keep(from.FieldRef)
				}
			}
		}
	}
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

// fieldKey returns what metadata.labels['key'] or metadata.annotations['key'] names.
func fieldKey(path string) (of, key string, ok bool) {
	rest, ok := strings.CutPrefix(path, "metadata.")
	if !ok {
		return "", "", false
	}
	of, rest, ok = strings.Cut(rest, "['")
	key, end := strings.CutSuffix(rest, "']")
	return of, key, ok && end && (of == "labels" || of == "annotations")
}

// dropMergedKeys drops the match label keys that the consumer's API server merged
// into the label selector beside them: this one would merge them again, and refuses
// a key that is in both.
func dropMergedKeys(s *corev1.PodSpec) {
	drop := func(keys []string, in *metav1.LabelSelector) []string {
		if in == nil {
			return keys
		}
		return slices.DeleteFunc(keys, func(key string) bool {
			_, ok := in.MatchLabels[key]
			return ok || slices.ContainsFunc(in.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == key })
		})
	}
	for i := range s.TopologySpreadConstraints {
		c := &s.TopologySpreadConstraints[i]
		c.MatchLabelKeys = drop(c.MatchLabelKeys, c.LabelSelector)
	}
	eachPodTerm(s.Affinity, func(t *corev1.PodAffinityTerm) {
		t.MatchLabelKeys = drop(t.MatchLabelKeys, t.LabelSelector)
		t.MismatchLabelKeys = drop(t.MismatchLabelKeys, t.LabelSelector)
	})
}

// checkVolume refuses volumes that would reach beyond the pod's own namespace:
// this cluster's storage, its nodes' file systems and networks, and its
// credentials.
func checkVolume(v *corev1.Volume, level api.PodSecurityLevel) error {
	src := v.VolumeSource
	switch {
	case src.PersistentVolumeClaim != nil:
		return volumes.CheckMount(v)
	case src.Projected != nil:
		for _, p := range src.Projected.Sources {
			switch {
			case p.ServiceAccountToken != nil:
				return fmt.Errorf("volume %s projects a service account token, and no credential of this cluster is given to a peer", v.Name)
			case p.Secret == nil && p.ConfigMap == nil && p.DownwardAPI == nil:
				return fmt.Errorf("volume %s projects something else than a Secret, a ConfigMap or the downward API", v.Name)
			}
		}
		return nil
	case src.EmptyDir != nil, src.ConfigMap != nil, src.Secret != nil, src.DownwardAPI != nil, src.Image != nil:
		return nil
	case src.HostPath != nil && level == privileged:
		return nil
	case src == (corev1.VolumeSource{}):
		// An empty source is an emptyDir.
		return nil
	}
	return fmt.Errorf("volume %s is of a kind that does not cross; use emptyDir, configMap, secret, projected, downwardAPI or image", v.Name)
}

// makePod returns the pod of an OffloadedPod. Its name follows from the
// OffloadedPod's, so that making it twice fails.
func makePod(o *api.OffloadedPod) (*corev1.Pod, error) {
	t, err := readPod(o.Spec.Template.Raw)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Name,
			Labels: t.Metadata.Labels, Annotations: t.Metadata.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: api.GroupVersion.String(), Kind: "OffloadedPod", Name: o.Name, UID: o.UID,
				Controller: new(true),
			}},
		},
		Spec: t.Spec,
	}
	mark(pod, peering.ClusterID(o.Spec.PeerID), o.Spec.OriginUID)
	pod.Labels[api.LabelContract] = o.Spec.Contract
	setAnnotation(pod, api.AnnotationHash, o.Spec.Hash)
	return pod, nil
}

// mark sets the labels by which an object is known to be a peer's.
func mark(o metav1.Object, peer peering.ClusterID, uid string) {
	l := o.GetLabels()
	if l == nil {
		l = make(map[string]string)
	}
	l[api.LabelManaged] = api.Manager
	l[api.LabelPeer] = string(peer)
	l[api.LabelOriginUID] = uid
	o.SetLabels(l)
}

func setAnnotation(o metav1.Object, key, value string) {
	a := o.GetAnnotations()
	if a == nil {
		a = make(map[string]string)
	}
	a[key] = value
	o.SetAnnotations(a)
}
