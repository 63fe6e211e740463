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

// lossOf returns what becomes of the pods of a namespace while the provider does not answer;
// false if it is not known, or the namespace is not offloaded any more.
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

// tolerateLoss has Kubernetes evict a pod from this node, once it is lost, as the pod's namespace
// chose.
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
		return nil // it changed or went, and the watch reports that
	}
	if err != nil {
		return fmt.Errorf("write the tolerations of %s: %w", podRef(pod), err)
	}
	return nil
}
