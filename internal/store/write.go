package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Controllers change objects and their status by the patches of this file. Each sends the fields in which an object
// differs from what was read, and nothing if none differ. Writers of different fields do not conflict. A locked
// patch (optimistic locking) is refused if the object was written since it was read: apierrors.IsConflict, after
// which the caller reads and decides again. docs/design/0021 says why it is not server-side apply.

// PatchStatus writes the fields of a status that differ. Conditions are a list, which a patch replaces as a whole,
// so they are written only if they are as they were read: that a peer revoked its trust is a condition, and a
// reconciler that read the object before must not overwrite it.
func PatchStatus(ctx context.Context, c client.Client, before, after client.Object) error {
	was, is, err := statuses(before, after)
	if err != nil {
		return err
	}
	switch {
	case equality.Semantic.DeepEqual(was, is):
		return nil
	case equality.Semantic.DeepEqual(was["conditions"], is["conditions"]):
		return sendStatus(ctx, c, after, client.MergeFrom(before))
	case was["conditions"] == nil:
		return sendStatus(ctx, c, after, locked(before))
	}
	patch, err := testAndPatch(before.GetUID(), was, is)
	if err != nil {
		return err
	}
	err = sendStatus(ctx, c, after, client.RawPatch(types.JSONPatchType, patch))
	if isFailedTest(err) {
		// They differ; or another client wrote them in a form that this cluster does not use, such as times with a
		// fraction of a second. The version of the object decides.
		return sendStatus(ctx, c, after, locked(before))
	}
	return err
}

// PatchStatusLocked writes the fields of a status that differ, if the object was not written meanwhile.
func PatchStatusLocked(ctx context.Context, c client.Client, before, after client.Object) error {
	was, is, err := statuses(before, after)
	if err != nil || equality.Semantic.DeepEqual(was, is) {
		return err
	}
	return sendStatus(ctx, c, after, locked(before))
}

// Patch writes the fields that differ, except for the status. A patch leaves the fields that users wrote in their
// form, such as 48h, and under their ownership: applying the same manifest again does not conflict.
func Patch(ctx context.Context, c client.Client, before, after client.Object) error {
	return patchObject(ctx, c, before, after, client.MergeFrom(before))
}

// PatchLocked writes the fields that differ, except for the status, if the object was not written meanwhile.
func PatchLocked(ctx context.Context, c client.Client, before, after client.Object) error {
	return patchObject(ctx, c, before, after, locked(before))
}

// locked is a patch that is refused if the object was written since it was read.
func locked(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

func sendStatus(ctx context.Context, c client.Client, after client.Object, patch client.Patch) error {
	return failed("write the status of", after, c.Status().Patch(ctx, after, patch, client.FieldOwner(v1alpha1.Manager)))
}

func patchObject(ctx context.Context, c client.Client, before, after client.Object, patch client.Patch) error {
	was, is, err := fields(before, after)
	delete(was, "status")
	delete(is, "status")
	if err != nil || equality.Semantic.DeepEqual(was, is) {
		return err
	}
	return failed("write", after, c.Patch(ctx, after, patch, client.FieldOwner(v1alpha1.Manager)))
}

// failed adds to an error, if it is not nil, what failed.
func failed(what string, o client.Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %s: %w", what, reflect.TypeOf(o).Elem().Name(), strings.TrimPrefix(client.ObjectKeyFromObject(o).String(), "/"), err)
}

// fields returns two objects as they are stored.
func fields(before, after client.Object) (was, is map[string]any, err error) {
	was, err = runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	is, err2 := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	return was, is, errors.Join(err, err2)
}

// statuses returns the status of two objects as they are stored.
func statuses(before, after client.Object) (was, is map[string]any, err error) {
	a, b, err := fields(before, after)
	was, _ = a["status"].(map[string]any)
	is, _ = b["status"].(map[string]any)
	return was, is, err
}

// testAndPatch returns a JSON patch (RFC 6902) from one status to another, which fails if the conditions changed
// meanwhile, or the object was replaced.
func testAndPatch(uid types.UID, was, is map[string]any) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	patch := []operation{{"test", "/status/conditions", was["conditions"]}}
	if uid != "" {
		patch = append(patch, operation{"test", "/metadata/uid", uid})
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch value, ok := is[name]; {
		case !ok:
			patch = append(patch, operation{Op: "remove", Path: "/status/" + name})
		case !equality.Semantic.DeepEqual(was[name], value):
			patch = append(patch, operation{"add", "/status/" + name, value}) // add replaces, too
		}
	}
	return json.Marshal(patch)
}

// isFailedTest reports whether the test of a JSON patch failed. The API server names no cause then; for a value
// that it does not accept it names the field.
func isFailedTest(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsInvalid(err) && (status.ErrStatus.Details == nil || len(status.ErrStatus.Details.Causes) == 0)
}

// EditSecret changes the data of a Secret, which it creates if need be, and returns the result. edit reports
// whether it changed anything, and is called again if another client wrote meanwhile.
func EditSecret(ctx context.Context, c client.Client, key client.ObjectKey, edit func(map[string][]byte) (changed bool)) (*corev1.Secret, error) {
	var secret *corev1.Secret
	err := retryOnConflict(func() error {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		err := c.Get(ctx, key, secret)
		if client.IgnoreNotFound(err) != nil {
			return failed("read", secret, err)
		}
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		switch {
		case !edit(secret.Data):
			return nil
		case err != nil:
			secret.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
			err = c.Create(ctx, secret, client.FieldOwner(v1alpha1.Manager))
		default:
			err = c.Update(ctx, secret, client.FieldOwner(v1alpha1.Manager))
		}
		return failed("write", secret, err)
	})
	return secret, err
}

// retryOnConflict repeats a write that was refused because another client wrote meanwhile. do has to read the
// object again.
func retryOnConflict(do func() error) error { return retry.RetryOnConflict(retry.DefaultRetry, do) }

// AddFinalizer keeps an object until what exists because of it was removed.
func AddFinalizer(ctx context.Context, c client.Client, o client.Object) error {
	before := o.DeepCopyObject().(client.Object)
	controllerutil.AddFinalizer(o, v1alpha1.Finalizer)
	return PatchLocked(ctx, c, before, o)
}

// RemoveFinalizer lets an object be deleted; one that is gone is not an error.
func RemoveFinalizer(ctx context.Context, c client.Client, o client.Object) error {
	before := o.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(o, v1alpha1.Finalizer)
	return client.IgnoreNotFound(PatchLocked(ctx, c, before, o))
}
