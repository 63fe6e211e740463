package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// A claim never changes its storage class, and a provisioner serves only its own. So if a pod was
// placed at home, a stand-in claim of home's class is created in the agent's namespace, and its
// volume is passed to the pod's claim, as an administrator would: the volume is retained when the
// stand-in is deleted, and then bound to the pod's claim. Afterwards it is an ordinary volume of
// home's provisioner.

const (
	// annotationPolicy has the reclaim policy that a volume had before it was retained for a claim.
	annotationPolicy = "entente.dev/reclaim-policy"
	// handOver is the pause between two of these steps.
	handOver = time.Second
)

// handed is the state of a handover: the stand-in claim and its volume. Either may be nil.
type handed struct {
	standIn *corev1.PersistentVolumeClaim
	pv      *corev1.PersistentVolume
}

// localStep is the next step of a handover.
type localStep uint8

const (
	// localMake creates the stand-in claim.
	localMake localStep = iota
	// localWait waits until it is bound, or gone, or until the pod's claim is bound.
	localWait
	// localRetain makes the volume outlive the stand-in claim.
	localRetain
	// localRelease deletes the stand-in claim.
	localRelease
	// localBind binds the volume to the pod's claim.
	localBind
)

func nextLocal(h handed) localStep {
	held := h.pv != nil && h.pv.Labels[api.LabelOriginUID] != "" && h.pv.Spec.ClaimRef != nil
	switch {
	case held && string(h.pv.Spec.ClaimRef.UID) == h.pv.Labels[api.LabelOriginUID]:
		return localWait // Kubernetes binds them
	case held && h.pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && h.standIn == nil:
		return localBind
	case h.standIn == nil:
		return localMake
	case h.standIn.DeletionTimestamp != nil:
		return localWait
	case held:
		return localRelease
	case h.pv != nil && h.standIn.Status.Phase == corev1.ClaimBound:
		return localRetain
	}
	return localWait
}

// provisionLocally does the next step towards a volume of home's class for a claim.
func (h *Home) provisionLocally(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node, home string) (reconcile.Result, error) {
	there, err := h.handedTo(ctx, string(claim.UID))
	if err != nil {
		return reconcile.Result{}, err
	}
	switch nextLocal(there) {
	case localMake:
		if err := h.dropLocal(ctx, client.ObjectKeyFromObject(claim), string(claim.UID)); err != nil {
			return reconcile.Result{}, err
		}
		err = h.Client.Create(ctx, standIn(h.Namespace, claim, node, home), client.FieldOwner(api.Manager))
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	case localRetain:
		err = h.change(ctx, there.pv, func(pv *corev1.PersistentVolume) { retain(pv, claim) })
	case localRelease:
		err = h.Client.Delete(ctx, there.standIn, client.Preconditions{UID: &there.standIn.UID})
	case localBind:
		err = h.change(ctx, there.pv, func(pv *corev1.PersistentVolume) {
			unretain(pv)
			// The label names the claim until it is bound, and afterwards.
			metav1.SetMetaDataLabel(&pv.ObjectMeta, api.LabelOriginUID, string(claim.UID))
			pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
			pv.Spec.StorageClassName, pv.Spec.PersistentVolumeReclaimPolicy = class.Name, reclaim(claim, class)
		})
		if err == nil {
			h.Events.Eventf(claim, nil, corev1.EventTypeNormal, reasonProvisioned, "Provision", "volume %s is at home, of storage class %s", there.pv.Name, home)
		}
	case localWait:
	}
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return reconcile.Result{}, fmt.Errorf("provision claim %s/%s at home: %w", claim.Namespace, claim.Name, err)
	}
	return reconcile.Result{RequeueAfter: handOver}, nil
}

