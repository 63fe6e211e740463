package controller

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// turns does something, and has conditions that it changed change by the test's
// clock.
func (pt *peersTest) turns(t *testing.T, do func()) {
	t.Helper()
	was := pt.trustedIs(t, "milan")
	do()
	fc := peertest.PeerCalled(t, pt.Client, "milan")
	if is := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted); is != nil && (is.Status != was.Status || !is.LastTransitionTime.Equal(&was.LastTransitionTime)) {
		is.LastTransitionTime = metav1.NewTime(pt.clock.Now())
		if err := pt.Client.Status().Update(t.Context(), fc); err != nil {
			t.Fatal(err)
		}
	}
}

// forgetting is a peer that is being forgotten, with a contract that is over here.
func forgetting(t *testing.T, o peertest.Other, phase peering.Phase) *peersTest {
	t.Helper()
	fc := peertest.TrustedAs("milan", o)
	fc.Finalizers = []string{v1alpha1.Finalizer}
	c := peertest.ContractWith(o, "c-1", v1alpha1.ContractConsumer)
	c.Status.Phase, c.Finalizers = phase.String(), []string{v1alpha1.Finalizer}
	pt := newPeersTest(t, fc, c)
	if err := pt.Client.Delete(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	return pt
}

func (pt *peersTest) lets(t *testing.T) bool {
	t.Helper()
	return notWaitedFor(peertest.PeerCalled(t, pt.Client, "milan"))
}

func TestForgettingWaitsForThePeerToReturn(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	for name, tc := range map[string]struct {
		session trust.Session
		// after is when contracts are removed, says whether the peer counts as notified.
		after time.Duration
		told  bool
	}{
		"it is away":                       {trust.Session{Why: "connection refused"}, forgetWait, false},
		"it was not dialled yet":           {trust.Session{}, forgetWait, false},
		"it does not respond":              {trust.Session{Up: &trust.SessionInfo{}}, forgetWait, false},
		"it does not know us any more":     {trust.Session{Why: "refused", Untrusted: true}, 0, true},
		"an administrator there denied us": {trust.Session{Why: "denied", Denied: true}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pt := forgetting(t, milan, peering.PhaseClosed)
			pt.trust.set(milan.ID, tc.session)
			pt.look(t, "milan")
			if pt.lets(t) != (tc.after == 0) {
				t.Fatalf("at first it is let go: %t", pt.lets(t))
			}
			if tc.after > 0 {
				if got := pt.trustedIs(t, "milan"); got.Reason != reasonForgetting || !strings.Contains(got.Message, forgetWait.String()) {
					t.Errorf("meanwhile the condition is %+v", got)
				}
				pt.clock.Pass(tc.after - time.Second)
				pt.look(t, "milan")
				if pt.lets(t) || !slices.Contains(pt.trust.trusted, milan.ID) {
					t.Errorf("a second before its time it is let go %t, trusted %v", pt.lets(t), pt.trust.trusted)
				}
				pt.clock.Pass(time.Second)
			}
			for range 2 {
				pt.look(t, "milan")
				if !pt.lets(t) {
					t.Error("it is waited for too long")
				}
			}
			want := []string{"Warning PeerNotNotified"}
			if tc.told {
				want = nil
			}
			if !slices.Equal(pt.events.Events, want) {
				t.Errorf("events %v, want %v", pt.events.Events, want)
			}
		})
	}
}

