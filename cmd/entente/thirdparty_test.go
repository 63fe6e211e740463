package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block returns the first block of a language in a document.
func block(t *testing.T, document, language string) string {
	t.Helper()
	m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(document)
	if m == nil {
		t.Fatalf("no %s in the document", language)
	}
	return m[1]
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTheDocumentedProgramIsTheTestedOne: the tests of tools/dsse run it.
func TestTheDocumentedProgramIsTheTestedOne(t *testing.T) {
	if snippet := block(t, read(t, "../../docs/verify-contract.md"), "go"); !strings.Contains(read(t, "../../tools/dsse/verify.go"), snippet) {
		t.Error("the Go code in docs/verify-contract.md is not that of tools/dsse/verify.go")
	}
}

// TestContractsVerifyWithOpenSSL runs the script that the documentation shows.
func TestContractsVerifyWithOpenSSL(t *testing.T) {
	for _, tool := range []string{"sh", "python3", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s on this machine", tool)
		}
	}
	script := "set -e\n" + block(t, read(t, "../../docs/verify-contract.md"), "sh")
	changed := strings.Replace(read(t, evidencePath("contract-1.json")), `"sig":"ME`, `"sig":"MF`, 1)
	m := newMaker(t)
	forged := m.contract(m.terms())
	forged.Signatures[0], forged.Signatures[1] = forged.Signatures[1], forged.Signatures[0]
	forged.Signatures[0].KeyID, forged.Signatures[1].KeyID = forged.Signatures[1].KeyID, forged.Signatures[0].KeyID
	for name, tc := range map[string]struct {
		contract, consumer, provider, says string
		ok                                 bool
	}{
		"as it was signed":     {read(t, evidencePath("contract-1.json")), evidenceID("consumer"), evidenceID("provider"), "Verified OK\nVerified OK\n", true},
		"a changed signature":  {changed, evidenceID("consumer"), evidenceID("provider"), "", false},
		"each other's word":    {m.raw(forged), string(m.consumer.ID()), string(m.provider.ID()), "", false},
		"other parties":        {read(t, evidencePath("contract-1.json")), evidenceID("provider"), evidenceID("consumer"), "NOT valid", false},
		"after a key rollover": {read(t, evidencePath("contract-2.json")), evidenceID("consumer"), evidenceID("provider"), "later key", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"contract-1.json": tc.contract, "consumer.id": tc.consumer, "provider.id": tc.provider} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if (err == nil) != tc.ok || !strings.Contains(string(out), tc.says) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
