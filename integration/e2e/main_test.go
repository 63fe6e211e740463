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

	"github.com/entente-dev/entente/api/v1alpha1"
)

// The tests share one World. They run in the order of their files, t1 to t6, so
// that what one made the next can use; each makes what it needs if it is not
// there, so that any can be run alone. KEEP=1 leaves the clusters up afterwards,
// and finds them there the next time.

// stage is what the tests share.
type stage struct {
	once   sync.Once
	err    error
	world  *World
	before map[*Side]Snapshot
	logs   string
	// waiting is the test that runs, to which is told what is waited for.
	mu      sync.Mutex
	waiting testing.TB
}

var theStage stage // the one thing that the tests of this package share

func TestMain(m *testing.M) {
	code := m.Run()
	if w := theStage.world; w != nil && os.Getenv("KEEP") == "" {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		if err := w.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "take the clusters away:", err)
			code = 1
		}
		cancel()
	}
	os.Exit(code)
}

// cannot says why there can be no clusters here.
func cannot() string {
	switch {
	case testing.Short():
		return "real clusters take minutes: not with -short"
	case runtime.GOOS != "linux":
		return "real clusters need Linux: their nodes are made of its namespaces"
	case os.Getuid() != 0:
		return "real clusters need root: namespaces, mounts, cgroups"
	}
	return ""
}

// onStage returns the World, with the chart installed in both clusters, and a
// context for the test.
func onStage(t *testing.T) (context.Context, *World) {
	t.Helper()
	if why := cannot(); why != "" {
		t.Skip(why)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*time.Minute, fmt.Errorf("the test takes too long"))
	t.Cleanup(cancel)
	s := &theStage
	s.mu.Lock()
	s.waiting = t
	s.mu.Unlock()
	s.once.Do(func() { s.err = s.build(ctx) })
	if s.err != nil {
		s.dump(t)
		t.Fatalf("bring up two clusters with Entente: %v", s.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			s.dump(t)
		}
		s.mu.Lock()
		s.waiting = nil
		s.mu.Unlock()
		if err := s.world.Heal(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("end all faults: %v", err)
		}
	})
	if s.world.Home == nil {
		t.Fatal("an earlier test took the clusters away")
	}
	return ctx, s.world
}

func (s *stage) build(ctx context.Context) error {
	w, err := Up(ctx, Config{Waiting: s.say})
	if err != nil {
		return err
	}
	s.world, s.logs = w, filepath.Join(w.Root, ".build/logs/e2e-"+time.Now().UTC().Format("20060102-150405"))
	installed := true
	for _, side := range w.Sides() {
		if _, err := side.Helm(ctx, "status", Release, "-n", SystemNamespace); err != nil {
			installed = false
		}
	}
	if !installed {
		// With the chart there already, there is nothing to compare with at the end.
		if s.before, err = w.Snapshots(ctx); err != nil {
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

// say tells the test that runs what is waited for.
func (s *stage) say(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != nil {
		s.waiting.Logf("%s waiting for %s", time.Now().Format("15:04:05.0"), what)
	}
}

// dump keeps the logs of a test that failed.
func (s *stage) dump(t *testing.T) {
	if s.world == nil || s.world.Home == nil {
		return
	}
	dir := filepath.Join(s.logs, strings.ReplaceAll(t.Name(), "/", "_"))
	if err := s.world.Dump(context.WithoutCancel(t.Context()), dir); err != nil {
		t.Logf("not all logs could be kept: %v", err)
	}
	t.Logf("logs are in %s", dir)
}

// ok ends the test on an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// peered makes sure that home uses abroad, and returns the virtual node's name.
func peered(ctx context.Context, t *testing.T, w *World) string {
	t.Helper()
	node, err := w.Peer(ctx)
	ok(t, err)
	return node.Name
}

// offloaded makes sure that there is an offloaded namespace, and that it is empty
// but for what Kubernetes puts there.
func offloaded(ctx context.Context, t *testing.T, w *World, namespace string, args ...string) {
	t.Helper()
	ok(t, w.DeleteNamespace(ctx, namespace))
	ok(t, w.Offload(ctx, namespace, args...))
	t.Cleanup(func() {
		if err := w.DeleteNamespace(context.WithoutCancel(ctx), namespace); err != nil {
			t.Errorf("delete namespace %s: %v", namespace, err)
		}
	})
}

// theContract returns the one contract in force, as both sides hold it.
func theContract(ctx context.Context, t *testing.T, w *World) (home, abroad v1alpha1.Contract) {
	t.Helper()
	open := func(s *Side, role v1alpha1.ContractRole) v1alpha1.Contract {
		all, err := s.Contracts(ctx, role)
		ok(t, err)
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
