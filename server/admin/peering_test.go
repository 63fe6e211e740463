package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func (a *adminTest) requests(t testing.TB) []v1alpha1.PeeringRequest {
	t.Helper()
	var list v1alpha1.PeeringRequestList
	if err := a.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestAnAskHasAllThatTheRequestAsksFor(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)))
	c := a.alice(t)
	full := func(peer string) *ententev1.CreatePeeringRequest {
		return &ententev1.CreatePeeringRequest{
			Peer: peer, PeeringRequest: "batch", Resources: amounts("cpu", "4", "nvidia.com/gpu", "1"), Duration: durationpb.New(time.Hour),
			PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "0.5"}, NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"},
			StorageClasses: []string{"slow", "fast"}, RuntimeClasses: []string{"gvisor"}, NoRenewal: true,
		}
	}
	want := v1alpha1.PeeringRequestSpec{
		ForeignCluster: "office", Network: v1alpha1.NetworkTunnel, Renewal: v1alpha1.RenewalNever,
		Resources: corev1.ResourceList{"cpu": resource.MustParse("4"), "nvidia.com/gpu": resource.MustParse("1")}, Duration: &metav1.Duration{Duration: time.Hour},
		PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "0.5"}, NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"},
		StorageClasses: []string{"fast", "slow"}, RuntimeClasses: []string{"gvisor"},
	}
	if resp, err := c.CreatePeering(t.Context(), full("peers/"+strings.Repeat("a", 32))); err != nil || resp.GetPeeringRequest() != "batch" {
		t.Fatalf("got %v, %v", resp, err)
	}
	if diff := cmp.Diff(want, a.requests(t)[0].Spec); diff != "" {
		t.Errorf("one peer (-want +got)\n%s", diff)
	}
	anybody := full("peers/-")
	anybody.PeeringRequest, anybody.PeerSelector = "", map[string]string{"region": "north"}
	resp, err := c.CreatePeering(t.Context(), anybody)
	if err != nil || !strings.HasPrefix(resp.GetPeeringRequest(), "any-") {
		t.Fatalf("got %v, %v", resp, err)
	}
	want.ForeignCluster, want.ClusterSelector = "", &metav1.LabelSelector{MatchLabels: map[string]string{"region": "north"}}
	if diff := cmp.Diff(want, a.requests(t)[0].Spec); diff != "" {
		t.Errorf("any peer (-want +got)\n%s", diff)
	}
	for name, change := range map[string]func(*ententev1.CreatePeeringRequest){
		"a selector for one peer":    func(r *ententev1.CreatePeeringRequest) { r.PeerSelector = map[string]string{"a": "b"} },
		"a price in no currency":     func(r *ententev1.CreatePeeringRequest) { r.PriceCeiling.Currency = "" },
		"a price in euros and cents": func(r *ententev1.CreatePeeringRequest) { r.PriceCeiling.Amount = "0,50" },
		"a price below nothing":      func(r *ententev1.CreatePeeringRequest) { r.PriceCeiling.Amount = "-1" },
		"a price with zeros":         func(r *ententev1.CreatePeeringRequest) { r.PriceCeiling.Amount = "0.50" },
		"a malformed label":          func(r *ententev1.CreatePeeringRequest) { r.NodeSelector = map[string]string{"a b": "c"} },
		"a malformed class":          func(r *ententev1.CreatePeeringRequest) { r.StorageClasses = []string{"a/b"} },
		"a class twice":              func(r *ententev1.CreatePeeringRequest) { r.RuntimeClasses = []string{"a", "a"} },
		"a malformed name":           func(r *ententev1.CreatePeeringRequest) { r.PeeringRequest = "Batch" },
		"a malformed ID":             func(r *ententev1.CreatePeeringRequest) { r.RequestId = "a b" },
		"for ever": func(r *ententev1.CreatePeeringRequest) {
			r.Duration = durationpb.New(peering.MaxContractLife + time.Second)
		},
		"a malformed selector": func(r *ententev1.CreatePeeringRequest) {
			r.Peer, r.PeerSelector = "peers/-", map[string]string{"a": "b c"}
		},
	} {
		req := full("peers/office")
		req.PeeringRequest = "other"
		change(req)
		if _, err := c.CreatePeering(t.Context(), req); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n := len(a.requests(t)); n != 2 {
		t.Errorf("%d peering requests, want two", n)
	}
}

