package podspec

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/peering"
)

const (
	// tokenVolumePrefix begins the name of the volume that the home cluster's
	// admission adds for the pod's ServiceAccount token.
	tokenVolumePrefix = "kube-api-access-"
	// rootCAConfigMap is in every namespace of every cluster, with that cluster's
	// own content; it never crosses.
	rootCAConfigMap = "kube-root-ca.crt"
	// AtHome ends the message about a pod that cannot run in another cluster. With podStrategy Remote only the
	// annotation helps: a node affinity of the pod's own for other nodes would leave it with none.
	AtHome = "; to run it at home, let it be created with the annotation " + api.AnnotationPodStrategy + ": " + string(api.StrategyLocal)
)

// Reference is a ConfigMap or Secret that a pod refers to, in its own namespace.
type Reference struct {
	// Kind is KindConfigMap or KindSecret.
	Kind peering.Kind
	Name string
	// Optional means that the pod runs without it.
	Optional bool
}

// Translation is a pod in the form in which it is sent.
type Translation struct {
	// Pod has name, namespace, labels, annotations and spec.
	Pod *corev1.Pod
	// References are the objects to send with it, sorted.
	References []Reference
	// Notes are messages to the user about dropped fields that the pod may miss.
	Notes []string
}

// Leave returns a pod in the form in which it is sent: all of it, except for the fields in the
// table of docs/offloading.md. A pod that cannot run elsewhere is refused, with all reasons at
// once. It does not change pod.
func Leave(pod *corev1.Pod) (Translation, *peering.Refusal) {
	if problems := Problems(&pod.Spec); len(problems) > 0 {
		return Translation{}, &peering.Refusal{
			Reason:  peering.RefusedInvalid,
			Message: "this pod cannot run in another cluster: " + strings.Join(problems, "; ") + AtHome,
		}
	}
	t := Translation{Pod: &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        pod.Name,
			Namespace:   pod.Namespace,
			Labels:      maps.Clone(pod.Labels),
			Annotations: maps.Clone(pod.Annotations),
		},
		Spec: *pod.Spec.DeepCopy(),
	}}
	// This annotation repeats the whole object, and the provider would drop it.
	delete(t.Pod.Annotations, corev1.LastAppliedConfigAnnotation)
	s := &t.Pod.Spec
	s.NodeName, s.NodeSelector, s.SchedulerName = "", nil, ""
	s.SchedulingGates, s.SchedulingGroup, s.EvictionResponders = nil, nil, nil
	s.ServiceAccountName, s.DeprecatedServiceAccount, s.AutomountServiceAccountToken = "", "", new(false)
	s.Priority, s.PreemptionPolicy, s.Overhead = nil, nil, nil
	s.ReadinessGates = nil
	s.Tolerations = tolerationsAbroad(s.Tolerations)
	s.TopologySpreadConstraints = spreadAbroad(s.TopologySpreadConstraints, pod.Labels)
	s.Affinity, t.Notes = affinityAbroad(s.Affinity, pod.Labels)
	t.Notes = append(t.Notes, podIPNotes(pod.Annotations)...)

	EphemeralToClaims(pod.Name, s)
	gone, notes := dropTokens(s, asksHomeAPI(pod.Annotations))
	t.Notes = append(t.Notes, notes...)
	if len(gone) > 0 {
		t.Notes = append(t.Notes, accountNotes(&pod.Spec)...)
	}
	EachContainer(s, func(_ string, c *corev1.Container) {
		c.VolumeMounts = deleteIf(c.VolumeMounts, func(m *corev1.VolumeMount) bool { return gone[m.Name] })
		for i := range c.Env {
			resolveAtHome(&c.Env[i], pod)
		}
	})
	t.References = references(s)
	return t, nil
}

// Problems returns why a pod cannot run in another cluster.
func Problems(s *corev1.PodSpec) []string {
	var out []string
	no := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, host := range []struct {
		field string
		set   bool
	}{{"hostNetwork", s.HostNetwork}, {"hostPID", s.HostPID}, {"hostIPC", s.HostIPC}} {
		if host.set {
			no("spec.%s is a namespace of the provider's node", host.field)
		}
	}
	if len(s.ResourceClaims) > 0 || (s.Resources != nil && len(s.Resources.Claims) > 0) {
		no("spec.resourceClaims claims devices of the home cluster")
	}
	if sc := s.SecurityContext; sc != nil && hostProcess(sc.WindowsOptions) {
		no("spec.securityContext.windowsOptions.hostProcess is the provider's node")
	}
	for _, v := range s.Volumes {
		for _, kind := range foreignVolume(v.VolumeSource) {
			no("volume %q is a %s, which is not available in another cluster; use configMap, secret, projected, downwardAPI, emptyDir, image, or a claim of a storage class of Entente", v.Name, kind)
		}
		for _, p := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			if p.ClusterTrustBundle != nil || p.PodCertificate != nil {
				no("volume %q projects a certificate or trust bundle of the home cluster", v.Name)
			}
		}
	}
	out = append(out, affinityProblems(s.Affinity)...)
	EachContainer(s, func(where string, c *corev1.Container) {
		for _, p := range c.Ports {
			switch {
			case p.HostPort != 0:
				no("%s %q wants port %d of the provider's node; use a Service", where, c.Name, p.HostPort)
			case p.HostIP != "":
				no("%s %q wants address %s of the provider's node; use a Service", where, c.Name, p.HostIP)
			}
		}
		if len(c.VolumeDevices) > 0 {
			no("%s %q wants block devices, which do not cross", where, c.Name)
		}
		if len(c.Resources.Claims) > 0 {
			no("%s %q claims devices of the home cluster", where, c.Name)
		}
		if c.SecurityContext != nil && hostProcess(c.SecurityContext.WindowsOptions) {
			no("%s %q is a host process", where, c.Name)
		}
	})
	return out
}

