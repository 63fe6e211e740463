package controller

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// testClock is a clock that a test moves.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func trustClient(t testing.TB, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return indexed(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ForeignCluster{}, &v1alpha1.Contract{}, &corev1.Node{}))
}

// other is another cluster and what it says of itself.
type other struct {
	id   peering.ClusterID
	info identity.ClusterInfo
}

func newOther(t testing.TB, name string) other {
	t.Helper()
	id, err := identity.Generate(now)
	if err != nil {
		t.Fatal(err)
	}
	return other{id: id.ID(), info: identity.ClusterInfo{Name: name, Endpoints: []string{"192.0.2.1:7443"}, Bundle: id.TrustBundle()}}
}

func peersOf(t testing.TB, c client.Client) []v1alpha1.ForeignCluster {
	t.Helper()
	var list v1alpha1.ForeignClusterList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func peerCalled(t testing.TB, c client.Client, name string) *v1alpha1.ForeignCluster {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &fc); err != nil {
		t.Fatal(err)
	}
	return &fc
}

func forgottenAt(c client.Client, now func() time.Time) *store.Forgotten {
	return &store.Forgotten{Client: c, Namespace: "entente-system", Now: now}
}

const ownID = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")

func newIntroductions(t testing.TB, objects ...client.Object) (*Introductions, *testClock) {
	t.Helper()
	clock := &testClock{now: now}
	c := trustClient(t, objects...)
	return &Introductions{Client: c, Cache: c, Self: ownID, Forgotten: forgottenAt(c, clock.Now), Rand: rand.Reader, Now: clock.Now}, clock
}

// introduce makes a whole introduction, and returns the code that the caller
// computes.
func (r *Introductions) introduce(t testing.TB, o other, from string) (string, error) {
	t.Helper()
	return r.introduceAs(t, o, from, false)
}

func (r *Introductions) introduceAs(t testing.TB, o other, from string, requested bool) (string, error) {
	t.Helper()
	var nonce [32]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		t.Fatal(err)
	}
	theirs, err := r.Introduce(t.Context(), o.id, from, o.info, peering.Commitment(o.id, nonce), requested)
	if err != nil {
		return "", err
	}
	return peering.Code(o.id, nonce, ownID, theirs), r.Reveal(t.Context(), o.id, nonce)
}

func TestAnIntroductionShowsTheCallersCode(t *testing.T) {
	t.Parallel()
	r, _ := newIntroductions(t)
	milan := newOther(t, "milan")
	code, err := r.introduce(t, milan, "x")
	if err != nil {
		t.Fatal(err)
	}
	fc := peerCalled(t, r.Client, "milan")
	if intro := fc.Status.Introduction; intro == nil || intro.Code != code || intro.Name != "milan" || fc.Spec.TrustBundle != "" || fc.Status.Found != v1alpha1.FoundIntroduction {
		t.Errorf("it leaves %+v %+v, the caller's code is %s", fc.Spec, fc.Status, code)
	}
	again, err := r.introduce(t, milan, "x")
	if err != nil {
		t.Fatal(err)
	}
	if got := peerCalled(t, r.Client, "milan").Status.Introduction.Code; got != again || len(peersOf(t, r.Client)) != 1 {
		t.Errorf("introduced again it shows %s, the caller %s; there are %d peers", got, again, len(peersOf(t, r.Client)))
	}
}

