package agent

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/kube"
)

// Who has the authority of the ConfigMap knows the nodes by what the Secret has, and no peer takes
// a node for the agent.
func TestNodesGetACertificateForReadersOfTheirMetrics(t *testing.T) {
	t.Parallel()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := identity.NewSource(identity.SourceConfig{Identity: id, LeafLife: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{cfg: Config{Namespace: "entente-system"}, source: source, direct: fake.NewClientBuilder().WithScheme(kube.Scheme()).Build()}
	read := func() (corev1.Secret, error) {
		if err := a.publishFabricCertificate(t.Context()); err != nil {
			t.Fatal(err)
		}
		var secret corev1.Secret
		err := a.direct.Get(t.Context(), client.ObjectKey{Namespace: "entente-system", Name: v1alpha1.FabricCertificate}, &secret)
		return secret, err
	}
	if _, err := read(); err == nil {
		t.Error("nodes without metrics have a certificate")
	}
	a.cfg.NodeMetrics = true
	secret, err := read()
	if err != nil {
		t.Fatal(err)
	}
	if secret.Type != corev1.SecretTypeTLS || secret.Labels[v1alpha1.LabelManaged] != v1alpha1.Manager {
		t.Errorf("it is a Secret %s with the labels %v, which an uninstall does not find", secret.Type, secret.Labels)
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(source.Identity().RootPEM()) {
		t.Fatal("no roots")
	}
	for name, want := range map[string]bool{"entente-fabric.entente-system.svc": true, "entente-fabric": true, "entente-agent.entente-system.svc": false, "localhost": false} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != want {
			t.Errorf("%s: %v, want %t", name, err, want)
		}
	}
	if len(pair.Leaf.URIs) > 0 {
		t.Errorf("it has the identity %v", pair.Leaf.URIs)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("it is good for clients")
	}
}
