// Package conformance runs the conformance suite of the Multi-Cluster Services API against two
// clusters that share namespaces.
package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/mcs-api/config/crd"

	"github.com/entente-dev/entente/api/v1alpha1"
	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/peering"
)

var theStage = &Installed{
	Config: Config{Lab: "conformance", Values: []string{"multiclusterServices.enabled=true"}}, Patience: 40 * time.Minute,
}

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// excluded lists the parts of the suite that this implementation does not support, and why. All are
// labelled Optional there. docs/conformance.md has the same, by pods/excluded.txt.
var excluded = map[string]string{
	"DNS query of the <service>.<ns>.svc.clusterset.local domain for a headless service should return": addressesDiffer,
	"DNS SRV query of the <service>.<ns>.svc.clusterset.local domain for a headless service":           addressesDiffer,
}

const addressesDiffer = "it is optional, and compares addresses of pods, or names that are made of them, between clusters; " +
	"a cluster knows those of another by aliases, as both may use the same prefixes"

// TestDocsListWhatTheSuiteLeavesOut finds parts of the suite that docs/conformance.md does not list with the reason.
func TestDocsListWhatTheSuiteLeavesOut(t *testing.T) {
	text, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	var row string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| multicluster | ") && !strings.Contains(line, "kubernetes-sigs") {
			row = strings.ReplaceAll(line, `\<`, "<")
		}
	}
	for name, why := range excluded {
		if !strings.Contains(row, name) || !strings.Contains(row, why) {
			t.Errorf("docs/conformance.md does not list %q, because %s: write it into pods/excluded.txt", name, why)
		}
	}
}

// TestMultiClusterServices runs the suite: its required tests, and the optional ones except those
// in excluded.
func TestMultiClusterServices(t *testing.T) {
	if os.Getenv("ENTENTE_CONFORMANCE") == "" {
		t.Skip("the suite takes ten minutes: make conformance")
	}
	ctx, w := theStage.On(t)
	share(ctx, t, w)
	t.Run("pods abroad resolve its names", func(t *testing.T) { abroadResolves(ctx, t, w) })
	t.Run("suite", func(t *testing.T) { runSuite(ctx, t, w) })
}

func runSuite(ctx context.Context, t *testing.T, w *World) {
	loadImages(ctx, t, w)
	suite := build(ctx, t)
	merged := kubeconfig(ctx, t, w)
	args := []string{"-contexts", merged.contexts, "-ginkgo.v", "-ginkgo.no-color", "-organization", "Entente", "-project", "Entente"}
	if only := os.Getenv("ENTENTE_CONFORMANCE_FOCUS"); only != "" {
		args = append(args, "-ginkgo.focus", only)
	}
	for text := range excluded {
		args = append(args, "-ginkgo.skip", regexp.QuoteMeta(text))
	}
	cmd := exec.CommandContext(ctx, suite, args...)
	cmd.Dir = filepath.Join(w.Root, ".build")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+merged.file)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("the suite: %v", err)
	}
	for text, why := range excluded {
		t.Logf("excluded: %s: %s", text, why)
	}
}

