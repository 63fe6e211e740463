package peering

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"net"
	"strings"
	"testing"
	"time"
)

const (
	idA ClusterID = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB ClusterID = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var t0 = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestClusterIDIsTheHashOfTheKey(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	want := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:20]))
	got, err := ClusterIDOf(key.Public())
	if err != nil || string(got) != want || got != ClusterIDOfSPKI(der) {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if len(got) != ClusterIDLen || got.Short() != want[:8] {
		t.Errorf("length %d, short %s", len(got), got.Short())
	}
	if parsed, err := ParseClusterID(want); err != nil || parsed != got {
		t.Errorf("parse: %v", err)
	}
	if b, err := got.Bytes(); err != nil || string(b[:]) != string(sum[:20]) {
		t.Errorf("hash: %v", err)
	}
	if id, err := ParseAgentURI(got.AgentURI()); err != nil || id != got {
		t.Errorf("agent URI: %v", err)
	}
	if _, err := ClusterIDOf("not a key"); err == nil {
		t.Error("a string was taken for a key")
	}
}

func TestParseClusterIDRefusesOtherForms(t *testing.T) {
	for _, s := range []string{"", "a", strings.Repeat("a", 31), strings.Repeat("a", 33), strings.Repeat("A", 32), strings.Repeat("1", 32), strings.Repeat("a", 31) + "."} {
		if _, err := ParseClusterID(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
	if ClusterID("ab").Short() != "ab" {
		t.Error("Short of something short")
	}
	for _, s := range []string{"", "spiffe://", "spiffe://" + string(idA), "spiffe://" + string(idA) + "/agent/x", "spiffe://" + string(idA) + "/other", "https://" + string(idA) + "/agent", "spiffe://x/agent"} {
		if id, err := ParseAgentURI(s); err == nil {
			t.Errorf("%q was read as %s", s, id)
		}
	}
}

func TestCheckEndpoint(t *testing.T) {
	for _, s := range []string{"a:1", "192.0.2.1:65535", "[2001:db8::1]:7443", "[fe80::1%eth0]:7443", "Peer.Example.org.:7443", strings.Repeat("a", 63) + ".org:7443"} {
		if err := CheckEndpoint(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{"", "a", "a:", ":1", "a:0", "a:65536", "a:http", "a:01", "2001:db8::1:7443", "a..b:1", "-a:1", "a_b:1", "a/b:1", "http://a:1", "[fe80::1%eth 0]:1", "[fe80::1%../../x]:1", "[fe80::1%" + strings.Repeat("x", 16) + "]:1", strings.Repeat("a", 64) + ":1", strings.Repeat("a.", 140) + "a:1"} {
		if err := CheckEndpoint(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func FuzzParseClusterID(f *testing.F) {
	for _, s := range []string{string(idA), idA.TrustDomainURI(), idA.AgentURI(), "", "spiffe:///agent", strings.Repeat("1", ClusterIDLen)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseClusterID(s); err == nil {
			if string(id) != s {
				t.Fatalf("%q was read as %s", s, id)
			}
			if _, err := id.Bytes(); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			if again, err := ParseAgentURI(id.AgentURI()); err != nil || again != id {
				t.Fatalf("%s: %s, %v", id, again, err)
			}
		}
		if id, err := ParseAgentURI(s); err == nil && id.AgentURI() != s {
			t.Fatalf("%q was read as that of %s", s, id)
		}
	})
}

func FuzzCheckEndpoint(f *testing.F) {
	for _, s := range []string{"a.example:1", "192.0.2.1:65535", "[2001:db8::1]:443", "[fe80::1%eth0]:1", "a.:1", ":1", "a:0", "a:01", "a:+1", "[a]:1", "a b:1", "a:1\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckEndpoint(s) != nil {
			return
		}
		host, port, err := net.SplitHostPort(s)
		if err != nil || host == "" || port == "" {
			t.Fatalf("%q is %q and %q, %v", s, host, port, err)
		}
		if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' || r == '@' || r == '?' || r == '#' }) {
			t.Fatalf("%q has a malformed host", s)
		}
	})
}
