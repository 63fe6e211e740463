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

// A claim never changes its storage class, and a provisioner serves its own. So where a pod
// was placed at home, a claim of home's class is made in the agent's namespace, and the
// volume that it gets is handed to the claim that the pod has, as an administrator
// would: kept when the one claim goes, then bound to the other. Afterwards it is a volume of
// home's provisioner like all of its, and nothing of it is ours.

const (
	// annotationPolicy keeps the policy that a volume had before it was held for a claim.
	annotationPolicy = "entente.dev/reclaim-policy"
	// handOver is the pause between two steps of that.
	handOver = time.Second
)

// handed is what there is of a volume that is on its way to a claim: the claim that stands in,
// and its volume. Either may be nil.
type handed struct {
	standIn *corev1.PersistentVolumeClaim
	pv      *corev1.PersistentVolume
}

// localStep is the next step of handing a volume to a claim.
type localStep uint8

const (
	// localMake makes the claim that stands in.
	localMake localStep = iota
	// localWait waits for it to be bound, or to be gone, or for the claim that it is for.
	localWait
	// localHold has the volume outlive the claim that stands in.
	localHold
	// localRelease deletes that claim.
	localRelease
	// localGive binds the volume to the claim that it is for.
	localGive
)

func nextLocal(h handed) localStep {
	held := h.pv != nil && h.pv.Labels[api.LabelOriginUID] != "" && h.pv.Spec.ClaimRef != nil
	switch {
	case held && string(h.pv.Spec.ClaimRef.UID) == h.pv.Labels[api.LabelOriginUID]:
		return localWait // Kubernetes binds them
	case held && h.pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain && h.standIn == nil:
		return localGive
	case h.standIn == nil:
		return localMake
	case h.standIn.DeletionTimestamp != nil:
		return localWait
	case held:
		return localRelease
	case h.pv != nil && h.standIn.Status.Phase == corev1.ClaimBound:
		return localHold
	}
	return localWait
}

// provisionLocally takes the next step towards a volume of home's class for a claim.
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
	case localHold:
		err = h.change(ctx, there.pv, func(pv *corev1.PersistentVolume) { hold(pv, claim) })
	case localRelease:
		err = h.Client.Delete(ctx, there.standIn, client.Preconditions{UID: &there.standIn.UID})
	case localGive:
		err = h.change(ctx, there.pv, func(pv *corev1.PersistentVolume) {
			letGo(pv)
			// It says whose it is until the claim says so, too, and afterwards.
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

// handedTo returns what is on its way to the claim with a UID, by the API server's own word.
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

// standIn is a claim of home's class that asks for what a claim asks for, on its node.
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

// change changes a volume as it was read.
func (h *Home) change(ctx context.Context, pv *corev1.PersistentVolume, change func(*corev1.PersistentVolume)) error {
	before := pv.DeepCopy()
	change(pv)
	return h.Client.Patch(ctx, pv, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(api.Manager))
}

// dropLocal takes away what is on its way to a claim but for the one with a UID, because that is
// gone, or is provisioned elsewhere. Nobody ever used it, so its volume goes as its own
// policy says.
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
		return fmt.Errorf("list what is on its way to claims: %w", err)
	}
	var problems []error
	for i := range held.Items {
		if drops(&held.Items[i]) {
			problems = append(problems, client.IgnoreNotFound(h.change(ctx, held.Items[i].DeepCopy(), letGo)))
		}
	}
	for i := range claims.Items {
		if c := &claims.Items[i]; drops(c) && c.DeletionTimestamp == nil {
			problems = append(problems, client.IgnoreNotFound(h.Client.Delete(ctx, c, client.Preconditions{UID: &c.UID})))
		}
	}
	return errors.Join(problems...)
}

// hold has a volume outlive the claim that stands in for another.
func hold(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) {
	metav1.SetMetaDataLabel(&pv.ObjectMeta, api.LabelOriginUID, string(claim.UID))
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, api.LabelOriginNamespace, claim.Namespace)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, api.LabelOriginName, claim.Name)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, annotationPolicy, string(pv.Spec.PersistentVolumeReclaimPolicy))
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

// letGo takes back what hold did.
func letGo(pv *corev1.PersistentVolume) {
	if was := pv.Annotations[annotationPolicy]; was != "" {
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(was)
	}
	delete(pv.Labels, api.LabelOriginUID)
	for _, key := range []string{annotationPolicy, api.LabelOriginNamespace, api.LabelOriginName} {
		delete(pv.Annotations, key)
	}
}
