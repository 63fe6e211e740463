package controller

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

func TestTheFirstKeyIsOfferedOnceTheTunnelIsDownForLong(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.ForeignCluster)
		want bool
		left time.Duration
	}{
		"it is down for long": {nil, true, 0},
		"it is up":            {func(fc *v1alpha1.ForeignCluster) { fc.Status.Conditions[0].Status = metav1.ConditionTrue }, false, 0},
		"it is down for a minute": {func(fc *v1alpha1.ForeignCluster) {
			fc.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Minute))
		}, false, firstKeyAfter - time.Minute},
		"nobody looked yet":               {func(fc *v1alpha1.ForeignCluster) { fc.Status.Conditions = nil }, false, 0},
		"the status of its keys was lost": {func(fc *v1alpha1.ForeignCluster) { fc.Status.PresharedKey = nil }, true, 0},
		"other parameters were written": {func(fc *v1alpha1.ForeignCluster) {
			fc.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now)
			fc.Status.Network = &v1alpha1.PeerNetwork{InBandHash: "of before"}
		}, true, 0},
	} {
		fc := &v1alpha1.ForeignCluster{Spec: v1alpha1.ForeignClusterSpec{InBand: &v1alpha1.InBand{}}}
		fc.Status.PresharedKey = &v1alpha1.PresharedKeyStatus{Number: 3}
		c := store.Condition(v1alpha1.ConditionInBand, metav1.ConditionFalse, "AwaitingPeer", "")
		c.LastTransitionTime = metav1.NewTime(now.Add(-firstKeyAfter))
		fc.Status.Conditions = []metav1.Condition{c}
		if tc.edit != nil {
			tc.edit(fc)
		}
		if got, left := offersFirst(fc, now); got != tc.want || left != tc.left {
			t.Errorf("%s: offered is %t, and in %v", name, got, left)
		}
	}
}

// TestTheKeyOfAnInBandPeerIsReplaced has a peer agree on the next key over the session.
func TestTheKeyOfAnInBandPeerIsReplaced(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := inBandPeer(t, "milan", milan)
	fc.Spec.TrustBundle = milan.Info.PEM()
	pt := newInBandTest(t, fc)
	pt.look(t, "milan")
	first := pt.keyOf(t, milan.ID)
	hears := func(r *peering.KeyRotation, share byte) *v1alpha1.PresharedKeyStatus {
		t.Helper()
		network := &peering.Network{Rotation: r}
		if share > 0 {
			network.PresharedKeyShare = peering.PresharedKeyShare{share}
		}
		if err := pt.States.Observe(t.Context(), milan.ID, peering.PeerState{Network: network}); err != nil {
			t.Fatal(err)
		}
		pt.pass()
		pt.look(t, "milan")
		return peertest.PeerCalled(t, pt.Client, "milan").Status.PresharedKey
	}
	if s := hears(&peering.KeyRotation{}, 0); s == nil || s.Number != 0 || !bytes.Equal(pt.keyOf(t, milan.ID), first) {
		t.Fatalf("with the first key the status is %+v", s)
	}
	// The peer wants another at once, and announces that only once.
	offer := peering.PeerState{Network: &peering.Network{Rotation: &peering.KeyRotation{NextKeyShare: peering.PresharedKeyShare{2}}}}
	later, ok := errors.AsType[*store.LaterError](pt.States.Observe(t.Context(), milan.ID, offer))
	if !ok || later.After <= 0 || later.After > time.Minute {
		t.Fatalf("a key that is too young is replaced after %+v", later)
	}
	pt.clock.Pass(later.After)
	if err := pt.States.Observe(t.Context(), milan.ID, offer); err != nil {
		t.Fatal(err)
	}
	if s := peertest.PeerCalled(t, pt.Client, "milan").Status.PresharedKey; s.RotationStartTime == nil || !s.NextStored {
		t.Fatalf("when it is old enough the status is %+v", s)
	}
	if s := hears(&peering.KeyRotation{Number: 1}, 0); s.Number != 0 || !bytes.Equal(pt.keyOf(t, milan.ID), first) {
		t.Fatalf("without a share of a key the status is %+v", s)
	}
	if s := hears(&peering.KeyRotation{Number: 1}, 2); s.Number != 1 || bytes.Equal(pt.keyOf(t, milan.ID), first) {
		t.Fatalf("with the next key the status is %+v", s)
	}
	state, err := pt.States.State(t.Context(), milan.ID)
	if err != nil || state.Network.Rotation.Number != 1 || state.Network.PresharedKeyShare.IsZero() {
		t.Errorf("it is sent %+v, %v", state.Network, err)
	}
	// Its administrator connects it again, while there is no session.
	if err := pt.States.UseFirstKey(t.Context(), peertest.PeerCalled(t, pt.Client, "milan")); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pt.keyOf(t, milan.ID), first) {
		t.Error("the first key is not used again")
	}
	// A peer whose agent is older keeps to the first key.
	if s := hears(nil, 0); s.Number != 0 || !bytes.Equal(pt.keyOf(t, milan.ID), first) {
		t.Errorf("with an older peer the status is %+v", s)
	}
	if c := meta.FindStatusCondition(peertest.PeerCalled(t, pt.Client, "milan").Status.Conditions, v1alpha1.ConditionInBand); c == nil || c.Reason == "KeyInvalid" {
		t.Errorf("the condition is %+v", c)
	}
}
