package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func afterApproval(s *v1alpha1.PeeringPolicySpec) { s.Accept = v1alpha1.AcceptAfterApproval }

func (p *testProvider) peer(i int) *v1alpha1.ForeignCluster {
	p.t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := p.Client.Get(p.t.Context(), client.ObjectKey{Name: fmt.Sprint("peer-", i)}, &fc); err != nil {
		p.t.Fatal(err)
	}
	return &fc
}

func (p *testProvider) waiting(peer int) []string {
	p.t.Helper()
	var ids []string
	for _, r := range p.peer(peer).Status.Requests {
		ids = append(ids, r.ID)
	}
	return ids
}

func (p *testProvider) decided(peer int, approved, denied []string) {
	p.t.Helper()
	fc := p.peer(peer)
	fc.Spec.ApprovedRequests, fc.Spec.DeniedRequests = approved, denied
	if err := p.Client.Update(p.t.Context(), fc); err != nil {
		p.t.Fatal(err)
	}
}

// pends asks, and checks that it waits.
func (p *testProvider) pends(peer int, ask peering.Ask) {
	p.t.Helper()
	_, err := p.Advertise(p.t.Context(), p.peers[peer].ID(), ask)
	wants(p.t, err, peering.ReasonPolicyPending, "administrator")
	p.pass(requestPause)
}

func TestProviderKeepsARequestForAnAdministrator(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(3), policyNamed("p", afterApproval))...)
	ask := p.ask("r", "cpu=2")
	ask.Duration, ask.PriceCeiling = time.Hour, euros(t, "1.5")
	p.pends(0, ask)
	p.pends(0, ask)
	requests := p.peer(0).Status.Requests
	if len(requests) != 1 || requests[0].ID != "r" || requests[0].Resources.Cpu().String() != "2" || requests[0].Duration.Duration != time.Hour ||
		requests[0].PriceCeiling.Amount != "1.5" || !requests[0].Time.Time.Equal(now) {
		t.Fatalf("to be seen is %+v", requests)
	}
	if ad, err := p.Preview(t.Context(), p.peers[1].ID(), ask); err != nil || !ad.NeedsApproval || ad.ContractID != "" || len(p.waiting(1)) != 0 {
		t.Errorf("a preview: %+v, %v, waiting %v", ad, err, p.waiting(1))
	}
	if offer, _, err := p.Offer(t.Context(), p.peers[0].ID()); err != nil || !offer.Available || !strings.Contains(offer.Message, "approves") {
		t.Errorf("offered %+v, %v", offer, err)
	}
	p.decided(0, []string{"r"}, nil)
	terms := p.mustContract(0, ask)
	if got := p.waiting(0); len(got) != 0 {
		t.Errorf("what was signed waits still: %v", got)
	}
	// It is renewed and may give back without being asked about again.
	p.pass(30 * time.Minute)
	if _, err := p.contracted(t.Context(), 0, p.amend(terms, time.Hour, "cpu=1")); err != nil {
		t.Error(err)
	}
	// Another peer's request of that name is another request.
	p.pends(1, ask)
}

func TestOfferChangesWithADecision(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 2, append(nodes(3), policyNamed("p", afterApproval))...)
	offered := func(peer int) *v1alpha1.ForeignCluster {
		offer, _, err := p.Offer(t.Context(), p.peers[peer].ID())
		if err != nil {
			t.Fatal(err)
		}
		fc := &v1alpha1.ForeignCluster{}
		if fc.Status.Offer, err = offerStatus(offer); err != nil {
			t.Fatal(err)
		}
		return fc
	}
	differs := func(a, b *v1alpha1.ForeignCluster) bool { return a.Status.Offer.Message != b.Status.Offer.Message }
	p.pends(0, p.ask("r", "cpu=2"))
	waits, other := offered(0), offered(1)
	if differs(waits, offered(0)) {
		t.Error("the offer changed before a decision")
	}
	for _, decision := range []struct{ approved, denied []string }{{nil, []string{"r"}}, {[]string{"r"}, nil}} {
		before := offered(0)
		p.decided(0, decision.approved, decision.denied)
		if after := offered(0); !differs(before, after) {
			t.Errorf("after %v the offer is %q as before", decision, after.Status.Offer.Message)
		}
	}
	if differs(other, offered(1)) {
		t.Error("the offer to another peer changed")
	}
	if !differs(offered(0), offered(1)) {
		t.Error("both peers get the same offer")
	}
}

