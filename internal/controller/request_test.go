package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// requestFor is a PeeringRequest that asks for what terms() grants.
func requestFor(change func(*v1alpha1.PeeringRequest)) *v1alpha1.PeeringRequest {
	s := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "request", UID: "uid", Generation: 1}, Spec: v1alpha1.PeeringRequestSpec{
		ForeignCluster: "peer", Resources: amountsIn("cpu=4", "memory=8Gi", "pods=20"), Network: v1alpha1.NetworkNone, Renewal: v1alpha1.RenewalAutomatic,
	}}
	if change != nil {
		change(s)
	}
	return s
}

func choosing(s *v1alpha1.PeeringRequest) {
	s.Spec.ForeignCluster, s.Spec.ClusterSelector = "", &metav1.LabelSelector{MatchLabels: map[string]string{"offers": "yes"}}
}

func TestPlanRequestAsksAmendsAndRenews(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	never := func(s *v1alpha1.PeeringRequest) { s.Spec.Renewal = v1alpha1.RenewalNever }
	changed := func(s *v1alpha1.PeeringRequest) { s.Generation = 2 }
	over := func(reason peering.EndReason) func(*v1alpha1.Contract) {
		return func(c *v1alpha1.Contract) { c.Status.Phase, c.Status.Reason = "Closed", reason.Name() }
	}
	type row struct {
		request  func(*v1alpha1.PeeringRequest)
		contract func(*v1alpha1.Contract)
		terms    func(*peering.Terms)
		none     bool // no contract
		gone     bool // its ForeignCluster
		standing string
		later    time.Duration
		want     course
		reason   string // of Accepted, where nothing is done
		renewal  bool
	}
	for name, tc := range map[string]row{
		"there is no contract yet":                  {none: true, want: courseAsk},
		"a contract as asked":                       {want: courseKeep, reason: "Contracted"},
		"the spec changed":                          {request: changed, want: courseAmend},
		"it nears its end":                          {later: 45 * time.Minute, want: courseRenew, renewal: true},
		"it nears its end and is not to be renewed": {request: never, later: 45 * time.Minute, want: courseKeep, reason: "Contracted"},
		"the provider does not renew":               {terms: func(x *peering.Terms) { x.Renewable = false }, later: 45 * time.Minute, want: courseKeep, reason: "Contracted", renewal: true},
		"it nears its end and the spec changed":     {request: changed, later: 45 * time.Minute, want: courseAmend, renewal: true},
		"a moment before its renewal is due":        {later: 43 * time.Minute, want: courseKeep, reason: "Contracted"},
		"it drains":                                 {contract: func(c *v1alpha1.Contract) { c.Status.Phase = "Draining" }, request: changed, want: courseKeep, reason: "Draining"},
		"an administrator just asked for its end":   {contract: func(c *v1alpha1.Contract) { c.Spec.Termination = v1alpha1.TerminateDrain }, want: courseKeep, reason: "Draining"},
		"the provider ended it":                     {contract: over(peering.EndedByPeer), want: courseKeep, reason: "EndedByProvider"},
		"the provider ended it, as it called":       {contract: func(c *v1alpha1.Contract) { c.Status.Phase, c.Spec.Termination = "Closed", v1alpha1.TerminatePeer }, want: courseKeep, reason: "EndedByProvider"},
		"one of several providers ended it":         {request: choosing, contract: over(peering.EndedByPeer), want: courseAsk},
		"this side ended it":                        {contract: over(peering.EndedHere), want: courseAsk},
		"this side ended it with one of several":    {request: choosing, contract: over(peering.EndedHere), want: courseKeep, reason: "EndedHere"},
		"this side forgot one of several":           {request: choosing, contract: over(peering.EndedHere), gone: true, want: courseAsk},
		"it reached its end":                        {contract: over(peering.EndedByExpiry), want: courseAsk},
		"it reached its end and that was it":        {request: never, contract: over(peering.EndedByExpiry), want: courseKeep, reason: "Expired"},
		"its node still exists":                     {contract: over(peering.EndedByExpiry), standing: "request", want: courseKeep, reason: "RemovingNode"},
		"one that a signature away made, unlooked":  {contract: func(c *v1alpha1.Contract) { c.Status.Phase = "" }, want: courseKeep, reason: "Contracted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var h *currentContract
			if !tc.none {
				c := p.stored(t, p.terms(t, tc.terms), p.consumer)
				if err := store.SetFulfils(c, store.Fulfilment{Generation: 1}); err != nil {
					t.Fatal(err)
				}
				if tc.contract != nil {
					tc.contract(c)
				}
				state, terms, err := store.ReadContract(c, p.consumer.ID())
				if err != nil {
					t.Fatal(err)
				}
				h = &currentContract{c, state, terms}
			}
			got := planRequest(requestFor(tc.request), h, tc.gone, tc.standing, now.Add(tc.later))
			if got.course != tc.want || got.renewal != tc.renewal || got.course == courseKeep && got.accepted.Reason != tc.reason {
				t.Errorf("it does %d (renewal %t, %s), want %d (%t, %s)", got.course, got.renewal, got.accepted.Reason, tc.want, tc.renewal, tc.reason)
			}
		})
	}
}

