package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/entente-dev/entente/cmd/entente/internal/evidence"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/peering"
)

func TestContractsAreListedShownAndTerminated(t *testing.T) {
	golden(t, "contract", peered(),
		[]string{"contract", "list"}, []string{"contract", "list", "--peer", "provider", "-o", "json"},
		[]string{"contract", "show", "7f3c9a"}, []string{"contract", "show", "7f3c9a", "-o", "yaml"},
		[]string{"contract", "show", "contracts/7f3c9a", "--get", "terms.price.perHour.cpu"}, []string{"contract", "show", "nothing"},
		[]string{"contract", "terminate", "7f3c9a"}, []string{"contract", "terminate", "7f3c9a", "--now", "-o", "json"},
	)
	golden(t, "contract-none", newWorld(), []string{"contract", "list"})
	w := peered()
	w.provides, w.grants = true, true // the consumer asks again at once, and its policy accepts
	golden(t, "contract-terminate-automatic", w, []string{"contract", "terminate", "7f3c9a", "--now", "-y"})
	w = peered()
	w.provides = true
	golden(t, "contract-terminate-refused", w, []string{"contract", "terminate", "7f3c9a", "--now", "-y"})
	for answer, want := range map[string]bool{"y\n": true, "n\n": false} {
		w := peered()
		_, errOut, code := w.run(t, answer, "contract", "terminate", "7f3c9a", "--now")
		ended := strings.Contains(strings.Join(w.consumer.requests, " "), "TerminateContract")
		if (code == exit.OK) != want || ended != want || !strings.Contains(errOut, "3 pods under contract 7f3c9a will be killed.") {
			t.Errorf("answer %q: exit %d, ended %v\n%s", answer, code, ended, errOut)
		}
	}
}

func TestVerifyAcceptsTheOutputOfShow(t *testing.T) {
	for _, form := range []string{"json", "yaml", "dsse"} {
		w := peered()
		out, errOut, code := w.run(t, "", "contract", "show", "7f3c9a", "-o", form)
		if code != exit.OK {
			t.Fatalf("show: exit %d: %s", code, errOut)
		}
		if form == printer.FormDSSE && out != string(evidenceFile("contract-2.json"))+"\n" {
			t.Errorf("the envelope was changed:\n%s", out)
		}
		verified, errOut, code := w.run(t, out, "contract", "verify", "-", "--consumer", evidenceID("consumer"), "--provider", evidenceID("provider"))
		if code != exit.OK || !strings.Contains(verified, evidenceID("consumer")) || !strings.Contains(verified, "Revision          2") {
			t.Errorf("verify what show -o %s printed: exit %d\n%s%s", form, code, verified, errOut)
		}
	}
}

