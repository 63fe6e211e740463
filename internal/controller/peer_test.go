package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// fakeTrust records which peers are trusted and which were notified.
type fakeTrust struct {
	mu       sync.Mutex
	trusted  []peering.ClusterID
	checked  []peering.ClusterID
	denied   []peering.ClusterID
	sessions map[peering.ClusterID]trust.Session
	told     []peering.ClusterID
	hang     chan struct{}
}

func (f *fakeTrust) Set(peers []TrustedPeer, denied []peering.ClusterID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trusted, f.checked, f.denied = nil, nil, denied
	for _, p := range peers {
		f.trusted = append(f.trusted, p.ID)
		if p.Checked {
			f.checked = append(f.checked, p.ID)
		}
	}
}

func (f *fakeTrust) Session(id peering.ClusterID) trust.Session {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions[id]
}

func (f *fakeTrust) Revoke(ctx context.Context, id peering.ClusterID, _ string) error {
	f.mu.Lock()
	f.told = append(f.told, id)
	f.mu.Unlock()
	if f.hang == nil {
		return nil
	}
	select {
	case <-f.hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeTrust) set(id peering.ClusterID, s trust.Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sessions[id] = s
}

// peersTest is a Peers that reconciles when the test calls it.
type peersTest struct {
	*Peers
	trust   *fakeTrust
	events  *peertest.Recorder
	clock   *peertest.Clock
	attempt trust.Attempt
	forgot  []peering.ClusterID
	again   chan string
}

func newPeersTest(t testing.TB, objects ...client.Object) *peersTest {
	t.Helper()
	c := peertest.Client(t, objects...)
	pt := &peersTest{
		trust: &fakeTrust{sessions: map[peering.ClusterID]trust.Session{}}, events: &peertest.Recorder{}, clock: peertest.NewClock(time.Now()), again: make(chan string, 8),
	}
	pt.Peers = &Peers{
		Client: c, Trust: pt.trust, Events: pt.events, Now: pt.clock.Now,
		States:  &States{Budget: &store.WriteBudget{Now: time.Now}, Client: c, Namespace: "entente-system", Self: peertest.OwnID, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, Aggregate: plan.Aggregate, Now: pt.clock.Now},
		Attempt: func(*v1alpha1.ForeignCluster) trust.Attempt { return pt.attempt },
		Forget: func(_ context.Context, id peering.ClusterID) error {
			pt.forgot = append(pt.forgot, id)
			return nil
		},
		Forgotten:    peertest.ForgottenAt(c, pt.clock.Now),
		Again:        func(name string) { pt.again <- name },
		StateChanged: func(peering.ClusterID) {}, Readdressed: func(peering.ClusterID) {},
		Exposed: func(context.Context, peering.ClusterID) ([]allow.Exposed, error) { return nil, nil },
	}
	return pt
}

// trusts is the Trusts of the same agent.
func (pt *peersTest) trusts(strangers *peertest.Strangers) *trust.Trusts {
	return &trust.Trusts{
		Client: pt.Client, Direct: pt.Client, Namespace: "entente-system", Self: peertest.OwnID, Strangers: strangers, Now: pt.clock.Now,
		OwnHash: func() peering.Hash { return peering.Hash{1} }, Session: pt.trust.Session, AttemptChanged: func(string) {},
	}
}

func (pt *peersTest) look(t testing.TB, name string) {
	t.Helper()
	looks(t, pt.Peers, name)
}

// looks reconciles one object.
func looks(t testing.TB, r reconcile.Reconciler, name string) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}); err != nil {
		t.Fatal(err)
	}
}

// No administrator vouches for where a policy's peer says that it is, now or later.
func TestOnlyPolicysPeersAreChecked(t *testing.T) {
	t.Parallel()
	milan, genoa := peertest.NewOther(t, "milan"), peertest.NewOther(t, "genoa")
	theirs := peertest.TrustedAs("genoa", genoa)
	theirs.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
	store.ByPolicy(theirs, "home", "Group/garage")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan), theirs)
	if err := pt.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(pt.trust.trusted) != 2 || !slices.Equal(pt.trust.checked, []peering.ClusterID{genoa.ID}) {
		t.Errorf("of %v are checked %v, want only %s", pt.trust.trusted, pt.trust.checked, genoa.ID)
	}
}

