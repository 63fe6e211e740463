package admin

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func TestDecisionsNameTheirAuthor(t *testing.T) {
	id := strings.Repeat("a", 32)
	fc := peerObject("office", id)
	fc.Status.Requests = []v1alpha1.PendingRequest{{ID: "r1"}, {ID: "r2"}}
	recorder := events.NewFakeRecorder(10)
	a := newAdminTestWith(t, func(c *Config) { c.Events = recorder }, fc, contractObject("k1", "office", id, v1alpha1.ContractProvider, "Active", 0))
	c := a.alice(t)
	for what, err := range map[string]error{
		"approve":  second(c.ApprovePeeringRequest(t.Context(), &ententev1.ApprovePeeringRequestRequest{Name: "peers/office/requests/r1"})),
		"deny":     second(c.DenyPeeringRequest(t.Context(), &ententev1.DenyPeeringRequestRequest{Name: "peers/office/requests/r2"})),
		"end":      second(c.TerminateContract(t.Context(), &ententev1.AdminServiceTerminateContractRequest{Name: "contracts/k1", Now: true})),
		"distrust": second(c.DenyPeer(t.Context(), &ententev1.DenyPeerRequest{Name: "peers/office"})),
	} {
		if err != nil {
			t.Fatal(what, err)
		}
	}
	var contract v1alpha1.Contract
	for _, o := range []ctrlclient.Object{fc, &contract} {
		name := map[bool]string{true: "office", false: "k1"}[o == ctrlclient.Object(fc)]
		if err := a.client.Get(t.Context(), ctrlclient.ObjectKey{Name: name}, o); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		fc.Annotations[v1alpha1.AnnotationDecidedBy]:          `^Denied by alice at 2`,
		fc.Annotations[v1alpha1.AnnotationRequestsDecidedBy]:  `(?s)^r[12] .*r[12] `,
		fc.RequestApproved(func(string) bool { return true }): `^Approved by alice at 2`,
		contract.Annotations[v1alpha1.AnnotationEndedBy]:      `^Now by alice at 2`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("got %q, want %s", text, want)
		}
	}
	close(recorder.Events)
	var got []string
	for e := range recorder.Events {
		got = append(got, e)
	}
	for _, want := range []string{
		"Normal RequestApproved request r1: by alice", "Normal RequestDenied request r2: by alice", "Normal Terminated Now: by alice", "Normal Denied trust in it: by alice",
	} {
		if !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("no event %q in %q", want, got)
		}
	}
}

func second[T any](_ T, err error) error { return err }
