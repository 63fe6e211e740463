package control

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/integration/leak"
)

// world is the state that all tests of a run share.
var world struct {
	skip  string
	pairs pairs
	// dir is for files of this run; agent and cli are the binaries that are tested.
	dir, agent, cli string
	// secrets are those that were used, and logs the files in which none may be.
	secrets leak.Secrets
	logs    logs
}

func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard()) // otherwise it complains, with a stack, that no logger was set
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "entente-control")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	world.dir, world.agent, world.cli = dir, filepath.Join(dir, "entented"), filepath.Join(dir, "entente")
	world.logs.add(filepath.Join(dir, "cli.log"))
	if runtime.GOOS != "linux" {
		world.skip = "the lab needs Linux"
	} else if err := build(context.Background(), "../..", dir); err != nil {
		fmt.Fprintln(os.Stderr, "set up:", err)
		return 1
	}
	code := m.Run()
	world.pairs.stop()
	return max(code, secretsInLogs())
}

// build builds the agent and the CLI as they are in the tree.
func build(ctx context.Context, root, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", dir+string(filepath.Separator), "./cmd/entented", "./cmd/entente")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS=") // a -modfile is not meant for it
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build entented and entente: %w\n%s", err, out)
	}
	return nil
}

// needLab returns two clusters that the test has for itself until its end, or skips
// where there can be none. Tests that need a lab run side by side.
func needLab(t *testing.T) *pair {
	t.Helper()
	if world.skip != "" {
		t.Skip(world.skip)
	}
	t.Parallel()
	p, err := world.pairs.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, c := range p.clusters() {
				t.Logf("the last words of %s's agent:\n%s", c.name, c.lastWords(12))
			}
		}
		world.pairs.giveBack(p)
	})
	return p
}

// tail returns the last lines of a log that an administrator would read, cut short:
// what failed stands before them, and shall be seen.
func tail(file string, lines int) string {
	f, err := os.Open(file)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil && size > 1<<20 {
		_, _ = f.Seek(-1<<20, io.SeekEnd)
	} else {
		_, _ = f.Seek(0, io.SeekStart)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " level=DEBUG") && !strings.Contains(line, `msg="Event occurred"`) {
			continue
		}
		if line = strings.TrimRight(line, "\n"); len(line) > 400 {
			line = line[:400] + "…"
		}
		all = append(all, line)
	}
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
