package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// Cluster is an administrator's access to one cluster.
type Cluster struct {
	Name string
	// Kubeconfig is the path of a kubeconfig that works on this machine.
	Kubeconfig string
	// Server is the URL of the API server on this machine.
	Server string

	credentials credentials
}

func openCluster(name, kubeconfig string) (*Cluster, error) {
	c, err := readKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return &Cluster{Name: name, Kubeconfig: kubeconfig, Server: c.Server, credentials: c}, nil
}

// RESTConfig is the access as client-go wants it, without its default limit of
// five requests a second. Each call returns a new one.
func (c *Cluster) RESTConfig() *rest.Config {
	return &rest.Config{
		Host: c.Server,
		QPS:  -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAData: c.credentials.CA, CertData: c.credentials.Cert, KeyData: c.credentials.Key,
		},
	}
}

// Cluster finds a cluster of the lab by its name or number.
func (l *Lab) Cluster(name string) (*Cluster, error) {
	c, err := l.plan.Cluster(name)
	if err != nil {
		return nil, err
	}
	return openCluster(c.Name, kubeconfigFile(l.dir, c.Name))
}

// LightLab is a light lab that lives in this process: its control planes end
// with it.
type LightLab struct {
	Clusters []*Cluster

	logs string
	stop func()
}

// StartLight starts a light lab with its files in dir and returns when it is
// ready. Only Clusters, FakeNodes and CIDRs of o count.
func StartLight(ctx context.Context, dir string, o Options, progress func(string)) (*LightLab, error) {
	if progress == nil {
		progress = func(string) {}
	}
	o.Light, o.Name = true, "light"
	plan, err := NewPlan(o)
	if err != nil {
		return nil, err
	}
	if err := allowed(o); err != nil {
		return nil, err
	}
	bins, err := Build(ctx, plan.Options, progress)
	if err != nil {
		return nil, err
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	l := &LightLab{logs: filepath.Join(dir, "log"), stop: sync.OnceFunc(func() { cancel(); wg.Wait() })}
	spec := daemonSpec{Plan: plan, Binaries: bins}
	pr := newProgress()
	errs := make([]error, len(plan.Clusters))
	l.Clusters = make([]*Cluster, len(plan.Clusters))
	var ready sync.WaitGroup
	for i, c := range plan.Clusters {
		ready.Go(func() {
			cdir := clusterDir(dir, c.Name)
			s, _, err := lightCluster(ctx, spec, c, cdir, filepath.Join(l.logs, c.Name), slog.New(slog.DiscardHandler))
			if err != nil {
				errs[i] = err
				return
			}
			s.mark = markKey + "=" // no named lab's: Down is not to find it
			wg.Go(func() { _ = s.run(runCtx) })
			upCtx, cancel := context.WithTimeoutCause(ctx, upMost, fmt.Errorf("not ready within %v", upMost))
			defer cancel()
			if err := bootstrap(upCtx, plan, c, kubeconfigFile(dir, c.Name), pr); err != nil {
				errs[i] = fmt.Errorf("%s: %w", c.Name, err)
				return
			}
			l.Clusters[i], errs[i] = openCluster(c.Name, kubeconfigFile(dir, c.Name))
		})
	}
	ready.Wait()
	if err := errors.Join(errs...); err != nil {
		l.Stop()
		return nil, fmt.Errorf("%w\n%s", err, l.Logs(20))
	}
	return l, nil
}

// Stop ends the lab's processes and waits until they are gone.
func (l *LightLab) Stop() { l.stop() }

// Logs returns the last n lines of each component's log.
func (l *LightLab) Logs(n int) string {
	files, err := filepath.Glob(filepath.Join(l.logs, "*", "*.log"))
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil {
			fmt.Fprintf(&b, "== %s\n%s\n", f, tail(string(text), n))
		}
	}
	return b.String()
}

// TB is what Light needs of a testing.TB.
type TB interface { //nolint:interfacebloat // what the function below calls
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(func())
	Failed() bool
	TempDir() string
	Context() context.Context
}

// Light gives a test n control planes of its own, which end with it. Where
// there can be none, the test is skipped with the reason.
func Light(t TB, n int) []*Cluster {
	t.Helper()
	if err := allowed(Options{Light: true}); err != nil {
		t.Skipf("%v", err)
	}
	l, err := StartLight(t.Context(), t.TempDir(), Options{Clusters: n}, func(s string) { t.Logf("lab: %s", s) })
	if err != nil {
		t.Fatalf("start light lab: %v", err)
	}
	t.Cleanup(func() {
		l.Stop()
		if t.Failed() {
			t.Logf("the control planes' last words:\n%s", l.Logs(5))
		}
	})
	return l.Clusters
}
