package trust

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// trustsTest is a Trusts that reconciles when the test calls it.
type trustsTest struct {
	*Trusts
	strangers *peertest.Strangers
	clock     *peertest.Clock
	session   Session
	changes   int
	joined    []string // the endpoints of those that are to be dialled
}

func newTrustsTest(t testing.TB, objects ...client.Object) *trustsTest {
	t.Helper()
	tt := &trustsTest{strangers: &peertest.Strangers{}, clock: peertest.NewClock(now)}
	c := peertest.Client(t, objects...)
	tt.Trusts = &Trusts{
		Client: c, Direct: c, Namespace: "entente-system", Self: peertest.OwnID, Strangers: tt.strangers, Now: tt.clock.Now,
		OwnHash:        func() peering.Hash { return peering.Hash{1} },
		Session:        func(peering.ClusterID) Session { return tt.session },
		AttemptChanged: func(string) { tt.changes++ },
		Joined: func(id peering.ClusterID, info identity.ClusterInfo) {
			var kept v1alpha1.ForeignClusterList
			if err := c.List(t.Context(), &kept); err != nil || store.Known(kept.Items, id) == nil || store.Known(kept.Items, id).Spec.TrustBundle != info.PEM() {
				t.Errorf("cluster %s is to be dialled before it is kept: %v", id, err)
			}
			tt.joined = append(tt.joined, info.Endpoints...)
		},
	}
	return tt
}

// reconcile reconciles one object, and returns after how long it is requeued.
func (tt *trustsTest) reconcile(t testing.TB, name string) time.Duration {
	t.Helper()
	result, err := tt.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return result.RequeueAfter
}

func tokenBy(t testing.TB, issuer peering.ClusterID) (jointoken.Token, []byte) {
	t.Helper()
	token, err := jointoken.New(rand.Reader, issuer, []string{"192.0.2.9:7443"}, now.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	text, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return token, []byte(text)
}

func joiner(name string) *v1alpha1.ForeignCluster {
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	fc.Spec.JoinToken = &v1alpha1.SecretKey{Name: "milan-token"}
	return fc
}

func tokenSecret(text []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "milan-token"}, Data: map[string][]byte{"token": text}}
}

func TestAManifestJoinsWhenItsSecretComes(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	token, text := tokenBy(t, milan.ID)
	tt := newTrustsTest(t, joiner("milan"))
	tt.strangers.Redeem = func(got jointoken.Token) (identity.ClusterInfo, error) {
		if got.ID != token.ID || got.Secret != token.Secret {
			t.Errorf("token %s is redeemed", got)
		}
		return milan.Info, nil
	}
	var waits []time.Duration
	for range 7 {
		wait := tt.reconcile(t, "milan")
		waits = append(waits, wait)
		if again := tt.reconcile(t, "milan"); again != wait {
			t.Errorf("reconciled in between it waits %s, want %s", again, wait)
		}
		tt.clock.Pass(wait)
	}
	if diff := cmp.Diff([]time.Duration{2e9, 4e9, 8e9, 16e9, 30e9, 30e9, 30e9}, waits); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
	if got := tt.Attempt(peertest.PeerCalled(t, tt.Client, "milan")); got.Reason != "TokenMissing" || !strings.Contains(got.Message, "entente-system/milan-token") || tt.changes != 1 {
		t.Errorf("its condition is %+v, after %d changes", got, tt.changes)
	}
	if err := tt.Client.Create(t.Context(), tokenSecret(text)); err != nil {
		t.Fatal(err)
	}
	tt.reconcile(t, "milan")
	fc := peertest.PeerCalled(t, tt.Client, "milan")
	if fc.Spec.ClusterID != string(milan.ID) || fc.Spec.TrustBundle != milan.Info.PEM() || fc.Spec.Endpoints[0] != "192.0.2.1:7443" ||
		store.FoundBy(fc) != v1alpha1.SourceToken || fc.Spec.JoinToken == nil {
		t.Errorf("it joined as %+v %+v", fc.Spec, fc.Status)
	}
	if !slices.Equal(tt.joined, fc.Spec.Endpoints) {
		t.Errorf("it is dialled at once at %q, want %q", tt.joined, fc.Spec.Endpoints)
	}
	if fc.Labels[v1alpha1.LabelPeer] != string(milan.ID) || !slices.Contains(fc.Finalizers, v1alpha1.Finalizer) {
		t.Errorf("it needs another write for its finalizer: %+v", fc.ObjectMeta)
	}
	if got := tt.Attempt(fc); got.Reason != "" {
		t.Errorf("its condition is %+v", got)
	}
	// Neither the token nor its Secret is used again.
	if err := tt.Client.Delete(t.Context(), tokenSecret(text)); err != nil {
		t.Fatal(err)
	}
	tt.clock.Pass(time.Hour)
	tt.reconcile(t, "milan")
	if tt.strangers.Joins != 1 || tt.Attempt(fc).Reason != "" {
		t.Errorf("it was redeemed %d times, and its condition is %+v", tt.strangers.Joins, tt.Attempt(fc))
	}
}

