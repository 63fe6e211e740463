package archtest

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The targets of make that README.md and CONTRIBUTING.md name can be made in a
// fresh clone, where nothing was built yet.
func TestMakeTargetsOfTheDocsExistInAFreshClone(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed")
	}
	clone := freshClone(t, "../..")
	for _, page := range []string{"README.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join("../..", page))
		if err != nil {
			t.Fatal(err)
		}
		lines := makeLines(string(text))
		if len(lines) < 2 {
			t.Errorf("%s names %d commands of make; it is read wrongly", page, len(lines))
		}
		for _, targets := range lines {
			t.Run(page+"/"+strings.Join(targets, " "), func(t *testing.T) {
				t.Parallel()
				cmd := exec.CommandContext(t.Context(), "make", append([]string{"-n"}, targets...)...)
				cmd.Dir = clone
				// What `make unit` exports, and the make that runs this test, are not in a
				// user's shell.
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("make %s: %v\n%s", strings.Join(targets, " "), err, tailOf(string(out)))
				}
			})
		}
	}
}

// The Makefile names tests and packages: each test that runs without the race detector, or apart,
// is there, and each package whose tests make networks is among those that run beside no
// clusters.
func TestMakefileNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	variable := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + ` := (.*)$`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("there is no %s", name)
		}
		return string(m[1])
	}
	named := func(name string) []string {
		return strings.Split(strings.TrimSuffix(strings.TrimPrefix(variable(name), "^("), ")$$"), "|")
	}
	defined, networks := map[string]bool{}, []string{} // by package and test
	root := os.DirFS("../..")
	err = fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		switch dir := path.Dir(file); {
		case err != nil:
			return err
		case d.IsDir() && (file == "integration" || file == "internal/archtest" || strings.HasPrefix(file, ".") && file != "."):
			return fs.SkipDir
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		default:
			source, err := fs.ReadFile(root, file)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllSubmatch(source, -1) {
				defined[dir+" "+string(m[1])] = true
			}
			if regexp.MustCompile(`"netns", "add"|CLONE_NEWNET`).Match(source) && !slices.Contains(networks, dir) {
				networks = append(networks, dir)
			}
			return err
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for list, packages := range map[string][]string{"LONG": strings.Fields(variable("LONGIN")), "WAITS": {"tunnel"}} {
		for _, name := range named(list) {
			if !slices.ContainsFunc(packages, func(dir string) bool { return defined[dir+" "+name] }) {
				t.Errorf("%s names %s, which is not a test of %s", list, name, packages)
			}
		}
	}
	slices.Sort(networks)
	if got := strings.Join(networks, " "); got != variable("RIGS") {
		t.Errorf("RIGS is %s, and tests of %s make networks", variable("RIGS"), got)
	}
}

// freshClone is a directory with the files of the repository and without what
// make builds. It is made of links: nothing may be written there.
func freshClone(t *testing.T, root string) string {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	clone := t.TempDir()
	for _, e := range entries {
		if slices.Contains([]string{".build", "bin", ".git"}, e.Name()) {
			continue
		}
		if err := os.Symlink(filepath.Join(root, e.Name()), filepath.Join(clone, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return clone
}

// makeCommand is make and its targets, perhaps behind KEEP=1, at the beginning of a
// line.
var makeCommand = regexp.MustCompile(`(?m)^(?:[A-Z]+=\S+ )?make ((?:[a-z0-9./_-]+ ?)+)`)

// makeLines returns the targets of each command of make in a block or in
// backquotes of a page.
func makeLines(page string) [][]string {
	var all [][]string
	for i, part := range strings.Split(page, "```") {
		code := []string{part}
		if i%2 == 0 {
			code = strings.Split(part, "`")
			code = slices.DeleteFunc(code, func(s string) bool { return !makeCommand.MatchString(s) || strings.Contains(s, "\n") })
		}
		for _, c := range code {
			for _, found := range makeCommand.FindAllStringSubmatch(c, -1) {
				all = append(all, strings.Fields(found[1]))
			}
		}
	}
	return all
}

func tailOf(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

func TestMakeLinesAreRead(t *testing.T) {
	t.Parallel()
	page := "`KEEP=1 make demo` leaves\n```console\nmake lab .build/bin/helm\nmake test   # all tests\n```\nmake it so\n"
	got := makeLines(page)
	want := [][]string{{"demo"}, {"lab", ".build/bin/helm"}, {"test"}}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("makeLines = %q, want %q", got, want)
	}
}