func TestACallThatComesTwiceAsksOnce(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)))
	c := a.alice(t)
	ask := func(change func(*ententev1.CreatePeeringRequest)) (string, error) {
		req := &ententev1.CreatePeeringRequest{Peer: "peers/-", Resources: amounts("cpu", "1"), RequestId: "11111111-2222-3333-4444-555555555555"}
		change(req)
		resp, err := c.CreatePeering(t.Context(), req)
		return resp.GetPeeringRequest(), err
	}
	same := func(*ententev1.CreatePeeringRequest) {}
	var wg sync.WaitGroup
	names := make(chan string, 8)
	for range cap(names) {
		wg.Go(func() {
			name, err := ask(same)
			if err != nil {
				t.Error(err)
			}
			names <- name
		})
	}
	wg.Wait()
	close(names)
	first := <-names
	for name := range names {
		if name != first {
			t.Errorf("made %s and %s", first, name)
		}
	}
	if n := len(a.requests(t)); n != 1 {
		t.Fatalf("%d peering requests, want one", n)
	}
	// What it became since does not make it another call.
	if _, err := c.UpdatePeering(t.Context(), &ententev1.UpdatePeeringRequest{Peering: &ententev1.Peering{Name: "peerings/" + first, Resources: amounts("cpu", "2")}}); err != nil {
		t.Fatal(err)
	}
	if name, err := ask(same); err != nil || name != first {
		t.Errorf("after an update: got %s, %v", name, err)
	}
	for name, change := range map[string]func(*ententev1.CreatePeeringRequest){
		"more":         func(r *ententev1.CreatePeeringRequest) { r.Resources = amounts("cpu", "2") },
		"another peer": func(r *ententev1.CreatePeeringRequest) { r.Peer = "peers/office" },
		"another name": func(r *ententev1.CreatePeeringRequest) { r.PeeringRequest = "other" },
	} {
		if _, err := ask(change); wire.ReasonOf(err) != peering.ReasonRequestInvalid || !strings.Contains(wire.FromStatus(err).Error(), "request_id") {
			t.Errorf("%s by the same ID: got %v", name, err)
		}
	}
	if _, err := ask(func(r *ententev1.CreatePeeringRequest) { r.RequestId += "1" }); err != nil {
		t.Errorf("another ID, of which the first is the begin: %v", err)
	}
	// A name that is taken by a call without an ID is taken.
	if _, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/office"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/office", RequestId: "x"}); wire.ReasonOf(err) != peering.ReasonPeeringExists {
		t.Errorf("a name that is taken: got %v", err)
	}
}

