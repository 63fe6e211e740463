package controller

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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
)

// TestWhatIsWrittenAtTheSameTimeIsInNobodysWay has two write the status of a
// ForeignCluster, both by what they read before.
func TestWhatIsWrittenAtTheSameTimeIsInNobodysWay(t *testing.T) {
	t.Parallel()
	connected := condition(v1alpha1.ConditionConnected, metav1.ConditionTrue, "SessionUp", "it is up")
	for name, tc := range map[string]struct {
		bare    bool // nothing was said of it before
		other   func(*v1alpha1.ForeignClusterStatus)
		own     func(*v1alpha1.ForeignClusterStatus)
		refused bool
	}{
		"nobody else": {},
		"what the peer says": {other: func(s *v1alpha1.ForeignClusterStatus) {
			s.Protocol, s.BundleHash = 1, "hash"
			s.Contracts = []v1alpha1.PeerContract{{ID: "c-1", Revision: 1, Phase: "Active"}}
		}},
		"what it offers": {other: func(s *v1alpha1.ForeignClusterStatus) { s.Offer = &v1alpha1.Offer{Available: true} }},
		"what is taken away here": {
			own:   func(s *v1alpha1.ForeignClusterStatus) { s.Network = nil },
			other: func(s *v1alpha1.ForeignClusterStatus) { s.Protocol = 1 },
		},
		"that it revoked trust": {other: func(s *v1alpha1.ForeignClusterStatus) { store.SetRevoked(s, "", now) }, refused: true},
		"another condition": {other: func(s *v1alpha1.ForeignClusterStatus) {
			meta.SetStatusCondition(&s.Conditions, condition("Else", metav1.ConditionTrue, "Else", ""))
		}, refused: true},
		"the first to say anything": {bare: true},
		"anything, where nothing was said before": {
			bare: true, other: func(s *v1alpha1.ForeignClusterStatus) { s.Protocol = 1 }, refused: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := foreign("peer", generated(t))
			fc.UID = "uid"
			fc.Status.Network = &v1alpha1.PeerNetwork{Prefixes: []string{"10.1.0.0/16"}}
			if tc.bare {
				fc.Status = v1alpha1.ForeignClusterStatus{}
			}
			c := trustClient(t, fc)
			read := func() *v1alpha1.ForeignCluster {
				t.Helper()
				var fc v1alpha1.ForeignCluster
				if err := c.Get(t.Context(), client.ObjectKey{Name: "peer"}, &fc); err != nil {
					t.Fatal(err)
				}
				return &fc
			}
			mine := read()
			was := mine.DeepCopy()
			want := read()
			if tc.other != nil {
				before := want.DeepCopy()
				tc.other(&want.Status)
				if err := c.Status().Patch(t.Context(), want, client.MergeFrom(before)); err != nil {
					t.Fatal(err)
				}
			}
			edit := func(s *v1alpha1.ForeignClusterStatus) {
				if tc.own != nil {
					tc.own(s)
				}
				s.Role = v1alpha1.RoleProvider
				meta.SetStatusCondition(&s.Conditions, connected)
			}
			edit(&mine.Status)
			err := c.Status().Patch(t.Context(), mine, statusPatch(was))
			if (err != nil) != tc.refused {
				t.Fatalf("it is refused: %v, want %v", err, tc.refused)
			}
			if !tc.refused {
				edit(&want.Status)
			}
			ignoreTimes := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".LastTransitionTime" }, cmp.Ignore())
			if diff := cmp.Diff(want.Status, read().Status, ignoreTimes); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsOutdatedIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	kind := schema.GroupResource{Group: "entente.dev", Resource: "foreignclusters"}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a conflict":      {apierrors.NewConflict(kind, "peer", errors.New("modified")), true},
		"it is gone":      {apierrors.NewNotFound(kind, "peer"), true},
		"a test failed":   {apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing value /status/conditions failed: test failed", 0, false), true},
		"nonsense":        {apierrors.NewInvalid(schema.GroupKind{Kind: "ForeignCluster"}, "peer", field.ErrorList{field.Required(field.NewPath("status"), "")}), false},
		"it is forbidden": {apierrors.NewForbidden(kind, "peer", errors.New("no")), false},
		"no answer":       {errors.New("connection refused"), false},
	} {
		if got := outdated(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestAPeerIsNotLookedAtAsItWas has the cache lag behind the last write.
func TestAPeerIsNotLookedAtAsItWas(t *testing.T) {
	t.Parallel()
	milan := newOther(t, "milan")
	pt := newPeersTest(t, trustedAs("milan", milan))
	var lags *v1alpha1.ForeignCluster
	writes := 0
	pt.Client = interceptor.NewClient(pt.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if fc, ok := o.(*v1alpha1.ForeignCluster); ok && lags != nil {
				lags.DeepCopyInto(fc)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			writes++
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	look := func(what string, want int, again bool) {
		t.Helper()
		result, err := pt.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "milan"}})
		if err != nil {
			t.Fatal(err)
		}
		if writes != want || (result.RequeueAfter == endPoll) != again {
			t.Errorf("%s: %d writes, want %d; it is looked at again after %s", what, writes, want, result.RequeueAfter)
		}
	}
	pt.look(t, "milan") // it is held, and its status written
	if writes != 1 {
		t.Fatalf("%d writes at first", writes)
	}
	stale := peerCalled(t, pt.Client, "milan")
	pt.trust.set(milan.id, Session{Up: &SessionInfo{Since: pt.clock.Now()}})
	look("a session", 2, false)
	lags = stale
	pt.trust.set(milan.id, Session{Why: "gone"})
	look("the session is gone, and the cache lags", 2, true)
	lags = nil
	look("it does not any more", 3, false)
	look("nothing changed", 3, false)
}

func TestWhatAJoinEndsIsSaid(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status v1alpha1.ForeignClusterStatus
		want   bool
	}{
		"nothing was said":    {want: true},
		"it was written down": {v1alpha1.ForeignClusterStatus{Found: v1alpha1.FoundManual, Conditions: []metav1.Condition{condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, "TokenMissing", "")}}, true},
		"it joined before":    {v1alpha1.ForeignClusterStatus{Found: v1alpha1.FoundToken}, true},
		"it was introduced":   {v1alpha1.ForeignClusterStatus{Found: v1alpha1.FoundIntroduction}, false},
		"it waits":            {v1alpha1.ForeignClusterStatus{Introduction: &v1alpha1.Introduction{}}, false},
		"it revoked trust":    {v1alpha1.ForeignClusterStatus{Conditions: []metav1.Condition{condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, store.RevokedByPeer, "")}}, false},
	} {
		if got := fresh(&v1alpha1.ForeignCluster{Status: tc.status}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Somebody wrote a condition's time with a fraction of a second, which this cluster
// does not read: the test of a patch fails whatever it says.
func TestConditionsInAnotherFormAreWrittenOver(t *testing.T) {
	t.Parallel()
	failed := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing value /status/conditions failed: test failed", 0, false)
	for name, beaten := range map[string]bool{"nobody else writes": false, "somebody does": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := trustClient(t, foreign("peer", generated(t)))
			c := interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if patch.Type() == types.JSONPatchType {
						return failed
					}
					return c.SubResource(sub).Patch(ctx, o, patch, opts...)
				},
			})
			was := peerCalled(t, c, "peer")
			meta.SetStatusCondition(&was.Status.Conditions, condition(v1alpha1.ConditionConnected, metav1.ConditionFalse, "Lost", ""))
			if err := inner.Status().Update(t.Context(), was); err != nil {
				t.Fatal(err)
			}
			fc := was.DeepCopy()
			if beaten {
				other := was.DeepCopy()
				other.Status.Protocol = 1
				if err := inner.Status().Update(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
			meta.SetStatusCondition(&fc.Status.Conditions, condition(v1alpha1.ConditionConnected, metav1.ConditionTrue, "SessionUp", ""))
			err := writeStatus(t.Context(), c, was, fc)
			written := meta.IsStatusConditionTrue(peerCalled(t, c, "peer").Status.Conditions, v1alpha1.ConditionConnected)
			if written == beaten || (err != nil) != beaten || beaten && !outdated(err) {
				t.Errorf("written %t, %v", written, err)
			}
		})
	}
}