func TestNextRevisionAsksForWhatTheSpecChanged(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	hour := &metav1.Duration{Duration: time.Hour}
	for name, tc := range map[string]struct {
		request  func(*v1alpha1.PeeringRequest)
		fulfils  store.Fulfilment
		why      course
		cpu      string
		duration time.Duration
	}{
		"more, as the spec asks":                        {func(s *v1alpha1.PeeringRequest) { s.Generation, s.Spec.Resources = 2, amountsIn("cpu=8") }, store.Fulfilment{Generation: 1}, courseAmend, "8", 0},
		"what is free, where the spec names no amounts": {func(s *v1alpha1.PeeringRequest) { s.Generation, s.Spec.Resources = 2, nil }, store.Fulfilment{Generation: 1}, courseAmend, "4", 0},
		"what there is of what the spec leaves out":     {func(s *v1alpha1.PeeringRequest) { s.Generation, s.Spec.Resources = 2, amountsIn("memory=1Gi") }, store.Fulfilment{Generation: 1}, courseAmend, "4", 0},
		"renewed: what there is":                        {func(s *v1alpha1.PeeringRequest) { s.Spec.Resources = nil }, store.Fulfilment{Generation: 1}, courseRenew, "4", 0},
		"renewed, for as long as was asked":             {func(s *v1alpha1.PeeringRequest) { s.Spec.Duration = hour }, store.Fulfilment{Generation: 1, Duration: time.Hour}, courseRenew, "4", time.Hour},
		"renewed when the change was refused":           {func(s *v1alpha1.PeeringRequest) { s.Generation, s.Spec.Resources = 2, amountsIn("cpu=800") }, store.Fulfilment{Generation: 1}, courseRenew, "4", 0},
		"changed without a later end": {func(s *v1alpha1.PeeringRequest) {
			s.Generation, s.Spec.Renewal, s.Spec.Duration = 2, v1alpha1.RenewalNever, hour
		}, store.Fulfilment{Generation: 1, Duration: time.Hour}, courseAmend, "4", 60 * time.Minute},
		"changed with the duration": {func(s *v1alpha1.PeeringRequest) {
			s.Generation, s.Spec.Renewal, s.Spec.Duration = 2, v1alpha1.RenewalNever, &metav1.Duration{Duration: 5 * time.Hour}
		}, store.Fulfilment{Generation: 1, Duration: time.Hour}, courseAmend, "4", 5 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := p.stored(t, p.terms(t, nil), p.consumer)
			if err := store.SetFulfils(c, tc.fulfils); err != nil {
				t.Fatal(err)
			}
			state, terms, err := store.ReadContract(c, p.consumer.ID())
			if err != nil {
				t.Fatal(err)
			}
			s := requestFor(tc.request)
			ask, err := market.AskOf(s)
			if err != nil {
				t.Fatal(err)
			}
			got := nextAsk(ask, s, &currentContract{c, state, terms}, tc.why, now)
			if got.ContractID != "c-1" || got.RequestID != "uid" || got.Resources["cpu"].String() != tc.cpu || got.Resources["pods"].String() != "20" || got.Duration != tc.duration {
				t.Errorf("it asks %+v", got)
			}
		})
	}
}

// fakeMarket is several providers. Each stores what it signed, as a real one does.
type fakeMarket struct {
	t  *testing.T
	mu sync.Mutex
	// sellers are the providers by cluster ID.
	sellers map[peering.ClusterID]*seller
	now     func() time.Time
	n       int
}

