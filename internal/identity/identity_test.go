package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/peer"

	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func generate(t *testing.T) *Identity {
	t.Helper()
	i, err := Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func newSource(t *testing.T, i *Identity, life time.Duration) *Source {
	t.Helper()
	s, err := NewSource(SourceConfig{Identity: i, LeafLife: life})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func uri(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func chainOf(t *testing.T, s *Source) []*x509.Certificate {
	t.Helper()
	svid, err := s.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	return svid.Certificates
}

func trusting(t *testing.T, ids ...*Identity) *Bundles {
	t.Helper()
	b := NewBundles()
	for _, i := range ids {
		if err := b.Trust(i.ID(), i.TrustBundle()); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func TestIdentitySurvivesStorage(t *testing.T) {
	i := generate(t)
	b, err := i.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if again.ID() != i.ID() || !again.key.Equal(i.key) || !again.Root().Equal(i.Root()) {
		t.Error("another identity came back")
	}
	if id, err := peering.ClusterIDOf(i.Signer().Public()); err != nil || id != i.ID() {
		t.Errorf("ID %s is not that of the signer's key, %s, %v", i.ID(), id, err)
	}
	if _, err := i.Party().Key(); err != nil {
		t.Errorf("party: %v", err)
	}
}

func TestParseRefusesWhatIsNotAnIdentity(t *testing.T) {
	a, b := generate(t), generate(t)
	pa, _ := a.Marshal()
	pb, _ := b.Marshal()
	keyA, _ := pem.Decode(pa)
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	edDER, _ := x509.MarshalPKCS8PrivateKey(edKey)
	for _, tt := range []struct {
		name string
		in   []byte
		want string
	}{
		{"nothing", nil, "missing"},
		{"only the key", pem.EncodeToMemory(keyA), "missing"},
		{"only the root", a.RootPEM(), "missing"},
		{"the root of another key", append(pem.EncodeToMemory(keyA), b.RootPEM()...), "another key"},
		{"another's root beside the own", append(slices.Clone(pa), b.RootPEM()...), "another key"},
		{"two identities", append(slices.Clone(pa), pb...), "unexpected PEM block"},
		{"a key of another kind", pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: edDER}), "P-256"},
		{"a malformed key", pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: []byte("x")}), "PKCS #8"},
		{"too much", bytes.Repeat([]byte{'x'}, maxIdentityPEM+1), "more than"},
	} {
		if _, err := Parse(tt.in); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestVerifyPeer(t *testing.T) {
	now := time.Now()
	i, other := generate(t), generate(t)
	good := chainOf(t, newSource(t, i, 0))
	leafWith := func(by *Identity, change func(*x509.Certificate)) *x509.Certificate {
		template := &x509.Certificate{
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			URIs: []*url.URL{uri(t, i.ID().AgentURI())},
		}
		change(template)
		leaf, _, err := by.mint(template)
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	keep := func(*x509.Certificate) {}
	for _, tt := range []struct {
		name    string
		chain   []*x509.Certificate
		bundles *Bundles
		want    string // "" = verified
		trusted bool
	}{
		{"a trusted peer", good, trusting(t, i, other), "", true},
		{"a trusted peer without the root in its chain", good[:1], trusting(t, i), "", true},
		{"a stranger", good, trusting(t, other), "", false},
		{"a stranger, and no cluster is trusted", good, nil, "", false},
		{"a stranger without the root in its chain", good[:1], trusting(t, other), "not trusted", false},
		{"no certificate", nil, trusting(t, i), "0 certificates", false},
		{"a very long chain", slices.Repeat(good, 6), trusting(t, i), "12 certificates", false},
		{"no URI", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) { c.URIs = nil }), i.Root()}, trusting(t, i), "no URI SAN", false},
		{"two URIs", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) { c.URIs = append(c.URIs, uri(t, other.ID().AgentURI())) }), i.Root()}, trusting(t, i), "more than one URI SAN", false},
		{"a foreign trust domain", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) { c.URIs = []*url.URL{uri(t, "spiffe://example.org/agent")} }), i.Root()}, trusting(t, i), "cluster ID has", false},
		{"two SPIFFE IDs of its own", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) {
			c.URIs = append(c.URIs, uri(t, i.ID().TrustDomainURI()+"/admin"))
		}), i.Root()}, trusting(t, i), "more than one URI SAN", false},
		{"another path", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) { c.URIs = []*url.URL{uri(t, i.ID().TrustDomainURI()+"/admin")} }), i.Root()}, trusting(t, i), "not the SPIFFE ID of an agent", false},
		{"a URI that is not a SPIFFE ID", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) { c.URIs = []*url.URL{uri(t, "https://example.org")} }), i.Root()}, trusting(t, i), "scheme", false},
		{"a trusted peer's ID signed by another trusted peer", []*x509.Certificate{leafWith(other, keep), other.Root()}, trusting(t, i, other), "unknown authority", false},
		{"a stranger's ID signed by another", []*x509.Certificate{leafWith(other, keep), other.Root()}, nil, "key belongs to cluster " + string(other.ID()), false},
		{"a stranger's chain with a root that did not sign", []*x509.Certificate{leafWith(other, keep), i.Root()}, nil, "unknown authority", false},
		{"an expired leaf", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }), i.Root()}, trusting(t, i), "ended at", false},
		{"a leaf of the future", []*x509.Certificate{leafWith(i, func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }), i.Root()}, trusting(t, i), "not valid yet", false},
		{"a leaf that may sign", []*x509.Certificate{i.Root()}, trusting(t, i), "agent", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			info, err := VerifyPeer(tt.chain, tt.bundles, now)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %+v, %v, want %q", info, err, tt.want)
				}
				if info.ID != "" || info.Trusted {
					t.Errorf("an error came with %+v", info)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if info.ID != i.ID() || info.Trusted != tt.trusted || !info.NotAfter.Equal(tt.chain[0].NotAfter) {
				t.Errorf("got %s trusted %t", info.ID, info.Trusted)
			}
		})
	}
}

