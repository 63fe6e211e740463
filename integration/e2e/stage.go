package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Stage is clusters that the tests of another package share. The zero value has none yet.
// KEEP=1 leaves them up afterwards.
type Stage struct {
	// World is set by what brings them up, as soon as there is something to take away.
	World *World

	once sync.Once
	err  error

	mu      sync.Mutex
	waiting testing.TB
}

// Main runs the tests and takes the clusters away. It returns the exit code.
func (s *Stage) Main(m *testing.M) int {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if s.World != nil && os.Getenv("KEEP") == "" {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) //nolint:forbidigo // the tests are over, and with them their context
		defer cancel()
		if err := s.World.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "take the clusters away:", err)
			return 1
		}
	}
	return code
}

// On returns a context for a test that may take as long as patience, and has the first
// test bring the clusters up. It skips the test where there can be none, and keeps logs
// if it fails.
func (s *Stage) On(t testing.TB, patience time.Duration, build func(context.Context) error) context.Context {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("real clusters take minutes: not with -short")
	case runtime.GOOS != "linux" || os.Getuid() != 0:
		t.Skip("real clusters need Linux and root")
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("the test takes longer than %s", patience))
	t.Cleanup(cancel)
	s.waits(t)
	t.Cleanup(func() {
		if t.Failed() && s.World != nil && s.World.Home != nil {
			dir := filepath.Join(s.World.Root, ".build/logs", s.World.Config.Lab+"-"+time.Now().UTC().Format("20060102-150405"), strings.ReplaceAll(t.Name(), "/", "_"))
			if err := s.World.Dump(context.WithoutCancel(ctx), dir); err != nil {
				t.Logf("not all logs could be kept: %v", err)
			}
			t.Logf("logs are in %s", dir)
		}
		s.waits(nil)
	})
	s.once.Do(func() { s.err = build(ctx) })
	if s.err != nil {
		t.Fatalf("bring the clusters up: %v", s.err)
	}
	return ctx
}

func (s *Stage) waits(t testing.TB) { //nolint:thelper // it keeps the test
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = t
}

// Say tells the test that runs what is waited for.
func (s *Stage) Say(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != nil {
		s.waiting.Logf("%s waiting for %s", time.Now().Format("15:04:05.0"), what)
	}
}
