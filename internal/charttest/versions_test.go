package charttest

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

// What lets pods onto virtual nodes is a policy where the API server has them, and else a webhook,
// of which nothing is there where it is not needed.
func TestPlacementFollowsTheAPIServer(t *testing.T) {
	t.Parallel()
	const beta = "--api-versions=admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"1.32":                         {[]string{"--kube-version=1.32.0"}, "webhook"},
		"1.33 of a distribution":       {[]string{"--kube-version=v1.33.4-gke.1234"}, "webhook"},
		"1.34 with the beta":           {[]string{"--kube-version=1.34.1", beta}, "v1beta1"},
		"1.35 without":                 {[]string{"--kube-version=1.35.0"}, "webhook"},
		"1.35 with it, and its gate":   {[]string{"--kube-version=1.35.0", beta, "--set=placement.by=Webhook"}, "webhook"},
		"1.36":                         {[]string{"--kube-version=1.36.0-eks-1"}, "v1"},
		"1.37, and a webhook is asked": {[]string{"--kube-version=1.37.1", "--set=placement.by=Webhook"}, "webhook"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := template(t, append(tc.args, "--set=networkPolicy.enabled=true")...)
			if err != nil {
				t.Fatal(err)
			}
			for what, in := range map[string]bool{
				"kind: MutatingWebhookConfiguration\n": tc.want == "webhook", "--placement-address": tc.want == "webhook",
				"containerPort: 7451": tc.want == "webhook", "port: placement, protocol": tc.want == "webhook",
				"apiVersion: admissionregistration.k8s.io/" + tc.want + "\nkind: MutatingAdmissionPolicy\n": tc.want != "webhook",
			} {
				if bytes.Contains(out, []byte(what)) != in {
					t.Errorf("%q is in the chart: %t, want %t", what, !in, in)
				}
			}
		})
	}
	if _, err := template(t, "--kube-version=1.32.0", "--set=placement.by=Policy"); err == nil || !strings.Contains(err.Error(), "no MutatingAdmissionPolicy") {
		t.Errorf("placement.by=Policy with Kubernetes 1.32: got %v", err)
	}
}

// DaemonSets are kept off virtual nodes by the webhook, too: it blocks none, and the agent may read them only then.
func TestWebhookForDaemonSetsBlocksNone(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]int{"placement.daemonSets=true": 2, "placement.daemonSets=false": 1} {
		found := render(t, "--kube-version=1.32.0", "--set="+set)
		hooks := one[*admissionv1.MutatingWebhookConfiguration](t, found, "entente-placement").Webhooks
		if len(hooks) != want {
			t.Fatalf("%s: %d webhooks, want %d", set, len(hooks), want)
		}
		reads := slices.ContainsFunc(one[*rbacv1.ClusterRole](t, found, "entente-agent").Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Equal(r.Resources, []string{"daemonsets"}) && slices.Equal(r.Verbs, []string{"get"})
		})
		if reads != (want == 2) {
			t.Errorf("%s: the agent may read DaemonSets: %t", set, reads)
		}
		for _, w := range hooks[1:] {
			if *w.FailurePolicy != admissionv1.Ignore || *w.TimeoutSeconds > 2 || *w.SideEffects != admissionv1.SideEffectClassNoneOnDryRun ||
				!slices.Equal(w.Rules[0].Resources, []string{"daemonsets"}) || len(w.MatchConditions) != 2 {
				t.Errorf("it is %+v", w)
			}
		}
	}
}

// An API server asks the webhook about DaemonSets, and keeps those that tolerate everything off virtual nodes.
func TestDaemonSetsAreKeptOffByTheWebhookOnARealAPIServer(t *testing.T) {
	c := newCluster(t)
	if err := c.upgrade("--set", "placement.by=Webhook", "--set", "placement.daemonSets=true"); err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 100)
	hook := httptest.NewTLSServer(&placement.Webhook{Log: slog.New(slog.DiscardHandler), KeptOff: func(namespace, name string) { told <- namespace + "/" + name }})
	t.Cleanup(hook.Close)
	var config admissionv1.MutatingWebhookConfiguration
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: "entente-placement"}, &config); err != nil {
		t.Fatal(err)
	}
	config.Webhooks[1].ClientConfig = admissionv1.WebhookClientConfig{
		URL: new(hook.URL + placement.Path), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}),
	}
	if err := c.admin.Update(t.Context(), &config); err != nil {
		t.Fatal(err)
	}
	c.testNewDaemonSets(t)
	if len(told) > 0 {
		t.Errorf("a dry run is reported: %s", <-told)
	}
	ns := newNamespace(nil)
	set := newDaemonSet(ns.Name, nil, corev1.Toleration{Operator: "Exists"})
	c.create(t, ns, set)
	if got := <-told; got != ns.Name+"/"+set.Name || goesToVirtualNodes(t, set) {
		t.Errorf("reported is %s, and its affinity %v", got, set.Spec.Template.Spec.Affinity)
	}
}

