package archtest

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// TestPreferredWords holds that code (comments, texts), test names and pages use
// no word that CONTRIBUTING.md lists as one to replace.
func TestPreferredWords(t *testing.T) {
	t.Parallel()
	replace := avoidedWords(t)
	check := func(path string, line int, text string) {
		if found := avoided(replace, text); found != "" {
			t.Errorf("%s:%d: %q: see the words that CONTRIBUTING.md prefers", path, line, found)
		}
	}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if strings.HasPrefix(entry.Name(), ".") && name != "." || entry.Name() == "testdata" || name == "bin" || name == "gen" || name == "tools" {
				return fs.SkipDir
			}
			return nil
		}
		page := strings.HasSuffix(name, ".md") && name != "CONTRIBUTING.md" || filepath.Dir(name) == filepath.Join("cmd", "entente", "help") ||
			strings.HasPrefix(name, "proto/") || strings.HasPrefix(name, "charts/entente/templates/") || name == "charts/entente/values.yaml" || name == "Makefile"
		if !page && !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if page {
			for i, line := range strings.Split(string(text), "\n") {
				check(name, i+1, line)
			}
			return nil
		}
		if found := oneWord.FindSubmatch(text); found != nil && !suites[string(found[1])] {
			t.Errorf("%s: %s: the name of a test says what holds", name, found[1])
		}
		eachText(text, strings.HasSuffix(name, "_test.go"), func(line int, text string) { check(name, line, text) })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// avoidedWords matches what the first column of the table in CONTRIBUTING.md lists.
func avoidedWords(t *testing.T) *regexp.Regexp {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| instead of | write |\n| --- | --- |\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no table of words")
	}
	var words []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			break
		}
		for word := range strings.SplitSeq(cells[1], ",") {
			word, open := strings.CutSuffix(strings.TrimSpace(word), " …")
			if word = regexp.QuoteMeta(word); open {
				word += ` \w+`
			}
			words = append(words, word)
		}
	}
	return regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)\b`)
}

// oneWord matches a test whose name is one word, which cannot be a claim; suites are those that
// run many.
var (
	oneWord = regexp.MustCompile(`(?m)^func (Test[A-Z][a-z0-9]*)\(t `)
	suites  = map[string]bool{"TestTranscripts": true, "TestMatrix": true, "TestKubernetes": true}
)

// good matches what is right although it has a word to replace.
var good = regexp.MustCompile(`(?i)\bthere (is|are) no \w+|\b(is|are) no (longer|later|earlier|more than)\b`)

// avoided returns the first word to replace in a text; empty if there is none.
func avoided(replace *regexp.Regexp, text string) string {
	return replace.FindString(good.ReplaceAllString(text, ""))
}

// eachText calls f with each comment and text of a Go file; of a test, with the names of
// its tests only, as words.
func eachText(source []byte, isTest bool, f func(line int, text string)) {
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	s.Init(file, source, nil, scanner.ScanComments)
	for {
		pos, tok, text := s.Scan()
		switch {
		case tok == token.EOF:
			return
		case !isTest && (tok == token.COMMENT || tok == token.STRING):
			f(file.Line(pos), text)
		case isTest && tok == token.IDENT && strings.HasPrefix(text, "Test"):
			f(file.Line(pos), spaced(text))
		}
	}
}

// spaced separates the words of a name.
func spaced(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func TestAvoidedWordsAreFound(t *testing.T) {
	t.Parallel()
	replace := avoidedWords(t)
	for text, want := range map[string]bool{
		"made anew": true, "Anew": true, "it is looked at again": true, "a renewed lease": false, "again": false,
		spaced("TestWhatIsLookedAtAgain"): true, spaced("TestPulseIsSent"): true, "impulse": false,
		"a node that is no gateway": true, "there is no gateway": false, "it is no longer one": false,
	} {
		if (avoided(replace, text) != "") != want {
			t.Errorf("%q is found: %t", text, !want)
		}
	}
}
