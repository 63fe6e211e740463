package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/pake"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

var blueSecret = pake.Secret("the secret of the blue group")

// groupsTest is Groups with one group, and what came of its runs.
type groupsTest struct {
	*Groups
	clock    *peertest.Clock
	admitted []string
	failed   []string
}

func newGroups(t testing.TB, objects ...client.Object) *groupsTest {
	t.Helper()
	g := &groupsTest{clock: peertest.NewClock(now)}
	c := peertest.Client(t, objects...)
	g.Groups = &Groups{
		Self: peertest.OwnID, Cache: c, Forgotten: peertest.ForgottenAt(c, g.clock.Now), Now: g.clock.Now,
		Secret: func(_ context.Context, group string) (string, []byte, error) {
			switch group {
			case "blue":
				return "blue-policy", blueSecret, nil
			case "short":
				return "short-policy", []byte("too short"), nil
			}
			return "", nil, GroupUnknown(group)
		},
		Admit: func(_ context.Context, id peering.ClusterID, info identity.ClusterInfo, policy, group string) error {
			g.admitted = append(g.admitted, fmt.Sprintf("%s %s %s %s", id, info.Name, policy, group))
			return nil
		},
		Failed: func(group string, id peering.ClusterID, why string) {
			g.failed = append(g.failed, fmt.Sprintf("%s %s %s", group, id, why))
		},
	}
	return g
}

func channelOf(b byte) (c [identity.ChannelLen]byte) {
	c[0] = b
	return c
}

// begin has a cluster begin a run, as the initiator, over a channel.
func (g *groupsTest) begin(t testing.TB, o peertest.Other, from string, channel byte, secret pake.Secret) (run *pake.Initiator, share, confirmation []byte, err error) {
	t.Helper()
	c := channelOf(channel)
	run, err = pake.Initiate(secret, pake.GroupRun("blue", string(o.ID), string(peertest.OwnID), c[:]))
	if err != nil {
		t.Fatal(err)
	}
	share, confirmation, err = g.Prove(t.Context(), identity.Proof{ID: o.ID, Channel: c, From: from, Info: o.Info, Group: "blue", Share: run.Share()})
	return run, share, confirmation, err
}

// prove has a cluster make a whole run, as an honest one does.
func (g *groupsTest) prove(t testing.TB, o peertest.Other, from string, secret pake.Secret) error {
	t.Helper()
	run, share, confirmation, err := g.begin(t, o, from, 1, secret)
	if err != nil {
		return err
	}
	ours, err := run.Finish(share, confirmation)
	if err != nil && !errors.Is(err, pake.ErrMismatch) {
		t.Fatal(err)
	}
	return g.Confirm(t.Context(), o.ID, channelOf(1), ours)
}

func TestAClusterThatProvesAGroupsSecretIsAdmitted(t *testing.T) {
	g, o := newGroups(t), peertest.NewOther(t, "office")
	if err := g.prove(t, o, "192.0.2.1", blueSecret); err != nil {
		t.Fatal(err)
	}
	if want := []string{string(o.ID) + " office blue-policy blue"}; !slices.Equal(g.admitted, want) || len(g.failed) != 0 {
		t.Errorf("admitted %q, failed %q", g.admitted, g.failed)
	}
	// The run is over.
	if err := g.Confirm(t.Context(), o.ID, channelOf(1), make([]byte, pake.ConfirmationLen)); peering.ReasonOf(err) != peering.ReasonProofUnknown {
		t.Errorf("confirmed again: %v", err)
	}
	if len(g.admitted) != 1 {
		t.Errorf("admitted %q", g.admitted)
	}
}

func TestAClusterWithAnotherSecretIsNotAdmittedAndTheOwnerIsNotified(t *testing.T) {
	g, o := newGroups(t), peertest.NewOther(t, "office")
	other := pake.Secret("the secret of the green group")
	if err := g.prove(t, o, "192.0.2.1", other); peering.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
		t.Errorf("got %v", err)
	}
	if len(g.admitted) != 0 || len(g.failed) != 1 || g.failed[0] != "blue "+string(o.ID)+" "+whyMismatch {
		t.Errorf("admitted %q, failed %q", g.admitted, g.failed)
	}
	for _, s := range []pake.Secret{blueSecret, other} {
		if strings.Contains(fmt.Sprint(g.failed), string(s)) {
			t.Errorf("the owner is shown a secret: %q", g.failed)
		}
	}
}