func hostProcess(w *corev1.WindowsSecurityContextOptions) bool {
	return w != nil && ptr.Deref(w.HostProcess, false)
}

// foreignVolume returns the volume kinds in a source that do not cross, which includes kinds that
// are not known here.
func foreignVolume(src corev1.VolumeSource) []string {
	var out []string
	v := reflect.ValueOf(src)
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			continue
		}
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		switch name {
		case "configMap", "secret", "projected", "downwardAPI", "emptyDir", "image", "persistentVolumeClaim", "ephemeral":
		default:
			out = append(out, name)
		}
	}
	return out
}

// dropTokens removes ServiceAccount tokens from the pod's volumes, and returns the volumes that it
// removed altogether. If the pod asks for its home's API, the token's volume stays, with the
// provider's files in place of a token.
func dropTokens(s *corev1.PodSpec, homeAPI bool) (gone map[string]bool, notes []string) {
	gone = map[string]bool{}
	isToken := func(p *corev1.VolumeProjection) bool { return p.ServiceAccountToken != nil }
	s.Volumes = deleteIf(s.Volumes, func(v *corev1.Volume) bool {
		if v.Projected == nil || !strings.HasPrefix(v.Name, tokenVolumePrefix) ||
			!slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool { return isToken(&p) }) {
			return false
		}
		if homeAPI {
			v.VolumeSource = homeAPIVolume()
			return false
		}
		gone[v.Name] = true
		return true
	})
	for i := range s.Volumes {
		p := s.Volumes[i].Projected
		if p == nil {
			continue
		}
		before := len(p.Sources)
		p.Sources = deleteIf(p.Sources, isToken)
		if len(p.Sources) != before {
			notes = append(notes, fmt.Sprintf("volume %q is without its ServiceAccount token: credentials of this cluster do not cross", s.Volumes[i].Name))
		}
	}
	return gone, notes
}

// accountNotes notes that a pod is without the token of a ServiceAccount that was chosen for it: it probably calls the
// API server. Most pods of the default one never do, and get no note.
func accountNotes(s *corev1.PodSpec) []string {
	if s.ServiceAccountName == "" || s.ServiceAccountName == "default" {
		return nil
	}
	return []string{fmt.Sprintf("the pod has no token of ServiceAccount %s, as credentials of this cluster do not cross: if it calls this cluster's API, "+
		"let its NamespaceOffloading have homeAPI %s and annotate it with %s: \"true\", or keep it at home", s.ServiceAccountName, api.HomeAPIAllowed, api.AnnotationHomeAPI)}
}

// podIPNotes notes an invalid value of the annotation about a pod's addresses.
func podIPNotes(annotations map[string]string) []string {
	if v, ok := annotations[api.AnnotationPodIP]; ok && v != api.PodIPHome {
		return []string{fmt.Sprintf("annotation %s is %q and is ignored: it may be %s", api.AnnotationPodIP, v, api.PodIPHome)}
	}
	return nil
}

// resolveAtHome replaces a reference to a field that has another value at the provider by the value
// at home, if that never changes.
func resolveAtHome(e *corev1.EnvVar, pod *corev1.Pod) {
	if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil {
		return
	}
	var value string
	switch e.ValueFrom.FieldRef.FieldPath {
	case "metadata.name":
		value = pod.Name
	case "metadata.namespace":
		value = pod.Namespace
	case "metadata.uid":
		value = string(pod.UID)
	case "spec.nodeName":
		value = pod.Spec.NodeName
	case "spec.serviceAccountName":
		value = pod.Spec.ServiceAccountName
	default:
		return // labels and annotations change, and a container reads them each time it starts
	}
	e.Value, e.ValueFrom = value, nil
}

// HostAtHome replaces a translated pod's references to its host's addresses by the address of its
// host at home: those of the provider's nodes mean nothing there.
func HostAtHome(s *corev1.PodSpec, host netip.Addr) {
	EachContainer(s, func(_ string, c *corev1.Container) {
		for i := range c.Env {
			e := &c.Env[i]
			if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil || !host.IsValid() {
				continue
			}
			if p := e.ValueFrom.FieldRef.FieldPath; p == "status.hostIP" || p == "status.hostIPs" {
				e.Value, e.ValueFrom = host.String(), nil
			}
		}
	})
}