func tunnelOf(name string) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func keysSecret(o ...peertest.Other) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: v1alpha1.FabricSecret}, Data: map[string][]byte{}}
	for _, o := range o {
		s.Data[string(o.ID)] = []byte("psk")
	}
	return s
}

func (pt *peersTest) trustedIs(t testing.TB, name string) metav1.Condition {
	t.Helper()
	c := meta.FindStatusCondition(peertest.PeerCalled(t, pt.Client, name).Status.Conditions, v1alpha1.ConditionTrusted)
	if c == nil {
		return metav1.Condition{}
	}
	return *c
}

func (pt *peersTest) terminationOf(t testing.TB, name string) v1alpha1.Termination {
	t.Helper()
	var c v1alpha1.Contract
	if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: name}, &c); err != nil {
		t.Fatal(err)
	}
	return c.Spec.Termination
}

func (pt *peersTest) hasTunnel(t testing.TB, name string) bool {
	t.Helper()
	err := pt.Client.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.Tunnel{})
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

func TestDenialEndsEverythingAndKeepsTheRoots(t *testing.T) {
	t.Parallel()
	milan, rome := peertest.NewOther(t, "milan"), peertest.NewOther(t, "rome")
	fc := peertest.TrustedAs("milan", milan)
	pt := newPeersTest(t, fc, peertest.TrustedAs("rome", rome), peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer), peertest.ContractWith(milan, "c-2", v1alpha1.ContractProvider),
		peertest.ContractWith(rome, "c-3", v1alpha1.ContractConsumer), tunnelOf("milan"), tunnelOf("rome"), keysSecret(milan, rome))
	pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now()}})
	pt.look(t, "milan")
	if got := pt.trustedIs(t, "milan"); got.Status != metav1.ConditionTrue || len(pt.trust.trusted) != 2 {
		t.Fatalf("before: %+v, trusted %v", got, pt.trust.trusted)
	}
	denied := peertest.PeerCalled(t, pt.Client, "milan")
	denied.Spec.Decision = v1alpha1.DecisionDenied
	if err := pt.Client.Update(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	// Another peer is reconciled first; the one that is denied is not notified yet.
	pt.look(t, "rome")
	if !slices.Contains(pt.trust.trusted, milan.ID) {
		t.Error("it was cut off before it was notified")
	}
	pt.look(t, "milan")
	if pt.terminationOf(t, "c-1") != v1alpha1.TerminateNow || pt.terminationOf(t, "c-2") != v1alpha1.TerminateNow || pt.hasTunnel(t, "milan") {
		t.Error("contracts or tunnel wait for the peer to be notified")
	}
	if name := <-pt.again; name != "milan" {
		t.Errorf("%s is requeued", name)
	}
	pt.look(t, "milan")
	fc = peertest.PeerCalled(t, pt.Client, "milan")
	if fc.Spec.TrustBundle != "" || slices.Contains(pt.trust.trusted, milan.ID) || !slices.Contains(pt.trust.denied, milan.ID) {
		t.Errorf("after: %+v, trusted %v, denied %v", fc.Spec, pt.trust.trusted, pt.trust.denied)
	}
	if !slices.Equal(pt.trust.told, []peering.ClusterID{milan.ID}) || !slices.Equal(pt.forgot, []peering.ClusterID{milan.ID}) {
		t.Errorf("notified %v, forgot %v", pt.trust.told, pt.forgot)
	}
	if fc.Status.Introduction == nil || fc.Status.Introduction.Bundle != milan.Info.PEM() || fc.Status.Introduction.Code != "" {
		t.Errorf("the tombstone is %+v", fc.Status.Introduction)
	}
	pt.trust.set(milan.ID, trust.Session{})
	pt.look(t, "milan")
	if got := pt.trustedIs(t, "milan"); got.Reason != "Denied" || got.Status != metav1.ConditionFalse {
		t.Errorf("the condition is %+v", got)
	}
	// Other peers are not affected.
	if pt.terminationOf(t, "c-3") != "" || !pt.hasTunnel(t, "rome") || !slices.Contains(pt.trust.trusted, rome.ID) {
		t.Error("another peer suffered")
	}
	var keys corev1.Secret
	if err := pt.Client.Get(t.Context(), client.ObjectKeyFromObject(keysSecret()), &keys); err != nil || len(keys.Data) != 1 {
		t.Errorf("%d preshared keys are left, %v", len(keys.Data), err)
	}
	if diff := cmp.Diff([]string{"Normal Joined", "Normal Connected"}, pt.events.Events[:2]); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if !slices.Contains(pt.events.Events, "Normal Denied") {
		t.Errorf("events %v", pt.events.Events)
	}
	// Approving it needs nothing of the peer.
	fc = peertest.PeerCalled(t, pt.Client, "milan")
	fc.Spec.Decision = v1alpha1.DecisionApproved
	if err := pt.Client.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	looks(t, pt.trusts(&peertest.Strangers{}), "milan")
	pt.look(t, "milan")
	if !slices.Contains(pt.trust.trusted, milan.ID) || len(pt.trust.denied) != 0 {
		t.Errorf("after approval: trusted %v, denied %v", pt.trust.trusted, pt.trust.denied)
	}
	if got := pt.trustedIs(t, "milan"); got.Reason != "AwaitingPeer" {
		t.Errorf("the condition is %+v", got)
	}
}

func TestDeniedPeerThatDoesNotRespondIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		milan := peertest.NewOther(t, "milan")
		fc := peertest.TrustedAs("milan", milan)
		fc.Spec.Decision = v1alpha1.DecisionDenied
		pt := newPeersTest(t, fc)
		pt.trust.hang = make(chan struct{})
		pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now()}})
		begin := time.Now()
		pt.look(t, "milan")
		if took := time.Since(begin); took > 0 {
			t.Errorf("the reconciler waited %s for the peer", took)
		}
		<-pt.again
		if took := time.Since(begin); took > denialTimeout {
			t.Errorf("it took %s", took)
		}
		pt.look(t, "milan")
		if peertest.PeerCalled(t, pt.Client, "milan").Spec.TrustBundle != "" || len(pt.trust.trusted) != 0 {
			t.Error("it is trusted still")
		}
	})
}

func TestDeniedPeerThatIsAwayIsCutOffAtOnce(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	fc.Spec.Decision = v1alpha1.DecisionDenied
	pt := newPeersTest(t, fc)
	pt.look(t, "milan")
	if peertest.PeerCalled(t, pt.Client, "milan").Spec.TrustBundle != "" || len(pt.trust.trusted) != 0 || len(pt.trust.told) != 0 {
		t.Errorf("trusted %v, notified %v", pt.trust.trusted, pt.trust.told)
	}
	pt.look(t, "milan")
	if !slices.Equal(pt.trust.denied, []peering.ClusterID{milan.ID}) {
		t.Errorf("denied %v", pt.trust.denied)
	}
}

func TestDeniedPeerIsCutOffDespiteAPIServerErrors(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	fc.Spec.Decision = v1alpha1.DecisionDenied
	pt := newPeersTest(t, fc)
	pt.Forget = func(context.Context, peering.ClusterID) error { return errors.New("etcd is away") }
	if _, err := pt.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "milan"}}); err == nil {
		t.Error("no error")
	}
	if len(pt.trust.trusted) != 0 || len(pt.trust.denied) != 1 {
		t.Errorf("trusted %v, denied %v", pt.trust.trusted, pt.trust.denied)
	}
}

func TestRefusalRightAfterAJoinCountsAfterJoinGrace(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for name, tc := range map[string]struct {
		heard time.Duration
		later string
	}{
		"after the join":  {time.Second, "NotTrustedByPeer"},
		"before the join": {-time.Minute, store.ReasonJoined},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pt := newPeersTest(t, peertest.TrustedAs("milan", milan))
			pt.clock.Pass(-time.Duration(pt.clock.Now().Nanosecond())) // as conditions have it
			if err := store.RecordJoined(t.Context(), pt.Client, peertest.PeerCalled(t, pt.Client, "milan")); err != nil {
				t.Fatal(err)
			}
			joined := pt.trustedIs(t, "milan").LastTransitionTime.Time
			pt.trust.set(milan.ID, trust.Session{Why: "refused", At: joined.Add(tc.heard), Untrusted: true})
			pt.clock.Pass(joined.Add(2 * time.Second).Sub(pt.clock.Now()))
			result, err := pt.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "milan"}})
			if err != nil {
				t.Fatal(err)
			}
			if got := pt.trustedIs(t, "milan"); got.Reason != store.ReasonJoined {
				t.Errorf("the condition is %+v", got)
			}
			if want := joinGrace - 2*time.Second; result.RequeueAfter != want {
				t.Errorf("it is requeued after %s, want %s", result.RequeueAfter, want)
			}
			pt.clock.Pass(result.RequeueAfter)
			pt.look(t, "milan")
			if got := pt.trustedIs(t, "milan"); got.Reason != tc.later {
				t.Errorf("after the grace the condition is %+v, want %s", got, tc.later)
			}
			// Later refusals of the peer count at once.
			pt.trust.set(milan.ID, trust.Session{Why: "refused", At: pt.clock.Now(), Untrusted: true})
			pt.look(t, "milan")
			if got := pt.trustedIs(t, "milan"); got.Reason != "NotTrustedByPeer" || got.Status != metav1.ConditionFalse {
				t.Errorf("after another refusal the condition is %+v", got)
			}
		})
	}
}