func TestApprovalCoversWhatTheAdministratorSaw(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(5), policyNamed("p", afterApproval))...)
	p.pends(0, p.ask("r", "cpu=2"))
	// Just before the administrator approves, the peer asks for more.
	p.pends(0, p.ask("r", "cpu=12"))
	if got := p.waiting(0); !slices.Equal(got, []string{"r.2"}) {
		t.Fatalf("waiting are %v", got)
	}
	p.decided(0, []string{"r"}, nil)
	p.pends(0, p.ask("r", "cpu=12"))
	p.pends(0, p.ask("r")) // all there is
	if got := p.waiting(0); !slices.Equal(got, []string{"r.3"}) {
		t.Fatalf("waiting are %v", got)
	}
	p.decided(0, append([]string{"r"}, p.waiting(0)...), nil)
	terms := p.mustContract(0, p.ask("r", "cpu=12"))
	// The contract is to grow: that is for the administrator again.
	more := p.amend(terms, 0, "cpu=13")
	p.pends(0, more)
	// A preview shows what an approval would grant, as for a first request.
	if ad, err := p.Preview(t.Context(), p.peers[0].ID(), more); err != nil || !ad.NeedsApproval || ad.Revision != 2 || ad.Resources["cpu"].String() != "13" {
		t.Errorf("previewed %+v, %v", ad, err)
	}
	waiting := p.waiting(0)
	if len(waiting) != 1 || !isRequest(waiting[0], "r") || waiting[0] == "r" {
		t.Fatalf("waiting are %v", waiting)
	}
	if got, err := p.contracted(t.Context(), 0, p.amend(terms, 0, "cpu=3")); err != nil || got.Resources["cpu"].String() != "3" {
		t.Errorf("giving back meanwhile: %s, %v", got.Resources, err)
	}
	p.decided(0, append(p.peer(0).Spec.ApprovedRequests, waiting...), nil)
	if _, err := p.contracted(t.Context(), 0, more); err != nil {
		t.Error(err)
	}
	if got := p.waiting(0); len(got) != 0 {
		t.Errorf("waiting are %v", got)
	}
}

// The ID of an ask that was dropped is not that of another one: an administrator who approves it approves nothing else.
func TestAnIDOfARequestThatWaitsIsUsedOnce(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(5), policyNamed("p", afterApproval))...)
	for i, cpu := range []string{"cpu=2", "cpu=12", "cpu=13", "cpu=14"} {
		p.pends(0, p.ask("r", cpu))
		want := "r"
		if i > 0 {
			want = fmt.Sprint("r.", i+1)
		}
		if got := p.waiting(0); !slices.Equal(got, []string{want}) {
			t.Fatalf("waiting are %v, want %s", got, want)
		}
	}
	p.decided(0, []string{"r", "r.2", "r.3"}, nil)
	p.pends(0, p.ask("r", "cpu=14"))
}

// Nor once a peer has not repeated it for long, or once a contract fulfilled it: the administrator may still read the list that had it.
func TestAnIDOfARequestThatWasDroppedIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(5), policyNamed("p", afterApproval))...)
	want := func(id string) {
		t.Helper()
		if got := p.waiting(0); !slices.Equal(got, []string{id}) {
			t.Fatalf("waiting are %v, want %s", got, id)
		}
	}
	drop := func() {
		t.Helper()
		p.pass(2 * requestTTL)
		p.sweep(t.Context(), now)
		if got := p.waiting(0); len(got) != 0 {
			t.Fatalf("waiting are %v", got)
		}
	}
	p.pends(0, p.ask("r", "cpu=2"))
	want("r")
	drop()
	p.pends(0, p.ask("r", "cpu=12"))
	want("r.2")
	drop()
	p.pends(0, p.ask("other", "cpu=2"))
	want("other")
	drop()
	p.pends(0, p.ask("r", "cpu=13"))
	want("r.3")
	// The administrator decides by what he saw first.
	p.decided(0, []string{"r"}, nil)
	p.pends(0, p.ask("r", "cpu=13"))
	want("r.3")

	// The one that is dropped last need not be the last one.
	if got := dropped([]string{"r.10", "s"}, "r.9"); !slices.Equal(got, []string{"s", "r.10"}) {
		t.Errorf("kept are %v", got)
	}
	// However many are dropped, the list of their IDs is bounded.
	for n := range 3 * maxDropped {
		p.pends(0, p.ask(fmt.Sprint("many", n), "cpu=2"))
		drop()
	}
	if got := p.peer(0).Status.DroppedRequests; len(got) != maxDropped || got[maxDropped-1] != fmt.Sprint("many", 3*maxDropped-1) {
		t.Errorf("%d IDs are kept: %v", len(got), got)
	}
}

