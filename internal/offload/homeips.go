package offload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// homeIPsName returns the name of the ConfigMap with the home addresses of the pod with this UID at home.
func homeIPsName(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return "entente-pod-ip-" + endpoints.Short(sum[:])
}

// writeHomeIPs writes the addresses by which home knows a pod that reads them, and then the pod's
// annotation, so that the kubelet notices at once and not only 10 s later. If they are not known
// yet, Refresh queues the pod again.
func (p *Provider) writeHomeIPs(ctx context.Context, key types.NamespacedName) error {
	pod, _ := p.inv.pod(key.Namespace, key.Name)
	if pod == nil || pod.DeletionTimestamp != nil || ended(pod.Status.Phase) {
		return nil
	}
	have, reads := pod.Annotations[api.AnnotationHomeIPs]
	if !reads || len(pod.Status.PodIPs) == 0 {
		return nil
	}
	peer := peering.ClusterID(pod.Labels[api.LabelPeer])
	data, said, ok := podspec.HomeIPs(pod.Status.PodIPs, func(a netip.Addr) (netip.Addr, bool) { return p.cfg.KnownAs(peer, a) })
	if !ok || said == have {
		return nil
	}
	// It is deleted with the pod.
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: homeIPsName(pod.Labels[api.LabelOriginUID]), Labels: map[string]string{api.LabelPeer: string(peer)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Data: data,
	}
	err := p.client.Create(ctx, m, client.FieldOwner(api.Manager))
	if apierrors.IsAlreadyExists(err) {
		err = p.client.Update(ctx, m, client.FieldOwner(api.Manager))
	}
	if err != nil {
		return fmt.Errorf("write the home addresses of pod %s: %w", key, err)
	}
	// Only in the version that was seen: a pod that was replaced or changed since is reconciled by its own
	// event.
	after := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
		Annotations: map[string]string{api.AnnotationHomeIPs: said},
	}}
	before := after.DeepCopy()
	before.Annotations = nil
	if err := p.patch(ctx, after, before); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate pod %s with its home addresses: %w", key, err)
	}
	return nil
}