// share has the two clusters share all namespaces: the kinds, DNS, a policy and a contract in
// each direction.
func share(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	OK(t, w.Each(ctx, func(ctx context.Context, s *Side) error {
		dir := t.TempDir()
		for name, text := range map[string][]byte{"exports.yaml": crd.ServiceExportCRD, "imports.yaml": crd.ServiceImportCRD, "dns.yaml": []byte(dnsRights)} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				return err
			}
		}
		if _, err := s.Kubectl(ctx, "apply", "-f", dir); err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, "wait", "--for=condition=Established", "crd/serviceexports.multicluster.x-k8s.io", "crd/serviceimports.multicluster.x-k8s.io"); err != nil {
			return err
		}
		file, err := s.Kubectl(ctx, "-n", "kube-system", "get", "configmap/coredns", "-o", "jsonpath={.data.Corefile}")
		if err != nil {
			return err
		}
		if !strings.Contains(file, "clusterset.local") {
			file = strings.Replace(file, "kubernetes cluster.local", "kubernetes cluster.local clusterset.local", 1)
			file = strings.Replace(file, "        ttl 5\n", "        ttl 5\n        multicluster clusterset.local\n", 1)
			if _, err := s.Kubectl(ctx, "-n", "kube-system", "patch", "configmap/coredns", "--type=merge", "-p", fmt.Sprintf(`{"data":{"Corefile":%q}}`, file)); err != nil {
				return err
			}
			if _, err := s.Kubectl(ctx, "-n", "kube-system", "rollout", "restart", "deployment/coredns"); err != nil {
				return err
			}
			if _, err := s.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=2m"); err != nil {
				return err
			}
		}
		policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a-set"}}
		policy.Spec.ClusterSet = &v1alpha1.ClusterSet{}
		if err := ctrlclient.IgnoreAlreadyExists(s.Client.Create(ctx, policy)); err != nil {
			return err
		}
		// Where the kinds came after the agent it looks for them each minute.
		_, err = s.Kubectl(ctx, "-n", SystemNamespace, "rollout", "restart", "deployment/entente-agent")
		if err != nil {
			return err
		}
		_, err = s.Kubectl(ctx, "-n", SystemNamespace, "rollout", "status", "deployment/entente-agent", "--timeout=2m")
		return err
	}))
	OK(t, w.Join(ctx))
	for s, pods := range map[*Side]string{w.Home: "20", w.Abroad: "0"} {
		_, err := s.Entente(ctx, "peer", s.Other.Name, "--pods", pods)
		OK(t, err)
	}
	OK(t, w.BothWays(ctx, Restarted, func(string) {}, Pair{w.Home, w.Abroad}))
	for _, p := range (Pair{w.Home, w.Abroad}).Ways() {
		contracts, err := p[0].ContractsWith(ctx, p[1])
		OK(t, err)
		if c := contracts[v1alpha1.ContractConsumer]; c.Spec.Exposure != peering.ExposureExported {
			t.Errorf("what %s and %s signed opens %q", p[0].Name, p[1].Name, c.Spec.Exposure)
		}
	}
}

// dnsRights lets CoreDNS read what it answers for clusterset.local.
const dnsRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns-multicluster}
rules:
  - apiGroups: [multicluster.x-k8s.io]
    resources: [serviceimports]
    verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns-multicluster}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns-multicluster}
subjects:
  - {kind: ServiceAccount, name: coredns, namespace: kube-system}
`

// build builds the suite.
func build(ctx context.Context, t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "suite")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-buildvcs=false", "-o", path, ".")
	cmd.Dir = "testdata/suite"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the suite: %v\n%s", err, out)
	}
	return path
}

type kubeconfigs struct{ file, contexts string }

// kubeconfig returns where both clusters are, the exporting one first. Users have the same name in
// both clusters, so they get that of their context.
func kubeconfig(ctx context.Context, t *testing.T, w *World) kubeconfigs {
	t.Helper()
	both := clientcmdapi.NewConfig()
	var contexts []string
	for _, s := range []*Side{w.Abroad, w.Home} {
		text, err := s.Kubectl(ctx, "config", "view", "--raw", "--flatten", "--minify")
		OK(t, err)
		one, err := clientcmd.Load([]byte(text))
		OK(t, err)
		name := one.CurrentContext
		c := one.Contexts[name]
		both.Clusters[name], both.AuthInfos[name] = one.Clusters[c.Cluster], one.AuthInfos[c.AuthInfo]
		both.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
		contexts = append(contexts, name)
	}
	if contexts[0] == contexts[1] {
		t.Fatalf("both clusters' contexts are called %s", contexts[0])
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	OK(t, clientcmd.WriteToFile(*both, file))
	return kubeconfigs{file, strings.Join(contexts, ",")}
}