func TestARequestOfAnotherKindIsNotFulfilledByAContract(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(5), policyNamed("p", afterApproval))...)
	p.pends(0, p.ask("r", "cpu=4"))
	p.decided(0, []string{"r"}, nil)
	terms := p.mustContract(0, p.ask("r", "cpu=4"))
	another := p.amend(terms, 0, "cpu=1")
	another.Network = !another.Network
	p.pends(0, another)
	if got := p.waiting(0); !slices.Equal(got, []string{"r.2"}) {
		t.Fatalf("waiting are %v", got)
	}
	if _, err := p.contracted(t.Context(), 0, p.amend(terms, 0, "cpu=3")); err != nil {
		t.Fatal(err)
	}
	if got := p.waiting(0); !slices.Equal(got, []string{"r.2"}) {
		t.Errorf("waiting are %v, though no contract grants that", got)
	}
}

// Two requests share no approval: the ID of neither looks like an ask for more by the other.
func TestAnApprovalIsOfOneRequest(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(5), policyNamed("p", afterApproval))...)
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r.2", "cpu=2"))
	wants(t, err, peering.ReasonRequestInvalid, "ends with a dot and digits")
	p.decided(0, []string{"r.2"}, nil)
	_, err = p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r.2", "cpu=2"))
	wants(t, err, peering.ReasonRequestInvalid, "ends with a dot and digits")
	if !isRequest("r.2", "r") || !isRequest("r", "r") || isRequest("r.2.3", "r") || isRequest("r.a", "r") || isRequest("r.", "r") || isRequest("ra", "r") {
		t.Error("other IDs are of the request")
	}
}

func TestProviderRefusesADeniedRequest(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", afterApproval))...)
	p.pends(0, p.ask("r", "cpu=2"))
	p.decided(0, nil, []string{"r"})
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=1"))
	wants(t, err, peering.ReasonPolicyRefused, "denied")
	p.sweep(t.Context(), now)
	if got := p.waiting(0); len(got) != 0 {
		t.Errorf("waiting are %v", got)
	}
	// Approved, and then denied more.
	p.pends(0, p.ask("s", "cpu=1"))
	p.decided(0, []string{"s"}, nil)
	terms := p.mustContract(0, p.ask("s", "cpu=1"))
	p.pends(0, p.amend(terms, 0, "cpu=2"))
	p.decided(0, []string{"s"}, p.waiting(0))
	_, err = p.Advertise(t.Context(), p.peers[0].ID(), p.amend(terms, 0, "cpu=2"))
	wants(t, err, peering.ReasonPolicyRefused, "denied to grant more")
	if _, err := p.contracted(t.Context(), 0, p.amend(terms, 0)); err != nil {
		t.Errorf("what was approved is not renewed: %v", err)
	}
}

func TestRefusedRequestNeedsNoApproval(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(1), policyNamed("p", afterApproval))...)
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("r", "cpu=50"))
	wants(t, err, peering.ReasonCapacityExhausted, "")
	if got := p.waiting(0); len(got) != 0 {
		t.Errorf("waiting are %v", got)
	}
}

func TestPendingRequestsAreBounded(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", afterApproval))...)
	for i := range maxRequests {
		p.pends(0, p.ask(fmt.Sprint("r", i), "cpu=1"))
	}
	_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask("more", "cpu=1"))
	wants(t, err, peering.ReasonPolicyPending, "limit of")
	if got := len(p.waiting(0)); got != maxRequests {
		t.Errorf("%d wait", got)
	}
	// All but one are forgotten by their peer.
	for range 5 {
		p.pass(requestTTL / 5)
		p.pends(0, p.ask("r3", "cpu=1"))
	}
	p.sweep(t.Context(), now)
	if got := p.waiting(0); !slices.Equal(got, []string{"r3"}) {
		t.Errorf("waiting are %v", got)
	}
	if len(p.asked) != 1 {
		t.Errorf("%d are remembered", len(p.asked))
	}
}

// After a restart it is unknown when requests were last repeated: they wait an
// hour from then.
func TestPendingRequestsOutliveARestart(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", afterApproval))...)
	p.pends(0, p.ask("r", "cpu=1"))
	p.pass(2 * requestTTL)
	p.asked = nil
	started := p.now()
	p.sweep(t.Context(), started)
	if got := p.waiting(0); len(got) != 1 {
		t.Fatalf("waiting are %v", got)
	}
	p.pass(requestTTL)
	p.sweep(t.Context(), started)
	if got := p.waiting(0); len(got) != 0 {
		t.Errorf("waiting are %v", got)
	}
}

