package pods

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	vke2e "github.com/virtual-kubelet/virtual-kubelet/test/e2e"

	. "github.com/entente-dev/entente/integration/e2e"
)

// TestVirtualKubelet runs the tests that the virtual-kubelet project has for providers.
func TestVirtualKubelet(t *testing.T) {
	ctx, w, node, _ := stage(t)
	const namespace = "provider"
	Offloaded(ctx, t, w, namespace, "--strategy", "Remote")
	changePods(ctx, t, w, namespace)
	table, err := readTable()
	OK(t, err)
	excluded := table.excluded(suiteVirtualKubelet)
	focus, err := regexp.Compile(only())
	OK(t, err)
	vke2e.NewEndToEndTestSuite(vke2e.EndToEndTestSuiteConfig{
		Kubeconfig: behind(t, w.Home, node, namespace), Namespace: namespace, NodeName: node, WatchTimeout: 2 * time.Minute,
		ShouldSkipTest: func(name string) bool { return excluded[name] != "" || !focus.MatchString(name) },
	}).Run(t)
	for name, why := range excluded {
		t.Logf("excluded: %s: %s", name, why)
	}
}

// asTheSuiteMeans changes pods of the tests. The nodes use the images that they have: those of the tests have no
// tag, for which Kubernetes asks a registry each time. And the pods, which the tests bind to the node by its
// name, tolerate its taint, without which they would be left alone.
const asTheSuiteMeans = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: as-the-suite-means}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          lists.range(size(object.spec.containers)).map(i,
            JSONPatch{op: "replace", path: "/spec/containers/" + string(i) + "/imagePullPolicy", value: "IfNotPresent"})
          + [has(object.spec.tolerations)
            ? JSONPatch{op: "add", path: "/spec/tolerations/-", value: Object.spec.tolerations{key: "entente.dev/virtual-node", operator: "Exists", effect: "NoSchedule"}}
            : JSONPatch{op: "add", path: "/spec/tolerations", value: [Object.spec.tolerations{key: "entente.dev/virtual-node", operator: "Exists", effect: "NoSchedule"}]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: as-the-suite-means}
spec:
  policyName: as-the-suite-means
  matchResources:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
`

// changePods makes that policy, for one namespace, while the test runs.
func changePods(ctx context.Context, t *testing.T, w *World, namespace string) {
	t.Helper()
	s := w.Home
	file := filepath.Join(t.TempDir(), "policy.yaml")
	OK(t, os.WriteFile(file, []byte(strings.ReplaceAll(asTheSuiteMeans, "NAMESPACE", namespace)), 0o600))
	_, err := s.Kubectl(ctx, "apply", "-f", file)
	OK(t, err)
	t.Cleanup(func() {
		_, err := s.Kubectl(context.WithoutCancel(ctx), "delete", "-f", file)
		OK(t, err)
	})
	OK(t, w.Until(ctx, Soon, "the policy to act", func(ctx context.Context) (string, error) {
		// It is asked on a pod of the suite's kind, which is not made.
		out, err := s.Kubectl(ctx, "-n", namespace, "run", "asked", "--image=foo", "--dry-run=server", "-o", "jsonpath={.spec.containers[0].imagePullPolicy}",
			`--overrides={"spec":{"nodeName":"`+s.Node()+`"}}`)
		if err != nil || out == "IfNotPresent" {
			return "", err
		}
		return "pods have the pull policy " + out, nil
	}))
}
