package kube

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Watch calls a handler for each existing object of a kind, and for each change, until stop is called.
func Watch(ctx context.Context, informers cache.Informers, kind ctrlclient.Object, handler toolscache.ResourceEventHandler) (stop func(), err error) {
	informer, err := informers.GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", kind, err)
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", kind, err)
	}
	// Removing fails only if there is nothing left to remove.
	return func() { _ = informer.RemoveEventHandler(registration) }, nil
}

// OnChange calls changed when an object of a kind comes, goes, or changes in a way that matters, until stop is
// called.
func OnChange(ctx context.Context, informers cache.Informers, kind ctrlclient.Object, matters func(before, after any) bool, changed func()) (stop func(), err error) {
	return Watch(ctx, informers, kind, toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if matters(before, after) {
				changed()
			}
		},
	})
}

// Updates lets only those updates of a kind pass that matter.
func Updates[T ctrlclient.Object](matters func(was, is T) bool) builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return matters(e.ObjectOld.(T), e.ObjectNew.(T))
	}})
}

// NewVersion reports whether an update has a new version, and is not a resync of the informer.
func NewVersion(before, after any) bool {
	was, ok := before.(ctrlclient.Object)
	is, also := after.(ctrlclient.Object)
	return !ok || !also || was.GetResourceVersion() != is.GetResourceVersion()
}
