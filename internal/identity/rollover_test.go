package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/peering"
)

const testOverlap = time.Hour

func rollover(t testing.TB, i *Identity, now time.Time) *Identity {
	t.Helper()
	next, err := i.Rollover(now, testOverlap)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// generations returns an identity and its successors, as they are once the
// overlaps are over.
func generations(t testing.TB, rollovers int) []*Identity {
	t.Helper()
	now := time.Now()
	i, err := Generate(now)
	if err != nil {
		t.Fatal(err)
	}
	all := []*Identity{i}
	for range rollovers {
		now = now.Add(2 * testOverlap)
		i = rollover(t, i, now).at(now.Add(testOverlap))
		all = append(all, i)
	}
	return all
}

func TestRolloverKeepsTheID(t *testing.T) {
	now := time.Now()
	old := generate(t)
	next := rollover(t, old, now)
	if next.ID() != old.ID() || !bytes.Equal(next.PublicKey(), old.PublicKey()) {
		t.Errorf("ID %s became %s", old.ID(), next.ID())
	}
	if next.key.Equal(old.key) || next.Root().Equal(old.Root()) {
		t.Error("the key is the old one")
	}
	if until, ok := next.Overlap(); !ok || !until.Equal(now.Add(testOverlap)) {
		t.Errorf("overlap until %s, %t", until, ok)
	}
	if n := bytes.Count(next.RootPEM(), []byte("BEGIN CERT")); n != 2 {
		t.Errorf("%d roots in the overlap", n)
	}
	settled := next.at(now.Add(testOverlap))
	if _, ok := settled.Overlap(); ok || bytes.Count(settled.RootPEM(), []byte("BEGIN CERT")) != 1 || !settled.Root().Equal(next.Root()) {
		t.Error("after the overlap the old root is still there")
	}
	if key, err := next.Party().Key(); err != nil || !key.Equal(next.Signer().Public()) {
		t.Errorf("the party's key is not the signer's: %v", err)
	}
	if b, _ := next.Marshal(); bytes.Count(b, []byte("PRIVATE KEY")) != 2 { // its beginning and its end
		t.Error("the old private key is kept")
	}
}

func TestRolloverHasItsTimeAndItsEnd(t *testing.T) {
	now := time.Now()
	i := rollover(t, generate(t), now)
	var soon *TooSoonError
	if _, err := i.Rollover(now.Add(testOverlap-time.Second), testOverlap); !errors.As(err, &soon) || !soon.Until.Equal(now.Add(testOverlap)) {
		t.Errorf("in the overlap: %v", err)
	}
	for range peering.MaxSuccession - 1 {
		now = now.Add(testOverlap)
		i = rollover(t, i, now)
	}
	if _, err := i.Rollover(now.Add(testOverlap), testOverlap); !errors.Is(err, ErrNoSuccession) {
		t.Errorf("the last key: %v", err)
	}
}

func TestIdentitySurvivesStorageThroughRollovers(t *testing.T) {
	now := time.Now()
	i := generate(t)
	for n := range peering.MaxSuccession {
		now = now.Add(testOverlap)
		i = rollover(t, i, now)
		for _, stage := range []*Identity{i, i.at(now.Add(testOverlap))} {
			b, err := stage.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			again, err := Parse(b)
			if err != nil {
				t.Fatalf("rollover %d: %v", n+1, err)
			}
			until, overlaps := stage.Overlap()
			until2, overlaps2 := again.Overlap()
			if again.ID() != stage.ID() || !again.key.Equal(stage.key) || !again.first.Equal(stage.first) ||
				again.TrustBundle().PEM() != stage.TrustBundle().PEM() || overlaps != overlaps2 || !until.Equal(until2) {
				t.Errorf("rollover %d: another identity came back", n+1)
			}
		}
	}
}

func TestParseRefusesAnIdentityThatDoesNotFitTogether(t *testing.T) {
	all := generations(t, 2)
	other := generations(t, 2)[2]
	parts := func(i *Identity) (key []byte, certs [][]byte) {
		b, err := i.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == pemKey {
				key = pem.EncodeToMemory(block)
			} else {
				certs = append(certs, pem.EncodeToMemory(block))
			}
		}
		return key, certs
	}
	key, certs := parts(all[2]) // root, succession 1, succession 2, first root
	otherKey, otherCerts := parts(other)
	join := func(blocks ...[]byte) []byte { return slices.Concat(blocks...) }
	for _, tt := range []struct {
		name string
		in   []byte
	}{
		{"without the first root", join(key, certs[0], certs[1], certs[2])},
		{"without the newest root", join(key, certs[1], certs[2], certs[3])},
		{"without a succession", join(key, certs[0], certs[1], certs[3])},
		{"without any succession", join(key, certs[0], certs[3])},
		{"successions in the wrong order", join(key, certs[0], certs[2], certs[1], certs[3])},
		{"with another's succession", join(key, certs[0], certs[1], otherCerts[2], certs[3])},
		{"with another's first root", join(key, certs[0], certs[1], certs[2], otherCerts[3])},
		{"with another's key", join(otherKey, certs[0], certs[1], certs[2], certs[3])},
	} {
		if i, err := Parse(tt.in); err == nil {
			t.Errorf("%s: got %s", tt.name, i.ID())
		}
	}
	if i, err := Parse(join(key, certs[0], certs[1], certs[2], certs[3])); err != nil || i.ID() != all[0].ID() {
		t.Errorf("as written: %v", err)
	}
}

