package store

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func setCondition(s *v1alpha1.ForeignClusterStatus, kind string, status metav1.ConditionStatus) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Because", LastTransitionTime: metav1.NewTime(start)})
}

// withStatus is a ForeignCluster that has a network, and two conditions.
func withStatus() *v1alpha1.ForeignCluster {
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "peer", UID: "uid"}}
	fc.Status.Network = &v1alpha1.PeerNetwork{Prefixes: []string{"10.1.0.0/16"}}
	setCondition(&fc.Status, v1alpha1.ConditionTrusted, metav1.ConditionTrue)
	setCondition(&fc.Status, v1alpha1.ConditionConnected, metav1.ConditionFalse)
	return fc
}

// failsTests makes a fake client respond to a JSON patch whose test fails like an API server;
// always has each of them fail.
func failsTests(inner client.Client, always bool) client.Client {
	return interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if patch.Type() != types.JSONPatchType {
				return c.SubResource(sub).Patch(ctx, o, patch, opts...)
			}
			if always || c.SubResource(sub).Patch(ctx, o, patch, opts...) != nil {
				return failedTest()
			}
			return nil
		},
	})
}

func failedTest() error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing value /status/conditions failed: test failed", 0, false)
}

// Two write the status of a ForeignCluster, both by what they read before.
func TestPatchStatusKeepsConcurrentFields(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		bare     bool // the status is empty before
		other    func(*v1alpha1.ForeignClusterStatus)
		own      func(*v1alpha1.ForeignClusterStatus)
		conflict bool
	}{
		"no other write": {},
		"what the peer reports": {other: func(s *v1alpha1.ForeignClusterStatus) {
			s.Protocol, s.BundleHash = 1, "hash"
			s.Contracts = []v1alpha1.PeerContract{{ID: "c-1", Revision: 1, Phase: "Active"}}
		}},
		"what it offers": {other: func(s *v1alpha1.ForeignClusterStatus) { s.Offer = &v1alpha1.Offer{Available: true} }},
		"a field that is removed": {
			own:   func(s *v1alpha1.ForeignClusterStatus) { s.Network = nil },
			other: func(s *v1alpha1.ForeignClusterStatus) { s.Protocol = 1 },
		},
		"that it revoked trust": {other: func(s *v1alpha1.ForeignClusterStatus) { SetRevoked(s, "", start) }, conflict: true},
		"another condition": {other: func(s *v1alpha1.ForeignClusterStatus) {
			setCondition(s, "Else", metav1.ConditionTrue)
		}, conflict: true},
		"a condition, and none is written here": {
			own: func(s *v1alpha1.ForeignClusterStatus) {
				setCondition(s, v1alpha1.ConditionConnected, metav1.ConditionFalse)
			},
			other: func(s *v1alpha1.ForeignClusterStatus) { SetRevoked(s, "", start) },
		},
		"the first to write": {bare: true},
		"anything, where the status was empty": {
			bare: true, other: func(s *v1alpha1.ForeignClusterStatus) { s.Protocol = 1 }, conflict: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := withStatus()
			if tc.bare {
				fc.Status = v1alpha1.ForeignClusterStatus{}
			}
			c := failsTests(newClient(t, fc), false)
			before, want := get(t, c, "peer"), get(t, c, "peer")
			after := before.DeepCopy()
			if tc.other != nil {
				read := want.DeepCopy()
				tc.other(&want.Status)
				if err := c.Status().Patch(t.Context(), want, client.MergeFrom(read)); err != nil {
					t.Fatal(err)
				}
			}
			edit := func(s *v1alpha1.ForeignClusterStatus) {
				s.Role = v1alpha1.RoleProvider
				setCondition(s, v1alpha1.ConditionConnected, metav1.ConditionTrue)
				if tc.own != nil {
					tc.own(s)
				}
			}
			edit(&after.Status)
			err := PatchStatus(t.Context(), c, before, after)
			if apierrors.IsConflict(err) != tc.conflict || (err != nil) != tc.conflict {
				t.Fatalf("a conflict: %t, want %t: %v", apierrors.IsConflict(err), tc.conflict, err)
			}
			if name == "a condition, and none is written here" {
				want.Status.Role = v1alpha1.RoleProvider
			} else if !tc.conflict {
				edit(&want.Status)
			}
			ignoreTimes := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".LastTransitionTime" }, cmp.Ignore())
			if diff := cmp.Diff(want.Status, get(t, c, "peer").Status, ignoreTimes); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Another client wrote a condition's time with a fraction of a second, which this cluster does
