package vk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/peering"
)

// lossOf returns what happens to the pods of a namespace while the provider does not respond. It
// returns false if that is not known, or the namespace is no longer offloaded.
func (n *Node) lossOf(namespace string) (peering.Loss, bool) {
	spaces, err := n.cfg.Namespace(namespace)
	if err != nil {
		return peering.Loss{}, false
	}
	i := slices.IndexFunc(spaces, func(s Namespace) bool { return s.Name == namespace })
	if i < 0 {
		return peering.Loss{}, false
	}
	return spaces[i].Loss, true
}

// tolerateLoss sets the pod's tolerations so that Kubernetes evicts it from a lost node as its
// namespace chose.
func (n *Node) tolerateLoss(ctx context.Context, pod *corev1.Pod) error {
	loss, known := n.lossOf(pod.Namespace)
	if !known {
		return nil
	}
	want, differ := fencing.Tolerations(pod.Spec.Tolerations, loss)
	if !differ {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}, "spec": map[string]any{"tolerations": want},
	})
	if err != nil {
		return fmt.Errorf("write the tolerations of %s: %w", podRef(pod), err)
	}
	_, err = n.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: api.Manager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		return nil // it changed or was deleted, and the watch reports that
	}
	if err != nil {
		return fmt.Errorf("write the tolerations of %s: %w", podRef(pod), err)
	}
	return nil
}