type seller struct {
	id    *identity.Identity
	price peering.PriceList
	// refuses is why the provider refuses, changes what it offers. There is no session
	// with one that is away, and one with approves has an administrator approve requests.
	refuses  peering.Reason
	away     bool
	approves bool
	changes  func(*peering.Advertisement)
	// deaf is how many signatures it accepts without a response.
	deaf      int
	held      map[string]peering.Envelope // by contract
	previews  int
	requests  int
	signs     int
	forgetful bool // it draws up each offer again
	// signing is called with each contract that it signs, before it responds.
	signing func(peering.Envelope, peering.Terms)
	// asked is the last ask for an offer to be signed, seen that of the last preview.
	asked, seen peering.Ask
}

func (m *fakeMarket) offer(s *seller, ask peering.Ask, preview bool) (peering.Advertisement, error) {
	if s.away {
		return peering.Advertisement{}, status.Error(codes.Unavailable, "no session")
	}
	if s.approves && !preview {
		return peering.Advertisement{}, peering.Errorf(peering.ReasonPolicyPending, "an administrator has to approve it")
	}
	if s.refuses != "" {
		return peering.Advertisement{}, peering.Errorf(s.refuses, "no")
	}
	m.n++
	ad := peering.Advertisement{ContractID: fmt.Sprintf("c-%d", m.n), RequestID: ask.RequestID, Revision: 1, ValidUntil: m.now().Add(time.Minute)}
	ad.Grant = peering.Grant{
		Duration: time.Hour, StorageClasses: ask.StorageClasses,
		Clauses: peering.Clauses{
			Resources: ask.Resources.Clone(), Network: ask.Network, PodSecurity: peering.PodSecurityBaseline, Price: s.price, Renewable: true, Notice: 10 * time.Minute, StatementPeriod: 5 * time.Minute, Exposure: peering.ExposureOffloaded, NodeSelector: ask.NodeSelector, RuntimeClasses: ask.RuntimeClasses,
		},
	}
	if ask.Duration > 0 {
		ad.Duration = min(ask.Duration, time.Hour)
	}
	for id, e := range s.held {
		terms, err := peering.ParseTerms(e.Payload)
		if err != nil {
			m.t.Error(err)
		}
		switch {
		case ask.ContractID == id:
			ad.ContractID, ad.Revision, ad.PreviousHash = id, terms.Revision+1, e.Hash()
		case !preview && ask.ContractID == "" && terms.RequestID == ask.RequestID && !s.forgetful:
			ad.ContractID, ad.Revision, ad.PreviousHash = id, terms.Revision, terms.Previous
		}
	}
	if preview {
		ad.ContractID, ad.NeedsApproval = "", s.approves
	}
	if s.changes != nil {
		s.changes(&ad)
	}
	return ad, nil
}

// fakeProvider is a seller of the market.
type fakeProvider struct {
	*fakeMarket
	peer peering.ClusterID
}

func (m *fakeMarket) provider(peer peering.ClusterID) Provider { return fakeProvider{m, peer} }

func (m fakeProvider) Request(_ context.Context, ask peering.Ask) (peering.Advertisement, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sellers[m.peer].requests++
	m.sellers[m.peer].asked = ask
	return m.offer(m.sellers[m.peer], ask, false)
}

func (m fakeProvider) Preview(_ context.Context, ask peering.Ask) (peering.Advertisement, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sellers[m.peer].previews++
	m.sellers[m.peer].seen = ask
	return m.offer(m.sellers[m.peer], ask, true)
}

func (m fakeProvider) Sign(_ context.Context, e peering.Envelope) (peering.Envelope, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sellers[m.peer]
	s.signs++
	terms, err := e.VerifyConsumer()
	if err != nil {
		return peering.Envelope{}, peering.Errorf(peering.ReasonSignatureInvalid, "%v", err)
	}
	held, ok := s.held[terms.ContractID]
	if ok {
		if before, _ := peering.ParseTerms(held.Payload); before.Revision == terms.Revision {
			return held, nil
		}
	}
	if held, err = e.Sign(nil, s.id.ID(), s.id.Signer()); err != nil {
		return peering.Envelope{}, err
	}
	if s.held == nil {
		s.held = map[string]peering.Envelope{}
	}
	s.held[terms.ContractID] = held
	if s.signing != nil {
		s.signing(held, terms)
	}
	if s.deaf > 0 {
		s.deaf--
		return peering.Envelope{}, context.DeadlineExceeded
	}
	return held, nil
}