func TestSecretThatChangesIsReadWithoutAPause(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	_, text := tokenBy(t, milan.ID)
	elsewhere := joiner("rome")
	elsewhere.Spec.JoinToken.Name = "rome-token"
	tt := newTrustsTest(t, joiner("milan"), elsewhere, &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo", UID: "uid-oslo"}})
	tt.strangers.Redeem = func(jointoken.Token) (identity.ClusterInfo, error) {
		return identity.ClusterInfo{}, peering.Errorf(peering.ReasonTokenExpired, "the token expired at noon")
	}
	for range 5 {
		tt.clock.Pass(tt.reconcile(t, "milan")) // the pause grows
	}
	tt.reconcile(t, "milan")
	if err := tt.Client.Create(t.Context(), tokenSecret(text)); err != nil {
		t.Fatal(err)
	}
	tt.reconcile(t, "milan")
	if got := tt.Attempt(joiner("milan")); got.Reason != "TokenExpired" || tt.strangers.Joins != 1 {
		t.Errorf("with a Secret its condition is %+v, tried %d times", got, tt.strangers.Joins)
	}
	for range 3 {
		tt.reconcile(t, "milan") // a Secret that was only touched
	}
	if tt.strangers.Joins != 1 {
		t.Errorf("the same token was tried %d times", tt.strangers.Joins)
	}
	if err := tt.Client.Delete(t.Context(), tokenSecret(text)); err != nil {
		t.Fatal(err)
	}
	tt.reconcile(t, "milan")
	if got := tt.Attempt(joiner("milan")); got.Reason != "TokenMissing" {
		t.Errorf("without the Secret its condition is %+v", got)
	}
	woken := func(namespace, name string) []ctrl.Request {
		return tt.waitingFor(t.Context(), &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	if got := woken("entente-system", "milan-token"); len(got) != 1 || got[0].Name != "milan" {
		t.Errorf("its Secret wakes %v", got)
	}
	if got := slices.Concat(woken("elsewhere", "milan-token"), woken("entente-system", "other")); len(got) != 0 {
		t.Errorf("other Secrets wake %v", got)
	}
}

func TestRefusedTokenIsRetriedOnlyWhenItChanged(t *testing.T) {
	t.Parallel()
	milan, other := peertest.NewOther(t, "milan"), peertest.NewOther(t, "other")
	_, good := tokenBy(t, milan.ID)
	_, own := tokenBy(t, peertest.OwnID)
	_, others := tokenBy(t, other.ID)
	refuse := func(reason peering.Reason) func(jointoken.Token) (identity.ClusterInfo, error) {
		return func(jointoken.Token) (identity.ClusterInfo, error) {
			return identity.ClusterInfo{}, peering.Errorf(reason, "the token expired at noon")
		}
	}
	for name, tc := range map[string]struct {
		text   []byte
		join   func(jointoken.Token) (identity.ClusterInfo, error)
		reason string
		says   string
		joins  int
	}{
		"expired":                                {good, refuse(peering.ReasonTokenExpired), "TokenExpired", "put a new one in the Secret", 1},
		"used by another":                        {good, refuse(peering.ReasonTokenInvalid), "TokenInvalid", "put a new one in the Secret", 1},
		"not a token":                            {[]byte("hello"), nil, "TokenMalformed", "cannot be read", 0},
		"cut off":                                {good[:40], nil, "TokenMalformed", "cut off", 0},
		"this cluster's own":                     {own, nil, "PeerIsSelf", "other one", 0},
		"of another cluster than spec.clusterID": {others, nil, "TokenOfAnotherCluster", string(other.ID), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := joiner("milan")
			fc.Spec.ClusterID = string(milan.ID)
			tt := newTrustsTest(t, fc, tokenSecret(tc.text))
			tt.strangers.Redeem = tc.join
			var wait time.Duration
			for range 10 {
				tt.clock.Pass(wait)
				wait = tt.reconcile(t, "milan")
			}
			got := tt.Attempt(fc)
			if got.Reason != tc.reason || !strings.Contains(got.Message, tc.says) || !strings.Contains(got.Message, "Secret entente-system/milan-token") {
				t.Errorf("its condition is %+v, want %s and %q", got, tc.reason, tc.says)
			}
			if strings.Contains(got.Message, string(tc.text)) {
				t.Errorf("the token is in %q", got.Message)
			}
			if tt.strangers.Joins != tc.joins {
				t.Errorf("it was tried %d times, want %d", tt.strangers.Joins, tc.joins)
			}
			_, fresh := tokenBy(t, milan.ID)
			if err := tt.Client.Update(t.Context(), tokenSecret(fresh)); err != nil {
				t.Fatal(err)
			}
			tt.strangers.Redeem = func(jointoken.Token) (identity.ClusterInfo, error) { return milan.Info, nil }
			tt.reconcile(t, "milan") // at once: an administrator who mended it does not wait
			if got := peertest.PeerCalled(t, tt.Client, "milan").Spec.TrustBundle; got == "" || tt.strangers.Joins != tc.joins+1 {
				t.Errorf("with another token it was tried %d times, trusts %q", tt.strangers.Joins-tc.joins, got)
			}
		})
	}
}

func TestErrorsThatAreNotTheTokensAreRetried(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	_, text := tokenBy(t, milan.ID)
	tt := newTrustsTest(t, joiner("milan"), tokenSecret(text))
	for _, err := range []error{
		peering.Errorf(peering.ReasonPeerUnreachable, "cannot connect to 192.0.2.9:7443"), peering.Errorf(peering.ReasonPeerIdentity, "another answers"),
		errors.New("the clock stopped"), peering.Errorf(peering.ReasonStopping, "soon"),
	} {
		tt.strangers.Redeem = func(jointoken.Token) (identity.ClusterInfo, error) { return identity.ClusterInfo{}, err }
		tt.clock.Pass(tt.reconcile(t, "milan"))
		if got := tt.Attempt(joiner("milan")); got.Reason == "" || got.Message != err.Error() {
			t.Errorf("its condition is %+v for %v", got, err)
		}
	}
	tt.strangers.Redeem = func(jointoken.Token) (identity.ClusterInfo, error) { return milan.Info, nil }
	tt.reconcile(t, "milan")
	if fc := peertest.PeerCalled(t, tt.Client, "milan"); fc.Spec.TrustBundle == "" || tt.strangers.Joins != 5 {
		t.Errorf("after %d tries: %+v", tt.strangers.Joins, fc.Spec)
	}
}

func TestTokenOfATrustedClusterIsNotRedeemed(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	_, text := tokenBy(t, milan.ID)
	known := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
	known.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(milan.ID), TrustBundle: milan.Info.PEM()}
	tt := newTrustsTest(t, joiner("milan"), known, tokenSecret(text))
	tt.reconcile(t, "milan")
	if got := tt.Attempt(joiner("milan")); got.Reason != ReasonDuplicate || !strings.Contains(got.Message, "as m") || tt.strangers.Joins != 0 {
		t.Errorf("its condition is %+v after %d tries", got, tt.strangers.Joins)
	}
	second := joiner("second")
	second.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(milan.ID), Decision: v1alpha1.DecisionApproved, Endpoints: []string{"192.0.2.1:1"}}
	if err := tt.Client.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	tt.reconcile(t, "second")
	if got := tt.Attempt(second); got.Reason != ReasonDuplicate || tt.strangers.Intros != 0 {
		t.Errorf("the condition of a second one is %+v after %d tries", got, tt.strangers.Intros)
	}
}

