package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestATokenMakesAContractAndAContractANode(t *testing.T) {
	home, abroad := agents(t)
	name := peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")

	held := map[string]v1alpha1.Contract{}
	for _, c := range []*cluster{home, abroad} {
		var stored v1alpha1.Contract
		if err := c.get(t.Context(), name, &stored); err != nil {
			t.Fatal(err)
		}
		held[c.name] = stored
	}
	t.Run("both hold the same envelope, and anyone can verify it offline", func(t *testing.T) {
		if held[homeName].Spec.Envelope != held[abroadName].Spec.Envelope {
			t.Errorf("home holds\n%s\nand abroad\n%s", held[homeName].Spec.Envelope, held[abroadName].Spec.Envelope)
		}
		envelope, err := peering.ParseEnvelope([]byte(held[homeName].Spec.Envelope))
		if err != nil {
			t.Fatal(err)
		}
		terms, err := envelope.Verify()
		if err != nil {
			t.Fatal(err)
		}
		if terms.ContractID != name || string(terms.Consumer.ID) != held[abroadName].Spec.PeerID || string(terms.Provider.ID) != held[homeName].Spec.PeerID {
			t.Errorf("it is contract %s of %s with %s", terms.ContractID, terms.Consumer.ID, terms.Provider.ID)
		}
		want := map[string]string{"cpu": "4", "memory": "8Gi", "pods": "20"}
		if diff := cmp.Diff(want, terms.Resources.Strings()); diff != "" {
			t.Errorf("the grant (-want +got):\n%s", diff)
		}
		forged := envelope
		forged.Payload = []byte(strings.Replace(string(envelope.Payload), `"20"`, `"90"`, 1))
		if _, err := forged.Verify(); err == nil {
			t.Error("an envelope with more pods in it verifies too")
		}
	})
	t.Run("the node has what the contract gives", func(t *testing.T) {
		node, err := home.kube.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for resource, want := range amounts("cpu=4", "memory=8Gi", "pods=20") {
			if got := node.Status.Allocatable[resource]; got.Cmp(want) != 0 {
				t.Errorf("%s is %s, want %s", resource, &got, &want)
			}
		}
	})
	t.Run("each knows what the other is", func(t *testing.T) {
		for _, c := range []*cluster{home, abroad} {
			want := map[string]v1alpha1.Role{homeName: v1alpha1.RoleProvider, abroadName: v1alpha1.RoleConsumer}[c.name]
			err := eventually.Is(t.Context(), soon, "the role of "+peerOf(c), func(ctx context.Context) error {
				var fc v1alpha1.ForeignCluster
				if err := c.get(ctx, peerOf(c), &fc); err != nil {
					return eventually.Permanent(err)
				}
				if fc.Status.Role != want {
					return &mismatch{string(fc.Status.Role), string(want)}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("gRPC and REST say the same", func(t *testing.T) { sameOverREST(t, home) })
}

type mismatch struct{ got, want string }

func (m *mismatch) Error() string { return "it is " + m.got + ", want " + m.want }

func sameOverREST(t *testing.T, c *cluster) {
	t.Helper()
	ctx := t.Context()
	token, err := c.user(ctx, "control-rest", "entente-admin")
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) []byte {
		t.Helper()
		status, body, err := askREST(ctx, c, path, token)
		if err != nil || status != http.StatusOK {
			t.Fatalf("GET %s answers %d: %s %v", path, status, body, err)
		}
		return body
	}
	admin, err := c.admin(ctx, token)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	info, err := admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	restInfo := &ententev1.GetInfoResponse{}
	if err := protojson.Unmarshal(get("/v1/info"), restInfo); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(info, restInfo, protocmp.Transform()); diff != "" {
		t.Errorf("info (-gRPC +REST):\n%s", diff)
	}
	if info.GetClusterName() != c.name || info.GetPeers() != 1 {
		t.Errorf("info is %v", info)
	}
	// Something may change between two looks, but not for long.
	err = eventually.Is(ctx, soon, "the same peer over gRPC and REST", func(ctx context.Context) error {
		peer, err := admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/" + peerOf(c)})
		if err != nil {
			return eventually.Permanent(err)
		}
		restPeer := &ententev1.GetPeerResponse{}
		if err := protojson.Unmarshal(get("/v1/peers/"+peerOf(c)), restPeer); err != nil {
			return eventually.Permanent(err)
		}
		if diff := cmp.Diff(peer, restPeer, protocmp.Transform()); diff != "" {
			return &mismatch{diff, "no difference"}
		}
		if len(peer.GetPeer().GetContracts()) != 1 {
			return &mismatch{peer.String(), "one contract"}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// askREST asks the REST API. An empty token sends none.
func askREST(ctx context.Context, c *cluster, path, token string) (int, []byte, error) {
	cm, err := c.kube.CoreV1().ConfigMaps(systemNamespace).Get(ctx, client.CAConfigMap, metav1.GetOptions{})
	if err != nil {
		return 0, nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(cm.Data[client.CAKey]))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.adminAddress+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, body, err
}

func TestCallersWithoutARightAreRefused(t *testing.T) {
	home, _ := agents(t)
	ctx := t.Context()
	nobody, err := home.user(ctx, "control-nobody", "")
	if err != nil {
		t.Fatal(err)
	}
	viewer, err := home.user(ctx, "control-viewer", "entente-view")
	if err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, home, "authz")
	const missing = "peers/nobody"
	calls := map[string]func(context.Context, *client.Admin) error{
		"GetInfo": func(ctx context.Context, a *client.Admin) error {
			_, err := a.GetInfo(ctx, &ententev1.GetInfoRequest{})
			return err
		},
		"ListPeers": func(ctx context.Context, a *client.Admin) error {
			_, err := a.ListPeers(ctx, &ententev1.ListPeersRequest{})
			return err
		},
		"GetPeer": func(ctx context.Context, a *client.Admin) error {
			_, err := a.GetPeer(ctx, &ententev1.GetPeerRequest{Name: missing})
			return err
		},
		"CreateToken": func(ctx context.Context, a *client.Admin) error {
			_, err := a.CreateToken(ctx, &ententev1.CreateTokenRequest{})
			return err
		},
		"JoinPeer": func(ctx context.Context, a *client.Admin) error {
			_, err := a.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: "ent1.x"})
			return err
		},
		"CreatePeering": func(ctx context.Context, a *client.Admin) error {
			_, err := a.CreatePeering(ctx, &ententev1.CreatePeeringRequest{Peer: missing})
			return err
		},
		"EndPeering": func(ctx context.Context, a *client.Admin) error {
			_, err := a.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: missing})
			return err
		},
		"OffloadNamespace": func(ctx context.Context, a *client.Admin) error {
			_, err := a.OffloadNamespace(ctx, &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/" + namespace})
			return err
		},
		"UnoffloadNamespace": func(ctx context.Context, a *client.Admin) error {
			_, err := a.UnoffloadNamespace(ctx, &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/" + namespace})
			return err
		},
	}
	reads := map[string]string{"GetInfo": "", "ListPeers": "", "GetPeer": string(peering.ReasonPeerUnknown)}
	for who, token := range map[string]string{"nobody": nobody, "viewer": viewer, "a forger": "not.a.token"} {
		admin, err := home.admin(ctx, token)
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		for method, do := range calls {
			want := string(peering.ReasonCallerNotAllowed)
			if read, ok := reads[method]; ok && who == "viewer" {
				want = read
			}
			if who == "a forger" {
				want = string(peering.ReasonCallerUnknown)
			}
			err := do(ctx, admin)
			got := ""
			if err != nil {
				got = string(wire.FromStatus(err).Reason)
			}
			if got != want {
				t.Errorf("%s as %s: the reason is %q (%v), want %q", method, who, got, err, want)
			}
		}
	}
	if status, body, err := askREST(ctx, home, "/v1/info", nobody); err != nil || status != http.StatusForbidden || !strings.Contains(string(body), string(peering.ReasonCallerNotAllowed)) {
		t.Errorf("REST responds to an anonymous caller with %d %s %v", status, body, err)
	}
	if status, body, err := askREST(ctx, home, "/v1/info", ""); err != nil || status != http.StatusUnauthorized || !strings.Contains(string(body), string(peering.ReasonCallerUnknown)) {
		t.Errorf("REST answers who sends no token %d %s %v", status, body, err)
	}
}
