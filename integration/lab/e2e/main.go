// Command e2e is those of Kubernetes' end-to-end tests that are of pods and what pods are used by. Only
// what is here is ours: it has each namespace of a test offloaded as soon as it is there.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	clientset "k8s.io/client-go/kubernetes"
	conformancetestdata "k8s.io/kubernetes/test/conformance/testdata"
	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/common/network"
	_ "k8s.io/kubernetes/test/e2e/common/node"
	_ "k8s.io/kubernetes/test/e2e/common/storage"
	_ "k8s.io/kubernetes/test/e2e/feature"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/kubectl"
	_ "k8s.io/kubernetes/test/e2e/network"
	_ "k8s.io/kubernetes/test/e2e/node"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	testfixtures "k8s.io/kubernetes/test/fixtures"
	_ "k8s.io/kubernetes/test/utils/ktesting/format"
)

// suite is the text that Ginkgo puts before that of a test when it looks for those in focus.
const suite = "Kubernetes on a virtual node"

func main() {
	tests := flag.String("tests", "", "`file` with the tests to run, one a line")
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	for _, fs := range []testfiles.FileSource{
		e2etestingmanifests.GetE2ETestingManifestsFS(), testfixtures.GetTestFixturesFS(), conformancetestdata.GetConformanceTestdataFS(),
	} {
		testfiles.AddFileSource(fs)
	}
	framework.AfterReadingAllFlags(&framework.TestContext)
	framework.TestContext.CreateTestingNS = offloaded
	gomega.RegisterFailHandler(framework.Fail)
	suiteConfig, reporterConfig := framework.CreateGinkgoConfig()
	if *tests != "" {
		text, err := os.ReadFile(*tests)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for name := range strings.Lines(string(text)) {
			suiteConfig.FocusStrings = append(suiteConfig.FocusStrings, "^"+regexp.QuoteMeta(suite+" "+strings.TrimSpace(name))+"$")
		}
	}
	if !ginkgo.RunSpecs(nobody{}, suite, suiteConfig, reporterConfig) {
		os.Exit(1)
	}
}

// nobody ignores failures of the suite, which RunSpecs returns, too.
type nobody struct{}

func (nobody) Fail() {}

var offloadings = schema.GroupVersionResource{Group: "entente.dev", Version: "v1alpha1", Resource: "namespaceoffloadings"}

// offloaded makes a namespace for a test, and waits until its pods run in the other cluster.
func offloaded(ctx context.Context, baseName string, c clientset.Interface, labels map[string]string) (*corev1.Namespace, error) {
	ns, err := framework.CreateTestingNS(ctx, baseName, c, labels)
	if err != nil {
		return ns, err
	}
	restConfig, err := framework.LoadConfig()
	if err != nil {
		return ns, err
	}
	d, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return ns, err
	}
	if _, err := d.Resource(offloadings).Namespace(ns.Name).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "entente.dev/v1alpha1", "kind": "NamespaceOffloading",
		"metadata": map[string]any{"name": "offloading"}, "spec": map[string]any{"podStrategy": "Remote"},
	}}, metav1.CreateOptions{}); err != nil {
		return ns, fmt.Errorf("offload namespace %s: %w", ns.Name, err)
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return placed(ctx, c, ns.Name)
	})
	if err != nil {
		return ns, fmt.Errorf("wait for namespace %s to be offloaded: %w", ns.Name, err)
	}
	return ns, nil
}

// placed asks the API server, without making anything, whether a new pod would be let onto a virtual
// node: its admission learns of the NamespaceOffloading a moment after the agent.
func placed(ctx context.Context, c clientset.Interface, namespace string) (bool, error) {
	no := false
	pod, err := c.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "placed-"},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			SecurityContext:              &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "placed", Image: "placed", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		framework.Logf("namespace %s: %v", namespace, err)
		return false, nil
	}
	for _, t := range pod.Spec.Tolerations {
		if t.Key == "entente.dev/virtual-node" {
			return true, nil
		}
	}
	return false, nil
}
