package middleware

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

func TestATokenIsMaskedWhereverItWasPasted(t *testing.T) {
	token, err := peering.NewToken(rand.Reader, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", []string{"192.0.2.1:7443"}, time.Now().Add(time.Minute))
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
		if got := WithoutTokens(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