func TestForgettingWaitsFromTheEndOfContracts(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := forgetting(t, milan, peering.PhaseDraining)
	pt.look(t, "milan")
	pt.clock.Pass(time.Hour)
	pt.look(t, "milan")
	if pt.lets(t) || pt.terminationOf(t, "c-1") != v1alpha1.TerminateNow || len(pt.events.Events) > 0 {
		t.Errorf("let go %t, ends by %q, %v", pt.lets(t), pt.terminationOf(t, "c-1"), pt.events.Events)
	}
	var c v1alpha1.Contract
	if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &c); err != nil {
		t.Fatal(err)
	}
	c.Finalizers = nil // done with, and kept because of what it cost
	if err := pt.Client.Update(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	c.Status.Phase = peering.PhaseClosed.String()
	if err := pt.Client.Status().Update(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	if len(peertest.PeersOf(t, pt.Client)) != 0 || len(pt.memory) != 0 {
		t.Errorf("it is waited for although nothing is left: %d peers, %v", len(peertest.PeersOf(t, pt.Client)), pt.memory)
	}
}

// away is a counterpart that cannot be notified until it is back.
type away struct {
	fakeCounterpart
	back bool
}

func (a *away) Terminate(ctx context.Context, contract, message string, until time.Time) error {
	if !a.back {
		return errors.New("no session")
	}
	return a.fakeCounterpart.Terminate(ctx, contract, message, until)
}

func TestContractStaysUntilAForgottenPeerIsNotified(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	for name, then := range map[string]func(*testing.T, *bench, *away){
		"it is back": func(_ *testing.T, _ *bench, a *away) { a.back = true },
		"it is let go": func(t *testing.T, b *bench, _ *away) {
			var fc v1alpha1.ForeignCluster
			if err := b.client.Get(t.Context(), client.ObjectKey{Name: "peer"}, &fc); err != nil {
				t.Fatal(err)
			}
			meta.SetStatusCondition(&fc.Status.Conditions, store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, reasonForgotten, "it is being forgotten"))
			if err := b.client.Status().Update(t.Context(), &fc); err != nil {
				t.Fatal(err)
			}
		},
		"it reports that it is over": func(t *testing.T, b *bench, _ *away) {
			b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: peering.PhaseClosed.String()})
		},
	} {
		for _, self := range []*identity.Identity{p.consumer, p.provider} {
			t.Run(name+", "+string(self.ID()), func(t *testing.T) {
				t.Parallel()
				peer := p.provider
				if self == p.provider {
					peer = p.consumer
				}
				fc := foreign("peer", peer)
				fc.Finalizers = []string{v1alpha1.Finalizer}
				stored := p.stored(t, p.terms(t, nil), self)
				stored.Spec.Termination = v1alpha1.TerminateNow
				b, there := newBench(t, self, fc, stored), &away{}
				b.Counterpart = always(there)
				if err := b.client.Delete(t.Context(), fc); err != nil {
					t.Fatal(err)
				}
				if c := b.look(t); c == nil || !store.Closed(c) || store.Released(c) {
					t.Fatalf("a peer that is away: %+v", c)
				}
				then(t, b, there)
				if c := b.look(t); c != nil && !store.Released(c) {
					t.Errorf("it is kept: %+v", c.Status)
				}
				if got := len(there.told); (got == 1) != there.back {
					t.Errorf("it was notified %d times", got)
				}
			})
		}
	}
}