func TestRevocationByThePeerEndsContracts(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for name, hear := range map[string]func(*testing.T, *peersTest){
		"notified over the session": func(t *testing.T, pt *peersTest) {
			if _, err := store.RecordRevoked(t.Context(), pt.Client, milan.ID, "we moved", pt.clock.Now()); err != nil {
				t.Fatal(err)
			}
		},
		"refused when it dialled": func(_ *testing.T, pt *peersTest) {
			pt.trust.set(milan.ID, trust.Session{Why: "denied", At: pt.clock.Now().Add(2 * time.Second), Denied: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pt := newPeersTest(t, peertest.TrustedAs("milan", milan), peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer), tunnelOf("milan"), keysSecret(milan))
			since := pt.clock.Now().Add(-time.Minute)
			pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: since}})
			pt.look(t, "milan")
			hear(t, pt)
			for range 2 {
				pt.look(t, "milan")
				if got := pt.trustedIs(t, "milan"); got.Reason != store.RevokedByPeer || !strings.Contains(got.Message, "entente join") {
					t.Errorf("the condition is %+v", got)
				}
			}
			if pt.terminationOf(t, "c-1") != v1alpha1.TerminatePeer || pt.hasTunnel(t, "milan") {
				t.Errorf("contract ends by %q, tunnel %t", pt.terminationOf(t, "c-1"), pt.hasTunnel(t, "milan"))
			}
			if !slices.Contains(pt.trust.trusted, milan.ID) || len(pt.trust.denied) != 0 {
				t.Error("that the peer trusts no longer makes this side not trust it")
			}
			// A session after that, which the peer would refuse, means trust again.
			pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now().Add(3 * time.Second)}})
			pt.look(t, "milan")
			if got := pt.trustedIs(t, "milan"); got.Status != metav1.ConditionTrue {
				t.Errorf("with a new session the condition is %+v", got)
			}
		})
	}
}

func TestRevocationEndsWithASessionOfTheSameSecond(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan))
	at := pt.clock.Now().Truncate(time.Second).Add(100 * time.Millisecond)
	if _, err := store.RecordRevoked(t.Context(), pt.Client, milan.ID, "", at); err != nil {
		t.Fatal(err)
	}
	pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: at.Add(50 * time.Millisecond)}})
	pt.look(t, "milan")
	if got := pt.trustedIs(t, "milan"); got.Reason != store.RevokedByPeer {
		t.Errorf("while it may be the session over which it was reported: %+v", got)
	}
	pt.clock.Pass(sessionDead + time.Second)
	pt.look(t, "milan")
	if got := pt.trustedIs(t, "milan"); got.Status != metav1.ConditionTrue {
		t.Errorf("when that would be dead: %+v", got)
	}
}

func TestSilenceIsNotARevocation(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan), peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer), tunnelOf("milan"), keysSecret(milan))
	pt.look(t, "milan")
	for _, s := range []trust.Session{
		{Why: "no route to host", At: pt.clock.Now().Add(time.Hour)},
		{Why: "it does not know this cluster", At: pt.clock.Now().Add(time.Hour), Untrusted: true},
		{Why: "denied, before trust was made anew", At: pt.clock.Now().Add(-time.Hour), Denied: true},
	} {
		pt.trust.set(milan.ID, s)
		pt.look(t, "milan")
		if pt.terminationOf(t, "c-1") != "" || store.Revoked(peertest.PeerCalled(t, pt.Client, "milan")) {
			t.Errorf("%s: the contract ends by %q", s.Why, pt.terminationOf(t, "c-1"))
		}
	}
	if !pt.hasTunnel(t, "milan") {
		t.Error("the tunnel is gone")
	}
}

