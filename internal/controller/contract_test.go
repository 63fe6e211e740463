package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/peeringtest"
)

// parties is the two sides of a contract.
type parties struct{ consumer, provider *identity.Identity }

func newParties(t *testing.T) parties {
	t.Helper()
	a, err1 := identity.Generate(now)
	b, err2 := identity.Generate(now)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return parties{a, b}
}

func resourcesOf(t *testing.T, texts map[string]string) peering.Resources {
	t.Helper()
	r, err := peering.ParseResources(texts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var decimal = peeringtest.Decimal

// eur is a price list of one resource.
func eur(t *testing.T, pairs ...string) peering.PriceList {
	t.Helper()
	list := peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{}}
	for i := 0; i < len(pairs); i += 2 {
		list.PerHour[pairs[i]] = decimal(t, pairs[i+1])
	}
	return list
}

// terms are the terms of a contract for an hour that began a minute ago.
func (p parties) terms(t *testing.T, change func(*peering.Terms)) peering.Terms {
	t.Helper()
	out := peering.Terms{
		ContractID: "c-1", RequestID: "uid", Revision: 1, Consumer: p.consumer.Party(), Provider: p.provider.Party(), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(59 * time.Minute),
		Clauses: peering.Clauses{
			Resources: resourcesOf(t, map[string]string{"cpu": "4", "memory": "8Gi", "pods": "20"}), PodSecurity: peering.PodSecurityBaseline, Price: eur(t, "cpu", "0.1"), Renewable: true, Notice: 10 * time.Minute, StatementPeriod: 5 * time.Minute, Exposure: peering.ExposureOffloaded,
		},
	}
	if change != nil {
		change(&out)
	}
	return out
}

// envelope is terms that these signed.
func envelopeOf(t *testing.T, terms peering.Terms, by ...*identity.Identity) peering.Envelope {
	t.Helper()
	e, err := peering.NewEnvelope(terms)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range by {
		if e, err = e.Sign(rand.Reader, id.ID(), id.Signer()); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func (p parties) signed(t *testing.T, terms peering.Terms) peering.Envelope {
	t.Helper()
	return envelopeOf(t, terms, p.consumer, p.provider)
}

// stored is a contract as one side stores it, Active.
func (p parties) stored(t *testing.T, terms peering.Terms, self *identity.Identity) *v1alpha1.Contract {
	t.Helper()
	c, err := store.NewContract(p.signed(t, terms), self.ID(), "peer")
	if err != nil {
		t.Fatal(err)
	}
	c.UID = "contract-uid"
	c.Status.Phase = peering.PhaseActive.String()
	return c
}

// foreign is a ForeignCluster as the other side has it.
func foreign(name string, id *identity.Identity) *v1alpha1.ForeignCluster {
	return &v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.ForeignClusterSpec{ClusterID: string(id.ID()), TrustBundle: id.TrustBundle().PEM()},
		Status: v1alpha1.ForeignClusterStatus{
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue},
			},
			Session: &v1alpha1.PeerSession{ClockSkew: &metav1.Duration{}},
		},
	}
}

func fakeClient(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return peertest.Indexed(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Contract{}, &v1alpha1.ForeignCluster{}, &v1alpha1.PeeringRequest{}).
		WithIndex(&corev1.Pod{}, byNode, nodeOf))
}

// always is the same counterpart for each peer.
func always(c Counterpart) func(peering.ClusterID) Counterpart {
	return func(peering.ClusterID) Counterpart { return c }
}

// fakeCounterpart is the other side, as a test wants it.
type fakeCounterpart struct {
	mu         sync.Mutex
	contract   func() (peering.Envelope, error)
	statements func(after uint64) ([]peering.Envelope, error)
	told       []time.Time // the drainUntil of each Terminate
	calls      int
}

func (f *fakeCounterpart) Contract(context.Context, string) (peering.Envelope, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.contract == nil {
		return peering.Envelope{}, errors.New("no contract here")
	}
	return f.contract()
}

func (f *fakeCounterpart) Statements(_ context.Context, _ string, after uint64) ([]peering.Envelope, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.statements == nil {
		return nil, nil
	}
	return f.statements(after)
}

func (f *fakeCounterpart) Terminate(_ context.Context, _, _ string, drainUntil time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, drainUntil)
	return nil
}

