package trust

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/introduce"
)

func newIntroductions(t testing.TB, objects ...client.Object) (*Introductions, *peertest.Clock) {
	t.Helper()
	clock := peertest.NewClock(now)
	c := peertest.Client(t, objects...)
	return &Introductions{Client: c, Cache: c, Self: peertest.OwnID, Forgotten: peertest.ForgottenAt(c, clock.Now), Rand: rand.Reader, Now: clock.Now}, clock
}

func TestAnIntroductionShowsTheCallersCode(t *testing.T) {
	t.Parallel()
	r, _ := newIntroductions(t)
	milan := peertest.NewOther(t, "milan")
	code, err := peertest.IntroduceAs(t, r, milan, "x", false)
	if err != nil {
		t.Fatal(err)
	}
	fc := peertest.PeerCalled(t, r.Client, "milan")
	if intro := fc.Status.Introduction; intro == nil || intro.Code != code || intro.Name != "milan" || fc.Spec.TrustBundle != "" || fc.Status.Source != v1alpha1.SourceIntroduction {
		t.Errorf("it leaves %+v %+v, the caller's code is %s", fc.Spec, fc.Status, code)
	}
	again, err := peertest.IntroduceAs(t, r, milan, "x", false)
	if err != nil {
		t.Fatal(err)
	}
	if got := peertest.PeerCalled(t, r.Client, "milan").Status.Introduction.Code; got != again || len(peertest.PeersOf(t, r.Client)) != 1 {
		t.Errorf("introduced again it shows %s, the caller %s; there are %d peers", got, again, len(peertest.PeersOf(t, r.Client)))
	}
}

func TestACommitmentIsOpenedOnceAndToNothingElse(t *testing.T) {
	t.Parallel()
	milan, mallory := peertest.NewOther(t, "milan"), peertest.NewOther(t, "mallory")
	nonce := [32]byte{1}
	for name, tc := range map[string]struct {
		commitment peering.Hash
		wait       time.Duration
		by         peertest.Other
		reveal     [32]byte
		first      peering.Reason
		second     peering.Reason
	}{
		"to what was committed to, once":  {introduce.Commitment(milan.ID, nonce), 0, milan, nonce, "", peering.ReasonIntroductionUnknown},
		"not to another number":           {introduce.Commitment(milan.ID, nonce), 0, milan, [32]byte{2}, peering.ReasonCommitmentMismatch, peering.ReasonIntroductionUnknown},
		"not to another cluster's number": {introduce.Commitment(mallory.ID, nonce), 0, milan, nonce, peering.ReasonCommitmentMismatch, peering.ReasonIntroductionUnknown},
		"not by another cluster":          {introduce.Commitment(milan.ID, nonce), 0, mallory, nonce, peering.ReasonIntroductionUnknown, peering.ReasonIntroductionUnknown},
		"not much later":                  {introduce.Commitment(milan.ID, nonce), RevealTimeout, milan, nonce, peering.ReasonIntroductionUnknown, peering.ReasonIntroductionUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, clock := newIntroductions(t)
			if _, err := r.Introduce(t.Context(), milan.ID, "x", milan.Info, tc.commitment, false); err != nil {
				t.Fatal(err)
			}
			if n := len(peertest.PeersOf(t, r.Client)); n != 0 {
				t.Errorf("%d peers are known before anything was revealed", n)
			}
			clock.Pass(tc.wait)
			for i, want := range []peering.Reason{tc.first, tc.second} {
				if err := r.Reveal(t.Context(), tc.by.ID, tc.reveal); peering.ReasonOf(err) != want {
					t.Errorf("try %d: %v, want %q", i+1, err, want)
				}
			}
			if tc.first != "" {
				if n := len(peertest.PeersOf(t, r.Client)); n != 0 {
					t.Errorf("%d peers are known", n)
				}
			}
		})
	}
}

