package pods

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The suites, as the table names them.
const (
	suiteKubernetes     = "kubernetes"
	suiteVirtualKubelet = "virtual-kubelet"
)

const (
	// includedFile has the tests of Kubernetes that run, one a line.
	includedFile = "kubernetes.txt"
	// excludedFile has those that do not, suite by suite and reason by reason.
	excludedFile = "excluded.txt"
	docFile      = "../../../docs/conformance.md"
)

// table lists which tests run and which do not.
type table struct {
	included []string
	reasons  []reason
}

// reason is why some tests of a suite do not run.
type reason struct {
	suite, text string
	tests       []string
}

func readTable() (table, error) {
	var out table
	for _, file := range []string{includedFile, excludedFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			return out, err
		}
		if file == includedFile {
			out.included = strings.Split(strings.TrimSpace(string(text)), "\n")
			continue
		}
		if out.reasons, err = parseExcluded(string(text)); err != nil {
			return out, err
		}
	}
	return out, nil
}

// parseExcluded reads lines: "suite NAME", "because REASON", and tests, which are indented.
func parseExcluded(text string) (out []reason, err error) {
	suite := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		name, isTest := strings.CutPrefix(line, "  ")
		why, isReason := strings.CutPrefix(line, "because ")
		next, isSuite := strings.CutPrefix(line, "suite ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case isSuite:
			suite = next
		case isReason && suite != "":
			out = append(out, reason{suite: suite, text: why})
		case isTest && len(out) > 0 && out[len(out)-1].suite == suite:
			out[len(out)-1].tests = append(out[len(out)-1].tests, name)
		default:
			return nil, fmt.Errorf("%s: %q is neither a suite nor a reason nor a test of one", excludedFile, line)
		}
	}
	return out, nil
}

// excluded returns the tests of a suite that do not run, and why.
func (t table) excluded(suite string) map[string]string {
	out := map[string]string{}
	for _, r := range t.reasons {
		for _, name := range r.tests {
			if r.suite == suite {
				out[name] = r.text
			}
		}
	}
	return out
}

// shown is of how many tests with one reason the docs have the names.
const shown = 24

// markdown is the table as the docs have it.
func (t table) markdown() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d tests of Kubernetes run. These do not:\n\n", len(t.included))
	out.WriteString("| suite | does not run | because |\n| --- | --- | --- |\n")
	for _, r := range t.reasons {
		var names []string
		for _, n := range r.tests {
			names = append(names, strings.NewReplacer("|", `\|`, "<", `\<`).Replace(n))
		}
		if len(names) > shown {
			names = []string{fmt.Sprintf("%d tests, which [%s](../integration/conformance/pods/%s) lists", len(names), excludedFile, excludedFile)}
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", r.suite, strings.Join(names, "<br>"), r.text)
	}
	return out.String()
}

// The table in the docs is between these.
const tableBegin, tableEnd = "<!-- excluded: begin -->\n", "<!-- excluded: end -->\n"

// TestDocsHaveTheTable compares docs/conformance.md with the files. With ENTENTE_UPDATE=1 it writes it.
func TestDocsHaveTheTable(t *testing.T) {
	table, err := readTable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegin)
	_, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no %q and %q", docFile, tableBegin, tableEnd)
	}
	want := before + tableBegin + table.markdown() + tableEnd + after
	if os.Getenv("ENTENTE_UPDATE") != "" {
		if err := os.WriteFile(docFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(text) {
		t.Errorf("%s is not what %s says: run this test with ENTENTE_UPDATE=1", docFile, excludedFile)
	}
}

// TestEachTestIsListedOnce finds tests that are listed twice, or both to run and not to.
func TestEachTestIsListedOnce(t *testing.T) {
	table, err := readTable()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(table.included) {
		t.Errorf("%s is not sorted", includedFile)
	}
	seen := map[string]bool{}
	all := slices.Clone(table.included)
	for _, r := range table.reasons {
		if len(r.tests) == 0 {
			t.Errorf("%s: no test is left out because %s", excludedFile, r.text)
		}
		all = append(all, r.tests...)
	}
	for _, name := range all {
		if seen[name] {
			t.Errorf("%q is listed twice", name)
		}
		seen[name] = true
	}
}
