package evidence

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// file is one of those that docs/verify-contract.md shows: a contract in two revisions, the
// second signed with the provider's next key, and a statement by each key.
func file(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../../../docs/verify-contract", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestEnvelopesAreFoundInEveryForm(t *testing.T) {
	t.Parallel()
	contract, statement := file(t, "contract-1.json"), file(t, "statement-1.json")
	resource := "kind: Contract\nspec: {envelope: '" + contract + "'}\nstatus: {statements: [{envelope: '" + statement + "'}]}\n"
	nested := func(n int) string { return strings.Repeat("[", n) + contract + strings.Repeat("]", n) }
	many := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(statement+",", n), ",") + "]" }
	for name, tc := range map[string]struct {
		text                  string
		contracts, statements int
		// says is the error; unknown, that no document is understood.
		says    string
		unknown bool
	}{
		"an envelope":                 {text: contract, contracts: 1},
		"one after the other":         {text: contract + "\n" + statement, contracts: 1, statements: 1},
		"a resource":                  {text: resource, contracts: 1, statements: 1},
		"documents, one empty":        {text: "---\n---\n" + resource + "---\n" + resource, contracts: 2, statements: 2},
		"as deep as it may be":        {text: nested(maxNesting), contracts: 1},
		"deeper":                      {text: nested(maxNesting + 1), says: "nested too deep", unknown: true},
		"as many as may be":           {text: many(MaxEnvelopes), statements: MaxEnvelopes},
		"one more":                    {text: many(MaxEnvelopes + 1), statements: MaxEnvelopes, says: "more than 1024 envelopes"},
		"nothing":                     {unknown: true},
		"only comments":               {text: "# none\n---\n# either\n", unknown: true},
		"an empty list":               {text: `{"items": []}`, unknown: true},
		"another resource":            {text: "kind: Secret\nspec: {envelope: ''}", unknown: true},
		"neither JSON nor YAML":       {text: "a: [", says: "neither JSON nor YAML", unknown: true},
		"an envelope of another kind": {text: `{"payload": "e30", "payloadType": "x"}`, says: "unknown payload type"},
		"what follows is malformed":   {text: contract + "\n---\nhello\n", contracts: 1, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ev Envelopes
			err := ev.Read([]byte(tc.text))
			if len(ev.contracts) != tc.contracts || len(ev.statements) != tc.statements {
				t.Errorf("%d contracts and %d statements, want %d and %d", len(ev.contracts), len(ev.statements), tc.contracts, tc.statements)
			}
			if wrong := tc.says != "" || tc.unknown; (err != nil) != wrong || errors.Is(err, errNoEvidence) != tc.unknown || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("it says %v, want %q", err, tc.says)
			}
		})
	}
}

func TestEvidenceIsJudgedByTheGivenFiles(t *testing.T) {
	t.Parallel()
	consumer, provider, bundle := file(t, "consumer.id"), file(t, "provider.id"), file(t, "provider.pem")
	for name, tc := range map[string]struct {
		files string
		want  Expected
		// says is the error; otherwise proves is what was verified, in order, with a ? after a
		// statement whose prices could not be compared.
		says, proves string
	}{
		"one revision":                        {files: "contract-2", proves: "contract 2"},
		"the expected parties":                {files: "contract-1", want: Expected{Consumer: consumer, Provider: provider}, proves: "contract 1"},
		"the parties in each other's place":   {files: "contract-1", want: Expected{Consumer: provider}, says: "the consumer is " + consumer},
		"another provider":                    {files: "contract-1", want: Expected{Provider: consumer}, says: "the provider is " + provider},
		"all, in any order":                   {files: "statement-2 contract-2 statement-1 contract-1", proves: "contract 1, contract 2, statement 1, statement 2"},
		"the same twice":                      {files: "contract-1 contract-1", proves: "contract 1, contract 1"},
		"a statement of a missing revision":   {files: "contract-2 statement-1", proves: "contract 2, statement 1?"},
		"a statement without a contract":      {files: "statement-1", says: "give both files"},
		"a key that came after the contract":  {files: "contract-1 statement-2", says: "NOT valid: statement 2"},
		"a key that the bundle knows":         {files: "contract-1 statement-2", want: Expected{Bundle: []byte(bundle)}, proves: "contract 1, statement 2?"},
		"a bundle that is malformed":          {files: "contract-1 statement-1", want: Expected{Bundle: []byte("x")}, says: "trust bundle"},
		"no bundle is read without statement": {files: "contract-1", want: Expected{Bundle: []byte("x")}, proves: "contract 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ev Envelopes
			for f := range strings.FieldsSeq(tc.files) {
				if err := ev.Read([]byte(file(t, f+".json"))); err != nil {
					t.Fatal(err)
				}
			}
			v, err := Judge(ev, tc.want)
			if (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("it says %v, want %q", err, tc.says)
			}
			if err == nil && proven(v) != tc.proves {
				t.Errorf("it proves %s, want %s", proven(v), tc.proves)
			}
		})
	}
}

func proven(v Verdict) string {
	var out []string
	for _, c := range v.Contracts {
		out = append(out, "contract "+string(rune('0'+c.Terms.Revision)))
	}
	for _, s := range v.Statements {
		text := "statement " + string(rune('0'+s.Statement.Sequence))
		if s.Note != "" {
			text += "?"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