// A peer with any bundle of the cluster verifies the newest leaf; a cluster without one learns
// the ID.
func TestALeafOfTheNewestKeyVerifiesWithAnyKnownRoot(t *testing.T) {
	all := generations(t, peering.MaxSuccession)
	now := time.Now().Add(2 * peering.MaxSuccession * 2 * testOverlap)
	for newest, i := range all {
		leaf, _, err := i.mint(&x509.Certificate{NotBefore: now.Add(-leafBackdate), NotAfter: now.Add(time.Hour), URIs: []*url.URL{uri(t, i.ID().AgentURI())}})
		if err != nil {
			t.Fatal(err)
		}
		chain := append([]*x509.Certificate{leaf}, i.chain()...)
		for known := range newest + 1 {
			info, err := VerifyPeer(chain, trusting(t, all[known]), now)
			if err != nil || info.ID != i.ID() || !info.Trusted {
				t.Errorf("leaf of key %d with root %d known: %v", newest, known, err)
			}
		}
		info, err := VerifyPeer(chain, nil, now)
		if err != nil || info.ID != all[0].ID() || info.Trusted {
			t.Errorf("leaf of key %d for a stranger: %s, %v", newest, info.ID, err)
		}
		// The newest root alone is enough where it is known.
		if _, err := VerifyPeer(chain[:1], trusting(t, i), now); err != nil {
			t.Errorf("leaf of key %d without its chain: %v", newest, err)
		}
		// A key that was succeeded vouches for nothing where its successor is known.
		for known := newest + 1; known < len(all); known++ {
			if _, err := VerifyPeer(chain, trusting(t, all[known]), now); err == nil {
				t.Errorf("leaf of key %d verified with root %d known", newest, known)
			}
		}
	}
}

func TestBothKeysVerifyInTheOverlap(t *testing.T) {
	now := time.Now()
	old := generate(t)
	next := rollover(t, old, now)
	for _, i := range []*Identity{old, next} {
		if _, err := VerifyPeer(chainOf(t, newSource(t, i, 0)), trusting(t, next), now); err != nil {
			t.Error(err)
		}
	}
	if _, err := VerifyPeer(chainOf(t, newSource(t, old, 0)), trusting(t, next.at(now.Add(testOverlap))), now); err == nil {
		t.Error("the old key verifies after the overlap")
	}
}

// crossWith signs a certificate of the key of next by the key of i.
func crossWith(t testing.TB, i *Identity, next any, change func(*x509.Certificate)) []byte {
	t.Helper()
	template, err := authority(i.ID(), 1, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(template)
	}
	c, err := sign(template, i.root, next, i.key)
	if err != nil {
		t.Fatal(err)
	}
	return c.Raw
}

