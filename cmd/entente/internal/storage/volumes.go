package storage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Volume is a volume that a provider keeps for a claim of this cluster.
type Volume struct {
	*corev1.PersistentVolume
}

// Peer is the ID of the cluster in which a volume is; empty means this one.
func Peer(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.VolumeDriver {
		return ""
	}
	return pv.Spec.CSI.VolumeAttributes[v1alpha1.VolumePeer]
}

// Namespace is the namespace of the claim that has or had a volume.
func (v Volume) Namespace() string {
	if v.Spec.ClaimRef == nil {
		return ""
	}
	return v.Spec.ClaimRef.Namespace
}

// String names a volume for people.
func (v Volume) String() string {
	of := "without a claim"
	if ref := v.Spec.ClaimRef; ref != nil {
		of = "of claim " + ref.Namespace + "/" + ref.Name
		if v.Status.Phase == corev1.VolumeReleased {
			of += ", which is gone"
		}
	}
	return fmt.Sprintf("%s (%s) %s", v.Name, v.Spec.Capacity.Storage(), of)
}

// AtProviders lists the volumes that providers keep for this cluster and that want selects,
// by their claims.
func AtProviders(ctx context.Context, kube kubernetes.Interface, want func(Volume) bool) ([]Volume, error) {
	var all []Volume
	options := metav1.ListOptions{LabelSelector: v1alpha1.LabelManaged + "=" + v1alpha1.Manager + "," + v1alpha1.LabelPeer, Limit: pageSize}
	for {
		list, err := kube.CoreV1().PersistentVolumes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list persistent volumes: %w", err)
		}
		for i := range list.Items {
			if v := (Volume{&list.Items[i]}); Peer(v.PersistentVolume) != "" && want(v) {
				all = append(all, v)
			}
		}
		if options.Continue = list.Continue; list.Continue == "" {
			break
		}
	}
	slices.SortFunc(all, func(a, b Volume) int {
		return cmp.Or(cmp.Compare(a.Namespace(), b.Namespace()), cmp.Compare(a.claim(), b.claim()), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

func (v Volume) claim() string {
	if v.Spec.ClaimRef == nil {
		return ""
	}
	return v.Spec.ClaimRef.Name
}

// Users lists the pods that use a claim, or will once they run: all except those that have ended.
func Users(ctx context.Context, kube kubernetes.Interface, namespace, claim string) ([]corev1.Pod, error) {
	var users []corev1.Pod
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := kube.CoreV1().Pods(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			if uses(&list.Items[i], claim) {
				users = append(users, list.Items[i])
			}
		}
		if options.Continue = list.Continue; list.Continue == "" {
			return users, nil
		}
	}
}

func uses(p *corev1.Pod, claim string) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim ||
			v.Ephemeral != nil && p.Name+"-"+v.Name == claim
	})
}

// InUse returns an error if pods use one of the volumes.
func InUse(ctx context.Context, kube kubernetes.Interface, all []Volume) error {
	var problems []error
	for _, v := range all {
		if v.Status.Phase != corev1.VolumeBound {
			continue
		}
		users, err := Users(ctx, kube, v.Namespace(), v.claim())
		if err != nil {
			return err
		}
		if len(users) > 0 {
			problems = append(problems, fmt.Errorf("pods use claim %s/%s: %s", v.Namespace(), v.claim(), Names(users)))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w\n  next: scale their controllers down, or delete the pods, and run this again", errors.Join(problems...))
}

// Names names pods for people.
func Names(pods []corev1.Pod) string {
	var names []string
	for i := range pods[:min(len(pods), MaxNamed)] {
		names = append(names, pods[i].Name)
	}
	if more := len(pods) - MaxNamed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// Order orders the deletion of a volume, in the only way that providers accept: it sets its
// reclaim policy to Delete, and deletes its claim. The agent then asks the provider to delete
// it, and deletes it here. If the volume changed since it was read, it is left alone, and Order
// returns an error.
func Order(ctx context.Context, kube kubernetes.Interface, v Volume) error {
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return fmt.Errorf("volume %s is reserved for a claim that does not exist; bind it to one, and run this again", v.Name)
	}
	if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		if err := SetPolicy(ctx, kube, v.PersistentVolume, corev1.PersistentVolumeReclaimDelete); err != nil {
			return err
		}
	}
	err := kube.CoreV1().PersistentVolumeClaims(ref.Namespace).Delete(ctx, ref.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ref.UID}})
	// A conflict means another claim of that name.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return nil
}

// SetPolicy sets the reclaim policy of a volume, unless the volume changed since it was read.
func SetPolicy(ctx context.Context, kube kubernetes.Interface, pv *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pv.UID, "resourceVersion": pv.ResourceVersion},
		"spec":     map[string]any{"persistentVolumeReclaimPolicy": policy},
	})
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	if _, err := kube.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the reclaim policy of volume %s to %s: %w", pv.Name, policy, err)
	}
	return nil
}

// Left returns which volumes are still there.
func Left(ctx context.Context, kube kubernetes.Interface, all []Volume) ([]Volume, error) {
	var left []Volume
	for _, v := range all {
		now, err := kube.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("get persistent volume %s: %w", v.Name, err)
		case now.UID == v.UID:
			left = append(left, Volume{now})
		}
	}
	return left, nil
}
