package controller

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// allAsOne maps every object to one request: for reconcilers that look at all.
func allAsOne(name string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
	})
}

// gatewayMatters lets updates of Nodes pass that can change whether one is a gateway, and
// where it can be dialled.
func gatewayMatters() builder.Predicates {
	return updates(func(before, after client.Object) bool {
		was, is := before.(*corev1.Node), after.(*corev1.Node)
		return was.Annotations[v1alpha1.AnnotationEndpoint] != is.Annotations[v1alpha1.AnnotationEndpoint] || isReady(was) != isReady(is) || isFree(was) != isFree(is) ||
			was.Labels[v1alpha1.LabelGateway] != is.Labels[v1alpha1.LabelGateway] || !slices.Equal(was.Status.Addresses, is.Status.Addresses)
	})
}

// updates lets of updates only those pass that matter.
func updates(matters func(before, after client.Object) bool) builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return matters(e.ObjectOld, e.ObjectNew)
	}})
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// NamesOnly is a cache's transform for objects of which only names and versions are
// to be remembered: what somebody applied is in an annotation of it.
func NamesOnly(object any) (any, error) {
	if m, ok := object.(metav1.Object); ok {
		m.SetAnnotations(nil)
		m.SetManagedFields(nil)
	}
	return object, nil
}