func TestACommitmentIsOpenedOnceAndToNothingElse(t *testing.T) {
	t.Parallel()
	milan, mallory := newOther(t, "milan"), newOther(t, "mallory")
	nonce := [32]byte{1}
	for name, tc := range map[string]struct {
		commitment peering.Hash
		wait       time.Duration
		by         other
		reveal     [32]byte
		first      peering.Reason
		second     peering.Reason
	}{
		"to what was committed to, once":  {peering.Commitment(milan.id, nonce), 0, milan, nonce, "", peering.ReasonIntroductionUnknown},
		"not to another number":           {peering.Commitment(milan.id, nonce), 0, milan, [32]byte{2}, peering.ReasonCommitmentMismatch, peering.ReasonIntroductionUnknown},
		"not to another cluster's number": {peering.Commitment(mallory.id, nonce), 0, milan, nonce, peering.ReasonCommitmentMismatch, peering.ReasonIntroductionUnknown},
		"not by another cluster":          {peering.Commitment(milan.id, nonce), 0, mallory, nonce, peering.ReasonIntroductionUnknown, peering.ReasonIntroductionUnknown},
		"not much later":                  {peering.Commitment(milan.id, nonce), RevealTimeout, milan, nonce, peering.ReasonIntroductionUnknown, peering.ReasonIntroductionUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, clock := newIntroductions(t)
			if _, err := r.Introduce(t.Context(), milan.id, "x", milan.info, tc.commitment, false); err != nil {
				t.Fatal(err)
			}
			if n := len(peersOf(t, r.Client)); n != 0 {
				t.Errorf("%d peers are known before anything was revealed", n)
			}
			clock.pass(tc.wait)
			for i, want := range []peering.Reason{tc.first, tc.second} {
				if err := r.Reveal(t.Context(), tc.by.id, tc.reveal); peering.ReasonOf(err) != want {
					t.Errorf("try %d: %v, want %q", i+1, err, want)
				}
			}
			if tc.first != "" {
				if n := len(peersOf(t, r.Client)); n != 0 {
					t.Errorf("%d peers are known", n)
				}
			}
		})
	}
}

func TestOneOfConcurrentRevealsOpens(t *testing.T) {
	t.Parallel()
	r, _ := newIntroductions(t)
	milan := newOther(t, "milan")
	nonce := [32]byte{1}
	if _, err := r.Introduce(t.Context(), milan.id, "x", milan.info, peering.Commitment(milan.id, nonce), false); err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 100)
	for range cap(results) {
		go func() { results <- r.Reveal(context.WithoutCancel(t.Context()), milan.id, nonce) }()
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
	milan := newOther(t, "milan")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(milan.id), Decision: v1alpha1.DecisionDenied}
	r, _ := newIntroductions(t, fc)
	if _, err := r.introduce(t, milan, "x"); peering.ReasonOf(err) != peering.ReasonTrustDenied {
		t.Errorf("introducing it: %v", err)
	}
	// Denied between the two messages.
	fc = peerCalled(t, r.Client, "m")
	fc.Spec.Decision = ""
	if err := r.Client.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	nonce := [32]byte{1}
	if _, err := r.Introduce(t.Context(), milan.id, "x", milan.info, peering.Commitment(milan.id, nonce), false); err != nil {
		t.Fatal(err)
	}
	fc.Spec.Decision = v1alpha1.DecisionDenied
	if err := r.Client.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	if err := r.Reveal(t.Context(), milan.id, nonce); peering.ReasonOf(err) != peering.ReasonTrustDenied {
		t.Errorf("revealing: %v", err)
	}
	if fc := peerCalled(t, r.Client, "m"); fc.Status.Introduction != nil || fc.Spec.TrustBundle != "" {
		t.Errorf("it left %+v %+v", fc.Spec, fc.Status)
	}
}

func TestNamedClusterIsTrustedWhenItIntroducesItself(t *testing.T) {
	t.Parallel()
	milan, mallory := newOther(t, "milan"), newOther(t, "milan")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(milan.id), Decision: v1alpha1.DecisionApproved}
	r, _ := newIntroductions(t, fc)
	if _, err := r.introduce(t, mallory, "x"); err != nil {
		t.Fatal(err)
	}
	if fc := peerCalled(t, r.Client, "m"); fc.Spec.TrustBundle != "" {
		t.Error("another cluster that calls itself the same is trusted")
	}
	// Even if it never says its number.
	if _, err := r.Introduce(t.Context(), milan.id, "x", milan.info, peering.Hash{}, false); err != nil {
		t.Fatal(err)
	}
	if fc := peerCalled(t, r.Client, "m"); fc.Spec.TrustBundle != milan.info.PEM() || len(fc.Spec.Endpoints) != 1 {
		t.Errorf("it is known as %+v", fc.Spec)
	}
}