// requestsBench is a consumer's Requests among fake providers.
type requestsBench struct {
	*Requests
	client client.WithWatch
	clock  time.Time
	market *fakeMarket
	self   *identity.Identity
}

func newRequestsBench(t *testing.T, request *v1alpha1.PeeringRequest, sellers map[string]*seller) *requestsBench {
	t.Helper()
	self := newParties(t).consumer
	b := &requestsBench{clock: now, self: self, market: &fakeMarket{t: t, sellers: map[peering.ClusterID]*seller{}}}
	b.market.now = func() time.Time { return b.clock }
	objects := []client.Object{request}
	for name, s := range sellers {
		s.id = newParties(t).provider
		b.market.sellers[s.id.ID()] = s
		fc := foreign(name, s.id)
		fc.Labels = map[string]string{"offers": "yes"}
		objects = append(objects, fc)
	}
	b.client = fakeClient(t, objects...)
	b.restart()
	return b
}

func (b *requestsBench) restart() {
	b.Requests = &Requests{
		Client: b.client, Reader: b.client, Identity: func() *identity.Identity { return b.self }, Provider: b.market.provider,
		Now: func() time.Time { return b.clock },
	}
}

// look reconciles once and returns the request and its contracts in force.
func (b *requestsBench) look(t *testing.T) (*v1alpha1.PeeringRequest, []v1alpha1.Contract) {
	t.Helper()
	key := client.ObjectKey{Name: "request"}
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	var s v1alpha1.PeeringRequest
	var list v1alpha1.ContractList
	if err := b.client.Get(t.Context(), key, &s); err != nil {
		t.Fatal(err)
	}
	if err := b.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return &s, slices.DeleteFunc(list.Items, func(c v1alpha1.Contract) bool { return store.Closed(&c) })
}

func accepted(s *v1alpha1.PeeringRequest) *metav1.Condition {
	return meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionAccepted)
}

func TestCheapestProviderIsTakenThenTheNext(t *testing.T) {
	t.Parallel()
	cheap, dear, dearest := &seller{price: eur(t, "cpu", "0.1")}, &seller{price: eur(t, "cpu", "0.2")}, &seller{price: eur(t, "cpu", "0.9")}
	b := newRequestsBench(t, requestFor(func(s *v1alpha1.PeeringRequest) {
		choosing(s)
		s.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "1"}
	}), map[string]*seller{"dear": dear, "cheap": cheap, "dearest": dearest})
	s, held := b.look(t)
	if len(held) != 1 || held[0].Spec.ForeignCluster != "cheap" || s.Status.ForeignCluster != "cheap" || s.Status.Contract != held[0].Name || accepted(s).Status != metav1.ConditionTrue {
		t.Fatalf("the request has %+v", s.Status)
	}
	if s.Status.ObservedGeneration != 1 {
		t.Errorf("it fulfils generation %d", s.Status.ObservedGeneration)
	}
	for range 3 {
		b.look(t)
	}
	if n := cheap.requests + dear.requests; n != 1 {
		t.Errorf("%d requests for one contract", n)
	}
	end := func(reason peering.EndReason) {
		t.Helper()
		c := held[0].DeepCopy()
		closed := metav1.NewTime(b.clock)
		c.Status.Phase, c.Status.Reason, c.Status.ClosedAt = "Closed", reason.Name(), &closed
		if err := b.client.Status().Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		delete(b.market.sellers[peering.ClusterID(c.Spec.PeerID)].held, c.Name)
	}
	end(peering.EndedByPeer)
	b.clock = b.clock.Add(time.Minute)
	if s, held = b.look(t); len(held) != 1 || held[0].Spec.ForeignCluster != "dear" || s.Status.ForeignCluster != "dear" {
		t.Fatalf("after the cheapest ended it the request has %+v", s.Status)
	}
	// That one ends too, and the first is still left out; the third is too dear.
	end(peering.EndedByPeer)
	s, held = b.look(t)
	if len(held) != 0 || accepted(s).Status != metav1.ConditionFalse || !strings.Contains(accepted(s).Message, "left out until") || !strings.Contains(accepted(s).Message, "ceiling") {
		t.Fatalf("after both ended it: %+v", accepted(s))
	}
	b.clock = b.clock.Add(market.LeftOut - time.Minute)
	if s, held = b.look(t); len(held) != 1 || held[0].Spec.ForeignCluster != "cheap" {
		t.Fatalf("after %s the request has %+v: %+v", market.LeftOut, s.Status, accepted(s))
	}
	end(peering.EndedHere)
	if s, held = b.look(t); len(held) != 0 || accepted(s).Reason != "EndedHere" {
		t.Fatalf("after this side ended it: %+v", accepted(s))
	}
}

