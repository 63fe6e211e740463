package twonodes

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/integration/e2e"
)

// TestAPIServerThatChecksKubelets has `kubectl logs` and `exec` pass a virtual node
// where the API server knows the cluster's authority only: with a certificate of that
// authority, and not with one of Entente's own.
func TestAPIServerThatChecksKubelets(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	_, err := w.Home.Kubectl(ctx, "logs", "-n", e2e.SystemNamespace, "daemonset/entente-fabric", "--tail=1")
	ok(t, err) // real kubelets are known
	logs := func(ctx context.Context) (string, error) {
		return w.Home.Kubectl(ctx, "logs", "-n", shop, s.out.Name)
	}
	_, err = logs(ctx)
	ok(t, e2e.Ended(err, "x509: certificate signed by unknown authority"))

	_, err = w.Home.Helm(ctx, append(w.InstallArgs(w.Home), "--set", "agent.kubeletCertificate=Cluster")...)
	ok(t, err)
	ok(t, w.Until(ctx, e2e.Restarted, "kubectl logs to work", func(ctx context.Context) (string, error) {
		text, err := logs(ctx)
		if err == nil && !strings.Contains(text, "GET /name") {
			return "the log has no request:\n" + text, nil
		}
		return "", err
	}))
	text, err := w.Home.InPod(ctx, shop, s.out.Name, "/tool", "env")
	ok(t, err)
	if !strings.Contains(text, "POD_NAME="+s.out.Name+"\n") {
		t.Errorf("exec printed\n%s", text)
	}
}

// TestProvidersNamesResolveWhereTheyAreVisible is the other half of what package e2e shows of
// names: there the provider's are hidden.
func TestProvidersNamesResolveWhereTheyAreVisible(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	// The provider's own default/own, and shop/inn, which is home's to pods of home.
	_, own := e2e.Web("default", "own", 0, e2e.Anywhere)
	theirs := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}
	_, hidden := e2e.Web(shop, "inn", 0, e2e.Anywhere)
	ok(t, w.Abroad.Create(ctx, own, theirs, hidden))
	t.Cleanup(func() {
		after := context.WithoutCancel(ctx)
		for _, o := range []ctrlclient.Object{own, theirs} {
			ok(t, w.Abroad.Client.Delete(after, o))
		}
	})
	for name, want := range map[string]string{
		"own.default": own.Spec.ClusterIP, "own.default.svc.cluster.local": own.Spec.ClusterIP,
		"kubernetes.default.svc.cluster.local": w.Abroad.Plan.APIService.String(),
		"inn":                                  s.innAbroad, "inn.shop.svc.cluster.local": s.innAbroad,
	} {
		ok(t, w.Until(ctx, e2e.Soon, name+" to resolve", func(ctx context.Context) (string, error) {
			out, err := w.Abroad.InPod(ctx, s.twin.Namespace, s.twin.Name, "/tool", "dig", name)
			if got := strings.TrimSpace(out); err == nil && got != want {
				return "it is " + got + ", want " + want, nil
			}
			return "", err
		}))
	}
}