func TestOneOfConcurrentRevealsOpens(t *testing.T) {
	t.Parallel()
	r, _ := newIntroductions(t)
	milan := peertest.NewOther(t, "milan")
	nonce := [32]byte{1}
	if _, err := r.Introduce(t.Context(), milan.ID, "x", milan.Info, introduce.Commitment(milan.ID, nonce), false); err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 100)
	for range cap(results) {
		go func() { results <- r.Reveal(context.WithoutCancel(t.Context()), milan.ID, nonce) }()
	}
	opened := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			opened++
		case peering.ReasonOf(err) != peering.ReasonIntroductionUnknown:
			t.Errorf("another got %v", err)
		}
	}
	if opened != 1 {
		t.Errorf("%d opened it", opened)
	}
}

func TestDeniedClusterCannotIntroduceItself(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(milan.ID), Decision: v1alpha1.DecisionDenied}
	r, _ := newIntroductions(t, fc)
	if _, err := peertest.IntroduceAs(t, r, milan, "x", false); peering.ReasonOf(err) != peering.ReasonTrustDenied {
		t.Errorf("introducing it: %v", err)
	}
	// Denied between the two messages.
	fc = peertest.PeerCalled(t, r.Client, "m")
	fc.Spec.Decision = ""
	if err := r.Client.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	nonce := [32]byte{1}
	if _, err := r.Introduce(t.Context(), milan.ID, "x", milan.Info, introduce.Commitment(milan.ID, nonce), false); err != nil {
		t.Fatal(err)
	}
	fc.Spec.Decision = v1alpha1.DecisionDenied
	if err := r.Client.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	if err := r.Reveal(t.Context(), milan.ID, nonce); peering.ReasonOf(err) != peering.ReasonTrustDenied {
		t.Errorf("revealing: %v", err)
	}
	if fc := peertest.PeerCalled(t, r.Client, "m"); fc.Status.Introduction != nil || fc.Spec.TrustBundle != "" {
		t.Errorf("it left %+v %+v", fc.Spec, fc.Status)
	}
}

func TestNamedClusterIsTrustedWhenItIntroducesItself(t *testing.T) {
	t.Parallel()
	milan, mallory := peertest.NewOther(t, "milan"), peertest.NewOther(t, "milan")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(milan.ID), Decision: v1alpha1.DecisionApproved}
	r, _ := newIntroductions(t, fc)
	if _, err := peertest.IntroduceAs(t, r, mallory, "x", false); err != nil {
		t.Fatal(err)
	}
	if fc := peertest.PeerCalled(t, r.Client, "m"); fc.Spec.TrustBundle != "" {
		t.Error("another cluster that calls itself the same is trusted")
	}
	// Even if it never reveals its number.
	if _, err := r.Introduce(t.Context(), milan.ID, "x", milan.Info, peering.Hash{}, false); err != nil {
		t.Fatal(err)
	}
	if fc := peertest.PeerCalled(t, r.Client, "m"); fc.Spec.TrustBundle != milan.Info.PEM() || len(fc.Spec.Endpoints) != 1 {
		t.Errorf("it is known as %+v", fc.Spec)
	}
}

