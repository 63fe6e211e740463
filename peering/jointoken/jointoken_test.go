package jointoken

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/peering"
)

const (
	idA peering.ClusterID = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
)

var t0 = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func testToken(t testing.TB) Token {
	t.Helper()
	tok, err := New(rand.Reader, idA, []string{"192.0.2.1:7443", "[2001:db8::1]:7443", "peer.example.org:7443"}, t0.Add(15*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func encode(t testing.TB, tok Token) string {
	t.Helper()
	s, err := tok.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTokenSurvivesText(t *testing.T) {
	want := testToken(t)
	text := encode(t, want)
	if strings.ContainsAny(text, " \n") || !strings.HasPrefix(text, "ent1.") {
		t.Errorf("not one line of text: %q", text)
	}
	for name, s := range map[string]string{
		"as it is":                       text,
		"with a line end":                text + "\r\n",
		"broken into lines by a program": text[:40] + "\n  " + text[40:80] + "\n" + text[80:],
	} {
		got, err := Parse(s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff([]any{want.ID, [32]byte(want.Secret), want.Issuer, want.Endpoints, want.Expires},
			[]any{got.ID, [32]byte(got.Secret), got.Issuer, got.Endpoints, got.Expires}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestTwoTokensShareNothing(t *testing.T) {
	a, b := testToken(t), testToken(t)
	if a.ID == b.ID || a.Secret == b.Secret {
		t.Error("two tokens have the same ID or secret")
	}
	if _, err := New(strings.NewReader("short"), idA, []string{"a:1"}, t0); err == nil {
		t.Error("a token was made without enough randomness")
	}
}

func TestEveryCutOfATokenIsReportedAsCut(t *testing.T) {
	text := encode(t, testToken(t))
	for n := 1; n < len(text); n++ {
		if _, err := Parse(text[:n]); !errors.Is(err, ErrTruncated) {
			t.Fatalf("first %d of %d characters: %v", n, len(text), err)
		}
	}
}

func TestEveryChangedCharacterIsNoticed(t *testing.T) {
	text := encode(t, testToken(t))
	for i := len(tokenPrefix); i < len(text); i++ {
		if text[i] == '.' {
			continue
		}
		for _, c := range []byte{'A', 'b', '3', '-'} {
			if text[i] == c {
				continue
			}
			b := []byte(text)
			b[i] = c
			if _, err := Parse(string(b)); !errors.Is(err, ErrChecksum) {
				t.Fatalf("character %d changed to %q: %v", i, c, err)
			}
		}
	}
}

func TestMalformedTokensAreRefused(t *testing.T) {
	text := encode(t, testToken(t))
	sealed := func(body string) string { return tokenPrefix + body + "." + checksum(tokenPrefix+body) }
	for _, tt := range []struct {
		name, in string
		want     error
	}{
		{"nothing", "", ErrMalformed},
		{"something else", "hello", ErrMalformed},
		{"a Kubernetes bootstrap token", "abcdef.0123456789abcdef", ErrMalformed},
		{"a later version", "ent2" + text[4:], ErrVersion},
		{"a much later version", "ent17.x.y", ErrVersion},
		{"a version that is not a number", "entX.x.y", ErrMalformed},
		{"too long", text + strings.Repeat("a", MaxLen), ErrMalformed},
		{"far too long, white space", strings.Repeat(" ", 3*MaxLen), ErrMalformed},
		{"text after the checksum", text + "aaaa", ErrChecksum},
		{"a body that is not base64", sealed("!!!!"), ErrMalformed},
		{"an empty body", sealed(""), ErrMalformed},
		{"a body cut short", sealed("EGFi"), ErrMalformed},
	} {
		if _, err := Parse(tt.in); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestTokenIsCheckedBeforeItIsWritten(t *testing.T) {
	for name, change := range map[string]func(*Token){
		"no ID":             func(t *Token) { t.ID = "" },
		"an ID with a dot":  func(t *Token) { t.ID = "a.b" },
		"a long ID":         func(t *Token) { t.ID = strings.Repeat("a", MaxIDLen+1) },
		"no issuer":         func(t *Token) { t.Issuer = "" },
		"no endpoint":       func(t *Token) { t.Endpoints = nil },
		"too many":          func(t *Token) { t.Endpoints = make([]string, peering.MaxEndpoints+1) },
		"no port":           func(t *Token) { t.Endpoints = []string{"peer.example.org"} },
		"port 0":            func(t *Token) { t.Endpoints = []string{"peer.example.org:0"} },
		"port with a plus":  func(t *Token) { t.Endpoints = []string{"peer.example.org:+80"} },
		"no host":           func(t *Token) { t.Endpoints = []string{":7443"} },
		"a host with space": func(t *Token) { t.Endpoints = []string{"a b:7443"} },
		"before 1970":       func(t *Token) { t.Expires = time.Time{} },
	} {
		tok := testToken(t)
		change(&tok)
		if _, err := tok.Encode(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSecretNeverShows(t *testing.T) {
	tok := testToken(t)
	j, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("made", "token", tok, "secret", tok.Secret, "pointer", &tok)
	slog.New(slog.NewTextHandler(&log, nil)).Info("made", "token", tok, "secret", tok.Secret)
	out := []string{string(j), log.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b"} {
		out = append(out, fmt.Sprintf(verb, tok.Secret), fmt.Sprintf(verb, tok), fmt.Sprintf(verb, &tok), fmt.Sprintf(verb, []Token{tok}), fmt.Sprintf(verb, struct{ T Token }{tok}))
	}
	raw := [32]byte(tok.Secret)
	text := encode(t, tok)
	body := text[len(tokenPrefix)+30 : len(text)-20]
	for _, s := range out {
		for _, leak := range []string{fmt.Sprintf("%x", raw[4:12]), fmt.Sprintf("%X", raw[4:12]), fmt.Sprint(raw[4:8])[1:], string(raw[:8]), body} {
			if strings.Contains(s, strings.TrimSuffix(leak, "]")) {
				t.Errorf("the secret shows in %q", s)
			}
		}
	}
}

func TestSecretMatchesItsHashOnly(t *testing.T) {
	a, b := testToken(t).Secret, testToken(t).Secret
	if !a.Matches(a.Hash()) || a.Matches(b.Hash()) || a.Matches(peering.Hash{}) {
		t.Error("Matches is wrong")
	}
	again, err := ParseSecret(a[:])
	if err != nil || again != a {
		t.Error("ParseSecret is not the inverse")
	}
	if _, err := ParseSecret(a[:31]); err == nil {
		t.Error("31 bytes were accepted")
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(encode(f, testToken(f)))
	f.Add("ent1.")
	f.Add("ent1..aaaaaaaa")
	f.Add("ent2.x.y")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := Parse(s)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrChecksum) && !errors.Is(err, ErrVersion) {
				t.Errorf("an error of no kind: %v", err)
			}
			return
		}
		again, err := tok.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if want := strings.Join(strings.Fields(s), ""); again != want {
			t.Errorf("%q was read as %q", want, again)
		}
	})
}

// FuzzDecodeToken fuzzes the body without the checksum, which a fuzzer does not get past.
func FuzzDecodeToken(f *testing.F) {
	_, rest, _ := strings.Cut(encode(f, testToken(f)), ".")
	body, _, _ := strings.Cut(rest, ".")
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:len(raw)-1])
	f.Add([]byte{1, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		tok, err := decode(b)
		if err != nil {
			return
		}
		if _, err := Parse(encode(t, tok)); err != nil {
			t.Error(err)
		}
	})
}

func TestATokenIsMaskedWhereverItWasPasted(t *testing.T) {
	token, err := New(rand.Reader, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", []string{"192.0.2.1:7443"}, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	text, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"tokens/" + text:                       "tokens/ent1.[redacted]",
		"peers/" + text + `: no, "` + text:     `peers/ent1.[redacted]: no, "ent1.[redacted]`,
		text[:40]:                              "ent1.[redacted]",
		"ent12." + text[5:] + " ":              "ent12.[redacted] ",
		"entente ent ent1 ent1. ent1.x ent.io": "entente ent ent1 ent1. ent1.x ent.io",
		"peers/entente.example.org":            "peers/entente.example.org",
		"ent" + strings.Repeat("ent", 3):       "ententent" + "ent",
		"":                                     "",
	} {
		if got := Redact(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