func TestProofsAreRefusedWithAReason(t *testing.T) {
	o := peertest.NewOther(t, "office")
	named := func(decision v1alpha1.Decision) *v1alpha1.ForeignCluster {
		return &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(o.ID), Decision: decision}}
	}
	hint := named("")
	hint.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
	for name, tc := range map[string]struct {
		group   string
		known   *v1alpha1.ForeignCluster
		forgot  bool
		share   []byte
		want    peering.Reason
		refused bool
	}{
		"a group that no policy names":            {group: "red", want: peering.ReasonGroupUnknown},
		"a group whose secret cannot be used":     {group: "short", want: "", refused: true},
		"a cluster that was denied":               {group: "blue", known: named(v1alpha1.DecisionDenied), want: peering.ReasonTrustDenied},
		"a cluster that was forgotten":            {group: "blue", forgot: true, want: peering.ReasonTrustForgotten},
		"one that was forgotten and found again":  {group: "blue", forgot: true, known: hint, want: peering.ReasonTrustForgotten},
		"one that was forgotten, and named since": {group: "blue", forgot: true, known: named(v1alpha1.DecisionApproved)},
		"one that was found":                      {group: "blue", known: hint},
		"a share that is the identity":            {group: "blue", share: make([]byte, 32), want: peering.ReasonRequestInvalid},
		"a share that is not an element":          {group: "blue", share: bytes.Repeat([]byte{0xff}, 32), want: peering.ReasonRequestInvalid},
		"a share that is nothing":                 {group: "blue", share: []byte{}, want: peering.ReasonRequestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.known != nil {
				objects = append(objects, tc.known.DeepCopy())
			}
			g := newGroups(t, objects...)
			if tc.forgot {
				if err := g.Forgotten.Add(t.Context(), o.ID); err != nil {
					t.Fatal(err)
				}
			}
			c := channelOf(1)
			run, err := pake.Initiate(blueSecret, pake.GroupRun(tc.group, string(o.ID), string(peertest.OwnID), c[:]))
			if err != nil {
				t.Fatal(err)
			}
			share := run.Share()
			if tc.share != nil {
				share = tc.share
			}
			ours, _, err := g.Prove(t.Context(), identity.Proof{ID: o.ID, Channel: c, From: "192.0.2.1", Info: o.Info, Group: tc.group, Share: share})
			fine := tc.want == "" && !tc.refused
			if (err == nil) != fine || tc.want != "" && peering.ReasonOf(err) != tc.want || (ours != nil) != fine {
				t.Errorf("got %x, %v", ours, err)
			}
			if err := g.Confirm(t.Context(), o.ID, c, make([]byte, pake.ConfirmationLen)); !fine && peering.ReasonOf(err) != peering.ReasonProofUnknown {
				t.Errorf("there is a run all the same: %v", err)
			}
			if fine {
				return
			}
			// It was not a guess, and is not counted as one.
			if len(g.answered) != 0 {
				t.Errorf("counted %v", g.answered)
			}
			// Nor does this side begin.
			g.Call = func(context.Context, string, peering.ClusterID, string, []byte) (identity.ClusterInfo, error) {
				t.Error("called")
				return o.Info, nil
			}
			if tc.share == nil && !tc.refused {
				if err := g.Join(t.Context(), tc.group, "192.0.2.1:7443", o.ID); peering.ReasonOf(err) != tc.want {
					t.Errorf("join: %v", err)
				}
			}
		})
	}
}

func TestWithoutPoliciesEveryGroupIsUnknown(t *testing.T) {
	g, o := newGroups(t), peertest.NewOther(t, "office")
	g.Secret = nil
	if err := g.prove(t, o, "192.0.2.1", blueSecret); peering.ReasonOf(err) != peering.ReasonGroupUnknown {
		t.Errorf("prove: %v", err)
	}
	if err := g.Join(t.Context(), "blue", "192.0.2.1:7443", o.ID); peering.ReasonOf(err) != peering.ReasonGroupUnknown {
		t.Errorf("join: %v", err)
	}
}