// TestRequestOfAHintReportsItsNewName asks a cluster by the name that discovery
// gave it before it joined under its own.
func TestRequestOfAHintReportsItsNewName(t *testing.T) {
	t.Parallel()
	rome := &seller{price: eur(t, "cpu", "0.1")}
	for name, want := range map[string]string{"short": "as rome:", "whole": "as rome:", "other": "join it first"} {
		request := requestFor(nil)
		b := newRequestsBench(t, request, map[string]*seller{"rome": rome, "milan": {price: eur(t, "cpu", "0.1")}})
		hint := map[string]string{"short": "rome-" + rome.id.ID().Short(), "whole": "peer-" + string(rome.id.ID()), "other": "rome-aaaaaaaa"}[name]
		if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(request), request); err != nil {
			t.Fatal(err)
		}
		request.Spec.ForeignCluster = hint
		if err := b.client.Update(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if s, _ := b.look(t); accepted(s).Reason != "PeerUnknown" || !strings.Contains(accepted(s).Message, want) || !strings.Contains(accepted(s).Message, hint) {
			t.Errorf("%s: the condition is %+v, without %q", name, accepted(s), want)
		}
	}
}

// TestARequestOfAnyPeerSaysWhyNoneGrantsIt: a ceiling that is too low is not a lack of capacity.
func TestARequestOfAnyPeerSaysWhyNoneGrantsIt(t *testing.T) {
	t.Parallel()
	anyPeer := func(s *v1alpha1.PeeringRequest) {
		s.Spec.ForeignCluster, s.Spec.ClusterSelector = "", &metav1.LabelSelector{}
		s.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "0.01"}
	}
	dear, dearer := &seller{price: eur(t, "cpu", "0.1")}, &seller{price: eur(t, "cpu", "0.2")}
	for name, tc := range map[string]struct {
		request func(*v1alpha1.PeeringRequest)
		sellers map[string]*seller
		reason  string
		says    string
	}{
		"all are too dear":    {anyPeer, map[string]*seller{"a": dear, "b": dearer}, "PriceAboveCeiling", "the price is above the ceiling at all 2 clusters that can be asked: "},
		"one has nothing":     {anyPeer, map[string]*seller{"a": dear, "b": {refuses: peering.ReasonCapacityExhausted}}, "CapacityExhausted", "no trusted cluster grants it: "},
		"nobody can be asked": {anyPeer, nil, "PeerUnknown", "no trusted cluster can be asked"},
		"those selected have nothing": {
			choosing,
			map[string]*seller{"b": {refuses: peering.ReasonCapacityExhausted}},
			"CapacityExhausted",
			"no cluster that spec.clusterSelector selects grants it: ",
		},
	} {
		s, held := newRequestsBench(t, requestFor(tc.request), tc.sellers).look(t)
		if c := accepted(s); len(held) > 0 || c.Reason != tc.reason || !strings.HasPrefix(c.Message, tc.says) {
			t.Errorf("%s: the condition is %+v, want %s, %q", name, c, tc.reason, tc.says)
		}
	}
}

func TestFirstProviderThatStillGrantsIsTaken(t *testing.T) {
	t.Parallel()
	fickle, honest := &seller{price: eur(t, "cpu", "0.1")}, &seller{price: eur(t, "cpu", "0.2")}
	// It previews one price and asks for another when it is signed.
	fickle.changes = func(ad *peering.Advertisement) {
		if ad.ContractID != "" {
			ad.Price = eur(t, "cpu", "0.3")
		}
	}
	b := newRequestsBench(t, requestFor(func(s *v1alpha1.PeeringRequest) {
		choosing(s)
		s.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "1"}
	}), map[string]*seller{"fickle": fickle, "honest": honest})
	if s, held := b.look(t); len(held) != 1 || held[0].Spec.ForeignCluster != "honest" {
		t.Errorf("the request has %+v", s.Status)
	}
	if fickle.signs > 0 {
		t.Error("something else than was asked for was signed")
	}
}

