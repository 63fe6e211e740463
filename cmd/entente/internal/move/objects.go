package move

import (
	"crypto/rand"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/storage"
	"github.com/entente-dev/entente/internal/volumecopy"
)

const (
	// labelSide says which of the two pods a pod is.
	labelSide  = "entente.dev/move-side"
	secretKey  = "key"
	volumePath = "/volume"
	statePath  = "/state"
	container  = "copy"
)

// annotationProvisioner names the provisioner of a claim.
const annotationProvisioner = "volume.kubernetes.io/storage-provisioner"

// bindings are annotations of a claim that belong to one volume.
var bindings = []string{ //nolint:gochecknoglobals // a constant in all but form
	"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller",
	"volume.kubernetes.io/selected-node", "volume.beta.kubernetes.io/storage-provisioner", annotationProvisioner,
	corev1.LastAppliedConfigAnnotation,
}

// meta is the metadata of an object of a move, which is deleted with its record.
func (r *Record) meta(name string, owner *corev1.ConfigMap) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: r.Namespace, Name: name, Labels: map[string]string{LabelMove: ID(r.Namespace, r.Claim)}}
	if owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	}
	return m
}

func (r *Record) secret(owner *corev1.ConfigMap) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: r.meta(r.name(), owner), Immutable: new(true), Data: map[string][]byte{secretKey: []byte(rand.Text() + rand.Text())}}
}

// service is the Service by which the sender finds the receiver, in whichever clusters they run.
func (r *Record) service(owner *corev1.ConfigMap) *corev1.Service {
	selected := r.meta("", nil).Labels
	selected[labelSide] = "to"
	return &corev1.Service{ObjectMeta: r.meta(r.name(), owner), Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: selected,
		Ports: []corev1.ServicePort{{Name: "copy", Port: volumecopy.Port, TargetPort: intstr.FromInt32(volumecopy.Port), Protocol: corev1.ProtocolTCP}},
	}}
}

// temporary is the claim that gets the new volume.
func (r *Record) temporary(owner *corev1.ConfigMap) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: r.meta(r.name(), owner), Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &r.Class, AccessModes: r.Spec.AccessModes, Resources: r.Spec.Resources,
	}}
}

// restored is the claim of the moved name, bound to a volume.
func (r *Record) restored(pv *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	labels, annotations := maps.Clone(r.Labels), maps.Clone(r.Annotations)
	class := pv.Spec.StorageClassName
	if storage.Peer(pv) != "" { // so that the agent sees when the claim asks for more
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[annotationProvisioner] = v1alpha1.VolumeDriver
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Claim, Labels: labels, Annotations: annotations},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: r.Spec.AccessModes, Resources: r.Spec.Resources, VolumeName: pv.Name,
		},
	}
}

// pod is one of the two pods of a copy. Its rights are those that files of all owners need, within
// the Pod Security level baseline; with a user of its own, restricted.
func (r *Record) pod(owner *corev1.ConfigMap, id, side, claim, cluster string, args ...string) *corev1.Pod {
	sending := side == "from"
	name := r.receiver()
	if sending {
		name = r.sender()
	}
	p := &corev1.Pod{ObjectMeta: r.meta(name, owner), Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyOnFailure, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		TerminationGracePeriodSeconds: new(int64(5)),
		SecurityContext:               &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{
			Name: container, Image: r.Image, Command: []string{"/entented"},
			Args: append([]string{"--log-format=text", "volume", "--state=" + statePath}, append(args, "--id="+id, "--volume="+volumePath, "--secret-file=/secret/"+secretKey)...),
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsUser: r.User, RunAsGroup: r.User,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Resources:                corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "volume", MountPath: volumePath, ReadOnly: sending}, {Name: "state", MountPath: statePath}, {Name: "secret", MountPath: "/secret", ReadOnly: true},
			},
		}},
		Volumes: []corev1.Volume{
			{Name: "volume", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}},
			{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: r.name()}}},
		},
	}}
	p.Labels[labelSide] = side
	if !sending {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "copy", ContainerPort: volumecopy.Port, Protocol: corev1.ProtocolTCP}}
	}
	if security := p.Spec.Containers[0].SecurityContext; r.User == nil {
		security.RunAsUser, security.RunAsGroup = new(int64(0)), new(int64(0))
		security.Capabilities.Add = []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"}
	} else {
		security.RunAsNonRoot = new(*r.User != 0)
	}
	placed(p, cluster)
	return p
}

// placed makes a pod run in a cluster; empty means this one.
func placed(p *corev1.Pod, cluster string) {
	strategy := v1alpha1.StrategyLocal
	where := corev1.NodeSelectorRequirement{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpDoesNotExist}
	if cluster != "" {
		strategy = v1alpha1.StrategyRemote
		where = corev1.NodeSelectorRequirement{Key: v1alpha1.LabelPeer, Operator: corev1.NodeSelectorOpIn, Values: []string{cluster}}
		p.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.LabelVirtualNode, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	}
	p.Annotations = map[string]string{v1alpha1.AnnotationPodStrategy: string(strategy)}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{where}}},
	}}}
}

// address is the address at which the sender dials the receiver.
func (r *Record) address() string {
	return fmt.Sprintf("%s.%s.svc:%d", r.name(), r.Namespace, volumecopy.Port)
}

// Lasting returns those annotations of a claim that stay valid with another volume.
func Lasting(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	for _, key := range bindings {
		delete(out, key)
	}
	return out
}
