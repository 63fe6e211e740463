package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// TestASingleServiceIsImported imports a Service of abroad at home without offloading, by a
// contract for no pods: it is reached by its name at home and nothing else is, it follows its pods
// and survives the provider's agent, and it goes with the policy that exports it.
func TestASingleServiceIsImported(t *testing.T) {
	ctx, w := theStage.On(t)
	OK(t, w.Unpeer(ctx))
	db, dbService := Web("bank", "db", 2, Anywhere)
	own, ownService := Web("bank", "own", 1, Anywhere)
	OK(t, w.Abroad.CreateNamespace(ctx, "bank"))
	OK(t, w.Abroad.Create(ctx, db, dbService, own, ownService))
	policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a-bank"}}
	policy.Spec.Services = []v1alpha1.ServiceExports{{Namespace: "bank", Names: []string{"db"}}}
	OK(t, w.Abroad.Create(ctx, policy))
	OK(t, w.Home.CreateNamespace(ctx, "till"))
	imported := &v1alpha1.ImportedService{ObjectMeta: metav1.ObjectMeta{Namespace: "till", Name: "accounts"}, Spec: v1alpha1.ImportedServiceSpec{
		ForeignCluster: w.Abroad.Name, Service: v1alpha1.ServiceReference{Namespace: "bank", Name: "db"},
	}}
	t.Cleanup(func() {
		for s, objects := range map[*Side][]ctrlclient.Object{
			w.Abroad: {policy, namespaceNamed("bank")}, w.Home: {namespaceNamed("till")},
		} {
			for _, o := range objects {
				OK(t, ctrlclient.IgnoreNotFound(s.Client.Delete(context.WithoutCancel(ctx), o)))
			}
		}
	})
	OK(t, w.Home.Create(ctx, WebPod("till", "client", map[string]string{"app": "client"}), imported))
	OK(t, w.Join(ctx))
	_, err := w.Home.Entente(ctx, "peer", w.Abroad.Name, "--pods", "0")
	OK(t, err)
	_, err = w.Peered(ctx, Restarted)
	OK(t, err)
	if contract, _ := TheContract(ctx, t, w); contract.Spec.Exposure != peering.ExposureExported {
		t.Errorf("what was signed opens %q", contract.Spec.Exposure)
	}
	_, err = w.Home.PodsReady(ctx, Scheduled, "till", map[string]string{"app": "client"}, 1)
	OK(t, err)
	pods, err := w.Abroad.PodsReady(ctx, Scheduled, "bank", db.Spec.Template.Labels, 2)
	OK(t, err)
	const url = "http://accounts.till:8080/name"
	OK(t, w.Home.ReachesAll(ctx, Soon, "till", "client", url, pods))
	awaitImported(ctx, t, w, imported, "Imported", 2)

	// Nothing else is open: another port of the same pods, or pods that are not exported.
	peer, err := w.Home.Peer(ctx)
	OK(t, err)
	alias, err := Alias(peer, pods[0].Status.PodIP)
	OK(t, err)
	others, err := w.Abroad.PodsReady(ctx, Scheduled, "bank", own.Spec.Template.Labels, 1)
	OK(t, err)
	hidden, err := Alias(peer, others[0].Status.PodIP)
	OK(t, err)
	OK(t, w.Home.ReachesAll(ctx, Soon, "till", "client", "http://"+alias+":8080/name", pods[:1]))
	for what, closed := range map[string]string{"another port": alias + ":8081", "a pod that is not exported": hidden + ":8080"} {
		if out, err := w.Home.InPod(ctx, "till", "client", "/tool", "curl", "-t", "2s", "http://"+closed+"/name"); err == nil {
			t.Errorf("%s, %s, answers %q", what, closed, out)
		}
	}

	// It follows its pods, and the agent of the provider may start again meanwhile.
	_, err = w.Abroad.Kubectl(ctx, "-n", SystemNamespace, "rollout", "restart", "deployment/entente-agent")
	OK(t, err)
	_, err = w.Abroad.Kubectl(ctx, "-n", "bank", "scale", "deployment/db", "--replicas=3")
	OK(t, err)
	OK(t, w.Home.ReachesAll(ctx, Soon, "till", "client", url, pods[:1]))
	pods, err = w.Abroad.PodsReady(ctx, Scheduled, "bank", db.Spec.Template.Labels, 3)
	OK(t, err)
	OK(t, w.Home.ReachesAll(ctx, Restarted, "till", "client", url, pods))
	awaitImported(ctx, t, w, imported, "Imported", 3)

	// The policy is the provider's to change at any time.
	_, err = w.Abroad.Kubectl(ctx, "patch", "peeringpolicy", policy.Name, "--type=merge", "-p", `{"spec":{"services":[]}}`)
	OK(t, err)
	awaitImported(ctx, t, w, imported, "NotExported", 0)
	if out, err := w.Home.InPod(ctx, "till", "client", "/tool", "curl", "-t", "2s", "http://"+alias+":8080/name"); err == nil {
		t.Errorf("what is exported no longer answers %q", out)
	}
	OK(t, w.Home.Client.Delete(ctx, imported))
	OK(t, w.Until(ctx, Soon, "the imported Service to go", func(ctx context.Context) (string, error) {
		var services corev1.ServiceList
		var bindings rbacv1.RoleBindingList
		for _, list := range []ctrlclient.ObjectList{&services, &bindings} {
			if err := w.Home.Client.List(ctx, list, ctrlclient.InNamespace("till")); err != nil {
				return "", err
			}
		}
		if n := len(services.Items) + len(bindings.Items); n > 0 {
			return fmt.Sprintf("%d Services and RoleBindings are left", n), nil
		}
		return "", nil
	}))
	OK(t, w.Unpeer(ctx))
}

func namespaceNamed(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func awaitImported(ctx context.Context, t *testing.T, w *World, o *v1alpha1.ImportedService, reason string, endpoints int32) {
	t.Helper()
	OK(t, w.Until(ctx, Restarted, fmt.Sprintf("%s with %d endpoints", reason, endpoints), func(ctx context.Context) (string, error) {
		err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(o), o)
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionImported)
		if err != nil || c != nil && c.Reason == reason && o.Status.Endpoints == endpoints {
			return "", err
		}
		return fmt.Sprintf("its status is %+v", o.Status), nil
	}))
}