// handedTo reads the state of the handover to the claim with a UID from the API server.
func (h *Home) handedTo(ctx context.Context, uid string) (out handed, err error) {
	claim := &corev1.PersistentVolumeClaim{}
	switch err := h.Reader.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: Name(uid)}, claim); {
	case err == nil:
		out.standIn = claim
	case !apierrors.IsNotFound(err):
		return handed{}, fmt.Errorf("read claim %s: %w", Name(uid), err)
	}
	var held corev1.PersistentVolumeList
	if err := h.Reader.List(ctx, &held, client.MatchingLabels{api.LabelOriginUID: uid}); err != nil {
		return handed{}, fmt.Errorf("list volumes: %w", err)
	}
	if len(held.Items) > 0 {
		out.pv = &held.Items[0]
		return out, nil
	}
	if out.standIn == nil || out.standIn.Spec.VolumeName == "" {
		return out, nil
	}
	pv := &corev1.PersistentVolume{}
	if err := h.Reader.Get(ctx, client.ObjectKey{Name: out.standIn.Spec.VolumeName}, pv); err != nil {
		return out, client.IgnoreNotFound(err)
	}
	out.pv = pv
	return out, nil
}

// standIn is the stand-in claim: of home's class, for the same node, with the same requests.
func standIn(namespace string, claim *corev1.PersistentVolumeClaim, node, class string) *corev1.PersistentVolumeClaim {
	spec := claim.Spec.DeepCopy()
	spec.StorageClassName, spec.VolumeName = &class, ""
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: Name(string(claim.UID)),
			Labels:      map[string]string{api.LabelManaged: api.Manager, api.LabelOriginUID: string(claim.UID)},
			Annotations: map[string]string{annotationNode: node, api.LabelOriginNamespace: claim.Namespace, api.LabelOriginName: claim.Name},
		},
		Spec: *spec,
	}
}

// change patches a volume, unless it changed since it was read.
func (h *Home) change(ctx context.Context, pv *corev1.PersistentVolume, change func(*corev1.PersistentVolume)) error {
	before := pv.DeepCopy()
	change(pv)
	return h.Client.Patch(ctx, pv, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(api.Manager))
}

// dropLocal ends the handovers to claims of a name, except for the one with the UID but, because
// such a claim is gone, or is provisioned elsewhere. The volume was never used, so its own reclaim
// policy applies.
func (h *Home) dropLocal(ctx context.Context, claim client.ObjectKey, but string) error {
	drops := func(o client.Object) bool {
		a := o.GetAnnotations()
		return a[api.LabelOriginNamespace] == claim.Namespace && a[api.LabelOriginName] == claim.Name && o.GetLabels()[api.LabelOriginUID] != but
	}
	var claims corev1.PersistentVolumeClaimList
	var held corev1.PersistentVolumeList
	err := errors.Join(
		h.Client.List(ctx, &claims, client.InNamespace(h.Namespace), client.HasLabels{api.LabelOriginUID}),
		h.Client.List(ctx, &held, client.HasLabels{api.LabelOriginUID}),
	)
	if err != nil {
		return fmt.Errorf("list stand-in claims: %w", err)
	}
	var problems []error
	for i := range held.Items {
		if drops(&held.Items[i]) {
			problems = append(problems, client.IgnoreNotFound(h.change(ctx, held.Items[i].DeepCopy(), unretain)))
		}
	}
	for i := range claims.Items {
		if c := &claims.Items[i]; drops(c) && c.DeletionTimestamp == nil {
			problems = append(problems, client.IgnoreNotFound(h.Client.Delete(ctx, c, client.Preconditions{UID: &c.UID})))
		}
	}
	return errors.Join(problems...)
}

// retain makes a volume outlive the stand-in claim.
func retain(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	metav1.SetMetaDataLabel(&pv.ObjectMeta, api.LabelOriginUID, string(claim.UID))
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, api.LabelOriginNamespace, claim.Namespace)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, api.LabelOriginName, claim.Name)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, annotationPolicy, string(pv.Spec.PersistentVolumeReclaimPolicy))
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

// unretain undoes retain.
func unretain(pv *corev1.PersistentVolume) {
	if was := pv.Annotations[annotationPolicy]; was != "" {
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(was)
	}
	delete(pv.Labels, api.LabelOriginUID)
	for _, key := range []string{annotationPolicy, api.LabelOriginNamespace, api.LabelOriginName} {
		delete(pv.Annotations, key)
	}
}