// fakeNodes counts what is asked of it.
type fakeNodes struct {
	acceptNew       bool
	drains, removes int
	spec            NodeSpec
}

func (f *fakeNodes) Ensure(_ context.Context, spec NodeSpec) error {
	f.spec, f.acceptNew = spec, spec.AcceptNew
	return nil
}
func (f *fakeNodes) Drain(context.Context, string) (int, error)     { f.drains++; return 0, nil }
func (f *fakeNodes) Remove(context.Context, NodeSpec) (bool, error) { f.removes++; return true, nil }

func (f *fakeNodes) Status(string) NodeStatus {
	return NodeStatus{Ready: true, Reason: "PeerConnected"}
}

// fakeOffloaded reports the use that a test sets.
type fakeOffloaded struct {
	used corev1.ResourceList
	pods int
}

func (f *fakeOffloaded) Usage(context.Context, string) (corev1.ResourceList, int, error) {
	return f.used, f.pods, nil
}

func (f *fakeOffloaded) Close(context.Context, *v1alpha1.Contract) (bool, error) { return true, nil }

// bench is one side's Contracts with everything around them a fake, and a clock.
type bench struct {
	*Contracts
	client    client.WithWatch
	clock     time.Time
	nodes     *fakeNodes
	offloaded *fakeOffloaded
	peer      *fakeCounterpart
}

func newBench(t *testing.T, self *identity.Identity, objects ...client.Object) *bench {
	t.Helper()
	b := &bench{client: fakeClient(t, objects...), clock: now, nodes: &fakeNodes{}, offloaded: &fakeOffloaded{}, peer: &fakeCounterpart{}}
	b.Contracts = b.agent(self)
	return b
}

// agent is another process of the same cluster.
func (b *bench) agent(self *identity.Identity) *Contracts {
	return &Contracts{
		Client: b.client, Reader: b.client, Identity: func() *identity.Identity { return self }, Nodes: b.nodes, Offloaded: b.offloaded, Counterpart: always(b.peer),
		Budget: &store.WriteBudget{Now: func() time.Time { return b.clock }},
		Now:    func() time.Time { return b.clock }, Log: slog.New(slog.DiscardHandler),
	}
}

// look reconciles until nothing changes at once, and returns the contract, nil if
// that it is gone.
func (b *bench) look(t *testing.T) *v1alpha1.Contract {
	t.Helper()
	for range 5 {
		result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "c-1"}})
		if err != nil {
			t.Fatal(err)
		}
		if result.RequeueAfter > removalPoll || result.RequeueAfter == 0 {
			break
		}
	}
	var c v1alpha1.Contract
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &c); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		t.Fatal(err)
	}
	return &c
}

// says makes the peer report a state of the contract.
func (b *bench) says(t *testing.T, said v1alpha1.PeerContract) {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: "peer"}, &fc); err != nil {
		t.Fatal(err)
	}
	said.ID = "c-1"
	fc.Status.Contracts = []v1alpha1.PeerContract{said}
	if err := b.client.Status().Update(t.Context(), &fc); err != nil {
		t.Fatal(err)
	}
}