func TestNamedClusterIsIntroducedToAndTrusted(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	tt := newTrustsTest(t, peertest.ApprovedAs("m", milan, "192.0.2.1:1", "192.0.2.2:1"))
	tt.strangers.Answer = func(endpoint string, id peering.ClusterID) (identity.ClusterInfo, string, error) {
		if id != milan.ID {
			t.Errorf("it is introduced to %s", id)
		}
		if endpoint == "192.0.2.1:1" {
			return identity.ClusterInfo{}, "", peering.Errorf(peering.ReasonPeerUnreachable, "cannot connect to %s", endpoint)
		}
		return milan.Info, "042917", nil
	}
	tt.reconcile(t, "m")
	fc := peertest.PeerCalled(t, tt.Client, "m")
	if fc.Spec.TrustBundle != milan.Info.PEM() || len(fc.Spec.Endpoints) != 2 || fc.Status.Introduction.Code != "042917" {
		t.Errorf("it leaves %+v %+v", fc.Spec, fc.Status)
	}
	// The other side has not decided: it is asked again when what it keeps lapses.
	tt.session = Session{Untrusted: true}
	if wait := tt.reconcile(t, "m"); wait <= 0 || wait > introduceAgain || tt.strangers.Intros != 2 {
		t.Errorf("it waits %s after %d tries", wait, tt.strangers.Intros)
	}
	tt.clock.Pass(introduceAgain)
	tt.reconcile(t, "m")
	if tt.strangers.Intros != 4 {
		t.Errorf("%d tries", tt.strangers.Intros)
	}
	tt.session = Session{Up: &SessionInfo{Since: tt.clock.Now().Add(time.Second)}}
	tt.reconcile(t, "m")
	if fc := peertest.PeerCalled(t, tt.Client, "m"); fc.Status.Introduction != nil || fc.Spec.TrustBundle == "" {
		t.Errorf("once trust was seen to be mutual: %+v %+v", fc.Spec, fc.Status)
	}
}

