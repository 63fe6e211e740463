package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// What a peer says of contracts and whether it can be asked are written apart, in
// either order: after both it has to be looked at.
func TestWhenStraysAreLookedForAgain(t *testing.T) {
	t.Parallel()
	type peer struct {
		connected, trusted bool
		contracts          []string
	}
	of := func(p peer) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{Spec: v1alpha1.ForeignClusterSpec{TrustBundle: "a"}}
		for _, id := range p.contracts {
			fc.Status.Contracts = append(fc.Status.Contracts, v1alpha1.PeerContract{ID: id})
		}
		set := func(kind string, ok bool) {
			status := metav1.ConditionFalse
			if ok {
				status = metav1.ConditionTrue
			}
			meta.SetStatusCondition(&fc.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Test"})
		}
		set(v1alpha1.ConditionConnected, p.connected)
		set(v1alpha1.ConditionTrusted, p.trusted)
		return fc
	}
	one := []string{"c-1"}
	for name, tc := range map[string]struct {
		before, after peer
		want          bool
	}{
		"it speaks of a contract":                  {peer{connected: true, trusted: true}, peer{true, true, one}, true},
		"it speaks of none any more":               {peer{true, true, one}, peer{connected: true, trusted: true}, true},
		"it spoke of one before it was connected":  {peer{false, true, one}, peer{true, true, one}, true},
		"it is trusted while it is connected":      {peer{true, false, one}, peer{true, true, one}, true},
		"it is trusted before it is connected":     {peer{false, false, one}, peer{false, true, one}, false},
		"its session ends":                         {peer{true, true, one}, peer{false, true, one}, false},
		"something else of it changes":             {peer{true, true, one}, peer{true, true, one}, false},
		"something of one that is away changes":    {peer{false, true, one}, peer{false, true, one}, false},
		"it is away and speaks of another by then": {peer{false, true, one}, peer{false, true, []string{"c-2"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := straysDiffer(of(tc.before), of(tc.after)); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