func TestTimeErrorStatesBothClocks(t *testing.T) {
	i := generate(t)
	now := time.Now()
	_, err := VerifyPeer(chainOf(t, newSource(t, i, 0)), trusting(t, i), now.Add(30*time.Hour))
	var late *TimeError
	if !errors.As(err, &late) {
		t.Fatalf("got %v", err)
	}
	ours := now.Add(30 * time.Hour).UTC().Format("2006-01-02T15:04:05Z")
	if theirs := late.NotAfter.UTC().Format("2006-01-02T15:04:05Z"); !strings.Contains(err.Error(), ours) || !strings.Contains(err.Error(), theirs) {
		t.Errorf("%q does not name %s and %s", err, ours, theirs)
	}
	// A clock that is an hour behind is tolerated, one that is a day behind is not.
	if _, err := VerifyPeer(chainOf(t, newSource(t, i, 0)), trusting(t, i), now.Add(-50*time.Minute)); err != nil {
		t.Errorf("50 minutes behind: %v", err)
	}
	if _, err := VerifyPeer(chainOf(t, newSource(t, i, 0)), trusting(t, i), now.Add(-22*time.Hour)); !errors.As(err, &late) {
		t.Errorf("22 hours behind: %v", err)
	}
}

func TestLeafIsRenewedAtHalfItsLife(t *testing.T) {
	s := newSource(t, generate(t), time.Hour)
	now := time.Now()
	first, err := s.current(now)
	if err != nil {
		t.Fatal(err)
	}
	if same, _ := s.current(now.Add(29 * time.Minute)); same != first {
		t.Error("renewed before half of its life")
	}
	second, err := s.current(now.Add(31 * time.Minute))
	if err != nil || second == first {
		t.Errorf("not renewed after half of its life: %v", err)
	}
	if second.ID != first.ID || second.Certificates[0].SerialNumber.Cmp(first.Certificates[0].SerialNumber) == 0 {
		t.Error("the new leaf is not a new one of the same agent")
	}
	if _, err := x509.ParseCertificate(first.Certificates[0].Raw); err != nil {
		t.Error(err)
	}
	// The machine's clock was set back by days: the old leaf is of the future.
	third, err := s.current(now.Add(-72 * time.Hour))
	if err != nil || third == second {
		t.Errorf("clock set back: %v", err)
	}
}

