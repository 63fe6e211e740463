package client_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTheDocumentsProgramIsAnExample compares the program of docs/api.md with an example, which
// compiles and runs.
func TestTheDocumentsProgramIsAnExample(t *testing.T) {
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(doc, -1)
	if len(blocks) == 0 {
		t.Fatal("the document has no program")
	}
	for _, block := range blocks {
		if !strings.Contains(string(examples), string(block[1])) {
			t.Errorf("example_test.go does not have\n%s", block[1])
		}
	}
}