// A peer cannot have this cluster write as often as it likes.
func TestRepeatedRequestIsWrittenOnce(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", afterApproval))...)
	writes := 0
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			writes++
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	for i := range 500 {
		_, err := p.Advertise(t.Context(), p.peers[0].ID(), p.ask(fmt.Sprint("r", i%3), fmt.Sprint("cpu=", 1+i%10)))
		wants(t, err, peering.ReasonPolicyPending, "")
		p.pass(10 * time.Millisecond)
	}
	if writes > 5 {
		t.Errorf("%d writes in 5 seconds", writes)
	}
	if len(p.asked) > maxRequests {
		t.Errorf("%d requests are remembered", len(p.asked))
	}
}

func TestConflictingWriteLosesNoRequest(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", afterApproval))...)
	inner, once := p.Client, false
	p.Client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if !once {
				once = true
				fc := p.peer(0)
				fc.Status.Protocol = 7
				if err := inner.Status().Update(ctx, fc); err != nil {
					return err
				}
			}
			return c.SubResource(sub).Patch(ctx, o, patch, opts...)
		},
	})
	p.pends(0, p.ask("r", "cpu=1"))
	if fc := p.peer(0); fc.Status.Protocol != 7 || len(fc.Status.Requests) != 1 {
		t.Errorf("protocol %d, %d requests", fc.Status.Protocol, len(fc.Status.Requests))
	}
}

func TestApprovalMatchesTheAsk(t *testing.T) {
	t.Parallel()
	entry := func(id, cpu string) v1alpha1.PendingRequest {
		r := v1alpha1.PendingRequest{ID: id, Time: metav1.NewTime(now), Network: v1alpha1.NetworkNone}
		if cpu != "" {
			r.Resources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
		return r
	}
	long := strings.Repeat("a", peering.MaxRequestIDLen)
	for name, tc := range map[string]struct {
		request          string
		asked, granted   []string
		entries          []v1alpha1.PendingRequest
		approved, denied []string
		want             string // approved, refused, or the ID that waits
	}{
		"a new one waits":                               {asked: []string{"cpu=1"}, want: "r"},
		"one that was seen waits on":                    {asked: []string{"cpu=1"}, entries: []v1alpha1.PendingRequest{entry("r", "1")}, want: "r"},
		"approved, without a record of what it was":     {asked: []string{"cpu=1"}, approved: []string{"r"}, want: "r.2"},
		"approved as seen":                              {asked: []string{"cpu=1"}, entries: []v1alpha1.PendingRequest{entry("r", "1")}, approved: []string{"r"}, want: "approved"},
		"approved, asked for less":                      {asked: []string{"cpu=500m"}, entries: []v1alpha1.PendingRequest{entry("r", "1")}, approved: []string{"r"}, want: "approved"},
		"approved, asked for more":                      {asked: []string{"cpu=2"}, entries: []v1alpha1.PendingRequest{entry("r", "1")}, approved: []string{"r"}, want: "r.2"},
		"approved, asked for another":                   {asked: []string{"memory=1Gi"}, entries: []v1alpha1.PendingRequest{entry("r", "1")}, approved: []string{"r"}, want: "r.2"},
		"approved, asked for all":                       {entries: []v1alpha1.PendingRequest{entry("r", "1")}, approved: []string{"r"}, want: "r.2"},
		"approved all":                                  {asked: []string{"cpu=9"}, entries: []v1alpha1.PendingRequest{entry("r", "")}, approved: []string{"r"}, want: "approved"},
		"approved more":                                 {asked: []string{"cpu=2"}, entries: []v1alpha1.PendingRequest{entry("r", "1"), entry("r.2", "2")}, approved: []string{"r", "r.2"}, want: "approved"},
		"the third time":                                {asked: []string{"cpu=3"}, entries: []v1alpha1.PendingRequest{entry("r", "1"), entry("r.2", "2")}, approved: []string{"r", "r.2"}, want: "r.3"},
		"another's approval":                            {asked: []string{"cpu=1"}, approved: []string{"rr", "r-2", "r.x"}, want: "r"},
		"denied":                                        {asked: []string{"cpu=1"}, denied: []string{"r"}, want: "refused"},
		"denied and approved":                           {asked: []string{"cpu=1"}, approved: []string{"r"}, denied: []string{"r"}, want: "refused"},
		"a contract within what it grants":              {asked: []string{"cpu=1"}, granted: []string{"cpu=1"}, approved: []string{"r"}, want: "approved"},
		"a contract within, never approved":             {asked: []string{"cpu=1"}, granted: []string{"cpu=1"}, want: "r"},
		"a contract that grows":                         {asked: []string{"cpu=2"}, granted: []string{"cpu=1"}, approved: []string{"r"}, want: "r.2"},
		"a contract that grew as approved":              {asked: []string{"cpu=2"}, granted: []string{"cpu=1"}, entries: []v1alpha1.PendingRequest{entry("r.2", "2")}, approved: []string{"r", "r.2"}, want: "approved"},
		"a contract denied to grow":                     {asked: []string{"cpu=2"}, granted: []string{"cpu=1"}, approved: []string{"r"}, denied: []string{"r.2"}, want: "refused"},
		"an ID that has no room for more":               {request: long, asked: []string{"cpu=2"}, granted: []string{"cpu=1"}, approved: []string{long}, want: "refused"},
		"an ID that has no room and needs none":         {request: long, asked: []string{"cpu=2"}, want: long},
		"one whose end is later than what was approved": {asked: []string{"cpu=1"}, entries: []v1alpha1.PendingRequest{{ID: "r", Network: v1alpha1.NetworkNone, Duration: &metav1.Duration{Duration: time.Minute}}}, approved: []string{"r"}, want: "r.2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := &v1alpha1.ForeignCluster{}
			fc.Spec.ApprovedRequests, fc.Spec.DeniedRequests, fc.Status.Requests = tc.approved, tc.denied, tc.entries
			ask := peering.Ask{RequestID: "r", Resources: quantities(t, tc.asked...)}
			if tc.request != "" {
				ask.RequestID = tc.request
			}
			var granted *peering.Ask
			if tc.granted != nil {
				granted = &peering.Ask{Resources: quantities(t, tc.granted...)}
			}
			approved, pending, err := approval(fc, ask, granted)
			got := "nothing"
			switch {
			case err != nil && peering.ReasonOf(err) == peering.ReasonPolicyRefused:
				got = "refused"
			case approved:
				got = "approved"
			case pending != nil:
				got = pending.ID
			}
			if got != tc.want {
				t.Errorf("it is %s, want %s", got, tc.want)
			}
		})
	}
}