// Certificates know whole seconds only.
func TestLeafNeverEndsBeforeItIsRenewed(t *testing.T) {
	s := newSource(t, generate(t), time.Second)
	begin := time.Now().Truncate(time.Second)
	for i := range 40 {
		now := begin.Add(time.Duration(i) * 333 * time.Millisecond)
		svid, err := s.current(now)
		if err != nil {
			t.Fatal(err)
		}
		if end := svid.Certificates[0].NotAfter; end.Before(now) || end.Before(s.Next()) || end.Sub(now) > 2*time.Second {
			t.Errorf("at %s the leaf ends at %s and is renewed at %s", now, end, s.Next())
		}
	}
}

func TestRunRenewsWithoutACaller(t *testing.T) {
	s := newSource(t, generate(t), time.Second)
	serial, _ := s.Leaf()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	waittest.Eventually(t, "the leaf is renewed", func() bool {
		now, _ := s.Leaf()
		return now != serial
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSourceRefusesBadConfiguration(t *testing.T) {
	if _, err := NewSource(SourceConfig{}); err == nil {
		t.Error("no identity was accepted")
	}
	if _, err := NewSource(SourceConfig{Identity: generate(t), LeafLife: time.Millisecond}); err == nil {
		t.Error("a life of a millisecond was accepted")
	}
}

func TestBundlesHaveOnlyRootsOfTheirPeer(t *testing.T) {
	a, b := generate(t), generate(t)
	set := NewBundles()
	trust := func(roots ...*x509.Certificate) error {
		return set.Trust(a.ID(), Bundle{Roots: roots, IdentityKey: a.PublicKey()})
	}
	var pin *PinError
	if err := trust(b.Root()); !errors.As(err, &pin) || pin.Want != a.ID() || pin.Got != b.ID() {
		t.Errorf("another's root: %v", err)
	}
	if err := trust(); err == nil {
		t.Error("an empty bundle was accepted")
	}
	leaf := chainOf(t, newSource(t, a, 0))[0]
	if err := trust(leaf); err == nil {
		t.Error("a leaf was accepted as a root")
	}
	if err := trust(a.Root(), b.Root()); err == nil {
		t.Error("a bundle with another's root was accepted")
	}
	if set.Has(a.ID()) {
		t.Error("a refused bundle was kept")
	}
}

// A certificate of the right key that was not signed by it.
func TestRootHasToBeSelfSigned(t *testing.T) {
	a, b := generate(t), generate(t)
	template := *a.Root()
	template.SerialNumber = big.NewInt(7)
	der, err := x509.CreateCertificate(rand.Reader, &template, b.Root(), a.key.Public(), b.key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadBundle(a.ID(), der, nil, nil); err == nil || !strings.Contains(err.Error(), "self-signed") {
		t.Errorf("got %v", err)
	}
}

func TestWatchersAreNotifiedOfTrustThatComesAndGoes(t *testing.T) {
	a := generate(t)
	set := NewBundles()
	var seen []bool
	cancel := set.Watch(func(id peering.ClusterID, trusted bool) {
		if id != a.ID() || set.Has(id) != trusted {
			t.Errorf("notified of %s %t, which is not so", id, trusted)
		}
		seen = append(seen, trusted)
	})
	for range 2 { // the second changes nothing
		if err := set.Trust(a.ID(), a.TrustBundle()); err != nil {
			t.Fatal(err)
		}
	}
	set.Remove(a.ID())
	set.Remove(a.ID())
	cancel()
	if err := set.Trust(a.ID(), a.TrustBundle()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, []bool{true, false}) {
		t.Errorf("notified of %v", seen)
	}
	if got := set.IDs(); !slices.Equal(got, []peering.ClusterID{a.ID()}) {
		t.Errorf("IDs: %v", got)
	}
}

func TestBundleSurvivesPEMAndDER(t *testing.T) {
	a := generate(t)
	b, err := ReadBundle(a.ID(), a.TrustBundle().DER(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = ReadBundlePEM(a.ID(), []byte(b.PEM())); err != nil || len(b.Roots) != 1 || !b.Roots[0].Equal(a.Root()) {
		t.Errorf("got %v, %v", b.Roots, err)
	}
	if _, err := ReadBundlePEM(a.ID(), []byte(b.PEM()+"garbage")); err == nil {
		t.Error("garbage after the certificates was accepted")
	}
	m, _ := a.Marshal()
	if _, err := ReadBundlePEM(a.ID(), m); err == nil {
		t.Error("a private key was accepted in a bundle")
	}
	if _, err := ReadBundlePEM(a.ID(), make([]byte, maxBundlePEM+1)); err == nil {
		t.Error("too many bytes were accepted")
	}
}

// handshake runs one over a pipe; each side's error.
func handshake(t *testing.T, client, server *tls.Config) (seen tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	_, seen, clientErr, serverErr = connect(t, client, server)
	return seen, clientErr, serverErr
}

// connect is handshake, with what both ends see.
func connect(t *testing.T, client, server *tls.Config) (here, there tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	cc, sc := net.Pipe()
	defer cc.Close()
	defer sc.Close()
	deadline := time.Now().Add(time.Minute)
	_ = cc.SetDeadline(deadline)
	_ = sc.SetDeadline(deadline)
	srv := tls.Server(sc, server)
	done := make(chan error, 1)
	go func() {
		err := srv.Handshake()
		if err == nil {
			_, err = srv.Write([]byte("."))
		}
		done <- err
		_ = sc.Close()
	}()
	cl := tls.Client(cc, client)
	clientErr = cl.Handshake()
	if clientErr == nil {
		// The server judges the client after the client is through.
		_, clientErr = cl.Read(make([]byte, 1))
	}
	_ = cc.Close()
	serverErr = <-done
	return cl.ConnectionState(), srv.ConnectionState(), clientErr, serverErr
}

func TestHandshakesNeedTheExpectedPeer(t *testing.T) {
	server, client, third := generate(t), generate(t), generate(t)
	ss, cs := newSource(t, server, 0), newSource(t, client, 0)
	noCert := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	var pin *PinError
	var untrusted *UntrustedError
	for _, tt := range []struct {
		name    string
		client  *tls.Config
		server  *tls.Config
		check   func(error) bool // of the client's error; nil = both succeed
		trusted bool
		id      peering.ClusterID
	}{
		{"both trust each other", cs.ClientTLS(server.ID(), trusting(t, server), "", "h2"), ss.ServerTLS(trusting(t, client), "h2"), nil, true, client.ID()},
		{"joining by pin", cs.ClientTLS(server.ID(), nil, "", "h2"), ss.ServerTLS(NewBundles(), "h2"), nil, false, client.ID()},
		{"a name that proves nothing", cs.ClientTLS(server.ID(), nil, "peer.example.org", "h2"), ss.ServerTLS(NewBundles(), "h2"), nil, false, client.ID()},
		{"no client certificate", noCert, ss.ServerTLS(NewBundles(), "h2"), nil, false, ""},
		{"wrong pin", cs.ClientTLS(third.ID(), nil, "", "h2"), ss.ServerTLS(NewBundles(), "h2"), func(err error) bool { return errors.As(err, &pin) && pin.Got == server.ID() }, false, ""},
		{"another trusted cluster answers", cs.ClientTLS(third.ID(), trusting(t, server, third), "", "h2"), ss.ServerTLS(trusting(t, client), "h2"), func(err error) bool { return errors.As(err, &pin) }, false, ""},
		{"the server is not trusted", cs.ClientTLS(server.ID(), trusting(t, third), "", "h2"), ss.ServerTLS(trusting(t, client), "h2"), func(err error) bool { return errors.As(err, &untrusted) && untrusted.ID == server.ID() }, false, ""},
		{"TLS 1.2", &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, ss.ServerTLS(NewBundles()), func(err error) bool { return err != nil }, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state, cerr, serr := handshake(t, tt.client, tt.server)
			if tt.check != nil {
				if !tt.check(cerr) {
					t.Errorf("client: %v, server: %v", cerr, serr)
				}
				return
			}
			if cerr != nil || serr != nil {
				t.Fatalf("client: %v, server: %v", cerr, serr)
			}
			b := NewBundles()
			if tt.trusted {
				b = trusting(t, client)
			}
			info, err := PeerOf(state, b)
			if err != nil || info.ID != tt.id || info.Trusted != tt.trusted {
				t.Errorf("got %s trusted %t, %v", info.ID, info.Trusted, err)
			}
		})
	}
}

func TestBothEndsOfAConnectionHaveItsChannelAndNoOtherHas(t *testing.T) {
	server, client := generate(t), generate(t)
	ss, cs := newSource(t, server, 0), newSource(t, client, 0)
	seen := map[[ChannelLen]byte]bool{{}: true}
	for range 3 {
		here, there, cerr, serr := connect(t, cs.ClientTLS(server.ID(), nil, "", "h2"), ss.ServerTLS(NewBundles(), "h2"))
		if cerr != nil || serr != nil {
			t.Fatalf("client: %v, server: %v", cerr, serr)
		}
		info, err := PeerOf(there, NewBundles())
		if err != nil {
			t.Fatal(err)
		}
		ours, err := Channel(here)
		if err != nil || ours != info.Channel {
			t.Errorf("the client has %x, the server %x, %v", ours, info.Channel, err)
		}
		if seen[ours] {
			t.Errorf("%x is not of this connection only", ours)
		}
		seen[ours] = true
	}
}

func TestServerRefusesBadClientCertificates(t *testing.T) {
	server, client, other := generate(t), generate(t), generate(t)
	for _, tt := range []struct {
		name string
		uris []*url.URL
		by   *Identity
	}{
		{"two URIs", []*url.URL{uri(t, client.ID().AgentURI()), uri(t, other.ID().AgentURI())}, client},
		{"an ID whose key it does not hold", []*url.URL{uri(t, other.ID().AgentURI())}, client},
		{"no URI", nil, client},
	} {
		leaf, key, err := tt.by.mint(&x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), URIs: tt.uris})
		if err != nil {
			t.Fatal(err)
		}
		cert := tls.Certificate{Certificate: [][]byte{leaf.Raw, tt.by.Root().Raw}, PrivateKey: key}
		cfg := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}}
		_, cerr, serr := handshake(t, cfg, newSource(t, server, 0).ServerTLS(trusting(t, client, other)))
		if cerr == nil || serr == nil {
			t.Errorf("%s: client %v, server %v", tt.name, cerr, serr)
		}
	}
}

func TestAdminCertificateServesNamesButNoPeer(t *testing.T) {
	i := generate(t)
	s := newSource(t, i, 0)
	admin := s.AdminTLS([]string{"entente.entente-system.svc"}, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(i.RootPEM()) {
		t.Fatal("RootPEM is not a certificate")
	}
	for _, name := range []string{"entente.entente-system.svc", "127.0.0.1"} {
		if _, cerr, serr := handshake(t, &tls.Config{RootCAs: roots, ServerName: name}, admin); cerr != nil || serr != nil {
			t.Errorf("as %s: %v, %v", name, cerr, serr)
		}
	}
	if _, cerr, _ := handshake(t, &tls.Config{RootCAs: roots, ServerName: "example.org"}, admin); cerr == nil {
		t.Error("serves any name")
	}
	if _, cerr, _ := handshake(t, s.ClientTLS(i.ID(), nil, ""), admin); cerr == nil {
		t.Error("a peer takes the admin certificate for the agent")
	}
}

func TestPeerFromContext(t *testing.T) {
	if _, ok := PeerFromContext(t.Context()); ok {
		t.Error("a peer came out of nothing")
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: AuthInfo{ID: "x", Trusted: true}})
	info, ok := PeerFromContext(ctx)
	if !ok || info.ID != "x" || !info.Trusted {
		t.Errorf("got %+v, %t", info, ok)
	}
}
