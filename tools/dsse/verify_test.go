package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/verify-contract/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// The files are made by package peering. In the second contract the provider
// signed with a key that follows from the one behind its ID.
func TestContractsOfEntenteVerifyElsewhere(t *testing.T) {
	consumer, provider := read(t, "consumer.id"), read(t, "provider.id")
	for _, name := range []string{"contract-1.json", "contract-2.json"} {
		terms, err := verify(t.Context(), []byte(read(t, name)), consumer, provider)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Contains(terms, []byte(`"contractID":"7f3c9a"`)) {
			t.Errorf("%s: terms are %s", name, terms)
		}
	}
}

// The vectors with which package peering holds its own format.
func TestVectorsOfPackagePeeringVerifyElsewhere(t *testing.T) {
	for _, name := range []string{"contract", "contract-revised"} {
		var terms struct{ Consumer, Provider party }
		if err := json.Unmarshal([]byte(read(t, "../../peering/testdata/"+name+".payload.json")), &terms); err != nil {
			t.Fatal(err)
		}
		if _, err := verify(t.Context(), []byte(read(t, "../../peering/testdata/"+name+".json")), terms.Consumer.ID, terms.Provider.ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAChangedStatementDoesNotVerify(t *testing.T) {
	consumer, provider := read(t, "consumer.id"), read(t, "provider.id")
	// changed changes the payload, or one signature.
	changed := func(name string, change func(payload string) string, signature int) string {
		var e map[string]any
		if err := json.Unmarshal([]byte(read(t, name)), &e); err != nil {
			t.Fatal(err)
		}
		payload, err := base64.StdEncoding.DecodeString(e["payload"].(string))
		if err != nil {
			t.Fatal(err)
		}
		e["payload"] = base64.StdEncoding.EncodeToString([]byte(change(string(payload))))
		if signature >= 0 {
			signatures := e["signatures"].([]any)
			e["signatures"] = append(signatures[:signature:signature], signatures[signature+1:]...)
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	same := func(s string) string { return s }
	// One succession, of another cluster, in the place of the provider's.
	broken := func(s string) string { return strings.Replace(s, `"succession":["MIIB`, `"succession":["MIIC`, 1) }
	for name, tc := range map[string]struct{ contract, consumer, provider string }{
		"an amount":                {changed("contract-1.json", func(s string) string { return strings.Replace(s, `"cpu":"4"`, `"cpu":"9"`, 1) }, -1), consumer, provider},
		"the consumer's word":      {changed("contract-1.json", same, 0), consumer, provider},
		"the provider's word":      {changed("contract-2.json", same, 1), consumer, provider},
		"the succession":           {changed("contract-2.json", broken, -1), consumer, provider},
		"other parties":            {read(t, "contract-1.json"), provider, consumer},
		"a statement, no contract": {read(t, "statement-1.json"), consumer, provider},
		"nothing at all":           {"", consumer, provider},
	} {
		if _, err := verify(t.Context(), []byte(tc.contract), tc.consumer, tc.provider); err == nil {
			t.Errorf("%s: verified", name)
		}
	}
	if _, err := verify(t.Context(), []byte(changed("contract-1.json", same, -1)), consumer, provider); err != nil {
		t.Errorf("what was not changed: %v", err)
	}
}
