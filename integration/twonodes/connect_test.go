package twonodes

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestTunnelEndsAndReturnsWithoutTheRest: a pod at home reaches one abroad over the tunnel, not
// without it, and again with it; the contract and the pod live on throughout. The provider
// has a tunnel alone to its consumer meanwhile.
func TestTunnelEndsAndReturnsWithoutTheRest(t *testing.T) {
	only.Matrix(t, "two minutes")
	ctx, s := onStage(t)
	w := s.World
	ok(t, s.outAnswers(ctx))
	ok(t, w.Until(ctx, e2e.Restarted, "the contract to count its pods", func(ctx context.Context) (string, error) {
		contracts, err := w.Home.Contracts(ctx, v1alpha1.ContractConsumer)
		if !slices.ContainsFunc(contracts, func(c v1alpha1.Contract) bool { return c.Status.Pods > 0 }) {
			return "it counts none", err
		}
		return "", err
	}))
	t.Cleanup(func() {
		after := context.WithoutCancel(ctx)
		_, err := w.Home.Entente(after, "network", "connect", w.Abroad.Name)
		ok(t, err)
		ok(t, s.outAnswers(after))
	})
	_, err := w.Home.Entente(ctx, "network", "disconnect", w.Abroad.Name)
	ok(t, e2e.Ended(err, "would lose the network"))

	_, err = w.Home.Entente(ctx, "network", "disconnect", w.Abroad.Name, "--force")
	ok(t, err)
	if answers, err := w.Home.Answers(ctx, shop, s.inn.Name, 2, "http://"+s.out.Status.PodIP+":8080/name"); err == nil {
		t.Errorf("without a tunnel the pod abroad answers: %v", answers)
	}
	var out corev1.Pod
	ok(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(&s.out), &out))
	if out.UID != s.out.UID || out.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod abroad is %s, %s; want it to run on", out.UID, out.Status.Phase)
	}

	text, err := w.Abroad.Entente(ctx, "network", "connect", w.Home.Name)
	ok(t, err)
	if !strings.Contains(text, "Traffic passes through the tunnel") {
		t.Errorf("connect printed\n%s", text)
	}
	if answers, err := w.Home.Answers(ctx, shop, s.inn.Name, 2, "http://"+s.out.Status.PodIP+":8080/name"); err == nil {
		t.Logf("by the tunnel that the provider asked for, the pod abroad answers: %v", answers)
	}
	_, err = w.Home.Entente(ctx, "network", "connect", w.Abroad.Name)
	ok(t, err)
	ok(t, s.outAnswers(ctx))
	_, err = w.Abroad.Entente(ctx, "network", "disconnect", w.Home.Name)
	ok(t, e2e.Ended(err, "the tunnel stays"))
	ok(t, s.outAnswers(ctx))
	text, err = w.Abroad.Entente(ctx, "network", "disconnect", w.Home.Name)
	ok(t, e2e.Ended(err, "the tunnel stays"))
	if !strings.Contains(text, "for no tunnel: nothing to end") {
		t.Errorf("the second time disconnect printed\n%s", text)
	}
}
