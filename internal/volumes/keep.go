package volumes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// reconcileVolume keeps a volume at a provider: wanted under a running contract, in the size that
// its claim requests, and deleted when its claim is gone and its policy is Delete. Nothing else
// deletes one.
func (h *Home) reconcileVolume(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pv := &corev1.PersistentVolume{}
	if err := h.Client.Get(ctx, req.NamespacedName, pv); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if peerOf(pv) == "" {
		return reconcile.Result{}, nil // other volumes belong to others
	}
	ref := pv.Spec.ClaimRef
	if pv.DeletionTimestamp != nil || ref == nil || ref.UID == "" {
		return reconcile.Result{}, nil
	}
	uid, ok := uidOf(pv)
	if !ok {
		return reconcile.Result{}, nil
	}
	contract, ok := keeper(h.Providers.Contracts(peerOf(pv)), pv)
	if !ok {
		return reconcile.Result{RequeueAfter: again}, nil // the provider keeps the volume
	}
	h.Changed(contract.ID)
	// A claim that is not in the cache may exist.
	claim := &corev1.PersistentVolumeClaim{}
	err := h.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, claim)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return reconcile.Result{}, fmt.Errorf("read claim %s/%s: %w", ref.Namespace, ref.Name, err)
	case err != nil || claim.UID != ref.UID:
		if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && pv.Status.Phase == corev1.VolumeReleased {
			return reconcile.Result{RequeueAfter: again}, h.deleteVolume(ctx, pv, contract, uid)
		}
		claim = nil
	}
	return reconcile.Result{RequeueAfter: inStep}, h.keep(ctx, pv, claim, contract, uid)
}

// uidOf returns the UID of the claim for which a volume was created, which is in its name abroad.
// It may be bound to another claim by now.
func uidOf(pv *corev1.PersistentVolume) (string, bool) {
	uid := pv.Spec.CSI.VolumeHandle[min(len(namePrefix), len(pv.Spec.CSI.VolumeHandle)):]
	return uid, uid != "" && Name(uid) == pv.Spec.CSI.VolumeHandle
}

// keeper returns the contract that keeps a volume: the first that grants its class.
func keeper(all []Contract, pv *corev1.PersistentVolume) (Contract, bool) {
	name := corev1.ResourceName(peering.StorageResource(pv.Spec.CSI.VolumeAttributes[attributeClass]))
	for _, c := range all {
		if _, ok := c.Resources[name]; ok {
			return c, true
		}
	}
	return Contract{}, false
}

// keep asks the provider to hold a volume for a contract, and to expand it if its claim requests
// more.
func (h *Home) keep(ctx context.Context, pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, contract Contract, uid string) error {
	has := pv.Spec.Capacity[corev1.ResourceStorage]
	bytes := has.Value()
	if claim != nil {
		bytes = max(bytes, size(claim))
	}
	ref := pv.Spec.ClaimRef
	// It may have data, so the provider must not replace it by an empty one.
	want := peering.ClaimObject{Claim: ref.Name, StorageClass: pv.Spec.CSI.VolumeAttributes[attributeClass], Bytes: bytes, Exists: true}
	o, err := object(ref.Namespace, uid, want, pv.Spec.AccessModes)
	if err != nil {
		return err
	}
	a := h.ask(contract.ID, o.Ref, &o, ack{claim: types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, peer: peerOf(pv), given: true})
	grows := claim != nil && bytes > has.Value()
	if a.refusal != nil && a.refusal.Reason == peering.RefusedInvalid && !grows {
		h.warnUnavailable(pv, claim, a.refusal.Message)
	}
	if !grows {
		return h.showSize(ctx, claim, has)
	}
	if a.refusal != nil {
		h.warn(claim, reasonNotGrown, "the provider did not expand the volume: "+a.refusal.Message)
	}
	if !a.done {
		return nil
	}
	before := pv.DeepCopy()
	pv.Spec.Capacity[corev1.ResourceStorage] = *resource.NewQuantity(bytes, resource.BinarySI)
	if err := h.Client.Patch(ctx, pv, client.MergeFrom(before), client.FieldOwner(api.Manager)); err != nil {
		return fmt.Errorf("record the size of volume %s: %w", pv.Name, err)
	}
	h.Events.Eventf(claim, nil, corev1.EventTypeNormal, reasonGrown, "Resize", "volume %s has %s", pv.Name, pv.Spec.Capacity.Storage())
	return h.showSize(ctx, claim, pv.Spec.Capacity[corev1.ResourceStorage])
}

// warnUnavailable records, for a volume and its claim if it has one, why pods cannot use it.
func (h *Home) warnUnavailable(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, message string) {
	message = "pods cannot use the volume: " + message
	h.warn(pv, reasonUnavailable, message)
	if claim != nil {
		h.warn(claim, reasonUnavailable, message)
	}
}

// showSize writes the size of a volume into the status of its claim, which Kubernetes does only
// once, when it binds them.
func (h *Home) showSize(ctx context.Context, claim *corev1.PersistentVolumeClaim, has resource.Quantity) error {
	if claim == nil || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	if shown := claim.Status.Capacity[corev1.ResourceStorage]; shown.Cmp(has) >= 0 {
		return nil
	}
	before := claim.DeepCopy()
	if claim.Status.Capacity == nil {
		claim.Status.Capacity = corev1.ResourceList{}
	}
	claim.Status.Capacity[corev1.ResourceStorage] = has
	claim.Status.Conditions = nil
	if err := h.Client.Status().Patch(ctx, claim, client.MergeFrom(before), client.FieldOwner(api.Manager)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("show the size of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// deleteVolume deletes a volume at its provider, and then at home.
func (h *Home) deleteVolume(ctx context.Context, pv *corev1.PersistentVolume, contract Contract, uid string) error {
	ref := peering.ObjectRef{Kind: peering.KindClaim, Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.CSI.VolumeHandle, UID: uid}
	claim := types.NamespacedName{Namespace: ref.Namespace, Name: pv.Spec.ClaimRef.Name}
	a := h.ask(contract.ID, ref, nil, ack{claim: claim, peer: peerOf(pv), given: true})
	if a.refusal != nil {
		h.warn(pv, reasonNotDeleted, "the provider did not delete the volume: "+a.refusal.Message)
	}
	if !a.done {
		return nil
	}
	if err := h.Client.Delete(ctx, pv, client.Preconditions{UID: &pv.UID}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete volume %s: %w", pv.Name, err)
	}
	h.forget(uid)
	return nil
}

// Usage returns the storage of each class that the volumes of this cluster use of a contract.
func (h *Home) Usage(ctx context.Context, peer peering.ClusterID, contract string) (corev1.ResourceList, error) {
	var list corev1.PersistentVolumeList
	if err := h.Client.List(ctx, &list, client.MatchingLabels{api.LabelManaged: api.Manager, api.LabelPeer: string(peer)}); err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	return used(list.Items, h.Providers.Contracts(peer), peer, contract), nil
}

// used sums the volumes that a contract keeps.
func used(pvs []corev1.PersistentVolume, all []Contract, peer peering.ClusterID, contract string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := range pvs {
		if peerOf(&pvs[i]) != peer {
			continue
		}
		if c, ok := keeper(all, &pvs[i]); !ok || c.ID != contract {
			continue
		}
		name := corev1.ResourceName(peering.StorageResource(pvs[i].Spec.CSI.VolumeAttributes[attributeClass]))
		sum := out[name]
		sum.Add(pvs[i].Spec.Capacity[corev1.ResourceStorage])
		out[name] = sum
	}
	return out
}