func TestIntroductionsAreBoundedByAddressAndInAll(t *testing.T) {
	t.Parallel()
	named := newOther(t, "named")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "named"}}
	fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(named.id), Decision: v1alpha1.DecisionApproved}
	listed := newOther(t, "listed")
	policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "home"}}
	policy.Spec.Automatic = &v1alpha1.AutomaticPeering{ClusterIDs: []string{string(listed.id)}}
	r, clock := newIntroductions(t, fc, policy)
	flood := func(address string, n int) (in int, last error) {
		for range n {
			if _, err := r.introduce(t, newOther(t, "flood"), address); err != nil {
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
	honest := newOther(t, "honest")
	if _, err := r.introduce(t, honest, "b"); err != nil {
		t.Errorf("from another address: %v", err)
	}
	for i := range 2 * MaxIntroductions / MaxIntroductionsPerAddress {
		flood(fmt.Sprint("address ", i), MaxIntroductionsPerAddress)
	}
	if n := len(peersOf(t, r.Client)) - 1; n != MaxIntroductions {
		t.Errorf("%d wait, want %d", n, MaxIntroductions)
	}
	if _, err := r.introduce(t, newOther(t, "late"), "c"); peering.ReasonOf(err) != peering.ReasonIntroductionsPending {
		t.Errorf("one more: %v", err)
	}
	clock.pass(time.Minute)
	if _, err := r.introduce(t, honest, "b"); err != nil {
		t.Errorf("one that waits already, again: %v", err)
	}
	if _, err := r.introduce(t, named, "a"); err != nil {
		t.Errorf("one that was named here: %v", err)
	}
	if n := len(peersOf(t, r.Client)) - 1; n != MaxIntroductions {
		t.Errorf("%d wait, want %d", n, MaxIntroductions)
	}
	if _, err := r.introduce(t, listed, "a"); err != nil {
		t.Errorf("one that a policy lists: %v", err)
	}
	if err := r.Client.Delete(t.Context(), store.Known(peersOf(t, r.Client), listed.id)); err != nil {
		t.Fatal(err)
	}
	// Places come free with the objects, whoever removes them.
	for i, fc := range peersOf(t, r.Client) {
		if i < 3 && fc.Name != "named" {
			if err := r.Client.Delete(t.Context(), &fc); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := r.introduce(t, newOther(t, "late"), "c"); err != nil {
		t.Errorf("after some were removed: %v", err)
	}
	if len(r.pending) > MaxIntroductions+1 {
		t.Errorf("%d are remembered", len(r.pending))
	}
}

func TestUnrevealedIntroductionLapses(t *testing.T) {
	t.Parallel()
	r, clock := newIntroductions(t)
	for i := range MaxIntroductions {
		o := newOther(t, "flood")
		if _, err := r.Introduce(t.Context(), o.id, fmt.Sprint(i), o.info, peering.Hash{}, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.introduce(t, newOther(t, "honest"), "x"); peering.ReasonOf(err) != peering.ReasonIntroductionsPending {
		t.Errorf("while all places are taken: %v", err)
	}
	clock.pass(RevealTimeout)
	if _, err := r.introduce(t, newOther(t, "honest"), "x"); err != nil {
		t.Errorf("a minute later: %v", err)
	}
	if len(r.pending) != 1 || len(peersOf(t, r.Client)) != 1 {
		t.Errorf("%d are remembered, %d written down", len(r.pending), len(peersOf(t, r.Client)))
	}
}

func TestIntroductionsOfOneClusterAreRateLimited(t *testing.T) {
	t.Parallel()
	r, clock := newIntroductions(t)
	milan := newOther(t, "milan")
	in := 0
	for range 100 {
		_, err := r.introduce(t, milan, "x")
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
	clock.pass(IntroductionPause)
	if _, err := r.introduce(t, milan, "x"); err != nil {
		t.Errorf("later: %v", err)
	}
}

func TestIntroductionThatCannotBeStoredCanBeRepeated(t *testing.T) {
	t.Parallel()
	milan := newOther(t, "milan")
	r, _ := newIntroductions(t)
	good := r.Client
	r.Client = failing{good}
	nonce := [32]byte{1}
	if _, err := r.Introduce(t.Context(), milan.id, "x", milan.info, peering.Commitment(milan.id, nonce), false); err != nil {
		t.Fatal(err)
	}
	if err := r.Reveal(t.Context(), milan.id, nonce); err == nil {
		t.Fatal("nothing was kept")
	}
	r.Client = good
	if err := r.Reveal(t.Context(), milan.id, nonce); err != nil || len(peersOf(t, good)) != 1 {
		t.Errorf("again: %v", err)
	}
	if i := r.pending[milan.id]; !bytes.Equal(i.nonce[:], make([]byte, 32)) {
		t.Error("the number is still remembered")
	}
}

// failing is an API server that takes no new objects.
type failing struct{ client.Client }

func (failing) Create(context.Context, client.Object, ...client.CreateOption) error {
	return errors.New("etcd is full")
}
