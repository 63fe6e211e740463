package control

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/entente-dev/entente/integration/lab"
)

// pair is two clusters with the chart installed.
type pair struct {
	home, abroad *cluster
	lab          *lab.LightLab
	// broken says that a test left something behind: no other gets the pair.
	broken bool
}

func (p *pair) clusters() []*cluster { return []*cluster{p.home, p.abroad} }

// pairs are those that were started: as many as tests ran at once, which -parallel
// says.
type pairs struct {
	mu        sync.Mutex
	all, free []*pair
}

// take returns an unused pair, and starts one if all are in use.
func (p *pairs) take(ctx context.Context) (*pair, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		defer p.mu.Unlock()
		out := p.free[n-1]
		p.free = p.free[:n-1]
		return out, nil
	}
	out := &pair{}
	p.all = append(p.all, out)
	dir := filepath.Join(world.dir, fmt.Sprintf("pair-%d", len(p.all)))
	p.mu.Unlock()
	if err := out.start(ctx, dir); err != nil {
		return nil, fmt.Errorf("start two clusters: %w", err)
	}
	return out, nil
}

func (p *pairs) giveBack(one *pair) {
	if one.broken {
		one.stop()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, one)
}

func (p *pairs) stop() {
	for _, one := range p.all {
		one.stop()
	}
}

// stop ends the agents and the clusters; twice is fine.
func (p *pair) stop() {
	for _, c := range p.clusters() {
		if c != nil {
			c.kill()
		}
	}
	if p.lab != nil {
		p.lab.Stop()
	}
}

// start brings up the two clusters and installs the chart.
func (p *pair) start(ctx context.Context, dir string) error {
	begin := time.Now()
	say := func(format string, args ...any) {
		if testing.Verbose() {
			fmt.Fprintf(os.Stderr, filepath.Base(dir)+": "+format+"\n", args...)
		}
	}
	var err error
	// It outlives the test that needs it first.
	if p.lab, err = lab.StartLight(context.WithoutCancel(ctx), filepath.Join(dir, "lab"), lab.Options{Clusters: 2, FakeNodes: fakeNodes}, func(s string) { say("%s", s) }); err != nil {
		return err
	}
	var g errgroup.Group
	for i, to := range []**cluster{&p.home, &p.abroad} {
		g.Go(func() error {
			name := []string{homeName, abroadName}[i]
			c, err := newCluster(name, p.lab.Clusters[i], filepath.Join(dir, name), world.agent)
			if err != nil {
				return err
			}
			c.pair, *to = p, c
			if err := c.install(ctx, "../.."); err != nil {
				return err
			}
			return learnSecrets(context.WithoutCancel(ctx), c)
		})
	}
	err = g.Wait()
	say("two clusters were ready after %.1fs", time.Since(begin).Seconds())
	return err
}

// logs are the names of files.
type logs struct {
	mu    sync.Mutex
	files []string
}

func (l *logs) add(file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files = append(l.files, file)
}

func (l *logs) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.files)
}
