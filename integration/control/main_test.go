package control

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/leak"
)

// world is what all tests of a run share. They run one after the other.
var world struct {
	skip string
	// broken names the test that left something behind.
	broken       string
	home, abroad *cluster
	// dir is for files of this run, cli the CLI's binary.
	dir, cli string
	// secrets are those that were used, and logs the files in which none may be.
	secrets leak.Secrets
	logs    []string
}

func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard()) // else it says, with a stack, that nobody did
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "entente-control")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	world.dir = dir
	stop, err := setUp(ctx, dir)
	if err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "set up:", err)
		return 1
	}
	code := m.Run()
	stop()
	return max(code, secretsInLogs())
}

// setUp brings up two clusters with the chart installed, and builds the agent.
func setUp(ctx context.Context, dir string) (stop func(), err error) {
	stop = func() {}
	say := func(format string, args ...any) {
		if testing.Verbose() {
			fmt.Fprintf(os.Stderr, format+"\n", args...)
		}
	}
	begin := time.Now()
	l, err := lab.StartLight(ctx, filepath.Join(dir, "lab"), lab.Options{Clusters: 2, FakeNodes: fakeNodes}, func(s string) { say("lab: %s", s) })
	if err != nil {
		if reason, ok := noLab(err); ok {
			world.skip = reason
			return stop, nil
		}
		return stop, fmt.Errorf("start the control planes: %w", err)
	}
	stop = l.Stop
	root, err := filepath.Abs("../..")
	if err != nil {
		return stop, err
	}
	var wg sync.WaitGroup
	errs := make([]error, 3)
	binary := filepath.Join(dir, "entented")
	world.cli = filepath.Join(dir, "entente")
	wg.Go(func() { errs[2] = build(ctx, root, dir) })
	clusters := make([]*cluster, 2)
	for i, c := range l.Clusters {
		name := []string{"home", "abroad"}[i]
		wg.Go(func() {
			if clusters[i], errs[i] = newCluster(name, c, filepath.Join(dir, name), binary); errs[i] == nil {
				errs[i] = clusters[i].install(ctx, root)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return stop, err
		}
	}
	world.home, world.abroad = clusters[0], clusters[1]
	world.logs = append(world.logs, filepath.Join(dir, "cli.log"))
	for _, c := range clusters {
		if err := learnSecrets(ctx, c); err != nil {
			return stop, err
		}
	}
	say("two clusters and the agent were ready after %.1fs", time.Since(begin).Seconds())
	return func() {
		world.home.kill()
		world.abroad.kill()
		l.Stop()
	}, nil
}

// noLab says whether an error means that this machine cannot run the lab.
func noLab(err error) (string, bool) {
	for _, sign := range []string{"Linux"} {
		if strings.Contains(err.Error(), sign) {
			return err.Error(), true
		}
	}
	return "", false
}

// build builds the agent and the CLI as they are in the tree.
func build(ctx context.Context, root, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", dir+string(filepath.Separator), "./cmd/entented", "./cmd/entente")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOFLAGS=") // a -modfile is not meant for it
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build entented and entente: %w\n%s", err, out)
	}
	return nil
}

// needLab returns the two clusters, or skips where there can be none.
func needLab(t *testing.T) (home, abroad *cluster) {
	t.Helper()
	if world.skip != "" {
		t.Skip(world.skip)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, c := range []*cluster{world.home, world.abroad} {
				t.Logf("the last words of %s's agent:\n%s", c.name, c.lastWords(12))
			}
		}
	})
	return world.home, world.abroad
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