// A call takes a while, and an administrator may forget the cluster meanwhile.
func TestIntroductionToAClusterForgottenMeanwhileLeavesNothing(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	tt := newTrustsTest(t, peertest.ApprovedAs("m", milan, "192.0.2.1:1"))
	tt.strangers.Answer = func(string, peering.ClusterID) (identity.ClusterInfo, string, error) {
		if err := tt.Client.DeleteAllOf(t.Context(), &v1alpha1.ForeignCluster{}); err != nil {
			t.Error(err)
		}
		return milan.Info, "042917", nil
	}
	tt.reconcile(t, "m")
	if left := peertest.PeersOf(t, tt.Client); len(left) != 0 {
		t.Errorf("it left %+v", left)
	}
}

// A peer that a policy trusts announces its own endpoints, so they are only dialled where that is
// allowed.
func TestPolicyPeerIsDialledOnlyAtAllowedEndpoints(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	const metadata, place = "169.254.169.254:80", "192.0.2.2:1"
	for name, edit := range map[string]func(*v1alpha1.ForeignCluster){
		metadata + " " + place: func(*v1alpha1.ForeignCluster) {}, // a person's
		place:                  func(fc *v1alpha1.ForeignCluster) { store.ByPolicy(fc, "home", "FirstUse") },
	} {
		fc := peertest.ApprovedAs("m", milan, metadata, place)
		fc.Labels, fc.Spec.TrustBundle = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}, milan.Info.PEM()
		edit(fc)
		tt := newTrustsTest(t, fc)
		tt.session = Session{Untrusted: true}
		tt.MayDial = func(endpoint string) bool { return endpoint == place }
		var dialled []string
		tt.strangers.Answer = func(endpoint string, _ peering.ClusterID) (identity.ClusterInfo, string, error) {
			dialled = append(dialled, endpoint)
			return identity.ClusterInfo{}, "", peering.Errorf(peering.ReasonPeerUnreachable, "cannot connect to %s", endpoint)
		}
		tt.reconcile(t, "m")
		if got := strings.Join(dialled, " "); got != name {
			t.Errorf("it was called at %q, want %q", got, name)
		}
	}
}