func TestOnlyLastingRefusalsEndContracts(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	const minute = time.Minute
	refused := func(at time.Duration) func(time.Time) trust.Session {
		return func(begin time.Time) trust.Session {
			return trust.Session{Why: "it does not trust this cluster", At: begin.Add(at), Untrusted: true}
		}
	}
	away := func(begin time.Time) trust.Session {
		return trust.Session{Why: "no route to host", At: begin.Add(time.Hour)}
	}
	up := func(begin time.Time) trust.Session { return trust.Session{Up: &trust.SessionInfo{Since: begin}} }
	// Each reconciliation is a minute after the one before it.
	for name, tc := range map[string]struct {
		looks []func(time.Time) trust.Session
		ends  bool
	}{
		"refused again after five minutes": {[]func(time.Time) trust.Session{refused(0), refused(minute), refused(2 * minute), refused(3 * minute), refused(4 * minute), refused(5*minute + time.Second)}, true},
		"refused once":                     {[]func(time.Time) trust.Session{refused(0), refused(0), refused(0), refused(0), refused(0), refused(0), refused(0), refused(0)}, false},
		"refused for less long":            {[]func(time.Time) trust.Session{refused(0), refused(minute), refused(2 * minute), refused(3 * minute), refused(4 * minute)}, false},
		"refused, then cut off":            {[]func(time.Time) trust.Session{refused(0), away, away, away, away, away, away, away}, false},
		"cut off for long":                 {[]func(time.Time) trust.Session{away, away, away, away, away, away, away, away}, false},
		"trusted in between":               {[]func(time.Time) trust.Session{refused(0), refused(minute), up, refused(3 * minute), refused(4 * minute), refused(5 * minute), refused(6 * minute)}, false},
		"cut off in between":               {[]func(time.Time) trust.Session{refused(0), refused(minute), away, refused(3 * minute), refused(4 * minute), refused(5 * minute), refused(6 * minute)}, false},
	} {
		for _, role := range []v1alpha1.ContractRole{v1alpha1.ContractConsumer, v1alpha1.ContractProvider} {
			t.Run(name+", as "+string(role), func(t *testing.T) {
				t.Parallel()
				begin := time.Now()
				fc := peertest.TrustedAs("milan", milan)
				was := store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Joined", "the two clusters joined")
				was.LastTransitionTime = metav1.NewTime(begin.Add(-time.Hour))
				fc.Status.Conditions = []metav1.Condition{was}
				pt := newPeersTest(t, fc, peertest.ContractWith(milan, "c-1", role), tunnelOf("milan"), keysSecret(milan))
				for i, session := range tc.looks {
					if pt.terminationOf(t, "c-1") != "" {
						t.Fatalf("it ends after %d reconciliations", i)
					}
					pt.trust.set(milan.ID, session(begin))
					pt.turns(t, func() { pt.look(t, "milan") })
					if got := pt.trustedIs(t, "milan"); got.Reason == reasonNotTrustedByPeer && !strings.Contains(got.Message, forgottenAfter.String()) {
						t.Errorf("the condition does not say when contracts end: %s", got.Message)
					}
					pt.clock.Pass(minute)
				}
				ends := pt.terminationOf(t, "c-1") == v1alpha1.TerminatePeer
				if ends != tc.ends || pt.hasTunnel(t, "milan") == tc.ends {
					t.Fatalf("it ends %t, tunnel %t", ends, pt.hasTunnel(t, "milan"))
				}
				pt.look(t, "milan")
				said := 0
				for _, e := range pt.events.Events {
					if e == "Warning ForgottenByPeer" {
						said++
					}
				}
				if (said == 1) != tc.ends || said > 1 {
					t.Errorf("it is recorded %d times: %v", said, pt.events.Events)
				}
				if tc.ends && len(peertest.PeersOf(t, pt.Client)) != 1 {
					t.Error("the peer is forgotten, which no administrator asked for")
				}
			})
		}
	}
}