func TestDuplicateObjectLeavesThePrimaryAlone(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	second := peertest.TrustedAs("second", milan)
	second.Spec.TrustBundle, second.Finalizers = "", []string{v1alpha1.Finalizer}
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan), second, peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer), tunnelOf("milan"), keysSecret(milan))
	pt.attempt = trust.Attempt{}
	pt.look(t, "milan")
	pt.attempt = trust.Attempt{Reason: trust.ReasonDuplicate, Message: "known as milan"}
	pt.look(t, "second")
	if got := pt.trustedIs(t, "second"); got.Reason != trust.ReasonDuplicate {
		t.Errorf("the condition is %+v", got)
	}
	if err := pt.Client.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "second")
	var keys corev1.Secret
	if err := pt.Client.Get(t.Context(), client.ObjectKeyFromObject(keysSecret()), &keys); err != nil || len(keys.Data) != 1 {
		t.Errorf("%d preshared keys are left, %v", len(keys.Data), err)
	}
	if pt.terminationOf(t, "c-1") != "" || !pt.hasTunnel(t, "milan") || len(peertest.PeersOf(t, pt.Client)) != 1 || len(pt.forgot) != 0 {
		t.Error("deleting the second took down what belongs to the first")
	}
}

func TestUntrustedPeerGetsNoFinalizer(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	fc.Spec.TrustBundle = ""
	pt := newPeersTest(t, fc)
	pt.look(t, "milan")
	got := peertest.PeerCalled(t, pt.Client, "milan")
	if len(got.Finalizers) != 0 || got.Labels[v1alpha1.LabelPeer] != string(milan.ID) || got.Status.Source != v1alpha1.SourceManual {
		t.Errorf("it is %+v %+v", got.ObjectMeta, got.Status)
	}
	got.Spec.TrustBundle = milan.Info.PEM()
	if err := pt.Client.Update(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	if got := peertest.PeerCalled(t, pt.Client, "milan"); len(got.Finalizers) != 1 {
		t.Error("a trusted one has no finalizer")
	}
}

func TestForgettingAPeerRevokesItsTokens(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	fc.Finalizers = []string{v1alpha1.Finalizer}
	pt := newPeersTest(t, fc)
	if err := pt.Client.Delete(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	if len(peertest.PeersOf(t, pt.Client)) != 0 || !slices.Equal(pt.forgot, []peering.ClusterID{milan.ID}) {
		t.Errorf("%d peers are left, forgot %v", len(peertest.PeersOf(t, pt.Client)), pt.forgot)
	}
}

func TestTrustedConditionNamesTheRemedy(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	view := func(edit func(*PeerSnapshot)) PeerSnapshot {
		fc := peertest.TrustedAs("milan", milan)
		fc.Spec.TrustBundle = ""
		v := PeerSnapshot{Peer: fc, Now: now}
		edit(&v)
		return v
	}
	approved := func(v *PeerSnapshot) { v.Peer.Spec.Decision = v1alpha1.DecisionApproved }
	trusted := func(v *PeerSnapshot) { v.Peer.Spec.TrustBundle = milan.Info.PEM() }
	introduced := func(v *PeerSnapshot) { v.Peer.Status.Introduction = &v1alpha1.Introduction{Code: "042917"} }
	was := func(status metav1.ConditionStatus) func(*PeerSnapshot) {
		return func(v *PeerSnapshot) {
			v.Peer.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionTrusted, Status: status, Reason: "X"}}
		}
	}
	up := func(v *PeerSnapshot) { v.Session = trust.Session{Up: &trust.SessionInfo{}} }
	untrusted := func(v *PeerSnapshot) { v.Session = trust.Session{Untrusted: true, At: now} }
	for name, tc := range map[string]struct {
		do     []func(*PeerSnapshot)
		reason string
		says   string
	}{
		"known":                    {nil, "NotJoined", "entente token create"},
		"introduced":               {[]func(*PeerSnapshot){introduced}, "AwaitingApproval", "042 917"},
		"joining":                  {[]func(*PeerSnapshot){func(v *PeerSnapshot) { v.Peer.Spec.JoinToken = &v1alpha1.SecretKey{} }}, "Joining", "redeemed"},
		"a token that was refused": {[]func(*PeerSnapshot){func(v *PeerSnapshot) { v.Attempt = trust.Attempt{Reason: "TokenExpired", Message: "it expired"} }}, "TokenExpired", "it expired"},
		"named, somewhere":         {[]func(*PeerSnapshot){approved}, "Introducing", "introduces itself"},
		"named, nowhere":           {[]func(*PeerSnapshot){approved, func(v *PeerSnapshot) { v.Peer.Spec.Endpoints = nil }}, "AwaitingIntroduction", "spec.endpoints"},
		"joined":                   {[]func(*PeerSnapshot){trusted}, "Joined", "joined"},
		"joined, forgotten there":  {[]func(*PeerSnapshot){trusted, untrusted, was(metav1.ConditionTrue)}, "NotTrustedByPeer", "new token"},
		"joined just now, not known there yet": {[]func(*PeerSnapshot){trusted, untrusted, was(metav1.ConditionTrue), func(v *PeerSnapshot) {
			v.Peer.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
		}}, "Joined", "joined"},
		"approved here, not there":               {[]func(*PeerSnapshot){trusted, approved, untrusted, introduced}, "NotTrustedByPeer", "042 917"},
		"approved here, no session yet":          {[]func(*PeerSnapshot){trusted, approved}, "AwaitingPeer", "name its ID"},
		"approved by both":                       {[]func(*PeerSnapshot){trusted, approved, up}, "Approved", "and it trusts this cluster"},
		"approved by both, then away":            {[]func(*PeerSnapshot){trusted, approved, was(metav1.ConditionTrue)}, "Approved", "when there was a session last"},
		"denied":                                 {[]func(*PeerSnapshot){func(v *PeerSnapshot) { v.Peer.Spec.Decision = v1alpha1.DecisionDenied }, trusted}, "Denied", "entente approve"},
		"denied wins over what the peer reports": {[]func(*PeerSnapshot){func(v *PeerSnapshot) { v.Peer.Spec.Decision = v1alpha1.DecisionDenied }, trusted, func(v *PeerSnapshot) { v.Revoked = true }, was(metav1.ConditionFalse)}, "Denied", "denied"},
		"a second object": {[]func(*PeerSnapshot){trusted, func(v *PeerSnapshot) {
			v.Attempt = trust.Attempt{Reason: trust.ReasonDuplicate, Message: "known as rome"}
		}}, trust.ReasonDuplicate, "rome"},
		"an attempt of before it was trusted ": {[]func(*PeerSnapshot){trusted, func(v *PeerSnapshot) { v.Attempt = trust.Attempt{Reason: "TokenExpired", Message: "it expired"} }}, "Joined", "joined"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := trustedCondition(view(func(v *PeerSnapshot) {
				for _, do := range tc.do {
					do(v)
				}
			}))
			if got.Reason != tc.reason || !strings.Contains(got.Message, tc.says) {
				t.Errorf("the condition is %+v, want %s and %q", got, tc.reason, tc.says)
			}
		})
	}
}