func TestRefusalOfANamedClusterIsReported(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for name, tc := range map[string]struct {
		err    error
		reason string
		says   []string
		wait   time.Duration
	}{
		"no cluster responds": {peering.Errorf(peering.ReasonPeerUnreachable, "cannot connect"), "PeerUnreachable", []string{"cannot connect; cannot connect"}, RetryMin},
		"another answers":     {peering.Errorf(peering.ReasonPeerIdentity, "another"), "PeerIdentityMismatch", []string{"another"}, RetryMin},
		"it was denied":       {peering.Errorf(peering.ReasonTrustDenied, "no"), "DeniedByPeer", []string{"administrator of the peer", "token"}, deniedAgain},
		"it was forgotten":    {peering.Errorf(peering.ReasonTrustForgotten, "no"), ReasonForgottenByPeer, []string{"administrator there forgot", "--forget", "new token"}, RetryMin},
		"too many wait":       {&peering.Error{Reason: peering.ReasonIntroductionsPending, Message: "full", RetryAfter: 5 * time.Minute}, "IntroductionsPending", []string{"full"}, 5 * time.Minute},
		"it is overloaded":    {&peering.Error{Reason: peering.ReasonRateLimited, Message: "slow"}, "RateLimited", []string{"slow"}, RetryMax},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := peertest.ApprovedAs("m", milan, "192.0.2.1:1", "192.0.2.2:1")
			tt := newTrustsTest(t, fc)
			tt.strangers.Answer = func(string, peering.ClusterID) (identity.ClusterInfo, string, error) {
				return identity.ClusterInfo{}, "", tc.err
			}
			if wait := tt.reconcile(t, "m"); wait != tc.wait {
				t.Errorf("it waits %s, want %s", wait, tc.wait)
			}
			got := tt.Attempt(fc)
			for _, want := range tc.says {
				if got.Reason != tc.reason || !strings.Contains(got.Message, want) {
					t.Errorf("its condition is %+v, want %s and %q", got, tc.reason, want)
				}
			}
			if peertest.PeerCalled(t, tt.Client, "m").Spec.TrustBundle != "" {
				t.Error("it is trusted")
			}
		})
	}
}

func TestADecisionDuringACallIsKept(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	tt := newTrustsTest(t, peertest.ApprovedAs("m", milan, "192.0.2.1:1"))
	tt.strangers.Answer = func(string, peering.ClusterID) (identity.ClusterInfo, string, error) {
		fc := peertest.PeerCalled(t, tt.Client, "m")
		fc.Spec.Decision = v1alpha1.DecisionDenied
		return milan.Info, "1", tt.Client.Update(t.Context(), fc)
	}
	tt.reconcile(t, "m")
	if fc := peertest.PeerCalled(t, tt.Client, "m"); fc.Spec.TrustBundle != "" {
		t.Error("a cluster that was denied during the call is trusted")
	}
}

func TestApprovedIntroductionIsTrustedIfItProvesTheID(t *testing.T) {
	t.Parallel()
	milan, mallory := peertest.NewOther(t, "milan"), peertest.NewOther(t, "mallory")
	for name, tc := range map[string]struct {
		bundle string
		want   bool
	}{
		"its own roots":     {milan.Info.PEM(), true},
		"another's roots":   {mallory.Info.PEM(), false},
		"no roots":          {"", false},
		"not roots at all":  {"hello", false},
		"both one's roots,": {milan.Info.PEM() + mallory.Info.PEM(), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := peertest.ApprovedAs("m", milan)
			fc.Status.Introduction = &v1alpha1.Introduction{Time: metav1.NewTime(now), Code: "042917", Bundle: tc.bundle}
			tt := newTrustsTest(t, fc)
			tt.reconcile(t, "m")
			got := peertest.PeerCalled(t, tt.Client, "m")
			if (got.Spec.TrustBundle != "") != tc.want || got.Status.Introduction == nil {
				t.Errorf("it leaves %+v", got.Spec)
			}
			if attempt := tt.Attempt(fc); (attempt.Reason == "") != tc.want {
				t.Errorf("its condition is %+v", attempt)
			}
		})
	}
}

