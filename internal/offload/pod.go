package offload

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// readPod decodes a pod that a consumer sent. It drops fields that this version does not know, and
// everything but labels, annotations and spec.
func readPod(raw []byte) (*podspec.Template, error) {
	if err := wire.CheckQuantities(raw); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	var t podspec.Template
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, fmt.Errorf("read pod: %w", err)
	}
	if n := len(t.Spec.Containers); n == 0 || n+len(t.Spec.InitContainers)+len(t.Spec.EphemeralContainers) > podspec.MaxContainers {
		return nil, fmt.Errorf("a pod has 1 to %d containers", podspec.MaxContainers)
	}
	return &t, nil
}

// checkMounts checks that a pod mounts no claims but its consumer's.
func checkMounts(s *corev1.PodSpec) error {
	for i := range s.Volumes {
		if v := &s.Volumes[i]; v.PersistentVolumeClaim != nil {
			if err := volumes.CheckMount(v); err != nil {
				return err //nolint:wrapcheck // it names the volume
			}
		}
	}
	return nil
}

// makePod returns the pod of an OffloadedPod. It has the OffloadedPod's name, so that creating it
// twice fails.
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
	if mayComplete(pod) {
		pod.Finalizers = []string{api.Finalizer}
	}
	setOrigin(pod, peering.ClusterID(o.Spec.PeerID), o.Spec.OriginUID)
	pod.Labels[api.LabelContract] = o.Spec.Contract
	setAnnotation(pod, api.AnnotationHash, o.Spec.Hash)
	return pod, nil
}

// setOrigin sets the labels that identify an object as a peer's.
func setOrigin(o metav1.Object, peer peering.ClusterID, uid string) {
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