// TestAProviderThatMayHaveSignedIsAskedFirst: the response to the signature is lost,
// and the agent dies; another provider, cheaper by now, is not asked before the
// first has responded.
func TestAProviderThatMayHaveSignedIsAskedFirst(t *testing.T) {
	t.Parallel()
	first, second := &seller{price: eur(t, "cpu", "0.1"), deaf: 2}, &seller{price: eur(t, "cpu", "0.2")}
	b := newRequestsBench(t, requestFor(choosing), map[string]*seller{"first": first, "second": second})
	s, held := b.look(t)
	if len(held) != 0 || len(first.held) != 1 || s.Status.ForeignCluster != "first" || s.Status.Contract != "" {
		t.Fatalf("the request has %+v, the provider %d contracts", s.Status, len(first.held))
	}
	second.price = eur(t, "cpu", "0.01")
	for range 3 {
		b.restart()
		b.clock = b.clock.Add(5 * time.Second)
		s, held = b.look(t)
	}
	if len(held) != 1 || held[0].Spec.ForeignCluster != "first" || len(second.held) != 0 || len(first.held) != 1 {
		t.Errorf("the request has %+v, the providers %d and %d contracts", s.Status, len(first.held), len(second.held))
	}
}

func TestAChangedSpecIsAmended(t *testing.T) {
	t.Parallel()
	provider := &seller{price: eur(t, "cpu", "0.1")}
	b := newRequestsBench(t, requestFor(nil), map[string]*seller{"peer": provider})
	change := func(change func(*v1alpha1.PeeringRequest)) {
		t.Helper()
		var s v1alpha1.PeeringRequest
		if err := b.client.Get(t.Context(), client.ObjectKey{Name: "request"}, &s); err != nil {
			t.Fatal(err)
		}
		change(&s)
		s.Generation++
		if err := b.client.Update(t.Context(), &s); err != nil {
			t.Fatal(err)
		}
	}
	b.look(t)
	change(func(s *v1alpha1.PeeringRequest) { s.Spec.Resources = amountsIn("cpu=8") })
	s, held := b.look(t)
	if len(held) != 1 || held[0].Spec.Revision != 2 || held[0].Spec.Resources.Cpu().String() != "8" || s.Status.ObservedGeneration != 2 {
		t.Fatalf("the contract is %+v, the request %+v", held[0].Spec, s.Status)
	}
	if b.look(t); provider.signs != 2 {
		t.Errorf("%d signatures for two revisions", provider.signs)
	}
	// A ceiling below the price changes nothing, and the condition says so.
	change(func(s *v1alpha1.PeeringRequest) {
		s.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "0.5"}
	})
	s, held = b.look(t)
	if len(held) != 1 || held[0].Spec.Revision != 2 || accepted(s).Status != metav1.ConditionFalse || !strings.Contains(accepted(s).Message, "goes on as it is") {
		t.Fatalf("the contract is %+v, the request %+v", held[0].Spec, accepted(s))
	}
	if s.Status.Contract != held[0].Name || s.Status.ObservedGeneration != 2 {
		t.Errorf("the request has %+v", s.Status)
	}
	// The response is lost: the provider has the third revision, and this side catches
	// up by the session; until then it asks for no fourth.
	change(func(s *v1alpha1.PeeringRequest) { s.Spec.PriceCeiling, s.Spec.Resources = nil, amountsIn("cpu=6") })
	provider.deaf = 1
	b.look(t)
	s, held = b.look(t)
	if held[0].Spec.Revision != 2 || accepted(s).Reason != "RevisionStale" {
		t.Errorf("revision %d is stored, and the request says %+v", held[0].Spec.Revision, accepted(s))
	}
	var newest peering.Envelope
	for _, e := range provider.held {
		newest = e
	}
	if _, err := replaceRevision(t.Context(), b.client, b.client, &held[0], newest, b.self.ID(), nil); err != nil {
		t.Fatal(err)
	}
	s, held = b.look(t)
	if held[0].Spec.Revision < 3 || held[0].Spec.Resources.Cpu().String() != "6" || accepted(s).Status != metav1.ConditionTrue {
		t.Errorf("the contract is %+v, the request %+v", held[0].Spec, accepted(s))
	}
}

