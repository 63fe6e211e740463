package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/entente-dev/entente/integration/e2e"
)

// abroadResolves has a pod of home that runs abroad use Services of home's cluster set by their
// names: endpoints of both clusters, the provider's own among them.
func abroadResolves(ctx context.Context, t *testing.T, w *World) {
	const shop = "shop"
	OK(t, w.Abroad.CreateNamespace(ctx, shop))
	t.Cleanup(func() {
		OK(t, w.Abroad.Client.Delete(context.WithoutCancel(ctx), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}))
	})
	Offloaded(ctx, t, w, shop)
	for s, where := range map[*Side]Where{w.Home: AtHome, w.Abroad: Anywhere} {
		hello, helloService := Web(shop, "hello", 1, where)
		db, dbService := set(shop, "db", where)
		OK(t, s.Create(ctx, hello, helloService, db, dbService))
		for _, name := range []string{"hello", "db"} {
			file := filepath.Join(t.TempDir(), "export.yaml")
			OK(t, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata: {name: %s, namespace: %s}\n", name, shop), 0o600))
			_, err := s.Kubectl(ctx, "create", "-f", file)
			OK(t, err)
		}
	}
	client, _ := Web(shop, "client", 1, Away)
	OK(t, w.Home.Create(ctx, client))
	clients, err := w.Home.PodsReady(ctx, Scheduled, shop, client.Labels, 1)
	OK(t, err)
	var hellos []corev1.Pod
	dbs := map[string][]corev1.Pod{}
	for _, s := range []*Side{w.Home, w.Abroad} {
		pods, err := s.PodsReady(ctx, Scheduled, shop, map[string]string{"app": "hello"}, 1)
		OK(t, err)
		hellos = append(hellos, pods...)
		other, err := s.Other.Peer(ctx)
		OK(t, err)
		dbs[other.Spec.ClusterID], err = s.PodsReady(ctx, Scheduled, shop, map[string]string{"app": "db"}, 1)
		OK(t, err)
	}
	from := clients[0].Name
	OK(t, w.Home.ReachesAll(ctx, Restarted, shop, from, "http://hello.shop.svc.clusterset.local:8080/name", hellos))
	for id, pods := range dbs {
		OK(t, w.Home.ReachesAll(ctx, Restarted, shop, from, "http://db-0."+id+".db.shop.svc.clusterset.local:8080/name", pods))
	}
	twin, err := w.Abroad.Twin(ctx, &clients[0])
	OK(t, err)
	for _, name := range []string{"client.shop.svc.clusterset.local", "hello.default.svc.clusterset.local", "db-0.db.shop.svc.clusterset.local"} {
		if out, err := w.Abroad.InPod(ctx, twin.Namespace, twin.Name, "/tool", "dig", name); err == nil {
			t.Errorf("%s resolves to %s", name, out)
		}
	}
}

// set is a StatefulSet of one of the lab's servers, and its headless Service.
func set(namespace, name string, where Where) (*appsv1.StatefulSet, *corev1.Service) {
	d, s := Web(namespace, name, 1, where)
	s.Spec.ClusterIP = corev1.ClusterIPNone
	return &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
		ServiceName: name, Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template,
	}}, s
}
