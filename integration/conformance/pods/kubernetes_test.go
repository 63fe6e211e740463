package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

// shards is how many tests of Kubernetes run at once: they wait for most of their time.
const shards = 8

// takenAway is for how long the clusters may be taken away before the test's time is over.
const takenAway = 90 * time.Second

// spec is a test as Ginkgo reports it.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

// readReport returns the tests of a report, without what was not in focus.
func readReport(file string) (out []spec, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var reports []struct{ SpecReports []spec }
	if err := json.Unmarshal(text, &reports); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	for _, r := range reports {
		for _, s := range r.SpecReports {
			if s.LeafNodeType == "It" && s.State != "skipped" || s.State == "failed" || s.Failure.Message != "" {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// TestKubernetes runs those of Kubernetes' end-to-end tests that are listed, and sees to it that each
// that is part of Kubernetes' conformance, of the packages that are built, is either listed or excluded.
func TestKubernetes(t *testing.T) {
	ctx, w, node, binaries := stage(t)
	table, err := readTable()
	OK(t, err)
	excluded := table.excluded(suiteKubernetes)
	dir := results(t, w)
	t.Logf("reports are in %s", dir)
	accounted(ctx, t, binaries, dir, table)
	focus, err := regexp.Compile(only())
	OK(t, err)
	parts := make([][]string, shards)
	for i, name := range slices.DeleteFunc(slices.Clone(table.included), func(n string) bool { return !focus.MatchString(n) }) {
		parts[i%shards] = append(parts[i%shards], name)
	}
	kubectl, err := lab.BinaryPath(ctx, "kubectl", w.Waiting)
	OK(t, err)
	kubeconfig := behind(t, w.Home, node, "default")
	limit := 80 * time.Minute
	if end, ends := t.Deadline(); ends {
		limit = min(limit, time.Until(end)-takenAway)
	}
	begin := time.Now()
	var running sync.WaitGroup
	for i, names := range parts {
		running.Go(func() {
			out := filepath.Join(dir, fmt.Sprintf("part-%d", i))
			if err := runKubernetes(ctx, binaries, kubeconfig, kubectl, out, limit, names); err != nil {
				t.Logf("part %d: %v", i, err)
			}
		})
	}
	running.Wait()
	judge(t, dir, parts)
	t.Logf("%s in %.0f min; %d are excluded", plural(len(slices.Concat(parts...)), "test"), time.Since(begin).Minutes(), len(excluded))
}

// runKubernetes runs some tests one after the other, and writes out.log and out.json.
func runKubernetes(ctx context.Context, binaries, kubeconfig, kubectl, out string, limit time.Duration, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := os.WriteFile(out+".txt", []byte(strings.Join(names, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "e2e"),
		"-tests", out+".txt", "-kubeconfig", kubeconfig, "-kubectl-path", kubectl, "-provider", "skeleton",
		"-ginkgo.no-color", "-ginkgo.v", "-ginkgo.timeout", limit.String(), "-ginkgo.json-report", out+".json",
		"-kube-api-content-type", "application/json", "-non-blocking-taints", "entente.dev/virtual-node", "-dump-logs-on-failure=false", "-e2e-output-dir", filepath.Dir(out))
	log, err := os.Create(out + ".log")
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	return errors.Join(cmd.Run(), log.Close())
}

// judge fails the test for each listed test that did not pass.
func judge(t *testing.T, dir string, parts [][]string) {
	t.Helper()
	for i, names := range parts {
		if len(names) == 0 {
			continue
		}
		ran, err := readReport(filepath.Join(dir, fmt.Sprintf("part-%d.json", i)))
		if err != nil {
			t.Errorf("part %d: %v", i, err)
			continue
		}
		passed := map[string]bool{}
		for _, s := range ran {
			if s.State == "passed" {
				t.Logf("passed in %.0f s: %s", s.RunTime.Seconds(), s.name())
				passed[s.name()] = true
				continue
			}
			t.Errorf("%s: %s: %s", s.State, s.name(), s.Failure.Message)
			passed[s.name()] = true // it was reported
		}
		for _, name := range names {
			if !passed[name] {
				t.Errorf("did not run: %s", name)
			}
		}
	}
}

// accounted compares the table with the tests that there are.
func accounted(ctx context.Context, t *testing.T, binaries, dir string, table table) {
	t.Helper()
	file := filepath.Join(dir, "all.json")
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "e2e"), "-ginkgo.dry-run", "-ginkgo.no-color", "-ginkgo.succinct", "-ginkgo.skip", "^$", "-provider", "skeleton", "-ginkgo.json-report", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("list the tests: %v\n%s", err, out)
	}
	all, err := readReport(file)
	OK(t, err)
	there := map[string]bool{}
	excluded := table.excluded(suiteKubernetes)
	for _, s := range all {
		there[s.name()] = true
		_, out := excluded[s.name()]
		if strings.Contains(s.name(), "[Conformance]") && !out && !slices.Contains(table.included, s.name()) {
			t.Errorf("neither listed nor excluded: %s", s.name())
		}
	}
	for _, name := range table.included {
		if !there[name] {
			t.Errorf("listed, but no test: %s", name)
		}
	}
	for name := range excluded {
		if !there[name] {
			t.Errorf("excluded, but no test: %s", name)
		}
	}
}
