package admin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestContractsAreListedReadAndEnded(t *testing.T) {
	id, other := strings.Repeat("a", 32), strings.Repeat("b", 32)
	k1 := contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 2)
	k1.Spec.Envelope = `{"payload":"..."}`
	k1.Spec.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.02"}}
	k2 := contractObject("k2", "lab", other, v1alpha1.ContractProvider, "Draining", 1)
	until := metav1.NewTime(epoch.Add(time.Hour))
	k2.Status.DrainUntil, k2.Status.Message = &until, "the peer ended it"
	k3 := contractObject("k3", "gone", strings.Repeat("c", 32), v1alpha1.ContractConsumer, "Closed", 0)
	k3.Status.DrainUntil, k3.Status.ClosedAt, k3.Status.Reason = &until, &until, "Expired"
	a := newAdminTest(t, k1, k2, k3)
	c := a.alice(t)
	list := func(peer string) (names []string) {
		t.Helper()
		token := ""
		for {
			resp, err := c.ListContracts(t.Context(), &ententev1.ListContractsRequest{Peer: peer, PageSize: 2, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range resp.GetContracts() {
				names = append(names, k.GetName())
				if k.GetEnvelope() != "" {
					t.Errorf("the list has the envelope of %s", k.GetName())
				}
			}
			if token = resp.GetNextPageToken(); token == "" {
				return names
			}
		}
	}
	for peer, want := range map[string][]string{
		"": {"contracts/k1", "contracts/k2", "contracts/k3"}, "peers/office": {"contracts/k1"}, "peers/" + other: {"contracts/k2"},
		// A contract outlives a peer that was forgotten.
		"peers/gone": {"contracts/k3"}, "peers/nobody": nil,
	} {
		if diff := cmp.Diff(want, list(peer)); diff != "" {
			t.Errorf("with %q (-want +got)\n%s", peer, diff)
		}
	}
	// A token of one list is not for another.
	first, err := c.ListContracts(t.Context(), &ententev1.ListContractsRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ListContracts(t.Context(), &ententev1.ListContractsRequest{Peer: "peers/office", PageToken: first.GetNextPageToken()}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a token of the list without a filter: got %v", err)
	}

	got, err := c.GetContract(t.Context(), &ententev1.AdminServiceGetContractRequest{Name: "contracts/k1"})
	if err != nil {
		t.Fatal(err)
	}
	want := &ententev1.Contract{
		ContractId: "k1", Name: "contracts/k1", Peer: "peers/office", Revision: 1, Phase: "Active", Role: "Consumer", Node: "entente-k1", Pods: 2,
		Resources: amounts("cpu", "2", "memory", "4Gi"), Price: &ententev1.PriceList{Currency: "EUR", PerHour: map[string]string{"cpu": "0.02"}},
		Envelope: `{"payload":"..."}`,
	}
	if diff := cmp.Diff(want, got.GetContract(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	draining, err := c.GetContract(t.Context(), &ententev1.AdminServiceGetContractRequest{Name: "contracts/k2"})
	if err != nil || !draining.GetContract().GetDrainUntil().AsTime().Equal(epoch.Add(time.Hour)) || draining.GetContract().GetMessage() != "the peer ended it" {
		t.Errorf("got %v, %v", draining, err)
	}
	if over, err := c.GetContract(t.Context(), &ententev1.AdminServiceGetContractRequest{Name: "contracts/k3"}); err != nil || over.GetContract().GetDrainUntil() != nil ||
		over.GetContract().GetReason() != "Expired" || !over.GetContract().GetCloseTime().AsTime().Equal(until.Time) {
		t.Errorf("one that is over: %v, %v", over, err)
	}

	end := func(name string, now bool) (v1alpha1.Termination, error) {
		t.Helper()
		_, err := c.TerminateContract(t.Context(), &ententev1.AdminServiceTerminateContractRequest{Name: "contracts/" + name, Now: now})
		var k v1alpha1.Contract
		if ctrlclient.IgnoreNotFound(a.client.Get(t.Context(), ctrlclient.ObjectKey{Name: name}, &k)) != nil {
			t.Fatal("cannot read", name)
		}
		return k.Spec.Termination, err
	}
	for _, step := range []struct {
		name string
		now  bool
		want v1alpha1.Termination
		err  peering.Reason
	}{
		{"k1", false, v1alpha1.TerminateDrain, ""},
		{"k1", false, v1alpha1.TerminateDrain, ""},
		{"k1", true, v1alpha1.TerminateNow, ""},
		{"k1", false, v1alpha1.TerminateNow, ""},
		{"k2", false, v1alpha1.TerminateDrain, ""},
		{"k3", true, "", ""}, // it is over
		{"k4", true, "", peering.ReasonContractUnknown},
	} {
		if got, err := end(step.name, step.now); got != step.want || wire.ReasonOf(err) != step.err {
			t.Errorf("end %s, now is %v: got %q, %v; want %q, %q", step.name, step.now, got, err, step.want, step.err)
		}
	}
	// What the peer ended can be cut short, and is not made to drain again.
	ended := contractObject("k5", "office", id, v1alpha1.ContractConsumer, "Draining", 1)
	ended.Spec.Termination = v1alpha1.TerminatePeer
	if err := a.client.Create(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	if got, err := end("k5", false); err != nil || got != v1alpha1.TerminatePeer {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := end("k5", true); err != nil || got != v1alpha1.TerminateNow {
		t.Errorf("got %q, %v", got, err)
	}
}

// statement is a statement as the agent keeps it.
func statement(t testing.TB, contract string, sequence uint64, hours string, price peering.PriceList) v1alpha1.Statement {
	t.Helper()
	used := usage(t, hours)
	amount, err := price.Cost(used)
	if err != nil {
		t.Fatal(err)
	}
	s := peering.Statement{
		ContractID: contract, Revision: 1, Sequence: sequence,
		Consumer: peering.ClusterID(strings.Repeat("c", 32)), Provider: peering.ClusterID(strings.Repeat("d", 32)),
		From: epoch.Add(time.Duration(sequence-1) * time.Hour), To: epoch.Add(time.Duration(sequence) * time.Hour),
		Used: used, Price: price, Amount: amount,
	}
	if sequence > 1 {
		s.Previous = peering.Hash{1}
	}
	envelope, err := peering.NewStatementEnvelope(s)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(envelope)
	if err != nil {
		t.Fatal(err)
	}
	return v1alpha1.Statement{Sequence: int64(sequence), Envelope: string(text)}
}

// usage is so many core-hours.
func usage(t testing.TB, hours string) peering.Usage {
	t.Helper()
	d, err := time.ParseDuration(hours)
	if err != nil {
		t.Fatal(err)
	}
	u, err := peering.ParseUsage(map[string]string{"cpu": fmt.Sprint(int(d.Seconds()))})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestUsageHasBothCounts(t *testing.T) {
	id := strings.Repeat("a", 32)
	cents, err := peering.ParseDecimal("0.5")
	if err != nil {
		t.Fatal(err)
	}
	price := peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": cents}}
	period := func(sequence int, hours string) v1alpha1.UsagePeriod {
		return v1alpha1.UsagePeriod{
			Since: metav1.NewMicroTime(epoch.Add(time.Duration(sequence-1) * time.Hour)), Until: metav1.NewMicroTime(epoch.Add(time.Duration(sequence) * time.Hour)),
			UnitSeconds: usage(t, hours).Strings(),
		}
	}
	consumer := contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 1)
	consumer.Spec.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "1"}} // of a later revision
	consumer.Status.Statements = []v1alpha1.Statement{statement(t, "k1", 2, "4h", price), statement(t, "k1", 3, "2h", price)}
	consumer.Status.Usage = &v1alpha1.Usage{
		Sequence: 4, Periods: []v1alpha1.UsagePeriod{period(2, "4h"), period(3, "1h"), period(4, "1h")},
		Since: metav1.NewMicroTime(epoch.Add(4 * time.Hour)), Until: metav1.NewMicroTime(epoch.Add(5 * time.Hour)), UnitSeconds: usage(t, "30m").Strings(),
	}
	// The meter was restarted: this does not count the whole period.
	consumer.Status.Usage.Periods[0].Since = metav1.NewMicroTime(epoch.Add(90 * time.Minute))
	provider := contractObject("k2", "lab", strings.Repeat("b", 32), v1alpha1.ContractProvider, "Closed", 0)
	provider.Status.Statements = []v1alpha1.Statement{
		statement(t, "k2", 1, "3h", peering.PriceList{}),
		statement(t, "k9", 2, "3h", price), // of another contract
		{Sequence: 3, Envelope: "garbage"},
		{Sequence: 4, Envelope: `{"payload":"e30=","payloadType":"x","signatures":[]}`},
	}
	provider.Status.Usage = &v1alpha1.Usage{Sequence: 1, UnitSeconds: map[string]string{"cpu": "garbage"}}
	a := newAdminTest(t, consumer, provider, contractObject("k3", "lab", id, v1alpha1.ContractConsumer, "Active", 0))
	c := a.alice(t)
	rows := func(contract string, size int32) (out []*ententev1.Usage) {
		t.Helper()
		token := ""
		for {
			resp, err := c.ListUsage(t.Context(), &ententev1.ListUsageRequest{Contract: contract, PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, resp.GetUsage()...)
			if token = resp.GetNextPageToken(); token == "" {
				return out
			}
		}
	}
	row := func(sequence uint64, from, to int) *ententev1.Usage {
		return &ententev1.Usage{
			Contract: "contracts/k1", Peer: "peers/office", Role: "Consumer", Sequence: sequence,
			StartTime: timestamppb.New(epoch.Add(time.Duration(from) * time.Hour)), EndTime: timestamppb.New(epoch.Add(time.Duration(to) * time.Hour)),
		}
	}
	eur := func(amount string) *ententev1.Money { return &ententev1.Money{Currency: "EUR", Amount: amount} }
	cpu := func(hours string) map[string]string { return map[string]string{"cpu": hours} }
	// The oldest count is forgotten, the newest statement is not there yet, and in
	// between both are, at the price of their time.
	second, third, fourth, now := row(2, 1, 2), row(3, 2, 3), row(4, 3, 4), row(0, 4, 5)
	for _, r := range []*ententev1.Usage{second, third, fourth, now} {
		r.Phase, r.State = "Active", "Stated"
	}
	fourth.State, now.State = "Counted", "Running"
	second.Stated, second.Amount = cpu("4"), eur("2")
	third.Stated, third.Amount, third.Counted, third.CountedAmount, third.DifferencePercent = cpu("2"), eur("1"), cpu("1"), eur("0.5"), "50"
	fourth.Counted, fourth.CountedAmount = cpu("1"), eur("1")
	now.Counted, now.CountedAmount = cpu("0.5"), eur("0.5")
	free := &ententev1.Usage{
		Contract: "contracts/k2", Peer: "peers/lab", Role: "Provider", Sequence: 1,
		StartTime: timestamppb.New(epoch), EndTime: timestamppb.New(epoch.Add(time.Hour)), Stated: cpu("3"), Counted: cpu("3"), DifferencePercent: "0",
		State: "Stated", Phase: "Closed", // a contract that ended is shown as long as it is kept
	}
	want := []*ententev1.Usage{second, third, fourth, now, free}
	for _, size := range []int32{0, 1, 2} {
		if diff := cmp.Diff(want, rows("", size), protocmp.Transform()); diff != "" {
			t.Errorf("pages of %d (-want +got)\n%s", size, diff)
		}
	}
	if diff := cmp.Diff(want[4:], rows("contracts/k2", 0), protocmp.Transform()); diff != "" {
		t.Errorf("one contract (-want +got)\n%s", diff)
	}
	for name, reason := range map[string]peering.Reason{"contracts/none": peering.ReasonContractUnknown, "k1": peering.ReasonRequestInvalid, "contracts/../x": peering.ReasonRequestInvalid} {
		if _, err := c.ListUsage(t.Context(), &ententev1.ListUsageRequest{Contract: name}); wire.ReasonOf(err) != reason {
			t.Errorf("%s: got %v, want %s", name, err, reason)
		}
	}
}
