package controller

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// approvedPeer is a peer that an administrator approved, and that is trusted.
func approvedPeer(name string, o other) *v1alpha1.ForeignCluster {
	fc := trustedAs(name, o)
	fc.Spec.Decision = v1alpha1.DecisionApproved
	fc.Finalizers = []string{v1alpha1.Finalizer}
	return fc
}

// forgets deletes a peer and has the agent let go of it.
func (pt *peersTest) forgets(t *testing.T, name string) {
	t.Helper()
	if err := pt.Client.Delete(t.Context(), peerCalled(t, pt.Client, name)); err != nil {
		t.Fatal(err)
	}
	pt.look(t, name)
	if left := peersOf(t, pt.Client); len(left) != 0 {
		t.Fatalf("it is not forgotten: %+v", left)
	}
}

// answering is the introductions that the same agent answers.
func (pt *peersTest) answering() *Introductions {
	return &Introductions{Client: pt.Client, Cache: pt.Client, Forgotten: pt.Forgotten, Self: ownID, Rand: rand.Reader, Now: pt.clock.Now}
}

func TestForgottenClusterIsNotMadeAgainByItsIntroduction(t *testing.T) {
	t.Parallel()
	milan := newOther(t, "milan")
	for name, tc := range map[string]struct {
		then func(*testing.T, *peersTest, *Introductions)
		// requested says that the other side's administrator asks for it.
		requested bool
		refused   bool
	}{
		"at once":                {nil, false, true},
		"a week later":           {func(_ *testing.T, pt *peersTest, _ *Introductions) { pt.clock.pass(7 * 24 * time.Hour) }, false, true},
		"its administrator asks": {nil, true, false},
		"after a restart": {func(_ *testing.T, pt *peersTest, i *Introductions) {
			i.Forgotten = forgottenAt(pt.Client, pt.clock.Now)
		}, false, true},
		"an administrator here named it": {func(t *testing.T, pt *peersTest, _ *Introductions) {
			if err := pt.Client.Create(t.Context(), approvedAs("office", milan)); err != nil {
				t.Fatal(err)
			}
		}, false, false},
		"it was named here, and that was looked at": {func(t *testing.T, pt *peersTest, _ *Introductions) {
			fc := approvedAs("office", milan)
			if err := pt.Client.Create(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
			pt.look(t, "office")
			if err := pt.Client.Delete(t.Context(), fc); err != nil { // never trusted
				t.Fatal(err)
			}
		}, false, false},
		"an administrator here denied it, and deleted that": {func(t *testing.T, pt *peersTest, _ *Introductions) {
			fc := approvedAs("office", milan)
			fc.Spec.Decision = v1alpha1.DecisionDenied
			if err := pt.Client.Create(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
			pt.look(t, "office")
			if err := pt.Client.Delete(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
		}, false, true},
		"it joined with a token": {func(t *testing.T, pt *peersTest, _ *Introductions) {
			if _, err := store.AddPeer(t.Context(), pt.Client, pt.Client, milan.id, milan.info, ""); err != nil {
				t.Fatal(err)
			}
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pt := newPeersTest(t, approvedPeer("milan", milan))
			i := pt.answering()
			pt.forgets(t, "milan")
			pt.clock.pass(time.Second)
			if tc.then != nil {
				tc.then(t, pt, i)
			}
			before := len(peersOf(t, pt.Client))
			_, err := i.introduceAs(t, milan, "x", tc.requested)
			if (peering.ReasonOf(err) == peering.ReasonTrustForgotten) != tc.refused || !tc.refused && err != nil {
				t.Fatalf("its introduction: %v", err)
			}
			if left := peersOf(t, pt.Client); tc.refused && len(left) != before {
				t.Errorf("it is back as %+v", left)
			}
			if tc.refused {
				if _, err := i.introduce(t, newOther(t, "rome"), "y"); err != nil {
					t.Errorf("a stranger: %v", err)
				}
				return
			}
			pt.clock.pass(time.Second)
			if _, err := i.introduce(t, milan, "x"); err != nil {
				t.Errorf("it repeats what is decided anew: %v", err)
			}
		})
	}
}

func TestIntroductionThatBeganBeforeTheForgettingIsNotOpened(t *testing.T) {
	t.Parallel()
	milan := newOther(t, "milan")
	for _, requested := range []bool{false, true} {
		pt := newPeersTest(t, approvedPeer("milan", milan))
		i := pt.answering()
		nonce := [32]byte{1}
		if _, err := i.Introduce(t.Context(), milan.id, "x", milan.info, peering.Commitment(milan.id, nonce), requested); err != nil {
			t.Fatal(err)
		}
		pt.clock.pass(time.Millisecond)
		pt.forgets(t, "milan")
		if err := i.Reveal(t.Context(), milan.id, nonce); peering.ReasonOf(err) != peering.ReasonTrustForgotten || len(peersOf(t, pt.Client)) != 0 {
			t.Errorf("it is opened: %v", err)
		}
	}
}

// TestForgottenSideStopsIntroducingItself has two agents' controllers speak: one side
// forgets the other, which holds that it was approved.
func TestForgottenSideStopsIntroducingItself(t *testing.T) {
	t.Parallel()
	milan, home := newOther(t, "milan"), newOther(t, "home")
	there := newPeersTest(t, approvedPeer("home", home)) // milan's agent
	answers := there.answering()
	fc := approvedPeer("milan", milan)
	here := newPeersTest(t, fc, contractWith(milan, "c-1", v1alpha1.ContractConsumer))
	tt := newTrustsTest(t)
	tt.Client, tt.Direct, tt.clock = here.Client, here.Client, here.clock
	tt.Now = here.clock.Now
	tt.Session = here.trust.Session
	tt.strangers.answer = func(string, peering.ClusterID) (identity.ClusterInfo, string, error) {
		code, err := answers.introduceAs(t, home, "x", tt.strangers.requested)
		return milan.info, code, err
	}
	here.Attempt = tt.Attempt
	look := func() {
		t.Helper()
		tt.look(t, "milan")
		here.look(t, "milan")
	}
	here.trust.set(milan.id, Session{Up: &SessionInfo{Since: here.clock.Now()}})
	look()

	there.forgets(t, "home")
	refuse := func() {
		here.trust.set(milan.id, Session{Why: "it does not trust this cluster", At: here.clock.Now().Add(time.Hour), Untrusted: true})
	}
	for range 20 {
		refuse()
		look()
		here.clock.pass(trustRetryMax)
		here.trust.set(milan.id, Session{Why: "no route to host", At: here.clock.Now()})
		look()
		here.clock.pass(introduceAgain)
	}
	if tt.strangers.intros != 1 || len(peersOf(t, there.Client)) != 0 {
		t.Errorf("it introduced itself %d times, and the other side knows %d peers", tt.strangers.intros, len(peersOf(t, there.Client)))
	}
	got := here.trustedIs(t, "milan")
	if got.Status != metav1.ConditionFalse || got.Reason != reasonForgottenByPeer || !strings.Contains(got.Message, "unpeer PEER --forget") || !strings.Contains(got.Message, "new token") {
		t.Errorf("it says %+v", got)
	}
	if here.terminationOf(t, "c-1") != v1alpha1.TerminatePeer {
		t.Error("the contract goes on")
	}

	// Its agent starts anew and knows what it was told.
	tt.attempts = nil
	refuse()
	look()
	if tt.strangers.intros != 1 {
		t.Error("after a restart it introduces itself again")
	}

	// The other side's administrator has the two meet.
	met := store.Introduction{ID: milan.id, Info: milan.info, Code: "042917", Time: here.clock.Now()}
	if _, err := store.Introduce(t.Context(), here.Client, met); err != nil {
		t.Fatal(err)
	}
	look()
	if got := here.trustedIs(t, "milan"); got.Reason != reasonNotTrustedByPeer || !strings.Contains(got.Message, "042 917") {
		t.Errorf("when they met it says %+v", got)
	}
}

func TestOnlyFirstTrustIsRequested(t *testing.T) {
	t.Parallel()
	milan := newOther(t, "milan")
	for _, trusted := range []bool{false, true} {
		fc := approvedAs("m", milan, "192.0.2.1:1")
		if trusted {
			fc.Spec.TrustBundle = milan.info.PEM()
		}
		tt := newTrustsTest(t, fc)
		tt.session = Session{Untrusted: true}
		tt.strangers.answer = func(string, peering.ClusterID) (identity.ClusterInfo, string, error) {
			return milan.info, "042917", nil
		}
		tt.look(t, "m")
		if tt.strangers.intros != 1 || tt.strangers.requested == trusted {
			t.Errorf("trusted %t: introduced %d times, requested %t", trusted, tt.strangers.intros, tt.strangers.requested)
		}
	}
}

func TestForgettingIsRecordedBeforeThePeerIsGone(t *testing.T) {
	t.Parallel()
	milan := newOther(t, "milan")
	pt := newPeersTest(t, approvedPeer("milan", milan))
	pt.Forgotten = &store.Forgotten{Client: failing{pt.Client}, Namespace: "entente-system", Now: pt.clock.Now}
	if err := pt.Client.Delete(t.Context(), peerCalled(t, pt.Client, "milan")); err != nil {
		t.Fatal(err)
	}
	if _, err := pt.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "milan"}}); err == nil || len(peersOf(t, pt.Client)) != 1 {
		t.Errorf("it is gone although that was not recorded: %v", err)
	}
}

func TestForgettingAPeerKnownTwiceIsNone(t *testing.T) {
	t.Parallel()
	milan := newOther(t, "milan")
	second := approvedPeer("second", milan)
	second.CreationTimestamp = metav1.NewTime(time.Now())
	pt := newPeersTest(t, approvedPeer("milan", milan), second)
	if err := pt.Client.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "second")
	if _, forgot, err := pt.Forgotten.Since(t.Context(), milan.id); forgot || err != nil {
		t.Error(fmt.Errorf("it counts as forgotten: %w", err))
	}
	if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: "milan"}, &v1alpha1.ForeignCluster{}); err != nil {
		t.Error(err)
	}
}