// TestContractDoesNotEndByAClockInDoubt sets the clock ahead, past the end of a contract, while it cannot be relied on.
func TestContractDoesNotEndByAClockInDoubt(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	draining := func(c *v1alpha1.Contract) {
		c.Status.Phase, c.Status.Reason = "Draining", peering.EndedByPeer.Name()
		c.Status.DrainUntil = &metav1.Time{Time: now.Add(10 * time.Minute)}
	}
	type row struct {
		change func(*v1alpha1.Contract)
		says   v1alpha1.PeerContract
		phase  string // while the clock is in doubt
		sure   string // then
	}
	active := v1alpha1.PeerContract{Revision: 1, Phase: "Active"}
	for name, tc := range map[string]row{
		"it goes on":                      {says: active, phase: "Active", sure: "Closed"},
		"it goes on draining":             {change: draining, says: active, phase: "Draining", sure: "Closed"},
		"an administrator still ends it":  {change: func(c *v1alpha1.Contract) { c.Spec.Termination = v1alpha1.TerminateNow }, says: active, phase: "Closed", sure: "Closed"},
		"the peer still ends it":          {says: v1alpha1.PeerContract{Revision: 1, Phase: "Closed"}, phase: "Closed", sure: "Closed"},
		"it was set right before it said": {says: active, phase: "Active", sure: "Active"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := p.stored(t, p.terms(t, nil), p.provider)
			if tc.change != nil {
				tc.change(c)
			}
			b := newBench(t, p.provider, c, foreign("peer", p.consumer))
			doubt := "this node's clock is 24h0m0s ahead of the API server's"
			b.ClockDoubt = func() string { return doubt }
			b.offloaded.used, b.offloaded.pods = amountsIn("cpu=1"), 1
			b.says(t, tc.says)
			b.clock = now.Add(24 * time.Hour)
			got := b.look(t)
			held := meta.FindStatusCondition(got.Status.Conditions, ConditionClockReliable)
			if got.Status.Phase != tc.phase || (held != nil) != (tc.phase != "Closed") || held != nil && !strings.Contains(held.Message, doubt) {
				t.Errorf("with the clock in doubt it is %s: %+v", got.Status.Phase, held)
			}
			doubt = ""
			if tc.sure == "Active" { // another agent: this one's pauses end by a clock that is never set back
				b.clock, b.Contracts = now.Add(time.Minute), b.agent(p.provider)
			}
			got = b.look(t)
			if held := meta.FindStatusCondition(got.Status.Conditions, ConditionClockReliable); got.Status.Phase != tc.sure || held != nil {
				t.Errorf("then it is %s: %+v", got.Status.Phase, held)
			}
		})
	}
}

func onNodeOf(request string, names ...string) []client.Object {
	var out []client.Object
	for _, name := range names {
		out = append(out, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: request},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue}}},
		})
	}
	return out
}

func TestNoticeLeavesPodsRunningForItsFirstHalf(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	c := p.stored(t, p.terms(t, nil), p.consumer)
	c.Status.Node = "request"
	request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "request", UID: "uid"}}
	request.Spec.ForeignCluster = "peer"
	b := newBench(t, p.consumer, append(onNodeOf("request", "a"), c, request, foreign("peer", p.provider))...)
	if got := b.look(t); got.Status.Phase != "Active" || !b.nodes.acceptNew {
		t.Fatalf("at first it is %+v", got.Status)
	}
	until := metav1.NewTime(now.Add(10 * time.Minute))
	b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Draining", DrainUntil: &until})
	got := b.look(t)
	if got.Status.Phase != "Draining" || got.Status.Reason != "EndedByPeer" || got.Status.DrainUntil == nil || !got.Status.DrainUntil.Time.Equal(until.Time) {
		t.Fatalf("after the notice it is %+v", got.Status)
	}
	if b.nodes.acceptNew || b.nodes.drains > 0 {
		t.Errorf("in the first half the node takes pods (%t) or its pods are evicted (%d times)", b.nodes.acceptNew, b.nodes.drains)
	}
	// A restart in between forgets nothing.
	b.clock = now.Add(4 * time.Minute)
	b.Contracts = b.agent(p.consumer)
	if got := b.look(t); got.Status.Phase != "Draining" || !got.Status.DrainUntil.Time.Equal(until.Time) || b.nodes.drains > 0 {
		t.Errorf("after a restart it is %+v, evicted %d times", got.Status, b.nodes.drains)
	}
	b.clock = now.Add(5 * time.Minute)
	if b.look(t); b.nodes.drains == 0 {
		t.Error("in the second half nothing is evicted")
	}
	b.clock = now.Add(10 * time.Minute)
	if got := b.look(t); got.Status.Phase != "Closed" || got.Status.Reason != "EndedByPeer" || b.nodes.removes == 0 {
		t.Errorf("after the notice it is %+v", got.Status)
	}
}

