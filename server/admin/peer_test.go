package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func (a *adminTest) peer(t testing.TB, name string) v1alpha1.ForeignCluster {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := a.client.Get(t.Context(), ctrlclient.ObjectKey{Name: name}, &fc); err != nil {
		t.Fatal(err)
	}
	return fc
}

func TestAPeersMessageHasAllThatIsKnown(t *testing.T) {
	fc := peerObject("office", strings.Repeat("b", 32))
	fc.Labels = map[string]string{"region": "north"}
	fc.Spec.Decision = v1alpha1.DecisionApproved
	fc.Status.Source = v1alpha1.SourceIntroduction
	fc.Status.Introduction = &v1alpha1.Introduction{Code: "042917", Name: "office", Bundle: "PEM"}
	ends := metav1.NewTime(epoch.Add(24 * time.Hour))
	fc.Status.Session = &v1alpha1.PeerSession{
		Dialled: true, Endpoint: "192.0.2.9:7443", Since: metav1.NewTime(epoch),
		ClockSkew: &metav1.Duration{Duration: 2 * time.Second}, RoundTrip: &metav1.Duration{Duration: 15 * time.Millisecond}, CertificateNotAfter: &ends,
	}
	fc.Status.Offer = &v1alpha1.Offer{
		Available: true, Resources: corev1.ResourceList{"cpu": resource.MustParse("4")}, Message: "",
		Price:      &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.02"}},
		NodeLabels: map[string]string{"kubernetes.io/os": "linux"}, Architectures: []string{"amd64", "arm64"}, StorageClasses: []string{"fast"},
		Duration: &metav1.Duration{Duration: time.Hour},
	}
	a := newAdminTest(t, fc)
	resp, err := a.alice(t).GetPeer(t.Context(), &ententev1.GetPeerRequest{Name: "peers/office"})
	if err != nil {
		t.Fatal(err)
	}
	want := &ententev1.Peer{
		Name: "peers/office", ClusterId: strings.Repeat("b", 32), Role: "Provider", Endpoints: []string{"192.0.2.9:7443"}, Protocol: 1,
		Conditions: []*ententev1.Condition{{Type: "Trusted", Status: "True", Reason: "Joined", Message: "ok"}},
		Source:     "Introduction", Decision: "Approved", Code: "042917", Labels: map[string]string{"region": "north"},
		Session: &ententev1.Session{
			Dialled: true, Endpoint: "192.0.2.9:7443", Since: timestamppb.New(epoch), ClockSkew: durationpb.New(2 * time.Second),
			RoundTrip: durationpb.New(15 * time.Millisecond), CertificateExpireTime: timestamppb.New(epoch.Add(24 * time.Hour)),
		},
		Offer: &ententev1.Offer{
			Available: true, Resources: amounts("cpu", "4"), Price: &ententev1.PriceList{Currency: "EUR", PerHour: map[string]string{"cpu": "0.02"}},
			NodeLabels: map[string]string{"kubernetes.io/os": "linux"}, Architectures: []string{"amd64", "arm64"}, StorageClasses: []string{"fast"},
			Duration: durationpb.New(time.Hour),
		},
	}
	if diff := cmp.Diff(want, resp.GetPeer(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestOfSeveralPeersWithOneIDTheTrustedOneCounts(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	fc := func(name string, age time.Duration, trusted metav1.ConditionStatus) v1alpha1.ForeignCluster {
		o := *peerObject(name, id)
		o.CreationTimestamp = metav1.NewTime(epoch.Add(-age))
		o.Status.Conditions[0].Status = trusted
		return o
	}
	for name, tc := range map[string]struct {
		list []v1alpha1.ForeignCluster
		want string
	}{
		"the trusted one":       {[]v1alpha1.ForeignCluster{fc("a", 3, "False"), fc("b", 1, "True"), fc("c", 2, "False")}, "b"},
		"the oldest":            {[]v1alpha1.ForeignCluster{fc("a", 1, "False"), fc("b", 3, "False"), fc("c", 2, "False")}, "b"},
		"the oldest of trusted": {[]v1alpha1.ForeignCluster{fc("a", 1, "True"), fc("b", 3, "False"), fc("c", 2, "True")}, "c"},
	} {
		if got := byClusterID(tc.list, id); got == nil || got.Name != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	if got := byClusterID([]v1alpha1.ForeignCluster{fc("a", 1, "True")}, strings.Repeat("b", 32)); got != nil {
		t.Errorf("an unknown ID is %s", got.Name)
	}
}

func TestAClusterIsIntroduced(t *testing.T) {
	a := newAdminTest(t)
	c := a.alice(t)
	id := strings.Repeat("s", 32)
	resp, err := c.IntroducePeer(t.Context(), &ententev1.IntroducePeerRequest{Endpoint: "192.0.2.7:7443", Name: "office"})
	if err != nil || resp.GetPeer().GetName() != "peers/office" || resp.GetPeer().GetCode() != "042917" || resp.GetPeer().GetSource() != "Introduction" {
		t.Errorf("got %v, %v", resp, err)
	}
	if _, err := c.IntroducePeer(t.Context(), &ententev1.IntroducePeerRequest{Endpoint: "office.example:7443", Name: "lab", ClusterId: id, Approve: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"192.0.2.7:7443  office false", "office.example:7443 " + id + " lab true"}, a.introduced); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, tc := range map[string]struct {
		req  *ententev1.IntroducePeerRequest
		want peering.Reason
	}{
		"approved without an ID":     {&ententev1.IntroducePeerRequest{Endpoint: "192.0.2.7:7443", Approve: true}, peering.ReasonRequestInvalid},
		"an endpoint without a port": {&ententev1.IntroducePeerRequest{Endpoint: "192.0.2.7"}, peering.ReasonRequestInvalid},
		"an endpoint that is a URL":  {&ententev1.IntroducePeerRequest{Endpoint: "https://192.0.2.7:7443"}, peering.ReasonRequestInvalid},
		"no endpoint":                {&ententev1.IntroducePeerRequest{}, peering.ReasonRequestInvalid},
		"a malformed ID":             {&ententev1.IntroducePeerRequest{Endpoint: "192.0.2.7:7443", ClusterId: "office"}, peering.ReasonRequestInvalid},
		"itself":                     {&ententev1.IntroducePeerRequest{Endpoint: "192.0.2.7:7443", ClusterId: string(a.agent.ID())}, peering.ReasonPeerIsSelf},
	} {
		if _, err := c.IntroducePeer(t.Context(), tc.req); wire.ReasonOf(err) != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	if len(a.introduced) != 2 {
		t.Errorf("introduced with %v", a.introduced)
	}
	a.joinErr = &peering.Error{Reason: peering.ReasonPeerIdentity, Message: "another cluster answers"}
	if _, err := c.IntroducePeer(t.Context(), &ententev1.IntroducePeerRequest{Endpoint: "192.0.2.7:7443", ClusterId: id}); wire.ReasonOf(err) != peering.ReasonPeerIdentity {
		t.Errorf("got %v", err)
	}
}

// TestApprovalMakesAPeerOfAPolicyAPersons has a policy's peer decided about: what a person
// approved the policy does not end.
func TestApprovalMakesAPeerOfAPolicyAPersons(t *testing.T) {
	trusted := peerObject("office", strings.Repeat("a", 32))
	trusted.Spec.Decision = v1alpha1.DecisionApproved
	trusted.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelAutomatic: "home"}
	trusted.Annotations = map[string]string{v1alpha1.AnnotationAutomaticBy: "FirstUse", v1alpha1.AnnotationAutomaticEnded: "true"}
	denied := trusted.DeepCopy()
	denied.Name, denied.Spec.ClusterID = "lab", strings.Repeat("b", 32)
	a := newAdminTest(t, trusted, denied)
	c := a.alice(t)
	if _, err := c.ApprovePeer(t.Context(), &ententev1.ApprovePeerRequest{Name: "peers/office"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DenyPeer(t.Context(), &ententev1.DenyPeerRequest{Name: "peers/lab"}); err != nil {
		t.Fatal(err)
	}
	if fc := a.peer(t, "office"); fc.Labels[v1alpha1.LabelAutomatic] != "" || fc.Annotations[v1alpha1.AnnotationAutomaticBy]+fc.Annotations[v1alpha1.AnnotationAutomaticEnded] != "" || fc.Labels[v1alpha1.LabelManaged] != v1alpha1.Manager {
		t.Errorf("approved, it is %+v", fc.ObjectMeta)
	}
	if fc := a.peer(t, "lab"); fc.Labels[v1alpha1.LabelAutomatic] != "home" {
		t.Errorf("denied, it is %+v", fc.ObjectMeta)
	}
}

func TestAPeerIsApprovedByItsCodeAndDenied(t *testing.T) {
	id := strings.Repeat("a", 32)
	introduced := peerObject("office", id)
	introduced.Status.Introduction = &v1alpha1.Introduction{Code: "042917"}
	// Discovery found it: no administrator here compared a code or wrote its ID.
	hint := peerObject("workshop-cccccccc", strings.Repeat("c", 32))
	hint.Spec.TrustBundle = ""
	hint.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
	hint.Annotations = map[string]string{v1alpha1.AnnotationDiscovered: "true"}
	a := newAdminTest(t, introduced, peerObject("lab", strings.Repeat("b", 32)), hint)
	c := a.alice(t)
	approve := func(name, code string) error {
		_, err := c.ApprovePeer(t.Context(), &ententev1.ApprovePeerRequest{Name: name, Code: code})
		return err
	}
	for name, tc := range map[string]struct {
		peer, code string
		want       peering.Reason
	}{
		"another code":                  {"peers/office", "042918", peering.ReasonCodeMismatch},
		"a code for a peer without one": {"peers/lab", "042917", peering.ReasonIntroductionUnknown},
		"a malformed code":              {"peers/office", "42917", peering.ReasonRequestInvalid},
		"a code in letters":             {"peers/office", "o42917", peering.ReasonRequestInvalid},
		"a peer that is not known":      {"peers/nobody", "", peering.ReasonPeerUnknown},
		"what discovery found":          {"peers/workshop-cccccccc", "", peering.ReasonIntroductionUnknown},
		"the same by its ID":            {"peers/" + strings.Repeat("c", 32), "", peering.ReasonIntroductionUnknown},
	} {
		if err := approve(tc.peer, tc.code); wire.ReasonOf(err) != tc.want || strings.Contains(fmt.Sprint(err), "042917") {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	if d := a.peer(t, "office").Spec.Decision; d != "" {
		t.Fatalf("the decision is %s", d)
	}
	resp, err := c.ApprovePeer(t.Context(), &ententev1.ApprovePeerRequest{Name: "peers/office", Code: "042 917"})
	if err != nil || resp.GetPeer().GetDecision() != "Approved" || a.peer(t, "office").Spec.Decision != v1alpha1.DecisionApproved {
		t.Errorf("got %v, %v", resp, err)
	}
	if err := approve("peers/"+id, ""); err != nil {
		t.Errorf("again, by ID and by eye: %v", err)
	}
	// What was approved is approved again, also when trust was made and the code is gone;
	// one that is there is compared.
	if err := approve("peers/office", "042 917"); err != nil {
		t.Errorf("again, by the code: %v", err)
	}
	if err := approve("peers/office", "042918"); wire.ReasonOf(err) != peering.ReasonCodeMismatch {
		t.Errorf("again, by another code: %v", err)
	}
	settled := a.peer(t, "office")
	settled.Status.Introduction = nil
	if err := a.client.Update(t.Context(), &settled); err != nil {
		t.Fatal(err)
	}
	if err := approve("peers/office", "042917"); err != nil {
		t.Errorf("again, after the code went: %v", err)
	}
	settled = a.peer(t, "office")
	settled.Status.Introduction = &v1alpha1.Introduction{Code: "042917"}
	if err := a.client.Update(t.Context(), &settled); err != nil {
		t.Fatal(err)
	}
	denied, err := c.DenyPeer(t.Context(), &ententev1.DenyPeerRequest{Name: "peers/office"})
	if err != nil || denied.GetPeer().GetDecision() != "Denied" || a.peer(t, "office").Spec.Decision != v1alpha1.DecisionDenied {
		t.Errorf("got %v, %v", denied, err)
	}
	if _, err := c.DenyPeer(t.Context(), &ententev1.DenyPeerRequest{Name: "peers/nobody"}); wire.ReasonOf(err) != peering.ReasonPeerUnknown {
		t.Errorf("a peer that is not known: got %v", err)
	}
	if err := approve("peers/office", "042917"); err != nil || a.peer(t, "office").Spec.Decision != v1alpha1.DecisionApproved {
		t.Errorf("after denying: %v", err)
	}
}

// TestTheCodeThatWasComparedIsDecidedAbout is about a peer that introduces itself
// again between the comparison and the decision.
func TestTheCodeThatWasComparedIsDecidedAbout(t *testing.T) {
	introduced := peerObject("office", strings.Repeat("a", 32))
	introduced.Status.Introduction = &v1alpha1.Introduction{Code: "042917"}
	a := newAdminTest(t, introduced)
	s := &service{cfg: Config{Client: a.client, Now: time.Now}}
	reads := 0
	_, err := s.decide(t.Context(), "peers/office", v1alpha1.DecisionApproved, func(fc *v1alpha1.ForeignCluster) error {
		if reads++; reads == 1 {
			other := a.peer(t, "office")
			other.Status.Introduction = &v1alpha1.Introduction{Code: "111111"}
			if err := a.client.Update(t.Context(), &other); err != nil {
				t.Fatal(err)
			}
			return nil
		}
		return checkCode(fc, "042917")
	})
	if wire.ReasonOf(err) != peering.ReasonCodeMismatch || reads != 2 || a.peer(t, "office").Spec.Decision != "" {
		t.Errorf("read %d times: %v; the decision is %q", reads, err, a.peer(t, "office").Spec.Decision)
	}
}

func TestTokensAreListedAndRevoked(t *testing.T) {
	a := newAdminTest(t)
	c := a.alice(t)
	var ids []string
	for range 3 {
		resp, err := c.CreateToken(t.Context(), &ententev1.CreateTokenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, resp.GetTokenId())
	}
	a.tokens.list[1].RedeemedBy = "someone"
	seen := map[string]*ententev1.Token{}
	token := ""
	for {
		resp, err := c.ListTokens(t.Context(), &ententev1.ListTokensRequest{PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range resp.GetTokens() {
			seen[token.GetName()] = token
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(seen) != 3 || seen["tokens/"+ids[1]].GetRedeemedBy() != "someone" || seen["tokens/"+ids[0]].GetExpireTime() == nil {
		t.Errorf("got %v", seen)
	}
	if _, err := c.RevokeToken(t.Context(), &ententev1.RevokeTokenRequest{Name: "tokens/" + ids[0]}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]peering.Reason{"tokens/" + ids[0]: peering.ReasonTokenUnknown, "tokens/../x": peering.ReasonRequestInvalid, ids[1]: peering.ReasonRequestInvalid} {
		if _, err := c.RevokeToken(t.Context(), &ententev1.RevokeTokenRequest{Name: name}); wire.ReasonOf(err) != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

func TestRequestsWaitForAnAdministrator(t *testing.T) {
	office, lab := peerObject("office", strings.Repeat("a", 32)), peerObject("lab", strings.Repeat("b", 32))
	request := func(id string) v1alpha1.PendingRequest {
		return v1alpha1.PendingRequest{
			ID: id, Resources: corev1.ResourceList{"cpu": resource.MustParse("2")}, Duration: &metav1.Duration{Duration: time.Hour},
			PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "1"}, Time: metav1.NewTime(epoch),
		}
	}
	office.Status.Requests = []v1alpha1.PendingRequest{request("r2"), request("r1")}
	lab.Status.Requests = []v1alpha1.PendingRequest{request("r9")}
	a := newAdminTest(t, office, lab)
	c := a.alice(t)
	list := func(parent string) (names []string) {
		t.Helper()
		token := ""
		for {
			resp, err := c.ListPeeringRequests(t.Context(), &ententev1.ListPeeringRequestsRequest{Parent: parent, PageSize: 1, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range resp.GetRequests() {
				names = append(names, r.GetName())
			}
			if token = resp.GetNextPageToken(); token == "" {
				return names
			}
		}
	}
	if diff := cmp.Diff([]string{"peers/lab/requests/r9", "peers/office/requests/r1", "peers/office/requests/r2"}, list("peers/-")); diff != "" {
		t.Errorf("all (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"peers/office/requests/r1", "peers/office/requests/r2"}, list("peers/office")); diff != "" {
		t.Errorf("one peer's (-want +got)\n%s", diff)
	}
	resp, err := c.ListPeeringRequests(t.Context(), &ententev1.ListPeeringRequestsRequest{Parent: "peers/lab"})
	if err != nil {
		t.Fatal(err)
	}
	want := &ententev1.PendingRequest{
		Name: "peers/lab/requests/r9", Resources: amounts("cpu", "2"), Duration: durationpb.New(time.Hour),
		PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "1"}, CreateTime: timestamppb.New(epoch),
	}
	if diff := cmp.Diff(want, resp.GetRequests()[0], protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	approve := func(name string) error {
		_, err := c.ApprovePeeringRequest(t.Context(), &ententev1.ApprovePeeringRequestRequest{Name: name})
		return err
	}
	deny := func(name string) error {
		_, err := c.DenyPeeringRequest(t.Context(), &ententev1.DenyPeeringRequestRequest{Name: name})
		return err
	}
	lists := func() string {
		fc := a.peer(t, "office")
		return fmt.Sprint(fc.Spec.ApprovedRequests, fc.Spec.DeniedRequests)
	}
	for _, step := range []struct {
		do   func(string) error
		name string
		want peering.Reason
		then string
	}{
		{approve, "peers/office/requests/r1", "", "[r1] []"},
		{approve, "peers/office/requests/r1", "", "[r1] []"},
		{deny, "peers/office/requests/r2", "", "[r1] [r2]"},
		{deny, "peers/" + office.Spec.ClusterID + "/requests/r1", "", "[] [r2 r1]"},
		{approve, "peers/office/requests/r9", peering.ReasonRequestUnknown, "[] [r2 r1]"},
		{approve, "peers/nobody/requests/r1", peering.ReasonPeerUnknown, "[] [r2 r1]"},
		{approve, "peers/office/requests/", peering.ReasonRequestInvalid, "[] [r2 r1]"},
		{deny, "peers/office/requests/a/b", peering.ReasonRequestInvalid, "[] [r2 r1]"},
		{approve, "peers/office/requests/r1", "", "[r1] [r2]"},
	} {
		if err := step.do(step.name); wire.ReasonOf(err) != step.want || lists() != step.then {
			t.Errorf("%s: got %v and %s, want %q and %s", step.name, err, lists(), step.want, step.then)
		}
	}
}

// The provider's half drops a denied request with its next sweep.
func TestADeniedRequestDoesNotWaitForAnAdministrator(t *testing.T) {
	fc := peerObject("office", strings.Repeat("a", 32))
	fc.Status.Requests = []v1alpha1.PendingRequest{{ID: "r1"}, {ID: "r2"}}
	c := newAdminTest(t, fc).alice(t)
	if _, err := c.DenyPeeringRequest(t.Context(), &ententev1.DenyPeeringRequestRequest{Name: "peers/office/requests/r1"}); err != nil {
		t.Fatal(err)
	}
	resp, err := c.ListPeeringRequests(t.Context(), &ententev1.ListPeeringRequestsRequest{Parent: "peers/-"})
	if err != nil || len(resp.GetRequests()) != 1 || resp.GetRequests()[0].GetName() != "peers/office/requests/r2" {
		t.Errorf("got %v, %v", resp.GetRequests(), err)
	}
}

func TestThereIsRoomForEachDecision(t *testing.T) {
	t.Parallel()
	full := make([]string, MaxDecidedRequests)
	for i := range full {
		full[i] = fmt.Sprint("r", i)
	}
	got := roomFor(append([]string(nil), full...), map[string]bool{"r0": true, "r1": true})
	if len(got) != MaxDecidedRequests-1 || got[0] != "r0" || got[1] != "r1" || got[2] != "r3" {
		t.Errorf("what goes is not the oldest that no contract goes back to: %v", got)
	}
	all := map[string]bool{}
	for _, id := range full {
		all[id] = true
	}
	if got := roomFor(append([]string(nil), full...), all); len(got) != MaxDecidedRequests-1 || got[0] != "r1" {
		t.Errorf("where contracts go back to all: %v", got)
	}
	if got := roomFor([]string{"a"}, nil); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestInfoHasTheIdentityAndProblems(t *testing.T) {
	fc := peerObject("office", strings.Repeat("a", 32))
	fc.Status.Conditions = append(fc.Status.Conditions, condition("Connected", "False", "NoSession", "refused"))
	a := newAdminTest(t, fc)
	a.self = func(s *Self) {
		s.RootExpires, s.CertificateExpires = epoch.AddDate(50, 0, 0), epoch.AddDate(40, 0, 0)
		s.Fingerprint, s.Automatic = "0011223344556677", true
		s.DNS = []DNSPublication{
			{Domain: "sub.example.com", Zone: "example.com", Server: "ns.example.com", Problem: "REFUSED"},
			{Domain: "example.org", Zone: "example.org", Server: "192.0.2.53", Instance: "home (2)", Host: "entente-home", Confirmed: epoch, Leaving: true},
		}
	}
	info, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &ententev1.GetInfoResponse{
		ClusterId: string(a.agent.ID()), ClusterName: "home", Version: "v1.2.3", Endpoints: []string{"192.0.2.1:7443"}, Peers: 1, Protocol: 1,
		RootExpireTime: timestamppb.New(epoch.AddDate(50, 0, 0)), CertificateExpireTime: timestamppb.New(epoch.AddDate(40, 0, 0)),
		Problems:    []string{"DNS domain sub.example.com: REFUSED", "peer office: Connected is False: refused"},
		Fingerprint: "0011223344556677", Automatic: true,
		DnsPublications: []*ententev1.DNSPublication{
			{Domain: "sub.example.com", Zone: "example.com", Server: "ns.example.com", Problem: "REFUSED"},
			{Domain: "example.org", Zone: "example.org", Server: "192.0.2.53", Instance: "home (2)", Host: "entente-home", LastConfirmedTime: timestamppb.New(epoch), Removing: true},
		},
	}
	if diff := cmp.Diff(want, info, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The prefixes of pods, and where they were learnt, are those that the nodes are told. A node that has just
// appeared has none yet.
func TestInfoSaysWherePodPrefixesWereLearnt(t *testing.T) {
	learnt := v1alpha1.FabricNodeSpec{ClusterPodCIDRs: []string{"10.0.0.0/16", "10.244.0.0/24"}, ClusterPodCIDRSources: []string{"spec.podCIDRs of Nodes", "IPPools of Calico"}}
	a := newAdminTest(t, &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: learnt})
	info, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
	if err != nil || !slices.Equal(info.GetPodPrefixes(), learnt.ClusterPodCIDRs) || !slices.Equal(info.GetPodPrefixSources(), learnt.ClusterPodCIDRSources) {
		t.Errorf("prefixes %q by %q: %v", info.GetPodPrefixes(), info.GetPodPrefixSources(), err)
	}
}

// Of each domain the result of the last query is listed. A host in it that cannot be resolved is
// a problem of its publisher, and not one of this cluster.
func TestInfoListsDomains(t *testing.T) {
	a := newAdminTest(t)
	failed := epoch.Add(-time.Hour)
	a.self = func(s *Self) {
		s.Domains = []DNSDomain{
			{Domain: "a.example", Clusters: 2, Answered: epoch, Error: "SERVFAIL for a host", Since: failed, Problems: []string{"no TXT record"}, LeftOut: 1, Authenticated: true},
			{Domain: "b.example", Error: "SERVFAIL", Since: failed, Unlisted: true},
		}
	}
	info, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*ententev1.DNSDomain{
		{Domain: "b.example", Error: "SERVFAIL", ErrorStartTime: timestamppb.New(failed)},
		{
			Domain: "a.example", Clusters: 2, LastResponseTime: timestamppb.New(epoch), Error: "SERVFAIL for a host", ErrorStartTime: timestamppb.New(failed),
			Problems: []string{"no TXT record"}, Omitted: 1, Authenticated: true,
		},
	}
	if diff := cmp.Diff(want, info.GetDnsDomains(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if want := []string{"domain b.example cannot be queried for clusters since " + failed.UTC().Format(time.RFC3339) + ": SERVFAIL"}; !slices.Equal(info.GetProblems(), want) {
		t.Errorf("the problems are %q, want %q", info.GetProblems(), want)
	}
	a.self = func(s *Self) {
		for i := range MaxDNSDomains + 1 {
			s.Domains = append(s.Domains, DNSDomain{Domain: fmt.Sprintf("%04d.example", i), Unlisted: true, Since: failed})
		}
	}
	info, err = a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
	if err != nil || len(info.GetDnsDomains()) != MaxDNSDomains || len(info.GetProblems()) != maxAlike+1 {
		t.Errorf("of %d domains it lists %d, and %d problems: %v", MaxDNSDomains+1, len(info.GetDnsDomains()), len(info.GetProblems()), err)
	}
}

// A policy that cannot peer by itself is a problem of this cluster.
func TestInfoListsPoliciesThatCannotPeer(t *testing.T) {
	policy := func(name string, spec v1alpha1.AutomaticPeering, conditions ...metav1.Condition) *v1alpha1.PeeringPolicy {
		return &v1alpha1.PeeringPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PeeringPolicySpec{Automatic: &spec},
			Status: v1alpha1.PeeringPolicyStatus{Conditions: conditions},
		}
	}
	group := v1alpha1.AutomaticPeering{Group: &v1alpha1.PeeringGroup{Name: "garage"}}
	first := func(sources ...v1alpha1.Source) v1alpha1.AutomaticPeering {
		return v1alpha1.AutomaticPeering{TrustOnFirstUse: true, Sources: sources}
	}
	const nowhere = "policy home: it trusts clusters on first use (trustOnFirstUse) where discovery finds them, and that is off"
	for name, tc := range map[string]struct {
		policy  *v1alpha1.PeeringPolicy
		sources []v1alpha1.Source
		want    string
	}{
		"it is invalid":             {policy: policy("home", group, condition("Valid", "False", "Invalid", "limits: cpuu")), want: "policy home: limits: cpuu"},
		"it names what is not here": {policy: policy("home", group, condition("Valid", "True", "NotFound", "this cluster has no storage class fast")), want: "policy home: this cluster has no storage class fast"},
		"it is valid":               {policy: policy("home", group, condition("Valid", "True", "Valid", "nothing is wrong with it"))},
		"it peers":                  {policy: policy("home", group, condition("Automatic", "True", "Peering", "it does"))},
		"its secret is missing":     {policy: policy("home", group, condition("Automatic", "False", "SecretMissing", "waiting for Secret a/b")), want: "policy home: waiting for Secret a/b"},
		"its secret is too short":   {policy: policy("home", group, condition("Automatic", "False", "SecretUnusable", "make one")), want: "policy home: make one"},
		"another has its group":     {policy: policy("home", group, condition("Automatic", "False", "DuplicateGroup", "the policy b has it, too")), want: "policy home: the policy b has it, too"},
		"others dial this cluster":  {policy: policy("home", group)},
		"first use by no discovery": {policy: policy("home", first("LAN", "DNS")), want: nowhere},
		"first use by another one":  {policy: policy("home", first("LAN")), sources: []v1alpha1.Source{"DNS"}, want: nowhere + ": set discovery.lan.enabled"},
		"first use by DNS":          {policy: policy("home", first("DNS")), want: nowhere + ": set discovery.domains"},
		"first use by one of two":   {policy: policy("home", first()), sources: []v1alpha1.Source{"DNS"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdminTest(t, tc.policy)
			a.self = func(s *Self) { s.Sources = tc.sources }
			info, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(info.GetProblems(), "\n"); (got == "") != (tc.want == "") || !strings.HasPrefix(got, tc.want) || strings.Contains(got, "\n") {
				t.Errorf("it says %q, want %q", got, tc.want)
			}
		})
	}
}

// What is wrong with discovery is reported, and leaves room for all else that is wrong.
func TestInfoListsProblemsOfDiscovery(t *testing.T) {
	fc := peerObject("office", strings.Repeat("a", 32))
	fc.Status.Conditions = append(fc.Status.Conditions, condition("Connected", "False", "NoSession", "refused"))
	a := newAdminTest(t, fc)
	for n, want := range map[int][]string{
		0:   nil,
		1:   {"discovery.domains: d0"},
		300: {"discovery.domains: d0", "discovery.domains: d7", "292 more problems of discovery"},
	} {
		a.self = func(s *Self) {
			for i := range n {
				s.Problems = append(s.Problems, fmt.Sprint("discovery.domains: d", i))
			}
		}
		info, err := a.alice(t).GetInfo(t.Context(), &ententev1.GetInfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(info.GetProblems(), "\n")
		for _, line := range append(want, "peer office: Connected is False: refused") {
			if !strings.Contains(text, line) {
				t.Errorf("of %d problems it says\n%s\nand not %q", n, text, line)
			}
		}
		if got := len(info.GetProblems()); got != min(n, maxAlike)+min(n/maxAlike, 1)+1 {
			t.Errorf("of %d problems it says %d lines", n, got)
		}
	}
}

func TestTheIdentityIsRolledOver(t *testing.T) {
	a := newAdminTest(t)
	resp, err := a.alice(t).RolloverIdentity(t.Context(), &ententev1.RolloverIdentityRequest{})
	if err != nil || !resp.GetRootExpireTime().AsTime().Equal(epoch.AddDate(10, 0, 0)) || !resp.GetOverlapEndTime().AsTime().Equal(epoch.AddDate(0, 0, 1)) {
		t.Errorf("got %v, %v", resp, err)
	}
	a.rollover = peering.Errorf(peering.ReasonRolloverTooSoon, "not yet")
	if _, err := a.alice(t).RolloverIdentity(t.Context(), &ententev1.RolloverIdentityRequest{}); wire.ReasonOf(err) != peering.ReasonRolloverTooSoon {
		t.Errorf("got %v", err)
	}
}
