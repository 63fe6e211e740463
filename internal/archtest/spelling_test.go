package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// The commands name conditions and reasons by the constants of api/v1alpha1 and peering: one that is
// renamed, or spelled in another way, does not compile then.
func TestCommandsSpellNoConditionOrReason(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	spelled, err := spelledByHand(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range spelled {
		t.Error(s)
	}
}

// spelledByHand returns the literals under cmd that are the value of a condition or reason.
func spelledByHand(root fs.FS) (spelled []string, err error) {
	names := map[string]string{}
	for _, dir := range []string{"api/v1alpha1", "peering"} {
		err := eachFile(root, dir, func(name string, file *ast.File, _ *token.FileSet) {
			if strings.Count(name, "/") == strings.Count(dir, "/")+1 {
				namedReasons(names, dir, file)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	err = eachFile(root, "cmd", func(name string, file *ast.File, set *token.FileSet) {
		titles := tableTitles(file)
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && !titles[l] {
				text, _ := strconv.Unquote(l.Value)
				if constant := names[text]; constant != "" {
					spelled = append(spelled, fmt.Sprintf("%s:%d: %q: it is %s", name, set.Position(l.Pos()).Line, text, constant))
				}
			}
			return true
		})
	})
	slices.Sort(spelled)
	return spelled, err
}

// eachFile parses the product's files below a folder.
func eachFile(root fs.FS, dir string, see func(name string, file *ast.File, set *token.FileSet)) error {
	return fs.WalkDir(root, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
		if err == nil {
			see(name, file, set)
		}
		return err
	})
}

// namedReasons adds the constants of a file that are conditions or reasons, by their value.
func namedReasons(names map[string]string, dir string, file *ast.File) {
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			for i, e := range value.Values {
				name := value.Names[i].Name
				if !strings.HasPrefix(name, "Condition") && !strings.HasPrefix(name, "Reason") && !strings.HasPrefix(name, "Refused") {
					continue
				}
				if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 {
					e = call.Args[0] // Reason("CANCELED")
				}
				if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
					text, _ := strconv.Unquote(l.Value)
					names[text] = dir[strings.LastIndex(dir, "/")+1:] + "." + name
				}
			}
		}
	}
}

// tableTitles returns the literals that are only the title of a line of a table: the first of
// several arguments of Row.
func tableTitles(file *ast.File) map[*ast.BasicLit]bool {
	titles := map[*ast.BasicLit]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 1 {
			f, _ := call.Fun.(*ast.SelectorExpr)
			if l, ok := call.Args[0].(*ast.BasicLit); ok && f != nil && f.Sel.Name == "Row" {
				titles[l] = true
			}
		}
		return true
	})
	return titles
}

func TestAConditionSpelledByHandIsFound(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	root := fstest.MapFS{
		"api/v1alpha1/x.go":      file("package v1alpha1\n\nconst ConditionTrusted = \"Trusted\"\n\nconst StateReady = \"Ready\"\n"),
		"peering/x.go":           file("package peering\n\nconst (\n\tReasonUnknown = Reason(\"UNKNOWN\")\n\tRefusedQuota RefusalReason = \"QUOTA_EXCEEDED\"\n)\n"),
		"peering/meter/x.go":     file("package meter\n\nconst ReasonElsewhere = \"Elsewhere\"\n"),
		"cmd/entente/x.go":       file("package main\n\nvar a = \"Trusted\"\n\nvar b = []string{\"Ready\", \"Elsewhere\", \"Trusted?\", `UNKNOWN`}\n"),
		"cmd/entente/x_test.go":  file("package main\n\nvar c = \"Trusted\"\n"),
		"cmd/entente/in/x.go":    file("package in\n\nfunc f() {\n\tt.Row(\"Trusted\", \"QUOTA_EXCEEDED\")\n\tis(\"Trusted\", 1)\n}\n"),
		"cmd/entente/help/x.txt": file("Trusted\n"),
	}
	got, err := spelledByHand(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`cmd/entente/in/x.go:4: "QUOTA_EXCEEDED": it is peering.RefusedQuota`,
		`cmd/entente/in/x.go:5: "Trusted": it is v1alpha1.ConditionTrusted`,
		`cmd/entente/x.go:3: "Trusted": it is v1alpha1.ConditionTrusted`,
		`cmd/entente/x.go:5: "UNKNOWN": it is peering.ReasonUnknown`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