func TestNoticeIsConvertedToThisClustersClock(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	for name, tc := range map[string]struct {
		skew *time.Duration
		call bool
	}{
		"reported by a peer whose clock is ahead":  {skew: new(time.Hour)},
		"reported by one whose clock is behind":    {skew: new(-time.Hour)},
		"called by one whose clock is behind":      {skew: new(-time.Hour), call: true},
		"reported by one whose clock is not known": {},
		"called by one whose clock is not known":   {call: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, fc := p.stored(t, p.terms(t, nil), p.consumer), foreign("peer", p.provider)
			c.Status.Node = "request"
			until := now.Add(10 * time.Minute) // the provider means
			theirs := metav1.NewTime(until)
			fc.Status.Session = nil
			if tc.skew != nil {
				theirs = metav1.NewTime(until.Add(*tc.skew))
				fc.Status.Session = &v1alpha1.PeerSession{ClockSkew: &metav1.Duration{Duration: *tc.skew}}
			}
			b := newBench(t, p.consumer, append(onNodeOf("request", "a"), c, fc)...)
			b.look(t)
			if tc.call {
				var held v1alpha1.Contract
				if err := b.client.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &held); err != nil {
					t.Fatal(err)
				}
				if err := peerEnds(t.Context(), b.client, b.Budget, &held, p.consumer.ID(), theirs.Time, now); err != nil {
					t.Fatal(err)
				}
			}
			b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Draining", DrainUntil: &theirs})
			got := b.look(t)
			if got.Status.Phase != "Draining" || tc.skew != nil && !store.TimeOf(got.Status.DrainUntil).Equal(until) ||
				tc.skew == nil && store.TimeOf(got.Status.DrainUntil).Before(until) {
				t.Fatalf("it is %s until %s, and the provider means %s", got.Status.Phase, got.Status.DrainUntil, until)
			}
			// The session is lost, or is back with clocks that are a little further apart.
			was := store.TimeOf(got.Status.DrainUntil)
			for i, session := range []*v1alpha1.PeerSession{nil, {}, {ClockSkew: &metav1.Duration{Duration: time.Hour}}, {ClockSkew: &metav1.Duration{Duration: -time.Hour}}} {
				if tc.skew == nil && session != nil || session != nil && session.ClockSkew != nil && *tc.skew != session.ClockSkew.Duration {
					continue
				}
				if session != nil && session.ClockSkew != nil {
					session.ClockSkew.Duration += 2 * time.Second
				}
				var fc v1alpha1.ForeignCluster
				if err := b.client.Get(t.Context(), client.ObjectKey{Name: "peer"}, &fc); err != nil {
					t.Fatal(err)
				}
				fc.Status.Session = session
				if err := b.client.Status().Update(t.Context(), &fc); err != nil {
					t.Fatal(err)
				}
				if got := b.look(t); got.Status.Phase != "Draining" || !store.TimeOf(got.Status.DrainUntil).Equal(was) {
					t.Errorf("session %d: it is %s until %s, was %s", i, got.Status.Phase, got.Status.DrainUntil, was)
				}
			}
		})
	}
}

func TestNodeWithoutPodsIsRemovedBeforeTheNoticeEnds(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	c := p.stored(t, p.terms(t, nil), p.consumer)
	c.Status.Node = "request"
	b := newBench(t, p.consumer, c, foreign("peer", p.provider))
	until := metav1.NewTime(now.Add(10 * time.Minute))
	b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Draining", DrainUntil: &until})
	if got := b.look(t); got != nil && got.Status.Phase != "Closed" {
		t.Errorf("it is %+v", got.Status)
	}
}

func TestProviderDrainsForItsNotice(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	c := p.stored(t, p.terms(t, nil), p.provider)
	c.Spec.Termination = v1alpha1.TerminateDrain
	b := newBench(t, p.provider, c, foreign("peer", p.consumer))
	b.offloaded.pods = 1
	got := b.look(t)
	want := now.Add(10 * time.Minute)
	if got.Status.Phase != "Draining" || got.Status.Reason != "EndedHere" || !store.TimeOf(got.Status.DrainUntil).Equal(want) {
		t.Fatalf("it is %+v, want Draining until %s", got.Status, want)
	}
	if len(b.peer.told) != 1 || !b.peer.told[0].Equal(want) {
		t.Errorf("the consumer was notified of %v, want once %s", b.peer.told, want)
	}
	b.clock = want
	if got := b.look(t); got != nil && got.Status.Phase != "Closed" {
		t.Errorf("with a consumer that does not respond it is %+v", got.Status)
	}
}