// TestPolicyDecidesWhetherAnApprovedContractRenews: how long a contract lasts that was
// approved is the policy's from then on, which renews it up to its own duration or never.
func TestPolicyDecidesWhetherAnApprovedContractRenews(t *testing.T) {
	t.Parallel()
	never := func(s *v1alpha1.PeeringPolicySpec) { s.Renewal = v1alpha1.RenewalNever }
	for name, row := range map[string]struct {
		edit []func(*v1alpha1.PeeringPolicySpec)
		want time.Duration
	}{
		"a policy that renews": {[]func(*v1alpha1.PeeringPolicySpec){afterApproval}, 24 * time.Hour},
		"one that renews none": {[]func(*v1alpha1.PeeringPolicySpec){afterApproval, never}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, 1, append(nodes(3), policyNamed("p", row.edit...))...)
			ask := p.ask("r", "cpu=2")
			ask.Duration = time.Hour
			p.pends(0, ask)
			p.decided(0, []string{"r"}, nil)
			terms := p.mustContract(0, ask)
			ad, err := p.Advertise(t.Context(), p.peers[0].ID(), p.amend(terms, 48*time.Hour, "cpu=2"))
			if row.want == 0 {
				wants(t, err, peering.ReasonPolicyRefused, "does not renew")
				return
			}
			if err != nil || ad.Duration != row.want {
				t.Errorf("it lasts %s, want %s; %v", ad.Duration, row.want, err)
			}
		})
	}
}

