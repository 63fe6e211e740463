package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// zoneOf returns the zone of a node; empty if it has none or is not known.
func (a *agent) zoneOf(node string) string {
	var n corev1.Node
	if err := a.mgr.GetClient().Get(context.Background(), ctrlclient.ObjectKey{Name: node}, &n); err != nil { //nolint:forbidigo // a read from a cache does not block
		return ""
	}
	return n.Labels[corev1.LabelTopologyZone]
}

// evict moves a namespace's pods off virtual nodes, as their disruption budgets allow, and returns how many are
// left.
func (a *agent) evict(ctx context.Context, namespace string) (int, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := a.mgr.GetClient().List(ctx, &nodes, ctrlclient.HasLabels{v1alpha1.LabelVirtualNode}); err != nil {
		return 0, fmt.Errorf("list virtual nodes: %w", err)
	}
	if err := a.mgr.GetClient().List(ctx, &pods, ctrlclient.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list pods: %w", err)
	}
	virtual := map[string]bool{}
	for i := range nodes.Items {
		virtual[nodes.Items[i].Name] = true
	}
	left := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		// A DaemonSet's pod would come back to the same node at once, and does not run there anyway.
		owner := metav1.GetControllerOf(p)
		if !virtual[p.Spec.NodeName] || (owner != nil && owner.Kind == "DaemonSet") {
			continue
		}
		left++
		if !p.DeletionTimestamp.IsZero() {
			continue
		}
		err := a.kubernetes.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err) {
			return left, fmt.Errorf("evict pod %s/%s: %w", namespace, p.Name, err)
		}
	}
	return left, nil
}