func TestAnIntroductionExpiresWithoutADecision(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	old := &v1alpha1.Introduction{Time: metav1.NewTime(now.Add(-IntroductionLife)), Code: "042917", Bundle: milan.Info.PEM()}
	introduced := func(edit func(*v1alpha1.ForeignCluster)) *v1alpha1.ForeignCluster {
		fc := peertest.ApprovedAs("m", milan)
		fc.Spec.Decision = ""
		fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
		fc.Status.Source, fc.Status.Introduction = v1alpha1.SourceIntroduction, old.DeepCopy()
		fc.CreationTimestamp = old.Time
		if edit != nil {
			edit(fc)
		}
		return fc
	}
	for name, tc := range map[string]struct {
		fc         *v1alpha1.ForeignCluster
		gone       bool
		introduced bool
	}{
		"no decision": {fc: introduced(nil), gone: true},
		"no decision, and the agent died before it wrote the condition": {fc: introduced(func(fc *v1alpha1.ForeignCluster) {
			fc.Status = v1alpha1.ForeignClusterStatus{}
		}), gone: true},
		"it is not so old": {fc: introduced(func(fc *v1alpha1.ForeignCluster) {
			fc.Status.Introduction.Time = metav1.NewTime(now.Add(time.Second - IntroductionLife))
		}), introduced: true},
		"it was denied":   {fc: introduced(func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied }), introduced: true},
		"it was approved": {fc: introduced(func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionApproved }), introduced: true},
		"it is trusted":   {fc: introduced(func(fc *v1alpha1.ForeignCluster) { fc.Spec.TrustBundle = milan.Info.PEM() }), introduced: true},
		"an administrator wrote the object, so that stays": {fc: introduced(func(fc *v1alpha1.ForeignCluster) {
			fc.Labels, fc.Status.Source = nil, v1alpha1.SourceManual
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt := newTrustsTest(t, tc.fc)
			tt.reconcile(t, "m")
			left := peertest.PeersOf(t, tt.Client)
			if (len(left) == 0) != tc.gone {
				t.Fatalf("%d are left", len(left))
			}
			if !tc.gone && (left[0].Status.Introduction != nil) != tc.introduced {
				t.Errorf("the introduction is %+v", left[0].Status.Introduction)
			}
		})
	}
}

func TestAnIntroductionMovesToTheObjectThatAnAdministratorWrote(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	tt := newTrustsTest(t)
	i := &Introductions{Client: tt.Client, Cache: tt.Client, Forgotten: peertest.ForgottenAt(tt.Client, tt.clock.Now), Self: peertest.OwnID, Rand: rand.Reader, Now: tt.clock.Now}
	if _, err := peertest.IntroduceAs(t, i, milan, "x", false); err != nil {
		t.Fatal(err)
	}
	if err := tt.Client.Create(t.Context(), peertest.ApprovedAs("office", milan)); err != nil {
		t.Fatal(err)
	}
	tt.reconcile(t, "milan")
	tt.reconcile(t, "office")
	left := peertest.PeersOf(t, tt.Client)
	if len(left) != 1 || left[0].Name != "office" || left[0].Spec.TrustBundle != milan.Info.PEM() {
		t.Errorf("there are %+v", left)
	}
}

func TestPeerIsSentTheRootsThatItLacks(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.ApprovedAs("m", milan)
	fc.Spec.TrustBundle = milan.Info.PEM()
	tt := newTrustsTest(t, fc)
	for _, tc := range []struct {
		hash    string
		session Session
		pass    time.Duration
		updates int
	}{
		{"", Session{Up: &SessionInfo{}}, 0, 0},
		{peering.Hash{1}.String(), Session{Up: &SessionInfo{}}, 0, 0},
		{peering.Hash{2}.String(), Session{}, 0, 0},
		{peering.Hash{2}.String(), Session{Up: &SessionInfo{}}, 0, 1},
		{peering.Hash{2}.String(), Session{Up: &SessionInfo{}}, updateAgain / 2, 1},
		{peering.Hash{2}.String(), Session{Up: &SessionInfo{}}, updateAgain / 2, 2},
		{peering.Hash{1}.String(), Session{Up: &SessionInfo{}}, time.Hour, 2},
	} {
		tt.strangers.Updating = errors.New("the peer refuses")
		got := peertest.PeerCalled(t, tt.Client, "m")
		got.Status.BundleHash = tc.hash
		if err := tt.Client.Status().Update(t.Context(), got); err != nil {
			t.Fatal(err)
		}
		tt.session = tc.session
		tt.clock.Pass(tc.pass)
		tt.reconcile(t, "m")
		if tt.strangers.Updates != tc.updates {
			t.Errorf("with hash %q it was sent the roots %d times, want %d", tc.hash, tt.strangers.Updates, tc.updates)
		}
	}
}