// An agent that dies each minute is refused once by each of its processes.
func TestRefusalsCountAcrossRestarts(t *testing.T) {
	t.Parallel()
	refused, away, up := trust.Session{Why: "refused", Untrusted: true}, trust.Session{Why: "no route to host"}, trust.Session{Up: &trust.SessionInfo{}}
	for name, tc := range map[string]struct {
		third trust.Session // what the third process finds
		ends  bool
	}{
		"by each process":                 {refused, true},
		"one of them cannot reach it":     {away, false},
		"one of them has a session to it": {up, false},
	} {
		for _, decision := range []v1alpha1.Decision{"", v1alpha1.DecisionApproved} {
			t.Run(name+", decision "+string(decision), func(t *testing.T) {
				t.Parallel()
				milan := peertest.NewOther(t, "milan")
				fc := peertest.TrustedAs("milan", milan)
				fc.Spec.Decision = decision
				c := peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer)
				c.Finalizers = []string{v1alpha1.Finalizer}
				pt := newPeersTest(t, fc, c)
				pt.trust.set(milan.ID, up)
				pt.turns(t, func() { pt.look(t, "milan") })
				for i := range 7 {
					if got := pt.terminationOf(t, "c-1"); got != "" && i < 6 {
						t.Fatalf("it ends by %q after %d processes", got, i)
					}
					pt.clock.Pass(time.Minute)
					pt.memory = nil
					session := refused
					if i == 2 {
						session = tc.third
					}
					session.At = pt.clock.Now()
					// It has not dialled when it reconciles for the first time.
					for _, s := range []trust.Session{{Why: "no session yet"}, session} {
						pt.trust.set(milan.ID, s)
						for range 2 {
							pt.turns(t, func() { pt.look(t, "milan") })
						}
					}
				}
				if got := pt.terminationOf(t, "c-1"); (got == v1alpha1.TerminatePeer) != tc.ends {
					t.Errorf("it ends by %q", got)
				}
			})
		}
	}
}

func TestRefusalsCountAlthoughThePeerIsAwayBetween(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	type step struct {
		after   time.Duration
		session trust.Session
	}
	refused, away, up := trust.Session{Why: "refused", Untrusted: true}, trust.Session{Why: "no route to host"}, trust.Session{Up: &trust.SessionInfo{}}
	// window is a time in which the peer can be reached, and then not for long.
	window := func(refusals int, apart time.Duration) []step {
		steps := []step{{time.Hour, refused}}
		for range refusals - 1 {
			steps = append(steps, step{apart, refused})
		}
		return append(steps, step{apart, away})
	}
	repeat := func(n int, steps ...step) (out []step) {
		for range n {
			out = append(out, steps...)
		}
		return out
	}
	for name, tc := range map[string]struct {
		steps []step
		ends  bool
	}{
		"two minutes each, three times":      {repeat(3, window(5, refusedApart)...), true},
		"once each, eleven times":            {repeat(11, window(1, 0)...), true},
		"once each, ten times":               {repeat(10, window(1, 0)...), false},
		"often, and for a moment":            {window(40, time.Second), false},
		"trusted in between":                 {append(append(repeat(2, window(5, refusedApart)...), step{time.Minute, up}), window(5, refusedApart)...), false},
		"mostly away":                        {repeat(50, step{time.Hour, away}), false},
		"refused the same, reconciled often": {append(window(1, 0), repeat(50, step{0, refused})...), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := peertest.TrustedAs("milan", milan)
			was := store.Condition(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Joined", "the two clusters joined")
			was.LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
			fc.Status.Conditions = []metav1.Condition{was}
			pt := newPeersTest(t, fc, peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer))
			for i, s := range tc.steps {
				if got := pt.terminationOf(t, "c-1"); got != "" {
					if !tc.ends || i < len(tc.steps)-5 {
						t.Fatalf("it ends by %q after %d of %d steps", got, i, len(tc.steps))
					}
					return
				}
				pt.clock.Pass(s.after)
				s.session.At = pt.clock.Now()
				pt.trust.set(milan.ID, s.session)
				for range 2 {
					pt.turns(t, func() { pt.look(t, "milan") })
				}
			}
			if got := pt.terminationOf(t, "c-1"); (got == v1alpha1.TerminatePeer) != tc.ends {
				t.Errorf("it ends by %q", got)
			}
		})
	}
}

func TestTunnelGoesBeforeAForgottenPeerIsNotified(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	fc.Finalizers = []string{v1alpha1.Finalizer}
	c := peertest.ContractWith(milan, "c-1", v1alpha1.ContractProvider)
	c.Status.Phase, c.Finalizers = peering.PhaseClosed.String(), []string{v1alpha1.Finalizer}
	pt := newPeersTest(t, fc, c, tunnelOf("milan"), keysSecret(milan))
	if err := pt.Client.Delete(t.Context(), peertest.PeerCalled(t, pt.Client, "milan")); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	if pt.hasTunnel(t, "milan") || pt.lets(t) {
		t.Errorf("the tunnel exists: %t; the peer is waited for: %t", pt.hasTunnel(t, "milan"), !pt.lets(t))
	}
}