func TestIntroductionsAreBoundedByAddressAndInAll(t *testing.T) {
	t.Parallel()
	named := peertest.NewOther(t, "named")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "named"}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(named.ID), Decision: v1alpha1.DecisionApproved}
	listed := peertest.NewOther(t, "listed")
	policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "home"}}
	policy.Spec.Automatic = &v1alpha1.AutomaticPeering{ClusterIDs: []string{string(listed.ID)}}
	r, clock := newIntroductions(t, fc, policy)
	flood := func(address string, n int) (in int, last error) {
		for range n {
			if _, err := peertest.IntroduceAs(t, r, peertest.NewOther(t, "flood"), address, false); err != nil {
				if e := peering.AsError(err); e.Reason != peering.ReasonIntroductionsPending || e.RetryAfter == 0 {
					t.Fatalf("got %v", err)
				}
				last = err
				continue
			}
			in++
		}
		return in, last
	}
	if in, _ := flood("a", MaxIntroductionsPerAddress+5); in != MaxIntroductionsPerAddress {
		t.Errorf("%d got in from one address, want %d", in, MaxIntroductionsPerAddress)
	}
	honest := peertest.NewOther(t, "honest")
	if _, err := peertest.IntroduceAs(t, r, honest, "b", false); err != nil {
		t.Errorf("from another address: %v", err)
	}
	for i := range 2 * MaxIntroductions / MaxIntroductionsPerAddress {
		flood(fmt.Sprint("address ", i), MaxIntroductionsPerAddress)
	}
	if n := len(peertest.PeersOf(t, r.Client)) - 1; n != MaxIntroductions {
		t.Errorf("%d wait, want %d", n, MaxIntroductions)
	}
	if _, err := peertest.IntroduceAs(t, r, peertest.NewOther(t, "late"), "c", false); peering.ReasonOf(err) != peering.ReasonIntroductionsPending {
		t.Errorf("one more: %v", err)
	}
	clock.Pass(time.Minute)
	if _, err := peertest.IntroduceAs(t, r, honest, "b", false); err != nil {
		t.Errorf("one that waits already, again: %v", err)
	}
	if _, err := peertest.IntroduceAs(t, r, named, "a", false); err != nil {
		t.Errorf("one that was named here: %v", err)
	}
	if n := len(peertest.PeersOf(t, r.Client)) - 1; n != MaxIntroductions {
		t.Errorf("%d wait, want %d", n, MaxIntroductions)
	}
	if _, err := peertest.IntroduceAs(t, r, listed, "a", false); err != nil {
		t.Errorf("one that a policy lists: %v", err)
	}
	if err := r.Client.Delete(t.Context(), store.Known(peertest.PeersOf(t, r.Client), listed.ID)); err != nil {
		t.Fatal(err)
	}
	// Removing the objects frees the places, whoever removes them.
	for i, fc := range peertest.PeersOf(t, r.Client) {
		if i < 3 && fc.Name != "named" {
			if err := r.Client.Delete(t.Context(), &fc); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := peertest.IntroduceAs(t, r, peertest.NewOther(t, "late"), "c", false); err != nil {
		t.Errorf("after some were removed: %v", err)
	}
	if len(r.pending) > MaxIntroductions+1 {
		t.Errorf("%d are remembered", len(r.pending))
	}
}

// A cluster in the middle can compute the code as soon as it has this cluster's number, and reveal its own only if
// the code matches.
func TestIntroductionsThatAreNotRevealedAreGuessesAndLimited(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from func(n int) string
		// want is how many of the guesses at once, and of those within an hour, are answered.
		atOnce, inAnHour int
	}{
		"from one address":             {func(int) string { return "192.0.2.1" }, CodeBurstPerAddress, 12},
		"from many of an IPv4 network": {func(n int) string { return fmt.Sprint("192.0.2.", n%256) }, CodeBurstPerNetwork, 30},
		"from many of an IPv6 network": {func(n int) string { return fmt.Sprintf("2001:db8:1:%x::/64", n) }, CodeBurstPerNetwork, 30},
		"from many networks":           {func(n int) string { return fmt.Sprintf("10.0.%d.1", n) }, CodeBurst, 60},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, clock := newIntroductions(t)
			answered, n := 0, 0
			guess := func() {
				o := peertest.Other{ID: peering.ClusterID(fmt.Sprint("cluster", n)), Info: identity.ClusterInfo{Name: "office"}}
				_, err := r.Introduce(t.Context(), o.ID, tc.from(n%250), o.Info, peering.Hash{}, true)
				if err == nil {
					answered++
				} else if e := peering.AsError(err); e.Reason != peering.ReasonIntroductionsPending || e.RetryAfter <= 0 {
					t.Fatalf("guess %d: %v", n, err)
				}
				n++
			}
			for range 1000 {
				guess()
			}
			if answered != tc.atOnce {
				t.Errorf("%d of 1000 at once are answered, want %d", answered, tc.atOnce)
			}
			for range time.Hour / (20 * time.Second) {
				clock.Pass(20 * time.Second)
				guess()
			}
			if in := answered - tc.atOnce; in < tc.inAnHour-1 || in > tc.inAnHour+1 {
				t.Errorf("%d within an hour are answered, want %d", in, tc.inAnHour)
			}
		})
	}
}

