package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// updates lets of updates only those pass that matter.
func updates(matters func(before, after client.Object) bool) builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return matters(e.ObjectOld, e.ObjectNew)
	}})
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
