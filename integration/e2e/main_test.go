package e2e

import (
	"context"
	"os"
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
	Stage
	before map[*Side]Snapshot
}

var theStage stage // the one thing that the tests of this package share

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// onStage returns the World, with the chart installed in both clusters, and a
// context for the test.
func onStage(t *testing.T) (context.Context, *World) {
	t.Helper()
	s := &theStage
	ctx := s.On(t, 8*time.Minute, s.build)
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

func (s *stage) build(ctx context.Context) error {
	w, err := Up(ctx, Config{Waiting: s.Say})
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