// tolerationsAbroad drops the tolerations that would let the provider pass the pod on to another
// provider, and those for a lost virtual node.
func tolerationsAbroad(in []corev1.Toleration) []corev1.Toleration {
	return deleteIf(in, func(t *corev1.Toleration) bool {
		return t.Key == "" || t.Key == api.TaintVirtualNode || fencing.IsOurs(*t)
	})
}

// spreadAbroad turns required spread constraints into preferred ones, without making two
// constraints on one topology equal. It drops topologies that only home has.
func spreadAbroad(in []corev1.TopologySpreadConstraint, labels map[string]string) []corev1.TopologySpreadConstraint {
	var out []corev1.TopologySpreadConstraint
	seen := map[string]bool{}
	for _, c := range in {
		if c.WhenUnsatisfiable == corev1.ScheduleAnyway {
			seen[c.TopologyKey] = true
		}
	}
	for _, c := range in {
		if !topology(c.TopologyKey) {
			continue
		}
		if c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			if seen[c.TopologyKey] {
				continue
			}
			seen[c.TopologyKey] = true
			c.WhenUnsatisfiable, c.MinDomains = corev1.ScheduleAnyway, nil
		}
		c.LabelSelector, c.MatchLabelKeys = withLabelKeys(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn, labels), nil
		out = append(out, c)
	}
	return out
}

// references returns the ConfigMaps and Secrets that a translated pod needs.
func references(s *corev1.PodSpec) []Reference {
	optional := map[Reference]bool{}
	eachReference(s, func(kind peering.Kind, name string, opt *bool) {
		if name == "" || (kind == peering.KindConfigMap && name == rootCAConfigMap) {
			return
		}
		k := Reference{Kind: kind, Name: name}
		was, seen := optional[k]
		optional[k] = ptr.Deref(opt, false) && (was || !seen)
	})
	out := make([]Reference, 0, len(optional))
	for k, opt := range optional {
		k.Optional = opt
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Reference) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return out
}

// eachReference calls f for each field of a pod that names a ConfigMap or Secret.
func eachReference(s *corev1.PodSpec, f func(kind peering.Kind, name string, optional *bool)) {
	for _, ref := range s.ImagePullSecrets {
		// A kubelet runs pods without a missing pull secret.
		f(peering.KindSecret, ref.Name, new(true))
	}
	for _, v := range s.Volumes {
		if v.ConfigMap != nil {
			f(peering.KindConfigMap, v.ConfigMap.Name, v.ConfigMap.Optional)
		}
		if v.Secret != nil {
			f(peering.KindSecret, v.Secret.SecretName, v.Secret.Optional)
		}
		for _, p := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			if p.ConfigMap != nil {
				f(peering.KindConfigMap, p.ConfigMap.Name, p.ConfigMap.Optional)
			}
			if p.Secret != nil {
				f(peering.KindSecret, p.Secret.Name, p.Secret.Optional)
			}
		}
	}
	EachContainer(s, func(_ string, c *corev1.Container) {
		for _, e := range c.EnvFrom {
			if e.ConfigMapRef != nil {
				f(peering.KindConfigMap, e.ConfigMapRef.Name, e.ConfigMapRef.Optional)
			}
			if e.SecretRef != nil {
				f(peering.KindSecret, e.SecretRef.Name, e.SecretRef.Optional)
			}
		}
		for _, e := range c.Env {
			from := ptr.Deref(e.ValueFrom, corev1.EnvVarSource{})
			if r := from.ConfigMapKeyRef; r != nil {
				f(peering.KindConfigMap, r.Name, r.Optional)
			}
			if r := from.SecretKeyRef; r != nil {
				f(peering.KindSecret, r.Name, r.Optional)
			}
		}
	})
}

// EachContainer calls f with each container of any kind; where names the kind.
func EachContainer(s *corev1.PodSpec, f func(where string, c *corev1.Container)) {
	for i := range s.InitContainers {
		f("init container", &s.InitContainers[i])
	}
	for i := range s.Containers {
		f("container", &s.Containers[i])
	}
	for _, c := range Ephemeral(s) {
		f("ephemeral container", c)
	}
}

// deleteIf returns the elements for which drop returns false, as drop may have changed them, or nil if there
// are none.
func deleteIf[T any](in []T, drop func(*T) bool) []T {
	var out []T
	for _, e := range in {
		if !drop(&e) {
			out = append(out, e)
		}
	}
	return out
}

// EphemeralToClaims turns ephemeral volumes into claims: home has created a claim for each, and its
// volume.
func EphemeralToClaims(pod string, s *corev1.PodSpec) {
	for i := range s.Volumes {
		if v := &s.Volumes[i]; v.Ephemeral != nil {
			v.VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pod + "-" + v.Name}}
		}
	}
}

// Ephemeral returns the ephemeral containers of a pod as containers.
func Ephemeral(s *corev1.PodSpec) []*corev1.Container {
	out := make([]*corev1.Container, 0, len(s.EphemeralContainers))
	for i := range s.EphemeralContainers {
		out = append(out, (*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return out
}
