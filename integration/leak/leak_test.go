package leak

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

const issuer peering.ClusterID = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func newToken(t *testing.T) (jointoken.Token, string) {
	t.Helper()
	token, err := jointoken.New(rand.Reader, issuer, []string{"192.0.2.1:7443"}, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	text, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return token, text
}

func privateKey(t *testing.T) (der, text []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		t.Fatal(err)
	}
	return der, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TestEachSecretIsFoundHoweverItIsWritten writes secrets as programs write them by
// mistake.
func TestEachSecretIsFoundHoweverItIsWritten(t *testing.T) {
	token, tokenText := newToken(t)
	secret := [32]byte(token.Secret)
	der, keyPEM := privateKey(t)
	psk := make([]byte, 32)
	_, _ = rand.Read(psk)
	jwt := "eyJhbGciOiJSUzI1NiJ9." + strings.Repeat("eyJpc3MiOiJrdWJl", 4) + "." + strings.Repeat("c2lnbmF0dXJl", 4)

	var s Secrets
	if err := s.Token(tokenText); err != nil {
		t.Fatal(err)
	}
	s.PEM("a key", keyPEM)
	s.Object("home", &corev1.Secret{Data: map[string][]byte{"peer": psk, "expires": []byte("2026-01-02T15:04:05Z")}})
	s.Text("a bearer token", jwt)

	inJSON, err := json.Marshal(map[string]any{"nested": map[string]any{"secret": secret[:]}})
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Error("failed", "err", fmt.Errorf("read %q", keyPEM))
	for name, text := range map[string]string{
		"a token":                             "join " + tokenText + " failed",
		"the beginning of a token":            "cannot read " + tokenText[:40] + "…",
		"a token's secret in hex":             fmt.Sprintf("%x", secret),
		"a token's secret in upper-case hex":  fmt.Sprintf("%X", secret),
		"a token's secret as Go prints bytes": fmt.Sprint(secret[:]),
		"a token's secret raw":                string(secret[:]),
		"a token's secret in JSON":            string(inJSON),
		"a token's secret within base64":      base64.StdEncoding.EncodeToString(append([]byte("ab"), secret[:]...)),
		"a token's secret within base64url":   base64.URLEncoding.EncodeToString(append([]byte("a"), append(secret[:], "tail"...)...)),
		"a key in PEM":                        string(keyPEM),
		"a key in PEM, escaped":               logged.String(),
		"a line of a key in PEM":              strings.Split(string(keyPEM), "\n")[2],
		"a key in hex":                        hex.EncodeToString(der),
		"a preshared key in base64":           base64.StdEncoding.EncodeToString(psk),
		"a bearer token":                      "Authorization: Bearer " + jwt,
		"a bearer token in base64":            base64.StdEncoding.EncodeToString([]byte(jwt)),
	} {
		found, err := s.Find("agent.log", strings.NewReader("one\ntwo "+text+"\nthree\n"))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			t.Errorf("%s is not found", name)
		}
		for _, f := range found {
			if f.Where != "agent.log" || f.Line < 2 {
				t.Errorf("%s is said to be at %s", name, f)
			}
			if strings.Contains(text, f.What) || strings.Contains(f.String(), tokenText[20:40]) {
				t.Errorf("%s: the finding repeats it", name)
			}
		}
	}
	if n := s.Count(); n < 5 {
		t.Errorf("%d secrets are known", n)
	}
}

// Secrets that were not registered are found by their form.
func TestUnknownSecretsAreFoundByTheirForm(t *testing.T) {
	var s Secrets
	_, tokenText := newToken(t)
	_, keyPEM := privateKey(t)
	for name, text := range map[string]string{
		"a token":                tokenText,
		"a token of version 12":  "ent12." + strings.TrimPrefix(tokenText, "ent1."),
		"a key":                  string(keyPEM),
		"an EC key":              "-----BEGIN EC PRIVATE KEY-----",
		"a ServiceAccount token": "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJhdWQiOlsiaHR0cHM6Ly9rdWJlIl19.AAAAAAAAAAAAAAAAAAAAAA",
	} {
		if found, err := s.Find("x", strings.NewReader(text)); err != nil || len(found) != 1 {
			t.Errorf("%s: found %v, %v", name, found, err)
		}
	}
}

func TestPublicKeysAreNotFindings(t *testing.T) {
	token, text := newToken(t)
	der, keyPEM := privateKey(t)
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.(*ecdsa.PrivateKey).Public())
	if err != nil {
		t.Fatal(err)
	}
	var s Secrets
	if err := s.Token(text); err != nil {
		t.Fatal(err)
	}
	s.PEM("a key", keyPEM)
	s.Object("home", &corev1.Secret{Data: map[string][]byte{"hash": []byte(token.Secret.Hash().String()), "redeemedBy": []byte(issuer), "short": []byte("yes")}})
	s.Text("nothing", "")
	harmless := fmt.Sprint("token ", token, " ", token.Secret, " ent1.… ent1.x ", token.Secret.Hash(), " ", issuer, " yes eyJhbGciOiJSUzI1NiJ9 ") +
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	if found, err := s.Find("x", strings.NewReader(harmless)); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
}

// An elliptic curve key is followed by its public key, which is in every identity.
func TestThePublicKeyOfAPrivateOneIsNotAFinding(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for kind, der := range map[string][]byte{"PRIVATE KEY": pkcs8, "EC PRIVATE KEY": sec1} {
		line := base64.StdEncoding.EncodeToString(der)[64:128]
		if kind == "EC PRIVATE KEY" {
			line = base64.StdEncoding.EncodeToString(der)[:64]
		}
		var s Secrets
		s.PEM("a key", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
		for at := range 48 {
			said := base64.StdEncoding.EncodeToString(append(make([]byte, at), public...))
			for _, text := range []string{said, base64.StdEncoding.EncodeToString([]byte(said))} {
				if found, err := s.Find("log", strings.NewReader(text)); err != nil || len(found) > 0 {
					t.Fatalf("%s: %v, %v in its public key from byte %d", kind, found, err, at)
				}
			}
		}
		if found, err := s.Find("log", strings.NewReader("x "+line)); err != nil || len(found) == 0 {
			t.Errorf("%s: the line in which the private key ends is not found: %v", kind, err)
		}
	}
}

func TestFilesAreSearched(t *testing.T) {
	_, text := newToken(t)
	var s Secrets
	if err := s.Token(text); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	clean, leaky := filepath.Join(dir, "clean.log"), filepath.Join(dir, "leaky.log")
	for file, content := range map[string]string{clean: "nothing\n", leaky: "a\nb\n" + text} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, size, err := s.FindInFiles(clean, filepath.Join(dir, "none.log"), leaky)
	if err != nil || size != int64(len("nothing\na\nb\n")+len(text)) {
		t.Errorf("looked at %d bytes, %v", size, err)
	}
	for _, f := range found {
		if f.Where != leaky || f.Line != 3 {
			t.Errorf("found %s", f)
		}
	}
	if len(found) == 0 {
		t.Error("nothing is found")
	}
}
