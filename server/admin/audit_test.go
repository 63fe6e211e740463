package admin

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// TestEveryChangeHasItsLine calls each method that changes something and checks its line in the
// log: who, what, about whom, and how it ended. Methods that only read have no line at that
// level.
func TestEveryChangeHasItsLine(t *testing.T) {
	id := strings.Repeat("a", 32)
	fc := peerObject("office", id)
	fc.Status.Requests = []v1alpha1.PendingRequest{{ID: "r1"}, {ID: "r2"}}
	a := newAdminTest(t, fc, contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 0),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "batch", UID: "1"}, Spec: v1alpha1.PeeringRequestSpec{ForeignCluster: "office"}})
	c := a.alice(t)
	made, err := c.CreateToken(t.Context(), &ententev1.CreateTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]struct {
		call func(context.Context) error
		want map[string]string
	}{
		"CreateToken": {func(ctx context.Context) error {
			_, err := c.CreateToken(ctx, &ententev1.CreateTokenRequest{})
			return err
		}, map[string]string{"code": "OK"}},
		"RevokeToken": {func(ctx context.Context) error {
			_, err := c.RevokeToken(ctx, &ententev1.RevokeTokenRequest{Name: "tokens/" + made.GetTokenId()})
			return err
		}, map[string]string{"name": "tokens/" + made.GetTokenId(), "code": "OK"}},
		"JoinPeer": {func(ctx context.Context) error {
			_, err := c.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: made.GetToken()})
			return err
		}, map[string]string{"code": "FailedPrecondition", "reason": "PEER_IS_SELF"}},
		"IntroducePeer": {func(ctx context.Context) error {
			_, err := c.IntroducePeer(ctx, &ententev1.IntroducePeerRequest{Endpoint: "192.0.2.7:7443", Name: "lab", ClusterId: strings.Repeat("s", 32), Approve: true})
			return err
		}, map[string]string{"endpoint": "192.0.2.7:7443", "peer": "peers/lab", "cluster": strings.Repeat("s", 32), "approve": "true", "code": "OK"}},
		"ConnectInBand": {func(ctx context.Context) error {
			_, err := c.ConnectInBand(ctx, &ententev1.ConnectInBandRequest{Parameters: officeParameters(), Name: "hq"})
			return err
		}, map[string]string{"cluster": strings.Repeat("a", 32), "name": "hq", "code": "AlreadyExists", "reason": "PEER_NAME_TAKEN"}},
		"ApprovePeer": {func(ctx context.Context) error {
			_, err := c.ApprovePeer(ctx, &ententev1.ApprovePeerRequest{Name: "peers/" + id})
			return err
		}, map[string]string{"name": "peers/" + id, "peer": "peers/office", "cluster": id, "code": "OK"}},
		"DenyPeer": {func(ctx context.Context) error {
			_, err := c.DenyPeer(ctx, &ententev1.DenyPeerRequest{Name: "peers/office"})
			return err
		}, map[string]string{"name": "peers/office", "peer": "peers/office", "code": "OK"}},
		"RotatePresharedKey": {func(ctx context.Context) error {
			_, err := c.RotatePresharedKey(ctx, &ententev1.RotatePresharedKeyRequest{Name: "peers/office"})
			return err
		}, map[string]string{"name": "peers/office", "code": "OK"}},
		"RotateNodeKeys": {func(ctx context.Context) error {
			_, err := c.RotateNodeKeys(ctx, &ententev1.RotateNodeKeysRequest{})
			return err
		}, map[string]string{"code": "OK"}},
		"CreatePeering": {func(ctx context.Context) error {
			_, err := c.CreatePeering(ctx, &ententev1.CreatePeeringRequest{Peer: "peers/office", RequestId: "q-1"})
			return err
		}, map[string]string{"peer": "peers/office", "peering": "office", "request": "q-1", "code": "OK"}},
		"UpdatePeering": {func(ctx context.Context) error {
			_, err := c.UpdatePeering(ctx, &ententev1.UpdatePeeringRequest{Peering: &ententev1.Peering{Name: "peerings/batch"}, ValidateOnly: true})
			return err
		}, map[string]string{"name": "peerings/batch", "validateOnly": "true", "code": "OK"}},
		"DeletePeering": {func(ctx context.Context) error {
			_, err := c.DeletePeering(ctx, &ententev1.DeletePeeringRequest{Name: "peerings/nope"})
			return err
		}, map[string]string{"name": "peerings/nope", "code": "NotFound", "reason": "PEERING_UNKNOWN"}},
		"ApprovePeeringRequest": {func(ctx context.Context) error {
			_, err := c.ApprovePeeringRequest(ctx, &ententev1.ApprovePeeringRequestRequest{Name: "peers/office/requests/r1"})
			return err
		}, map[string]string{"name": "peers/office/requests/r1", "code": "OK"}},
		"DenyPeeringRequest": {func(ctx context.Context) error {
			_, err := c.DenyPeeringRequest(ctx, &ententev1.DenyPeeringRequestRequest{Name: "peers/office/requests/r2"})
			return err
		}, map[string]string{"name": "peers/office/requests/r2", "code": "OK"}},
		"TerminateContract": {func(ctx context.Context) error {
			_, err := c.TerminateContract(ctx, &ententev1.AdminServiceTerminateContractRequest{Name: "contracts/k1", Now: true})
			return err
		}, map[string]string{"name": "contracts/k1", "now": "true", "code": "OK"}},
		"RolloverIdentity": {func(ctx context.Context) error {
			_, err := c.RolloverIdentity(ctx, &ententev1.RolloverIdentityRequest{})
			return err
		}, map[string]string{"code": "OK"}},
		"EndPeering": {func(ctx context.Context) error {
			_, err := c.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/nobody", Forget: true})
			return err
		}, map[string]string{"peer": "peers/nobody", "forget": "true", "code": "NotFound"}},
		"OffloadNamespace": {func(ctx context.Context) error {
			_, err := c.OffloadNamespace(ctx, &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/shop"})
			return err
		}, map[string]string{"namespace": "namespaces/shop", "code": "OK"}},
		"UnoffloadNamespace": {func(ctx context.Context) error {
			_, err := c.UnoffloadNamespace(ctx, &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/other"})
			return err
		}, map[string]string{"namespace": "namespaces/other", "code": "NotFound"}},
	}
	for _, m := range methods(t) {
		if _, ok := calls[m.name]; mutates(m.full) != ok {
			t.Errorf("%s: changes something is %v, and it is called is %v", m.name, mutates(m.full), ok)
		}
	}
	for name, tc := range calls {
		_ = tc.call(metadata.AppendToOutgoingContext(t.Context(), middleware.CallIDHeader, "audit-"+name))
		var line map[string]any
		for text := range strings.Lines(a.log.String()) {
			if strings.Contains(text, `"call":"audit-`+name+`"`) {
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatal(err)
				}
			}
		}
		if line["level"] != "INFO" || line["who"] != "alice" || line["method"] != "entente.v1.AdminService/"+name || !strings.HasPrefix(line["address"].(string), "127.0.0.1:") {
			t.Errorf("%s: the line is %v", name, line)
		}
		for key, want := range tc.want {
			if line[key] != want {
				t.Errorf("%s: %s is %v, want %s", name, key, line[key], want)
			}
		}
	}
	if strings.Contains(a.log.String(), made.GetToken()) {
		t.Error("the log has a token")
	}
	if _, err := c.ListPeers(metadata.AppendToOutgoingContext(t.Context(), middleware.CallIDHeader, "audit-read"), &ententev1.ListPeersRequest{}); err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(a.log.String()) {
		if strings.Contains(text, "audit-read") && !strings.Contains(text, `"level":"DEBUG"`) {
			t.Errorf("reading has the line %s", text)
		}
	}
}