func TestHostileBundles(t *testing.T) {
	all := generations(t, 3)
	id := all[0].ID()
	good := all[2].TrustBundle()
	other := generations(t, 2)
	stranger := other[0]
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	leaf, leafKey, err := all[0].mint(&x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{uri(t, id.AgentURI())}})
	if err != nil {
		t.Fatal(err)
	}
	// rootOf is a root of the cluster over a key, as its holder can make it.
	rootOf := func(key *ecdsa.PrivateKey) *x509.Certificate {
		template, err := authority(id, 1, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		root, err := sign(template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	roots := func(certs ...*x509.Certificate) []byte { return Bundle{Roots: certs}.DER() }
	key0 := all[0].PublicKey()
	for _, tt := range []struct {
		name       string
		roots      []byte
		identity   []byte
		succession [][]byte
		want       string // "" = accepted
	}{
		{"as it is", good.DER(), good.IdentityKey, good.Succession, ""},
		{"while its first root is there, without the key", roots(all[0].root, all[1].root), nil, all[1].TrustBundle().Succession, ""},
		{"without the identity key", good.DER(), nil, good.Succession, "key belongs to cluster"},
		{"with another's identity key", good.DER(), stranger.PublicKey(), good.Succession, "key belongs to cluster " + string(stranger.ID())},
		{"without the succession", good.DER(), good.IdentityKey, nil, "key belongs to cluster"},
		{"succession in the wrong order", good.DER(), good.IdentityKey, [][]byte{good.Succession[1], good.Succession[0]}, "not signed by the key before"},
		{"succession with a gap", good.DER(), good.IdentityKey, good.Succession[1:], "not signed by the key before"},
		{"succession cut short", good.DER(), good.IdentityKey, good.Succession[:1], "key belongs to cluster"},
		{"succession that goes on, its root missing", good.DER(), good.IdentityKey, all[3].TrustBundle().Succession, "newest key is missing"},
		{"another cluster's succession", other[2].TrustBundle().DER(), good.IdentityKey, other[2].TrustBundle().Succession, "not signed by the key before"},
		{"another cluster's bundle", other[2].TrustBundle().DER(), other[2].PublicKey(), other[2].TrustBundle().Succession, "key belongs to cluster " + string(stranger.ID())},
		{"a succession signed by a stranger", roots(rootOf(stranger.key)), key0, [][]byte{crossWith(t, stranger, &stranger.key.PublicKey, nil)}, "not signed by the key before"},
		{"a succession of another cluster's name", roots(rootOf(leafKey)), key0, [][]byte{crossWith(t, all[0], &leafKey.PublicKey, func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri(t, stranger.ID().TrustDomainURI())}
		})}, "its one name is not"},
		{"the holder of a leaf's key as successor", roots(rootOf(leafKey)), key0, [][]byte{leaf.Raw}, "not the certificate of an authority"},
		{"a succession of another kind of key", good.DER(), key0, [][]byte{crossWith(t, all[0], &rsaKey.PublicKey, nil)}, "P-256"},
		{"a succession that is not a certificate", good.DER(), key0, [][]byte{[]byte("x")}, "not an X.509 certificate"},
		{"a succession with a bit flipped", good.DER(), key0, [][]byte{flipped(good.Succession[0]), good.Succession[1]}, "not signed by the key before"},
		{"a succession that goes in circles", roots(all[0].root), key0, [][]byte{good.Succession[0], crossWith(t, all[1], &all[0].key.PublicKey, nil)}, "earlier key"},
		{"a very long succession", good.DER(), key0, slices.Repeat(good.Succession, 5), "10 successions"},
		{"a root over a key that is not in the succession", roots(all[2].root, rootOf(leafKey)), key0, good.Succession, "key belongs to cluster"},
		{"another's root beside the own", roots(all[2].root, stranger.root), key0, good.Succession, "key belongs to cluster " + string(stranger.ID())},
		{"the same root twice", roots(all[2].root, all[2].root), key0, good.Succession, "twice"},
		{"a cross certificate as a root", good.Succession[1], key0, good.Succession, "self-signed"},
		{"too many roots", bytes.Repeat(good.DER(), maxRoots+1), key0, good.Succession, "want 1 to 4"},
		{"no roots", nil, key0, good.Succession, "0 root certificates"},
		{"too many bytes", make([]byte, maxBundle+1), key0, nil, "more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := ReadBundle(id, tt.roots, tt.identity, tt.succession)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if again, err := ReadBundlePEM(id, []byte(b.PEM())); err != nil || again.PEM() != b.PEM() {
					t.Errorf("through PEM: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if len(b.Roots) > 0 {
				t.Error("an error came with roots")
			}
		})
	}
}