// TestTheContractAfterOneThatEndedCostsNoMore: a provider that lets a contract end, and
// then asks for more, gets no signature for that either, without a trace of the one
// before.
func TestTheContractAfterOneThatEndedCostsNoMore(t *testing.T) {
	t.Parallel()
	provider := &seller{price: eur(t, "cpu", "0")}
	b := newRequestsBench(t, requestFor(nil), map[string]*seller{"peer": provider})
	_, held := b.look(t)
	held[0].Finalizers = nil
	if err := errors.Join(b.client.Update(t.Context(), &held[0]), b.client.Delete(t.Context(), &held[0])); err != nil {
		t.Fatal(err)
	}
	provider.price = eur(t, "cpu", "0.1")
	provider.held = nil
	s, held := b.look(t)
	if c := accepted(s); c.Reason != "PriceAboveCeiling" || !strings.Contains(c.Message, "free of charge") || len(held) != 0 {
		t.Errorf("the condition is %+v, and has %d contracts", c, len(held))
	}
	s.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: "1"}
	if err := b.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if s, held = b.look(t); accepted(s).Status != metav1.ConditionTrue || len(held) != 1 {
		t.Errorf("with a ceiling the condition is %+v", accepted(s))
	}
}

func TestAContractIsRenewedInTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		request func(*v1alpha1.PeeringRequest)
		changes func(*peering.Advertisement) // what the provider offers later
		refuses peering.Reason
		status  metav1.ConditionStatus // of Renewed; empty if it is absent
		reason  string
	}{
		"on the same terms":         {status: metav1.ConditionTrue, reason: "Renewed"},
		"dearer, below the ceiling": {request: ceiling("1"), changes: func(ad *peering.Advertisement) { ad.Price = eur(t, "cpu", "0.2") }, status: metav1.ConditionTrue, reason: "Renewed"},
		"dearer, above the ceiling": {request: ceiling("0.5"), changes: func(ad *peering.Advertisement) { ad.Price = eur(t, "cpu", "0.2") }, status: metav1.ConditionFalse, reason: "PriceAboveCeiling"},
		"dearer, without a ceiling": {changes: func(ad *peering.Advertisement) { ad.Price = eur(t, "cpu", "0.2") }, status: metav1.ConditionFalse, reason: "PriceAboveCeiling"},
		"for too short a time":      {changes: func(ad *peering.Advertisement) { ad.Duration = time.Second }, status: metav1.ConditionFalse, reason: "ContractMismatch"},
		"less":                      {changes: func(ad *peering.Advertisement) { ad.Resources = resourcesOf(t, map[string]string{"cpu": "1"}) }, status: metav1.ConditionFalse, reason: "ContractMismatch"},
		"stricter":                  {changes: func(ad *peering.Advertisement) { ad.PodSecurity = peering.PodSecurityRestricted }, status: metav1.ConditionFalse, reason: "ContractMismatch"},
		"refused":                   {refuses: peering.ReasonPolicyRefused, status: metav1.ConditionFalse, reason: "PolicyRefused"},
		"not wanted":                {request: func(s *v1alpha1.PeeringRequest) { s.Spec.Renewal = v1alpha1.RenewalNever }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider := &seller{price: eur(t, "cpu", "0.1")}
			b := newRequestsBench(t, requestFor(tc.request), map[string]*seller{"peer": provider})
			_, held := b.look(t)
			until := held[0].Spec.NotAfter
			provider.changes, provider.refuses = tc.changes, tc.refuses
			b.clock = now.Add(43 * time.Minute)
			if _, held := b.look(t); held[0].Spec.Revision != 1 {
				t.Error("it is renewed too early")
			}
			b.clock = now.Add(45 * time.Minute)
			s, held := b.look(t)
			renewed := meta.FindStatusCondition(s.Status.Conditions, conditionRenewed)
			switch {
			case tc.status == "":
				if renewed != nil || held[0].Spec.Revision != 1 {
					t.Errorf("revision %d, %+v", held[0].Spec.Revision, renewed)
				}
				return
			case renewed == nil || renewed.Status != tc.status || renewed.Reason != tc.reason:
				t.Fatalf("the condition is %+v", renewed)
			}
			if later := held[0].Spec.NotAfter.After(until.Time); later != (tc.status == metav1.ConditionTrue) {
				t.Errorf("it ends at %s, before %s", held[0].Spec.NotAfter, until)
			}
			if accepted(s).Status != metav1.ConditionTrue {
				t.Errorf("the contract that goes on is %+v", accepted(s))
			}
			if signs := provider.signs; tc.status == metav1.ConditionTrue {
				if b.look(t); provider.signs != signs || signs != 2 {
					t.Errorf("%d signatures", provider.signs)
				}
			}
		})
	}
}