// Without trust the next step is not to ask for a contract.
func TestNoContractConditionNamesTheNextStep(t *testing.T) {
	t.Parallel()
	const ask = "entente peer"
	milan := peertest.NewOther(t, "milan")
	for name, tc := range map[string]struct {
		edit func(*PeerSnapshot)
		asks bool
	}{
		"joined":     {func(*PeerSnapshot) {}, true},
		"only found": {func(v *PeerSnapshot) { v.Peer.Spec.TrustBundle = "" }, false},
		"waits for approval": {func(v *PeerSnapshot) {
			v.Peer.Spec.TrustBundle, v.Peer.Status.Introduction = "", &v1alpha1.Introduction{Code: "042917"}
		}, false},
		"denied":            {func(v *PeerSnapshot) { v.Peer.Spec.Decision = v1alpha1.DecisionDenied }, false},
		"not trusted there": {func(v *PeerSnapshot) { v.Session = trust.Session{Untrusted: true, At: now} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := PeerSnapshot{Peer: peertest.TrustedAs("milan", milan), Now: now}
			tc.edit(&v)
			got := meta.FindStatusCondition(peerConditions(v), v1alpha1.ConditionOffloading)
			if got == nil || got.Reason != "NoContract" || strings.Contains(got.Message, ask) != tc.asks || strings.Contains(got.Message, "condition Trusted") == tc.asks {
				t.Errorf("the condition is %+v", got)
			}
		})
	}
}

