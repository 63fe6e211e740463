package controller

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// patchMetadata changes the metadata of an object that people write. It is a patch, because
// an update would rewrite what they wrote in their own form, such as 48h, and own
// it: applying the same manifest again would be a conflict. edit says whether it
// changed anything.
func patchMetadata(ctx context.Context, c client.Client, o client.Object, edit func() bool) error {
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok || !edit() {
		return nil
	}
	// The list of finalizers is replaced as a whole, so nobody may have changed it.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return c.Patch(ctx, o, patch, client.FieldOwner(v1alpha1.Manager))
}

// addFinalizer keeps an object until what stands because of it was taken down.
func addFinalizer(ctx context.Context, c client.Client, o client.Object) error {
	return patchMetadata(ctx, c, o, func() bool { return controllerutil.AddFinalizer(o, v1alpha1.Finalizer) })
}

// removeFinalizer lets it go; one that is gone is no error.
func removeFinalizer(ctx context.Context, c client.Client, o client.Object) error {
	return client.IgnoreNotFound(patchMetadata(ctx, c, o, func() bool { return controllerutil.RemoveFinalizer(o, v1alpha1.Finalizer) }))
}