// offer is one of 4 cores for an hour.
func offer(t *testing.T, price string) *peering.Advertisement {
	t.Helper()
	resources, err := peering.ParseResources(map[string]string{"cpu": "4"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := peering.ParseDecimal(price)
	if err != nil {
		t.Fatal(err)
	}
	return &peering.Advertisement{RequestID: "uid", Revision: 1, ValidUntil: epoch, Grant: peering.Grant{
		Duration: time.Hour,
		Clauses: peering.Clauses{
			Resources: resources, Price: peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": d}},
		},
	}}
}

func TestValidateOnlyReturnsTheOfferAndWritesNothing(t *testing.T) {
	office := strings.Repeat("a", 32)
	a := newAdminTestWith(t, func(cfg *Config) {
		// As an API server does, and the fake does not, it checks in a dry run whether the name is
		// taken, and returns what it would store.
		cfg.Client = interceptor.NewClient(cfg.Client.(ctrlclient.WithWatch), interceptor.Funcs{
			Create: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
				if err := c.Get(ctx, ctrlclient.ObjectKeyFromObject(o), &v1alpha1.PeeringRequest{}); err == nil {
					return apierrors.NewAlreadyExists(v1alpha1.GroupVersion.WithResource("peeringrequests").GroupResource(), o.GetName())
				}
				o.SetUID("uid")
				return c.Create(ctx, o, opts...)
			},
		})
	}, peerObject("office", office))
	c := a.alice(t)
	check := func(change func(*ententev1.CreatePeeringRequest)) (*ententev1.CreatePeeringResponse, error) {
		req := &ententev1.CreatePeeringRequest{
			Peer: "peers/office", ValidateOnly: true, Resources: amounts("cpu", "4"), PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "3"},
			NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"}, StorageClasses: []string{"b", "a"}, Duration: durationpb.New(time.Minute), NoNetwork: true,
		}
		change(req)
		return c.CreatePeering(t.Context(), req)
	}
	anybody := func(r *ententev1.CreatePeeringRequest) {
		r.Peer, r.PeerSelector = "peers/-", map[string]string{"region": "north"}
	}
	a.preview = func(*v1alpha1.PeeringRequest) (string, *peering.Advertisement, error) {
		return "office", offer(t, "0.5"), nil
	}
	resp, err := check(func(*ententev1.CreatePeeringRequest) {})
	if err != nil {
		t.Fatal(err)
	}
	want := &ententev1.CreatePeeringResponse{PeeringRequest: "office", Provider: "peers/office"}
	want.Advertisement = &ententev1.Advertisement{
		Resources: amounts("cpu", "4"), Duration: durationpb.New(time.Hour), Price: &ententev1.PriceList{Currency: "EUR", PerHour: map[string]string{"cpu": "0.5"}},
		HourlyPrice: &ententev1.Money{Currency: "EUR", Amount: "2"},
	}
	if diff := cmp.Diff(want, resp, protocmp.Transform(), protocmp.IgnoreFields(&ententev1.Advertisement{}, "valid_until", "revision")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	got := <-a.previewed
	asked := v1alpha1.PeeringRequestSpec{
		ForeignCluster: "office", Resources: corev1.ResourceList{"cpu": resource.MustParse("4")}, Network: v1alpha1.NetworkNone, Renewal: v1alpha1.RenewalAutomatic,
		NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"}, StorageClasses: []string{"a", "b"},
		Duration: &metav1.Duration{Duration: time.Minute}, PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "3"},
	}
	if diff := cmp.Diff(asked, got.Spec); diff != "" || got.UID != "uid" || got.Name != "office" {
		t.Errorf("asked of %s, %s (-want +got)\n%s", got.Name, got.UID, diff)
	}
	// The response also has what would be offered once an administrator there approved it.
	a.preview = func(*v1alpha1.PeeringRequest) (string, *peering.Advertisement, error) {
		ad := offer(t, "0.25")
		ad.NeedsApproval = true
		return "lab", ad, nil
	}
	resp, err = check(anybody)
	if err != nil || resp.GetProvider() != "peers/lab" || resp.GetAdvertisement().GetHourlyPrice().GetAmount() != "1" || !resp.GetAdvertisement().GetNeedsApproval() {
		t.Errorf("any peer: got %v, %v", resp, err)
	}
	if got := <-a.previewed; got.Spec.ForeignCluster != "" || got.Spec.ClusterSelector.MatchLabels["region"] != "north" {
		t.Errorf("asked %+v", got.Spec)
	}
	for name, tc := range map[string]struct {
		change func(*ententev1.CreatePeeringRequest)
		err    error
		want   peering.Reason
		text   string
	}{
		"an unknown peer":             {func(r *ententev1.CreatePeeringRequest) { r.Peer = "peers/nobody" }, nil, peering.ReasonPeerUnknown, "nobody"},
		"what is not valid":           {func(r *ententev1.CreatePeeringRequest) { r.Resources = amounts("cpu", "0") }, nil, peering.ReasonRequestInvalid, ""},
		"it refuses":                  {nil, wire.Status(&peering.Error{Reason: peering.ReasonPolicyRefused, Message: "offers nothing"}).Err(), peering.ReasonPolicyRefused, "peer office: offers nothing"},
		"it is away":                  {nil, peering.Errorf(peering.ReasonPeerUnreachable, "no session"), peering.ReasonPeerUnreachable, "peer office: no session"},
		"no one of several grants it": {anybody, peering.Errorf(peering.ReasonCapacityExhausted, "no peer grants it"), peering.ReasonCapacityExhausted, "no peer grants it"},
		"it answers nonsense":         {nil, peering.Errorf(peering.ReasonResponseInvalid, "nonsense"), peering.ReasonResponseInvalid, "nonsense"},
		"something breaks here":       {nil, errors.New("secret path /var/x"), peering.ReasonInternal, ""},
		"something breaks among many": {anybody, errors.New("secret path /var/x"), peering.ReasonInternal, ""},
	} {
		a.preview = func(*v1alpha1.PeeringRequest) (string, *peering.Advertisement, error) { return "", nil, tc.err }
		if tc.change == nil {
			tc.change = func(*ententev1.CreatePeeringRequest) {}
		}
		_, err := check(tc.change)
		if wire.ReasonOf(err) != tc.want || !strings.Contains(fmt.Sprint(err), tc.text) || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	if n := len(a.requests(t)); n != 0 {
		t.Errorf("%d peering requests were written", n)
	}
	if _, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/office"}); err != nil {
		t.Fatal(err)
	}
	if _, err := check(func(*ententev1.CreatePeeringRequest) {}); wire.ReasonOf(err) != peering.ReasonPeeringExists {
		t.Errorf("one that is there: got %v", err)
	}
}