func TestCallThatEndsAContractIsRecorded(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	until := now.Add(5 * time.Minute)
	c := p.stored(t, p.terms(t, nil), p.consumer)
	b := newBench(t, p.consumer, c, foreign("peer", p.provider))
	get := func() *v1alpha1.Contract {
		t.Helper()
		var c v1alpha1.Contract
		if err := b.client.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &c); err != nil {
			t.Fatal(err)
		}
		return &c
	}
	if err := peerEnds(t.Context(), b.client, b.Budget, get(), p.consumer.ID(), until, now); err != nil {
		t.Fatal(err)
	}
	if got := get(); got.Status.Phase != "Draining" || got.Status.Reason != "EndedByPeer" || !store.TimeOf(got.Status.DrainUntil).Equal(until) || got.Spec.Termination != "" {
		t.Errorf("with notice it is %+v", got.Status)
	}
	if err := peerEnds(t.Context(), b.client, b.Budget, get(), p.consumer.ID(), time.Time{}, now); err != nil {
		t.Fatal(err)
	}
	if got := get(); got.Spec.Termination != v1alpha1.TerminatePeer {
		t.Errorf("at once it is %+v", got.Spec.Termination)
	}
}

// next is the revision after terms.
func next(terms peering.Terms, e peering.Envelope, change func(*peering.Terms)) peering.Terms {
	terms.Revision, terms.Previous = terms.Revision+1, e.Hash()
	terms.NotBefore, terms.NotAfter = terms.NotBefore.Add(time.Minute), terms.NotAfter.Add(time.Hour)
	if change != nil {
		change(&terms)
	}
	return terms
}

func TestContractTakesOverALaterRevisionOfThePeer(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	stranger := newParties(t).consumer
	first := p.terms(t, nil)
	e1 := p.signed(t, first)
	second := next(first, e1, nil)
	for name, tc := range map[string]struct {
		envelope peering.Envelope
		why      string // empty: it is taken
	}{
		"the next one":                           {envelope: p.signed(t, second)},
		"one after another that was missed":      {envelope: p.signed(t, next(second, p.signed(t, second), nil))},
		"without this cluster's signature":       {envelopeOf(t, second, p.provider), "missing"},
		"signed by another cluster in its place": {envelopeOf(t, second, stranger, p.provider), "not asked for"},
		"the same again":                         {e1, "has revision 1"},
		"one that follows something else":        {p.signed(t, next(first, e1, func(x *peering.Terms) { x.Previous = peering.Hash{1} })), "does not follow"},
		"of another contract":                    {p.signed(t, next(first, e1, func(x *peering.Terms) { x.ContractID = "c-2" })), "c-2"},
		"of another request":                     {p.signed(t, next(first, e1, func(x *peering.Terms) { x.RequestID = "other" })), "it is of contract"},
		"with the parties in each other's place": {p.signed(t, next(first, e1, func(x *peering.Terms) { x.Consumer, x.Provider = x.Provider, x.Consumer })), "it is of contract"},
		"what is not an envelope":                {peering.Envelope{Payload: []byte("{}"), PayloadType: peering.PayloadType}, "terms"},
		"a statement of use in its place":        {peering.Envelope{Payload: []byte("{}"), PayloadType: peering.StatementPayloadType}, "payload type"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := p.stored(t, first, p.consumer)
			err := laterRevision(c, tc.envelope, p.consumer.ID())
			if (err == nil) != (tc.why == "") || err != nil && !strings.Contains(err.Error(), tc.why) {
				t.Errorf("error %v, want %q", err, tc.why)
			}
			b := newBench(t, p.consumer, c, foreign("peer", p.provider))
			b.peer.contract = func() (peering.Envelope, error) { return tc.envelope, nil }
			b.says(t, v1alpha1.PeerContract{Revision: 9, Phase: "Active"})
			got := b.look(t)
			if taken := got.Spec.Revision > 1; taken != (tc.why == "") {
				t.Errorf("revision %d is stored", got.Spec.Revision)
			}
			if got.Status.Phase != "Active" {
				t.Errorf("it is %+v", got.Status)
			}
			if b.peer.calls > 2 {
				t.Errorf("the peer was asked %d times in a moment", b.peer.calls)
			}
		})
	}
}

