package charttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// namespace is where the chart is installed.
const namespace = "entente-system"

// live ends the name of each test that starts an API server: `make live` runs these and
// no others.
const live = "OnARealAPIServer"

// needAPIServer skips a test that starts an API server with the chart in it, unless
// there are etcd, kube-apiserver and kubectl in KUBEBUILDER_ASSETS, and helm. With
// ENTENTE_LIVE=must it fails the test: a run that asks for it must not skip it.
func needAPIServer(t *testing.T) {
	t.Helper()
	if name, _, _ := strings.Cut(t.Name(), "/"); !strings.HasSuffix(name, live) {
		t.Fatalf("%s starts an API server: its name has to end with %s", name, live)
	}
	err := lookForAPIServer(helmPath(t), os.Getenv("KUBEBUILDER_ASSETS"))
	switch {
	case err == nil:
	case os.Getenv("ENTENTE_LIVE") == "must":
		t.Fatal(err)
	default:
		t.Skipf("%v: make live has them all", err)
	}
}

func lookForAPIServer(helm, assets string) error {
	if assets == "" {
		return errors.New("KUBEBUILDER_ASSETS names no directory with etcd, kube-apiserver and kubectl")
	}
	for _, program := range []string{filepath.Join(assets, "etcd"), filepath.Join(assets, "kube-apiserver"), filepath.Join(assets, "kubectl"), helm} {
		if _, err := os.Stat(program); err != nil {
			return fmt.Errorf("find the binaries of an API server: %w", err)
		}
	}
	return nil
}

// An APIServer is one of its own, with the chart in entente-system, until the test ends:
// what the test does there is held to the rights and policies that users get. Nothing of
// the chart runs.
type APIServer struct {
	// Owner may do everything; KubeConfig is the same as a file.
	Owner      *rest.Config
	KubeConfig []byte
	// Upgrade upgrades the chart, with helm's arguments.
	Upgrade func(args ...string) error
}

// As returns how one of the chart's ServiceAccounts reaches the API server.
func (s APIServer) As(account string) *rest.Config {
	as := rest.CopyConfig(s.Owner)
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return as
}

// StartAPIServer starts an API server with the chart in it, or skips the test: see
// needAPIServer.
func StartAPIServer(t *testing.T) APIServer {
	t.Helper()
	return startAPIServer(t, "")
}

// startAPIServer is StartAPIServer with versions of APIs that the server does not serve by
// itself, as its flag --runtime-config has them.
func startAPIServer(t *testing.T, versions string) APIServer {
	t.Helper()
	needAPIServer(t)
	env := &envtest.Environment{}
	if versions != "" {
		env.ControlPlane.GetAPIServer().Configure().Set("runtime-config", versions)
	}
	owner, err := env.Start()
	if err != nil {
		t.Fatalf("start API server: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop API server: %v", err)
		}
	})
	owner.QPS = -1
	return APIServer{Owner: owner, KubeConfig: env.KubeConfig, Upgrade: install(t, env.KubeConfig)}
}

func install(t *testing.T, kubeconfig []byte) (upgrade func(args ...string) error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, program string, args ...string) error {
		out, err := exec.CommandContext(ctx, program, append(args, "--namespace", namespace, "--kubeconfig", path)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), args[0], err, out)
		}
		return nil
	}
	helm, kubectl := helmPath(t), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	chart := filepath.Join(repository(t), "charts", "entente")
	// The API server makes it a moment after it is ready, and the chart has a role there.
	if err := run(t.Context(), kubectl, "wait", "--for=create", "--timeout=1m", "namespace/kube-node-lease"); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), helm, "upgrade", "--install", "entente", chart, "--create-namespace"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The hook is for agents that run.
		if err := run(context.WithoutCancel(t.Context()), helm, "uninstall", "entente", "--no-hooks"); err != nil {
			t.Error(err)
		}
	})
	upgrade = func(args ...string) error {
		return run(t.Context(), helm, append([]string{"upgrade", "entente", chart, "--reset-values"}, args...)...)
	}
	// The second time nothing is new: an upgrade has to work too.
	if err := upgrade(); err != nil {
		t.Fatal(err)
	}
	return upgrade
}

// helmPath returns where helm is, or should be.
func helmPath(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ENTENTE_HELM"); path != "" {
		return path
	}
	return filepath.Join(repository(t), ".build", "bin", "helm")
}

// repository returns the folder of the repository: the first with a go.mod above
// the test's own.
func repository(t *testing.T) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir := wd; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatalf("no go.mod above %s: run the tests in a clone of the repository", wd)
	return ""
}