func TestPeeringsAreReadChangedAndDeleted(t *testing.T) {
	request := func(name, to string) *v1alpha1.PeeringRequest {
		return &v1alpha1.PeeringRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-1", Generation: 3},
			Spec: v1alpha1.PeeringRequestSpec{
				ForeignCluster: to, Network: v1alpha1.NetworkTunnel, Resources: corev1.ResourceList{"cpu": resource.MustParse("2")},
				Renewal: v1alpha1.RenewalNever, PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "1"}, Duration: &metav1.Duration{Duration: time.Hour},
			},
		}
	}
	one, anybody := request("batch", "office"), request("any-1", "")
	anybody.Spec.ClusterSelector = &metav1.LabelSelector{}
	anybody.Status = v1alpha1.PeeringRequestStatus{
		Contract: "k1", Node: "entente-k1", ForeignCluster: "lab", ObservedGeneration: 1,
		Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "Signed", Message: "ok", ObservedGeneration: 2}},
	}
	a := newAdminTest(t, one, anybody, request("third", "office"))
	c := a.alice(t)
	got, err := c.GetPeering(t.Context(), &ententev1.GetPeeringRequest{Name: "peerings/any-1"})
	if err != nil {
		t.Fatal(err)
	}
	want := &ententev1.Peering{
		Name: "peerings/any-1", Peer: "peers/-", Resources: amounts("cpu", "2"), Duration: durationpb.New(time.Hour), NoRenewal: true,
		PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "1"}, Contract: "contracts/k1", Node: "entente-k1", Provider: "peers/lab",
		Accepted:   &ententev1.Condition{Type: "Accepted", Status: "True", Reason: "Signed", Message: "ok"},
		Generation: 3, AcceptedGeneration: 2, ContractGeneration: 1,
	}
	if diff := cmp.Diff(want, got.GetPeering(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var names []string
	token := ""
	for {
		resp, err := c.ListPeerings(t.Context(), &ententev1.ListPeeringsRequest{PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range resp.GetPeerings() {
			names = append(names, p.GetName())
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"peerings/any-1", "peerings/batch", "peerings/third"}, names); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	change := &ententev1.UpdatePeeringRequest{
		Peering: &ententev1.Peering{Name: "peerings/batch", Resources: amounts("cpu", "8")}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"resources"}}, ValidateOnly: true,
	}
	resp, err := c.UpdatePeering(t.Context(), change)
	if err != nil || resp.GetPeering().GetResources().GetAmounts()["cpu"] != "8" {
		t.Errorf("only checking: got %v, %v", resp, err)
	}
	cpu := func() string {
		t.Helper()
		resp, err := c.GetPeering(t.Context(), &ententev1.GetPeeringRequest{Name: "peerings/batch"})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetPeering().GetResources().GetAmounts()["cpu"]
	}
	if got := cpu(); got != "2" {
		t.Errorf("only checking wrote %s", got)
	}
	change.ValidateOnly = false
	if resp, err := c.UpdatePeering(t.Context(), change); err != nil || resp.GetPeering().GetPriceCeiling().GetAmount() != "1" || cpu() != "8" {
		t.Errorf("got %v, %v, %s", resp, err, cpu())
	}
	header := asAlice()
	header.Set("Content-Type", "application/json")
	// Without a mask, REST takes the fields of the body for one.
	code, body, _ := a.rest(t, "PATCH", "/v1/peerings/batch", `{"resources":{"amounts":{"cpu":"3"}},"priceCeiling":null,"noRenewal":false}`, header)
	if code != 200 || cpu() != "3" || strings.Contains(body, "priceCeiling") || strings.Contains(body, "noRenewal") || !strings.Contains(body, "duration") {
		t.Errorf("PATCH: got %d %s", code, body)
	}
	code, body, _ = a.rest(t, "PATCH", "/v1/peerings/batch?updateMask=duration", `{"duration":"60s","resources":{"amounts":{"cpu":"9"}}}`, header)
	if code != 200 || cpu() != "3" || !strings.Contains(body, `"60s"`) {
		t.Errorf("PATCH with a mask: got %d %s", code, body)
	}
	if code, body, _ = a.rest(t, "PATCH", "/v1/peerings/batch?updateMask=owner", `{}`, header); code != 400 || !strings.Contains(body, "update_mask") {
		t.Errorf("PATCH with an unknown field: got %d %s", code, body)
	}
	for name, tc := range map[string]struct {
		call func() error
		want peering.Reason
	}{
		"get": {func() error {
			_, err := c.GetPeering(t.Context(), &ententev1.GetPeeringRequest{Name: "peerings/nope"})
			return err
		}, peering.ReasonPeeringUnknown},
		"update": {func() error {
			_, err := c.UpdatePeering(t.Context(), &ententev1.UpdatePeeringRequest{Peering: &ententev1.Peering{Name: "peerings/nope"}})
			return err
		}, peering.ReasonPeeringUnknown},
		"update without a name": {func() error {
			_, err := c.UpdatePeering(t.Context(), &ententev1.UpdatePeeringRequest{Peering: &ententev1.Peering{}})
			return err
		}, peering.ReasonRequestInvalid},
		"update by a path": {func() error {
			_, err := c.UpdatePeering(t.Context(), &ententev1.UpdatePeeringRequest{Peering: &ententev1.Peering{Name: "peerings/../contracts/k1"}})
			return err
		}, peering.ReasonRequestInvalid},
		"update of nothing": {func() error {
			_, err := c.UpdatePeering(t.Context(), &ententev1.UpdatePeeringRequest{})
			return err
		}, peering.ReasonRequestInvalid},
		"delete": {func() error {
			_, err := c.DeletePeering(t.Context(), &ententev1.DeletePeeringRequest{Name: "peerings/nope"})
			return err
		}, peering.ReasonPeeringUnknown},
		"get by a path": {func() error {
			_, err := c.GetPeering(t.Context(), &ententev1.GetPeeringRequest{Name: "peerings/../x"})
			return err
		}, peering.ReasonRequestInvalid},
	} {
		if err := tc.call(); wire.ReasonOf(err) != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	if _, err := c.DeletePeering(t.Context(), &ententev1.DeletePeeringRequest{Name: "peerings/batch"}); err != nil || len(a.requests(t)) != 2 {
		t.Errorf("got %v, %d left", err, len(a.requests(t)))
	}
}

// TestUnpeeringLetsAsksOfAnyPeerChooseAnother: the end of a peering with one peer must not end
// asks that another one can fulfil.
func TestUnpeeringLetsAsksOfAnyPeerChooseAnother(t *testing.T) {
	ask := func(name, provider string) *v1alpha1.PeeringRequest {
		return &v1alpha1.PeeringRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-1"}, Spec: v1alpha1.PeeringRequestSpec{ClusterSelector: &metav1.LabelSelector{}},
			Status: v1alpha1.PeeringRequestStatus{ForeignCluster: provider},
		}
	}
	named := ask("z", "office")
	named.Spec = v1alpha1.PeeringRequestSpec{ForeignCluster: "office"}
	contract := contractObject("k1", "office", strings.Repeat("a", 32), v1alpha1.ContractConsumer, "Active", 0)
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)), peerObject("lab", strings.Repeat("b", 32)),
		ask("x", "office"), ask("y", "lab"), named, contract)
	leaves := func() map[string]string {
		t.Helper()
		out := map[string]string{}
		for _, s := range a.requests(t) {
			out[s.Name] = s.Annotations[v1alpha1.AnnotationExcludedClusters]
		}
		return out
	}
	for range 2 { // repeating it changes nothing
		if _, err := a.alice(t).EndPeering(t.Context(), &ententev1.EndPeeringRequest{Peer: "peers/office"}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"x": "office", "y": ""}, leaves()); diff != "" {
			t.Errorf("asks and whom they leave out (-want +got)\n%s", diff)
		}
	}
	if err := a.client.Get(t.Context(), ctrlclient.ObjectKeyFromObject(contract), contract); err != nil || contract.Spec.Termination != v1alpha1.TerminateDrain {
		t.Errorf("the contract's termination is %q, %v", contract.Spec.Termination, err)
	}
	// Who is forgotten is not asked again, and another may do.
	if _, err := a.alice(t).EndPeering(t.Context(), &ententev1.EndPeeringRequest{Peer: "peers/lab", Forget: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"x": "office", "y": ""}, leaves()); diff != "" {
		t.Errorf("asks and whom they leave out (-want +got)\n%s", diff)
	}
}