func TestEarlierRevisionIsKept(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, nil)
	c := p.stored(t, terms, p.consumer)
	texts := map[string]string{}
	for revision := range uint64(20) {
		envelope := p.signed(t, terms)
		text, err := envelope.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		texts[fmt.Sprintf("entente.dev/envelope-of-revision-%d", revision+1)] = string(text)
		if revision > 0 {
			if err := store.Revise(c, envelope, p.consumer.ID()); err != nil {
				t.Fatal(err)
			}
		}
		terms = next(terms, envelope, nil)
	}
	kept, bytes := 0, 0
	for key, text := range c.Annotations {
		bytes += len(text)
		if want, ok := texts[key]; ok {
			if kept++; text != want {
				t.Errorf("%s is %.40s...", key, text)
			}
		}
	}
	// The last is in the spec, the one before has a place of its own.
	if kept < 8 || kept > 16 || bytes > 128<<10 || c.Annotations["entente.dev/envelope-of-revision-18"] == "" || c.Annotations["entente.dev/envelope-of-revision-1"] != "" {
		t.Errorf("%d revisions are kept, with %d bytes", kept, bytes)
	}
}

func TestRevisionLeavesStateAndTermination(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	first := p.terms(t, nil)
	c := p.stored(t, first, p.consumer)
	c.Spec.Termination = v1alpha1.TerminateDrain
	if err := store.SetFulfils(c, store.Fulfilment{Generation: 3}); err != nil {
		t.Fatal(err)
	}
	second := next(first, p.signed(t, first), func(x *peering.Terms) { x.Resources = resourcesOf(t, map[string]string{"cpu": "8"}) })
	if err := store.Revise(c, p.signed(t, second), p.consumer.ID()); err != nil {
		t.Fatal(err)
	}
	if c.Spec.Revision != 2 || c.Spec.Resources.Cpu().String() != "8" || c.Spec.Termination != v1alpha1.TerminateDrain || c.Status.Phase != "Active" {
		t.Errorf("it is %+v", c.Spec)
	}
	if store.Fulfils(c).Generation != 0 {
		t.Error("it still records which spec it fulfils")
	}
	before, ok := store.Before(c, p.consumer.ID())
	if !ok || before.Revision != 1 || before.Resources["cpu"].String() != "4" {
		t.Errorf("before it were %+v, %t", before, ok)
	}
	if err := store.Revise(c, p.signed(t, first), p.consumer.ID()); err == nil {
		t.Error("the first revision comes back")
	}
}

func TestPeerThatDoesNotRespondDelaysOnlyItsContracts(t *testing.T) {
	t.Parallel()
	var p pauses
	if !p.due("a", "c-1", "revision", now) || p.due("a", "c-1", "revision", now) {
		t.Error("it may be asked never, or twice")
	}
	p.record("a", "c-1", "revision", context.DeadlineExceeded, now)
	if p.due("a", "c-2", "statements", now.Add(fetchAgain-1)) || !p.slow("a", now) {
		t.Error("a peer that did not respond is asked for something else")
	}
	if !p.due("b", "c-3", "statements", now) || p.slow("b", now) {
		t.Error("another peer is not asked")
	}
	if !p.due("a", "c-2", "statements", now.Add(fetchAgain)) {
		t.Error("it is never asked again")
	}
	p.record("a", "c-2", "statements", &peering.Error{Reason: peering.ReasonUnavailable}, now)
	if !p.due("a", "c-2", "statements", now.Add(fetchAgain)) {
		t.Error("what did not reach it counts as asked")
	}
}