// rootWithPadding is a valid root of the newest key of this size.
func rootWithPadding(t testing.TB, i *Identity, size int) *x509.Certificate {
	t.Helper()
	template, err := authority(i.ID(), 1, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	template.ExtraExtensions = []pkix.Extension{{Id: []int{1, 3, 6, 1, 4, 1, 99999, 1}, Value: make([]byte, size)}}
	root, err := sign(template, template, i.key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func flipped(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)-20] ^= 1
	return b
}

func TestBundleThatWouldNotFitIsRefused(t *testing.T) {
	i := generate(t)
	big := []*x509.Certificate{rootWithPadding(t, i, 7<<10), rootWithPadding(t, i, 7<<10)}
	if _, err := ReadBundle(i.ID(), Bundle{Roots: big}.DER(), nil, nil); err != nil {
		t.Errorf("14 KiB: %v", err)
	}
	// Trust takes what does not come through ReadBundle, too.
	big = append(big, rootWithPadding(t, i, 7<<10), rootWithPadding(t, i, 7<<10))
	if err := NewBundles().Trust(i.ID(), Bundle{Roots: big, IdentityKey: i.PublicKey()}); err == nil || !strings.Contains(err.Error(), "as PEM") {
		t.Errorf("28 KiB: %v", err)
	}
}

func TestSupersedesFollowsTheChainOfRoots(t *testing.T) {
	now := time.Now()
	first := generate(t)
	overlap := rollover(t, first, now)
	second := overlap.at(now.Add(testOverlap))
	third := rollover(t, second, now.Add(testOverlap)).at(now.Add(2 * testOverlap))
	// The old key was stolen and makes a succession of its own.
	fork := rollover(t, first, now)
	longFork := rollover(t, fork, now.Add(testOverlap))
	reissued, err := sign(mustAuthority(t, second), mustAuthority(t, second), second.key.Public(), second.key)
	if err != nil {
		t.Fatal(err)
	}
	renewed := second.TrustBundle()
	renewed.Roots = []*x509.Certificate{reissued}
	for _, tt := range []struct {
		name          string
		current, next Bundle
		rollback      bool
		ok            bool
	}{
		{"no current bundle", Bundle{}, second.TrustBundle(), false, true},
		{"the same", second.TrustBundle(), second.TrustBundle(), false, true},
		{"a rollover", first.TrustBundle(), overlap.TrustBundle(), false, true},
		{"the end of its overlap", overlap.TrustBundle(), second.TrustBundle(), false, true},
		{"a rollover whose overlap was missed", first.TrustBundle(), second.TrustBundle(), false, true},
		{"two rollovers at once", first.TrustBundle(), third.TrustBundle(), false, true},
		{"a new root of the same key", second.TrustBundle(), renewed, false, true},
		{"back to the first key", second.TrustBundle(), first.TrustBundle(), true, false},
		{"back by one of two", third.TrustBundle(), second.TrustBundle(), true, false},
		{"back into the overlap", second.TrustBundle(), overlap.TrustBundle(), true, false},
		{"another succession as long", second.TrustBundle(), fork.TrustBundle(), true, false},
		{"another succession that is longer", second.TrustBundle(), longFork.TrustBundle(), true, false},
		{"another cluster", second.TrustBundle(), generate(t).TrustBundle(), false, false},
	} {
		err := Supersedes(tt.current, tt.next)
		var rollback *RollbackError
		if (err == nil) != tt.ok || errors.As(err, &rollback) != tt.rollback {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func mustAuthority(t testing.TB, i *Identity) *x509.Certificate {
	t.Helper()
	a, err := authority(i.ID(), len(i.succession), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Of any two honest states of a cluster the later supersedes the earlier, and
// never the other way round unless they are the same.
func TestSupersedesFollowsTheOrderOfThings(t *testing.T) {
	now := time.Now()
	i := generate(t)
	states := []Bundle{i.TrustBundle()}
	for range peering.MaxSuccession {
		now = now.Add(testOverlap)
		i = rollover(t, i, now)
		states = append(states, i.TrustBundle(), i.at(now.Add(testOverlap)).TrustBundle())
	}
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.IntRange(0, len(states)-1).Draw(t, "current")
		b := rapid.IntRange(0, len(states)-1).Draw(t, "next")
		if err := Supersedes(states[a], states[b]); (err == nil) != (a <= b) {
			t.Fatalf("state %d by state %d: %v", a, b, err)
		}
	})
}

func TestSourceFollowsARollover(t *testing.T) {
	old := generate(t)
	s := newSource(t, old, time.Hour)
	changes, cancel := s.Subscribe()
	defer cancel()
	before := chainOf(t, s)
	next := rollover(t, old, time.Now())
	if err := s.SetIdentity(next); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changes:
	default:
		t.Error("subscribers were not notified")
	}
	after := chainOf(t, s)
	if after[0].CheckSignatureFrom(next.Root()) != nil {
		t.Error("the leaf is not of the new key")
	}
	for _, chain := range [][]*x509.Certificate{before, after} {
		if info, err := VerifyPeer(chain, trusting(t, next), time.Now()); err != nil || info.ID != s.ID() {
			t.Error(err)
		}
	}
	if _, err := VerifyPeer(after, trusting(t, old), time.Now()); err != nil {
		t.Errorf("a peer that was away: %v", err)
	}
	var pin *PinError
	var rollback *RollbackError
	if err := s.SetIdentity(generate(t)); !errors.As(err, &pin) {
		t.Errorf("another cluster's identity: %v", err)
	}
	if err := s.SetIdentity(old); !errors.As(err, &rollback) {
		t.Errorf("the identity before: %v", err)
	}
	if err := s.SetIdentity(next); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

func TestSourceEndsTheOverlap(t *testing.T) {
	old := generate(t)
	s := newSource(t, old, time.Hour)
	const overlap = 3 * time.Second
	next, err := old.Rollover(time.Now(), overlap)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetIdentity(next); err != nil {
		t.Fatal(err)
	}
	changes, cancel := s.Subscribe()
	defer cancel()
	if n := len(s.Identity().TrustBundle().Roots); n != 2 {
		t.Fatalf("%d roots in the overlap", n)
	}
	if wait := time.Until(s.Next()); wait > overlap {
		t.Errorf("the next change is in %s", wait)
	}
	go func() { _ = s.Run(t.Context()) }()
	select {
	case <-changes:
	case <-time.After(time.Minute):
		t.Fatal("subscribers were not notified of the end")
	}
	if n := len(s.Identity().TrustBundle().Roots); n != 1 {
		t.Errorf("%d roots after the overlap", n)
	}
}

func TestHandshakesAcrossARollover(t *testing.T) {
	server, client := generate(t), generate(t)
	ss, cs := newSource(t, server, 0), newSource(t, client, 0)
	oldServer, oldClient := trusting(t, server), trusting(t, client)
	if err := ss.SetIdentity(rollover(t, server, time.Now())); err != nil {
		t.Fatal(err)
	}
	if err := cs.SetIdentity(rollover(t, client, time.Now())); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name           string
		client, server *Bundles
		trusted        bool
	}{
		{"both were away", oldServer, oldClient, true},
		{"both know", trusting(t, ss.Identity()), trusting(t, cs.Identity()), true},
		{"joining by the ID", nil, NewBundles(), false},
	} {
		state, cerr, serr := handshake(t, cs.ClientTLS(server.ID(), tt.client, "", "h2"), ss.ServerTLS(tt.server, "h2"))
		if cerr != nil || serr != nil {
			t.Errorf("%s: client %v, server %v", tt.name, cerr, serr)
			continue
		}
		if info, err := PeerOf(state, tt.server); err != nil || info.ID != client.ID() || info.Trusted != tt.trusted {
			t.Errorf("%s: the server saw %s, %v", tt.name, info.ID, err)
		}
	}
}

func TestAdminCertificateFollowsARollover(t *testing.T) {
	old := generate(t)
	s := newSource(t, old, 0)
	admin := s.AdminTLS(nil, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
	first, _ := admin.GetCertificate(nil)
	if same, _ := admin.GetCertificate(nil); same != first {
		t.Error("a certificate for each connection")
	}
	if err := s.SetIdentity(rollover(t, old, time.Now())); err != nil {
		t.Fatal(err)
	}
	for name, ca := range map[string][]byte{"the ca.crt of before": old.RootPEM(), "the ca.crt of the overlap": s.Identity().RootPEM(), "the ca.crt of after": s.Identity().at(time.Now().Add(testOverlap)).RootPEM()} {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		if _, cerr, serr := handshake(t, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}, admin); cerr != nil || serr != nil {
			t.Errorf("%s: %v, %v", name, cerr, serr)
		}
	}
	if leaf, _ := admin.GetCertificate(nil); leaf.Leaf.CheckSignatureFrom(s.Identity().Root()) != nil {
		t.Error("the certificate is still of the old key")
	}
}

// A stranger shows how its key follows from the one behind its ID: anything but
// the whole way in order proves nothing.
func TestOnlyWholeChainsOfStrangersAreAccepted(t *testing.T) {
	all := generations(t, 3)
	i, other := all[3], generations(t, 3)[3]
	now := time.Now().Add(24 * time.Hour)
	leaf, leafKey, err := i.mint(&x509.Certificate{NotBefore: now.Add(-leafBackdate), NotAfter: now.Add(time.Hour), URIs: []*url.URL{uri(t, i.ID().AgentURI())}})
	if err != nil {
		t.Fatal(err)
	}
	good := append([]*x509.Certificate{leaf}, i.chain()...) // leaf, 3, 2, 1, first root
	pick := func(at ...int) (out []*x509.Certificate) {
		for _, n := range at {
			out = append(out, good[n])
		}
		return out
	}
	evil := &Identity{id: i.id, key: leafKey, root: leaf}
	forged, _, err := evil.mint(&x509.Certificate{NotBefore: now.Add(-leafBackdate), NotAfter: now.Add(time.Hour), URIs: []*url.URL{uri(t, i.ID().AgentURI())}})
	if err != nil {
		t.Fatal(err)
	}
	vouched, err := sign(mustAuthority(t, all[0]), other.root, all[0].key.Public(), other.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		chain []*x509.Certificate
	}{
		{"with a first root that another cluster signed", append(pick(0, 1, 2, 3), vouched)},
		{"in the wrong order", pick(0, 1, 3, 2, 4)},
		{"with a gap", pick(0, 1, 3, 4)},
		{"without the newest", pick(0, 2, 3, 4)},
		{"without the first root", pick(0, 1, 2, 3)},
		{"with the newest root at its end", append(pick(0, 1, 2, 3), i.root)},
		{"with another's first root", append(pick(0, 1, 2, 3), other.first)},
		{"with another's succession", append([]*x509.Certificate{leaf}, other.chain()...)},
		{"a leaf that was signed by a leaf", append([]*x509.Certificate{forged, leaf}, good[1:]...)},
	} {
		if info, err := VerifyPeer(tt.chain, nil, now); err == nil {
			t.Errorf("%s: taken for %s", tt.name, info.ID)
		}
		if tt.name == "a leaf that was signed by a leaf" {
			if _, err := VerifyPeer(tt.chain, trusting(t, all[0]), now); err == nil {
				t.Errorf("%s: accepted by a peer that trusts the cluster", tt.name)
			}
		}
	}
	if info, err := VerifyPeer(good, nil, now); err != nil || info.ID != all[0].ID() {
		t.Errorf("as it is: %v", err)
	}
}

func TestTimeErrorIsOnlyForOtherwiseValidChains(t *testing.T) {
	i, other := generate(t), generate(t)
	now := time.Now()
	past := func(by *Identity) []*x509.Certificate {
		leaf, _, err := by.mint(&x509.Certificate{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour), URIs: []*url.URL{uri(t, i.ID().AgentURI())}})
		if err != nil {
			t.Fatal(err)
		}
		return append([]*x509.Certificate{leaf}, by.chain()...)
	}
	var late *TimeError
	if _, err := VerifyPeer(past(i), trusting(t, i), now); !errors.As(err, &late) || late.ID != i.ID() {
		t.Errorf("its own expired leaf: %v", err)
	}
	if _, err := VerifyPeer(past(other), trusting(t, i), now); err == nil || errors.As(err, &late) {
		t.Errorf("an expired leaf of another cluster: %v", err)
	}
	// The root itself has ended.
	if _, err := VerifyPeer(chainOf(t, newSource(t, i, 0)), trusting(t, i), now.Add(2*rootLife)); !errors.As(err, &late) {
		t.Errorf("twenty years later: %v", err)
	}
}

func TestTimeErrorNamesTheClockThatIsWrong(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name          string
		notBefore     time.Time
		notAfter      time.Time
		clock         time.Time
		want, without string
	}{
		{"early, the peer's clock known", now.Add(time.Hour), now.Add(25 * time.Hour), now.Add(2 * time.Hour), "its cluster's clock says 2026-01-02T14:00:00Z, this one's 2026-01-02T12:00:00Z, so it is 2h0m0s ahead", ""},
		{"early, the peer's clock unknown", now.Add(time.Hour), now.Add(25 * time.Hour), time.Time{}, "1h0m0s behind; set the clocks right", ""},
		{"late, the peer's clock known", now.Add(-25 * time.Hour), now.Add(-time.Hour), now.Add(-3 * time.Hour), "so it is 3h0m0s behind; set the clocks right", "renew"},
		{"late, and the clocks agree", now.Add(-25 * time.Hour), now.Add(-time.Hour), now.Add(time.Second), "does not renew its certificate", "set the clocks"},
		{"late, the peer's clock unknown", now.Add(-25 * time.Hour), now.Add(-time.Hour), time.Time{}, "the clocks differ, or the peer does not renew its certificate", ""},
	} {
		text := (&TimeError{ID: "x", NotBefore: tt.notBefore, NotAfter: tt.notAfter, Now: now, Clock: tt.clock}).Error()
		if !strings.Contains(text, tt.want) || tt.without != "" && strings.Contains(text, tt.without) {
			t.Errorf("%s: %q", tt.name, text)
		}
	}
}

// stored is a bundle in testdata. All are of one cluster, so that what the fuzzer
// learns is worth something in the next run.
func stored(f *testing.F, name string) (peering.ClusterID, []byte, Bundle) {
	f.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		f.Fatal(err)
	}
	const id peering.ClusterID = "p5veckfjpqi7rspobom7z6x4rdlzu2ge"
	b, err := ReadBundlePEM(id, text)
	if err != nil {
		f.Fatal(err)
	}
	return id, text, b
}

