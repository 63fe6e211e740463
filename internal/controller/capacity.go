package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// FreeOf returns what nodes have that no pod requested, leaving out what is lent
// already: virtual nodes are not ours to lend, and offloaded pods use what their
// contract holds back. Only nodes that take pods count.
func FreeOf(nodes []corev1.Node, pods []corev1.Pod) corev1.ResourceList {
	free := corev1.ResourceList{}
	own := map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[v1alpha1.LabelVirtualNode] != "" || n.Spec.Unschedulable || !nodeReady(n) {
			continue
		}
		own[n.Name] = true
		for name, amount := range n.Status.Allocatable {
			add(free, name, amount)
		}
	}
	for i := range pods {
		p := &pods[i]
		if !own[p.Spec.NodeName] || p.Labels[v1alpha1.LabelContract] != "" ||
			p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for name, amount := range resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}) {
			sub(free, name, amount)
		}
		sub(free, corev1.ResourcePods, *resource.NewQuantity(1, resource.DecimalSI))
	}
	for name, amount := range free {
		if amount.Sign() <= 0 {
			delete(free, name)
		}
	}
	return free
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func add(list corev1.ResourceList, name corev1.ResourceName, amount resource.Quantity) {
	sum := list[name]
	sum.Add(amount)
	list[name] = sum
}

func sub(list corev1.ResourceList, name corev1.ResourceName, amount resource.Quantity) {
	sum, ok := list[name]
	if !ok {
		return
	}
	sum.Sub(amount)
	list[name] = sum
}

// free returns what this cluster has free, from live nodes and pods.
func free(ctx context.Context, c client.Reader) (peering.Resources, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := c.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	if err := c.List(ctx, &pods); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return store.Resources(FreeOf(nodes.Items, pods.Items))
}
