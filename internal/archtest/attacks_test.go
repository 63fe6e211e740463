package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docs/attacks.md says which tests show what: each of them has to be there, and
// each line has to have one.
func TestEachAttackHasItsTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/attacks.md")
	if err != nil {
		t.Fatal(err)
	}
	named, problems := checkAttacks(os.DirFS("../.."), string(page))
	for _, problem := range problems {
		t.Error(problem)
	}
	if named < 50 {
		t.Errorf("%d tests are named; the page is read wrongly", named)
	}
}

// docs/discovery.md says of each rule where it is, and which tests show it.
func TestEachRuleOfDiscoveryHasItsTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/discovery.md")
	if err != nil {
		t.Fatal(err)
	}
	// The column of files comes out: what is left has the form of docs/attacks.md.
	var lines []string
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); strings.HasPrefix(line, "| ") && len(cells) == 5 {
			for name := range strings.SplitSeq(strings.TrimSpace(cells[2]), ", ") {
				inMDNS, errMDNS := os.Stat("../../discovery/mdns/" + name)
				inTop, errTop := os.Stat("../../discovery/" + name)
				if strings.HasSuffix(name, ".go") && inMDNS == nil && inTop == nil {
					t.Errorf("there is no %s: %v, %v", name, errMDNS, errTop)
				}
			}
			if strings.HasSuffix(strings.TrimSpace(cells[2]), ".go") {
				lines = append(lines, "|"+cells[1]+"|"+cells[3]+"|")
			}
		}
	}
	named, problems := checkAttacks(os.DirFS("../.."), strings.Join(lines, "\n"))
	for _, problem := range problems {
		t.Error(problem)
	}
	if named < 40 {
		t.Errorf("%d tests are named; the page is read wrongly", named)
	}
}

// namedTest is folder.TestName or folder.TestName/case.
var namedTest = regexp.MustCompile("`([a-z0-9_/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)(?:/([^`]+))?`")

// checkAttacks returns how many tests a page names, and what is wrong with it.
func checkAttacks(root fs.FS, page string) (named int, problems []string) {
	folders := map[string]map[string][]string{}
	for i, line := range strings.Split(page, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) != 2 || strings.TrimSpace(cells[0]) == "claim" || strings.HasPrefix(cells[0], " ---") {
			if strings.HasPrefix(line, "|") && len(cells) != 2 {
				problems = append(problems, fmt.Sprintf("line %d has %d cells", i+1, len(cells)))
			}
			continue
		}
		tests := namedTest.FindAllStringSubmatch(cells[1], -1)
		if len(tests) == 0 || len(tests) != strings.Count(cells[1], "`")/2 {
			problems = append(problems, fmt.Sprintf("line %d: name its tests as `folder.TestName`, and nothing else", i+1))
		}
		for _, test := range tests {
			named++
			folder, name, sub := test[1], test[2], test[3]
			if folders[folder] == nil {
				found, err := testsIn(root, folder)
				if err != nil {
					problems = append(problems, fmt.Sprintf("line %d: %v", i+1, err))
				}
				folders[folder] = found
			}
			words, ok := folders[folder][name]
			switch {
			case !ok:
				problems = append(problems, fmt.Sprintf("line %d: there is no %s in %s", i+1, name, folder))
			case sub != "" && !slices.Contains(words, sub):
				problems = append(problems, fmt.Sprintf("line %d: %s in %s has no case %q", i+1, name, folder, sub))
			}
		}
	}
	return named, problems
}

// testsIn returns the tests of a folder with the texts that are in each, which is
// where its cases have their names.
func testsIn(root fs.FS, folder string) (map[string][]string, error) {
	files, err := fs.Glob(root, path.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, name := range files {
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Body == nil {
				continue
			}
			words := []string{}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if text, err := strconv.Unquote(l.Value); err == nil {
						words = append(words, text)
					}
				}
				return true
			})
			out[f.Name.Name] = words
		}
	}
	return out, nil
}

func TestAttacksWithoutTestsAreFound(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	const head = "| claim | tests |\n| --- | --- |\n"
	if _, problems := checkAttacks(root, head+"| fine | `internal/archtest.TestLimitsAreRead/no Go`, `internal/archtest.TestLimitsDoc` |\n"); len(problems) > 0 {
		t.Errorf("what is there is not found: %v", problems)
	}
	for name, row := range map[string]string{
		"no such test":   "| x | `internal/archtest.TestOfNothing` |",
		"no such folder": "| x | `internal/nowhere.TestOfNothing` |",
		"no such case":   "| x | `internal/archtest.TestLimitsAreRead/nothing of the kind` |",
		"no test":        "| x | soon |",
		"another word":   "| x | `internal/archtest.TestLimitsDoc`, `later` |",
		"no cell":        "| x |",
	} {
		if _, problems := checkAttacks(root, head+row+"\n"); len(problems) == 0 {
			t.Errorf("%s is not found", name)
		}
	}
}
