package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestWalksNameExistingFilesAndTests holds docs/architecture.md to the code: each file that it names
// is there, and has the function beside it.
func TestWalksNameExistingFilesAndTests(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("`([a-z0-9_/]+\\.go)` `(\\w+)`").FindAllSubmatch(text, -1)
	if len(steps) < 30 {
		t.Fatalf("it names %d functions", len(steps))
	}
	for _, step := range steps {
		path, name := string(step[1]), string(step[2])
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(path)), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("it names %s: %v", path, err)
			continue
		}
		found := false
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			found = found || ok && f.Name.Name == name
		}
		if !found {
			t.Errorf("there is no function %s in %s", name, path)
		}
	}
}
