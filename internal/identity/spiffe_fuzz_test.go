package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

// uriTag is the tag of a URI among the alternative names of a certificate (RFC
// 5280, section 4.2.1.6).
const uriTag = 6

// FuzzSPIFFEID goes from the URIs in a certificate, which are whatever the peer
// wrote, to the cluster that it is taken for: that is never another than the one
// that has the signing key, and only by its agent's SPIFFE ID as its one URI. Of
// that the case of the scheme and an empty fragment mean nothing (RFC 3986); all
// else does. The first line break, if there is one, parts two URIs.
func FuzzSPIFFEID(f *testing.F) {
	now := time.Now()
	i, err := Generate(now)
	if err != nil {
		f.Fatal(err)
	}
	other, err := Generate(now)
	if err != nil {
		f.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	bundles := NewBundles()
	for _, of := range []*Identity{i, other} {
		if err := bundles.Trust(of.ID(), of.TrustBundle()); err != nil {
			f.Fatal(err)
		}
	}
	// SELF is replaced by the cluster's ID and OTHER by another's. Both are new in each run, and
	// so a saved input still works.
	names := strings.NewReplacer("SELF", string(i.ID()), "OTHER", string(other.ID()))
	for _, seed := range []string{
		"spiffe://SELF/agent", "spiffe://OTHER/agent", "spiffe://SELF/agent\nspiffe://OTHER/agent", "spiffe://OTHER/agent\nspiffe://SELF/agent", "spiffe://SELF/agent\n",
		"spiffe://SELF/agent\nspiffe://SELF/agent", "SPIFFE://SELF/agent", "spiffe://" + strings.ToUpper(string(i.ID())) + "/agent", "spiffe://SELF/Agent", "spiffe://SELF/%61gent",
		"spiffe://SELF%2Fagent", "spiffe://SELF/./agent", "spiffe://SELF//agent", "spiffe://SELF/agent/", "spiffe://SELF/x/../agent", "spiffe://SELF/x/agent",
		"spiffe://user@SELF/agent", "spiffe://SELF@OTHER/agent", "spiffe://SELF:443/agent", "spiffe://SELF:/agent", "spiffe://SELF/agent?x=y", "spiffe://SELF/agent?", "spiffe://SELF/agent#f", "spiffe://SELF/agent#",
		"spiffe://SELF.OTHER/agent", "spiffe://SELF./agent", "spiffe://SELF\x00/agent", "spiffe://\u202eSELF/agent", "spiffe:SELF/agent", "spiffe:///agent", "//SELF/agent", "https://SELF/agent",
		" spiffe://SELF/agent", "spiffe://SELF/agent ", "spiffe://[SELF]/agent", "spiffe://SELF", "spiffe://SELF/", "", "spiffe://" + strings.Repeat("a", 3000) + "/agent", strings.Repeat("spiffe://SELF/agent", 300),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		uris := strings.SplitN(names.Replace(text), "\n", 2)
		var alternatives []asn1.RawValue
		for _, u := range uris {
			alternatives = append(alternatives, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: uriTag, Bytes: []byte(u)})
		}
		der, err := asn1.Marshal(alternatives)
		if err != nil {
			t.Skip(err)
		}
		leaf, err := sign(&x509.Certificate{
			NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Critical: true, Value: der}},
		}, i.Root(), key.Public(), i.Signer())
		if err != nil {
			t.Skip(err) // a peer cannot send what crypto/x509 does not read
		}
		for _, by := range []*Bundles{bundles, nil} {
			info, err := VerifyPeer([]*x509.Certificate{leaf, i.Root()}, by, now)
			proven := err == nil
			if want := len(uris) == 1 && plain(uris[0]) == i.ID().AgentURI(); proven != want {
				t.Fatalf("%q: taken %v for %s, %v", uris, proven, info.ID, err)
			}
			if proven && (info.ID != i.ID() || info.Trusted != (by != nil)) || !proven && info != (AuthInfo{}) {
				t.Fatalf("%q: taken for %s, trusted %v, %v", uris, info.ID, info.Trusted, err)
			}
		}
		if id, err := peering.ParseAgentURI(uris[0]); err == nil && id.AgentURI() != uris[0] {
			t.Fatalf("%q is read as the ID of %s", uris[0], id)
		}
	})
}

// plain returns a URI composed of its parts.
func plain(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	return u.String()
}