func trustedCondition(v PeerSnapshot) metav1.Condition { return trusted(v) }

func TestClocksThatDifferAreNamed(t *testing.T) {
	t.Parallel()
	for skew, want := range map[time.Duration]string{
		0: "", time.Minute: "", -time.Minute: "",
		75 * time.Second: "1m15s ahead of", -2 * time.Hour: "2h0m0s behind",
	} {
		fc := &v1alpha1.ForeignCluster{}
		fc.Spec.TrustBundle = "PEM"
		got := connected(PeerSnapshot{Peer: fc, Session: trust.Session{Up: &trust.SessionInfo{Dialled: true, ClockSkew: skew}}})
		if got.Status != metav1.ConditionTrue || (got.Reason == "ClocksDiffer") != (want != "") || !strings.Contains(got.Message, want) {
			t.Errorf("%s: the condition is %+v", skew, got)
		}
	}
}

// rootThatEnds returns a cluster whose root ends at a time.
func rootThatEnds(t *testing.T, at time.Time) (string, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peering.ClusterIDOf(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	uri, err := url.Parse(id.TrustDomainURI())
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: at.Add(-time.Hour), NotAfter: at, URIs: []*url.URL{uri},
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(id), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestRootThatEndsIsReportedInTime(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		left   time.Duration
		status metav1.ConditionStatus
		reason string
		says   string
	}{
		"in years":     {900 * day, metav1.ConditionTrue, "Valid", "ends at"},
		"in 31 days":   {31 * day, metav1.ConditionTrue, "Valid", "ends at"},
		"in 29 days":   {29 * day, metav1.ConditionTrue, "RootExpiresSoon", "less than 30 days"},
		"in a week":    {7*day - 1, metav1.ConditionTrue, "RootExpiresSoon", "less than 7 days"},
		"in hours":     {time.Hour, metav1.ConditionTrue, "RootExpiresSoon", "less than 1 days: have `entente identity rollover`"},
		"it has ended": {-time.Second, metav1.ConditionFalse, "RootExpired", "ended at"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ends := now.Add(400 * day).Truncate(time.Second)
			fc := &v1alpha1.ForeignCluster{}
			fc.Spec.ClusterID, fc.Spec.TrustBundle = rootThatEnds(t, ends)
			got := certificateValid(PeerSnapshot{Peer: fc, Now: ends.Add(-tc.left)})
			if got.Status != tc.status || got.Reason != tc.reason || !strings.Contains(got.Message, tc.says) {
				t.Errorf("the condition is %+v", got)
			}
		})
	}
	fc := &v1alpha1.ForeignCluster{}
	fc.Spec.ClusterID, fc.Spec.TrustBundle = string(peertest.OwnID), "hello"
	if got := certificateValid(PeerSnapshot{Peer: fc, Now: now}); got.Status != metav1.ConditionFalse || got.Reason != "BundleInvalid" {
		t.Errorf("for a malformed bundle the condition is %+v", got)
	}
}

func TestSessionStatusIgnoresSmallChanges(t *testing.T) {
	t.Parallel()
	session := func(rtt, skew time.Duration) trust.Session {
		return trust.Session{Up: &trust.SessionInfo{Dialled: true, Endpoint: "e:1", Since: now, RoundTrip: rtt, ClockSkew: skew, NotAfter: now.Add(time.Hour)}}
	}
	first := sessionStatus(nil, session(11300*time.Microsecond, 1400*time.Millisecond))
	if first.RoundTrip.Duration != 10*time.Millisecond || first.ClockSkew.Duration != time.Second || first.Endpoint != "e:1" || !first.CertificateNotAfter.Time.Equal(now.Add(time.Hour)) {
		t.Errorf("it shows %+v", first)
	}
	for _, s := range []trust.Session{session(14*time.Millisecond, 1600*time.Millisecond), session(7*time.Millisecond, 500*time.Millisecond), session(19*time.Millisecond, time.Second)} {
		if diff := cmp.Diff(first, sessionStatus(first, s)); diff != "" {
			t.Errorf("it changes (-was +is):\n%s", diff)
		}
	}
	if got := sessionStatus(first, session(40*time.Millisecond, 3*time.Second)); got.RoundTrip.Duration != 40*time.Millisecond || got.ClockSkew.Duration != 3*time.Second {
		t.Errorf("what did change does not show: %+v", got)
	}
	if sessionStatus(first, trust.Session{}) != nil {
		t.Error("a session that is gone shows")
	}
	dialled := sessionStatus(nil, trust.Session{Up: &trust.SessionInfo{Since: now}})
	if dialled.ClockSkew != nil || dialled.RoundTrip != nil || dialled.CertificateNotAfter != nil {
		t.Errorf("what is not known shows: %+v", dialled)
	}
	for in, want := range map[time.Duration]time.Duration{
		time.Nanosecond: 10 * time.Microsecond, 94 * time.Microsecond: 90 * time.Microsecond, 96 * time.Microsecond: 100 * time.Microsecond,
		149 * time.Millisecond: 100 * time.Millisecond, 2 * time.Second: 2 * time.Second,
	} {
		if got := roundTrip(in); got != want {
			t.Errorf("%s rounds to %s, want %s", in, got, want)
		}
	}
}

func TestPeerEventsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	with := func(trusted, reason, message, connected string) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{}
		if trusted != "" {
			fc.Status.Conditions = append(fc.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionStatus(trusted), Reason: reason, Message: message})
		}
		if connected != "" {
			fc.Status.Conditions = append(fc.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionStatus(connected), Message: "m"})
		}
		return fc
	}
	for name, tc := range map[string]struct {
		before, after *v1alpha1.ForeignCluster
		want          []string
	}{
		"joined":                  {with("", "", "", ""), with("True", "Joined", "", "False"), []string{"Normal Joined"}},
		"joined after a while":    {with("False", "Joining", "", ""), with("True", "Joined", "", ""), []string{"Normal Joined"}},
		"approved":                {with("False", "AwaitingPeer", "", "False"), with("True", "Approved", "", "True"), []string{"Normal Approved", "Normal Connected"}},
		"introduced":              {with("", "", "", ""), with("False", "AwaitingApproval", "code 1", ""), []string{"Normal Introduced"}},
		"introduced again":        {with("False", "AwaitingApproval", "code 1", ""), with("False", "AwaitingApproval", "code 2", ""), []string{"Normal Introduced"}},
		"nothing new":             {with("False", "AwaitingApproval", "code 1", "False"), with("False", "AwaitingApproval", "code 1", "False"), nil},
		"denied, and so lost":     {with("True", "Joined", "", "True"), with("False", "Denied", "", "False"), []string{"Normal Denied", "Warning Lost"}},
		"revoked":                 {with("True", "Joined", "", "False"), with("False", store.RevokedByPeer, "", "False"), []string{"Warning Revoked"}},
		"lost":                    {with("True", "Joined", "", "True"), with("True", "Joined", "", "False"), []string{"Warning Lost"}},
		"a token that is refused": {with("False", "Joining", "", ""), with("False", "TokenExpired", "", ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, e := range peerEvents(tc.before, tc.after) {
				got = append(got, e.Type+" "+e.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHashIsThatOfTheTrustBundle(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	if got := trust.KnownHash(peertest.TrustedAs("milan", milan)); got != milan.Info.Bundle.Hash() || got == (peering.Hash{}) {
		t.Errorf("it is %s", got)
	}
	if got := trust.KnownHash(&v1alpha1.ForeignCluster{}); got != (peering.Hash{}) {
		t.Errorf("of nothing it is %s", got)
	}
}

// TestPeerIsNotReconciledFromAStaleCache lets the cache lag behind the last write.
func TestPeerIsNotReconciledFromAStaleCache(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan))
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
	reconcilePeer := func(what string, want int, again bool) {
		t.Helper()
		result, err := pt.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "milan"}})
		if err != nil {
			t.Fatal(err)
		}
		if writes != want || (result.RequeueAfter == removalPoll) != again {
			t.Errorf("%s: %d writes, want %d; requeued after %s", what, writes, want, result.RequeueAfter)
		}
	}
	pt.look(t, "milan") // it gets its finalizer and its status
	if writes != 1 {
		t.Fatalf("%d writes at first", writes)
	}
	stale := peertest.PeerCalled(t, pt.Client, "milan")
	pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now()}})
	reconcilePeer("a session", 2, false)
	lags = stale
	pt.trust.set(milan.ID, trust.Session{Why: "gone"})
	reconcilePeer("the session is gone, and the cache lags", 2, true)
	lags = nil
	reconcilePeer("it no longer does", 3, false)
	reconcilePeer("nothing changed", 3, false)
}