func ceiling(amount string) func(*v1alpha1.PeeringRequest) {
	return func(s *v1alpha1.PeeringRequest) {
		s.Spec.PriceCeiling = &v1alpha1.Money{Currency: "EUR", Amount: amount}
	}
}

// asReleased is a contract that is closed and released.
func asReleased(c *v1alpha1.Contract) *v1alpha1.Contract {
	c.Finalizers, c.Status.Phase = nil, peering.PhaseClosed.String()
	return c
}

func TestOrphansAreTakenUpOrEnded(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	for name, tc := range map[string]struct {
		request *v1alpha1.PeeringRequest
		holds   *v1alpha1.Contract
		terms   func(*peering.Terms)
		adopts  bool
		ends    bool
	}{
		"whose request has none is taken up":          {request: requestFor(nil), adopts: true},
		"whose request is gone is ended":              {ends: true},
		"whose request has another is ended":          {request: requestFor(nil), holds: p.stored(t, p.terms(t, func(x *peering.Terms) { x.ContractID = "c-2" }), p.consumer), ends: true},
		"that is over is ended":                       {request: requestFor(nil), terms: func(x *peering.Terms) { x.NotAfter = now }, ends: true},
		"that was never notified of its end is ended": {request: requestFor(nil), holds: asReleased(p.stored(t, p.terms(t, nil), p.consumer)), ends: true},
		"whose ID a contract with another peer has is ended": {
			request: requestFor(nil), ends: true,
			holds: func() *v1alpha1.Contract {
				other := parties{p.consumer, newParties(t).provider}
				return other.stored(t, other.terms(t, func(x *peering.Terms) { x.RequestID = "other" }), p.consumer)
			}(),
		},
		"that is stored is not an orphan":                 {request: requestFor(nil), holds: p.stored(t, p.terms(t, nil), p.consumer)},
		"in which this cluster provides is not an orphan": {request: requestFor(nil), terms: func(x *peering.Terms) { x.Consumer, x.Provider = x.Provider, x.Consumer }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := foreign("peer", p.provider)
			fc.Status.Contracts = []v1alpha1.PeerContract{{ID: "c-1", Revision: 1, Phase: "Active"}}
			objects := []client.Object{fc}
			if tc.request != nil {
				objects = append(objects, tc.request)
			}
			if tc.holds != nil {
				objects = append(objects, tc.holds.DeepCopy())
			}
			c, clock := fakeClient(t, objects...), now
			peer := &fakeCounterpart{contract: func() (peering.Envelope, error) { return p.signed(t, p.terms(t, tc.terms)), nil }}
			r := &Orphans{Client: c, Reader: c, Self: p.consumer.ID(), Counterpart: always(peer), Now: func() time.Time { return clock }}
			look := func() bool {
				t.Helper()
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "peer"}}); err != nil {
					t.Fatal(err)
				}
				return client.IgnoreNotFound(c.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &v1alpha1.Contract{})) == nil &&
					c.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &v1alpha1.Contract{}) == nil
			}
			held := tc.holds != nil && tc.holds.Name == "c-1"
			if got := look(); got != held || len(peer.told) > 0 {
				t.Errorf("at once: adopted %t, ended %d times", got, len(peer.told))
			}
			clock = clock.Add(orphanAge)
			if got := look(); got != (tc.adopts || held) || (len(peer.told) > 0) != tc.ends {
				t.Errorf("adopted %t, ended %d times", got, len(peer.told))
			}
		})
	}
}

func TestFirstOfferIsNotADecision(t *testing.T) {
	t.Parallel()
	says := func(text string) *v1alpha1.ForeignCluster {
		return &v1alpha1.ForeignCluster{Status: v1alpha1.ForeignClusterStatus{Offer: &v1alpha1.Offer{Message: text}}}
	}
	if offerMessageChanged(&v1alpha1.ForeignCluster{}, says("a")) || offerMessageChanged(says("a"), says("a")) || !offerMessageChanged(says("a"), says("b")) {
		t.Error("the first message is taken for a decision, or a later one is not")
	}
}
