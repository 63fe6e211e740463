package e2e

import (
	"cmp"
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

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Stage has clusters that the tests of another package share. The zero value has none yet. KEEP=1
// leaves them up afterwards.
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
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) //nolint:forbidigo // the tests are over, and with them their context
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

// Installed is a Stage of two clusters with the chart installed.
type Installed struct {
	Stage
	// Config says how they are brought up.
	Config Config
	// Before is the state before the chart; nil if the chart was installed already.
	Before map[*Side]Snapshot
	// Patience bounds a test. Default: 12 minutes.
	Patience time.Duration
}

// On returns a context for a test, and the World. All faults end with the test.
func (s *Installed) On(t testing.TB) (context.Context, *World) {
	t.Helper()
	ctx := s.Stage.On(t, cmp.Or(s.Patience, 12*time.Minute), s.build)
	if s.World.Home == nil {
		t.Fatal("an earlier test took the clusters away")
	}
	t.Cleanup(func() {
		if err := s.World.Heal(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("end all faults: %v", err)
		}
	})
	return ctx, s.World
}

func (s *Installed) build(ctx context.Context) error {
	cfg := s.Config
	cfg.Waiting = s.Say
	w, err := Up(ctx, cfg)
	if err != nil {
		return err
	}
	s.World = w
	installed := true
	for _, side := range w.Sides() {
		if _, err := side.Helm(ctx, "status", Release, "-n", SystemNamespace); err != nil {
			installed = false
		}
	}
	if !installed {
		// With the chart there already, there is nothing to compare with at the end.
		if s.Before, err = w.Snapshots(ctx); err != nil {
			return err
		}
	}
	if err := w.LoadImage(ctx); err != nil {
		return err
	}
	if err := w.Each(ctx, w.Install); err != nil {
		return err
	}
	return w.Each(ctx, func(ctx context.Context, s *Side) error { return s.AgentReady(ctx, Restarted) })
}

// Say reports to the running test what is waited for.
func (s *Stage) Say(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != nil {
		s.waiting.Logf("%s waiting for %s", time.Now().Format("15:04:05.0"), what)
	}
}

// OK ends the test on an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Offloaded makes sure, until the test ends, that there is an offloaded namespace, and
// that it is empty but for what Kubernetes puts there.
func Offloaded(ctx context.Context, t testing.TB, w *World, namespace string, args ...string) {
	t.Helper()
	OK(t, w.DeleteNamespace(ctx, namespace))
	OK(t, w.Offload(ctx, namespace, args...))
	t.Cleanup(func() {
		if err := w.DeleteNamespace(context.WithoutCancel(ctx), namespace); err != nil {
			t.Errorf("delete namespace %s: %v", namespace, err)
		}
	})
}

// TheContract returns the one contract in force, as both sides hold it.
func TheContract(ctx context.Context, t testing.TB, w *World) (home, abroad v1alpha1.Contract) {
	t.Helper()
	open := func(s *Side, role v1alpha1.ContractRole) v1alpha1.Contract {
		all, err := s.Contracts(ctx, role)
		OK(t, err)
		var active []v1alpha1.Contract
		for _, c := range all {
			if c.Status.Phase == "Active" {
				active = append(active, c)
			}
		}
		if len(active) != 1 {
			t.Fatalf("%s holds %d active contracts as %s, want one", s.Name, len(active), role)
		}
		return active[0]
	}
	return open(w.Home, v1alpha1.ContractConsumer), open(w.Abroad, v1alpha1.ContractProvider)
}