func TestTokenInAManifestEndsARevocation(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	_, text := tokenBy(t, milan.ID)
	fc := joiner("milan")
	fc.Spec.ClusterID, fc.Spec.TrustBundle = string(milan.ID), milan.Info.PEM()
	tt := newTrustsTest(t, fc, tokenSecret(text))
	tt.strangers.Redeem = func(jointoken.Token) (identity.ClusterInfo, error) { return milan.Info, nil }
	tt.reconcile(t, "milan")
	if tt.strangers.Joins != 0 {
		t.Fatal("a token was redeemed for a peer that is trusted")
	}
	if _, err := store.RecordRevoked(t.Context(), tt.Client, milan.ID, "", now); err != nil {
		t.Fatal(err)
	}
	tt.strangers.Redeem = func(jointoken.Token) (identity.ClusterInfo, error) {
		return identity.ClusterInfo{}, peering.Errorf(peering.ReasonTokenInvalid, "used")
	}
	for range 3 {
		tt.clock.Pass(tt.reconcile(t, "milan"))
	}
	if !store.Revoked(peertest.PeerCalled(t, tt.Client, "milan")) || tt.strangers.Joins != 1 {
		t.Errorf("with the old token, tried %d times: %+v", tt.strangers.Joins, peertest.PeerCalled(t, tt.Client, "milan").Status)
	}
	_, fresh := tokenBy(t, milan.ID)
	if err := tt.Client.Update(t.Context(), tokenSecret(fresh)); err != nil {
		t.Fatal(err)
	}
	tt.strangers.Redeem = func(jointoken.Token) (identity.ClusterInfo, error) { return milan.Info, nil }
	tt.reconcile(t, "milan")
	if got := peertest.PeerCalled(t, tt.Client, "milan"); !meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionTrusted) {
		t.Errorf("with a new token: %+v", got.Status)
	}
}

func TestNextStepFollowsTheObjectAndTheSession(t *testing.T) {
	t.Parallel()
	intro := func(age time.Duration) *v1alpha1.Introduction {
		return &v1alpha1.Introduction{Time: metav1.NewTime(now.Add(-age)), Bundle: "PEM"}
	}
	up := Session{Up: &SessionInfo{Since: now}}
	for name, tc := range map[string]struct {
		edit    func(*v1alpha1.ForeignCluster)
		session Session
		want    step
		again   bool
	}{
		"known only": {want: stepNothing},
		"denied, whatever else": {edit: func(fc *v1alpha1.ForeignCluster) {
			*fc = *peertest.ApprovedAs("m", peertest.Other{}, "e")
			fc.Spec.Decision = v1alpha1.DecisionDenied
			fc.Spec.JoinToken = &v1alpha1.SecretKey{}
			fc.Status.Introduction = intro(0)
		}, want: stepNothing},
		"a token": {edit: func(fc *v1alpha1.ForeignCluster) { fc.Spec.JoinToken = &v1alpha1.SecretKey{} }, want: stepJoin},
		"a token and trust": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.JoinToken = &v1alpha1.SecretKey{}
			fc.Spec.TrustBundle = "PEM"
		}, want: stepNothing},
		"approved, nowhere to dial": {edit: func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionApproved }, want: stepNothing},
		"approved": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.Decision, fc.Spec.Endpoints = v1alpha1.DecisionApproved, []string{"e"}
		}, want: stepIntroduce},
		"approved after an introduction": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.Decision, fc.Status.Introduction = v1alpha1.DecisionApproved, intro(24*time.Hour)
		}, want: stepTrust},
		"introduced, undecided": {edit: func(fc *v1alpha1.ForeignCluster) { fc.Status.Introduction = intro(time.Minute) }, want: stepNothing, again: true},
		"introduced long ago":   {edit: func(fc *v1alpha1.ForeignCluster) { fc.Status.Introduction = intro(IntroductionLife) }, want: stepLapse},
		"trusted here, not there, by name": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.Decision, fc.Spec.Endpoints, fc.Spec.TrustBundle = v1alpha1.DecisionApproved, []string{"e"}, "PEM"
		}, session: Session{Untrusted: true}, want: stepIntroduce},
		"trusted here, forgotten there": {edit: func(fc *v1alpha1.ForeignCluster) { fc.Spec.Endpoints, fc.Spec.TrustBundle = []string{"e"}, "PEM" }, session: Session{Untrusted: true}, want: stepNothing},
		"mutual, with an old introduction": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.TrustBundle, fc.Status.Introduction = "PEM", intro(time.Minute)
		}, session: up, want: stepDropIntroduction},
		"mutual, introduced just after the session came up": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.TrustBundle, fc.Status.Introduction = "PEM", intro(time.Second)
		}, session: Session{Up: &SessionInfo{Since: now.Add(-2 * time.Second)}}, want: stepNothing, again: true},
		"mutual since before the introduction": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.TrustBundle, fc.Status.Introduction = "PEM", intro(introductionKept)
		}, session: Session{Up: &SessionInfo{Since: now.Add(-time.Hour)}}, want: stepDropIntroduction},
		"mutual, with other roots there": {edit: func(fc *v1alpha1.ForeignCluster) { fc.Spec.TrustBundle, fc.Status.BundleHash = "PEM", "00" }, session: up, want: stepUpdate},
		"mutual": {edit: func(fc *v1alpha1.ForeignCluster) {
			fc.Spec.TrustBundle, fc.Status.BundleHash = "PEM", peering.Hash{}.String()
		}, session: up, want: stepNothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}}
			fc.Spec.ClusterID = string(peertest.OwnID)
			if tc.edit != nil {
				tc.edit(fc)
			}
			got, when := nextStep(fc, tc.session, peering.Hash{}, now)
			if got != tc.want || (when > 0) != tc.again {
				t.Errorf("step %d in %s, want %d", got, when, tc.want)
			}
		})
	}
}