func TestVerifyReadsEveryFormOfAContract(t *testing.T) {
	envelope, statement := string(evidenceFile("contract-1.json")), string(evidenceFile("statement-1.json"))
	resource := "apiVersion: entente.dev/v1alpha1\nkind: Contract\nspec:\n  envelope: '" + envelope + "'\n"
	for name, text := range map[string]string{
		"a resource":                 resource,
		"a resource with statements": resource + "status:\n  statements:\n  - {sequence: 1, envelope: '" + statement + "'}\n",
		"a list of resources":        "kind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(resource), "\n", "\n  ") + "\n",
		"several documents":          "---\n" + resource + "---\n" + statement + "\n",
		"envelopes one by one":       envelope + "\n" + statement + "\n",
		"an array":                   "[" + statement + "," + envelope + "]",
		"a response of the API":      `{"contract":{"envelope":` + quote(envelope) + `}}`,
	} {
		if out, errOut, code := newWorld().run(t, text, "contract", "verify", "-"); code != exit.OK || !strings.Contains(out, "signed") {
			t.Errorf("%s: exit %d: %s", name, code, errOut)
		} else if strings.Contains(text, statement) && !strings.Contains(out, "STATEMENT") {
			t.Errorf("%s: the statement was lost\n%s", name, out)
		}
	}
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` }

func TestVerifyRefuses(t *testing.T) {
	m := newMaker(t)
	one := m.contract(m.terms())
	two := m.contract(m.next(one))
	first := m.stated(m.statement(1, nil))
	other := m.terms()
	other.ContractID = "another"
	otherParties := newMaker(t)
	strangers := otherParties.next(one)
	dearer := m.statement(1, nil)
	dearer.Price.PerHour["cpu"] = m.decimal("0.03")
	dearer.Amount, _ = dearer.Price.Cost(dearer.Used)
	elsewhere := m.statement(1, nil)
	elsewhere.Consumer = otherParties.consumer.ID()
	late := m.statement(2, &first)
	late.From = late.From.Add(1)
	late.From, late.To = m.statement(2, &first).From.Add(60e9), m.statement(2, &first).To
	unlinked := m.statement(2, &one)
	twice := m.terms()
	twice.Notice = 0
	detached := m.next(two)
	changed, missing, foreign := one, one, first
	changed.Payload = bytes.Replace(one.Payload, []byte(`"cpu":"4"`), []byte(`"cpu":"9"`), 1)
	missing.Signatures = one.Signatures[:1]
	foreign.Signatures = one.Signatures[:1]
	unknown := one
	unknown.PayloadType = "application/json"

	for name, tc := range map[string]struct {
		envelopes []peering.Envelope
		args      []string
		says      string
	}{
		"terms that were changed":                       {[]peering.Envelope{changed}, nil, "NOT valid"},
		"a signature that is missing":                   {[]peering.Envelope{missing}, nil, "missing (Provider)"},
		"another consumer":                              {[]peering.Envelope{one}, []string{"--consumer", string(m.provider.ID())}, "NOT the expected parties"},
		"an unknown payload type":                       {[]peering.Envelope{unknown}, nil, "unknown payload type"},
		"a revision that succeeds another one":          {[]peering.Envelope{one, m.contract(detached)}, nil, "does not follow from this revision 1"},
		"a revision of other parties":                   {[]peering.Envelope{one, otherParties.contract(strangers)}, nil, "different parties"},
		"two first revisions":                           {[]peering.Envelope{one, m.contract(twice)}, nil, "two different revisions 1"},
		"a statement without its contract":              {[]peering.Envelope{first}, nil, "give both files"},
		"a statement of another contract":               {[]peering.Envelope{m.contract(other), first}, nil, "give both files"},
		"a statement that the consumer signed":          {[]peering.Envelope{one, foreign}, nil, "NOT valid"},
		"a statement with other prices":                 {[]peering.Envelope{one, m.stated(dearer)}, nil, "other prices"},
		"a statement about another consumer":            {[]peering.Envelope{one, m.stated(elsewhere)}, nil, "names consumer"},
		"two statements of one period":                  {[]peering.Envelope{one, first, m.stated(withAmount(m, m.statement(1, nil)))}, nil, "contradicts itself"},
		"a statement that does not follow from the one": {[]peering.Envelope{one, two, first, m.stated(unlinked)}, nil, "does not follow from this statement 1"},
		"a statement that leaves a gap":                 {[]peering.Envelope{one, two, first, m.stated(late)}, nil, "does not begin where"},
		"a provider bundle that is another cluster's":   {[]peering.Envelope{one, first}, []string{"--provider-bundle", evidencePath("provider.pem")}, "trust bundle"},
		"a malformed provider bundle":                   {[]peering.Envelope{one, first}, []string{"--provider-bundle", evidencePath("contract-1.json")}, "trust bundle"},
	} {
		var text strings.Builder
		for _, e := range tc.envelopes {
			text.WriteString(m.raw(e) + "\n")
		}
		out, errOut, code := newWorld().run(t, text.String(), append([]string{"contract", "verify", "-"}, tc.args...)...)
		if code != exit.Failed || !strings.Contains(errOut, tc.says) || out != "" {
			t.Errorf("%s: exit %d, printed %q %q", name, code, out, errOut)
		}
	}
}

// withAmount changes the use in a statement.
func withAmount(m *maker, s peering.Statement) peering.Statement {
	m.t.Helper()
	var err error
	if s.Used, err = peering.ParseUsage(map[string]string{"cpu": "7201"}); err != nil {
		m.t.Fatal(err)
	}
	if s.Amount, err = s.Price.Cost(s.Used); err != nil {
		m.t.Fatal(err)
	}
	return s
}

func TestVerifyRefusesGarbage(t *testing.T) {
	nested := strings.Repeat("[", 50) + strings.Repeat("]", 50)
	for _, garbage := range []string{"", "hello", "kind: Contract", "{}", "\x00", "[]", "null", nested, "{\"items\":[]}", "a: [", "---\n---\n", "{\"envelope\":\"x\"}", "{\"contract\":null}"} {
		if _, errOut, code := newWorld().run(t, garbage+"\n", "contract", "verify", "-"); code != exit.Failed {
			t.Errorf("%q: exit %d %s", garbage, code, errOut)
		}
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte("a"), evidence.MaxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errOut, code := newWorld().run(t, "", "contract", "verify", large); code != exit.Failed || !strings.Contains(errOut, "more than") {
		t.Errorf("a large file: exit %d %s", code, errOut)
	}
	many := "[" + strings.TrimSuffix(strings.Repeat(string(evidenceFile("statement-1.json"))+",", evidence.MaxEnvelopes+1), ",") + "]"
	if _, errOut, code := newWorld().run(t, many, "contract", "verify", "-"); code != exit.Failed || !strings.Contains(errOut, "more than") {
		t.Errorf("many envelopes: exit %d %s", code, errOut)
	}
}

func FuzzEvidence(f *testing.F) {
	for _, name := range []string{"contract-1.json", "contract-2.json", "statement-1.json"} {
		f.Add(evidenceFile(name))
	}
	f.Add([]byte("kind: Contract\nspec: {envelope: '{}'}"))
	f.Add([]byte("[{}, {\"items\": [{\"contract\": {}}]}]"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var ev evidence.Envelopes
		if ev.Read(b) == nil {
			_, _ = evidence.Judge(ev, evidence.Expected{})
		}
	})
}