func TestIntroductionsAreNotLimitedByGuessesFromAnotherNetwork(t *testing.T) {
	t.Parallel()
	r, clock := newIntroductions(t)
	for n := range 1000 {
		flood := peering.ClusterID(fmt.Sprint("flood", n))
		_, _ = r.Introduce(t.Context(), flood, fmt.Sprint("192.0.2.", n%256), identity.ClusterInfo{}, peering.Hash{}, false)
		clock.Pass(time.Second)
		if n%100 != 99 {
			continue
		}
		if _, err := peertest.IntroduceAs(t, r, peertest.NewOther(t, "office"), fmt.Sprintf("198.51.%d.1", n/100), true); err != nil {
			t.Errorf("after %d guesses: %v", n+1, err)
		}
	}
}

func TestAnInterruptedIntroductionCanBeRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	r, _ := newIntroductions(t)
	milan := peertest.NewOther(t, "milan")
	for n := range CodeBurstPerAddress - 1 {
		if _, err := r.Introduce(t.Context(), milan.ID, "192.0.2.1", milan.Info, peering.Hash{}, true); err != nil {
			t.Fatalf("try %d: %v", n+1, err)
		}
	}
	if _, err := peertest.IntroduceAs(t, r, milan, "192.0.2.1", true); err != nil {
		t.Errorf("the last try: %v", err)
	}
	// Those that were completed are not guesses.
	for n := range MaxIntroductionsPerAddress - 1 {
		if _, err := peertest.IntroduceAs(t, r, peertest.NewOther(t, "next"), "192.0.2.1", true); err != nil {
			t.Errorf("neighbour %d: %v", n+1, err)
		}
	}
}

func TestGuessesAtTheCodeDoNotHoldUpClustersThatAreNamedByID(t *testing.T) {
	t.Parallel()
	named, listed := peertest.NewOther(t, "named"), peertest.NewOther(t, "listed")
	policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "home"}}
	policy.Spec.Automatic = &v1alpha1.AutomaticPeering{ClusterIDs: []string{string(listed.ID)}}
	r, _ := newIntroductions(t, peertest.ApprovedAs("named", named), policy)
	for n := range 1000 {
		_, _ = r.Introduce(t.Context(), peering.ClusterID(fmt.Sprint("flood", n)), fmt.Sprintf("10.0.%d.1", n%250), identity.ClusterInfo{}, peering.Hash{}, false)
	}
	for _, o := range []peertest.Other{named, listed} {
		if _, err := peertest.IntroduceAs(t, r, o, "10.0.0.1", false); err != nil {
			t.Errorf("%s: %v", o.Info.Name, err)
		}
	}
}

