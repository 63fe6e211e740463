package peering

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// cross returns a certificate of the next key, signed by the one before.
func cross(t testing.TB, r io.Reader, id ClusterID, next crypto.PublicKey, by crypto.Signer, edit func(*x509.Certificate)) []byte {
	t.Helper()
	domain, err := url.Parse(id.TrustDomainURI())
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: id.Short()}, SignatureAlgorithm: x509.ECDSAWithSHA256,
		NotBefore: t0, NotAfter: t0.Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{domain},
	}
	if edit != nil {
		edit(c)
	}
	parent := &x509.Certificate{Subject: pkix.Name{CommonName: id.Short()}}
	der, err := x509.CreateCertificate(r, c, parent, next, by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// rollover gives a cluster a new key.
func (c cluster) rollover(t testing.TB) cluster {
	t.Helper()
	next := newKey(t)
	der := cross(t, rand.Reader, c.party.ID, next.Public(), c.key, nil)
	c.party.Succession = append(append([][]byte(nil), c.party.Succession...), der)
	c.key = next
	return c
}

func spki(t testing.TB, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestSuccessionLeadsToTheNewestKey(t *testing.T) {
	c := newCluster(t)
	id := c.party.ID
	for i := range MaxSuccession + 1 {
		got, err := CheckSuccession(id, c.party.PublicKey, c.party.Succession)
		if err != nil || !bytes.Equal(got, spki(t, c.key)) {
			t.Fatalf("after %d: %v", i, err)
		}
		key, err := c.party.Key()
		if err != nil || !key.Equal(c.key.Public()) || c.party.ID != id {
			t.Fatalf("after %d: %v", i, err)
		}
		c = c.rollover(t)
	}
	if _, err := c.party.Key(); err == nil {
		t.Errorf("%d successions were followed", len(c.party.Succession))
	}
}

func TestInvalidSuccessionIsRefused(t *testing.T) {
	first := newCluster(t)
	second := first.rollover(t)
	third := second.rollover(t)
	id, other := first.party.ID, newCluster(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	next := newKey(t)
	// by returns the one certificate of a succession that the identity key signed.
	by := func(edit func(*x509.Certificate)) [][]byte {
		return [][]byte{cross(t, rand.Reader, id, next.Public(), first.key, edit)}
	}
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	flip := func(list [][]byte, i int) [][]byte {
		b := bytes.Clone(list[0])
		b[len(b)-1-i] ^= 1
		return [][]byte{b}
	}
	certs := third.party.Succession
	for _, tt := range []struct {
		name       string
		key        []byte
		succession [][]byte
		want       string
	}{
		{"as it should be", nil, certs, ""},
		{"long expired, and still valid", nil, by(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Unix(1, 0), time.Unix(2, 0) }), ""},
		{"another cluster's identity key", other.party.PublicKey, certs, "is that of"},
		{"no identity key", []byte{}, certs, "is that of"},
		{"an endless identity key", make([]byte, MaxPublicKeyLen+1), nil, "more than"},
		{"out of order", nil, [][]byte{certs[1], certs[0]}, "not signed by the key before"},
		{"one left out", nil, certs[1:], "not signed by the key before"},
		{"one twice", nil, [][]byte{certs[0], certs[0]}, "not signed by the key before"},
		{"signed by a stranger", nil, [][]byte{cross(t, rand.Reader, id, next.Public(), other.key, nil)}, "not signed by the key before"},
		{"signed by itself", nil, [][]byte{cross(t, rand.Reader, id, next.Public(), next, nil)}, "not signed by the key before"},
		{"back to the identity key", nil, [][]byte{certs[0], cross(t, rand.Reader, id, first.key.Public(), second.key, nil)}, "goes back"},
		{"to the key that it has", nil, [][]byte{cross(t, rand.Reader, id, first.key.Public(), first.key, nil)}, "goes back"},
		{"a key of another curve", nil, [][]byte{cross(t, rand.Reader, id, p384.Public(), first.key, nil)}, "not ECDSA P-256"},
		{"a key of another kind", nil, [][]byte{cross(t, rand.Reader, id, ed, first.key, nil)}, "not ECDSA P-256"},
		{"another hash", nil, by(func(c *x509.Certificate) { c.SignatureAlgorithm = x509.ECDSAWithSHA384 }), "SHA-256"},
		{"no authority", nil, by(func(c *x509.Certificate) { c.IsCA = false }), "authority"},
		{"no constraints", nil, by(func(c *x509.Certificate) { c.BasicConstraintsValid, c.IsCA = false, false }), "authority"},
		{"an authority that signs nothing", nil, by(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }), "authority"},
		{"no name", nil, by(func(c *x509.Certificate) { c.URIs = nil }), "one name"},
		{"another cluster's name", nil, by(func(c *x509.Certificate) { c.URIs = []*url.URL{uri(other.party.ID.TrustDomainURI())} }), "one name"},
		{"an agent's name", nil, by(func(c *x509.Certificate) { c.URIs = []*url.URL{uri(id.AgentURI())} }), "one name"},
		{"a name with a port", nil, by(func(c *x509.Certificate) { c.URIs = []*url.URL{uri(id.TrustDomainURI() + ":1")} }), "one name"},
		{"two names", nil, by(func(c *x509.Certificate) { c.URIs = append(c.URIs, uri("spiffe://x")) }), "one name"},
		{"a host name besides", nil, by(func(c *x509.Certificate) { c.DNSNames = []string{"example.com"} }), "one name"},
		{"an address besides", nil, by(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} }), "one name"},
		{"a mail address besides", nil, by(func(c *x509.Certificate) { c.EmailAddresses = []string{"a@example.com"} }), "one name"},
		{"an unknown critical extension", nil, by(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}}
		}), "critical"},
		{"too long", nil, by(func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("x", MaxCertificateLen) }), "more than"},
		{"a bit of the signature", nil, flip(certs, 0), ""},
		{"bytes after the end", nil, [][]byte{append(bytes.Clone(certs[0]), 0)}, "not an X.509 certificate"},
		{"cut off", nil, [][]byte{certs[0][:len(certs[0])-1]}, "not an X.509 certificate"},
		{"two in one", nil, [][]byte{append(bytes.Clone(certs[0]), certs[1]...)}, "not an X.509 certificate"},
		{"nothing in it", nil, [][]byte{nil}, "not an X.509 certificate"},
		{"a key instead", nil, [][]byte{first.party.PublicKey}, "not an X.509 certificate"},
		{"too many", nil, make([][]byte, MaxSuccession+1), "more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := tt.key
			if key == nil {
				key = first.party.PublicKey
			}
			got, err := CheckSuccession(id, key, tt.succession)
			if tt.name == "a bit of the signature" {
				if err == nil {
					t.Error("accepted")
				}
				return
			}
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if got != nil {
				t.Error("a key came with the error")
			}
		})
	}
}

