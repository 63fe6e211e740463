package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// statusPatch is a patch of a ForeignCluster's status from what it was. It is refused if
// the conditions are others by now: a peer's word that it revoked trust is written by
// who heard it, and must not be overwritten by what was so a moment before. What a
// peer says of itself, and what it offers, is written at the same time as its
// conditions are, and is in nobody's way.
func statusPatch(was *v1alpha1.ForeignCluster) client.Patch {
	if len(was.Status.Conditions) == 0 {
		return client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}) // nothing to compare
	}
	return statusJSONPatch{was}
}

// writeStatus writes a ForeignCluster's status from what it was. Conditions that were
// written in another form than this cluster gives them, as times with a fraction of a
// second, equal nothing that it read: then it is written if nobody wrote at all.
func writeStatus(ctx context.Context, c client.Client, was, fc *v1alpha1.ForeignCluster) error {
	err := c.Status().Patch(ctx, fc, statusPatch(was), client.FieldOwner(v1alpha1.Manager))
	if err == nil || !outdated(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return err
	}
	return c.Status().Patch(ctx, fc, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.Manager))
}

// statusJSONPatch is a JSON patch (RFC 6902), which can test a part of what it changes.
type statusJSONPatch struct{ was *v1alpha1.ForeignCluster }

// Type implements client.Patch.
func (statusJSONPatch) Type() types.PatchType { return types.JSONPatchType }

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Data implements client.Patch.
func (p statusJSONPatch) Data(o client.Object) ([]byte, error) {
	fc, ok := o.(*v1alpha1.ForeignCluster)
	if !ok {
		return nil, fmt.Errorf("%T is no ForeignCluster", o)
	}
	before, err := fieldsOf(p.was)
	if err != nil {
		return nil, err
	}
	after, err := fieldsOf(fc)
	if err != nil {
		return nil, err
	}
	patch := []operation{{"test", "/status/conditions", before["conditions"]}}
	if p.was.UID != "" {
		patch = append(patch, operation{"test", "/metadata/uid", p.was.UID})
	}
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		is, ok := after[name]
		switch {
		case !ok:
			patch = append(patch, operation{Op: "remove", Path: "/status/" + name})
		case !bytes.Equal(before[name], is):
			patch = append(patch, operation{"add", "/status/" + name, is}) // which replaces
		}
	}
	return json.Marshal(patch)
}

// fieldsOf returns the fields of a ForeignCluster's status as they are stored.
func fieldsOf(fc *v1alpha1.ForeignCluster) (map[string]json.RawMessage, error) {
	text, err := json.Marshal(fc.Status)
	if err != nil {
		return nil, fmt.Errorf("status of foreign cluster %s: %w", fc.Name, err)
	}
	out := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("status of foreign cluster %s: %w", fc.Name, err)
	}
	return out, nil
}

// outdated says whether a patch was refused because somebody else wrote meanwhile:
// the object is read and looked at again.
func outdated(err error) bool {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return true
	}
	// When a test of a JSON patch fails an API server names no cause; of a value that it
	// does not take it names the field.
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsInvalid(err) {
		return false
	}
	details := status.ErrStatus.Details
	return details == nil || len(details.Causes) == 0
}
