package main

import (
	"strings"
	"testing"
)

// People paste a token where another value belongs, and what a terminal or a CI job shows is
// kept. A command says what is wrong without it.
func TestErrorsShowNoToken(t *testing.T) {
	secret := strings.Repeat("c2VjcmV0LW9mLWEtdG9rZW4", 8)
	token := "ent1." + secret + ".abcdefgh"
	for name, args := range map[string][]string{
		"a duration":              {"peer", "x", "--timeout", token},
		"with =":                  {"peer", "x", "--timeout=" + token},
		"an amount":               {"peer", "x", "--cpu", token},
		"an amount of a resource": {"peer", "x", "--resources", "cpu=" + token},
		"a resource":              {"peer", "x", "--resources", token + "=1," + token + "=2"},
		"money":                   {"peer", "x", "--price-ceiling", token},
		"yes or no":               {"peer", "x", "--dry-run=" + token},
		"a pair":                  {"peer", "x", "--node-selector", token},
		"a choice":                {"offload", "namespace", "x", "--strategy", token},
		"a form":                  {"info", "-o", token},
		"a path of fields":        {"info", "--get", token},
		"a domain":                {"discover", "--domain", token},
		"the name of a flag":      {"peer", "x", "--" + token},
		"the letter of a flag":    {"peer", "x", "-" + token},
		"a command":               {token},
		"a command of a group":    {"contract", token},
		"an argument too many":    {"info", token},
		"a file":                  {"contract", "verify", token},
		"a peer":                  {"peer", token},
		"a peer to end":           {"unpeer", token, "--yes"},
		"a peer to show":          {"info", "peer", token},
		"a peer to approve":       {"approve", token, "--yes"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := newWorld().run(t, "", args...)
			if said := out + errOut; strings.Contains(said, secret[:20]) || len(said) == 0 {
				t.Errorf("exit %d: it says %q", code, strings.ReplaceAll(said, secret, "SECRET"))
			}
		})
	}
	// Other arguments are repeated in the error, so that the mistake can be seen.
	if _, errOut, _ := newWorld().run(t, "", "peer", "x", "--timeout", "soon"); !strings.Contains(errOut, `"soon"`) {
		t.Errorf("it says %q", errOut)
	}
}