// TestApprovalCoversNodesNetworkAndClasses: what was approved, signed or not, is
// asked for in each other way than it was seen, and waits each time.
func TestApprovalCoversNodesNetworkAndClasses(t *testing.T) {
	t.Parallel()
	seen := peering.Ask{
		RequestID: "r", Resources: quantities(t, "cpu=1"), NodeSelector: map[string]string{"zone": "a"},
		RuntimeClasses: []string{"gvisor"}, StorageClasses: []string{"slow"},
	}
	_, pending, err := approval(&v1alpha1.ForeignCluster{}, seen, nil)
	if err != nil || pending == nil {
		t.Fatalf("got %+v, %v", pending, err)
	}
	for name, change := range map[string]func(*peering.Ask){
		"":                        func(*peering.Ask) {},
		"other nodes":             func(a *peering.Ask) { a.NodeSelector = map[string]string{"zone": "b"} },
		"a pool":                  func(a *peering.Ask) { a.Pool = "gpu" },
		"any nodes":               func(a *peering.Ask) { a.NodeSelector = nil },
		"a tunnel":                func(a *peering.Ask) { a.Network = true },
		"another runtime class":   func(a *peering.Ask) { a.RuntimeClasses = []string{"kata"} },
		"one more runtime class":  func(a *peering.Ask) { a.RuntimeClasses = []string{"gvisor", "kata"} },
		"another storage class":   func(a *peering.Ask) { a.StorageClasses = []string{"fast"} },
		"a storage class no more": func(a *peering.Ask) { a.StorageClasses = nil },
	} {
		ask := seen
		change(&ask)
		for _, granted := range []*peering.Ask{nil, &seen} {
			fc := &v1alpha1.ForeignCluster{}
			fc.Spec.ApprovedRequests = []string{"r"}
			if granted == nil {
				fc.Status.Requests = []v1alpha1.PendingRequest{*pending}
			}
			approved, waits, err := approval(fc, ask, granted)
			if err != nil || approved != (name == "") || !approved && waits.ID != "r.2" {
				t.Errorf("asked for %s, with a contract: %t: approved %t, waits %+v, %v", name, granted != nil, approved, waits, err)
			}
		}
	}
}

func TestRequestThatWaitsIsAnEvent(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", afterApproval))...)
	recorder := events.NewFakeRecorder(10)
	p.Events = recorder
	for range 3 {
		p.pends(0, p.ask("r1", "cpu=1"))
	}
	want := "Normal RequestPending a request waits for approval, and `entente requests` says for what: `entente approve request peer-0/r1`, or `entente deny request peer-0/r1`"
	if len(recorder.Events) != 1 {
		t.Fatalf("%d events, want 1", len(recorder.Events))
	}
	if got := <-recorder.Events; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Who approved a request is in the Contract of each revision, and a user's name is nothing that a peer gets.
func TestApproverIsKnownHereOnly(t *testing.T) {
	t.Parallel()
	p := newProvider(t, 1, append(nodes(3), policyNamed("p", afterApproval))...)
	recorder := events.NewFakeRecorder(10)
	p.Events = recorder
	by := func(id, user string) {
		fc := p.peer(0)
		fc.RequestDecided(id, v1alpha1.DecidedBy("Approved", user, now))
		fc.Spec.ApprovedRequests = append(fc.Spec.ApprovedRequests, id)
		if err := p.Client.Update(t.Context(), fc); err != nil {
			t.Fatal(err)
		}
	}
	peer := p.peers[0].ID()
	sign := func(ask peering.Ask) peering.Terms {
		ad, err := p.Advertise(t.Context(), peer, ask)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := p.Sign(t.Context(), peer, p.envelope(0, p.terms(0, ad)))
		if err != nil {
			t.Fatal(err)
		}
		terms, err := signed.Verify()
		if err != nil {
			t.Fatal(err)
		}
		if sent := fmt.Sprintf("%+v %+v %s", ad, terms, signed.Payload); strings.Contains(sent, "alice") || strings.Contains(sent, "bob") {
			t.Errorf("the peer gets the name of a user: %s", sent)
		}
		return terms
	}
	p.pends(0, p.ask("r", "cpu=1"))
	by("r", "alice")
	terms := sign(p.ask("r", "cpu=1"))
	if got := p.stored(terms.ContractID).Annotations[v1alpha1.AnnotationApprovedBy]; !strings.HasPrefix(got, "Approved by alice at ") {
		t.Errorf("approved by %q", got)
	}
	p.pass(requestPause)
	more := p.amend(terms, 0, "cpu=2")
	p.pends(0, more)
	by("r.2", "bob")
	sign(more)
	if got := p.stored(terms.ContractID).Annotations[v1alpha1.AnnotationApprovedBy]; !strings.HasPrefix(got, "Approved by bob at ") {
		t.Errorf("revision 2 was approved by %q", got)
	}
	close(recorder.Events)
	var last string
	for last = range recorder.Events {
	}
	if !strings.HasPrefix(last, "Normal Amended revision 2 is signed by both, until ") {
		t.Errorf("the last event is %q", last)
	}
}