func TestOutcomesHaveAReasonAndAMessage(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		errors.New("x"), fmt.Errorf("deep: %w", peering.Errorf(peering.ReasonPeerUnreachable, "x")), peering.Errorf(peering.ReasonRateLimited, "x"), notYet("X", "x"),
	} {
		if attempt, _ := outcome(err); attempt.Reason == "" || attempt.Message == "" {
			t.Errorf("the outcome of %v is %+v", err, attempt)
		}
	}
}

func TestAFreshPeerHasNoDecisionOrState(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status v1alpha1.ForeignClusterStatus
		want   bool
	}{
		"no decision or state": {want: true},
		"it was written down":  {v1alpha1.ForeignClusterStatus{Source: v1alpha1.SourceManual, Conditions: []metav1.Condition{store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, "TokenMissing", "")}}, true},
		"it joined before":     {v1alpha1.ForeignClusterStatus{Source: v1alpha1.SourceToken}, true},
		"it was introduced":    {v1alpha1.ForeignClusterStatus{Source: v1alpha1.SourceIntroduction}, false},
		"it waits":             {v1alpha1.ForeignClusterStatus{Introduction: &v1alpha1.Introduction{}}, false},
		"it revoked trust":     {v1alpha1.ForeignClusterStatus{Conditions: []metav1.Condition{store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, store.RevokedByPeer, "")}}, false},
	} {
		if got := fresh(&v1alpha1.ForeignCluster{Status: tc.status}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestWrittenClusterHasWhatDiscoveryFoundOfIt: an administrator writes a cluster that was a hint.
func TestWrittenClusterHasWhatDiscoveryFoundOfIt(t *testing.T) {
	t.Parallel()
	hint := peertest.HintOf("c1-x", peertest.LAN(1, "eth0"))
	hint.UID = "hint"
	written := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "mine", UID: "mine"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: hint.Spec.ClusterID}}
	tt := newTrustsTest(t, &hint, written)
	tt.reconcile(t, "c1-x")
	if got := peertest.PeersOf(t, tt.Client); len(got) != 1 || got[0].Name != "mine" || len(got[0].Status.Sightings) != 1 {
		t.Errorf("there are %+v", got)
	}
}

func TestOnlyFirstTrustIsRequested(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for _, trusted := range []bool{false, true} {
		fc := peertest.ApprovedAs("m", milan, "192.0.2.1:1")
		if trusted {
			fc.Spec.TrustBundle = milan.Info.PEM()
		}
		tt := newTrustsTest(t, fc)
		tt.session = Session{Untrusted: true}
		tt.strangers.Answer = func(string, peering.ClusterID) (identity.ClusterInfo, string, error) {
			return milan.Info, "042917", nil
		}
		tt.reconcile(t, "m")
		if tt.strangers.Intros != 1 || tt.strangers.Requested == trusted {
			t.Errorf("trusted %t: introduced %d times, requested %t", trusted, tt.strangers.Intros, tt.strangers.Requested)
		}
	}
}