// not read: the test of a patch fails whether or not another client writes.
func TestPatchStatusWritesConditionsInAnotherForm(t *testing.T) {
	t.Parallel()
	for name, beaten := range map[string]bool{"no other client writes": false, "another client writes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := newClient(t, withStatus())
			before := get(t, inner, "peer")
			if beaten {
				other := before.DeepCopy()
				other.Status.Protocol = 1
				if err := inner.Status().Update(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
			after := before.DeepCopy()
			setCondition(&after.Status, v1alpha1.ConditionConnected, metav1.ConditionTrue)
			err := PatchStatus(t.Context(), failsTests(inner, true), before, after)
			written := meta.IsStatusConditionTrue(get(t, inner, "peer").Status.Conditions, v1alpha1.ConditionConnected)
			if written == beaten || apierrors.IsConflict(err) != beaten || (err != nil) != beaten {
				t.Errorf("written %t, %v", written, err)
			}
		})
	}
}

func TestFailedPatchTestDiffersFromAnInvalidObject(t *testing.T) {
	t.Parallel()
	kind := schema.GroupResource{Group: "entente.dev", Resource: "foreignclusters"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a failed test":   {failedTest(), true},
		"an invalid one":  {apierrors.NewInvalid(schema.GroupKind{Kind: "ForeignCluster"}, "peer", field.ErrorList{field.Required(field.NewPath("status"), "")}), false},
		"a conflict":      {apierrors.NewConflict(kind, "peer", errors.New("modified")), false},
		"it is forbidden": {apierrors.NewForbidden(kind, "peer", errors.New("no")), false},
		"no response":     {errors.New("connection refused"), false},
	} {
		if got := isFailedTest(tc.err); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// TestPatchesSendNothingWhereNothingDiffers counts requests; and a locked patch is refused
// once another client wrote, one that is not locked is not.
func TestPatchesSendNothingWhereNothingDiffers(t *testing.T) {
	t.Parallel()
	type write func(context.Context, client.Client, client.Object, client.Object) error
	for name, tc := range map[string]struct {
		patch          write
		status, locked bool
	}{
		"Patch":             {Patch, false, false},
		"PatchLocked":       {PatchLocked, false, true},
		"PatchStatus":       {PatchStatus, true, false},
		"PatchStatusLocked": {PatchStatusLocked, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := 0
			c := interceptor.NewClient(newClient(t, withStatus()).(client.WithWatch), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
					sent++
					return c.Patch(ctx, o, patch, opts...)
				},
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					sent++
					return c.SubResource(sub).Patch(ctx, o, patch, opts...)
				},
			})
			before := get(t, c, "peer")
			other := before.DeepCopy()
			// This write does not touch the other half of the object.
			other.Status.Protocol, other.Spec.Endpoints = 7, []string{"192.0.2.1:8443"}
			if tc.status {
				other.Status.Protocol = 0
			} else {
				other.Spec.Endpoints = nil
			}
			if err := tc.patch(t.Context(), c, before, other); err != nil || sent != 0 {
				t.Fatalf("%d requests, %v", sent, err)
			}
			moved := before.DeepCopy()
			moved.Labels = map[string]string{"x": "y"}
			if err := c.Update(t.Context(), moved); err != nil {
				t.Fatal(err)
			}
			after := before.DeepCopy()
			after.Status.Protocol, after.Spec.Endpoints = 7, []string{"192.0.2.1:8443"}
			err := tc.patch(t.Context(), c, before, after)
			if apierrors.IsConflict(err) != tc.locked || (err != nil) != tc.locked || sent != 1 {
				t.Errorf("%d requests, %v", sent, err)
			}
		})
	}
}

func TestEditSecretRepeatsWhatMeetsAnotherWrite(t *testing.T) {
	t.Parallel()
	key := client.ObjectKey{Namespace: "default", Name: "secret"}
	inner := newClient(t)
	conflicts := 2
	c := interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if conflicts--; conflicts >= 0 {
				return apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, key.Name, errors.New("modified"))
			}
			return c.Update(ctx, o, opts...)
		},
	})
	put := func(name, value string) func(map[string][]byte) bool {
		return func(data map[string][]byte) bool {
			was := string(data[name])
			data[name] = []byte(value)
			return was != value
		}
	}
	for _, name := range []string{"created", "updated", "updated"} {
		if _, err := EditSecret(t.Context(), c, key, put(name, "x")); err != nil {
			t.Fatal(err)
		}
	}
	secret, err := EditSecret(t.Context(), c, key, func(map[string][]byte) bool { return false })
	if err != nil || string(secret.Data["created"]) != "x" || string(secret.Data["updated"]) != "x" || secret.Labels[v1alpha1.LabelManaged] != v1alpha1.Manager || conflicts != -1 {
		t.Errorf("%v, %v; %d", secret, err, conflicts)
	}
}