func FuzzReadBundle(f *testing.F) {
	id, _, first := stored(f, "first.pem")
	_, _, second := stored(f, "second.pem")
	f.Add(first.DER(), []byte(nil), []byte(nil), []byte(nil))
	f.Add(second.DER(), second.IdentityKey, second.Succession[0], second.Succession[1])
	f.Add(second.DER(), []byte(nil), second.Succession[1], second.Succession[0])
	f.Add([]byte("x"), []byte("x"), []byte("x"), []byte("x"))
	f.Fuzz(func(t *testing.T, roots, identityKey, one, two []byte) {
		var succession [][]byte
		for _, der := range [][]byte{one, two} {
			if len(der) > 0 {
				succession = append(succession, der)
			}
		}
		b, err := ReadBundle(id, roots, identityKey, succession)
		checkRead(t, id, b, err)
	})
}

func FuzzReadBundlePEM(f *testing.F) {
	id, first, _ := stored(f, "first.pem")
	_, overlap, _ := stored(f, "overlap.pem")
	_, second, _ := stored(f, "second.pem")
	f.Add(first)
	f.Add(overlap)
	f.Add(second)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"))
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := ReadBundlePEM(id, text)
		checkRead(t, id, b, err)
		_, _ = Parse(text)
	})
}

// checkRead checks what is true of every bundle that was accepted.
func checkRead(t *testing.T, id peering.ClusterID, b Bundle, err error) {
	t.Helper()
	if err != nil {
		if len(b.Roots) > 0 {
			t.Fatal("an error came with roots")
		}
		return
	}
	if _, err := b.Party(id).Key(); err != nil {
		t.Fatalf("the party has no key: %v", err)
	}
	if err := NewBundles().Trust(id, b); err != nil {
		t.Fatalf("it is not taken: %v", err)
	}
	again, err := ReadBundlePEM(id, []byte(b.PEM()))
	if err != nil || again.PEM() != b.PEM() {
		t.Fatalf("its own output is refused: %v", err)
	}
	if again, err = ReadBundle(id, b.DER(), b.IdentityKey, b.Succession); err != nil || again.PEM() != b.PEM() {
		t.Fatalf("its own fields are refused: %v", err)
	}
	if err := Supersedes(again, b); err != nil {
		t.Fatalf("it does not supersede itself: %v", err)
	}
}