// After a rollover the ID is the same and the new key signs; what the old key
// signed before stays true.
func TestSignaturesAfterARollover(t *testing.T) {
	consumer, provider := newCluster(t), newCluster(t)
	before := provider.sign(t, consumer.sign(t, envelope(t, testTerms(t, consumer, provider))))
	rolled := provider.rollover(t)
	after := envelope(t, testTerms(t, consumer, rolled))
	good := rolled.sign(t, consumer.sign(t, after))
	for name, e := range map[string]Envelope{"before": before, "after": good} {
		terms, err := e.Verify()
		if err != nil || terms.Provider.ID != provider.party.ID {
			t.Errorf("%s: %v", name, err)
		}
	}
	if e := provider.sign(t, consumer.sign(t, after)); e.Signatures[1].KeyID != provider.party.ID {
		t.Errorf("signed by %s", e.Signatures[1].KeyID)
	} else if _, err := e.Verify(); err == nil {
		t.Error("the old key signed terms that name the new one")
	}
	if e := rolled.sign(t, consumer.sign(t, envelope(t, testTerms(t, consumer, provider)))); len(e.Signatures) != 2 {
		t.Errorf("%d signatures", len(e.Signatures))
	} else if _, err := e.Verify(); err == nil {
		t.Error("the new key signed terms that do not name it")
	}
	if provider.party.Equal(rolled.party) || !rolled.party.Equal(rolled.party) || rolled.party.Equal(rolled.rollover(t).party) {
		t.Error("parties")
	}
}

func FuzzSuccession(f *testing.F) {
	// Fixed keys, so that what a fuzzer finds stays what it is.
	first := clusterOf(f, fixedKey(f, 1))
	second, third := fixedKey(f, 2), fixedKey(f, 3)
	a := cross(f, nil, first.party.ID, second.Public(), first.key, nil)
	b := cross(f, nil, first.party.ID, third.Public(), second, nil)
	f.Add(first.party.PublicKey, a, b)
	f.Add(first.party.PublicKey, a, a)
	f.Add(first.party.PublicKey, b, a)
	f.Add(first.party.PublicKey, a, []byte{})
	f.Add(spki(f, second), a, b)
	known := map[string]bool{string(first.party.PublicKey): true, string(spki(f, second)): true, string(spki(f, third)): true}
	f.Fuzz(func(t *testing.T, key, one, two []byte) {
		succession := [][]byte{one}
		if len(two) > 0 {
			succession = append(succession, two)
		}
		got, err := CheckSuccession(first.party.ID, key, succession)
		if err != nil {
			return
		}
		// Only this test has the keys.
		if !bytes.Equal(key, first.party.PublicKey) || !known[string(got)] || bytes.Equal(got, key) {
			t.Fatalf("%x succeeds %x", got, key)
		}
	})
}
