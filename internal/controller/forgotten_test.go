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
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/introduce"
)

// forgets deletes a peer and has the agent let go of it.
func (pt *peersTest) forgets(t *testing.T, name string) {
	t.Helper()
	if err := pt.Client.Delete(t.Context(), peertest.PeerCalled(t, pt.Client, name)); err != nil {
		t.Fatal(err)
	}
	pt.look(t, name)
	if left := peertest.PeersOf(t, pt.Client); len(left) != 0 {
		t.Fatalf("it is not forgotten: %+v", left)
	}
}

// answering is the introductions that the same agent answers.
func (pt *peersTest) answering() *trust.Introductions {
	return &trust.Introductions{Client: pt.Client, Cache: pt.Client, Forgotten: pt.Forgotten, Self: peertest.OwnID, Rand: rand.Reader, Now: pt.clock.Now}
}

func TestForgottenClusterIsNotMadeAgainByItsIntroduction(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for name, tc := range map[string]struct {
		then func(*testing.T, *peersTest, *trust.Introductions)
		// requested: the other side's administrator asks for it.
		requested bool
		refused   bool
	}{
		"at once":                {nil, false, true},
		"a week later":           {func(_ *testing.T, pt *peersTest, _ *trust.Introductions) { pt.clock.Pass(7 * 24 * time.Hour) }, false, true},
		"its administrator asks": {nil, true, false},
		"after a restart": {func(_ *testing.T, pt *peersTest, i *trust.Introductions) {
			i.Forgotten = peertest.ForgottenAt(pt.Client, pt.clock.Now)
		}, false, true},
		"an administrator here named it": {func(t *testing.T, pt *peersTest, _ *trust.Introductions) {
			if err := pt.Client.Create(t.Context(), peertest.ApprovedAs("office", milan)); err != nil {
				t.Fatal(err)
			}
		}, false, false},
		"it was named here, and that was reconciled": {func(t *testing.T, pt *peersTest, _ *trust.Introductions) {
			fc := peertest.ApprovedAs("office", milan)
			if err := pt.Client.Create(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
			pt.look(t, "office")
			if err := pt.Client.Delete(t.Context(), fc); err != nil { // never trusted
				t.Fatal(err)
			}
		}, false, false},
		"an administrator here denied it, and deleted that": {func(t *testing.T, pt *peersTest, _ *trust.Introductions) {
			fc := peertest.ApprovedAs("office", milan)
			fc.Spec.Decision = v1alpha1.DecisionDenied
			if err := pt.Client.Create(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
			pt.look(t, "office")
			if err := pt.Client.Delete(t.Context(), fc); err != nil {
				t.Fatal(err)
			}
		}, false, true},
		"it joined with a token": {func(t *testing.T, pt *peersTest, _ *trust.Introductions) {
			if _, err := store.AddPeer(t.Context(), pt.Client, pt.Client, milan.ID, milan.Info, ""); err != nil {
				t.Fatal(err)
			}
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pt := newPeersTest(t, peertest.ApprovedPeer("milan", milan))
			i := pt.answering()
			pt.forgets(t, "milan")
			pt.clock.Pass(time.Second)
			if tc.then != nil {
				tc.then(t, pt, i)
			}
			before := len(peertest.PeersOf(t, pt.Client))
			_, err := peertest.IntroduceAs(t, i, milan, "x", tc.requested)
			if (peering.ReasonOf(err) == peering.ReasonTrustForgotten) != tc.refused || !tc.refused && err != nil {
				t.Fatalf("its introduction: %v", err)
			}
			if left := peertest.PeersOf(t, pt.Client); tc.refused && len(left) != before {
				t.Errorf("it is back as %+v", left)
			}
			if tc.refused {
				if _, err := peertest.IntroduceAs(t, i, peertest.NewOther(t, "rome"), "y", false); err != nil {
					t.Errorf("a stranger: %v", err)
				}
				return
			}
			pt.clock.Pass(time.Second)
			if _, err := peertest.IntroduceAs(t, i, milan, "x", false); err != nil {
				t.Errorf("it repeats what is decided anew: %v", err)
			}
		})
	}
}

func TestIntroductionThatBeganBeforeTheForgettingIsNotOpened(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for _, requested := range []bool{false, true} {
		pt := newPeersTest(t, peertest.ApprovedPeer("milan", milan))
		i := pt.answering()
		nonce := [32]byte{1}
		if _, err := i.Introduce(t.Context(), milan.ID, "x", milan.Info, introduce.Commitment(milan.ID, nonce), requested); err != nil {
			t.Fatal(err)
		}
		pt.clock.Pass(time.Millisecond)
		pt.forgets(t, "milan")
		if err := i.Reveal(t.Context(), milan.ID, nonce); peering.ReasonOf(err) != peering.ReasonTrustForgotten || len(peertest.PeersOf(t, pt.Client)) != 0 {
			t.Errorf("it is opened: %v", err)
		}
	}
}

// TestForgottenSideStopsIntroducingItself has two agents' controllers speak: one side
// forgets the other, which has recorded its approval.
func TestForgottenSideStopsIntroducingItself(t *testing.T) {
	t.Parallel()
	milan, home := peertest.NewOther(t, "milan"), peertest.NewOther(t, "home")
	there := newPeersTest(t, peertest.ApprovedPeer("home", home)) // milan's agent
	answers := there.answering()
	fc := peertest.ApprovedPeer("milan", milan)
	here := newPeersTest(t, fc, peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer))
	strangers := &peertest.Strangers{}
	strangers.Answer = func(string, peering.ClusterID) (identity.ClusterInfo, string, error) {
		code, err := peertest.IntroduceAs(t, answers, home, "x", strangers.Requested)
		return milan.Info, code, err
	}
	trusts := here.trusts(strangers)
	here.Attempt = func(fc *v1alpha1.ForeignCluster) trust.Attempt { return trusts.Attempt(fc) }
	look := func() {
		t.Helper()
		looks(t, trusts, "milan")
		here.look(t, "milan")
	}
	here.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: here.clock.Now()}})
	look()

	there.forgets(t, "home")
	refuse := func() {
		here.trust.set(milan.ID, trust.Session{Why: "it does not trust this cluster", At: here.clock.Now().Add(time.Hour), Untrusted: true})
	}
	for range 20 {
		refuse()
		look()
		here.clock.Pass(30 * time.Second)
		here.trust.set(milan.ID, trust.Session{Why: "no route to host", At: here.clock.Now()})
		look()
		here.clock.Pass(10 * time.Minute)
	}
	if strangers.Intros != 1 || len(peertest.PeersOf(t, there.Client)) != 0 {
		t.Errorf("it introduced itself %d times, and the other side knows %d peers", strangers.Intros, len(peertest.PeersOf(t, there.Client)))
	}
	got := here.trustedIs(t, "milan")
	if got.Status != metav1.ConditionFalse || got.Reason != trust.ReasonForgottenByPeer || !strings.Contains(got.Message, "unpeer PEER --forget") || !strings.Contains(got.Message, "new token") {
		t.Errorf("the condition is %+v", got)
	}
	if here.terminationOf(t, "c-1") != v1alpha1.TerminatePeer {
		t.Error("the contract goes on")
	}

	// Its agent restarts and knows what was stored.
	trusts = here.trusts(strangers)
	refuse()
	look()
	if strangers.Intros != 1 {
		t.Error("after a restart it introduces itself again")
	}

	// The other side's administrator has the two meet.
	met := store.Introduction{ID: milan.ID, Info: milan.Info, Code: "042917", Time: here.clock.Now()}
	if _, err := store.Introduce(t.Context(), here.Client, met); err != nil {
		t.Fatal(err)
	}
	look()
	if got := here.trustedIs(t, "milan"); got.Reason != reasonNotTrustedByPeer || !strings.Contains(got.Message, "042 917") {
		t.Errorf("when they met it says %+v", got)
	}
}

