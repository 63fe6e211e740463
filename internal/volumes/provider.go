package volumes

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// ours reports whether a volume is the peer's.
func ours(c *corev1.PersistentVolumeClaim, peer peering.ClusterID) bool {
	return c.Labels[api.LabelManaged] == api.Manager && c.Labels[api.LabelPeer] == string(peer)
}

// Apply creates a consumer's volume in its namespace, expands it, or lets another contract hold it.
// A refusal is a *peering.Refusal. Calls for one contract must not overlap.
func Apply(ctx context.Context, c client.Client, s Share, namespace string, o peering.Object) error {
	want, refusal := read(o)
	if refusal != nil {
		return refusal
	}
	have := &corev1.PersistentVolumeClaim{}
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: o.Ref.Name}, have)
	switch {
	case apierrors.IsNotFound(err):
		have = nil
	case err != nil:
		return fmt.Errorf("read %s: %w", o.Ref, err)
	case !ours(have, s.Peer) || have.Labels[api.LabelOriginUID] != o.Ref.UID:
		return refuse(peering.RefusedInvalid, true, "the provider's namespace %s has a claim %s that is not the consumer's", namespace, o.Ref.Name)
	}
	var class storagev1.StorageClass
	if err := c.Get(ctx, client.ObjectKey{Name: want.StorageClass}, &class); apierrors.IsNotFound(err) {
		return refuse(peering.RefusedInvalid, true, "the provider has no storage class %s any more", want.StorageClass)
	} else if err != nil {
		return fmt.Errorf("read storage class %s: %w", want.StorageClass, err)
	}
	all, err := volumesOf(ctx, c, s.Peer)
	if err != nil {
		return err
	}
	what, refusal := decide(s, all, namespace, o.Ref.UID, want, have, class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion)
	if refusal != nil {
		return refusal
	}
	if what == stepCreate {
		if err := c.Create(ctx, newClaim(s, namespace, o, want), client.FieldOwner(api.Manager)); err != nil {
			return fmt.Errorf("create %s: %w", o.Ref, err)
		}
		return nil
	}
	return change(ctx, c, s, o, want, have, what)
}

// volumesOf lists the volumes of a consumer, in all namespaces.
func volumesOf(ctx context.Context, c client.Client, peer peering.ClusterID) ([]*corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	if err := c.List(ctx, &list, client.MatchingLabels{api.LabelManaged: api.Manager, api.LabelPeer: string(peer)}); err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	all := make([]*corev1.PersistentVolumeClaim, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return all, nil
}

// newClaim is the claim here for a consumer's volume.
func newClaim(s Share, namespace string, o peering.Object, want peering.ClaimObject) *corev1.PersistentVolumeClaim {
	modes := make([]corev1.PersistentVolumeAccessMode, len(want.AccessModes))
	for i, m := range want.AccessModes {
		modes[i] = corev1.PersistentVolumeAccessMode(m)
	}
	filesystem := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: o.Ref.Name,
			Labels: map[string]string{
				api.LabelManaged: api.Manager, api.LabelPeer: string(s.Peer),
				api.LabelOriginUID: o.Ref.UID, api.LabelContract: s.Contract,
			},
			Annotations: map[string]string{
				s.Hold: o.Hash().String(), api.LabelOriginNamespace: o.Ref.Namespace, api.LabelOriginName: want.Claim,
			},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &want.StorageClass, VolumeMode: &filesystem,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(want.Bytes, resource.BinarySI),
			}},
		},
	}
}

