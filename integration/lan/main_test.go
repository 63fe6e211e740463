package lan

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	labName = "lan"
	// shop is the namespace that is offloaded, in all clusters.
	shop = "shop"
	// patience bounds a test, atMost is what is waited for that should take seconds.
	patience = 15 * time.Minute
	atMost   = 2 * time.Minute
)

// setting is how the chart is installed in a cluster; empty means not at all.
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

// stage is what the tests share.
type stage struct {
	e2e.Stage
	before map[*e2e.Side]e2e.Snapshot
	secret string
	is     map[*e2e.Side]setting
	// more are the values of settings that tests make up.
	more map[setting][]string
}

var theStage stage // the one thing that the tests of this package share

func TestMain(m *testing.M) {
	if os.Getenv(announces) != "" {
		if err := announce(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "announce:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(theStage.Main(m))
}

func onStage(t testing.TB) (context.Context, *stage) {
	t.Helper()
	return theStage.On(t, patience, theStage.build), &theStage
}

// build brings three clusters up. Nothing is installed in them yet.
func (s *stage) build(ctx context.Context) error {
	s.secret, s.is = rand.Text(), map[*e2e.Side]setting{}
	w, err := e2e.Up(ctx, e2e.Config{Lab: labName, LAN: lab.SharedLAN, More: []string{"oslo"}, Waiting: s.Say})
	if err != nil {
		return err
	}
	s.World = w
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
func (s *stage) rome() *e2e.Side  { return s.World.Home }
func (s *stage) milan() *e2e.Side { return s.World.Abroad }
func (s *stage) oslo() *e2e.Side  { return s.World.More[0] }

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
	return s.more[is]
}

// are has the chart installed in clusters as it is to be, and taken away where it is
// not to be.
func (s *stage) are(ctx context.Context, want map[*e2e.Side]setting) error {
	var mu sync.Mutex
	return s.World.Each(ctx, func(ctx context.Context, side *e2e.Side) error {
		mu.Lock()
		is, to := s.is[side], want[side]
		mu.Unlock()
		if is == to {
			return nil
		}
		var err error
		if to == absent {
			err = s.World.Uninstall(ctx, side)
		} else {
			side.Values = s.values(to)
			err = s.World.Install(ctx, side)
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
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