// Kubernetes 1.32 does not know macros of CEL that have two variables: the chart would not install.
func TestChartHasNoExpressionsOfLaterVersions(t *testing.T) {
	t.Parallel()
	out, err := template(t, "--kube-version=1.32.0", "--set=agent.kubeletCertificate=Cluster", "--set=cluster.podCIDRs={10.1.0.0/16}")
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`\.(all|exists|existsOne|transformList|transformMap|transformMapEntry)\(\s*\w+\s*,\s*\w+\s*,.*`).FindAll(out, -1); found != nil {
		t.Errorf("macros with two variables: %s", bytes.Join(found, []byte("; ")))
	}
}

// The webhook is asked of pods of offloaded namespaces alone, cannot keep one from being created,
// and the agent serves what the API server trusts.
func TestPlacementWebhookBlocksNoPods(t *testing.T) {
	t.Parallel()
	found := render(t, "--kube-version=1.32.0")
	config := one[*admissionv1.MutatingWebhookConfiguration](t, found, "entente-placement")
	if len(config.Webhooks) != 1 {
		t.Fatalf("%d webhooks, want one", len(config.Webhooks))
	}
	w := config.Webhooks[0]
	if *w.FailurePolicy != admissionv1.Ignore || *w.TimeoutSeconds > 2 || *w.SideEffects != admissionv1.SideEffectClassNone {
		t.Errorf("its failure policy is %s, its timeout %d s, its side effects %s", *w.FailurePolicy, *w.TimeoutSeconds, *w.SideEffects)
	}
	if w.NamespaceSelector == nil || w.NamespaceSelector.MatchLabels["entente.dev/offloading"] != "enabled" || len(w.Rules) != 1 ||
		!slices.Equal(w.Rules[0].Resources, []string{"pods"}) || !slices.Equal(w.Rules[0].Operations, []admissionv1.OperationType{admissionv1.Create}) {
		t.Errorf("it is asked of %+v in namespaces %+v", w.Rules, w.NamespaceSelector)
	}
	secret := one[*corev1.Secret](t, found, "entente-placement")
	roots := x509.NewCertPool()
	block, _ := pem.Decode(secret.Data["tls.crt"])
	if !roots.AppendCertsFromPEM(w.ClientConfig.CABundle) || block == nil {
		t.Fatal("there is no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: w.ClientConfig.Service.Name + "." + w.ClientConfig.Service.Namespace + ".svc"}); err != nil {
		t.Error(err)
	}
	agent := one[*appsv1.Deployment](t, found, "entente-agent").Spec.Template.Spec
	if !slices.ContainsFunc(agent.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == secret.Name }) {
		t.Error("the agent does not have the certificate")
	}
}

// The policy in the version that API servers before 1.36 serve where their owner turned it on.
// It is the same object of the API server, so this one, which has version 1 too, takes it.
func TestPlacementByTheBetaOnARealAPIServer(t *testing.T) {
	const beta = "admissionregistration.k8s.io/v1beta1"
	c := clusterOf(t, startAPIServer(t, beta+"=true"))
	if err := c.upgrade("--set", "placement.enabled=false"); err != nil {
		t.Fatal(err)
	}
	out, err := template(t, "--kube-version=1.34.1", "--api-versions="+beta+"/MutatingAdmissionPolicy")
	if err != nil {
		t.Fatal(err)
	}
	var policies [][]byte
	for document := range bytes.SplitSeq(out, []byte("\n---\n")) {
		if bytes.Contains(document, []byte("\nkind: MutatingAdmissionPolicy")) {
			if !bytes.Contains(document, []byte("apiVersion: "+beta+"\n")) {
				t.Errorf("it is of another version:\n%s", document)
			}
			policies = append(policies, document)
		}
	}
	if len(policies) < 2 {
		t.Fatalf("the chart has %d policies and bindings", len(policies))
	}
	apply := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "--kubeconfig", c.kubeconfig, "create", "-f", "-")
	apply.Stdin = bytes.NewReader(bytes.Join(policies, []byte("\n---\n")))
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("kubectl create: %v\n%s", err, out)
	}
	c.testPlacement(t)
}

// With nothing of ours running, including a webhook without a server, pods of other namespaces
// are created as ever, and those of offloaded ones as their owner wrote them.
func TestPodsAreCreatedWhileTheWebhookIsDownOnARealAPIServer(t *testing.T) {
	c := newCluster(t)
	if err := c.upgrade("--set", "placement.by=Webhook"); err != nil {
		t.Fatal(err)
	}
	var config admissionv1.MutatingWebhookConfiguration
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: "entente-placement"}, &config); err != nil {
		t.Fatal(err)
	}
	elsewhere, offloaded := newNamespace(nil), newNamespace(labels(v1alpha1.LabelOffloading, "enabled"))
	c.create(t, elsewhere, offloaded)
	for name, n := range map[string]int{elsewhere.Name: 1000, offloaded.Name: 20} {
		for i := range n {
			pod := newPod(name, corev1.PodSpec{})
			if err := c.admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
				t.Fatalf("pod %d of %d in namespace %s: %v", i+1, n, name, err)
			}
			if pod.Spec.Affinity != nil || len(pod.Spec.Tolerations) > 2 {
				t.Fatalf("pod %d in namespace %s was changed: %v %v", i+1, name, pod.Spec.Tolerations, pod.Spec.Affinity)
			}
		}
	}
}
