package controller

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
)

// The list of finalizers is replaced as a whole, so nobody may have changed it.

// addFinalizer keeps an object until what exists because of it was removed.
func addFinalizer(ctx context.Context, c client.Client, o client.Object) error {
	before := o.DeepCopyObject().(client.Object)
	controllerutil.AddFinalizer(o, v1alpha1.Finalizer)
	return store.PatchLocked(ctx, c, before, o)
}

// removeFinalizer ends that; one that is gone is no error.
func removeFinalizer(ctx context.Context, c client.Client, o client.Object) error {
	before := o.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(o, v1alpha1.Finalizer)
	return client.IgnoreNotFound(store.PatchLocked(ctx, c, before, o))
}