func change(ctx context.Context, c client.Client, s Share, o peering.Object, want peering.ClaimObject, have *corev1.PersistentVolumeClaim, what step) error {
	before := have.DeepCopy()
	if have.Annotations == nil {
		have.Annotations = map[string]string{}
	}
	if what == stepGrow {
		have.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(want.Bytes, resource.BinarySI)
	} else {
		have.Annotations[s.Hold] = o.Hash().String()
	}
	have.Labels[api.LabelContract] = s.Contract
	have.Annotations[api.LabelOriginName] = want.Claim // another claim may have it by now
	delete(have.Labels, api.LabelRetained)
	delete(have.Annotations, api.AnnotationRetainedSince)
	// It may have changed since it was read.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, have, patch, client.FieldOwner(api.Manager)); err != nil {
		return fmt.Errorf("change %s: %w", o.Ref, err)
	}
	if what == stepGrow {
		return refuse(peering.RefusedInternal, true, "the volume is being expanded")
	}
	return nil
}

// Delete deletes a volume at its consumer's request. namespace is that of the consumer's namespace
// here, or "" if there is none. A volume that is in another one stays, and the refusal says so.
func Delete(ctx context.Context, c client.Client, peer peering.ClusterID, namespace string, ref peering.ObjectRef) error {
	have := &corev1.PersistentVolumeClaim{}
	found := false
	if namespace != "" {
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, have)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read %s: %w", ref, err)
		}
		found = err == nil
	}
	if !found {
		all, err := volumesOf(ctx, c, peer)
		if err != nil {
			return err
		}
		if refusal := elsewhere(all, ref.UID); refusal != nil {
			return refusal
		}
		return nil
	}
	if !ours(have, peer) || have.Labels[api.LabelOriginUID] != ref.UID {
		return nil
	}
	if err := c.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", ref, err)
	}
	return nil
}

// Keep ends a contract's hold on the volumes of a namespace, all of which stay, and returns how many
// there are, those of other owners included. Volumes that no contract holds any longer are labelled
// as kept.
func Keep(ctx context.Context, c client.Client, peer peering.ClusterID, hold, holdPrefix, namespace string, now time.Time) (int, error) {
	var list corev1.PersistentVolumeClaimList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list volumes: %w", err)
	}
	kept := 0
	for i := range list.Items {
		have := &list.Items[i]
		if have.DeletionTimestamp != nil {
			continue // it is being deleted on request
		}
		kept++
		if _, held := have.Annotations[hold]; !held || !ours(have, peer) {
			continue
		}
		before := have.DeepCopy()
		delete(have.Annotations, hold)
		if !holds(have, holdPrefix) {
			have.Labels[api.LabelRetained] = "true"
			have.Annotations[api.AnnotationRetainedSince] = now.UTC().Format(time.RFC3339)
		}
		if err := c.Patch(ctx, have, client.MergeFrom(before), client.FieldOwner(api.Manager)); client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("keep volume %s/%s: %w", namespace, have.Name, err)
		}
	}
	return kept, nil
}

// holds reports whether any contract holds an object.
func holds(o metav1.Object, prefix string) bool {
	for k := range o.GetAnnotations() {
		if strings.HasPrefix(k, prefix) {
			return true
		}
	}
	return false
}

// Mountable checks that the claims that a consumer's pod mounts exist here and are its own. If one
// is not, the error is a *peering.Refusal that names it.
func Mountable(ctx context.Context, c client.Client, peer peering.ClusterID, namespace string, spec *corev1.PodSpec) error {
	for i := range spec.Volumes {
		claim := spec.Volumes[i].PersistentVolumeClaim
		if claim == nil {
			continue
		}
		have := &corev1.PersistentVolumeClaim{}
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: claim.ClaimName}, have)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read claim of a pod: %w", err)
		}
		if err != nil || !ours(have, peer) {
			return refuse(peering.RefusedInvalid, true, "volume %s: %s is not here", spec.Volumes[i].Name, claim.ClaimName)
		}
	}
	return nil
}

// CheckMount checks, by its name, that a claim in a consumer's pod can be one of the consumer's
// volumes.
func CheckMount(v *corev1.Volume) error {
	if claim := v.PersistentVolumeClaim; !strings.HasPrefix(claim.ClaimName, namePrefix) {
		return fmt.Errorf("volume %s is claim %s, which is not a volume of the contract", v.Name, claim.ClaimName)
	}
	return nil
}
