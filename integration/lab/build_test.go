package lab

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writeModule makes a source folder with one module and returns it.
func writeModule(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		f := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCacheKeyChangesWithTheInputsOfABinary(t *testing.T) {
	base := map[string]string{"m/go.mod": "module m\n", "m/go.sum": "a", "m/main.go": "package main\n"}
	c := component{name: "m", module: "m", builds: []build{{packages: []string{"."}, tags: "x", ldflags: "-s", output: "m"}}}
	key := func(t *testing.T, c component, files map[string]string, facts ...string) string {
		t.Helper()
		k, err := c.key(writeModule(t, files), facts...)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	with := func(name, text string) map[string]string {
		m := map[string]string{name: text}
		for k, v := range base {
			if k != name {
				m[k] = v
			}
		}
		return m
	}
	want := key(t, c, base, "go1")
	if again := key(t, c, base, "go1"); again != want {
		t.Errorf("the same gives %s and %s", want, again)
	}
	flags := c
	flags.builds = []build{{packages: []string{"."}, tags: "x", ldflags: "-w", output: "m"}}
	staged := c
	staged.own = []string{"go.sum"}
	linked := c
	linked.links = map[string]string{"n": "m"}
	for name, got := range map[string]string{
		"another dependency":  key(t, c, with("m/go.sum", "b"), "go1"),
		"another source text": key(t, c, with("m/main.go", "package main // x\n"), "go1"),
		"a further source":    key(t, c, with("m/b.go", "package main\n"), "go1"),
		"other flags":         key(t, flags, base, "go1"),
		"another Go":          key(t, c, base, "go2"),
		"a further name":      key(t, linked, base, "go1"),
		"a file of its own":   key(t, staged, base, "go1"),
	} {
		if got == want {
			t.Errorf("%s does not change the key", name)
		}
	}
	for name, got := range map[string]string{
		"a test":         key(t, c, with("m/main_test.go", "package main\n"), "go1"),
		"another module": key(t, c, with("n/main.go", "package main\n"), "go1"),
		"a text":         key(t, c, with("m/README.md", "x"), "go1"),
	} {
		if got != want {
			t.Errorf("%s changes the key", name)
		}
	}
}

func TestComponentIsBuiltOnceAndThenTakenFromTheCache(t *testing.T) {
	source := writeModule(t, map[string]string{
		"m/go.mod": "module example.com/m\n\ngo 1.26\n", "m/go.sum": "", "m/main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
	})
	cache := t.TempDir()
	c := component{name: "m", module: "m", links: map[string]string{"other": "m"}, builds: []build{{packages: []string{"."}, ldflags: "-s", output: "m"}}}
	var said []string
	say := func(s string) { said = append(said, s) }
	dir, err := c.ensure(t.Context(), source, cache, say)
	if err != nil {
		t.Fatal(err)
	}
	if len(said) != 2 {
		t.Errorf("building said %q", said)
	}
	for _, name := range []string{"m", "other"} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode()&0o111 == 0 {
			t.Errorf("%s is not a program: %v", name, err)
		}
	}
	if times := readTimes(filepath.Join(cache, "times.json")); times["m"] <= 0 {
		t.Errorf("the time it took is not kept: %v", times)
	}
	said = nil
	if again, err := c.ensure(t.Context(), source, cache, say); err != nil || again != dir || len(said) != 0 {
		t.Errorf("the second time gives %s, %v and says %q", again, err, said)
	}
}

func TestFailedBuildLeavesNothingInTheCache(t *testing.T) {
	source := writeModule(t, map[string]string{"m/go.mod": "module example.com/m\n\ngo 1.26\n", "m/go.sum": "", "m/main.go": "package main\n\nfunc main() { nonsense }\n"})
	cache := t.TempDir()
	c := component{name: "m", module: "m", builds: []build{{packages: []string{"."}, output: "m"}}}
	if dir, err := c.ensure(t.Context(), source, cache, func(string) {}); err == nil {
		t.Fatalf("built %s", dir)
	}
	entries, err := os.ReadDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "m.lock" {
			t.Errorf("left %s", e.Name())
		}
	}
}

func TestLockOnARemovedFileDoesNotCount(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), name, func() { t.Error("waits without another holder") })
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	said := 0
	if _, err := lockFile(short, name, func() { said++ }); err == nil || said != 1 {
		t.Errorf("two hold the lock, or it was said %d times that one waits: %v", said, err)
	}
	got := make(chan error)
	go func() {
		u, err := lockFile(t.Context(), name, func() {})
		if err == nil {
			defer u()
			_, err = os.Stat(name)
		}
		got <- err
	}()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-got; err != nil {
		t.Errorf("the next one: %v", err)
	}
}

func TestTailIsTheLastLines(t *testing.T) {
	for in, want := range map[string]string{"": "", "a": "a", "a\nb\nc\n": "b\nc", "a\nb": "a\nb"} {
		if got := tail(in, 2); got != want {
			t.Errorf("tail of %q is %q", in, got)
		}
	}
}
