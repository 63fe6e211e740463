package lan

import (
	"context"
	"crypto/rand"
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

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	labName = "lan"
	// shop is the namespace that is offloaded, in all clusters.
	shop = "shop"
	// patience bounds a test, at most is what is waited for that should take seconds.
	patience = 6 * time.Minute
	atMost   = time.Minute
)

// setting is how the chart is installed in a cluster; empty is not at all.
type setting string

const (
	absent setting = ""
	// off is the chart's defaults: no discovery.
	off setting = "off"
	// found is discovery alone: clusters find each other, and that is all.
	found setting = "found"
	// member is discovery and the secret of the group.
	member setting = "member"
	// impostor is a member that has another secret.
	impostor setting = "impostor"
)

// stage is what the tests share. KEEP=1 leaves the clusters up afterwards.
type stage struct {
	once   sync.Once
	err    error
	world  *e2e.World
	before map[*e2e.Side]e2e.Snapshot
	secret string
	is     map[*e2e.Side]setting

	mu      sync.Mutex
	waiting logger
}

var theStage stage // the one thing that the tests of this package share

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if theStage.world != nil && os.Getenv("KEEP") == "" {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		if err := lab.Down(ctx, labName); err != nil {
			fmt.Fprintln(os.Stderr, "take the clusters away:", err)
			code = 1
		}
		cancel()
	}
	os.Exit(code)
}

func onStage(t *testing.T) (context.Context, *stage) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("real clusters take minutes: not with -short")
	case runtime.GOOS != "linux" || os.Getuid() != 0:
		t.Skip("real clusters need Linux and root")
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("the test takes longer than %s", patience))
	t.Cleanup(cancel)
	s := &theStage
	s.waits(t)
	t.Cleanup(func() {
		if t.Failed() && s.world != nil {
			dir := filepath.Join(s.world.Root, ".build/logs/lan-"+time.Now().UTC().Format("20060102-150405"), strings.ReplaceAll(t.Name(), "/", "_"))
			if err := s.world.Dump(context.WithoutCancel(ctx), dir); err != nil {
				t.Logf("not all logs could be kept: %v", err)
			}
			t.Logf("logs are in %s", dir)
		}
		s.waits(nil)
	})
	s.once.Do(func() { s.err = s.build(ctx) })
	if s.err != nil {
		t.Fatalf("bring up three clusters on one LAN: %v", s.err)
	}
	return ctx, s
}

// logger is the test that runs, to which is told what is waited for.
type logger interface {
	Logf(format string, args ...any)
}

func (s *stage) waits(l logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = l
}

// say tells the test that runs what is waited for.
func (s *stage) say(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != nil {
		s.waiting.Logf("%s waiting for %s", time.Now().Format("15:04:05.0"), what)
	}
}

// build brings three clusters up. Nothing is installed in them yet.
func (s *stage) build(ctx context.Context) error {
	s.secret, s.is = rand.Text(), map[*e2e.Side]setting{}
	w, err := e2e.Up(ctx, e2e.Config{Lab: labName, LAN: lab.SharedLAN, More: []string{"oslo"}, Waiting: s.say})
	if err != nil {
		return err
	}
	s.world = w
	if err := w.LoadImage(ctx); err != nil {
		return err
	}
	if err := w.Each(ctx, func(ctx context.Context, side *e2e.Side) error { return side.CreateNamespace(ctx, shop) }); err != nil {
		return err
	}
	s.before, err = w.Snapshots(ctx)
	return err
}

// rome, milan and oslo are the clusters.
func (s *stage) rome() *e2e.Side  { return s.world.Home }
func (s *stage) milan() *e2e.Side { return s.world.Abroad }
func (s *stage) oslo() *e2e.Side  { return s.world.More[0] }

// values are the Helm values of a setting.
func (s *stage) values(is setting) []string {
	const lan = "discovery.lan.enabled=true"
	group := func(secret string) []string {
		return []string{
			lan, "discovery.automatic.enabled=true", "discovery.automatic.group.name=office",
			"discovery.automatic.group.secret=" + secret, "discovery.automatic.namespaces={" + shop + "}",
		}
	}
	switch is {
	case found:
		return []string{lan}
	case member:
		return group(s.secret)
	case impostor:
		return group(strings.Repeat("wrong-secret-", 3))
	case absent, off:
	}
	return nil
}

// are has the chart installed in clusters as it is to be, and taken away where it is
// not to be.
func (s *stage) are(ctx context.Context, want map[*e2e.Side]setting) error {
	var mu sync.Mutex
	return s.world.Each(ctx, func(ctx context.Context, side *e2e.Side) error {
		mu.Lock()
		is, to := s.is[side], want[side]
		mu.Unlock()
		if is == to {
			return nil
		}
		var err error
		if to == absent {
			err = s.world.Uninstall(ctx, side)
		} else {
			side.Values = s.values(to)
			err = s.world.Install(ctx, side)
		}
		if err == nil {
			mu.Lock()
			s.is[side] = to
			mu.Unlock()
		}
		return err
	})
}

// ok ends the test on an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
