package charttest

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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
	for set, want := range map[string]string{
		"placement.by=Policy":       "no MutatingAdmissionPolicy",
		"placement.daemonSets=true": "placement.daemonSets needs",
	} {
		if _, err := template(t, "--kube-version=1.32.0", "--set="+set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s with Kubernetes 1.32: got %v, want %q", set, err, want)
		}
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
func TestPlacementWebhookHoldsNobodyUp(t *testing.T) {
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
