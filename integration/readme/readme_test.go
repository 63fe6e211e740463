package readme

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	section = "## Five minutes with two clusters"
	// labName is that of the lab that the tour makes.
	labName = "tour"
	// patience bounds the tour, with what it builds.
	patience = 15 * time.Minute
)

func TestTourIsParsed(t *testing.T) {
	t.Parallel()
	page := "## Other\n```console\nno\n```\n" + section + "\n\nText:\n\n```console\na\nb\n```\n\n```sh\nno\n```\n### Part\n```console\nc\n```\n## Next\n```console\nno\n```\n"
	got := tour(page)
	if want := []string{"a\nb\n", "c\n"}; !slices.Equal(got, want) {
		t.Errorf("tour = %q, want %q", got, want)
	}
}

// TestTourRunsAsWritten also sees that the tour leaves nothing: not in the clusters, and
// not in the clone.
func TestTourRunsAsWritten(t *testing.T) {
	switch {
	case testing.Short():
		t.Skip("real clusters take minutes: not with -short")
	case runtime.GOOS != "linux" || os.Getuid() != 0:
		t.Skip("real clusters need Linux and root")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := tour(string(page))
	up := slices.IndexFunc(blocks, func(b string) bool { return strings.Contains(b, "lab up") })
	if len(blocks) < 5 || up < 0 || blocks[len(blocks)-1] != "lab down\n" {
		t.Fatalf("the tour has %d blocks; want one with `lab up`, and `lab down` as the last", len(blocks))
	}
	log.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("the tour takes longer than %s", patience))
	defer cancel()
	clone := t.TempDir()
	copyTree(t, root, clone)
	t.Cleanup(func() {
		if err := lab.Down(context.WithoutCancel(ctx), labName); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})
	sh := newShell(ctx, t, clone)
	var world *e2e.World
	var before map[*e2e.Side]e2e.Snapshot
	for i, block := range blocks {
		if i == len(blocks)-1 {
			if err := world.NothingLeft(ctx, before); err != nil {
				t.Errorf("after the tour: %v", err)
			}
		}
		began := time.Now()
		if err := sh.run(block); err != nil {
			t.Fatalf("block %d of the tour: %v\n%s", i+1, err, block)
		}
		t.Logf("block %d took %s", i+1, time.Since(began).Round(100*time.Millisecond))
		if i == up {
			if world, err = e2e.Up(ctx, e2e.Config{Lab: labName, Root: clone}); err != nil {
				t.Fatal(err)
			}
			if before, err = world.Snapshots(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := sh.end(); err != nil {
		t.Errorf("the shell: %v", err)
	}
	for _, file := range files(t, clone) {
		if _, err := os.Lstat(filepath.Join(root, file)); errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the tour leaves %s", file)
		}
	}
}

// tour returns the blocks of the section that are marked console.
func tour(page string) []string {
	var blocks []string
	var block *strings.Builder
	inside := false
	for line := range strings.Lines(page) {
		switch {
		case block != nil && line == "```\n":
			blocks = append(blocks, block.String())
			block = nil
		case block != nil:
			block.WriteString(line)
		case strings.HasPrefix(line, "## "):
			inside = strings.TrimSpace(line) == section
		case inside && line == "```console\n":
			block = new(strings.Builder)
		}
	}
	return blocks
}

// built is what make and the lab make in the root of the repository.
func built(name string) bool { return slices.Contains([]string{".build", "bin", ".git"}, name) }

// files returns the files below a clone, without those that were built.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case built(name) && d.IsDir():
			return fs.SkipDir
		case !d.IsDir():
			all = append(all, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// copyTree makes to a clone of from in which nothing was built yet.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	for _, name := range files(t, from) {
		info, err := os.Stat(filepath.Join(from, name))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, b, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

// shell is one bash, whose environment and background jobs outlive a block. It ends at
// the first command that fails.
type shell struct {
	in   io.WriteCloser
	done chan string
	cmd  *exec.Cmd
}

// mark is what the shell prints behind each block.
const mark = "--- the block is done"

func newShell(ctx context.Context, t *testing.T, dir string) *shell {
	t.Helper()
	cmd := exec.CommandContext(ctx, "bash")
	cmd.Dir = dir
	// The path of a user who built nothing, and a lab of the test's own.
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "ENTENTE_") && !strings.HasPrefix(name, "ENTENTE_LAB_") || strings.HasPrefix(name, "MAKE") || name == "MFLAGS" || name == "KUBECONFIG" {
			continue
		}
		cmd.Env = append(cmd.Env, v)
	}
	cmd.Env = append(cmd.Env, "ENTENTE_LAB_NAME="+labName, "NO_COLOR=1")
	// What it leaves in the background ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &shell{in: in, done: make(chan string), cmd: cmd}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for range s.done { // until it is closed
		}
	})
	go func() { _ = w.CloseWithError(s.cmd.Wait()) }()
	go func() {
		defer close(s.done)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if lines.Text() == mark {
				s.done <- ""
				continue
			}
			t.Log(lines.Text())
		}
	}()
	if _, err := io.WriteString(in, "set -euo pipefail\n"); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a block to its end. The commands of a block do not read the following blocks.
func (s *shell) run(block string) error {
	if _, err := fmt.Fprintf(s.in, "{ :\n%s} </dev/null\necho '%s'\n", block, mark); err != nil {
		return err
	}
	if _, ok := <-s.done; !ok {
		return errors.New("a command failed")
	}
	return nil
}

// end ends the shell; a command that still runs in the background is an error.
func (s *shell) end() error {
	if _, err := io.WriteString(s.in, "if [ -n \"$(jobs -r)\" ]; then jobs -l; exit 1; fi\n"); err != nil {
		return err
	}
	if err := s.in.Close(); err != nil {
		return err
	}
	for range s.done { // until it is closed
	}
	if state := s.cmd.ProcessState; state == nil || !state.Success() {
		return fmt.Errorf("it ended with %v", state)
	}
	return nil
}
