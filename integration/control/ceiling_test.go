package control

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// stranger is a consumer of the test's own: an identity that joined, and a
// connection to the provider as that.
type stranger struct {
	id   *identity.Identity
	conn grpc.ClientConnInterface
}

func newStranger(t *testing.T, abroad *cluster, n int) stranger {
	t.Helper()
	ctx := t.Context()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := identity.NewSource(identity.SourceConfig{Identity: id, LeafLife: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	text, err := createToken(ctx, abroad)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jointoken.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	info, err := client.Join(ctx, client.JoinConfig{Token: token, Source: source, Self: identity.ClusterInfo{
		Name: fmt.Sprintf("stranger-%d", n), Bundle: identity.Bundle{Roots: []*x509.Certificate{id.Root()}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	bundles := identity.NewBundles()
	if err := bundles.Trust(token.Issuer, info.Bundle); err != nil {
		t.Fatal(err)
	}
	secure := source.ClientTLS(token.Issuer, bundles, "", "h2")
	conn, err := grpc.NewClient("passthrough:///"+abroad.peerAddress, grpc.WithTransportCredentials(plainTLS{secure}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return stranger{id, conn}
}

// plainTLS leaves the verifying of the other side to the configuration, which
// knows cluster IDs and not names.
type plainTLS struct{ config *tls.Config }

func (c plainTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Client(raw, c.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (plainTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, credentials.ErrConnDispatched
}

func (plainTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (c plainTLS) Clone() credentials.TransportCredentials { return c }
func (plainTLS) OverrideServerName(string) error           { return nil }

// sign accepts an offer.
func (s stranger) sign(ctx context.Context, ad peering.Advertisement, provider peering.Party) error {
	begin := time.Now().UTC().Truncate(time.Second)
	envelope, err := peering.NewEnvelope(peering.Terms{
		ContractID: ad.ContractID, RequestID: ad.RequestID, Revision: 1, Consumer: s.id.Party(), Provider: provider, NotBefore: begin, NotAfter: begin.Add(ad.Duration),
		Clauses: ad.Clauses,
	})
	if err != nil {
		return err
	}
	if envelope, err = envelope.Sign(rand.Reader, s.id.ID(), s.id.Signer()); err != nil {
		return err
	}
	_, err = client.Peering{Conn: s.conn}.Sign(ctx, envelope)
	return err
}

// TestAHundredConcurrentRequestsShareTheCapacity: five consumers ask twenty times
// each at once; each gets its ceiling and all together no more than there is.
func TestAHundredConcurrentRequestsShareTheCapacity(t *testing.T) {
	_, abroad := agents(t)
	const consumers, asks, ceiling = 5, 20, 8
	offer(t, abroad, fmt.Sprintf("cpu=%d", ceiling), "memory=1Gi", "pods=100")
	strangers := make([]stranger, consumers)
	for i := range strangers {
		strangers[i] = newStranger(t, abroad, i)
	}
	one, err := peering.ParseResources(map[string]string{"cpu": "1"})
	if err != nil {
		t.Fatal(err)
	}
	// The agent may have started a moment ago, and not know its nodes yet.
	if err := eventually.Is(t.Context(), later, "abroad to have something to offer", func(ctx context.Context) error {
		_, err := client.Peering{Conn: strangers[0].conn}.Preview(ctx, peering.Ask{RequestID: "first", Resources: one})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	granted, refused := map[int]int{}, map[peering.Reason]int{}
	signed := 0
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, s := range strangers {
		for n := range asks {
			wg.Go(func() {
				<-start
				ad, err := client.Peering{Conn: s.conn}.Request(t.Context(), peering.Ask{RequestID: fmt.Sprintf("request-%d-%d", i, n), Resources: one})
				mu.Lock()
				if err != nil {
					refused[wire.ReasonOf(err)]++
				} else {
					granted[i]++
				}
				mu.Unlock()
				if err != nil || n%2 == 1 {
					return // every second offer stands unsigned, and holds back what it offers
				}
				party, err := partyOf(t.Context(), abroad)
				if err == nil {
					err = s.sign(t.Context(), ad, party)
				}
				if err != nil {
					t.Errorf("sign: %v", err)
					return
				}
				mu.Lock()
				signed++
				mu.Unlock()
			})
		}
	}
	close(start)
	wg.Wait()
	t.Logf("granted %v, signed %d, refused %v", granted, signed, refused)
	for i := range strangers {
		if granted[i] != ceiling {
			t.Errorf("consumer %d was offered %d processors, the ceiling is %d", i, granted[i], ceiling)
		}
	}
	contracts, err := list[v1alpha1.ContractList](t.Context(), abroad)
	if err != nil {
		t.Fatal(err)
	}
	byPeer := map[string]*resource.Quantity{}
	for i := range contracts.Items {
		c := &contracts.Items[i]
		if byPeer[c.Spec.PeerID] == nil {
			byPeer[c.Spec.PeerID] = &resource.Quantity{}
		}
		byPeer[c.Spec.PeerID].Add(c.Spec.Resources[corev1.ResourceCPU])
	}
	if len(contracts.Items) != signed {
		t.Errorf("there are %d contracts and %d were signed", len(contracts.Items), signed)
	}
	for peer, amount := range byPeer {
		if amount.CmpInt64(ceiling) > 0 {
			t.Errorf("consumer %s has %s processors by contract, the ceiling is %d", peer, amount, ceiling)
		}
	}
	for reason := range refused {
		if reason != peering.ReasonCapacityExhausted && reason != peering.ReasonPolicyRefused {
			t.Errorf("%d asks were refused for %s", refused[reason], reason)
		}
	}
}

// partyOf returns the provider as it stands in contracts.
func partyOf(ctx context.Context, c *cluster) (peering.Party, error) {
	secret := &corev1.Secret{}
	secret.Namespace = systemNamespace
	if err := c.get(ctx, "entente-identity", secret); err != nil {
		return peering.Party{}, err
	}
	id, err := identity.Parse(secret.Data["identity.pem"])
	if err != nil {
		return peering.Party{}, err
	}
	return id.Party(), nil
}
