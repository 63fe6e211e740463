// Package disk provisions volumes in a lab's cluster: directories of the node on which their
// first pod runs, as storage that is local to a node does. The lab has no other storage.
package disk

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// provisioner is the name by which claims and volumes are known to be ours.
	provisioner = "disk.lab.entente.dev"
	// folder is where volumes are on a node, in the file system of its kubelet.
	folder = "/var/lib/entente-lab-disks"
	poll   = 200 * time.Millisecond
)

// Class makes a storage class. Volumes of it can be made larger, as a directory has no size.
func Class(ctx context.Context, c ctrlclient.Client, name string, reclaim corev1.PersistentVolumeReclaimPolicy) error {
	mode, yes := storagev1.VolumeBindingWaitForFirstConsumer, true
	err := c.Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: &mode, ReclaimPolicy: &reclaim, AllowVolumeExpansion: &yes,
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create storage class %s: %w", name, err)
	}
	return nil
}

// Run provisions the claims of all such classes until ctx ends.
func Run(ctx context.Context, c ctrlclient.Client, problem func(error)) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := errors.Join(provision(ctx, c), reclaim(ctx, c)); err != nil && ctx.Err() == nil {
			problem(err)
		}
	}
}

// provision makes volumes for claims whose pods were placed, and notes those that are larger.
func provision(ctx context.Context, c ctrlclient.Client) error {
	var claims corev1.PersistentVolumeClaimList
	if err := c.List(ctx, &claims); err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	var problems []error
	for i := range claims.Items {
		claim := &claims.Items[i]
		node := claim.Annotations["volume.kubernetes.io/selected-node"]
		if claim.Annotations["volume.kubernetes.io/storage-provisioner"] != provisioner || node == "" || claim.DeletionTimestamp != nil {
			continue
		}
		if claim.Spec.VolumeName != "" {
			problems = append(problems, grow(ctx, c, claim))
			continue
		}
		pv, err := volume(ctx, c, claim, node)
		if err == nil {
			err = c.Create(ctx, pv)
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			problems = append(problems, fmt.Errorf("make a volume for claim %s: %w", claim.Name, err))
		}
	}
	return errors.Join(problems...)
}

func volume(ctx context.Context, c ctrlclient.Client, claim *corev1.PersistentVolumeClaim, node string) (*corev1.PersistentVolume, error) {
	var class storagev1.StorageClass
	if err := c.Get(ctx, ctrlclient.ObjectKey{Name: *claim.Spec.StorageClassName}, &class); err != nil {
		return nil, err
	}
	name, made := "disk-"+string(claim.UID), corev1.HostPathDirectoryOrCreate
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes, StorageClassName: class.Name, PersistentVolumeReclaimPolicy: *class.ReclaimPolicy,
			ClaimRef:               &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path.Join(folder, name), Type: &made}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}, nil
}

// grow says of a volume whose claim asks for more that it has that.
func grow(ctx context.Context, c ctrlclient.Client, claim *corev1.PersistentVolumeClaim) error {
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if has := claim.Status.Capacity[corev1.ResourceStorage]; claim.Status.Phase != corev1.ClaimBound || has.Cmp(want) >= 0 {
		return nil
	}
	var pv corev1.PersistentVolume
	if err := c.Get(ctx, ctrlclient.ObjectKey{Name: claim.Spec.VolumeName}, &pv); err != nil {
		return err
	}
	pv.Spec.Capacity[corev1.ResourceStorage] = want
	if err := c.Update(ctx, &pv); err != nil {
		return err
	}
	claim.Status.Capacity[corev1.ResourceStorage] = want
	return c.Status().Update(ctx, claim)
}

// reclaim deletes volumes whose claims are gone, as their policy says. Their directories stay until
// the lab goes.
func reclaim(ctx context.Context, c ctrlclient.Client) error {
	var volumes corev1.PersistentVolumeList
	if err := c.List(ctx, &volumes); err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	var problems []error
	for i := range volumes.Items {
		pv := &volumes.Items[i]
		if pv.Annotations["pv.kubernetes.io/provisioned-by"] == provisioner && pv.Status.Phase == corev1.VolumeReleased &&
			pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			problems = append(problems, ctrlclient.IgnoreNotFound(c.Delete(ctx, pv)))
		}
	}
	return errors.Join(problems...)
}
