package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Links between pages lead somewhere, their anchors too, and README.md leads to all
// pages of docs/.
func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	links, problems := checkLinks(os.DirFS("../.."))
	for _, problem := range problems {
		t.Error(problem)
	}
	if links < 50 {
		t.Errorf("%d links are found; the pages are read wrongly", links)
	}
}

var (
	fenced  = regexp.MustCompile("(?s)```.*?```")
	code    = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	linked  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// checkLinks returns how many links between files the pages have, and which are wrong.
func checkLinks(root fs.FS) (links int, problems []string) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/design/*.md"} {
		found, err := fs.Glob(root, pattern)
		if err != nil {
			return 0, []string{err.Error()}
		}
		pages = append(pages, found...)
	}
	text, anchors := map[string]string{}, map[string][]string{}
	for _, page := range pages {
		source, err := fs.ReadFile(root, page)
		if err != nil {
			return 0, []string{err.Error()}
		}
		prose := fenced.ReplaceAllString(string(source), "")
		for _, m := range heading.FindAllStringSubmatch(prose, -1) {
			slug := noSlug.ReplaceAllString(strings.ToLower(linked.ReplaceAllString(m[1], "")), "")
			anchors[page] = append(anchors[page], strings.ReplaceAll(slug, " ", "-"))
		}
		text[page] = code.ReplaceAllString(prose, "")
	}
	fromReadme := map[string]bool{}
	for _, page := range pages {
		for _, m := range linked.FindAllStringSubmatch(text[page], -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = path.Join(path.Dir(page), file)
			}
			if page == "README.md" {
				fromReadme[to] = true
			}
			if _, err := fs.Stat(root, to); err != nil {
				problems = append(problems, fmt.Sprintf("%s links to %s, which is not there", page, m[1]))
			} else if _, isPage := text[to]; anchor != "" && isPage && !slices.Contains(anchors[to], anchor) {
				problems = append(problems, fmt.Sprintf("%s links to %s, and %s has no such heading", page, m[1], to))
			}
		}
	}
	for _, page := range pages {
		if path.Dir(page) == "docs" && !fromReadme[page] {
			problems = append(problems, "README.md does not link to "+page)
		}
	}
	return links, problems
}

func TestLinksThatLeadNowhereAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		readme string
		want   int
	}{
		"right":         {"[a](docs/a.md), [b](docs/a.md#a-heading-of-it), [c](#top), [d](https://x/y), `[e](f)`\n# Top\n", 0},
		"no such page":  {"[a](docs/a.md) [b](docs/b.md)\n", 1},
		"no heading":    {"[a](docs/a.md#another)\n", 1},
		"not linked to": {"nothing\n", 1},
	} {
		root := fstest.MapFS{"README.md": {Data: []byte(c.readme)}, "docs/a.md": {Data: []byte("# A heading of `it`\n```\n[x](y)\n```\n")}}
		if _, problems := checkLinks(root); len(problems) != c.want {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