func TestPoliciesAreTested(t *testing.T) {
	id, other := strings.Repeat("a", 32), strings.Repeat("b", 32)
	pending := peerObject("pending", "")
	a := newAdminTest(t, peerObject("office", id), peerObject("lab", other), pending)
	a.policies[id] = peering.PolicyTest{Policy: "default", Advertisement: offer(t, "0.5"), Message: "cpu: 4 of 4 asked"}
	a.policies[other] = peering.PolicyTest{Reason: peering.ReasonPolicyRefused, Message: "no policy selects it"}
	c := a.alice(t)
	resp, err := c.TestPolicy(t.Context(), &ententev1.TestPolicyRequest{Peer: "peers/-", Resources: amounts("cpu", "4"), NodeSelector: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range resp.GetResults() {
		got = append(got, strings.Join([]string{r.GetPeer(), r.GetPolicy(), r.GetReason(), r.GetMessage(), r.GetAdvertisement().GetHourlyPrice().GetAmount(), r.GetAdvertisement().GetRequestId()}, "|"))
	}
	want := []string{
		"peers/lab||POLICY_REFUSED|no policy selects it||",
		"peers/office|default||cpu: 4 of 4 asked|2|",
		"peers/pending||PEER_NOT_TRUSTED|the ID of this cluster is not known until its token is redeemed||",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if asked := (<-a.previewed).Spec; asked.Resources.Cpu().String() != "4" || asked.NodeSelector["a"] != "b" || asked.Network != v1alpha1.NetworkTunnel {
		t.Errorf("asked %+v", asked)
	}
	if resp, err := c.TestPolicy(t.Context(), &ententev1.TestPolicyRequest{Peer: "peers/office"}); err != nil || len(resp.GetResults()) != 1 {
		t.Errorf("one peer: got %v, %v", resp, err)
	}
	for name, tc := range map[string]struct {
		req  *ententev1.TestPolicyRequest
		want peering.Reason
	}{
		"an unknown peer":     {&ententev1.TestPolicyRequest{Peer: "peers/nobody"}, peering.ReasonPeerUnknown},
		"no peer":             {&ententev1.TestPolicyRequest{}, peering.ReasonRequestInvalid},
		"nothing":             {&ententev1.TestPolicyRequest{Peer: "peers/-", Resources: amounts("cpu", "0")}, peering.ReasonRequestInvalid},
		"a label of no form":  {&ententev1.TestPolicyRequest{Peer: "peers/-", NodeSelector: map[string]string{"": "x"}}, peering.ReasonRequestInvalid},
		"a price of no money": {&ententev1.TestPolicyRequest{Peer: "peers/-", PriceCeiling: &ententev1.Money{}}, peering.ReasonRequestInvalid},
	} {
		if _, err := c.TestPolicy(t.Context(), tc.req); wire.ReasonOf(err) != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
}

// Policies are tested before there is any peer, and what is wrong with one is said whoever asks.
func TestPoliciesAreTestedWithoutAPeer(t *testing.T) {
	policy := func(name, status, reason string) *v1alpha1.PeeringPolicy {
		c := condition(v1alpha1.ConditionValid, metav1.ConditionStatus(status), reason, "message of "+name)
		c.ObservedGeneration = 1
		return &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}, Status: v1alpha1.PeeringPolicyStatus{Conditions: []metav1.Condition{c}}}
	}
	policies := []ctrlclient.Object{
		policy("a", "True", "Valid"), policy("b", "True", v1alpha1.ReasonNotFound), policy("c", "False", "Invalid"),
		&v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "d", Generation: 1}},
	}
	wrong := []string{"|b||message of b", "|c|POLICY_REFUSED|message of c", "|d||the agent has not checked it yet: ask again"}
	for name, tc := range map[string]struct {
		objects []ctrlclient.Object
		want    []string
	}{
		"no peer": {policies, append([]string{"|a||nothing is wrong with it; no peer is known that it could be tested with"}, wrong...)},
		"a peer":  {append(slices.Clone(policies), peerObject("office", "")), append(slices.Clone(wrong), "peers/office||PEER_NOT_TRUSTED|the ID of this cluster is not known until its token is redeemed")},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := newAdminTest(t, tc.objects...).alice(t).TestPolicy(t.Context(), &ententev1.TestPolicyRequest{Peer: "peers/-"})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range resp.GetResults() {
				got = append(got, strings.Join([]string{r.GetPeer(), r.GetPolicy(), r.GetReason(), r.GetMessage()}, "|"))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestADryAmendmentReturnsTheOffer: that a peering could be changed so is what
// its provider says, not only that the change is well formed.
func TestADryAmendmentReturnsTheOffer(t *testing.T) {
	office := strings.Repeat("a", 32)
	request := &v1alpha1.PeeringRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "batch", UID: "uid-1"},
		Spec:       v1alpha1.PeeringRequestSpec{ForeignCluster: "office"},
		Status:     v1alpha1.PeeringRequestStatus{Contract: "c-1", ForeignCluster: "office"},
	}
	a := newAdminTest(t, peerObject("office", office), request)
	a.preview = func(r *v1alpha1.PeeringRequest) (string, *peering.Advertisement, error) {
		switch {
		case r.UID != "uid-1" || r.Status.Contract != "c-1":
			t.Errorf("asked of %+v", r)
		case r.Spec.Resources.Cpu().Value() > 8:
			return "", nil, peering.Errorf(peering.ReasonPolicyRefused, "too much")
		case r.Spec.Resources.Cpu().Value() < 8:
			return "", nil, nil
		}
		return "office", offer(t, "0.25"), nil
	}
	c := a.alice(t)
	for _, tc := range []struct {
		amount string
		hourly string
		want   peering.Reason
	}{{"8", "1", ""}, {"64", "", peering.ReasonPolicyRefused}, {"4", "", ""}} {
		resp, err := c.UpdatePeering(t.Context(), &ententev1.UpdatePeeringRequest{
			Peering: &ententev1.Peering{Name: "peerings/batch", Resources: amounts("cpu", tc.amount)}, ValidateOnly: true,
		})
		ad := resp.GetAdvertisement()
		if wire.ReasonOf(err) != tc.want || ad.GetHourlyPrice().GetAmount() != tc.hourly || ad.GetRequestId() != "" || err == nil && resp.GetPeering().GetProvider() != "peers/office" {
			t.Errorf("%s: got %v, %v", tc.amount, resp, err)
		}
	}
	if got := a.requests(t); len(got) != 1 || len(got[0].Spec.Resources) != 0 {
		t.Errorf("only checking wrote %+v", got)
	}
}
