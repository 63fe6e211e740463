package archtest

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "rewrite docs/limits.md and docs/resources.md")

const limitsDoc = "../../docs/limits.md"

// limits.md is every constant of every limits.go and limits_*.go, with its comment. It is
// generated: `make generate`, or this test with -update.
func TestLimitsDoc(t *testing.T) {
	t.Parallel()
	want, err := renderLimits(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(limitsDoc, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(limitsDoc)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/limits.md is not what the limits.go files say: run make generate")
	}
}

// limit is one or more constants under one comment.
type limit struct {
	names, values []string
	comment       string
}

// limitGroup is a const declaration.
type limitGroup struct {
	comment string
	limits  []limit
}

const limitsIntro = `# Limits

Nothing that comes from outside is without a bound. These are all of them, by
package; each is a constant of that package's ` + "`limits.go`" + ` or ` + "`limits_*.go`" + `. This page is generated
from those files by ` + "`make generate`" + `.
`

// hasLimits reports whether a file of that name has limits of its package.
func hasLimits(name string) bool {
	return name == "limits.go" || strings.HasPrefix(name, "limits_") && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

// renderLimits returns the page about all files with limits below a directory.
func renderLimits(root fs.FS) ([]byte, error) {
	var out bytes.Buffer
	var last string
	out.WriteString(limitsIntro)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || !hasLimits(name) {
			return nil
		}
		source, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		groups, err := readLimits(path, source)
		if err != nil {
			return err
		}
		if dir := filepath.ToSlash(filepath.Dir(path)); dir != last {
			fmt.Fprintf(&out, "\n## %s\n", dir)
			last = dir
		}
		for _, g := range groups {
			if g.comment != "" {
				fmt.Fprintf(&out, "\n%s\n", g.comment)
			}
			out.WriteString("\n| limit | value | |\n| --- | --- | --- |\n")
			for _, l := range g.limits {
				fmt.Fprintf(&out, "| %s | %s | %s |\n", strings.Join(l.names, "<br>"), strings.Join(l.values, "<br>"), l.comment)
			}
		}
		return nil
	})
	return out.Bytes(), err
}

// readLimits returns the constants of a Go file. A constant without a comment
// shares that of the one above it; the first of a declaration needs one.
func readLimits(path string, source []byte) ([]limitGroup, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var groups []limitGroup
	for _, decl := range file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		var g limitGroup
		own := text(d.Doc)
		if d.Lparen.IsValid() {
			g.comment, own = own, ""
		}
		for _, spec := range d.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || len(v.Values) != len(v.Names) {
				return nil, fmt.Errorf("%s: write a value for each constant", files.Position(spec.Pos()))
			}
			comment := cmp.Or(text(v.Doc), text(v.Comment), own)
			if comment != "" {
				g.limits = append(g.limits, limit{comment: comment})
			}
			if len(g.limits) == 0 {
				return nil, fmt.Errorf("%s: say what %s limits", files.Position(spec.Pos()), v.Names[0])
			}
			last := &g.limits[len(g.limits)-1]
			for i, name := range v.Names {
				var expr bytes.Buffer
				if err := format.Node(&expr, files, v.Values[i]); err != nil {
					return nil, err
				}
				last.names = append(last.names, "`"+name.Name+"`")
				last.values = append(last.values, readable(expr.String()))
			}
		}
		groups = append(groups, g)
	}
	if len(groups) == 0 {
		return nil, fmt.Errorf("%s has no constant", path)
	}
	return groups, nil
}

// text returns a comment as one paragraph that fits a table's cell.
func text(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	s := strings.Join(strings.Fields(c.Text()), " ")
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(s)
}

var (
	shifted  = regexp.MustCompile(`^(\d+) ?<< ?(10|20)$`)
	duration = regexp.MustCompile(`^(?:(\d+) ?\* ?)?time\.(Millisecond|Second|Minute|Hour)$`)
)

// readable writes sizes and durations as people do, and leaves the rest as Go.
func readable(expr string) string {
	if m := shifted.FindStringSubmatch(expr); m != nil {
		return m[1] + map[string]string{"10": " KiB", "20": " MiB"}[m[2]]
	}
	if m := duration.FindStringSubmatch(expr); m != nil {
		return cmp.Or(m[1], "1") + map[string]string{"Millisecond": " ms", "Second": " s", "Minute": " min", "Hour": " h"}[m[2]]
	}
	if !strings.ContainsFunc(expr, func(r rune) bool { return !strings.ContainsRune("0123456789_", r) }) {
		return strings.ReplaceAll(expr, "_", "")
	}
	return "`" + expr + "`"
}

func TestLimitsAreRead(t *testing.T) {
	t.Parallel()
	groups, err := readLimits("limits.go", []byte(`package x

import "time"

// What callers may ask.
const (
	// MaxSize is the most
	// bytes.
	MaxSize = 2 << 20
	// Rate and Burst go together.
	Rate  = 5
	Burst = 10_000
	// Other is made of others.
	Other = MaxSize + 1
)

// pause is alone.
const pause = 15 * time.Second
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []limitGroup{
		{comment: "What callers may ask.", limits: []limit{
			{names: []string{"`MaxSize`"}, values: []string{"2 MiB"}, comment: "MaxSize is the most bytes."},
			{names: []string{"`Rate`", "`Burst`"}, values: []string{"5", "10000"}, comment: "Rate and Burst go together."},
			{names: []string{"`Other`"}, values: []string{"`MaxSize + 1`"}, comment: "Other is made of others."},
		}},
		{limits: []limit{{names: []string{"`pause`"}, values: []string{"15 s"}, comment: "pause is alone."}}},
	}
	if !slices.EqualFunc(groups, want, func(a, b limitGroup) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("read\n%v\nwant\n%v", groups, want)
	}
	for name, source := range map[string]string{
		"a constant without a comment": "package x\n\nconst A = 1\n",
		"a value that is implied":      "package x\n\n// A and B.\nconst (\n\tA = iota\n\tB\n)\n",
		"no constant":                  "package x\n",
		"no Go":                        "limits\n",
	} {
		if _, err := readLimits("limits.go", []byte(source)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestLimitsOfAPackageAreInSeveralFiles(t *testing.T) {
	t.Parallel()
	constant := func(name string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("package x\n\n// " + name + " is one.\nconst " + name + " = 1\n")}
	}
	root := fstest.MapFS{
		"x/limits.go": constant("a"), "x/limits_more.go": constant("b"), "x/limits_test.go": constant("c"), "x/more_limits.go": constant("d"),
		"y/limits_only.go": constant("e"),
	}
	page, err := renderLimits(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.SplitSeq(string(page), "\n") {
		if strings.HasPrefix(line, "## ") || strings.HasPrefix(line, "| `") {
			got = append(got, line)
		}
	}
	want := []string{"## x", "| `a` | 1 | a is one. |", "| `b` | 1 | b is one. |", "## y", "| `e` | 1 | e is one. |"}
	if !slices.Equal(got, want) {
		t.Errorf("the page has %q, want %q", got, want)
	}
	if groups, err := packageLimits(root, "x"); err != nil || len(groups) != 2 {
		t.Errorf("x has %v, %v", groups, err)
	}
}