func TestUnrevealedIntroductionLapses(t *testing.T) {
	t.Parallel()
	r, clock := newIntroductions(t)
	for i := range CodeBurst {
		o := peertest.NewOther(t, "flood")
		if _, err := r.Introduce(t.Context(), o.ID, fmt.Sprint(i), o.Info, peering.Hash{}, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := peertest.IntroduceAs(t, r, peertest.NewOther(t, "honest"), "x", false); peering.ReasonOf(err) != peering.ReasonIntroductionsPending {
		t.Errorf("while as many are begun as can be at once: %v", err)
	}
	clock.Pass(RevealTimeout)
	if _, err := peertest.IntroduceAs(t, r, peertest.NewOther(t, "honest"), "x", false); err != nil {
		t.Errorf("a minute later: %v", err)
	}
	if len(r.pending) != 1 || len(peertest.PeersOf(t, r.Client)) != 1 {
		t.Errorf("%d are remembered, %d written down", len(r.pending), len(peertest.PeersOf(t, r.Client)))
	}
}

func TestIntroductionsOfOneClusterAreRateLimited(t *testing.T) {
	t.Parallel()
	r, clock := newIntroductions(t)
	milan := peertest.NewOther(t, "milan")
	in := 0
	for range 100 {
		_, err := peertest.IntroduceAs(t, r, milan, "x", false)
		if err == nil {
			in++
			continue
		}
		if e := peering.AsError(err); e.Reason != peering.ReasonIntroductionsPending || e.RetryAfter <= 0 || e.RetryAfter > IntroductionPause {
			t.Fatalf("got %v, retry after %s", err, e.RetryAfter)
		}
	}
	if in != IntroductionBurst {
		t.Errorf("%d got in, want %d", in, IntroductionBurst)
	}
	clock.Pass(IntroductionPause)
	if _, err := peertest.IntroduceAs(t, r, milan, "x", false); err != nil {
		t.Errorf("later: %v", err)
	}
}

func TestIntroductionThatCannotBeStoredCanBeRepeated(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	r, _ := newIntroductions(t)
	good := r.Client
	r.Client = peertest.Failing{Client: good}
	nonce := [32]byte{1}
	if _, err := r.Introduce(t.Context(), milan.ID, "x", milan.Info, introduce.Commitment(milan.ID, nonce), false); err != nil {
		t.Fatal(err)
	}
	if err := r.Reveal(t.Context(), milan.ID, nonce); err == nil {
		t.Fatal("nothing was kept")
	}
	r.Client = good
	if err := r.Reveal(t.Context(), milan.ID, nonce); err != nil || len(peertest.PeersOf(t, good)) != 1 {
		t.Errorf("again: %v", err)
	}
	if i := r.pending[milan.ID]; !bytes.Equal(i.nonce[:], make([]byte, 32)) {
		t.Error("the number is still remembered")
	}
}

// forgets is a client of a cluster where an administrator forgets a cluster before the
// first read that asks the API server for it.
type forgets struct {
	client.Client
	forget func()
}

func (c *forgets) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.ForeignClusterList); ok && c.forget != nil {
		c.forget()
		c.forget = nil
	}
	return c.Client.List(ctx, list, opts...)
}

func TestIntroductionOfAClusterForgottenMeanwhileIsRefused(t *testing.T) {
	t.Parallel()
	for name, trusted := range map[string]bool{"when it is named": false, "when it is revealed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			milan := peertest.NewOther(t, "milan")
			fc := peertest.ApprovedAs("m", milan)
			if trusted {
				fc.Spec.TrustBundle = milan.Info.PEM()
			}
			r, _ := newIntroductions(t, fc)
			good := r.Client
			r.Client = &forgets{good, func() {
				if err := errors.Join(r.Forgotten.Add(t.Context(), milan.ID), good.Delete(t.Context(), fc)); err != nil {
					t.Error(err)
				}
			}}
			if _, err := peertest.IntroduceAs(t, r, milan, "x", false); peering.ReasonOf(err) != peering.ReasonTrustForgotten {
				t.Errorf("it is answered %v", err)
			}
			if left := peertest.PeersOf(t, good); len(left) != 0 {
				t.Errorf("it left %+v", left)
			}
		})
	}
}

// What discovery found takes no place of those that introduce themselves.
func TestHintsTakeNoPlacesOfIntroductions(t *testing.T) {
	t.Parallel()
	var all []v1alpha1.ForeignCluster
	for n := range MaxIntroductions + 1 {
		all = append(all, peertest.HintOf(fmt.Sprint("c", n), peertest.LAN(n+1, "eth0")))
	}
	if waiting := (&Introductions{}).waiting(all, now); len(waiting) != 0 {
		t.Errorf("%d hints count as introductions", len(waiting))
	}
	if step, when := nextStep(&all[0], Session{}, peering.Hash{}, now.Add(1000*time.Hour)); step != stepNothing || when != 0 {
		t.Errorf("a hint is due for %v in %s", step, when)
	}
}