func TestForgettingIsRecordedBeforeThePeerIsGone(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.ApprovedPeer("milan", milan))
	pt.Forgotten = &store.Forgotten{Client: peertest.Failing{Client: pt.Client}, Namespace: "entente-system", Now: pt.clock.Now}
	if err := pt.Client.Delete(t.Context(), peertest.PeerCalled(t, pt.Client, "milan")); err != nil {
		t.Fatal(err)
	}
	if _, err := pt.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "milan"}}); err == nil || len(peertest.PeersOf(t, pt.Client)) != 1 {
		t.Errorf("it is gone although that was not recorded: %v", err)
	}
}

func TestDeletingASecondObjectOfAPeerForgetsNothing(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	second := peertest.ApprovedPeer("second", milan)
	second.CreationTimestamp = metav1.NewTime(time.Now())
	pt := newPeersTest(t, peertest.ApprovedPeer("milan", milan), second)
	if err := pt.Client.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "second")
	if _, forgot, err := pt.Forgotten.Since(t.Context(), milan.ID); forgot || err != nil {
		t.Error(fmt.Errorf("it counts as forgotten: %w", err))
	}
	if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: "milan"}, &v1alpha1.ForeignCluster{}); err != nil {
		t.Error(err)
	}
}

// TestPolicyMayTrustAgainAPeerThatItDropped distinguishes a peer that a policy forgot from one that a
// person did.
func TestPolicyMayTrustAgainAPeerThatItDropped(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for name, by := range map[string]struct{ mark, label, ended bool }{
		"a person": {}, "a policy": {true, true, true},
		"a person, of what a policy once was about to end": {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := peertest.ApprovedPeer("milan", milan)
			ended := by.ended
			if by.mark {
				fc.Annotations = map[string]string{v1alpha1.AnnotationAutomaticEnded: "true", v1alpha1.AnnotationAutomaticBy: "FirstUse"}
			}
			if by.label {
				fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelAutomatic: "home"}
			}
			pt := newPeersTest(t, fc)
			pt.forgets(t, "milan")
			for _, f := range []*store.Forgotten{pt.Forgotten, peertest.ForgottenAt(pt.Client, pt.clock.Now)} {
				_, forgot, err := f.Since(t.Context(), milan.ID)
				person, err2 := f.ByPerson(t.Context(), milan.ID)
				if !forgot || person == ended || err != nil || err2 != nil {
					t.Errorf("forgotten %t, by a person %t: %v, %v", forgot, person, err, err2)
				}
			}
		})
	}
}