func TestLeftoversOfATunnelAreRemoved(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	contract := peertest.ContractWith(milan, "c-1", v1alpha1.ContractProvider)
	contract.Finalizers = []string{v1alpha1.Finalizer}
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan), contract)
	pt.AliasPool = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/12")}
	pt.States.KeyShare = func(peering.ClusterID, uint64) peering.PresharedKeyShare { return peering.PresharedKeyShare{1} }
	keys := func() int {
		var s corev1.Secret
		if err := pt.Client.Get(t.Context(), client.ObjectKeyFromObject(keysSecret()), &s); err != nil {
			t.Fatal(err)
		}
		return len(s.Data)
	}
	says := func(n *peering.Network) {
		t.Helper()
		if err := pt.States.Observe(t.Context(), milan.ID, peering.PeerState{Protocol: 1, Network: n}); err != nil {
			t.Fatal(err)
		}
	}
	network := &peering.Network{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}, PresharedKeyShare: peering.PresharedKeyShare{2}}
	pt.look(t, "milan")
	says(network)
	pt.look(t, "milan")
	if keys() != 2 { // and its number
		t.Fatalf("there are %d keys while the contract is in force", keys())
	}
	var c v1alpha1.Contract
	if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &c); err != nil {
		t.Fatal(err)
	}
	c.Status.Phase = peering.PhaseClosed.String()
	if err := pt.Client.Status().Update(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	says(network) // what was on its way
	says(nil)
	pt.look(t, "milan")
	if keys() != 0 || pt.hasTunnel(t, "milan") {
		t.Errorf("%d keys are left, and the tunnel: %t", keys(), pt.hasTunnel(t, "milan"))
	}
	// An administrator restores a backup.
	if err := pt.Client.Create(t.Context(), tunnelOf("milan")); err != nil {
		t.Fatal(err)
	}
	pt.look(t, "milan")
	if pt.hasTunnel(t, "milan") {
		t.Error("a tunnel without a contract stays")
	}
}

func TestAShortRefusalAndALongSilenceEndNothing(t *testing.T) {
	t.Parallel()
	for name, decision := range map[string]v1alpha1.Decision{"joined by a token": "", "approved": v1alpha1.DecisionApproved} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			milan := peertest.NewOther(t, "milan")
			fc := peertest.TrustedAs("milan", milan)
			fc.Spec.Decision = decision
			c := peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer)
			c.Finalizers = []string{v1alpha1.Finalizer}
			pt := newPeersTest(t, fc, c)
			pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now()}})
			pt.turns(t, func() { pt.look(t, "milan") })
			pt.clock.Pass(time.Minute)
			refused := trust.Session{Why: "refused", Untrusted: true, At: pt.clock.Now()}
			pt.trust.set(milan.ID, refused)
			pt.turns(t, func() { pt.look(t, "milan") })
			pt.clock.Pass(forgottenAfter)
			pt.trust.set(milan.ID, trust.Session{Why: "i/o timeout", At: pt.clock.Now()})
			pt.turns(t, func() { pt.look(t, "milan") })
			for _, ends := range []v1alpha1.Termination{"", v1alpha1.TerminatePeer} {
				pt.clock.Pass(forgottenAfter)
				refused.At = pt.clock.Now()
				pt.trust.set(milan.ID, refused)
				for range 2 {
					pt.turns(t, func() { pt.look(t, "milan") })
				}
				if got := pt.terminationOf(t, "c-1"); got != ends {
					t.Errorf("the contract ends by %q, want %q", got, ends)
				}
			}
		})
	}
}