func TestContractWithAPriceIsKeptAfterItsEnd(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	free := func(x *peering.Terms) { x.Price = peering.PriceList{} }
	for name, tc := range map[string]struct {
		terms   func(*peering.Terms)
		self    func(parties) *identity.Identity
		peer    bool
		deleted bool
		kept    bool
	}{
		"by the provider":                {self: parties.asProvider, peer: true, kept: true},
		"by the consumer":                {self: parties.asConsumer, peer: true, kept: true},
		"of a peer that was forgotten":   {self: parties.asProvider, kept: true},
		"not one that was free":          {self: parties.asProvider, peer: true, terms: free},
		"not one that was deleted":       {self: parties.asProvider, peer: true, deleted: true},
		"not a free one by its consumer": {self: parties.asConsumer, peer: true, terms: free},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			self := tc.self(p)
			c := p.stored(t, p.terms(t, tc.terms), self)
			objects := []client.Object{c}
			if tc.peer {
				other := p.consumer
				if self == p.consumer {
					other = p.provider
				}
				fc := foreign("peer", other)
				fc.Status.Contracts = []v1alpha1.PeerContract{{ID: "c-1", Revision: 1, Phase: "Closed"}}
				objects = append(objects, fc)
			}
			b := newBench(t, self, objects...)
			if tc.deleted {
				if err := b.client.Delete(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			b.look(t)
			b.clock = b.clock.Add(statementGrace)
			got := b.look(t)
			if (got != nil) != tc.kept {
				t.Fatalf("it is kept: %t", got != nil)
			}
			if got == nil {
				return
			}
			if !store.Released(got) || got.Status.ClosedAt == nil || got.Spec.Envelope != c.Spec.Envelope {
				t.Errorf("what is kept is %+v", got)
			}
			if states, _ := contractStates([]v1alpha1.Contract{*got}); len(states) != 0 {
				t.Errorf("it is still reported to the peer: %+v", states)
			}
			calls := b.peer.calls
			b.clock = b.clock.Add(closedKept - time.Hour)
			again := b.look(t)
			if again == nil || again.ResourceVersion != got.ResourceVersion || b.peer.calls != calls {
				t.Errorf("it does not rest: %+v", again)
			}
			b.clock = b.clock.Add(time.Hour)
			if b.look(t) != nil {
				t.Error("it is kept for ever")
			}
		})
	}
}

func (p parties) asProvider() *identity.Identity { return p.provider }
func (p parties) asConsumer() *identity.Identity { return p.consumer }

func TestReleasedContractsThatCostLeastArePrunedFirst(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	var objects []client.Object
	over := func(i int, spent bool) *v1alpha1.Contract {
		terms := p.terms(t, func(x *peering.Terms) { x.ContractID = fmt.Sprintf("c-%d", i) })
		c := p.stored(t, terms, p.provider)
		c.UID, c.Finalizers = types.UID(c.Name), nil
		c.Status.Phase, c.Status.ClosedAt = peering.PhaseClosed.String(), &metav1.Time{Time: now.Add(time.Duration(i) * time.Second)}
		if spent {
			text, err := p.statementsOf(t, terms, 1, nil)[0].Marshal()
			if err != nil {
				t.Fatal(err)
			}
			c.Status.Statements = []v1alpha1.Statement{{Sequence: 1, Envelope: string(text)}}
		}
		return c
	}
	// The oldest is the one by which something is owed.
	for i := range maxClosed + 3 {
		objects = append(objects, over(i, i == 0))
	}
	unreleased := p.stored(t, p.terms(t, func(x *peering.Terms) { x.ContractID = "c-unreleased" }), p.provider)
	unreleased.UID = "unreleased"
	b := newBench(t, p.provider, append(objects, unreleased)...)
	b.clock = now.Add(time.Hour)
	b.look(t) // at c-1, which is pruned
	var list v1alpha1.ContractList
	if err := b.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for i := range list.Items {
		names[list.Items[i].Name] = true
	}
	if len(names) != maxClosed+1 || !names["c-0"] || !names["c-unreleased"] || names["c-1"] || names["c-2"] || names["c-3"] || !names["c-4"] {
		t.Errorf("%d are kept: %v", len(names), names)
	}
}

// A cluster that lost its identity is another one: what it agreed on before no longer binds it, and is removed
// when an administrator ends it.
func TestAContractOfAnotherIdentityGoesWhenItIsEnded(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	c := p.stored(t, p.terms(t, nil), p.consumer)
	c.Status.Node = "request.entente.dev"
	b := newBench(t, newParties(t).consumer, c, foreign("peer", p.provider))
	if got := b.look(t); got == nil || !strings.Contains(got.Status.Message, "is of contract c-1 between") || b.nodes.removes > 0 {
		t.Fatalf("with another identity it is %+v, and its node was removed %d times", got, b.nodes.removes)
	}
	if err := b.client.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if got := b.look(t); got != nil || b.nodes.removes == 0 {
		t.Errorf("it was deleted, and is %+v; its node was removed %d times", got, b.nodes.removes)
	}
}
