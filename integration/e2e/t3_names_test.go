package e2e

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/integration/only"
)

// TestPodsAbroadResolveTheNamesOfHome asks for names from a pod abroad: it gets home's,
// in each form, while the provider has a namespace and a Service of the same name.
func TestPodsAbroadResolveTheNamesOfHome(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	// The provider's own shop/web and default/own.
	own := func(namespace, name string) *corev1.Service {
		_, s := Web(namespace, name, 0, Anywhere)
		return s
	}
	theirs := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}
	OK(t, w.Abroad.Create(ctx, theirs, own(shop, "web"), own("default", "own")))
	t.Cleanup(func() {
		after := context.WithoutCancel(t.Context())
		OK(t, w.Abroad.Client.Delete(after, theirs))
		OK(t, w.Abroad.Client.Delete(after, own("default", "own")))
	})
	Offloaded(ctx, t, w, shop)
	web, webService := Web(shop, "web", 1, AtHome)
	db, dbService := set(shop, "db", 2)
	OK(t, w.Home.Create(ctx, web, webService, db, dbService))
	webs, err := w.Home.PodsReady(ctx, Scheduled, shop, web.Labels, 1)
	OK(t, err)
	dbs, err := w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 2)
	OK(t, err)
	from := dbs[0]
	twin, err := w.Abroad.Twin(ctx, &from)
	OK(t, err)
	var reflected, provider corev1.Service
	OK(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: twin.Namespace, Name: "web"}, &reflected))
	OK(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: shop, Name: "web"}, &provider))

	resolves := func(t *testing.T) {
		t.Helper()
		for _, name := range []string{"web", "web.shop", "web.shop.svc", "web.shop.svc.cluster.local", "web.shop.svc.cluster.local."} {
			out, err := w.Abroad.InPod(ctx, twin.Namespace, twin.Name, "/tool", "dig", name)
			OK(t, err)
			if got := strings.TrimSpace(out); got != reflected.Spec.ClusterIP || got == provider.Spec.ClusterIP {
				t.Errorf("%s is %q; want %s, and not the provider's own %s", name, got, reflected.Spec.ClusterIP, provider.Spec.ClusterIP)
			}
		}
		for _, p := range dbs {
			there, err := w.Abroad.Twin(ctx, &p)
			OK(t, err)
			for _, name := range []string{p.Name + ".db", p.Name + ".db.shop.svc.cluster.local"} {
				out, err := w.Abroad.InPod(ctx, twin.Namespace, twin.Name, "/tool", "dig", name)
				OK(t, err)
				if got := strings.TrimSpace(out); got != there.Status.PodIP {
					t.Errorf("%s is %q; want %s", name, got, there.Status.PodIP)
				}
			}
		}
	}
	t.Run("each form of a name is home's", resolves)
	t.Run("and leads there", func(t *testing.T) {
		for _, name := range []string{"web", "web.shop", "web.shop.svc.cluster.local"} {
			OK(t, w.Home.ReachesAll(ctx, Soon, shop, from.Name, "http://"+name+":8080/name", webs))
		}
		for i := range dbs {
			OK(t, w.Home.ReachesAll(ctx, Soon, shop, from.Name, "http://"+dbs[i].Name+".db.shop.svc.cluster.local:8080/name", dbs[i:i+1]))
		}
	})
	t.Run("an ExternalName Service leads where it does at home", func(t *testing.T) {
		aliases := map[string]string{"front": "web.shop.svc.cluster.local", "first": dbs[0].Name + ".db.shop.svc.cluster.local.", "api": "own.default.svc.cluster.local"}
		for name, target := range aliases {
			OK(t, w.Home.Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target},
			}))
		}
		OK(t, w.Home.ReachesAll(ctx, Soon, shop, from.Name, "http://front:8080/name", webs))
		OK(t, w.Home.ReachesAll(ctx, Soon, shop, from.Name, "http://first.shop:8080/name", dbs[:1]))
		OK(t, w.Until(ctx, Soon, "the Service api to be at the provider", func(ctx context.Context) (string, error) {
			var there corev1.Service
			err := w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: twin.Namespace, Name: "api"}, &there)
			if err == nil && (there.Spec.Type != corev1.ServiceTypeClusterIP || there.Spec.ClusterIP != corev1.ClusterIPNone) {
				t.Errorf("it is %+v there", there.Spec)
			}
			return "", err
		}))
		if out, err := w.Abroad.InPod(ctx, twin.Namespace, twin.Name, "/tool", "dig", "api"); err == nil {
			t.Errorf("home's api leads to the provider's own Service: %s", out)
		}
	})
	t.Run("names of the provider do not resolve", func(t *testing.T) {
		for _, name := range []string{
			"own.default", "own.default.svc.cluster.local", "kubernetes.default.svc.cluster.local", "web." + twin.Namespace + ".svc.cluster.local",
			"entente-agent.entente-system.svc.cluster.local",
		} {
			if out, err := w.Abroad.InPod(ctx, twin.Namespace, twin.Name, "/tool", "dig", name); err == nil {
				t.Errorf("%s resolves to %s", name, out)
			}
		}
	})
	t.Run("without the provider's agent, too", func(t *testing.T) {
		only.Matrix(t, "a minute; what answers there is a Deployment of its own")
		scale := func(ctx context.Context, replicas string) {
			t.Helper()
			_, err := w.Abroad.Kubectl(ctx, "scale", "-n", SystemNamespace, "deployment/entente-agent", "--replicas="+replicas)
			OK(t, err)
		}
		t.Cleanup(func() {
			after := context.WithoutCancel(t.Context())
			scale(after, "1")
			OK(t, w.Abroad.AgentReady(after, Scheduled))
			_, err := w.Home.VirtualNodeReady(after, Scheduled)
			OK(t, err)
		})
		OK(t, w.Abroad.Kill(ctx, PartAgent))
		scale(ctx, "0")
		OK(t, w.Until(ctx, Soon, "the provider's agent to be gone", func(ctx context.Context) (string, error) {
			pods, err := w.Abroad.Pods(ctx, SystemNamespace, map[string]string{"app.kubernetes.io/component": "agent"})
			if err != nil || len(pods) == 0 {
				return "", err
			}
			return PodText(&pods[0]), nil
		}))
		resolves(t)
	})
}

// set is a StatefulSet of the lab's server, abroad, and its headless Service.
func set(namespace, name string, replicas int32) (*appsv1.StatefulSet, *corev1.Service) {
	d, s := Web(namespace, name, replicas, Away)
	s.Spec.ClusterIP = corev1.ClusterIPNone
	return &appsv1.StatefulSet{
		ObjectMeta: d.ObjectMeta,
		Spec: appsv1.StatefulSetSpec{
			ServiceName: name, Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template,
			PodManagementPolicy: appsv1.ParallelPodManagement,
		},
	}, s
}