func TestARunBelongsToOneConnectionAndHasOneTry(t *testing.T) {
	g, o := newGroups(t), peertest.NewOther(t, "office")
	confirm := func(what string, channel byte, c []byte, want peering.Reason) {
		t.Helper()
		if err := g.Confirm(t.Context(), o.ID, channelOf(channel), c); peering.ReasonOf(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	begin := func(channel byte) []byte {
		t.Helper()
		run, share, confirmation, err := g.begin(t, o, "192.0.2.1", channel, blueSecret)
		if err != nil {
			t.Fatal(err)
		}
		c, err := run.Finish(share, confirmation)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	confirm("without a run", 1, make([]byte, 64), peering.ReasonProofUnknown)

	right := begin(1)
	if err := g.Confirm(t.Context(), peertest.NewOther(t, "mallory").ID, channelOf(1), right); peering.ReasonOf(err) != peering.ReasonProofUnknown {
		t.Errorf("by another cluster: %v", err)
	}
	confirm("over another connection", 2, right, peering.ReasonProofUnknown)
	wrong := bytes.Clone(right)
	wrong[63] ^= 0x80
	confirm("with one bit changed", 1, wrong, peering.ReasonGroupSecretMismatch)
	confirm("rightly, after that", 1, right, peering.ReasonProofUnknown)

	first := begin(1)
	second := begin(1)
	confirm("the run that was replaced", 1, first, peering.ReasonGroupSecretMismatch)
	confirm("the run that replaced it, after that", 1, second, peering.ReasonProofUnknown)
	g.clock.Pass(time.Hour)
	begin(1)
	confirm("the run that replaced another", 1, begin(1), "")

	g.clock.Pass(time.Hour)
	late := begin(1)
	g.clock.Pass(ProofTimeout)
	confirm("a run that lapsed", 1, late, peering.ReasonProofUnknown)
	if len(g.admitted) != 1 {
		t.Errorf("admitted %q", g.admitted)
	}
	if last := g.failed[len(g.failed)-1]; !strings.Contains(last, whyUnconfirmed) {
		t.Errorf("of the one that expired the owner was notified of %q", last)
	}
}

func TestADecisionDuringARunCounts(t *testing.T) {
	g, o := newGroups(t), peertest.NewOther(t, "office")
	run, share, confirmation, err := g.begin(t, o, "192.0.2.1", 1, blueSecret)
	if err != nil {
		t.Fatal(err)
	}
	c, err := run.Finish(share, confirmation)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Forgotten.Add(t.Context(), o.ID); err != nil {
		t.Fatal(err)
	}
	if err := g.Confirm(t.Context(), o.ID, channelOf(1), c); peering.ReasonOf(err) != peering.ReasonTrustForgotten || len(g.admitted) != 0 {
		t.Errorf("got %v, admitted %q", err, g.admitted)
	}
}

// TestGuessesAreLimited counts the guesses of a client that guesses as fast as the limits allow,
// whether or not it ends its runs.
func TestGuessesAreLimited(t *testing.T) {
	wrong := pake.Secret("a word of the dictionary")
	office, others := peertest.NewOther(t, "office"), make([]peertest.Other, 40)
	for i := range others {
		others[i] = peertest.NewOther(t, "")
	}
	for name, tc := range map[string]struct {
		burst   int
		perHour int
		// guesser returns the cluster of the n-th guess, and its address.
		guesser func(n int) (peertest.Other, string)
	}{
		"one cluster from everywhere": {GuessBurstPerCluster, 6, func(n int) (peertest.Other, string) { return office, fmt.Sprint("address ", n) }},
		"one address as everybody":    {GuessBurstPerAddress, 12, func(n int) (peertest.Other, string) { return others[n%len(others)], "192.0.2.1" }},
		"everybody from everywhere":   {GuessBurst, 60, func(n int) (peertest.Other, string) { return others[n%len(others)], fmt.Sprint("address ", n) }},
	} {
		t.Run(name, func(t *testing.T) {
			g, n := newGroups(t), 0
			try := func() bool {
				o, from := tc.guesser(n)
				_, share, _, err := g.begin(t, o, from, 1, wrong)
				n++
				if err != nil {
					if e, ok := errors.AsType[*peering.Error](err); !ok || e.Reason != peering.ReasonRateLimited || e.RetryAfter <= 0 || share != nil {
						t.Fatalf("got %x, %v", share, err)
					}
					return false
				}
				if n%2 == 0 {
					if err := g.Confirm(t.Context(), o.ID, channelOf(1), nil); peering.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
						t.Fatal(err)
					}
				}
				return true
			}
			// At most one of its tries is waited for after it was refused.
			burst := 0
			for range 4 * GuessBurst {
				if try() {
					burst++
				}
			}
			if burst != tc.burst {
				t.Errorf("%d guesses at once, want %d", burst, tc.burst)
			}
			guesses := 0
			for range 2 * 3600 / 30 {
				g.clock.Pass(30 * time.Second)
				if try() {
					guesses++
				}
			}
			if guesses < 2*tc.perHour-1 || guesses > 2*tc.perHour {
				t.Errorf("%d guesses in two hours, want %d", guesses, 2*tc.perHour)
			}
			if len(g.pending) > GuessBurst || len(g.answered) > 4*GuessBurst {
				t.Errorf("%d runs and %d counts are kept", len(g.pending), len(g.answered))
			}
			if most := GroupNewsBurst + 2*60 + 1; len(g.failed) > most {
				t.Errorf("the owner was notified %d times", len(g.failed))
			}
			if len(g.admitted) != 0 {
				t.Error("a guess was right")
			}
			// A cluster that knows the secret is admitted, once an event expired.
			g.clock.Pass(GuessPausePerCluster)
			if err := g.prove(t, office, "203.0.113.1", blueSecret); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestProofsOfTheSecretDoNotCountAsGuesses has many clusters at one address prove it, more than may
// fail, and one of them again and again.
func TestProofsOfTheSecretDoNotCountAsGuesses(t *testing.T) {
	g, o := newGroups(t), peertest.NewOther(t, "office")
	for i := range 3 * GuessBurst {
		if err := g.prove(t, peertest.NewOther(t, "other"), "192.0.2.1", blueSecret); err != nil {
			t.Fatalf("cluster %d: %v", i, err)
		}
	}
	g.admitted = nil
	for i := range 2 * ProvenBurst {
		err := g.prove(t, o, "192.0.2.1", blueSecret)
		if i < ProvenBurst && err != nil || i >= ProvenBurst && peering.ReasonOf(err) != peering.ReasonRateLimited {
			t.Fatalf("time %d: %v", i, err)
		}
	}
	if len(g.admitted) != ProvenBurst {
		t.Errorf("admitted %d times", len(g.admitted))
	}
	g.clock.Pass(ProvenPause)
	if err := g.prove(t, o, "192.0.2.1", blueSecret); err != nil {
		t.Error(err)
	}
}

// TestAProofAddsNothingToTrustThatIsMutual has a cluster prove the secret, by either side's
// call, that is trusted, and that trusts this one or not yet.
func TestAProofAddsNothingToTrustThatIsMutual(t *testing.T) {
	for mutual, want := range map[metav1.ConditionStatus]int{metav1.ConditionTrue: 0, metav1.ConditionFalse: 2} {
		o := peertest.NewOther(t, "office")
		fc := peertest.TrustedAs("office", o)
		meta.SetStatusCondition(&fc.Status.Conditions, store.Condition(v1alpha1.ConditionTrusted, mutual, "Any", ""))
		g := newGroups(t, fc)
		g.Call = func(context.Context, string, peering.ClusterID, string, []byte) (identity.ClusterInfo, error) {
			return o.Info, nil
		}
		if err := errors.Join(g.prove(t, o, "192.0.2.1", blueSecret), g.Join(t.Context(), "blue", "192.0.2.1:7443", o.ID)); err != nil {
			t.Error(err)
		}
		if len(g.admitted) != want {
			t.Errorf("trust is mutual: %s, and it is admitted %d times, want %d", mutual, len(g.admitted), want)
		}
	}
}

func TestJoinAdmitsAClusterWithTheSecretAndLimitsOthers(t *testing.T) {
	g, o := newGroups(t), peertest.NewOther(t, "office")
	var answer error
	calls := 0
	g.Call = func(_ context.Context, endpoint string, id peering.ClusterID, group string, secret []byte) (identity.ClusterInfo, error) {
		calls++
		if endpoint != "192.0.2.1:7443" || id != o.ID || group != "blue" || !bytes.Equal(secret, blueSecret) {
			t.Errorf("called %s %s for %s", endpoint, id, group)
		}
		return o.Info, answer
	}
	join := func() error { return g.Join(t.Context(), "blue", "192.0.2.1:7443", o.ID) }
	for range 10 {
		if err := join(); err != nil {
			t.Fatal(err)
		}
	}
	if len(g.admitted) != 10 || g.admitted[0] != string(o.ID)+" office blue-policy blue" {
		t.Errorf("admitted %q", g.admitted)
	}
	// A cluster that does not respond, or has no such group, made no guess.
	for _, reason := range []peering.Reason{peering.ReasonPeerUnreachable, peering.ReasonGroupUnknown, peering.ReasonPeerIdentity} {
		for range 10 {
			answer = peering.Errorf(reason, "no")
			if err := join(); peering.ReasonOf(err) != reason {
				t.Fatalf("got %v, want %s", err, reason)
			}
		}
	}
	if len(g.failed) != 0 {
		t.Errorf("the owner was notified of %q", g.failed)
	}
	answer, calls = peering.Errorf(peering.ReasonGroupSecretMismatch, "no"), 0
	for range 10 {
		err := join()
		if calls <= GuessBurstPerCluster && peering.ReasonOf(err) != peering.ReasonGroupSecretMismatch && peering.ReasonOf(err) != peering.ReasonRateLimited {
			t.Fatal(err)
		}
	}
	if calls != GuessBurstPerCluster || len(g.admitted) != 10 || len(g.failed) != GroupNewsBurst {
		t.Errorf("called %d times, admitted %d, the owner was notified of %q", calls, len(g.admitted), g.failed)
	}
	// Guesses here do not count against the clusters that this one calls, and the other way round.
	if err := g.prove(t, o, "192.0.2.1", blueSecret); err != nil {
		t.Error(err)
	}
	g.clock.Pass(GuessPausePerCluster)
	answer = nil
	if err := join(); err != nil {
		t.Error(err)
	}
}

func TestHostKeyGroupsEndpointsByAddress(t *testing.T) {
	for endpoint, want := range map[string]string{
		"192.0.2.1:7443": "192.0.2.1", "[::ffff:192.0.2.1]:7443": "192.0.2.1",
		"[2001:db8::1]:7443": "2001:db8::/64", "[2001:db8::ffff:1%eth0]:1": "2001:db8::/64",
		"Office.Example.org.:7443": "office.example.org", "office": "office", "": "",
	} {
		if got := hostKey(endpoint); got != want {
			t.Errorf("%s counts as %s, want %s", endpoint, got, want)
		}
	}
}

// TestEachRunOfAKnownGroupIsReported: Begun is called for runs of a known group and not for those
// of an unknown one, however they end.
func TestEachRunOfAKnownGroupIsReported(t *testing.T) {
	t.Parallel()
	g, milan := newGroups(t), peertest.NewOther(t, "milan")
	var begun []string
	g.Begun = func(group string, id peering.ClusterID) { begun = append(begun, group+" "+string(id)) }
	if err := g.prove(t, milan, "192.0.2.1", pake.Secret("another secret of the blue group")); err == nil {
		t.Fatal("another secret is as good")
	}
	if _, _, err := g.Prove(t.Context(), identity.Proof{ID: milan.ID, Info: milan.Info, Group: "red"}); peering.ReasonOf(err) != peering.ReasonGroupUnknown {
		t.Fatal(err)
	}
	if want := []string{"blue " + string(milan.ID)}; !slices.Equal(begun, want) {
		t.Errorf("reported %q, want %q", begun, want)
	}
}
