package archtest

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// What pages for operators call a reason, an event or an error is a text of the code.
func TestReasonsOfPagesAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	texts, err := literals(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"docs/partners.md", "docs/upgrades.md", "docs/metrics.md"} {
		text, err := fs.ReadFile(root, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, reason := range unknownReasons(texts, string(text)) {
			t.Errorf("%s names %s, which the code does not", page, reason)
		}
	}
}

var (
	camelReason = regexp.MustCompile("`((?:[A-Z][a-z]+){2,}|[A-Z]{2,}(?:_[A-Z]+)+)`")
	camelWord   = regexp.MustCompile("[A-Z][a-z]+")
	// kubernetesWords are conditions and values of Kubernetes, not reasons of ours.
	kubernetesWords = []string{"NetworkUnavailable", "OnDelete"}
)

// unknownReasons returns what a page shows as a reason, in CamelCase or as the error
// UPPER_SNAKE_CASE that it is made of, and that is not one of the texts.
func unknownReasons(texts map[string]bool, page string) []string {
	var unknown []string
	for _, m := range camelReason.FindAllStringSubmatch(page, -1) {
		snake := strings.ToUpper(strings.Join(camelWord.FindAllString(m[1], -1), "_"))
		if !texts[m[1]] && !texts[snake] && !slices.Contains(kubernetesWords, m[1]) && !slices.Contains(unknown, m[1]) {
			unknown = append(unknown, m[1])
		}
	}
	return unknown
}

// literals returns all texts of the code that runs in clusters.
func literals(root fs.FS) (map[string]bool, error) {
	texts := map[string]bool{}
	for _, dir := range []string{"api", "internal", "peering", "server", "tunnel", "vk"} {
		err := eachFile(root, dir, func(name string, file *ast.File, _ *token.FileSet) {
			if path.Base(path.Dir(name)) == "archtest" {
				return
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if text, err := strconv.Unquote(l.Value); err == nil {
						texts[text] = true
					}
				}
				return true
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return texts, nil
}

func TestReasonsThatTheCodeLacksAreFound(t *testing.T) {
	t.Parallel()
	root := fstest.MapFS{}
	for _, dir := range []string{"api", "internal", "peering", "server", "tunnel", "vk"} {
		root[dir+"/x.go"] = &fstest.MapFile{Data: []byte("package x\n\nconst a, b = \"PeerLost\", \"QUOTA_EXCEEDED\"\n")}
		root[dir+"/x_test.go"] = &fstest.MapFile{Data: []byte("package x\n\nconst c = \"OnlyTested\"\n")}
	}
	texts, err := literals(root)
	if err != nil {
		t.Fatal(err)
	}
	got := unknownReasons(texts, "`PeerLost`, `QuotaExceeded`, `QUOTA_EXCEEDED`, `Closed`, Unquoted; `OnlyTested`, `NoSuchThing`, `NO_SUCH_THING`, `NoSuchThing`")
	if want := []string{"OnlyTested", "NoSuchThing", "NO_SUCH_THING"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
